#!/usr/bin/env bash
# scripts/gpu_check.sh where there is no GPU: it says what it skips and does not fail. With one, its results are right.
#   gpu_check_test.sh BUILD_FOLDER
set -euo pipefail
check=$(dirname "$0")/../../scripts/gpu_check.sh
fail() { echo "gpu_check_test: $1" >&2; exit 1; }

"$check" collect "$1"
said=$("$check" "$1/gpu_check") || fail "failed: $said"
echo "$said"
[[ $said == *"# NCCL check of "* ]] || fail "no title"
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  [[ $said == *" 0 wrong"* ]] || fail "no results"
else
  [[ $said == *"nvidia-smi tells of no GPU"* && $said == *"skipped: there is no GPU"* ]] || fail "does not say what it skips"
  [[ $said == *"skipped: "*[GC][PU][UD]* ]] || fail "does not say why one rank was skipped"
fi
said=$("$check" "$1/nowhere" 2>&1) && fail "ran without its program"
[[ $said == *"gpu_check.sh collect"* ]] || fail "does not say how to get its program: $said"
