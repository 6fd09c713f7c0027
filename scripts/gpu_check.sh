#!/usr/bin/env bash
# NCCL through our communicator on a machine with a GPU: are results right, how fast is all_reduce. Builds nothing.
#
#   scripts/gpu_check.sh collect [BUILD]  here: puts bench_nccl and the libraries it needs into BUILD/gpu_check (a folder to
#                                         carry to such a machine; BUILD is build/release)
#   scripts/gpu_check.sh [FOLDER]         there: runs it from that folder (build/release/gpu_check) and prints plain text, as
#                                         kept in docs/gpu-results.md
#
# NCCL and the CUDA runtime are not carried: they are taken from the dynamic linker's folders, from CUDA's usual ones and
# from .deps/libtorch. Whatever is missing is said, and then nothing is run. Exit codes: 0 right or skipped, 1 wrong.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

collect() {
  local build=${1:-$root/build/release} bin to
  bin=$build/bin/bench_nccl
  to=$build/gpu_check
  [ -x "$bin" ] || { echo "gpu_check: there is no $bin; build it first (the target bench_nccl)" >&2; exit 1; }
  rm -rf "$to"
  mkdir -p "$to/bin" "$to/lib"
  cp "$bin" "$to/bin/"
  cp "$build/lib/libdtrain_comm_nccl.so" "$to/lib/"
  # All but the C library, which must be the machine's own.
  ldd "$bin" "$build/lib/libdtrain_comm_nccl.so" | awk '$2=="=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r library; do
    cp -L "$library" "$to/lib/"
  done
  echo "gpu_check: $(du -sh "$to" | cut -f1) in $to"
}

# Folders that hold a library NCCL's users need, where the linker does not know one.
library_folders() {
  local pattern folder
  for pattern in /usr/local/cuda/lib64 /usr/local/cuda-13*/lib /usr/local/cuda-13*/lib64 \
    "$root"/.deps/libtorch/nvidia/nccl/lib "$root"/.deps/libtorch/nvidia/cu13/lib; do
    for folder in $pattern; do
      if [ -e "$folder/libnccl.so.2" ] || [ -e "$folder/libcudart.so.13" ]; then printf ':%s' "$folder"; fi
    done
  done
}

section() { printf '\n## %s\n\n' "$1"; }

# Runs bench_nccl, at most so many seconds; what goes wrong is told and does not end the check.
run() {
  local seconds=$1 code=0
  shift
  echo "\$ bench_nccl $*"
  timeout --kill-after=5 "$seconds" "$folder/bin/bench_nccl" "$@" 2>&1 || code=$?
  case $code in
    0 | 3) ;;
    124 | 137) echo "did not end within $seconds s"; failed=1 ;;
    *) echo "exit code $code"; failed=1 ;;
  esac
  return 0
}

if [ "${1:-}" = collect ]; then
  collect "${2:-}"
  exit 0
fi
folder=${1:-$root/build/release/gpu_check}
if [ ! -x "$folder/bin/bench_nccl" ]; then
  echo "gpu_check: there is no $folder/bin/bench_nccl; scripts/gpu_check.sh collect puts it there where dtrain is built" >&2
  exit 1
fi
LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}$(library_folders)
export LD_LIBRARY_PATH
failed=0
gpus=0

echo "# NCCL check of $(date -u +%Y-%m-%d)"
section "Machine"
if command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null; then
  gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
else
  echo "nvidia-smi tells of no GPU"
fi
missing=$(ldd "$folder/bin/bench_nccl" | awk '/not found/{print $1}')
if [ -n "$missing" ]; then
  echo "skipped: these libraries are missing: $missing"
  exit 0
fi

section "One rank"
run 150 --ranks 1 --seconds 140
if [ "$gpus" -eq 0 ]; then
  section "Several ranks"
  echo "skipped: there is no GPU"
  exit "$failed"
fi
if [ "$gpus" -gt 1 ]; then
  section "A rank a GPU"
  run 200 --ranks "$gpus" --seconds 190
else
  section "A rank a GPU"
  echo "skipped: there is one GPU"
fi
one_gpu_failed=$failed
section "Two ranks on one GPU, each with a NCCL_HOSTID of its own"
run 100 --ranks 2 --gpus 1 --seconds 90
# NCCL does not promise that; what happened is printed above.
exit "$one_gpu_failed"
