"""What a run's folder says, read on from where the reader was: facts, state, rows of metrics, samples of the system."""
from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Iterator

WINDOW_S = 10  # of the system's metrics: the mean of so many seconds is a point
MOST_LINES = 500  # of metrics that are sent together
TAIL = 256  # bytes before a position, by which the file is known again
QUIET_S = 30  # a run that no process of this host belongs to and that writes nothing for so long is over
BAD_NAME = re.compile(r"[^\w\-. /:]")


@dataclass(frozen=True)
class Row:
    """Values that belong to one step: a batch, or of the system a window of ten seconds."""
    kind: str  # "train", "validation" or "system"
    step: int
    time_s: float
    values: dict[str, float]  # by the whole name: "train/loss"


@dataclass(frozen=True)
class Facts:
    """What a tracker shows of a run besides its points."""
    name: str
    project: str
    description: str
    labels: list[str]
    config: dict[str, Any]  # nested
    params: dict[str, str]  # flat
    tags: dict[str, str]
    started_s: float


@dataclass
class RunState:
    word: str = "running"  # or done, failed, interrupted, gone
    cause: str = ""
    ended_s: float | None = None
    attempts: int = 0

    @property
    def is_over(self) -> bool:
        return self.word != "running"


@dataclass
class Positions:
    """Where a reader is. They can be kept, and are right for a copy of the folder, too."""
    offset: int = 0
    tail: int = 0  # the checksum of what stands before the offset
    since: float | None = None  # the time of the last training line, for the throughput
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> Positions:
        return Positions(self.offset, self.tail, self.since, {key: dict(agent) for key, agent in self.agents.items()})


def seconds_of(utc: str) -> float:
    try:
        return datetime.strptime(utc, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def number_of(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else None


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value if isinstance(value, str) else json.dumps(value)


def lines_from(file: Path, offset: int, most: int = 1 << 30) -> Iterator[tuple[int, dict[str, Any]]]:
    """The whole lines that are JSON objects, each with the offset after it."""
    try:
        handle = open(file, "rb")
    except OSError:
        return
    with handle:
        handle.seek(offset)
        for _ in range(most):
            line = handle.readline()
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                value = json.loads(line)
            except ValueError:
                value = {}
            yield offset, value if isinstance(value, dict) else {}


def checksum_before(file: Path, offset: int) -> int | None:
    """None: the file is shorter, or is not there."""
    try:
        with open(file, "rb") as handle:
            begin = max(0, offset - TAIL)
            handle.seek(begin)
            found = handle.read(offset - begin)
    except OSError:
        return None
    return zlib.crc32(found) if len(found) == offset - begin else None


def start_ticks(pid: int) -> int:
    """When a process of this host began, by the kernel's clock; 0: there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class RunFolder:
    """The plan and the events, and how far the run is by them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started_s = 0.0
        self.attempt_times: list[float] = []
        self._offset = 0
        self._end: dict[str, Any] | None = None
        self._processes: list[dict[str, Any]] = []

    def read_events(self) -> None:
        for self._offset, event in lines_from(self.path / "events.jsonl", self._offset):
            what = event.get("event")
            now_s = seconds_of(str(event.get("time", "")))
            self.started_s = self.started_s or now_s
            if what == "attempt_started":
                self.attempt_times.append(now_s)
            if what == "run_ended":
                self._end = event
            if what in ("submitted", "run_started", "rank_started"):
                self._end = None  # it goes on
                self._processes.append(event)

    def state(self) -> RunState:
        """As of the events that were read last."""
        attempts = len(self.attempt_times)
        if self._end is not None:
            return RunState(str(self._end.get("state", "failed")), str(self._end.get("cause", "")),
                            seconds_of(str(self._end.get("time", ""))), attempts)
        if self._lives() or self._quiet_s() < QUIET_S:
            return RunState(attempts=attempts)
        return RunState("gone", "no process of the run is left, and no event records how it ended", self._last_write(), attempts)

    def _lives(self) -> bool:
        here = socket.gethostname()
        for process in self._processes:
            ticks = start_ticks(int(process.get("pid", 0)))
            if ticks and process.get("host") in (here, here.split(".")[0]) and process.get("start_ticks", ticks) == ticks:
                return True
        return False

    def _last_write(self) -> float:
        files = [self.path / "events.jsonl", self.path / "metrics.jsonl", *(self.path / "profile").glob("*.jsonl")]
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    def _quiet_s(self) -> float:
        return time.time() - self._last_write()

    def facts(self) -> Facts | None:
        """None: the run has no plan yet."""
        try:
            plan = json.loads((self.path / "plan.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        experiment = dict(plan.get("experiment", {}))
        experiment.pop("environment", None)  # the values of its variables may be secrets
        hyperparameters = experiment.pop("hyperparameters", {})
        profiling = experiment.get("profiling")
        if isinstance(profiling, dict):
            experiment["profiling"] = {key: value for key, value in profiling.items() if key != "rules"}
        name = str(plan.get("name", self.path.name))
        shown = {"world_size": plan.get("world_size", 0), "slot_type": plan.get("slot_type", ""),
                 "effective_batch_size": plan.get("effective_batch_size", 0),
                 "max_length": experiment.get("searcher", {}).get("max_length"),
                 "mixed_precision": experiment.get("optimizations", {}).get("mixed_precision"),
                 "experiment_seed": experiment.get("reproducibility", {}).get("experiment_seed"),
                 "optimizer": experiment.get("optimizer"), "loss": experiment.get("loss"), "model": experiment.get("model")}
        params = {**dict(flat({key: value for key, value in shown.items() if value is not None})), **dict(flat(hyperparameters))}
        hosts = sorted({str(rank.get("host", "")) for rank in plan.get("ranks", [])} - {""})
        versions = plan.get("versions", {})
        tags = {"dtrain.folder": str(self.path), "dtrain.hosts": ", ".join(hosts), "dtrain.version": str(versions.get("dtrain", "")),
                "dtrain.command": " ".join(map(str, experiment.get("entrypoint", []) or [])),
                "labels": ", ".join(map(str, experiment.get("labels", [])))}
        return Facts(name=self.path.name, project=name, description=str(experiment.get("description", "")),
                     labels=[str(label) for label in experiment.get("labels", [])],
                     config={**hyperparameters, "world_size": plan.get("world_size", 0), "experiment": experiment},
                     params=params, tags={key: value for key, value in tags.items() if value}, started_s=self.started_s)

    # Rows

    def next_rows(self, at: Positions) -> list[Row]:
        """Rows that `at` has not had, at most some hundreds, and moves it on. Lines of metrics.jsonl may be cut off when an
        attempt begins: what was read before is not known here, and comes again."""
        file = self.path / "metrics.jsonl"
        if checksum_before(file, at.offset) != at.tail:
            if not file.exists():
                return []
            at.offset, at.tail, at.since = 0, 0, None
        rows: list[Row] = []
        offset, since = at.offset, at.since
        for offset, line in lines_from(file, at.offset, MOST_LINES):
            row, since = self._row_of(line, since)
            if row is not None:
                rows.append(row)
        tail = checksum_before(file, offset)
        if checksum_before(file, at.offset) != at.tail or tail is None:
            return []  # it was cut meanwhile
        has_moved = offset > at.offset
        at.offset, at.tail, at.since = offset, tail, since
        return rows if rows or not has_moved else self.next_rows(at)  # lines without metrics

    def _row_of(self, line: dict[str, Any], since: float | None) -> tuple[Row | None, float | None]:
        metrics, batch = line.get("metrics"), line.get("batch")
        kind = {"training": "train", "validation": "validation"}.get(str(line.get("kind")))
        if kind is None or not isinstance(metrics, dict) or not isinstance(batch, int):
            return None, since
        now_s = seconds_of(str(line.get("time", "")))
        values = {f"{kind}/{BAD_NAME.sub('_', name)}": number_of(value) for name, value in metrics.items()}
        if kind == "train":
            for key in ("learning_rate", "gradient_norm", "epoch"):
                values[f"train/{key}"] = number_of(line.get(key))
            begins_anew = since is not None and any(since < start <= now_s for start in self.attempt_times)
            samples = number_of(line.get("samples"))
            if since is not None and not begins_anew and now_s > since and samples:
                values["train/samples_per_second"] = samples / (now_s - since)
            since = now_s
        elif since is not None:
            since = now_s  # a validation is no part of the next batches' time
        known = {name: value for name, value in values.items() if value is not None}
        return (Row(kind, batch, now_s, known) if known else None), since

    def next_system_rows(self, at: Positions, all_of_it: bool) -> list[Row]:
        """Means of windows of ten seconds. `all_of_it`: also of the last window, for a run that is over."""
        files = [*self.path.glob("attempt-*/profile/agent-*.jsonl"), *self.path.glob("profile/agent-*.jsonl")]
        rows: list[Row] = []
        several = len({file.name for file in files}) > 1
        for file in sorted(files):
            try:
                about = file.stat()
            except OSError:
                continue
            agent = at.agents.setdefault(f"{about.st_dev}:{about.st_ino}", {"offset": 0})
            if about.st_size > agent["offset"]:
                rows += self._windows(file, agent, several, all_of_it)
        rows.sort(key=lambda row: row.step)
        return rows

    def _windows(self, file: Path, agent: dict[str, Any], several: bool, all_of_it: bool) -> Iterator[Row]:
        window, begin, samples = -1, agent["offset"], []
        before = begin
        for offset, record in lines_from(file, begin):
            what = record.get("record")
            if what == "header":
                agent["clock"] = record.get("clock", {}).get("offset_ns", 0)
                agent["host"] = record.get("host", "")
                agent["memory"] = record.get("machine", {}).get("total_memory", 0)
            elif what == "gpu":
                agent.setdefault("gpus", {})[str(record.get("index"))] = record.get("total_memory", 0)
            elif what == "system":
                now = int((record.get("time_ns", 0) + agent.get("clock", 0)) / 1e9 - self.started_s) // WINDOW_S
                if now != window:
                    if samples:
                        yield self._window_row(window, samples, agent, several)
                    window, samples, begin = now, [], before
                samples.append(record)
            before = offset
        if samples and all_of_it:
            yield self._window_row(window, samples, agent, several)
            begin = before
        agent["offset"] = begin if samples else before

    def _window_row(self, window: int, samples: list[dict[str, Any]], agent: dict[str, Any], several: bool) -> Row:
        sums: dict[str, list[float]] = {}

        def add(name: str, value: Any, scale: float = 1.0) -> None:
            if isinstance(value, (int, float)):
                sums.setdefault(name, []).append(value * scale)

        total = agent.get("memory", 0)
        for sample in samples:
            add("cpu_utilization_percentage", sample.get("cpu_util_simple"))
            free = sample.get("free_memory")
            if total and isinstance(free, (int, float)):
                add("system_memory_usage_megabytes", total - free, 1e-6)
                add("system_memory_usage_percentage", (total - free) / total, 100)
            add("network_receive_megabytes_per_second", sample.get("net_throughput_recv"), 1e-6)
            add("network_transmit_megabytes_per_second", sample.get("net_throughput_sent"), 1e-6)
            add("disk_read_megabytes_per_second", sample.get("disk_throughput_read"), 1e-6)
            add("disk_write_megabytes_per_second", sample.get("disk_throughput_write"), 1e-6)
            for gpu in sample.get("gpus", []):
                index = str(gpu.get("index"))
                add(f"gpu_{index}_utilization_percentage", gpu.get("gpu_util"))
                add(f"gpu_{index}_temperature_celsius", gpu.get("gpu_temperature"))
                if memory := agent.get("gpus", {}).get(index):
                    add(f"gpu_{index}_memory_usage_megabytes", memory - gpu.get("gpu_free_memory", memory), 1e-6)
        prefix = "system/" + (BAD_NAME.sub("_", str(agent.get("host", ""))) + "/" if several else "")
        values = {prefix + name: sum(parts) / len(parts) for name, parts in sums.items()}
        return Row("system", window, self.started_s + window * WINDOW_S, values)


def write_kept(file: Path, value: dict[str, Any]) -> None:
    """Replaces the file; after a crash of the machine it is the old one or the new one."""
    draft = file.with_suffix(".draft")
    with open(draft, "w", encoding="utf-8") as handle:
        json.dump(value, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(draft, file)
