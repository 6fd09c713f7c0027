#!/usr/bin/env bash
# Tests dtrain's backend of torch.distributed with libraries of others: tests/c10d/ecosystem.py.
#
#   scripts/ecosystem.sh BUILD/bin [WHAT ...]   accelerate, trainer, lightning, checkpoint, deepspeed; without WHAT all of them
#   scripts/ecosystem.sh BUILD/bin pytorch      PyTorch's tests in Debian's source package of PyTorch, and what else the installed torch has
#   scripts/ecosystem.sh BUILD/bin public DIR   scripts that nobody here wrote, of which DIR has copies: tests/c10d/public_scripts.py
#   scripts/ecosystem.sh BUILD/bin trackers [NAMES]   `dtrain follow` with MLflow, trackio and W&B: tests/trackers/real_trackers.py
#   scripts/ecosystem.sh install                no more than the libraries
#
# The libraries go into .deps/ecosystem, which takes torch, numpy and Lightning from the peers (scripts/setup.sh test). Only the
# installation needs a network: models are made from small configurations. The trackers go into .deps/trackers, which needs no torch.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=.deps/ecosystem
readonly library_wheels=(accelerate==1.15.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 huggingface_hub==2.4.0 hf-xet==1.8.0
  httpx2==2.16.2 httpcore2==2.16.2 truststore==0.10.5 anyio==4.16.0 h11==0.16.0 typer==0.29.2 click==8.5.1 shellingham==1.5.4 rich==15.0.0
  markdown-it-py==4.3.0 mdurl==0.1.2 Pygments==2.21.0 annotated-doc==0.0.7
  pydantic==2.14.4 pydantic_core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 einops==0.8.2 hjson==3.1.0 msgpack==1.2.4
  py-cpuinfo==9.0.0 ninja==1.13.2 torchdata==0.11.0)
# A source distribution, whose build asks for torch.
readonly source_wheels=(deepspeed==0.19.8)
# What the public scripts import.
readonly public_wheels=(datasets==5.2.0 pyarrow==26.0.1 dill==0.4.0 multiprocess==0.70.18 xxhash==4.1.0 evaluate==0.4.6 responses==0.18.0
  httpx==0.28.1 httpcore==1.0.9 aiohttp==3.14.5 aiohappyeyeballs==2.7.1 aiosignal==1.4.0 frozenlist==1.8.0 multidict==7.2.1 propcache==0.5.4
  yarl==1.25.1 fsspec==2025.10.0 hydra-core==1.3.8 omegaconf==2.3.1 antlr4-python3-runtime==4.9.3 boto3==1.44.8 botocore==1.44.8
  s3transfer==0.19.3 jmespath==1.1.0 python-dateutil==2.9.0.post0 six==1.17.0)

say() { echo "ecosystem: $*"; }

# STAMP WHEEL ...
install_wheels() {
  local stamp=$folder/$1.stamp wheels="${*:2}"
  [ "$(cat "$stamp" 2>/dev/null)" = "$wheels" ] && return 0
  say "fetching $wheels"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps --no-build-isolation "${@:2}"
  echo "$wheels" >"$stamp"
}

# DIR: 1 where the public scripts are wanted.
install() {
  local packages
  scripts/setup.sh test-wheels
  [ -x "$folder/bin/python" ] || /usr/bin/python3 -m venv "$folder"
  packages=$(cd "$folder" && echo lib/python3.*/site-packages)
  # Relative to the file's folder, so that it stays right where the checkout is moved.
  echo "../../../../peers/$packages" >"$folder/$packages/peers.pth"
  install_wheels libraries "${library_wheels[@]}"
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu install_wheels deepspeed "${source_wheels[@]}"
  if [ "${1:-}" = public ]; then install_wheels public "${public_wheels[@]}"; fi
}

# Only the folder of tests is unpacked, which is never committed.
fetch_debian_tests() {
  local name=pytorch_1.13.1+dfsg.orig.tar.xz place
  [ -e "$folder/debian/test/distributed" ] && return 0
  place=$(LC_ALL=C apt-get --print-uris download python3-torch 2>/dev/null | sed -n "s/^'\(.*\)\/[^/]*' .*/\1/p")
  if [ -z "$place" ]; then say "this system's archive has no PyTorch: its tests are left out"; return 0; fi
  say "fetching $name (18 MB)"
  rm -rf "$folder/debian" && mkdir -p "$folder/debian"
  if ! /usr/bin/python3 -c "import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])" "$place/$name" "$folder/debian/$name"; then
    say "$name is not to be had: its tests are left out"
    return 0
  fi
  echo "d0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7  $folder/debian/$name" | sha256sum --quiet --check
  tar -xJf "$folder/debian/$name" -C "$folder/debian" --strip-components=1 --wildcards '*/test/distributed'
  rm "$folder/debian/$name"
}

install_trackers() {
  local trackers=.deps/trackers wheels=tests/trackers/requirements.txt
  cmp -s "$wheels" "$trackers/installed.txt" && return 0
  [ -x "$trackers/bin/python" ] || /usr/bin/python3 -m venv "$trackers"
  say "fetching MLflow, trackio and W&B (250 MB; 1 GB on disk)"
  "$trackers/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps -r "$wheels"
  cp "$wheels" "$trackers/installed.txt"
}

[ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bin=$1
shift
if [ "${1:-}" = trackers ]; then
  install_trackers
  exec .deps/trackers/bin/python -B tests/trackers/real_trackers.py "$bin" "${@:2}"
fi
install "${1:-}"
[ "$bin" != install ] || exit 0
case "${1:-}" in
  pytorch)
    fetch_debian_tests
    exec "$folder/bin/python" -B tests/c10d/pytorch_other_tests.py "$bin" --debian "$folder/debian/test/distributed" "${@:2}"
    ;;
  public) exec "$folder/bin/python" -B tests/c10d/public_scripts.py "$bin" "${@:2}" ;;
  *) exec "$folder/bin/python" -B tests/c10d/ecosystem.py "$bin" "$@" ;;
esac
