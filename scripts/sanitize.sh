#!/usr/bin/env bash
# Builds the tests of the torch-free libraries under a sanitizer and runs them. Whole runs (run, cli) are left to the
# release build: their processes are timed against each other.
#   scripts/sanitize.sh asan|tsan JOBS [PART/PARTS]   with 1/2 every second test from the first on, with 2/2 the others
#   scripts/sanitize.sh tsan-torch JOBS               the backend of torch.distributed, on a libtorch that is not instrumented
set -euo pipefail
preset=$1 jobs=$2 part=${3:-1/1}
tests=(base_test config_test scheduler_test ledger_test data_idx_test data_files_test data_in_memory_test data_loader_test data_added_format_test
       fuzz_replay_test checkpoint_test
       test_comm_conformance test_comm_misuse test_comm_control test_comm_host_share
       test_comm_tcp test_comm_mailbox test_comm_rendezvous_store)
if [ "$preset" = tsan ]; then
  tests+=(test_comm_arena test_comm_message_counters test_comm_narrow test_comm_compression test_added_codec test_comm_fusion
         test_comm_hierarchical test_comm_nccl)
elif [ "$preset" = tsan-torch ]; then
  tests=(test_torch_distributed)
  export TSAN_OPTIONS="suppressions=$PWD/tests/torch_distributed/tsan.supp"
else
  tests+=(host_test analysis_test profile_test test_cuda_kernels)
fi
chosen=()
for i in "${!tests[@]}"; do
  if [ $((i % ${part#*/})) -eq $((${part%/*} - 1)) ]; then chosen+=("${tests[i]}"); fi
done
tests=("${chosen[@]}")
mkdir -p build
cmake --preset "$preset" >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log"; exit 1; }
scripts/quiet_build.sh "$preset" "$jobs" "${tests[@]}" dtrain-agent dtrain-saver
ctest --test-dir "build/$preset" --output-on-failure -R "^($(IFS='|'; echo "${tests[*]}"))\$"
