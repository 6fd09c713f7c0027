"""Sends each point once. What a tracker has is known from a file of its own, which is written before and after each sending; after
a kill or a cut in between, the tracker is asked."""
from __future__ import annotations

import copy
import json
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from run_folder import Facts, Positions, Row, RunFolder, RunState, write_kept

REMEMBERED = 64  # values of each series, against which batches that are done again are compared
OF_TIME = ("train/samples_per_second",)  # differs when a batch is done again
VERSION = 1


class Away(Exception):
    """The other side does not answer. What was sent last may be there or not."""


class Refused(Exception):
    """The other side answers, and does not take it."""


class Tracker(Protocol):
    """A run in a tool of others. Every function may raise Away or Refused."""
    confirms: bool  # what send() has returned from is there; otherwise close() waits for it
    place: str  # whose runs these are: the tool, its server and project, without keys

    def open(self, facts: Facts, key: str, there: dict[str, Any]) -> None:
        """Finds the run that has this key, or makes it. `there` is the tracker's own, and is kept."""

    def arrived(self, after: dict[str, int]) -> dict[str, set[int]]:
        """Of each series that is named the steps that are there beyond the given one."""

    def send(self, rows: list[Row]) -> None:
        """In the order of the rows."""

    def tell(self, facts: Facts, tags: dict[str, str]) -> None:
        """Sends params and tags; again where they have changed."""

    def close(self, state: RunState | None) -> None:
        """Ends the run there; None: leaves it as it is."""

    def link(self) -> str: ...


class Sender:
    def __init__(self, file: Path, folder: RunFolder, tracker: Tracker) -> None:
        self.file, self.folder, self.tracker = file, folder, tracker
        self._kept = self._load()
        self._told: dict[str, str] | None = None
        self._rewind()

    def _load(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.file.read_text("utf-8"))
        except FileNotFoundError:
            return {"version": VERSION, "place": self.tracker.place, "key": uuid.uuid4().hex, "there": {}, "sent": {}, "sending": {},
                    "positions": asdict(Positions()), "recent": {}, "different": 0}
        if kept.get("version") != VERSION:
            raise Refused(f"{self.file} is of another version of dtrain; move it away to send the run anew")
        return kept

    def _keep(self) -> None:
        write_kept(self.file, self._kept)

    def _rewind(self) -> None:
        """Back to what is certainly there."""
        self._positions = Positions(**copy.deepcopy(self._kept["positions"]))
        self._known: dict[str, int] = dict(self._kept["sent"])
        self._there: dict[str, set[int]] = {}
        self._opened = False

    @property
    def different(self) -> int:
        """How many points had another value when their batches were done again. The tracker has the first ones."""
        return int(self._kept["different"])

    def open(self, facts: Facts) -> None:
        if self._opened:
            return
        self._keep()  # the key, before a run is made by it
        self.tracker.open(facts, self._kept["key"], self._kept["there"])
        self._keep()
        if self._kept["sending"]:
            self._there = self.tracker.arrived({series: self._kept["sent"].get(series, -1) for series in self._kept["sending"]})
        self._told = None
        self._opened = True

    def send_all(self, all_of_it: bool) -> int:
        """Sends what the folder has; returns the number of points."""
        count = 0
        while self._opened:
            rows = self.folder.next_rows(self._positions)
            if not rows:
                rows = self.folder.next_system_rows(self._positions, all_of_it)
                if not rows:
                    return count
            new = [row for row in map(self._new_part, rows) if row is not None]
            if new:
                count += sum(len(row.values) for row in new)
                self._send(new)
            else:
                self._confirm()
        return count

    def _new_part(self, row: Row) -> Row | None:
        values = {}
        for series, value in row.values.items():
            if row.step <= self._known.get(series, -1):
                self._compare(series, row.step, value)
                continue
            self._known[series] = row.step
            if row.step in self._there.get(series, ()):
                continue
            values[series] = value
            if row.kind != "system":
                recent = self._kept["recent"].setdefault(series, [])
                recent.append([row.step, repr(value)])
                del recent[:-REMEMBERED]
        return Row(row.kind, row.step, row.time_s, values) if values else None

    def _compare(self, series: str, step: int, value: float) -> None:
        if series.startswith("system/") or series in OF_TIME:
            return
        recent = self._kept["recent"].get(series, [])
        self._kept["different"] += any(step == known and text != repr(value) for known, text in recent)

    def _send(self, rows: list[Row]) -> None:
        sending = self._kept["sending"]
        sending |= {series: max(self._known[series], sending.get(series, -1)) for row in rows for series in row.values}
        self._keep()
        try:
            self.tracker.send(rows)
        except Away:
            self._rewind()
            raise
        self._confirm()

    def _confirm(self, is_closed: bool = False) -> None:
        if not (self.tracker.confirms or is_closed) and self._kept["sending"]:
            return
        # What a process that was killed had sent of other series may still be in doubt.
        doubtful = {series: step for series, step in self._kept["sending"].items() if self._known.get(series, -1) < step}
        self._kept.update(sent=dict(self._known), sending=doubtful, positions=asdict(self._positions))
        self._keep()

    def tell(self, facts: Facts, state: RunState) -> None:
        tags = {**facts.tags, "dtrain.state": state.word, "dtrain.attempts": str(max(1, state.attempts))}
        if state.cause:
            tags["dtrain.cause"] = state.cause
        if self.different:
            tags["dtrain.different_when_done_again"] = str(self.different)
        if tags == self._told:
            return
        self.tracker.tell(facts, tags)
        self._told = tags

    def close(self, state: RunState | None) -> None:
        if not self._opened:
            return
        self.tracker.close(state)
        self._confirm(is_closed=True)
        self._opened = False

    def leave(self) -> None:
        """After a signal, which may have come in the middle of a sending: what is there is asked at the next start."""
        if self._opened:
            self.tracker.close(None)

    def lost_connection(self) -> None:
        self._rewind()
