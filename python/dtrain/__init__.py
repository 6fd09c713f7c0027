"""Distributed data-parallel training with a profile of where the time goes.

Three lines make a script of one's own data-parallel::

    import dtrain

    session = dtrain.init()
    model, optimizer, loader = session.wrap(model, optimizer, loader)

A :class:`Trial` hands the loop over to dtrain instead, which then validates, stops early and takes checkpoints, too.
:class:`Run` reads what a run has recorded. docs/python.md describes them.
"""
import importlib as _importlib
import importlib.util as _util
import os as _os
import re as _re
import sys as _sys
from importlib.machinery import EXTENSION_SUFFIXES as _suffixes


def _numbers(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split(".") if part.isdigit())


# The minor versions of torch, as in 2.15, for which _native is compiled: each has a folder.
_minors = sorted((name[5:] for name in _os.listdir(_os.path.dirname(__file__)) if name.startswith("torch") and name[5:6].isdigit()),
                 key=_numbers)
_for = f"torch {' or '.join(_minors) or '(none)'}"
# The newest that there is for this Python: PyTorch 2.15 has nothing for Python 3.10.
_major, _newest = _numbers(_minors[-1]) if _minors else (0, 0)
_install = f"pip install --upgrade 'torch<{_major}.{_newest + 1}'" if _minors else "build dtrain (make build)"

def _name_user() -> None:
    """In a container the user may have a number alone. PyTorch asks for the name when the first optimizer is made, and fails."""
    import getpass
    try:
        getpass.getuser()
    except (KeyError, OSError):
        _os.environ["USER"] = f"uid{_os.getuid()}"


def _check_python() -> None:
    """_native is compiled for each Python by itself. Without it there is one line, which names those that have one."""
    here = _os.path.dirname(__file__)
    files = sorted({name for minor in _minors for name in _os.listdir(f"{here}/torch{minor}") if name.startswith("_native.cpython-")})
    if any(f"_native{suffix}" in files for suffix in _suffixes):
        return
    found = [_re.sub(r"_native\.cpython-(\d)(\w+)-.*", r"\1.\2", name) for name in files]
    this = f"{_sys.implementation.name} {_sys.version_info[0]}.{_sys.version_info[1]}{_sys.abiflags}"
    raise ImportError(f"this dtrain is built for Python {', '.join(found) or '(none)'}, and this is {this}: use such a Python, "
                      "or build dtrain for this one (make wheel PYTHONS=...)")


def _find_native(version: str) -> None:
    """libtorch's C++ interface changes with each minor version: _native is found in the folder of the torch that is installed."""
    minor = ".".join(version.split(".")[:2])
    if minor not in _minors:
        build = (f", or build dtrain for torch {minor} from its source distribution: pip install --no-binary dtrain dtrain-*.tar.gz"
                 if _minors and _numbers(minor) > _numbers(_minors[0]) else "")
        raise ImportError(f"this dtrain is built for {_for}, and torch {version} is installed: {_install}{build}")
    folder = _os.path.join(_os.path.dirname(__file__), f"torch{minor}")
    if folder not in __path__:
        __path__.append(folder)


# Where the names of the package are.
_PLACES = {"Callback": "trial", "ConfigError": "_native", "Context": "trial", "DataError": "_native", "Error": "_native", "Metric": "trial",
           "Run": "run", "Session": "session", "Trial": "trial", "add_layer_norm": "norms", "add_rms_norm": "norms", "data": "data",
           "divided": "sample_division", "divisible": "sample_division", "init": "session", "linear_cross_entropy": "losses",
           "run_trial": "trial"}

if _util.find_spec("torch") is not None:
    __all__ = list(_PLACES)

    def __getattr__(name: str) -> object:
        """Loads what has a name: the engine uses the libtorch that torch has loaded."""
        if name not in _PLACES:
            raise AttributeError(f"module 'dtrain' has no attribute '{name}'")
        _check_python()
        import torch
        _find_native(str(torch.__version__))
        module = _importlib.import_module(f".{_PLACES[name]}", __name__)
        globals()[name] = module if name == _PLACES[name] else getattr(module, name)
        return globals()[name]

    # `import torch` loads the backends of torch.distributed, of which dtrain is one (torch_backend.py), and pays for no more than that.
    if getattr(getattr(_sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        try:
            _find_native(str(_sys.modules["torch"].__version__))  # for an import of one of the package's modules
        except ImportError:
            pass  # the first use of a name says so
    else:
        _name_user()
        for _name in __all__:
            __getattr__(_name)
else:
    from .run import Run

    __all__ = ["Run"]

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ImportError(f"dtrain.{name} needs {_for}, which is not installed: {_install}")
