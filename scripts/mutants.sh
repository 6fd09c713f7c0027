#!/usr/bin/env bash
# Plants mistakes into a copy of the sources, one at a time, and names the test that finds each: tests/mutants/layers.toml has
# a mistake in each layer, torch_distributed.toml those in the backend of torch.distributed, gpu.toml those in the code for GPUs,
# virtual_ranks.toml those of virtual ranks, queue.toml those in the queue of elastic tasks. Exit codes: 0 all were found, 1 one was not,
# or the tests fail without any, 2 a list is wrong.
#   scripts/mutants.sh [NAME ...]   all mutants, or these; MUTANTS=layers, torch_distributed, gpu, virtual_ranks or queue: of it alone
#   JOBS=n                          how many compilers run at once
set -euo pipefail
cd "$(dirname "$0")/.."
lists=()
for list in ${MUTANTS:-layers torch_distributed gpu virtual_ranks queue}; do lists+=("tests/mutants/$list.toml"); done
exec python3 -B tests/mutants/mutants.py "${lists[@]}" "$@"
