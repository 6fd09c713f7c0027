#!/usr/bin/env bash
# Checks dtrain on a machine with GPUs, and writes what came out to scripts/gpu_check_results.md: one command, some minutes.
#
#   scripts/gpu_check.sh --pack FOLDER     where dtrain is built: puts all that the check needs into FOLDER (<= 64 MiB)
#   FOLDER/scripts/gpu_check.sh            on the machine with GPUs, after FOLDER was copied there
#   scripts/gpu_check.sh                   where dtrain is built and there are GPUs
#
# The machine needs NVIDIA's driver (580 or later) and a python3 with PyTorch for CUDA 13 of the minor version for which dtrain
# is built (pip install torch). dtrain uses the libtorch of that PyTorch, or of DTRAIN_LIBTORCH_DIR (its 'torch' folder). Nothing
# is built or installed.
#
#   --list             what the sections are
#   --only A,B         these sections alone; --skip A,B: all but these
#   --quick            fewer cases, rounds and steps: about a third of the time
#   --out FILE         where the results go (scripts/gpu_check_results.md, or $OUT/gpu_check_results.md if OUT is set)
#   --python PROGRAM   a Python with PyTorch (python3; in a checkout, the one in .deps/peers)
#   --build FOLDER     the build to check (build/release); a packed folder brings its own
#   --slot-type cpu    what of it needs no GPU: tries the check itself
#   --fake FOLDER      on GPUs that are not there, tests/fake_gpus of a build: tries the check itself
#   --gpus N           how many GPUs (all; with --fake 2)
#
# A section that fails does not end the check. Exit codes: 0 nothing failed (sections may have been skipped: the results
# say why), 1 something failed, 2 the check could not begin.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
started=$SECONDS

readonly sections=(machine doctor limits nccl conformance parity shared_card python waiting sanitizer kernels kernel_times examples
  profile   bench_bf16 bench)
describe() {
  case $1 in
    machine) echo "GPUs, driver, processors, PyTorch" ;;
    doctor) echo "dtrain doctor: drivers, libraries, limits, how the GPUs are set up and joined" ;;
    limits) echo "what each kind of GPU gives at best: products, memory, copies to and from the host, launches, NCCL" ;;
    nccl) echo "all-reduce through our communicator: are results right, how fast is each size" ;;
    conformance) echo "every operation of the nccl backend, on 1, 2 and all GPUs" ;;
    parity) echo "weights trained on 1 and on all GPUs, against the CPU's and PyTorch DDP's" ;;
    shared_card) echo "two ranks on one GPU: compression, sharded updates, tuning, a rank that is killed" ;;
    python) echo "weights trained by Python scripts and Trials, against plain PyTorch's" ;;
    waiting) echo "training with operations that wait on the host made errors (DTRAIN_SYNC_DEBUG=error)" ;;
    sanitizer) echo "a short training under compute-sanitizer: memcheck and racecheck" ;;
    kernels) echo "dtrain's own kernels against libtorch's operators: results, times, share of the memory's rate" ;;
    kernel_times) echo "the kernels' own times every so many batches, against a trace of batches between them" ;;
    examples) echo "an example in C++ on 1 and on all GPUs" ;;
    profile) echo "summary, findings and report of the example's run" ;;
    bench_bf16) echo "the time of a step of GPT-2 124M and ResNet-50 in bf16, in C++ and Python, against PyTorch DDP" ;;
    bench) echo "the same in float32 (TF32)" ;;
  esac
}

fail() { echo "gpu_check: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 2; }
help() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; }
is_section() { [[ " ${sections[*]} " == *" $1 "* ]]; }

pack='' quick='' out='' python='' build=$root/build/release slot_type=cuda fake='' gpus='' only='' skip=''
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) help; exit 0 ;;
    --list) for one in "${sections[@]}"; do printf '%-12s %s\n' "$one" "$(describe "$one")"; done; exit 0 ;;
    --quick) quick=1; shift ;;
    --pack | --only | --skip | --out | --python | --build | --slot-type | --fake | --gpus)
      [ $# -gt 1 ] || fail "$1 needs a value"
      name=${1#--}; declare "${name//-/_}=$2"
      shift 2
      ;;
    *) fail "unknown argument '$1'" "scripts/gpu_check.sh --help lists the options" ;;
  esac
done
for one in ${only//,/ } ${skip//,/ }; do
  is_section "$one" || fail "there is no section '$one'" "--list shows the sections"
done
case $slot_type in cuda | cpu) ;; *) fail "--slot-type is cuda or cpu, not '$slot_type'" ;; esac

# --- --pack
readonly most_mib=64
readonly programs=(bench_nccl bench_gpu_kernels synthetic) test_programs=(test_comm_nccl_device)

# The libraries of the system that files need, without the C library (which must be the machine's own) and NVIDIA's.
system_libraries() {
  local others='libc|libm|libdl|libpthread|librt|libutil|ld-linux[^/]*'
  others+='|libtorch[^/]*|libc10[^/]*|libgomp|libcu[^/]*|libnv[^/]*'
  ldd "$@" | awk '$2=="=>" && $3 ~ /^\// {print $3}' | sort -u | grep -v "^$build/" |
    grep -Ev "/($others)\.so"
}

pack_into() {
  local to=$1 file mib
  [ ! -e "$to" ] || [ -z "$(ls -A "$to")" ] || fail "there is something in $to already"
  for file in "${programs[@]/#/$build/bin/}" "${test_programs[@]/#/$build/tests/}" "$build/bin/dtrain-worker"; do
    [ -x "$file" ] || fail "there is no $file" "build it first: cmake --build $build --target $(basename "$file")"
  done
  mkdir -p "$to"
  cmake --install "$build" --prefix "$to" --strip >"$to/install.log" 2>&1 ||
    fail "cmake --install failed: see $to/install.log"
  rm -rf "$to/install.log" "$to/include" "$to/share" "$to/lib/cmake"
  for file in "${programs[@]}"; do cp "$build/bin/$file" "$to/bin/"; strip "$to/bin/$file"; done
  for file in "${test_programs[@]}"; do cp "$build/tests/$file" "$to/bin/"; strip "$to/bin/$file"; done
  mkdir -p "$to/lib/gcc" "$to/docs" "$to/scripts" "$to/tests" "$to/configs"
  system_libraries "$build"/bin/{dtrain,dtrain-agent,dtrain-saver,dtrain-worker} "${programs[@]/#/$build/bin/}" \
    "${test_programs[@]/#/$build/tests/}" "$build"/lib/libdtrain_*.so | while read -r file; do
    case $file in
      */libstdc++.so* | */libgcc_s.so*) cp -L "$file" "$to/lib/gcc/" ;;  # only where the machine's are too old
      *) cp -L "$file" "$to/lib/" ;;
    esac
  done
  # Libraries of ours that only tests use, which are not installed.
  ldd "${test_programs[@]/#/$build/tests/}" | awk -v ours="$build/lib/" 'index($3, ours) == 1 {print $3}' | sort -u |
    while read -r file; do
      [ -e "$to/lib/$(basename "$file")" ] && continue
      cp -L "$file" "$to/lib/"
      strip "$to/lib/$(basename "$file")"
    done
  cp "$root/scripts/gpu_check.sh" "$to/scripts/"
  mkdir -p "$to/python"
  [ ! -d "$build/python/dtrain" ] || cp -rL "$build/python/dtrain" "$to/python/"
  for file in "$to"/python/dtrain/torch*/_native.*.so; do [ ! -e "$file" ] || strip --strip-unneeded "$file"; done
  cp -r "$root/tests/gpu_check" "$to/tests/"
  mkdir "$to/tests/integration"
  for file in harness sample_order reference_optimizers; do
    cp "$root/tests/integration/$file.py" "$to/tests/integration/"
  done
  cp "$root/configs/synthetic.yaml" "$to/configs/"
  find "$to" -name __pycache__ -prune -exec rm -rf {} +
  mib=$(du -sm --apparent-size "$to" | cut -f1)
  [ "$mib" -le $most_mib ] ||
    fail "$to takes $mib MiB, and $most_mib are allowed" "$(du -sm "$to"/*/* | sort -rn | head -5)"
  echo "gpu_check: $mib MiB in $to; copy it to the machine with GPUs and run scripts/gpu_check.sh there"
}

if [ -n "$pack" ]; then
  pack_into "$pack"
  exit 0
fi

# --- what there is
bin=$root/bin tests=$root/bin lib=$root/lib
if [ ! -x "$bin/dtrain" ]; then bin=$build/bin tests=$build/tests lib=$build/lib; fi
[ -x "$bin/dtrain" ] || fail "there is no dtrain in $root/bin or $build/bin" \
  "build it (make build), or copy here what scripts/gpu_check.sh --pack FOLDER makes where it is built"
train=$(readlink "$lib/libdtrain_train.so" || printf '%s\n' "$lib"/libdtrain_train.so.*-torch*)  # a copy may have lost links
minor=${train##*-torch}  # of PyTorch, for which dtrain is built
if [ -z "$python" ]; then
  python=python3
  [ ! -x "$root/.deps/peers/bin/python" ] || python=$root/.deps/peers/bin/python
fi
command -v "$python" >/dev/null || fail "there is no $python" "name a Python with PyTorch $minor: --python PROGRAM"
torch_of_python=$("$python" -c 'import importlib.util
found = importlib.util.find_spec("torch")
print(found.submodule_search_locations[0] if found else "")')
[ -n "$torch_of_python" ] ||
  fail "$python has no PyTorch" "pip install 'torch==$minor.*', or name another Python: --python PROGRAM"
libtorch=${DTRAIN_LIBTORCH_DIR:-$torch_of_python}
version=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$libtorch/version.py" 2>/dev/null || true)
case $version in
  "$minor".*) ;;
  *) fail "the PyTorch in $libtorch is ${version:-of an unknown version}, and dtrain is built for $minor" \
    "pip install 'torch==$minor.*', or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of one" ;;
esac
export DTRAIN_LIBTORCH_DIR=$libtorch
wheels=$(dirname "$libtorch")/nvidia
libraries=$lib:$libtorch/lib:$wheels/nccl/lib:$wheels/cu13/lib
if [ -n "$fake" ]; then
  fake=$(cd "$fake" && pwd) || fail "there is no folder $fake"
  libraries=$fake:$libraries
  export DTRAIN_FAKE_GPUS=${gpus:-2}
  unset DTRAIN_LIBTORCH_DIR  # it would come before the fakes
fi
libraries=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# libstdc++ is carried for machines whose own is older than the one that dtrain was built with.
if ! LD_LIBRARY_PATH=$libraries "$bin/dtrain" version >/dev/null 2>&1; then libraries=$libraries:$lib/gcc; fi
LD_LIBRARY_PATH=$libraries "$bin/dtrain" version >/dev/null ||
  fail "$bin/dtrain does not start here" "it needs the C library of Debian 12 (2.36) or a later one: ldd --version"

if [ -z "$gpus" ]; then
  gpus=0
  [ -z "$fake" ] || gpus=$DTRAIN_FAKE_GPUS
  if [ -z "$fake" ] && command -v nvidia-smi >/dev/null; then
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  fi
  [ "$slot_type" != cpu ] || gpus=2
fi
peer=cuda
if [ -n "$fake" ] || [ "$slot_type" = cpu ]; then peer=cpu; fi  # PyTorch's own DDP needs real GPUs

scratch=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-gpu-check-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# No queue but ours, nobody's cluster file, and nothing that was measured before.
export DTRAIN_STATE_DIR=$scratch/state XDG_CONFIG_HOME=$scratch/none XDG_CACHE_HOME=$scratch/cache

# --- sections
# A section prints what belongs into the results. It returns 0, or 77 with the reason in $reason where it cannot be
# tried here, or anything else where it failed.
reason=''
skipped() { reason=$1; return 77; }

# Prints a command as a person would type it, and runs it for so many seconds at most.
try() {
  local seconds=$1 code=0
  shift
  local words="$*"
  words=${words//"$libraries"/LIBRARIES}; words=${words//"$scratch"/SCRATCH}
  words=${words//$bin\//}; words=${words//$tests\//}; words=${words//$root\//}
  printf '$ %s\n' "$words"
  timeout --kill-after=10 "$seconds" "$@" 2>&1 || code=$?
  case $code in 124 | 137) echo "it did not end within $seconds s" ;; esac
  return $code
}
# The same with dtrain's libraries.
try_ours() {
  local seconds=$1
  shift
  LD_LIBRARY_PATH=$libraries try "$seconds" "$@"
}
script() {  # a Python program of tests/gpu_check, with what all of them take
  local seconds=$1 name=$2 count=$3
  shift 3
  try "$seconds" "$python" -B "$root/tests/gpu_check/$name.py" "$bin" --gpus "$count" --slot-type "$slot_type" \
    --peer "$peer" --libraries "$libraries" --scratch "$scratch/$name-$RANDOM" "$@"
}
need_gpus() { [ "$gpus" -gt 0 ] || skipped "there is no GPU"; }
need_real_gpus() {
  need_gpus || return $?
  if [ -n "$fake" ] || [ "$slot_type" = cpu ]; then skipped "it needs real GPUs"; fi
}

section_machine() {
  try 30 uname -srm
  try 30 nproc
  try 30 free -h | sed -n '1,3p'
  if [ -n "$fake" ]; then
    echo "$gpus GPUs that are not there, of $fake"
  elif command -v nvidia-smi >/dev/null; then
    try 60 nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_cap,pcie.link.gen.max --format=csv
    [ "$gpus" -lt 2 ] || try 60 nvidia-smi topo -m
  else
    echo "there is no nvidia-smi"
  fi
  try_ours 30 "$bin/dtrain" version
  echo "PyTorch $version in $libtorch"
}

section_doctor() { try_ours 120 "$bin/dtrain" doctor --runs "$scratch/runs"; }

section_limits() {
  need_gpus || return $?
  [ "$slot_type" = cuda ] || { skipped "it needs GPUs"; return $?; }
  # Problems of the machine are in the section doctor: here only what was measured counts.
  try_ours 240 "$bin/dtrain" doctor --bench --runs "$scratch/runs" >"$scratch/limits" || true
  sed -n '1p; /^the limits of a GPU/,$p' "$scratch/limits"
  grep -q '^the limits of a GPU' "$scratch/limits" || { cat "$scratch/limits"; return 1; }
}

section_nccl() {
  need_gpus || return $?
  [ "$slot_type" = cuda ] || { skipped "it needs GPUs"; return $?; }
  local ranks code seconds=${quick:+60} sizes=()
  [ -z "$fake" ] || sizes=(--megabytes 4)  # whose times mean nothing
  for ranks in $(printf '%s\n' 1 "$gpus" | sort -nu); do
    code=0
    try_ours "$((${seconds:-150} + 10))" "$bin/bench_nccl" --ranks "$ranks" --seconds "${seconds:-150}" \
      ${sizes[@]+"${sizes[@]}"} || code=$?
    [ $code -eq 0 ] || return $code
  done
  [ "$gpus" -eq 1 ] || return 0
  # Two ranks on one GPU, each with a NCCL_HOSTID of its own: NCCL does not promise that, so it is shown and not judged.
  try_ours 110 "$bin/bench_nccl" --ranks 2 --gpus 1 --seconds 100 || echo "(not judged: NCCL does not promise this)"
}

section_conformance() {
  need_gpus || return $?
  [ "$slot_type" = cuda ] || { skipped "it needs GPUs"; return $?; }
  local code=0
  try_ours 400 "$tests/test_comm_nccl_device" --gtest_brief=1 >"$scratch/conformance" || code=$?
  cat "$scratch/conformance"
  grep -q 'CUDA shows no GPU' "$scratch/conformance" && return 1
  return $code
}

section_parity() {
  need_gpus || return $?
  script 900 parity "$gpus" ${quick:+--quick}
}

section_shared_card() {
  need_gpus || return $?
  [ "$slot_type" = cuda ] || { skipped "it needs GPUs"; return $?; }
  script 600 shared_card 1 ${quick:+--quick}
}

section_python() {
  need_real_gpus || return $?
  local code=0
  script 600 python_training "$gpus" ${quick:+--quick} || code=$?
  [ $code -ne 77 ] || skipped "dtrain has no module for $("$python" -V): make build PYTHONS=\"3.11 3.12\" makes several"
  return $code
}

section_waiting() {
  need_real_gpus || return $?
  script 600 waiting 1
}

section_kernels() {
  need_real_gpus || return $?
  try_ours 120 "$bin/bench_gpu_kernels"
}

section_kernel_times() {
  need_real_gpus || return $?
  script 300 kernel_times 1 ${quick:+--quick}
}

section_sanitizer() {
  need_real_gpus || return $?
  local sanitizer tool code failed=0 file
  sanitizer=$(command -v compute-sanitizer || true)
  for file in /usr/local/cuda*/bin/compute-sanitizer; do [ ! -x "$file" ] || sanitizer=${sanitizer:-$file}; done
  [ -n "$sanitizer" ] || { skipped "compute-sanitizer is not installed"; return $?; }
  for tool in memcheck racecheck; do
    code=0
    # A rank without a launcher: one process.
    # NCCL tries kernels for other GPUs, and kinds of memory, and goes on after their errors.
    try_ours 500 "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 20 \
      "$bin/synthetic" "$root/configs/synthetic.yaml" --run-dir "$scratch/sanitizer-$tool" \
      --set resources.slots_per_trial=1 --set resources.slot_type="$slot_type" \
      --set searcher.max_length.batches=5 --set hyperparameters.width=64 || code=$?
    [ $code -eq 0 ] || failed=1
  done
  return $failed
}

section_examples() {
  need_gpus || return $?
  local ranks failed=0 batches=300
  [ -z "$quick" ] || batches=60
  for ranks in $(printf '%s\n' 1 "$gpus" | sort -nu); do
    try_ours 300 "$bin/dtrain" launch "$root/configs/synthetic.yaml" --run-dir "$scratch/example-$ranks" \
      --set entrypoint="$bin/synthetic" --set resources.slots_per_trial="$ranks" \
      --set resources.slot_type="$slot_type" --set searcher.max_length.batches=$batches || failed=1
  done
  return $failed
}

section_profile() {
  need_gpus || return $?
  local run=$scratch/example-$gpus
  [ -d "$run" ] || { skipped "it needs the run of the section examples"; return $?; }
  try_ours 120 "$bin/dtrain" summary "$run" || return 1
  try_ours 120 "$bin/dtrain" analyze "$run" || return 1
  try_ours 120 "$bin/dtrain" report "$run" || return 1
  [ -s "$run/report.html" ] || { echo "there is no report.html"; return 1; }
}

bench_with() {  # mixed precision, contestants of a quick check
  need_gpus || return $?
  local workload failed=0 sizes=()
  [ -z "$quick" ] || sizes=(--rounds 2 --steps 20 --contestants "$2")
  [ "$peer" = cuda ] || sizes=(--tiny --no-compile --rounds 1 --steps 5 --warm-up 2)
  for workload in gpt2 resnet50; do
    script 1200 bench "$gpus" --workload "$workload" --mixed-precision "$1" ${sizes[@]+"${sizes[@]}"} || failed=1
  done
  return $failed
}
section_bench_bf16() { bench_with bf16 dtrain,lines,eager,channels_last,compiled; }
section_bench() { bench_with none dtrain,eager,channels_last,compiled; }

# --- the check
[ -n "$out" ] || out=${OUT:-$root/scripts}/gpu_check_results.md
mkdir -p "$(dirname "$out")"
if [ "$slot_type" = cpu ]; then on="$gpus slots of type cpu"; else on="$gpus GPU$([ "$gpus" = 1 ] || echo s)"; fi
[ -z "$fake" ] || on+=" that are not there"

# After each section, so that a check that is cut off leaves what it has found.
write_results() {
  {
    echo "# dtrain on GPUs"
    echo
    echo "Written by \`scripts/gpu_check.sh${quick:+ --quick}\` on $(date -u '+%Y-%m-%d %H:%M UTC'), in" \
      "$((SECONDS - started)) s, on $on."
    echo
    echo "| section | what | outcome | seconds |"
    echo "|---|---|---|---|"
    cat "$scratch/table" "$scratch/bodies"
  } >"$out"
}
failed=()
: >"$scratch/table"
: >"$scratch/bodies"
for one in "${sections[@]}"; do
  [ -z "$only" ] || [[ ",$only," == *",$one,"* ]] || continue
  [[ ",$skip," != *",$one,"* ]] || continue
  echo "== $one: $(describe "$one")"
  begin=$SECONDS code=0
  # In this shell, not in a pipe's: the reason of a section that is skipped must reach us.
  "section_$one" >"$scratch/output" || code=$?
  cat "$scratch/output"
  case $code in
    0) outcome=ok ;;
    77) outcome="skipped: $reason" ;;
    *) outcome=FAILED; failed+=("$one") ;;
  esac
  echo "== $one: $outcome"
  echo "| [$one](#$one) | $(describe "$one") | $outcome | $((SECONDS - begin)) |" >>"$scratch/table"
  if [ -s "$scratch/output" ]; then
    {
      printf '\n## %s\n\n```\n' "$one"
      # Without colours, and with words for the folders of this machine.
      sed -e $'s/\x1b\\[[0-9;]*m//g; s/\r/\\n/g' -e "s#$(dirname "$libtorch")#PACKAGES#g; s#$root/##g; s#$scratch#SCRATCH#g" \
        "$scratch/output"
      printf '```\n'
    } >>"$scratch/bodies"
  else
    printf '\n## %s\n\n%s\n' "$one" "$outcome" >>"$scratch/bodies"
  fi
  write_results
done
echo "gpu_check: the results are in $out"
if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
