#!/usr/bin/env bash
# Two hosts on one machine, joined by one or two links of given speeds: each has its own network, host name, processes, /dev/shm
# and sshd, and shares the file system with this machine. Needs root, openssh-server, iproute2 (`cut`: nftables); where that
# is missing, one line says so and the exit status is 77, which ctest counts as skipped.
#
#   two_hosts.sh up FOLDER RATE [RATE1]   makes them (FOLDER must not exist; RATE as tc writes it: 100mbit, 1gbit, or
#                                         `unshaped`). They go when the process that called this ends, if not before.
#   two_hosts.sh rate FOLDER RATE [LINK]  changes a link's speed (LINK: link0, which is the default, or link1)
#   two_hosts.sh run FOLDER a|b CMD ...   runs a command on one of them, in this folder; its exit status is this one's
#   two_hosts.sh mpirun FOLDER ARG ...    Open MPI's mpirun on host a, told of both hosts' names and link
#   two_hosts.sh with RATE[,RATE1] CMD ...  up in a folder of its own, which CMD finds in $TWO_HOSTS; down when CMD ends
#   two_hosts.sh cut|mend FOLDER [LINK]   drops whatever arrives over the link, without a word to anyone, | no longer
#   two_hosts.sh down FOLDER              ends what runs on them, and removes them and FOLDER
#
# Their names are nodea (10.71.1.1) and nodeb (10.71.1.2), the link is called link0 on both. With RATE1 there is also link1
# (10.71.2.1 and 10.71.2.2).
set -euo pipefail

export PATH=$PATH:/usr/sbin:/sbin
skip() { echo "two_hosts.sh: $*" >&2; exit 77; }
die() { echo "two_hosts.sh: $*" >&2; exit 2; }
usage() { sed -n '6,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
if [ "$1" = with ]; then
  [ $# -ge 3 ] || usage
  TWO_HOSTS=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-two-hosts-XXXXXX")/bed
  export TWO_HOSTS
  trap '[ ! -d "$TWO_HOSTS" ] || "$0" down "$TWO_HOSTS"; rmdir "${TWO_HOSTS%/bed}"' EXIT
  trap 'exit 143' TERM INT HUP
  IFS=, read -r -a rates <<<"$2"
  "$0" up "$TWO_HOSTS" "${rates[@]}"
  shift 2
  "$@" &
  child=$!
  trap 'kill -TERM $child 2>/dev/null || true' TERM HUP
  trap 'kill -INT $child 2>/dev/null || true' INT
  while :; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || exit "$code"
  done
fi
command=$1 folder=$2
shift 2

namespace_of() { cat "$folder/namespace.$1"; }

inside() {  # HOST CMD ...
  local pid
  pid=$(cat "$folder/init.$1")
  shift
  nsenter --target "$pid" --net --uts --ipc --mount --pid --wdns="$PWD" -- "$@"
}

shape() {  # RATE [LINK]
  local host link=${2:-link0}
  for host in a b; do
    inside $host tc qdisc del dev "$link" root 2>/dev/null || true
    # A burst of a millisecond or two; a queue that holds 50 ms, as a router's does.
    case $1 in
      unshaped) ;;
      *gbit) inside $host tc qdisc add dev "$link" root tbf rate "$1" burst 256kb latency 20ms || return ;;
      *) inside $host tc qdisc add dev "$link" root tbf rate "$1" burst 32kb latency 50ms || return ;;
    esac
  done
}

start_host() {  # HOST
  local host=$1 name other
  name=$(namespace_of "$host")
  mkdir -p "/etc/netns/$name"
  printf '127.0.0.1 localhost\n10.71.1.1 nodea\n10.71.1.2 nodeb\n' >"/etc/netns/$name/hosts"
  ssh-keygen -q -t ed25519 -N '' -f "$folder/host_key.$host"
  cat >"$folder/sshd.$host" <<SSHD
Port 22
HostKey $folder/host_key.$host
AuthorizedKeysFile $folder/user_key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
SSHD
  # The first process of the host's own process namespace: when it ends, all of them do.
  setsid ip netns exec "$name" unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc \
    bash -c "hostname node$host; mount -t tmpfs -o size=2g tmpfs /dev/shm; ip link set lo up
             /usr/sbin/sshd -D -e -f '$folder/sshd.$host' 2>'$folder/sshd.$host.log' &
             until ss -Hltn 'sport = 22' | grep -q . || ! kill -0 \$!; do sleep 0.02; done
             echo up >'$folder/ready.$host'; while :; do sleep 1000 & wait \$!; done" \
    </dev/null >"$folder/log.$host" 2>&1 &
  local starter=$! i
  disown "$starter"  # so that its end is not told
  for ((i = 0; i < 1000; i++)); do
    [ -s "$folder/ready.$host" ] && other=$(pgrep -P "$starter" -x bash) && [ -n "$other" ] && break
    sleep 0.02
  done
  [ -n "${other:-}" ] || die "host $host did not start: $(cat "$folder/log.$host")"
  echo "$other" >"$folder/init.$host"
  echo "$starter" >"$folder/starter.$host"
}

down() {
  local host pid
  for host in a b; do
    for kind in init starter; do
      [ -s "$folder/$kind.$host" ] && kill -KILL "$(cat "$folder/$kind.$host")" 2>/dev/null || true
    done
    [ -s "$folder/namespace.$host" ] || continue
    ip netns del "$(namespace_of $host)" 2>/dev/null || true
    rm -rf "/etc/netns/$(namespace_of $host)"
  done
  pid=$(cat "$folder/watcher" 2>/dev/null || true)
  rm -rf "$folder"
  [ -z "$pid" ] || [ "$pid" = $$ ] || kill "$pid" 2>/dev/null || true
}

up() {  # RATE [RATE1]
  [ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
  local tool host link id=$$ owner=$PPID
  for tool in ip tc nsenter unshare ssh-keygen; do
    command -v $tool >/dev/null || skip "$tool is missing: apt install iproute2 util-linux openssh-client"
  done
  [ -x /usr/sbin/sshd ] || skip "sshd is missing: apt install openssh-server"
  unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine does not let root make namespaces"
  mkdir "$folder"
  folder=$(cd "$folder" && pwd)
  trap 'status=$?; [ $status -eq 0 ] || down; exit $status' EXIT
  mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$folder/user_key"
  for host in a b; do
    echo "dtrain-$id-$host" >"$folder/namespace.$host"
    ip netns add "dtrain-$id-$host" || skip "this machine makes no network namespaces"
  done
  for ((link = 0; link < $#; link++)); do
    ip link add "link$link" netns "dtrain-$id-a" type veth peer name "link$link" netns "dtrain-$id-b" ||
      skip "this machine makes no links between namespaces (the kernel's veth)"
    ip -n "dtrain-$id-a" addr add "10.71.$((link + 1)).1/24" dev "link$link"
    ip -n "dtrain-$id-b" addr add "10.71.$((link + 1)).2/24" dev "link$link"
    for host in a b; do ip -n "dtrain-$id-$host" link set "link$link" up; done
  done
  for host in a b; do start_host $host; done
  for host in a b; do inside $host true || die "cannot enter host $host"; done
  cat >"$folder/ssh_config" <<SSH
Host *
  User root
  IdentityFile $folder/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ServerAliveInterval 5
  ServerAliveCountMax 2
SSH
  local rates=("$@")
  for ((link = 0; link < $#; link++)); do
    shape "${rates[$link]}" "link$link" || skip "this machine shapes no links (the kernel's sch_tbf)"
  done
  # Outlives this script, ends with its caller.
  setsid bash -c "tail --pid=$owner -f /dev/null; exec '$(readlink -f "$0")' down '$folder'" </dev/null >/dev/null 2>&1 &
  echo $! >"$folder/watcher"
}

case $command in
  up) [ $# -eq 1 ] || [ $# -eq 2 ] || usage; up "$@" ;;
  rate) [ $# -eq 1 ] || [ $# -eq 2 ] || usage; shape "$@" ;;
  run) [ $# -ge 2 ] || usage; inside "$@" ;;
  mpirun)
    inside a mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm_rsh_agent "ssh -F $folder/ssh_config" \
      --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.71.1.0/24 \
      --mca oob_tcp_if_include 10.71.1.0/24 "$@" ;;
  cut)
    command -v nft >/dev/null || skip "nft is missing: apt install nftables"
    link=${1:-link0}
    for host in a b; do
      inside $host nft "add table inet cut_$link; add chain inet cut_$link arriving { type filter hook input priority 0; };
                        add rule inet cut_$link arriving iifname \"$link\" drop"
    done ;;
  mend) for host in a b; do inside $host nft delete table inet "cut_${1:-link0}"; done ;;
  down) [ -d "$folder" ] || die "there is no $folder"; down ;;
  *) usage ;;
esac
