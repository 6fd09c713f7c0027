#!/usr/bin/env bash
# What becomes of two ranks, one a host, when the link between them goes dead without a word: link_cut.sh BED BACKEND PROGRAM
# Runs inside `two_hosts.sh with`. Prints what the rank of the first host said (the other one's words are behind the cut), and
# "GONE" once no rank is left on either host. mpirun itself may go on for minutes: it ends with the hosts.
set -u
bed=$1 backend=$2 program=$3
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$bed" mpirun "$TWO_HOSTS" --host nodea:1,nodeb:1 -np 2 "$program" "$backend" misuse endless >"$said" 2>&1 &
left() {
  local host count sum=0
  for host in a b; do
    count=$("$bed" run "$TWO_HOSTS" $host pgrep -c -f "^$program") || true
    sum=$((sum + count))
  done
  echo "$sum"
}
for _ in $(seq 100); do [ "$(left)" = 2 ] && break; sleep 0.1; done
[ "$(left)" = 2 ] || { cat "$said"; echo "the ranks do not start"; exit 1; }
sleep 1
"$bed" cut "$TWO_HOSTS" || exit
for _ in $(seq 150); do
  sleep 0.2
  [ "$(left)" = 0 ] && { cat "$said"; echo GONE; exit 0; }
done
cat "$said"
echo "ranks are left on a host: $(left)"
exit 1
