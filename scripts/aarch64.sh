#!/usr/bin/env bash
# Compiles dtrain for 64-bit Arm (aarch64) on an x86-64 machine, into build/aarch64, and runs its unit tests under qemu-user. A
# warning of the compiler is an error. Needs root, Linux 6.7, and what `make demo` has fetched into .deps. Installs `debootstrap`, and
# nothing else on this machine: the cross compiler and the libraries lie in a Debian 12 of their own, which is made once
# (AARCH64_ROOT, default /var/tmp/dtrain-aarch64; 2 GB).
#
#   scripts/aarch64.sh [TARGET ...]          what is installed and needs no libtorch, and its unit tests
#   scripts/aarch64.sh --torch [TARGET ...]  all that is installed, and the Python package; gets libtorch into .deps/aarch64. Without
#                                            TARGETs, two ranks train under qemu-user afterwards, and two of build/release (make test)
#   scripts/aarch64.sh --test [OPTIONS]      the unit tests that need no libtorch, compiled and run; OPTIONS are ctest's
#
# AARCH64_PAGE=65536 runs the tests as on a kernel with pages of 64 KiB, without SVE, whose stores this qemu then gets wrong. Exit code 77: this machine cannot.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "aarch64: $*"; }
fail() { echo "aarch64: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "needs root"
unshare --user --map-root-user --mount mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
  { say "this kernel lets no namespace say which program runs those of another processor (Linux 6.7 does)"; exit 77; }
root=${AARCH64_ROOT:-/var/tmp/dtrain-aarch64}

# Whole runs are left out: their processes wait for each other by the clock, and qemu-user is too slow.
tests=(base_test host_test config_test config_no_rules_test scheduler_test ledger_test run_test
       data_idx_test data_files_test data_in_memory_test data_loader_test data_resume_cases_test data_added_format_test
       data_image_test data_transforms_test fuzz_replay_test checkpoint_test profile_test
       trace_analysis_test analysis_test diff_test rules_test report_test live_test
       test_comm_conformance test_comm_staging test_comm_many_ranks test_comm_narrow test_comm_misuse test_comm_control
       test_comm_host_share test_comm_compression test_added_codec test_comm_fusion test_comm_hierarchical
       test_comm_message_counters test_comm_module test_comm_nccl)

# In that Debian, where this checkout is /srv/dtrain. Which program runs those of another processor is said in a user namespace of
# its own, so that this machine stays as it is.
inside() {  # COMMAND
  PATH=$root/.maps:$PATH unshare --user --map-users=0,0,65536 --map-groups=0,0,65536 --mount --pid --ipc --uts --fork --kill-child bash -c '
    set -e
    mkdir -p "$1/srv/dtrain"
    mount --rbind . "$1/srv/dtrain"
    for name in dev sys; do mount --rbind "/$name" "$1/$name"; done
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/dev/shm"
    mount -t tmpfs tmpfs "$1/tmp"
    mount -t binfmt_misc binfmt_misc "$1/proc/sys/fs/binfmt_misc"
    exec chroot "$1" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" PATH=/usr/sbin:/usr/bin:/sbin:/bin CCACHE_DIR=/var/cache/ccache \
      ${AARCH64_PAGE:+QEMU_PAGESIZE="$AARCH64_PAGE" QEMU_CPU=max,sve=off} bash -c "
        set -e
        grep ^: /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
        cd /srv/dtrain
        $2"' - "$root" "$1"
}

packages() {
  local name
  for name in g++-aarch64-linux-gnu qemu-user-static binutils $(scripts/setup.sh list) \
    libgtest-dev libgmock-dev libopenmpi-dev libpython3-dev libc6; do
    case "$name" in
      g++ | mold | dataset-*) ;;
      python3-dev) echo "$name" ;;
      *-dev | libc6) echo "$name:arm64" ;;
      *) echo "$name" ;;
    esac
  done
}

make_root() {
  local names kind
  names=$(packages)
  [ "$(cat "$root/.aarch64" 2>/dev/null)" != "$names" ] || return 0
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
  ' - "$names" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; fail "apt has failed; $root.log says more"; }
  # What unshare calls for a namespace of several users, and what machines without the package uidmap lack.
  mkdir -p "$root/.maps"
  for kind in uid gid; do
    printf '#!/bin/sh\necho "$2 $3 $4" >"/proc/$1/%s_map"\n' $kind >"$root/.maps/new${kind}map"
    chmod +x "$root/.maps/new${kind}map"
  done
  echo "$names" >"$root/.aarch64"
}

torch=OFF test=false train=false targets=(installed "${tests[@]}") libtorch=.deps/libtorch
case "${1:-}" in
  --torch) [ $# -gt 1 ] || train=true; torch=ON targets=(installed python_native) libtorch=.deps/aarch64/libtorch; shift ;;
  --test) test=true targets=("${tests[@]}" dtrain dtrain-agent dtrain-saver); shift ;;
  -*) fail "unknown option '$1'; the options are --torch and --test" ;;
esac
if ! $test && [ $# -gt 0 ]; then targets=("$@"); fi

# The same experiment on both processors: no loss may differ by more than rounding does.
train() {
  local folder=build/aarch64/trained
  rm -rf $folder && mkdir -p $folder
  .deps/peers/bin/python -W ignore tests/aarch64/train.py make $folder
  build/release/bin/dtrain launch $folder/experiment.yaml --run-dir $folder/x86-64 >$folder/x86-64.log 2>&1 ||
    { tail -n 5 $folder/x86-64.log >&2; fail "the run of build/release has failed; $folder/x86-64.log says more"; }
  inside "mount --bind $folder/cpuinfo /proc/cpuinfo
    build/aarch64/bin/dtrain launch $folder/experiment.yaml --run-dir $folder/aarch64" >$folder/aarch64.log 2>&1 ||
    { tail -n 5 $folder/aarch64.log >&2; fail "the run under qemu-user has failed; $folder/aarch64.log says more"; }
  /usr/bin/python3 -B tests/aarch64/train.py compare $folder/x86-64 $folder/aarch64 || fail "so dtrain trains otherwise there"
}

make_root
if [ $torch = ON ]; then
  PIP_ONLY_BINARY=:all: PIP_PLATFORM="$(printf 'manylinux_2_%s_aarch64 ' {28..17}) manylinux2014_aarch64" \
    packaging/dtrain-get-libtorch --to "$libtorch" --flavour cpu
fi
mkdir -p build
inside "cmake -S . -B build/aarch64 -G Ninja --toolchain cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DDTRAIN_BENCH=OFF -DDTRAIN_TORCH=$torch -DDTRAIN_LIBTORCH_DIR=/srv/dtrain/$libtorch/torch" >build/aarch64.configure.log 2>&1 ||
  { tail -n 20 build/aarch64.configure.log >&2; fail "CMake has failed"; }
inside "ninja -C build/aarch64 -k 0 -j $(nproc) ${targets[*]}" >build/aarch64.build.log 2>&1 ||
  { grep -A 15 FAILED build/aarch64.build.log | head -n 60 >&2; fail "it does not compile; build/aarch64.build.log says more"; }
say "compiled without a warning: ${targets[*]}"
# ShmProcesses runs the suite of all operations in seven processes, and stops it after a minute. ReleasedMemory needs MADV_REMOVE, which
# qemu-user says to have done, and has not. RealProc reads /proc/PID/stat, which it makes up. The real NCCL is not there.
without='ShmProcesses.*:*ReleasedMemory:RealProc.*:NcclLibrary.TheRealOnes*'
! $test || inside "GTEST_FILTER=-$without \
  ctest --test-dir build/aarch64 -j $(nproc) --output-on-failure -R '^($(IFS='|'; echo "${tests[*]}"))\$' $*"
! $train || train
