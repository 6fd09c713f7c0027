#!/usr/bin/env bash
# Runs a build's tests. The output of one that fails is shown at once. The last lines give the wall time, the slowest tests, what
# was skipped, with the reasons, and what failed, with the command that runs it alone. The exit code is ctest's.
#   scripts/run_tests.sh BUILD_FOLDER JOBS [CTEST_OPTION ...]
set -euo pipefail
folder=$1 jobs=$2
shift 2
results=$folder/tests.xml
rm -f "$results"
status=0
export PYTHONPATH=$(realpath "$(dirname "$0")/../tests/harness/counting")${PYTHONPATH:+:$PYTHONPATH} TEST_COUNTS_ASSERTIONS=1
# Tests wait nearly half of their time (for deadlines, for processes that start): with twice as many as there are cores, cores are
# seldom idle. All of a test's output is kept: a program's skipped cases are told in it.
ctest --test-dir "$folder" --output-on-failure -j $((2 * jobs)) --output-junit "$(realpath "$folder")/tests.xml" \
  --test-output-size-passed 1000000 "$@" || status=$?
[ ! -e "$results" ] || python3 -B "$(dirname "$0")/test_results.py" "$folder" "$SECONDS"
exit "$status"
