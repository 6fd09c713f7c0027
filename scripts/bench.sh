#!/usr/bin/env bash
# Runs every benchmark and prints its JSON, one line each. Run it on an otherwise idle machine.
#   scripts/bench.sh BIN_FOLDER
set -euo pipefail
bin=$1
for bench in bench_step bench_compute bench_exported bench_update bench_operators bench_checkpoint bench_recovery bench_startup bench_profile_overhead bench_scopes bench_virtual bench_order bench_faults bench_kill_noticed bench_scheduler bench_collectives bench_analysis; do
  [ -x "$bin/$bench" ] || continue
  printf '%s ' "$bench"
  "$bin/$bench" --json
done
[ ! -x "$bin/bench_profile_overhead" ] || { printf 'long_run '; "$bin/bench_profile_overhead" --long-run --json; }
# Not a time but whether it holds: 50 launchers that queue and are killed, for a minute.
for kind in "" --real; do
  [ ! -x "$bin/queue_stress" ] || { printf 'queue_stress %s ' $kind; "$bin/queue_stress" --seconds 60 $kind --json; }
done
if [ -x "$bin/fashion_mnist" ]; then
  printf 'what_if '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/what_if.py "$bin" --json
fi
if [ -x "$bin/dtrain-worker" ]; then
  printf 'loader_cost '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/loader_cost.py "$bin" --json --rounds 3
fi
if [ -x "$bin/synthetic" ]; then
  printf 'board '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/bench_board.py "$bin" --json
  printf 'deep_window '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/deep_window.py "$bin" --json
fi
if [ -x "$bin/dtrain-calibrate" ] && [ -f /usr/include/dnnl.h ]; then
  printf 'limits '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/limits.py "$bin"
fi
if [ -x "$bin/bench_turns_trial" ]; then
  printf 'diff_power '
  "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/diff_power.py "$bin" --json
fi
if [ "$(id -u)" -eq 0 ] && [ -x "$bin/../tests/rank_program" ]; then
  printf 'host_loss '
  tests/harness/two_hosts.sh with unshaped "${DTRAIN_PEERS_PYTHON:-.deps/peers/bin/python}" -B tests/bench/host_loss.py "$bin" --json
fi
if [ -x "$bin/planted_fault_trial" ]; then  # also `make bench-faults`
  printf 'planted_faults '
  python3 -B tests/bench/planted_faults.py "$bin" --json
fi
