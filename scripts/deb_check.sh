#!/usr/bin/env bash
# Installs the Debian package on a fresh Debian 12 and uses it there as a user would; prints a transcript. Needs what
# scripts/fresh_machine.sh needs, and the network. docs/packaging.md holds one such transcript.
#   scripts/deb_check.sh [DTRAIN.deb]       default: the one scripts/deb.sh makes
set -euo pipefail

# Prints a command as one would type it, then its output.
show() {
  printf '\n$ %s\n' "$1"
  bash -c "$1" 2>&1
}

on_the_fresh_machine() {
  export DEBIAN_FRONTEND=noninteractive
  show 'apt-get install -y ./dtrain_*.deb | grep -cE "^Setting up"'
  show 'dpkg-query -W -f "\${Package} \${Version}\nDepends: \${Depends}\n" dtrain'
  show 'sed -n 1,8p /usr/share/doc/dtrain/copyright'
  show 'time dtrain --help | sed -n 1,20p'
  show 'dtrain config check --file-only /usr/share/dtrain/configs/synthetic.yaml'

  show 'apt-get install -y -qq man-db bash-completion zsh >/dev/null 2>&1; man dtrain | sed -n 1,12p'
  show "bash -ic 'source /usr/share/bash-completion/bash_completion; _completion_loader dtrain; complete -p dtrain' 2>/dev/null"
  show "zsh -fc 'autoload -U compinit; compinit -D; print \$_comps[dtrain]' | grep ."

  show 'apt-get install -y -qq --no-install-recommends g++ cmake make nlohmann-json3-dev >/dev/null 2>&1; cp -r /usr/share/dtrain/examples/synthetic .'
  show 'cmake -S synthetic -B build 2>&1 | grep -A20 "^CMake Error"' || true
  show 'dtrain-get-libtorch && du -sh /usr/lib/dtrain/libtorch'
  show 'cmake -S synthetic -B build -DCMAKE_BUILD_TYPE=Release | tail -n 1 && cmake --build build | tail -n 1'
  show 'PATH=$PWD/build:$PATH dtrain launch /usr/share/dtrain/configs/synthetic.yaml --set searcher.max_length.batches=200'
  show 'dtrain summary 1 | head -n 5'

  # Moved away, the launcher says what to do before any rank starts.
  mv /usr/lib/dtrain/libtorch elsewhere
  show 'PATH=$PWD/build:$PATH dtrain launch /usr/share/dtrain/configs/synthetic.yaml; echo "exit code $?"'
  show 'export DTRAIN_LIBTORCH_DIR=$PWD/elsewhere/torch; PATH=$PWD/build:$PATH dtrain launch /usr/share/dtrain/configs/synthetic.yaml --set searcher.max_length.batches=20 | tail -n 1'
  mv elsewhere /usr/lib/dtrain/libtorch

  show 'apt-get remove -y -qq dtrain >/dev/null 2>&1; find / -xdev -name "*dtrain*" -not -path "/root/*" -not -path "/var/*" -not -path "/proc/*"'
}

if [ "${1:-}" = --inside ]; then
  on_the_fresh_machine
  exit
fi
cd "$(dirname "$0")/.."
deb=${1:-$(scripts/deb.sh | tail -n 1)}
echo "# $(basename "$deb"), $(stat -c %s "$deb") bytes, on a fresh Debian 12"
scripts/fresh_machine.sh --copy "$deb" --copy scripts/deb_check.sh 'bash deb_check.sh --inside'
