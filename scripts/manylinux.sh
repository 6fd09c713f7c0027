#!/usr/bin/env bash
# Makes the wheel that Ubuntu 22.04, RHEL 9 and what is newer can install: HEAD is built in the root file system of Ubuntu 22.04, the oldest
# whose compiler and libraries dtrain takes (scripts/fresh_machine.sh). Needs root. The wheel comes into build/manylinux/wheel.
#
#   scripts/manylinux.sh [--torch "2.14 2.15"|all] [--python "3.10 3.14"]
#
#   --torch    the minor versions of PyTorch for which it has libraries; default: the two newest
#   --python   the Pythons for which it has modules; default: all that PyTorch has
#
# What was downloaded (.deps) and compiled (build/manylinux) is used again by the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "manylinux: $*" >&2; exit 1; }

read -r -a tested <<<"$(sed -n 's/^set(DTRAIN_LIBTORCH_TESTED \([0-9. ]*\)).*/\1/p' cmake/dtrainLibtorch.cmake)"
newest=${tested[-1]}
minors="${tested[-2]} $newest" pythons='3.10 3.11 3.12 3.13 3.14'
while [ $# -gt 0 ]; do
  case "$1" in
    --torch) minors=${2:-}; shift 2 ;;
    --python) pythons=${2:-}; shift 2 ;;
    *) fail "unknown argument '$1'; the options are --torch and --python" ;;
  esac
done
[ "$minors" != all ] || minors=${tested[*]}
others=()
for minor in $minors; do
  [[ " ${tested[*]} " == *" $minor "* ]] || fail "PyTorch $minor is not among those that dtrain is tested with: ${tested[*]}"
  [ "$minor" = "$newest" ] || others+=("$minor")
done
[[ " $minors " == *" $newest "* ]] || fail "--torch '$minors' lacks $newest, for which dtrain is built first"

# Of the machine's .deps, what another system cannot use lies elsewhere.
scripts/fresh_machine.sh --suite jammy --bind .deps --bind build/manylinux --bind build/manylinux/newer:.deps/newer "
  set -euo pipefail
  export CCACHE_DIR=\$PWD/build/manylinux/ccache DTRAIN_DEBIAN='${DTRAIN_DEBIAN:-}' DTRAIN_UBUNTU='${DTRAIN_UBUNTU:-${FRESH_UBUNTU:-}}'
  scripts/setup.sh wheel
  PATH=\$PWD/.deps/newer/tools/bin:\$PATH
  pythons=\$(scripts/python_headers.sh $pythons)
  pythons=\$(/usr/bin/python3 -B python/interpreters.py \$pythons)
  build() {  # MINOR [OPTION ...]
    local folder=build/manylinux/torch-\$1
    cmake --preset release -B \$folder -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF \"-DDTRAIN_PYTHONS=\$pythons\" \"\${@:2}\"
    ninja -C \$folder installed python_native
  }
  build $newest
  for minor in ${others[*]:-}; do
    DTRAIN_TORCH=\$minor scripts/setup.sh wheel
    build \$minor -DDTRAIN_LIBTORCH_DIR=\$PWD/.deps/torch-\$minor/libtorch/torch -DDTRAIN_TORCH_FREE_FROM=\$PWD/build/manylinux/torch-$newest
  done
  /usr/bin/python3 -B python/build_wheel.py build/manylinux/torch-* --to build/manylinux/wheel
"
