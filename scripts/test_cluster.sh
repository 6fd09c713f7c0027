#!/usr/bin/env bash
# `dtrain launch` over two hosts (network namespaces with an sshd each) and by Slurm, on one node and on those two hosts, as
# built in BIN_FOLDER:
#   scripts/test_cluster.sh BIN_FOLDER
# Needs root, and what `scripts/setup.sh test` installs. Fifteen minutes on two busy cores. Exit code: that of the first
# part that fails; 77 where this machine cannot make hosts.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "$1")
python=${DTRAIN_PEERS_PYTHON:-$PWD/.deps/peers/bin/python}
hosts=tests/harness/two_hosts.sh
part() { printf '\n-- %s (%s s)\n' "$*" "$SECONDS"; }

part "Fashion-MNIST on two hosts, joined by 1 Gbit/s and 100 Mbit/s"
$hosts with 1gbit,100mbit "$python" -B tests/integration/cluster_training.py "$bin"
part "which of two links is taken, and what the doctor says of both"
$hosts with 1gbit,100mbit "$python" -B tests/integration/network.py "$bin/.."
part "pods that start in any order, whose names resolve 20 s late"  # `pods.py BIN Soak` alone does it 20 times
POD_RUNS=${POD_RUNS:-2} $hosts with unshaped "$python" -B tests/integration/pods.py "$bin" Soak
part "torch.distributed between hosts: gloo's bits, all operations, a rank or a host that is lost"
$hosts with unshaped "$python" -B tests/c10d/hosts.py "$bin"
part "launching, collecting, failing, losing a host"
$hosts with unshaped "$python" -B tests/integration/cluster.py "$bin"
slurm=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-slurm-XXXXXX")
trap 'rm -rf "$slurm"' EXIT
part "Slurm"
bash tests/harness/slurm_bed.sh "$slurm/1" "$python" -B tests/integration/slurm.py "$bin"
part "Slurm on two hosts"
$hosts with unshaped bash tests/harness/slurm_bed.sh "$slurm/2" "$python" -B tests/integration/slurm.py "$bin" TwoNodes
part "done"
