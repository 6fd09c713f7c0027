#!/usr/bin/env bash
# `dtrain launch` over two hosts (network namespaces with an sshd each) and on a one-node Slurm, as built in BIN_FOLDER:
#   scripts/test_cluster.sh BIN_FOLDER
# Needs root, and what `scripts/setup.sh test` installs. About four minutes. Exit code: that of the first part that fails;
# 77 where this machine cannot make hosts.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "$1")
python=${DTRAIN_PEERS_PYTHON:-$PWD/.deps/peers/bin/python}
hosts=tests/harness/two_hosts.sh
part() { printf '\n-- %s (%s s)\n' "$*" "$SECONDS"; }

part "Fashion-MNIST on two hosts, joined by 1 Gbit/s and 100 Mbit/s"
$hosts with 1gbit,100mbit "$python" -B tests/integration/cluster_training.py "$bin"
part "launching, collecting, failing, losing a host"
$hosts with unshaped "$python" -B tests/integration/cluster.py "$bin"
part "Slurm"
slurm=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-slurm-XXXXXX")
trap 'rm -rf "$slurm"' EXIT
bash tests/harness/slurm_bed.sh "$slurm" "$python" -B tests/integration/slurm.py "$bin"
part "done"
