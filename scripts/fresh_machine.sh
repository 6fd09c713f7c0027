#!/usr/bin/env bash
# Runs a command in a fresh clone of this checkout's HEAD on a machine with none of our packages: a debootstrapped Debian 12
# in namespaces of its own, with this machine's apt and pip configuration. Needs root and `debootstrap`.
#
#   scripts/fresh_machine.sh [--keep] 'make demo && make test'
#   scripts/fresh_machine.sh [--keep] --copy FILE [--copy FILE ...] 'command'    no clone: these files, in /root
#
# The base system is made once (FRESH_BASE, default /var/tmp/dtrain-fresh-base); each run works on an overlay of it that is
# thrown away afterwards, unless --keep (it then says where it is).
set -euo pipefail
cd "$(dirname "$0")/.."
keep=false
copies=()
while :; do
  case "${1:-}" in
    --keep) keep=true; shift ;;
    --copy) copies+=("$2"); shift 2 ;;
    *) break ;;
  esac
done
command=${1:-make demo}
base=${FRESH_BASE:-/var/tmp/dtrain-fresh-base}
[ "$(id -u)" -eq 0 ] || { echo "fresh_machine: needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "fresh_machine: debootstrap is missing: apt install debootstrap" >&2; exit 1; }

make_base() {
  local uri
  uri=$(grep -hE '^URIs:' /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '{print $2; exit}')
  [ -n "$uri" ] || uri=$(awk '$1=="deb"{print $2; exit}' /etc/apt/sources.list)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$base" "$uri" >/dev/null
  cp -L /etc/resolv.conf "$base/etc/resolv.conf"
  rm -f "$base/etc/apt/sources.list"
  cp -r /etc/apt/sources.list.d/. "$base/etc/apt/sources.list.d/"
  [ ! -e /etc/apt/sources.list ] || cp /etc/apt/sources.list "$base/etc/apt/"
  cp /etc/apt/apt.conf.d/99* "$base/etc/apt/apt.conf.d/" 2>/dev/null || true
  cp /etc/pip.conf "$base/etc/" 2>/dev/null || true
  cp -r /usr/local/share/ca-certificates/. "$base/usr/local/share/ca-certificates/" 2>/dev/null || true
  cp /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
  [ -e "$base/etc/hosts" ] || echo "127.0.0.1 localhost" >"$base/etc/hosts"  # as every installed system has
  printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
  chmod +x "$base/usr/sbin/policy-rc.d"
  touch "$base/.complete"
}
[ -e "$base/.complete" ] || { rm -rf "$base"; make_base; }

work=$(mktemp -d "${base%/*}/dtrain-fresh-XXXXXX")
mkdir "$work/upper" "$work/lower-work" "$work/root"
finish() {
  umount -l "$work/root" 2>/dev/null || true
  if $keep; then echo "kept: $work/upper"; else rm -rf "$work"; fi
}
trap finish EXIT
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/lower-work" "$work/root"
if [ ${#copies[@]} -gt 0 ]; then
  cp "${copies[@]}" "$work/root/root/"
  command="apt-get update -qq; cd /root && $command"
else
  git clone -q . "$work/root/root/dtrain"
  command="apt-get update -qq && apt-get install -y -qq --no-install-recommends git make >/dev/null 2>&1; cd /root/dtrain && $command"
fi
unshare --mount --pid --uts --ipc --fork --kill-child bash -c '
  set -e
  root=$1
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  hostname fresh
  exec chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c "$2"
' - "$work/root" "$command"
