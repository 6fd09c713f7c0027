"""Distributed data-parallel training with a profile of where the time goes.

Three lines make a script of one's own data-parallel::

    import dtrain

    session = dtrain.init()
    model, optimizer, loader = session.wrap(model, optimizer, loader)

A :class:`Trial` hands the loop over to dtrain instead, which then validates, stops early and takes checkpoints, too.
:class:`Run` reads what a run has recorded. docs/python.md describes them.
"""
import getpass as _getpass
import importlib.util as _util
import os as _os
import re as _re
import sys as _sys

from .run import Run

_wanted = "2.11"

# In a container the user may have a number alone. PyTorch asks for the name when the first optimizer is made, and fails.
try:
    _getpass.getuser()
except (KeyError, OSError):
    _os.environ["USER"] = f"uid{_os.getuid()}"


def _check_python() -> None:
    """_native is compiled for each Python by itself. Without it there is one line, which names those that have one."""
    if _util.find_spec("._native", __name__) is not None:
        return
    files = sorted(_os.listdir(_os.path.dirname(__file__)))
    found = [_re.sub(r"_native\.cpython-(\d)(\w+)-.*", r"\1.\2", name) for name in files if name.startswith("_native.cpython-")]
    this = f"{_sys.implementation.name} {_sys.version_info[0]}.{_sys.version_info[1]}{_sys.abiflags}"
    raise ImportError(f"this dtrain is built for Python {', '.join(found) or '(none)'}, and this is {this}: use such a Python, "
                      "or build dtrain for this one (make wheel PYTHONS=...)")


if _util.find_spec("torch") is not None:
    _check_python()
    import torch as _torch  # the engine uses the libtorch that it has loaded

    if not _torch.__version__.startswith(_wanted + "."):
        raise ImportError(f"this dtrain is built for torch {_wanted}, and torch {_torch.__version__} is installed: "
                          f"pip install 'torch=={_wanted}.*'")

    from . import data
    from ._native import ConfigError, DataError, Error
    from .division import divided, divisible
    from .session import Session, init
    from .trial import Callback, Context, Metric, Trial, run_trial

    __all__ = ["Callback", "ConfigError", "Context", "DataError", "Error", "Metric", "Run", "Session", "Trial", "data",
               "divided", "divisible", "init", "run_trial"]
else:
    __all__ = ["Run"]

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ImportError(f"dtrain.{name} needs torch {_wanted}, which is not installed: "
                          f"pip install 'torch=={_wanted}.*'")
