#!/usr/bin/env bash
# Runs a command in a fresh clone of this checkout's HEAD on a machine with none of our packages: a debootstrapped Debian 12
# or an Ubuntu in namespaces of its own, with this machine's apt and pip configuration. Needs root; installs `debootstrap`.
#
#   scripts/fresh_machine.sh [OPTIONS] 'time make demo && time make test'
#   scripts/fresh_machine.sh [OPTIONS] --copy FILE [--copy FILE ...] 'command'   no clone: these files, in the home folder
#   scripts/fresh_machine.sh [OPTIONS] --base                                    makes the base system, and runs nothing
#
#   --suite NAME   bookworm: Debian 12 (the default); resolute, noble, jammy: Ubuntu 26.04, 24.04, 22.04 (from FRESH_UBUNTU,
#                  default http://archive.ubuntu.com/ubuntu)
#   --user         as an ordinary user with sudo rights; else as root
#   --bind FOLDER[:PLACE]  a folder of this checkout is in the clone, too (at PLACE): what the command writes there stays
#   --keep         keep what the run wrote, and say where it is
#
# The base system is made once (FRESH_BASE, default /var/tmp/dtrain-fresh-SUITE); each run works on an overlay of it that is
# thrown away afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "fresh_machine: $*" >&2; }
fail() { say "$@"; exit 1; }

keep=false as_user=false base_only=false suite=bookworm
copies=() binds=()
while :; do
  case "${1:-}" in
    --keep) keep=true; shift ;;
    --user) as_user=true; shift ;;
    --suite) suite=${2:-}; shift 2 ;;
    --copy) copies+=("$2"); shift 2 ;;
    --bind) binds+=("$2"); shift 2 ;;
    --base) base_only=true; shift ;;
    -*) fail "unknown option '$1'; the options are --suite, --user, --bind, --keep, --copy and --base" ;;
    *) break ;;
  esac
done
command=${1:-make demo}
base=${FRESH_BASE:-/var/tmp/dtrain-fresh-$suite}
[ "$(id -u)" -eq 0 ] || fail "needs root"

debian_mirror() {
  local uri
  uri=$(grep -hE '^URIs:' /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '{print $2; exit}')
  [ -n "$uri" ] || uri=$(awk '$1=="deb"{print $2; exit}' /etc/apt/sources.list)
  echo "$uri"
}

make_base() {
  local uri
  local options=(--variant=minbase --include=ca-certificates)
  if ! command -v debootstrap >/dev/null; then
    say "installing debootstrap"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap; } >/dev/null 2>&1 ||
      fail "debootstrap is missing, and apt could not install it"
  fi
  say "making the base system ($suite) in $base"
  case "$suite" in
    bookworm)
      uri=$(debian_mirror)
      debootstrap "${options[@]}" bookworm "$base" "$uri" >"$base.log" 2>&1 || { tail -n 5 "$base.log" >&2; fail "debootstrap failed"; }
      rm -f "$base/etc/apt/sources.list"
      cp /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list "$base/etc/apt/sources.list.d/" 2>/dev/null || true
      [ ! -e /etc/apt/sources.list ] || cp /etc/apt/sources.list "$base/etc/apt/"
      ;;
    resolute | noble | jammy)
      uri=${FRESH_UBUNTU:-http://archive.ubuntu.com/ubuntu}
      # Debian's debootstrap knows neither the suite (gutsy's script serves all since) nor Ubuntu's keys: the base brings them,
      # and apt checks everything with them from there on.
      debootstrap --no-check-gpg --components=main,universe "${options[@]}" "$suite" "$base" "$uri" \
        /usr/share/debootstrap/scripts/gutsy >"$base.log" 2>&1 ||
        { tail -n 5 "$base.log" >&2; fail "debootstrap failed: is there Ubuntu's $suite under $uri? (FRESH_UBUNTU sets another)"; }
      printf 'deb %s %s main universe\n' "$uri" "$suite" "$uri" "$suite-updates" "$uri" "$suite-security" >"$base/etc/apt/sources.list"
      ;;
    *) fail "the suite is '$suite'; use bookworm, resolute, noble or jammy" ;;
  esac
  cp -L /etc/resolv.conf "$base/etc/resolv.conf"
  cp /etc/apt/apt.conf.d/99* "$base/etc/apt/apt.conf.d/" 2>/dev/null || true
  cp /etc/pip.conf "$base/etc/" 2>/dev/null || true
  cp -r /usr/local/share/ca-certificates/. "$base/usr/local/share/ca-certificates/" 2>/dev/null || true
  cp /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
  printf '127.0.0.1 localhost\n127.0.1.1 fresh\n' >"$base/etc/hosts"  # as every installed system has
  printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
  chmod +x "$base/usr/sbin/policy-rc.d"
  touch "$base/.complete"
}
[ -e "$base/.complete" ] || { rm -rf "$base"; make_base; }
! $base_only || exit 0

work=$(mktemp -d "${base%/*}/dtrain-fresh-XXXXXX")
chmod 755 "$work"
mkdir "$work/upper" "$work/lower-work" "$work/root"
finish() {
  umount -l "$work/root" 2>/dev/null || true
  if $keep; then say "kept: $work/upper"; else rm -rf "$work"; fi
}
trap finish EXIT
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/lower-work" "$work/root"

user=root home=/root
packages=(git make)
if $as_user; then
  user=dev home=/home/dev
  packages+=(sudo)
  chroot "$work/root" useradd --create-home --shell /bin/bash dev
  mkdir -p "$work/root/etc/sudoers.d"
  echo 'dev ALL=(ALL) NOPASSWD: ALL' >"$work/root/etc/sudoers.d/dev"
fi
prepare="apt-get update -qq && apt-get install -y -qq --no-install-recommends ${packages[*]} >/dev/null 2>&1"
if [ ${#copies[@]} -gt 0 ]; then
  $as_user || prepare="apt-get update -qq"
  cp "${copies[@]}" "$work/root$home/"
  command="cd $home && $command"
else
  git clone -q . "$work/root$home/dtrain"
  command="cd $home/dtrain && $command"
fi
chroot "$work/root" chown -R "$user:" "$home"
# The overlay becomes the root of its mount namespace, as a machine's is: tests enter namespaces of their own, which a chroot is not
# enough for.
unshare --mount --pid --uts --ipc --fork --kill-child bash -c '
  set -e
  root=$1 user=$2 home=$3 prepare=$4 command=$5
  shift 5
  for bind; do
    folder=${bind%:*} place=$root$home/dtrain/${bind#*:}
    mkdir -p "$folder" "$place"
    mount --bind "$folder" "$place"
  done
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  hostname fresh
  mkdir "$root/before"
  cd "$root"
  pivot_root . before
  umount -l /before
  rmdir /before
  cd /
  inside=(/usr/bin/env -i TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  "${inside[@]}" HOME=/root bash -c "$prepare"
  exec "${inside[@]}" HOME="$home" USER="$user" setpriv --reuid "$user" --regid "$user" --init-groups bash -c "$command"
' - "$work/root" "$user" "$home" "$prepare" "$command" "${binds[@]}"
