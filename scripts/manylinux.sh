#!/usr/bin/env bash
# Makes the wheel that Ubuntu 22.04, RHEL 9 and what is newer can install: HEAD is built in the root file system of Ubuntu 22.04, the oldest
# whose compiler and libraries dtrain takes (scripts/fresh_machine.sh). Needs root. The wheel comes into build/manylinux/wheel.
#
#   scripts/manylinux.sh [--torch "2.14 2.15"|all] [--python "3.10 3.14"]
#
#   --torch    the minor versions of PyTorch for which it has libraries; default: the two newest
#   --python   the versions of Python for which it has modules; default: 3.10 to 3.14
#
# What it downloads and compiles stays in build/manylinux (2 GB for each PyTorch), and is used again by the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "manylinux: $*" >&2; exit 1; }

mapfile -t known < <(packaging/dtrain-get-libtorch --releases | cut -d' ' -f1)
minors=("${known[@]: -2}") versions=(3.10 3.11 3.12 3.13 3.14) inside=false
while [ $# -gt 0 ]; do
  case "$1" in
    --torch) read -r -a minors <<<"${2:-}"; shift 2 ;;
    --python) read -r -a versions <<<"${2:-}"; shift 2 ;;
    --inside) inside=true; shift ;;  # in Ubuntu 22.04
    *) fail "unknown argument '$1'; the options are --torch and --python" ;;
  esac
done
[ "${minors[*]}" != all ] || minors=("${known[@]}")
for minor in "${minors[@]}"; do
  [[ " ${known[*]} " == *" $minor "* ]] || fail "'$minor' is none of ${known[*]}"
done

if ! $inside; then
  exec scripts/fresh_machine.sh --suite jammy --bind build/manylinux --bind build/manylinux/deps:.deps \
    "DTRAIN_DEBIAN='${DTRAIN_DEBIAN:-}' DTRAIN_UBUNTU='${DTRAIN_UBUNTU:-${FRESH_UBUNTU:-}}' \
      scripts/manylinux.sh --inside --torch '${minors[*]}' --python '${versions[*]}'"
fi
export CCACHE_DIR=$PWD/build/manylinux/ccache PATH=$PWD/.deps/newer/bin:$PATH
builds=()
for minor in "${minors[@]}"; do
  DTRAIN_TORCH=$minor scripts/setup.sh wheel
  pythons=$(scripts/python_headers.sh "${versions[@]}" | tr ' ' ';')
  libtorch=.deps/torch-$minor/libtorch/torch
  [ "$minor" != "${known[-1]}" ] || libtorch=.deps/libtorch/torch
  folder=build/manylinux/torch-$minor
  # All share what the first has without libtorch.
  cmake --preset release -B "$folder" -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF "-DDTRAIN_LIBTORCH_DIR=$PWD/$libtorch" \
    "-DCMAKE_CXX_FLAGS=-Wa,$PWD/packaging/older_symbols.s" "-DDTRAIN_PYTHONS=$pythons" ${builds:+-DDTRAIN_TORCH_FREE_FROM="$PWD/${builds[0]}"} \
    >build/manylinux/configure.log 2>&1 || { cat build/manylinux/configure.log; fail "the build for PyTorch $minor cannot be configured"; }
  scripts/quiet_build.sh "manylinux/torch-$minor" "$(nproc)" installed python_native
  builds+=("$folder")
done
/usr/bin/python3 -B python/build_wheel.py "${builds[@]}" --to build/manylinux/wheel
