#!/usr/bin/env bash
# Runs a build's tests. The output of one that fails is shown at once. The last lines give the wall time, the slowest tests, what
# was skipped, with the reasons, and what failed, with the command that runs it alone. The exit code is ctest's, with one exception:
# one or two tests that failed are run three times more, with nothing beside them. If they pass each time, their names follow as
# unstable, and the exit code is 0: most such failures come from a machine that the other tests crowd. They deserve a look, since a race
# of the product may look like this, too; what they said at first stands above.
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
failed=$folder/Testing/Temporary/LastTestsFailed.log
if [ "$status" -eq 8 ] && [ "$(wc -l <"$failed")" -le 2 ]; then
  names=$(cut -d: -f2 "$failed" | paste -sd' ')
  echo "once more, three times and alone: $names"
  if ctest --test-dir "$folder" --output-on-failure --rerun-failed --repeat until-fail:3; then
    echo "unstable: $names failed among the other tests, and passed three times alone"
    status=0
  fi
fi
exit "$status"
