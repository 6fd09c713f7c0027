#!/usr/bin/env bash
# Gets the headers of Pythons that this machine does not have, and prints their folders, as `make wheel PYTHONS=...` takes them.
# dtrain._native needs no more of a Python than these.
#
#   scripts/python_headers.sh 3.12 3.14     (3.10 to 3.14)
#
# They come from packages of Debian and Ubuntu of fixed versions, which are unpacked and not installed. DTRAIN_DEBIAN and DTRAIN_UBUNTU
# name other mirrors.
set -euo pipefail
cd "$(dirname "$0")/.."

# unpack_deb FOLDER PACKAGE.deb SHA256: the path of a package begins with its archive.
unpack_deb() {
  local folder=$1 path=${2#*/} sum=$3 url mirror scratch
  case "$2" in
    debian/*) mirror=${DTRAIN_DEBIAN:-http://deb.debian.org/debian} ;;
    ubuntu/*) mirror=${DTRAIN_UBUNTU:-http://archive.ubuntu.com/ubuntu} ;;
  esac
  url=$mirror/${path//+/%2b}
  scratch=$(mktemp -d)
  if ! /usr/lib/apt/apt-helper download-file "$url" "$scratch/one.deb" "SHA256:$sum" >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    rm -rf "$scratch"
    echo "could not fetch $url: DTRAIN_DEBIAN and DTRAIN_UBUNTU name other mirrors" >&2
    return 1
  fi
  mkdir -p "$folder"
  dpkg-deb --extract "$scratch/one.deb" "$folder"
  rm -rf "$scratch"
}

fail() { echo "python_headers: $*" >&2; exit 1; }
[ $# -gt 0 ] || fail "name versions, such as 3.12"
machine=$(dpkg --print-architecture)
[ "$machine" = amd64 ] || fail "it knows packages for amd64 alone, and this machine is $machine: name folders of headers by hand"
folders=()
for version in "$@"; do
  # What stays in its archive: from suites that get no more point releases.
  case "$version" in
    3.10) package=ubuntu/pool/main/p/python3.10/libpython3.10-dev_3.10.4-3_amd64.deb
      sum=89246f12cdfb1fac7675bc94d5cc8b9c72320f152e855197668305c73c8588ec ;;
    3.11) package=debian/pool/main/p/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_amd64.deb
      sum=01a8eddeb8505bb6e2c01209cda66b41fb5ebeaa64e69d0e25f7131915f1cd32 ;;
    3.12) package=ubuntu/pool/main/p/python3.12/libpython3.12-dev_3.12.3-1_amd64.deb
      sum=f5924a06298ae0689128498276d3a555e02615a4ecfa8f4417d679a097586f35 ;;
    3.13) package=ubuntu/pool/main/p/python3.13/libpython3.13-dev_3.13.7-1_amd64.deb
      sum=09ac59e113ccc4ccef823b81e013c22e098d38ab70f8dd382f3b333d4615c464 ;;
    3.14) package=ubuntu/pool/main/p/python3.14/libpython3.14-dev_3.14.4-1_amd64.deb
      sum=75bdc4cfef63482b1391503036c5b634ebb1ca0676ee7d3e5cc847c391c5647f ;;
    *) fail "no package with the headers of Python $version is known; known are 3.10 to 3.14" ;;
  esac
  folder=.deps/python-headers/python$version
  if [ "$(cat "$folder.stamp" 2>/dev/null)" != "$sum" ]; then
    rm -rf "$folder" "$folder.stamp" "$folder.part"
    unpack_deb "$folder.part" "$package" "$sum" || fail "there are no headers of Python $version"
    mv "$folder.part/usr/include/python$version" "$folder"
    # The file of this name includes one of the machine's kind, which lies in another folder.
    mv "$folder.part/usr/include/x86_64-linux-gnu/python$version/pyconfig.h" "$folder/pyconfig.h"
    rm -rf "$folder.part"
    echo "$sum" >"$folder.stamp"
  fi
  folders+=("$PWD/$folder")
done
echo "${folders[*]}"
