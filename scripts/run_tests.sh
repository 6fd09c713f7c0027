#!/usr/bin/env bash
# Runs a build's tests; the last lines give the wall time, the slowest tests, and what was skipped, with the reasons. The exit
# code is ctest's.
#   scripts/run_tests.sh BUILD_FOLDER JOBS [CTEST_OPTION ...]
set -euo pipefail
folder=$1 jobs=$2
shift 2
results=$folder/tests.xml
rm -f "$results"
status=0
# All of a test's output: a program's skipped cases are told in it.
ctest --test-dir "$folder" --output-on-failure -j "$jobs" --output-junit "$(realpath "$folder")/tests.xml" \
  --test-output-size-passed 1000000 "$@" || status=$?
[ ! -e "$results" ] || python3 -B "$(dirname "$0")/test_results.py" "$results" "$SECONDS"
exit "$status"
