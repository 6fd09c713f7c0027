#!/usr/bin/env bash
# Builds dtrain for several versions of PyTorch, one after the other, and runs the tests of what depends on them (ctest -L libtorch).
# The last lines are a table. The exit code is 1 if a version did not compile or a test failed.
#
#   scripts/torch_versions.sh [--json] [--remove] [MINOR ...]     2.11 2.13 2.15; none: all that dtrain is tested with
#
#   --json     a line of JSON follows the table
#   --remove   what belongs to a version other than the newest is removed after its tests
#
# The newest is build/release, as `make build` makes it. Each other has a folder build/torch-MINOR, in which only what includes libtorch
# is compiled: the rest is that of build/release (DTRAIN_TORCH_FREE_FROM). Its libtorch is that of its Python peers, which lie in
# .deps/torch-MINOR (3.2 GB to download, 5.9 GB on disk). JOBS=n sets how many compilers run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)} json=false remove=false minors=()
mapfile -t known < <(packaging/dtrain-get-libtorch --releases | cut -d' ' -f1)
readonly newest=${known[-1]}
while [ $# -gt 0 ]; do
  case "$1" in
    --json) json=true ;;
    --remove) remove=true ;;
    -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
    *)
      [[ " ${known[*]} " == *" $1 "* ]] || { echo "torch_versions: '$1' is none of ${known[*]}; --help says more" >&2; exit 2; }
      minors+=("$1")
      ;;
  esac
  shift
done
[ ${#minors[@]} -gt 0 ] || minors=("${known[@]}")

build_minor() {  # MINOR BUILD_FOLDER; the seconds go into BUILD_FOLDER/seconds
  local minor=$1 folder=$2 started
  DTRAIN_TORCH=$minor scripts/setup.sh test-version || return
  mkdir -p build
  cmake -G Ninja -B "$folder" -DCMAKE_BUILD_TYPE=Release -DDTRAIN_TESTS=ON -DDTRAIN_BENCH=OFF \
    -DDTRAIN_TORCH_FREE_FROM="$PWD/build/release" \
    -DDTRAIN_LIBTORCH_DIR="$PWD/.deps/torch-$minor/libtorch/torch" -DDTRAIN_PEERS_PYTHON="$PWD/.deps/torch-$minor/peers/bin/python" \
    >"build/torch-$minor.configure.log" 2>&1 || { cat "build/torch-$minor.configure.log"; return 1; }
  started=$SECONDS
  scripts/quiet_build.sh "torch-$minor" "$jobs" libtorch_tests || return
  echo $((SECONDS - started)) >"$folder/seconds"
}

results() {  # the table, and with --json the line
  python3 -B - "$json" "$@" <<'END'
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

PARITY = {"ddp_parity", "python_parity"}


def result(version, folder):
    one = {"version": version, "compiled": (folder / "seconds").exists(), "seconds": None, "passed": 0, "failed": [], "ddp_bits": False}
    if one["compiled"]:
        one["seconds"] = int((folder / "seconds").read_text())
    if (folder / "tests.xml").exists():
        state = {test.get("name"): test.get("status") for test in ElementTree.parse(folder / "tests.xml").getroot().iter("testcase")}
        one["failed"] = sorted(name for name, status in state.items() if status == "fail")
        passed = {name for name, status in state.items() if status == "run"}
        one["passed"] = len(passed)
        one["ddp_bits"] = PARITY <= passed
    return one


rows = [result(version, Path(folder)) for version, folder in (argument.split("=") for argument in sys.argv[2:])]
form = "{:<9} {:<12} {:>7} {:<7} {:<9} {}"
print(form.format("torch", "compiled", "passed", "failed", "DDP bits", "which failed"))
for row in rows:
    print(form.format(row["version"], f"yes, {row['seconds']} s" if row["compiled"] else "no", row["passed"], len(row["failed"]),
                      "equal" if row["ddp_bits"] else "-", " ".join(row["failed"])).rstrip())
if sys.argv[1] == "true":
    print(json.dumps(rows))
sys.exit(any(row["failed"] or not row["passed"] for row in rows))
END
}

started=$SECONDS
make build JOBS="$jobs"
seconds=$((SECONDS - started))
table=()
for minor in "${minors[@]}"; do
  echo "== PyTorch $minor"
  folder=build/torch-$minor
  [ "$minor" != "$newest" ] || folder=build/release
  rm -f "$folder/seconds" "$folder/tests.xml"
  table+=("$(packaging/dtrain-get-libtorch --releases | sed -n "s/^$minor //p")=$folder")
  if [ "$minor" = "$newest" ]; then echo $seconds >"$folder/seconds"; else build_minor "$minor" "$folder" || continue; fi
  scripts/run_tests.sh "$folder" "$jobs" -L libtorch || true  # the table says which failed
  if $remove && [ "$minor" != "$newest" ]; then
    find "$folder" -mindepth 1 -maxdepth 1 ! -name seconds ! -name tests.xml -exec rm -rf {} +
    rm -rf ".deps/torch-$minor"
  fi
done
results "${table[@]}"
