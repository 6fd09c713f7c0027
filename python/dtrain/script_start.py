"""What a script's rank is started with: the arguments of a rank program, an experiment where no file has one, a context."""
from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._native import ConfigError, Error, ScriptLoop
from .trial import Context

#: Of an experiment that leaves the length to the script: kEpochsOfScripts of the engine.
EPOCHS_OF_SCRIPTS = 1_000_000


def arguments_of(experiment: str | os.PathLike[str] | None, run_dir: str | os.PathLike[str] | None,
                 settings: Mapping[str, Any], given: list[str] | None) -> tuple[list[str], Path | None]:
    """The arguments, and the temporary file that the settings are in. ``given``: those of dtrain's own launchers."""
    if given is not None:
        if experiment is not None or settings:
            raise ConfigError("dtrain.init() takes no experiment where dtrain has started the script: "
                              "set its keys in the experiment file, or with --set")
        if run_dir is not None:
            raise ConfigError("dtrain.init() takes no run_dir where dtrain has started the script: "
                              "give --run-dir on the command line")
        return given, None
    place = [] if run_dir is None else ["--run-dir", os.fspath(run_dir), "--or-continue"]
    if experiment is not None:
        if settings:
            raise ConfigError("dtrain.init() was given an experiment file and settings: put them into the file")
        return [sys.argv[0], *place, os.fspath(experiment)], None
    script = _script()
    contents = _write_experiment(script, settings)
    # Relative paths in it, and of data_set(), start from the script's folder, as under `dtrain run`. Errors name this
    # file, and no file has this name.
    named = script.with_name(f"{script.name} (dtrain.init)")
    return [sys.argv[0], *place, str(named), "--contents", str(contents)], contents


def _world_size() -> int:
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "PET_NNODES"):
        if name in os.environ:
            return int(os.environ[name].partition(":")[0])  # PET_NNODES=2:2
    return 1


def _script() -> Path:
    """The file that Python was started with, also after os.chdir(): Python keeps its absolute path. A notebook,
    ``python -c`` and ``python -`` (``<stdin>``) have none: then a name in the current folder."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).resolve() if file and not file.startswith("<") else Path.cwd() / "script"


def _write_experiment(script: Path, settings: Mapping[str, Any]) -> Path:
    world_size = _world_size()
    experiment = {"name": script.stem, "entrypoint": str(script),
                  "hyperparameters": {}, "resources": {"slots_per_trial": world_size}, **settings}
    if "as_is" not in experiment:
        experiment.setdefault("searcher", {"max_length": {"epochs": EPOCHS_OF_SCRIPTS}})
    experiment["hyperparameters"] = {"global_batch_size": world_size, "batch_size_of_loader": True,
                                     **experiment["hyperparameters"]}
    path = Path(tempfile.mkdtemp(prefix="dtrain-")) / "experiment.yaml"
    path.write_text(json.dumps(experiment))  # YAML includes JSON
    return path


class ScriptContext(Context):
    """Raises an error once the run has ended: the engine's object ends with it, and the script goes on."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.is_closed = False
        super().__init__(loop.context)

    @property
    def _native(self) -> Any:
        if self._loop.state != ScriptLoop.State.ENDED:
            return self._loop.context
        if self.is_closed:
            raise Error("the run has ended: session.close() was called before")
        raise Error(
            f"the run has ended after batch {self._loop.batches}, and this rank goes on: another rank has left the loop over "
            "batches for good, or its script has ended\n  end the loop on all ranks alike: decide by a value that is the same "
            "on each, such as one of session.mean() or session.broadcast()")
