#!/usr/bin/env bash
# Plants mistakes into a copy of the sources, one at a time, and names the test that finds each: tests/mutants/gpu.toml lists
# mistakes and tests. Exit codes: 0 all were found, 1 one was not, or the tests fail without any, 2 the list is wrong.
#   scripts/mutants.sh [NAME ...]   all mutants, or these
#   JOBS=n                          how many compilers run at once
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -B tests/mutants/mutants.py tests/mutants/gpu.toml "$@"
