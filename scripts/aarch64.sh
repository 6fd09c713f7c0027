#!/usr/bin/env bash
# Compiles dtrain for 64-bit Arm (aarch64) on an x86-64 machine, into build/aarch64, and runs unit tests of it under qemu-user. A
# warning of the compiler is an error. Needs root and Linux 6.7; installs `debootstrap`, and nothing else on this machine: the cross
# compiler and the libraries lie in a Debian 12 of their own, which is made once (AARCH64_ROOT, default /var/tmp/dtrain-aarch64).
#
#   scripts/aarch64.sh [TARGET ...]          what needs no libtorch, and its tests
#   scripts/aarch64.sh --torch [TARGET ...]  what is installed, against libtorch for aarch64, which goes into .deps/aarch64
#   scripts/aarch64.sh --test [OPTIONS]      the tests that need no libtorch, compiled and run; OPTIONS are ctest's
#
# AARCH64_PAGE=65536 runs the tests as on a kernel with pages of 64 KiB.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "aarch64: $*"; }
fail() { echo "aarch64: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "needs root"
root=${AARCH64_ROOT:-/var/tmp/dtrain-aarch64}

# In that Debian, where this checkout is /srv/dtrain. Which program runs those of another processor is said in a user namespace of
# its own, so that this machine stays as it is.
inside() {  # COMMAND
  unshare --user --map-root-user --mount --pid --ipc --uts --fork --kill-child bash -c '
    set -e
    mkdir -p "$1/srv/dtrain"
    mount --bind . "$1/srv/dtrain"
    for name in dev sys; do mount --rbind "/$name" "$1/$name"; done
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/dev/shm"
    mount -t tmpfs tmpfs "$1/tmp"
    mount -t binfmt_misc binfmt_misc "$1/proc/sys/fs/binfmt_misc"
    exec chroot "$1" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      CCACHE_DIR="/srv/dtrain/build/aarch64-ccache" ${AARCH64_PAGE:+QEMU_PAGESIZE="$AARCH64_PAGE"} \
      bash -c "grep ^: /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register && cd /srv/dtrain && $2"' - "$root" "$1"
}

packages() {
  local name
  printf '%s\n' g++-aarch64-linux-gnu qemu-user-static
  for name in $(scripts/setup.sh list) libgtest-dev libgmock-dev libopenmpi-dev libpython3-dev libc6; do
    case "$name" in
      g++ | dataset-*) ;;
      python3-dev) echo "$name" ;;
      *-dev | libc6) echo "$name:arm64" ;;
      *) echo "$name" ;;
    esac
  done
}

make_root() {
  local stamp
  stamp=$(packages)
  [ "$(cat "$root/.aarch64" 2>/dev/null)" != "$stamp" ] || return 0
  FRESH_BASE=$root scripts/fresh_machine.sh --base
  say "installing the cross compiler and the libraries of arm64 in $root"
  # Packages that are the same for every processor have no arm64.
  chroot "$root" bash -c '
    dpkg --add-architecture arm64 && apt-get update -qq || exit 1
    for name in $1; do
      apt-cache show "$name" >/dev/null 2>&1 || name=${name%:arm64}
      names+=("$name")
    done
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Options::=--force-unsafe-io "${names[@]}"
  ' - "$stamp" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; fail "apt has failed"; }
  echo "$stamp" >"$root/.aarch64"
}

# Unit tests. Whole runs, whose processes wait for each other by the clock, take too long under qemu-user.
tests='^(XXX)$'

torch=OFF targets=(all) libtorch=.deps/libtorch
case "${1:-}" in
  --torch) torch=ON targets=(installed python_native) libtorch=.deps/aarch64/libtorch; shift ;;
  --test) ;;
  -*) fail "unknown option '$1'; the options are --torch and --test" ;;
esac
make_root
if [ $torch = ON ]; then
  PIP_ONLY_BINARY=:all: PIP_PLATFORM="$(printf 'manylinux_2_%s_aarch64 ' {28..17}) manylinux2014_aarch64" \
    packaging/dtrain-get-libtorch --to "$libtorch" --flavour cpu
fi
if [ "${1:-}" != --test ] && [ $# -gt 0 ]; then targets=("$@"); fi
mkdir -p build
inside "cmake -S . -B build/aarch64 -G Ninja --toolchain cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=Release -DCMAKE_COMPILE_WARNING_AS_ERROR=ON \
  -DDTRAIN_BENCH=OFF -DDTRAIN_TORCH=$torch -DDTRAIN_LIBTORCH_DIR=/srv/dtrain/$libtorch/torch" >build/aarch64.configure.log 2>&1 ||
  { tail -n 20 build/aarch64.configure.log >&2; fail "CMake has failed"; }
inside "ninja -C build/aarch64 ${AARCH64_NINJA:-} -j $(nproc) ${targets[*]}" 
