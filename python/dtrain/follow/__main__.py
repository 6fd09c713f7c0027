"""`dtrain follow`: reads a run's folder and shows the run in MLflow, W&B or trackio (docs/trackers.md).

It imports the tool from the Python that runs it, and nothing else that is not Python's own. dtrain starts it with the words that it
has checked.
"""
from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from addresses import WithoutKeys, without_keys
from run_folder import RunFolder, RunState
from sender import Away, Refused, Sender

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
TOOLS = {"mlflow": ("to_mlflow", "MlflowRun"), "wandb": ("to_wandb", "WandbRun"), "trackio": ("to_trackio", "TrackioRun")}
PERIOD_S, LONGEST_PERIOD_S = 1.0, 30.0
WAIT_FOR_OTHER_S = 2


class Stopped(Exception):
    pass


def stop(number: int, _: Any) -> None:
    raise Stopped(signal.Signals(number).name)


def say(text: str) -> None:
    print(text, flush=True)


class Lock:
    """One process sends a run to one place."""

    def __init__(self, file: Path, patience_s: float) -> None:
        self._handle = open(file, "a+", encoding="utf-8")
        end = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    self._handle.seek(0)
                    other = self._handle.read().strip() or "another one"
                    raise Refused(f"process {other} sends this run there already") from None
                time.sleep(0.2)
        self._handle.truncate(0)
        self._handle.write(str(os.getpid()))
        self._handle.flush()


def make_tracker(tool: str, url: str | None, project: str | None) -> Any:
    module, name = TOOLS[tool]
    try:
        return getattr(importlib.import_module(module), name)(url, project)
    except ImportError as error:
        raise Refused(f"{tool} cannot be imported by {sys.executable}: {error}") from error


def missing(tool: str) -> str:
    if importlib.util.find_spec(tool) is not None:
        return ""
    return (f"{sys.executable} has no {tool}: {sys.executable} -m pip install {tool}, or name another Python by DTRAIN_PYTHON")


class Following:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder = RunFolder(arguments.run)
        self.tracker = make_tracker(arguments.to, arguments.url, arguments.project)
        kept = arguments.run / "follow"
        kept.mkdir(exist_ok=True)
        name = f"{arguments.to}-{hashlib.sha256(self.tracker.place.encode()).hexdigest()[:8]}"
        self.lock = Lock(kept / f"{name}.lock", float("inf") if arguments.beside else WAIT_FOR_OTHER_S)
        self.sender = Sender(kept / f"{name}.json", self.folder, self.tracker)
        self.opened = False

    def look(self) -> RunState:
        self.folder.read_events()
        return self.folder.state()

    def send(self, state: RunState, last: bool) -> bool:
        """False: the run has no plan yet."""
        facts = self.folder.facts()
        if facts is None:
            return False
        self.sender.open(facts)
        if not self.opened:
            say(f"{self.arguments.to}: {self.tracker.link()}")
            self.opened = True
        self.sender.send_all(all_of_it=last and state.is_over)
        self.sender.tell(facts, state)
        if last:
            self.sender.close(state if state.is_over else None)
        return True

    def follow(self) -> int:
        """Until the run has ended and everything of it is there."""
        away_since: float | None = None
        period = PERIOD_S
        while True:
            state = self.look()  # first, so that what was written before the end is not missed
            last = state.is_over or self.arguments.once
            try:
                is_begun = self.send(state, last)
                if away_since is not None:
                    say(f"{self.arguments.to}: reached again after {time.monotonic() - away_since:.0f} s")
                away_since, period = None, PERIOD_S
                if last and self.look().is_over == state.is_over:
                    return self.end(state, is_begun)
            except Away as error:
                self.sender.lost_connection()
                if away_since is None:
                    say(f"{error}\n{self.arguments.to}: what is left waits in the run's folder")
                    away_since = time.monotonic()
                elif last and time.monotonic() - away_since > self.arguments.patience:
                    say(f"{self.arguments.to}: not reached for {self.arguments.patience:.0f} s; dtrain follow goes on from here\n{error}")
                    return FAILED
                period = min(period * 1.5, LONGEST_PERIOD_S)
            time.sleep(period)

    def end(self, state: RunState, is_begun: bool) -> int:
        if not is_begun:
            say(f"{self.arguments.run} has no plan.json: nothing of it has begun to train")
            return DONE if self.arguments.beside else FAILED
        if self.sender.different:
            say(f"{self.sender.different} points of batches that were done again had other values; {self.arguments.to} has the first ones")
        say(f"{self.arguments.to} has all of it ({state.word}): {self.tracker.link()}")
        return DONE


def main() -> int:
    parser = argparse.ArgumentParser(prog="dtrain follow")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--to", choices=sorted(TOOLS), required=True)
    parser.add_argument("--url")
    parser.add_argument("--project")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--patience", type=float, default=600)
    parser.add_argument("--beside", action="store_true")  # started by a launch, whose signals are not for it
    parser.add_argument("--check", action="store_true")  # is the tool there?
    arguments = parser.parse_args()
    if why := missing(arguments.to):
        print(why, file=sys.stderr)
        return BAD_INPUT
    if arguments.check:
        return DONE
    sys.stdout, sys.stderr = WithoutKeys(sys.stdout), WithoutKeys(sys.stderr)  # type: ignore[assignment]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if arguments.beside else stop)
    signal.signal(signal.SIGTERM, stop)
    following = None
    try:
        following = Following(arguments)
        return following.follow()
    except Stopped as stopped:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            if following is not None:
                following.sender.leave()
        except (Away, Refused):
            pass
        say(f"{arguments.to}: stopped by {stopped}; dtrain follow goes on from here")
        return INTERRUPTED
    except Refused as error:
        say(without_keys(str(error)))
        return FAILED
    except OSError as error:  # of the run's folder
        say(f"{arguments.to}: {error}; dtrain follow goes on from here")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
