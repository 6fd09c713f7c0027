#!/usr/bin/env bash
# Builds targets of a preset, saying little: a line when there is work, the compiler's words when it fails.
#   scripts/quiet_build.sh PRESET JOBS [TARGET ...]
set -euo pipefail
preset=$1 jobs=$2
shift 2
log=build/$preset.build.log
started=$SECONDS
ninja -C "build/$preset" -n "$@" 2>/dev/null | grep -q 'no work to do' && exit 0
echo "building dtrain ($preset; a clean build takes a few minutes)"
if [ -t 1 ]; then
  set +e  # "|| true" would not do: it replaces PIPESTATUS, and a failed build would pass for a good one
  ninja -C "build/$preset" -j "$jobs" "$@" 2>&1 | tee "$log" | stdbuf -oL grep -oE '^\[[0-9]+/[0-9]+\]' | stdbuf -oL tr '\n' '\r'
  status=${PIPESTATUS[0]}
  set -e
else
  status=0
  ninja -C "build/$preset" -j "$jobs" "$@" >"$log" 2>&1 || status=$?
fi
if [ "$status" -ne 0 ]; then
  grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | tail -n 60
  echo "the build failed; all of it is in $log" >&2
  exit "$status"
fi
grep -E 'warning:' "$log" | sort -u || true
echo "built in $((SECONDS - started)) s"
