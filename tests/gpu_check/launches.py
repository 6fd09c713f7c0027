"""Launches of dtrain in the checks on GPUs, and what their runs recorded."""
import importlib.machinery
import json
import os
import socket
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
from harness import run, write_experiment  # noqa: E402

# What of this process's environment a launch keeps, of the variables that harness.environment() takes away.
KEPT = ("DTRAIN_LIBTORCH_DIR", "DTRAIN_FAKE_")


def add_arguments(parser):
    parser.add_argument("bin", type=Path, help="the folder of dtrain's programs")
    parser.add_argument("--gpus", type=int, default=1, help="how many GPUs there are")
    parser.add_argument("--slot-type", choices=("cuda", "cpu"), default="cuda", help="what dtrain trains on")
    parser.add_argument("--peer", choices=("cuda", "cpu"), default="cuda", help="what PyTorch's DDP trains on")
    parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH for dtrain")
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for files and runs; stays")


def kept_variables(libraries):
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return {**kept, "LD_LIBRARY_PATH": libraries} if libraries else kept


class Dtrain:
    def __init__(self, arguments):
        self.bin, self.libraries, self.slot_type = arguments.bin, arguments.libraries, arguments.slot_type

    def launch(self, folder, experiment, ranks, slot_type=None, deadline=900, **variables):
        """The experiment's run in `folder`/run. Its files are in `folder` already."""
        kept = kept_variables(self.libraries)
        resources = {"slots_per_trial": ranks, "slot_type": slot_type or self.slot_type}
        file = write_experiment(folder / "experiment.yaml", **experiment, resources=resources)
        command = [str(self.bin / "dtrain"), "launch", str(file), "--run-dir", str(folder / "run")]
        return run(command, folder / "run", deadline=deadline, **{**kept, **variables})


def package_of(bin):
    return bin.resolve().parent / "python"


def has_package(bin):
    """Whether dtrain's module has been built for this Python."""
    return any(package_of(bin).glob(f"dtrain/torch*/_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"))


def python_variables(bin):
    """What a launch of a Python script needs: this Python, dtrain's package, and the modules here."""
    return {"DTRAIN_PYTHON": sys.executable, "PYTHONPATH": f"{package_of(bin)}:{HERE}"}


def mean_step_ms(result, warm_up):
    """The mean time from one batch to the next on rank 0, after the first batches."""
    steps = [line for line in map(json.loads, (result.run_dir / "profile" / "rank-0000.jsonl").read_text().splitlines())
             if line["record"] == "step"][warm_up:]
    if len(steps) < 2:
        raise AssertionError(f"{result.run_dir} has {len(steps)} steps after the first {warm_up}")
    return (steps[-1]["start_ns"] - steps[0]["start_ns"]) / (len(steps) - 1) / 1e6


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
