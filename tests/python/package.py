"""The Python package of the build under test. Makes tests/integration importable, where harness.py is."""
import importlib.machinery
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))


def of(build):
    """What the environment of a launch needs, so that its ranks import the package."""
    folder = build.bin.parent / "python"
    if not list(folder.glob(f"dtrain/torch*/_native{importlib.machinery.EXTENSION_SUFFIXES[0]}")):
        sys.exit(f"{folder} has no dtrain._native for {sys.executable}: build python_native (CMake's DTRAIN_PYTHONS) first")
    return {"PYTHONPATH": f"{folder}:{HERE}", "DTRAIN_PYTHON": sys.executable}
