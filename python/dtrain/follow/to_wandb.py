"""A run in W&B. Its library writes what it gets into files, which its own process sends, or `wandb sync` does. What is in these files
has arrived."""
from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, Iterator

from addresses import without_keys
from run_folder import WINDOW_S, Facts, Row, RunState
from sender import Away, Refused

BLOCK, HEADER = 32768, 7
LONGEST_WRITING_S = 60
SYSTEM_STEP = "system/seconds"


def records_of(file: Path) -> Iterator[bytes]:
    """The records of a file of W&B's: blocks of 32 KiB, with records in one or several pieces, after 7 bytes that name the format."""
    data = file.read_bytes()
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + HEADER:at + HEADER + length]
        if kind == 0 or len(piece) < length:
            return  # it ends here, or was being written when its process was killed
        at += HEADER + length
        whole = piece if kind in (1, 2) else whole + piece
        if kind in (1, 4):
            yield whole


def is_written(file: Path) -> bool:
    """True while a process of this user has the file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                return True
        except OSError:
            pass
    return False


class WandbRun:
    confirms = False  # before close()

    def __init__(self, url: str | None, project: str | None) -> None:
        import wandb

        if url:
            os.environ["WANDB_BASE_URL"] = url
        self._wandb = wandb
        settings = wandb.setup().settings
        self._project = project or settings.project
        self._offline = settings.mode in ("offline", "dryrun") or bool(settings._offline)
        self.place = f"wandb {without_keys(settings.base_url)} {self._project or ''}"
        self._run: Any = None
        self._there: dict[str, Any] = {}
        self._key = ""
        self._row = 0

    def _folder(self) -> Path:
        return Path(os.environ.get("WANDB_DIR") or ".").resolve()

    def open(self, facts: Facts, key: str, there: dict[str, Any]) -> None:
        self._there = there
        there.setdefault("run", key[:16])
        there.setdefault("folder", str(self._folder()))
        if self._run is None:
            self._start(facts)

    def _start(self, facts: Facts) -> None:
        wandb, there = self._wandb, self._there
        # W&B's own process may still write what a follower that was killed has logged.
        end = time.monotonic() + LONGEST_WRITING_S
        while any(map(is_written, self._files())):
            if time.monotonic() > end:
                raise Away(f"W&B: a process still writes {there['folder']}/wandb/*run-*-{there['run']}")
            time.sleep(0.1)
        self._row = max((row for row, _ in self._rows()), default=self._there.get("rows", -1)) + 1
        settings = wandb.Settings(console="off", disable_code=True, disable_git=True, disable_job_creation=True, silent=True,
                                  x_disable_stats=True, init_timeout=60)
        try:
            self._run = wandb.init(project=self._project or facts.project, id=there["run"], name=facts.name, notes=facts.description,
                                   tags=[label[:64] for label in facts.labels if label], config=facts.config, resume="allow",
                                   dir=there["folder"], settings=settings)
        except wandb.errors.UsageError as error:  # without a key, for example
            raise Refused(f"W&B: {error}") from error
        except (wandb.errors.CommError, wandb.errors.Error, OSError) as error:
            raise Away(f"W&B: {error}") from error
        self._run.define_metric("batch", hidden=True)
        self._run.define_metric("train/*", step_metric="batch")
        self._run.define_metric("validation/*", step_metric="batch")
        self._run.define_metric(SYSTEM_STEP, hidden=True)
        self._run.define_metric("system/*", step_metric=SYSTEM_STEP)

    def _files(self) -> list[Path]:
        run = self._there["run"]
        return sorted(Path(self._there["folder"]).glob(f"wandb/*run-*-{run}/run-{run}.wandb"))

    def _rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Of this run's files, those of earlier processes too: the number of each row, and its values as JSON."""
        from wandb.proto.wandb_internal_pb2 import Record

        for file in self._files():
            for data in records_of(file):
                record = Record()
                try:
                    record.ParseFromString(data)
                except Exception:  # the last one, if its process was killed
                    break
                if record.WhichOneof("record_type") != "history":
                    continue
                row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                yield int(row.get("_step", record.history.step.num)), row

    def arrived(self, after: dict[str, int]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {series: set() for series in after}
        for _, row in self._rows():
            for series in after.keys() & row.keys():
                step = round(float(row[SYSTEM_STEP]) / WINDOW_S if series.startswith("system/") else float(row["batch"]))
                if step > after[series]:
                    found[series].add(step)
        return found

    def send(self, rows: list[Row]) -> None:
        for row in rows:
            own = {SYSTEM_STEP: row.step * WINDOW_S} if row.kind == "system" else {"batch": row.step}
            self._run.log({**own, **row.values, "_timestamp": row.time_s}, step=self._row)
            self._row += 1

    def tell(self, facts: Facts, tags: dict[str, str]) -> None:
        self._run.config.update({**facts.config, "dtrain": tags}, allow_val_change=True)
        self._run.summary.update({"dtrain_state": tags["dtrain.state"], **({"dtrain_cause": tags["dtrain.cause"]}
                                                                         if "dtrain.cause" in tags else {})})

    def close(self, state: RunState | None) -> None:
        done = state is None or state.word in ("done", "running")
        self._run.finish(exit_code=0 if done else 1)
        self._run = None
        self._there["rows"] = self._row - 1

    def link(self) -> str:
        run = self._there["run"]
        if self._offline:
            return f"run {run} in {self._there['folder']}/wandb; `wandb sync` sends it"
        return f"run {run} of {self.place.removeprefix('wandb ').strip()}"
