#!/usr/bin/env bash
# Installs what dtrain needs, and nothing twice. Quiet when there is nothing to do.
#
#   scripts/setup.sh build   compilers, libraries, libtorch, the Fashion-MNIST data (what `make demo` needs)
#   scripts/setup.sh test    also the Python peers (DDP, torchrun, safetensors), Open MPI, Slurm, sshd and Chromium (what `make test` needs)
#   scripts/setup.sh deb     build's, and what makes the Debian package (`make deb`)
#   scripts/setup.sh lint    also clang-format, clang-tidy and clang with libFuzzer
#
# Distribution packages come from apt (root or sudo); wheels go into .deps/ inside the checkout.
# DTRAIN_LIBTORCH=full|cpu overrides the choice made from the presence of an NVIDIA driver.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly torch_version=2.11.0
readonly peer_wheels=("torch==$torch_version" numpy==2.2.6 safetensors==0.6.2 jsonschema==4.26.0 PyYAML==6.0.3 playwright==1.65.2)
# What our traces and exports are written for.
readonly reader_wheels=(tensorboard==2.21.0 pandas==2.3.3 plotly==7.1.0 pydot==4.0.1 psutil==7.2.2 numpy==2.2.6)
# It names all of Jupyter as a requirement, which its analyses do not use.
readonly bare_wheels=(HolisticTraceAnalysis==0.5.0)

readonly build_packages=(
  g++ cmake ninja-build make git ccache mold pkg-config ca-certificates
  python3 python3-venv
  libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libasio-dev libssl-dev
  libhwloc-dev libhwy-dev libjs-chart.js libsqlite3-dev libsimdjson-dev prometheus-cpp-dev zlib1g-dev
  dataset-fashion-mnist)
readonly test_packages=(libgtest-dev libgmock-dev openmpi-bin libopenmpi-dev util-linux procps
  slurmctld slurmd slurm-client munge iproute2 openssh-server openssh-client nftables
  zsh groff-base man-db chromium fonts-dejavu-core)
readonly lint_packages=(clang-format-14 clang-tidy-14 clang-14 libclang-rt-14-dev)

level=${1:-build}
packages=("${build_packages[@]}")
case "$level" in
  build) ;;
  test) packages+=("${test_packages[@]}") ;;
  deb) packages+=(dpkg-dev file libopenmpi-dev) ;;
  lint) packages+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  *) echo "setup: unknown level '$level'; use build, test, deb or lint" >&2; exit 2 ;;
esac

say() { echo "setup: $*"; }

missing_packages() {
  local installed name
  # dpkg-query fails when it does not know a package: that is one of the missing.
  installed=" $({ dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true; } |
    awk '$1=="installed"{print $2}' | tr '\n' ' ')"
  for name in "${packages[@]}"; do
    [[ $installed == *" $name "* ]] || echo "$name"
  done
}

install_packages() {
  local missing as_root=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this system has no apt; dtrain's set-up knows Debian 12 and Ubuntu 24.04 or later (CMake 3.24)." >&2
    echo "setup: install the equivalents of these packages yourself, then run 'cmake --preset release':" >&2
    printf 'setup:   %s\n' "${packages[@]}" >&2
    exit 1
  fi
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: these packages are missing, and neither root nor sudo is at hand to install them:" >&2
      printf 'setup:   %s\n' "${missing[@]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  # Tests start sshd in namespaces of their own. With this file the machine's own sshd is not started, now or at boot.
  if [[ " ${missing[*]} " == *" openssh-server "* ]]; then
    "${as_root[@]}" mkdir -p /etc/ssh
    "${as_root[@]}" touch /etc/ssh/sshd_not_to_be_run
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >.deps/apt.log 2>&1; then
    echo "setup: apt could not install all of: ${missing[*]}" >&2
    tail -n 15 .deps/apt.log >&2
    exit 1
  fi
}

install_libtorch() {
  local flavour=()
  [ -z "${DTRAIN_LIBTORCH:-}" ] || flavour=(--flavour "$DTRAIN_LIBTORCH")
  packaging/dtrain-get-libtorch --to .deps/libtorch "${flavour[@]}"
}

install_peers() {
  local stamp="${peer_wheels[*]}"
  [ "$(cat .deps/peers.stamp 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching the Python peers for tests and benchmarks (${peer_wheels[*]}; 4.6 GB)"
  rm -rf .deps/peers .deps/peers.stamp
  /usr/bin/python3 -m venv .deps/peers
  .deps/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir "${peer_wheels[@]}"
  echo "$stamp" >.deps/peers.stamp
}

install_readers() {
  local stamp="${peer_wheels[*]} ${reader_wheels[*]} ${bare_wheels[*]}"
  local pip=(.deps/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir)
  [ "$(cat .deps/readers.stamp 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching readers of traces for the tests (${reader_wheels[*]} ${bare_wheels[*]})"
  "${pip[@]}" "${reader_wheels[@]}"
  "${pip[@]}" --no-deps "${bare_wheels[@]}"
  echo "$stamp" >.deps/readers.stamp
}

mkdir -p .deps
install_packages
install_libtorch
case "$level" in
  test | lint) install_peers; install_readers ;;
esac
