#!/usr/bin/env bash
# The wheel in a virtual environment of its own, with nothing else in PATH: the command, a script with `dtrain run` and by itself,
# a `model:` run, what is said where torch is missing or of another version, and that pip leaves torch as it is. Prints a line of JSON: the wheel's size, and the
# seconds from a command to the end of its first batch, of the first run with the time that measures the machine.
#
#   fresh_venv.sh WHEEL|BUILD_FOLDER PYTHON            torch is the one that this Python has
#   fresh_venv.sh WHEEL|BUILD_FOLDER --download-torch  pip installs it (3 GB)
#   fresh_venv.sh WHEEL|BUILD_FOLDER --without-torch   only what works, or is refused, without it
#
# The environment's Python is /usr/bin/python3, or DTRAIN_PYTHON.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(realpath "$1") torch=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home"
cd "$work"

fail() { echo "fresh_venv: $*" >&2; exit 1; }
# In the environment: COMMAND ..., with its output in the file `output`.
inside() { env -i PATH="$work/venv/bin" HOME="$work/home" CUDA_VISIBLE_DEVICES= STARTED="$(date +%s.%N)" "$@" >output 2>&1; }
ends_with() {  # CODE COMMAND ...
  local expected=$1 code=0
  shift
  inside "$@" || code=$?
  [ "$code" -eq "$expected" ] || { cat output >&2; fail "$* ends with exit code $code, not $expected"; }
}
succeeds() { ends_with 0 "$@"; }
says() { grep -qE -- "$1" output || { cat output >&2; fail "the output above lacks $1"; }; }

if [ -d "$wheel" ]; then
  python3 -B "$source/python/build_wheel.py" "$wheel" --to "$work" >/dev/null
  wheel=$(ls "$work"/dtrain-*.whl)
fi
packages=''  # where torch is
[[ "$torch" = --* ]] || packages=$("$torch" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"${DTRAIN_PYTHON:-/usr/bin/python3}" -m venv venv
pip() { venv/bin/python -m pip --quiet --disable-pip-version-check "$@"; }
site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The torch that is installed stays as it is, however new; dtrain does not replace one that is too old.
install_beside() {  # VERSION of torch
  rm -rf "$site"/torch-*.dist-info
  mkdir "$site/torch-$1.dist-info"
  printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$1" >"$site/torch-$1.dist-info/METADATA"
  echo pip >"$site/torch-$1.dist-info/INSTALLER"
  inside python -m pip install --disable-pip-version-check --no-index "$wheel"
}
if install_beside 2.4.1; then fail "pip installs it beside torch 2.4.1"; fi
says 'torch>=2\.[0-9]+'
install_beside 2.99.1+cu140 || { cat output >&2; fail "pip refuses torch 2.99.1"; }
says '^Successfully installed dtrain-[0-9.]+$'
[ -s "$site/torch-2.99.1+cu140.dist-info/METADATA" ] || fail "pip has replaced torch 2.99.1"
rm -r "$site"/torch-*.dist-info
newest=$(printf '%s\n' "$site"/dtrain/torch[0-9]* | sort -V | tail -n 1) newest=${newest##*/torch}
install="pip install --upgrade 'torch<${newest%.*}\.$((${newest#*.} + 1))'"

cat >model.yaml <<'YAML'
name: model
model: model.pt
loss: cross_entropy
optimizer: {kind: sgd, lr: 0.05}
hyperparameters: {global_batch_size: 16}
resources: {slots_per_trial: 2}
searcher: {metric: loss, max_length: {batches: 4}}
data: {format: idx, training: {features: images.idx, target: labels.idx}}
YAML
cp -r "$source/examples/python" example
cat >make_model.py <<'PYTHON'
import struct
import torch

torch.jit.script(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))).save("model.pt")
with open("images.idx", "wb") as file:
    file.write(struct.pack(">HBB4I", 0, 8, 4, 64, 1, 4, 4) + bytes(64 * 16))
with open("labels.idx", "wb") as file:
    file.write(struct.pack(">HBBI", 0, 8, 1, 64) + bytes([0, 1] * 32))
PYTHON
cat >script.py <<'PYTHON'
import os
import time
import torch
import dtrain

torch.manual_seed(1)
features = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=32)
session = dtrain.init()
model, optimizer, loader = session.wrap(model, optimizer, loader)
seconds = losses = None
for epoch in range(3):
    for batch, target in loader:
        loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
        seconds = seconds or time.time() - float(os.environ["STARTED"])
        losses = (losses or []) + [session.mean(loss)]
assert len(losses) == 24 and losses[-1] < 0.1 * losses[0], losses
if session.is_main:
    print(f"{session.world_size} ranks, first batch after {seconds:.2f} s")
PYTHON
cat >stub.py <<'PYTHON'
# Whether _native.pyi has the names of the module, class by class.
import ast
import dtrain
from dtrain import _native

def compare(where, stub, real):
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    names = set(classes) | {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    names |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    difference = {n for n in names if not n.startswith("_")} ^ {n for n in vars(real) if not n.startswith("_")}
    assert not difference, f"{where}: only in the module or only in its stub: {sorted(difference)}"
    for name, node in classes.items():
        compare(f"{where}.{name}", node, getattr(real, name))

with open(dtrain.__path__[0] + "/_native.pyi") as file:
    compare("_native", ast.parse(file.read()), _native)
PYTHON

# Without torch: what needs none works, and the rest says what it lacks.
touch model.pt images.idx labels.idx
succeeds dtrain --version
says '^dtrain [0-9]+\.[0-9]+'
ends_with 2 dtrain launch model.yaml
says "dtrain-worker needs libtorch $newest"
says "$install"
ends_with 2 dtrain model inspect model.pt
says "$install"
ends_with 1 python -c 'import dtrain; dtrain.init()'
says "needs torch (.* or )?$newest, which is not installed: $install"

# A torch for which the wheel has nothing.
mkdir -p other/torch/lib
touch other/torch/lib/libtorch_cpu.so
for version in 2.4.1 2.99.0a0+git; do
  echo "__version__ = '$version'" | tee other/torch/version.py >other/torch/__init__.py
  ends_with 1 python -c 'import sys; sys.path.insert(0, "other"); import dtrain'
  says "^ImportError: .*built for torch (.* or )?$newest, and torch ${version//+/\\+} is installed: $install"
  if [ "$version" != 2.4.1 ]; then says "or build dtrain for torch 2.99 from its source distribution: pip install .*dtrain-\*\.tar\.gz"; fi
  for command in 'launch model.yaml' 'model inspect model.pt'; do
    read -r -a words <<<"$command"
    ends_with 2 DTRAIN_LIBTORCH_DIR="$work/other/torch" dtrain "${words[@]}"
    says "is ${version%a*}, and dtrain is built for (.* and )?$newest"
    says "$install"
  done
done

# The folder of the torch that is installed is chosen; what lies there is for another one here.
cp -r "$site/dtrain/torch$newest" "$site/dtrain/torch2.4"
ends_with 2 DTRAIN_LIBTORCH_DIR="$work/other/torch" dtrain launch model.yaml
says "is 2.99.0, and dtrain is built for 2\.4.* and $newest"
echo "__version__ = '2.4.1'" >other/torch/version.py
ends_with 2 DTRAIN_LIBTORCH_DIR="$work/other/torch" dtrain launch model.yaml
says "is 2.4.1, and .*/torch2\.4/dtrain-worker is built for $newest"
rm -r "$site/dtrain/torch2.4"

# A package without a module for this Python.
mkdir -p foreign/dtrain/torch2.4
cp "$site"/dtrain/*.py foreign/dtrain/
touch foreign/dtrain/torch2.4/_native.cpython-3{9,14t}-x86_64-linux-gnu.so
ends_with 1 python -c 'import sys; sys.path[:0] = ["foreign", "other"]; import dtrain'
says "^ImportError: this dtrain is built for Python 3\.14t, 3\.9, and this is cpython 3\."
[ "$torch" != --without-torch ] || exit 0

first=''
seconds() { sed -n 's/.*first batch after \([0-9.]*\) s.*/\1/p' output; }
try_all() {
  succeeds python make_model.py
  succeeds python stub.py
  succeeds dtrain run --slots 2 script.py
  says '2 ranks, first batch'
  says '^next +dtrain report [0-9]'
  first=${first:-$(seconds)}
  succeeds dtrain run --slots 2 script.py
  later=$(seconds)
  succeeds python script.py
  says '1 ranks, first batch'
  alone=$(seconds)
  if [ -d /usr/share/datasets/fashion-mnist ]; then
    for experiment in train trial; do
      succeeds dtrain launch "example/$experiment.yaml" --set searcher.max_length.batches=10 --run-dir "$experiment-$1"
      says 'done +2 ranks'
      [ -s "$experiment-$1/checkpoints/final/model.safetensors" ] || fail "$experiment-$1 has no weights"
    done
  else
    echo "fresh_venv: examples/python is left out, because there is no Fashion-MNIST: apt install dataset-fashion-mnist" >&2
  fi
  succeeds dtrain launch model.yaml --run-dir "run-$1"
  [ -s "run-$1/checkpoints/final/model.pt" ] || fail "run-$1 has no weights"
}
if [ -z "$packages" ]; then
  pip install "$wheel"
  try_all downloaded
else
  echo "$packages" >"$site/packages.pth"  # as with --system-site-packages: torch is elsewhere
  try_all elsewhere
  ln -s "$packages/torch" "$site/torch"  # as pip install does: torch is beside the package
  succeeds dtrain launch model.yaml --run-dir run-beside --set communication.backend=tcp
  says 'done +2 ranks'
fi
echo "{\"wheel_bytes\": $(stat -c %s "$wheel"), \"seconds_to_first_batch\": {\"first_run\": $first, \"run\": $later," \
  "\"python_script\": $alone}}"
