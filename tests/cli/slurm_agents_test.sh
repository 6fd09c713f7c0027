#!/usr/bin/env bash
# What dtrain makes of the variables that a real Slurm sets: slurm_agents_test.sh DTRAIN. Exit code 77 (skipped) where there
# is none, or no root to start it.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

# In the bed: dtrain's agents in an allocation made with these options, against "id,host,slots,cores,here". Where the
# allocation asked for no tasks, its cores are counted, which an experiment divides.
expect() {
  local wanted=$1 said
  shift
  said=$(salloc --quiet "$@" "$DTRAIN" agent list --csv | tail -n +2 | cut -d, -f1,2,3,4,8)
  [ "$said" = "$wanted" ] || { echo "salloc $*: '$said' instead of '$wanted'" >&2; exit 1; }
}

if [ "${2-}" = inside ]; then
  DTRAIN=$1
  node=$(hostname -s) cpus=$(nproc) cores=$(lscpu -p=socket,core | grep -v '^#' | sort -u | wc -l)
  expect "$node,$node,1,,yes" -n 1
  expect "$node,$node,$cpus,,yes" -n "$cpus"
  expect "$node,$node,,$((cores < cpus ? cores : cpus)),yes" -N 1 --exclusive
  expect "$node,$node,1,,yes" -N 1 -c "$cpus"
  batch=$(mktemp)
  sbatch --quiet --wait -n "$cpus" -o "$batch" --wrap "'$DTRAIN' agent list"
  grep -q "^cluster: the Slurm allocation [0-9]*$" "$batch" || { cat "$batch" >&2; exit 1; }
  rm "$batch"
  exit 0
fi

PATH=$PATH:/usr/sbin
skip() { echo "slurm_agents_test.sh: $*" >&2; exit 77; }
[ "$(id -u)" = 0 ] || skip "starting a Slurm needs root"
for program in munged slurmctld slurmd salloc; do
  command -v $program >/dev/null || skip "$program is not installed: scripts/setup.sh test"
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset DTRAIN_CLUSTER
export XDG_CONFIG_HOME=$folder/config DTRAIN_STATE_DIR=$folder/ledger
cd "$folder"
timeout 100 bash "$here/../harness/slurm_bed.sh" "$folder/slurm" "$here/slurm_agents_test.sh" "$1" inside
