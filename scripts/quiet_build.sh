#!/usr/bin/env bash
# Builds targets of a preset, saying little: how far it is, and the compiler's words when it fails.
#   scripts/quiet_build.sh [--no-warnings] PRESET JOBS [TARGET ...]
# Warnings are shown at the end; with --no-warnings they are in the log only (build/PRESET.build.log).
set -euo pipefail
. "$(dirname "$0")/progress.sh"
warnings=true
if [ "$1" = --no-warnings ]; then
  warnings=false
  shift
fi
preset=$1 jobs=$2
shift 2
targets=("$@")
log=build/$preset.build.log steps=build/$preset.build.steps
started=$SECONDS

# "building: step 41 of 230, about 2 min left". What is left is judged by the weight of the steps that are done: in seconds of
# a compiler, roughly, by kind.
build_progress() {
  awk -v elapsed=$((SECONDS - started)) '
    function weight(text) {
      if (text !~ /Building CXX object/) return text ~ /Linking/ ? 0.5 : 0.2
      heavy = text ~ /runtime\/train\/|examples\/|worker|trial/  # libtorch is headers above all
      if (text ~ /cmake_pch/) return heavy ? 12 : 6
      return heavy ? 16 : text ~ /\/unity_/ ? 12 : 4
    }
    match($0, /^\[[0-9]+\/[0-9]+\] /) {
      text = substr($0, RLENGTH + 1)
      if (FNR == NR) { all += weight(text); ++steps } else { done += weight(text); ++finished }
    }
    END {
      if (!steps || finished >= steps) exit
      line = sprintf("building: step %d of %d", finished + 1, steps)
      if (elapsed >= 5 && done > all / 50) {
        left = elapsed * (all - done) / done
        line = line (left >= 90 ? sprintf(", about %d min left", left / 60 + 0.5) : left >= 40 ? ", about a minute left" : ", less than a minute left")
      }
      print line
    }' "$steps" "$log" 2>/dev/null
}
run_ninja() { ninja -C "build/$preset" -j "$jobs" "${targets[@]}" >"$log" 2>&1; }

# A dry run of the real file would end at the step that looks for new sources, which CMake has just done.
sed '/^build build\.ninja: RERUN_CMAKE/,/^$/d' "build/$preset/build.ninja" >"build/$preset/steps.ninja"
ninja -C "build/$preset" -f steps.ninja -n "${targets[@]}" >"$steps" 2>/dev/null || true
if grep -q 'no work to do' "$steps"; then exit 0; fi
: >"$log"
echo "building dtrain ($preset, $(grep -c '^\[' "$steps" || true) steps, $jobs at a time)"
status=0
with_progress build_progress run_ninja || status=$?
if [ "$status" -ne 0 ]; then
  grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | tail -n 60
  echo "the build failed; all of it is in $log" >&2
  exit "$status"
fi
if $warnings; then grep -E '^[^ ]+:[0-9]+(:[0-9]+)?: warning:' "$log" | sort -u || true; fi
echo "built in $((SECONDS - started)) s"
