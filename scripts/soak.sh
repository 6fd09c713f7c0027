#!/usr/bin/env bash
# Long campaigns with random cases. A failure names its seed; SOAK_SEED=that SOAK_CASES=1 repeats it.
#   scripts/soak.sh BUILD_FOLDER     SOAK_CASES=1000 and SOAK_SEED=1 in the environment
# SOAK_SECONDS=600 is for how long processes of a run are killed, one every SOAK_EVERY="3 10 1" seconds, a run for each.
# SOAK_KILL_POINTS=500 ranks die at the steps of recoveries. SOAK_STOP_EVERY=60 adds a run in which a rank is stopped (SIGSTOP) that often.
set -euo pipefail
folder=$1
export SOAK_CASES=${SOAK_CASES:-1000} SOAK_SEED=${SOAK_SEED:-1}

campaign() {  # NAME COMMAND...
  local name=$1
  shift
  echo "soak: $name, seeds $SOAK_SEED to $((SOAK_SEED + SOAK_CASES - 1))"
  "$@"
}

campaign "a fault in the saver" "$folder/tests/checkpoint_fault_test" --gtest_brief=1 --gtest_filter='*SeriesOfSaves'
campaign "damaged files" "$folder/tests/checkpoint_fault_test" --gtest_brief=1 --gtest_filter='*DamagedFiles'
campaign "power cuts" "$folder/tests/checkpoint_fault_test" --gtest_brief=1 --gtest_filter='PowerCut.*'
campaign "retention" "$folder/tests/checkpoint_test" --gtest_brief=1 --gtest_filter='Retention.*'
# Each round interrupts some sixty runs.
campaign "interrupted runs" env DTRAIN_RESUME_SEED="$SOAK_SEED" DTRAIN_RESUME_ROUNDS=$(((SOAK_CASES + 59) / 60)) \
  .deps/peers/bin/python -B tests/integration/resume.py "$folder/bin"
campaign "interrupted runs of Python" env DTRAIN_RESUME_SEED="$SOAK_SEED" .deps/peers/bin/python -B tests/python/resume.py \
  "$folder/bin" $(((SOAK_CASES + 19) / 20)) Resume.test_killed_runs_of_the_launcher_go_on
campaign "virtual ranks" env DTRAIN_VIRTUAL_SEED="$SOAK_SEED" .deps/peers/bin/python -B tests/integration/virtual_ranks.py \
  "$folder/bin" --long Bits Schedules
campaign "virtual ranks in Python" .deps/peers/bin/python -B tests/python/logical_ranks.py "$folder/bin" --long Bits
campaign "changes of the number of slots" .deps/peers/bin/python -B tests/integration/elastic.py "$folder/bin" --long
campaign "loops of scripts, each killed" .deps/peers/bin/python -B tests/python/steps.py "$folder/bin" All
for every in ${SOAK_EVERY:-3 10 1}; do
  campaign "a process is killed every $every s" .deps/peers/bin/python -B tests/integration/kills.py "$folder/bin" --every "$every" \
    --seconds "${SOAK_SECONDS:-600}" --seed "$SOAK_SEED"
done
campaign "a rank dies at each step of a recovery" .deps/peers/bin/python -B tests/integration/kill_points.py "$folder/bin" \
  --cases "${SOAK_KILL_POINTS:-500}" --seed "$SOAK_SEED"
# Sixteen runs over two hosts; a machine that cannot make hosts leaves them out.
campaign "a rank, a keeper, a host and a link of two hosts" tests/harness/two_hosts.sh with unshaped .deps/peers/bin/python -B \
  tests/integration/host_faults.py "$folder/bin" || [ $? -eq 77 ]
campaign "a host of torchrun --nnodes 1:2 goes and comes" tests/harness/two_hosts.sh with unshaped .deps/peers/bin/python -B \
  tests/integration/torchrun_elastic.py "$folder/bin" || [ $? -eq 77 ]
campaign "a host is lost and comes back, host 0 too" tests/harness/two_hosts.sh with unshaped .deps/peers/bin/python -B \
  tests/integration/host_loss.py "$folder/bin" Seconds || [ $? -eq 77 ]
for sharded in false true; do
  campaign "ranks of two hosts die, and no checkpoint is on the disk; sharded updates: $sharded" tests/harness/two_hosts.sh with unshaped \
    .deps/peers/bin/python -B tests/integration/host_faults.py "$folder/bin" --beds pods,ssh --faults rank,ranks,twice,keeper,host \
    --set min_checkpoint_period.batches=1000000 --set optimizations.sharded_optimizer=$sharded || [ $? -eq 77 ]
done
if [ -n "${SOAK_STOP_EVERY:-}" ]; then
  campaign "a rank is stopped every $SOAK_STOP_EVERY s" .deps/peers/bin/python -B tests/integration/kills.py "$folder/bin" --every 10000 \
    --stop-every "$SOAK_STOP_EVERY" --seconds "${SOAK_SECONDS:-600}" --seed "$SOAK_SEED"
fi
