#!/usr/bin/env bash
# Runs a command inside a throw-away Slurm of one node: slurm_bed.sh FOLDER COMMAND...
# Inside `two_hosts.sh with RATE` its nodes are those two hosts, and the command runs on the first. Everything lies in
# FOLDER, on ports of its own, and ends with the command. Needs root and the packages slurmctld, slurmd, slurm-client
# and munge. Exit code: the command's; 125 when Slurm does not come up (FOLDER/*.log say why).
set -u
export PATH=$PATH:/usr/sbin
folder=$(realpath -m "$1"); shift
cpus=$(nproc)
daemons=()
if [ -z "${TWO_HOSTS:-}" ]; then
  nodes=("$(hostname -s)") addresses=(127.0.0.1)
  on() { shift; exec "$@"; }
else
  nodes=(nodea nodeb) addresses=(10.71.1.1 10.71.1.2)
  on() {  # NODE CMD ...
    local pid
    pid=$(cat "$TWO_HOSTS/init.${1#node}")
    shift
    exec nsenter --target "$pid" --net --uts --ipc --mount --pid --wdns="$PWD" -- "$@"
  }
fi

take_down() {
  local pid
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null; done
  for pid in "${daemons[@]}"; do
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
}
trap take_down EXIT
trap 'exit 143' TERM INT HUP

give_up() { echo "slurm_bed: $*" >&2; tail -n 5 "$folder"/*.log >&2; exit 125; }

# Two free ports below those the kernel gives to others.
port=$((10000 + RANDOM % 20000))
while ss -Hltn "sport >= $port and sport <= $((port + 1))" | grep -q .; do port=$((10000 + RANDOM % 20000)); done

mkdir -p "$folder"/{state,spool}
chmod 0755 "$folder"
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 0400 "$folder/munge.key"
# Root may trust a folder in /tmp, which munged refuses without --force.
munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" >"$folder/munged.log" 2>&1 &
daemons+=($!)

cat >"$folder/slurm.conf" <<CONF
ClusterName=bed
SlurmctldHost=${nodes[0]}(${addresses[0]})
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
CONF
for i in "${!nodes[@]}"; do
  echo "NodeName=${nodes[$i]} NodeAddr=${addresses[$i]} CPUs=$cpus RealMemory=1000" >>"$folder/slurm.conf"
  mkdir -p "$folder/spool/${nodes[$i]}"
done
all=$(IFS=,; echo "${nodes[*]}")
# Jobs of the second take the place of those of the first, which have half a minute to save.
echo "PartitionName=all Nodes=$all Default=YES State=UP PriorityTier=1 GraceTime=30" >>"$folder/slurm.conf"
echo "PartitionName=urgent Nodes=$all State=UP PriorityTier=2 PreemptMode=OFF" >>"$folder/slurm.conf"
# No control groups are used, and none may be mounted: in a container, or in a namespace that ip has made. Left to itself, slurmd
# looks for them and gives up.
echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"
# Two hosts on one machine: /dev/shm is each one's own, unlike /tmp.
[ -z "${TWO_HOSTS:-}" ] || echo "PMIxCliTmpDirBase=/dev/shm" >"$folder/mpi.conf"
export SLURM_CONF=$folder/slurm.conf
for _ in $(seq 100); do [ -S "$folder/munge.socket" ] && break; sleep 0.05; done
on "${nodes[0]}" slurmctld -D -i -f "$SLURM_CONF" >"$folder/slurmctld.log" 2>&1 &
daemons+=($!)
for node in "${nodes[@]}"; do
  on "$node" slurmd -D -f "$SLURM_CONF" >"$folder/slurmd.$node.log" 2>&1 &
  daemons+=($!)
done
state() { (on "${nodes[0]}" sinfo -h -o %T) 2>/dev/null; }  # one line where all nodes are in the same
for _ in $(seq 200); do
  [ "$(state)" = idle ] && break
  sleep 0.1
done
[ "$(state)" = idle ] || give_up "the nodes do not become idle"
on "${nodes[0]}" "$@" &
command=$!
trap 'kill -TERM $command 2>/dev/null' TERM
trap 'kill -INT $command 2>/dev/null' INT
while :; do
  wait "$command"
  code=$?
  kill -0 "$command" 2>/dev/null || break
done
exit "$code"
