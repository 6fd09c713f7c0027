#!python
"""The command `dtrain` of an installed wheel. It does not import the package, because that would import torch."""
import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    spec = importlib.util.find_spec("dtrain")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"dtrain: {sys.executable} has no package dtrain any more: pip install dtrain")
    package = Path(spec.submodule_search_locations[0]).resolve()
    os.environ["DTRAIN_COMMAND"] = os.path.realpath(sys.argv[0])
    os.environ.setdefault("DTRAIN_PYTHON", sys.executable)
    # The programs look for libtorch beside the package. It is elsewhere where a virtual environment sees the system's packages.
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.submodule_search_locations and not (package.parent / "torch").is_dir():
        os.environ.setdefault("DTRAIN_LIBTORCH_DIR", torch.submodule_search_locations[0])
    os.execv(package / "bin" / "dtrain", sys.argv)


main()
