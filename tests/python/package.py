"""The Python package of the build under test. Makes tests/integration importable, where harness.py is."""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))


def of(build):
    """What the environment of a launch needs, so that its ranks import the package."""
    folder = build.bin.parent / "python"
    if not list(folder.glob("dtrain/_native*.so")):
        sys.exit(f"{folder} has no dtrain._native: build python_native first")
    return {"PYTHONPATH": f"{folder}:{HERE}", "DTRAIN_PYTHON": sys.executable}
