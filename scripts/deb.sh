#!/usr/bin/env bash
# Makes the Debian package from a configured release build: build/release/dtrain_VERSION_ARCHITECTURE.deb.
#   scripts/deb.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release -DDTRAIN_ZSH_FOLDER=share/zsh/vendor-completions >/dev/null
scripts/quiet_build.sh release "${1:-$(nproc)}" installed
cd build/release
rm -f dtrain_*.deb
cpack -G DEB >cpack.log 2>&1 || { cat cpack.log >&2; exit 1; }
if dpkg-deb -c dtrain_*.deb | awk '$6 !~ /^\.\/(usr\/.*)?$/ {print $6; bad = 1} END {exit !bad}' >&2; then
  echo "deb: the package has files outside /usr" >&2
  exit 1
fi
files=$(dpkg-deb -c dtrain_*.deb)
for file in copyright LICENSE; do
  [[ $files == *" ./usr/share/doc/dtrain/$file"* ]] || { echo "deb: the package lacks its $file" >&2; exit 1; }
done
ls "$PWD"/dtrain_*.deb
