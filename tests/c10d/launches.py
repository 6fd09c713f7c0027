"""Starts scripts of others in three ways: torchrun with gloo, torchrun with dtrain's backend, and `dtrain run --as-is`."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import package

import harness

LIMIT = 600  # seconds of a launch; only against hangs
LIBRARIES = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu",
             "ACCELERATE_USE_CPU": "true"}


class Place:
    """A folder for launches, with a home folder, since libraries write there."""

    def __init__(self, name: str) -> None:
        self.path = harness.Workplace(name).path
        self.home = self.path / "home"
        self.home.mkdir()

    def environment(self, **more: str) -> dict[str, str]:
        ours = package.of(harness.BUILD)
        ours["PYTHONPATH"] = ":".join([*filter(None, [more.pop("PYTHONPATH", "")]), ours["PYTHONPATH"]])
        return harness.environment(HOME=str(self.home), **LIBRARIES, **ours, **more)

    def start(self, command: list, cwd: Path | None = None, **more: str) -> tuple[int | str, str]:
        """The exit code, or "hangs", and what was said."""
        process = subprocess.Popen([str(word) for word in command], cwd=cwd or self.path, env=self.environment(**more), text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output, _ = process.communicate(timeout=LIMIT)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return "hangs", self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen) -> str:
        """torchrun's ranks are in sessions of their own: it ends them itself, if it is asked to."""
        for deadly, patience in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
            os.killpg(process.pid, deadly)
            try:
                return process.communicate(timeout=patience)[0]
            except subprocess.TimeoutExpired:
                pass
        return "some of its processes hold its output"


def torchrun(ranks: int, script: Path | str, *arguments: object) -> list:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, script, *arguments]


def as_is(ranks: int, run_folder: Path, script: Path | str, *arguments: object) -> list:
    """Without the fast parts, some of which change bits."""
    return [harness.BUILD.program("dtrain"), "run", "--as-is", "--plain", "--slots", ranks, "--run-dir", run_folder, script, *arguments]


def recorded(run_folder: Path) -> dict:
    """What dtrain has found in a run: `dtrain summary --json`, or nothing where there is no run."""
    found = subprocess.run([harness.BUILD.program("dtrain"), "summary", "--json", run_folder], capture_output=True, text=True,
                           env=harness.environment())
    return json.loads(found.stdout) if found.returncode == 0 else {}
