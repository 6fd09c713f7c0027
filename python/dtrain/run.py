"""What a run has recorded, for notebooks and scripts::

    from dtrain.run import Run

    run = Run("runs/1")
    run.metrics, run.steps, run.findings, run.summary, run.plan
    run.plot_metrics()

Needs no torch. Tables are pandas' frames where pandas is installed, and lists of dicts where it is not. The numbers are
those of `dtrain export`, `dtrain analyze` and `dtrain summary`, which this module calls.
"""
from __future__ import annotations

import csv
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any


class Run:
    """A run by its folder, or by whatever else `dtrain summary` takes. What was read once is kept."""

    def __init__(self, run: str | os.PathLike[str] | int) -> None:
        name = os.fspath(run) if not isinstance(run, int) else str(run)
        self._name = name
        self.path = Path(name if os.path.isdir(name) else json.loads(_dtrain("summary", "--json", name))["run_dir"])

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @functools.cached_property
    def metrics(self) -> Any:
        """A row for each training and validation line of metrics.jsonl: time, kind, batch, epoch, samples, and each metric
        under its name."""
        return _frame(self._metric_rows[0], ("time", "kind", "batch", "epoch", "samples"), time="time")

    @functools.cached_property
    def steps(self) -> Any:
        """A row for each step of each rank, with the time of each phase in nanoseconds (docs/profile-tables.md)."""
        return self.table("steps")

    @functools.cached_property
    def findings(self) -> Any:
        """A row for each finding of `dtrain analyze`, the most expensive first."""
        found = json.loads(_dtrain("analyze", "--json", str(self.path)))["findings"]
        return _frame(found, ("id", "cause", "title", "evidence", "advice", "seconds", "share", "rank", "host"))

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """What `dtrain summary --json` says."""
        return json.loads(_dtrain("summary", "--json", str(self.path)))

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """plan.json: what was started, where, with which settings."""
        return json.loads((self.path / "plan.json").read_text())

    def table(self, name: str) -> Any:
        """A table of `dtrain export`: steps, ranks, collectives, system, … (docs/profile-tables.md)."""
        file = self._tables / f"{name}.csv"
        if not file.is_file():
            names = ", ".join(sorted(path.stem for path in self._tables.glob("*.csv")))
            raise KeyError(f"{self.path} has no table {name!r}; it has {names}")
        pandas = _pandas()
        if pandas is not None:
            return pandas.read_csv(file)
        with open(file, newline="") as lines:
            return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(lines)]

    def plot_metrics(self, *names: str) -> Any:
        """A figure of plotly: the metrics (or columns of ``metrics`` with these names) by batch. Needs plotly."""
        import plotly.graph_objects

        rows, metrics = self._metric_rows
        figure = plotly.graph_objects.Figure()
        for name in names or metrics:
            for kind in ("training", "validation"):
                points = [(row["batch"], row[name]) for row in rows if row["kind"] == kind and _is_number(row.get(name))]
                if points:
                    batches, values = zip(*points)
                    figure.add_scatter(x=batches, y=values, name=f"{name} ({kind})", mode="lines+markers")
        if not figure.data:
            raise KeyError(f"{self.path} has no metrics" + (f" called {', '.join(names)}" if names else ""))
        figure.update_layout(title=self.plan["name"], xaxis_title="batch")
        return figure

    @functools.cached_property
    def _metric_rows(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows of ``metrics``, and the names of the columns that are metrics."""
        rows, names = [], []
        for line in _lines(self.path / "metrics.jsonl"):
            if line.get("kind") not in ("training", "validation"):
                continue
            # A metric may be called as a column is.
            values = {f"metrics.{name}" if name in line else name: value for name, value in line.pop("metrics").items()}
            rows.append(line | values)
            names += [name for name in values if name not in names]
        return rows, names

    @functools.cached_property
    def _tables(self) -> Path:
        folder = tempfile.mkdtemp(prefix="dtrain-tables-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        _dtrain("export", "--format", "csv", "--output", folder, str(self.path))
        return Path(folder)


def _pandas() -> Any:
    """The module, imported when it is needed; None where it is missing."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        return None


def _program() -> str:
    """The command dtrain: of the build that this package is in, of this Python's environment, or of PATH."""
    for place in (Path(__file__).parents[2] / "bin", Path(sys.executable).parent):
        if (place / "dtrain").is_file():
            return str(place / "dtrain")
    found = shutil.which("dtrain")
    if found is None:
        raise FileNotFoundError("the command dtrain is not in PATH, and dtrain.Run reads runs through it")
    return found


def _dtrain(*arguments: str) -> str:
    done = subprocess.run([_program(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError((done.stderr or done.stdout).strip())
    return done.stdout


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    # The last line of a run that is going on may not be whole.
    lines = file.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...], time: str | None = None) -> Any:
    """``columns``: those of a frame without rows."""
    pandas = _pandas()
    if pandas is None:
        return rows
    frame = pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=columns)
    if time is not None:
        frame[time] = pandas.to_datetime(frame[time], format="ISO8601")
    return frame


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None
