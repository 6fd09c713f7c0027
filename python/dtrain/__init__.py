"""Distributed data-parallel training with a profile of where the time goes.

Three lines make a script of one's own data-parallel::

    import dtrain

    session = dtrain.init()
    model, optimizer, loader = session.wrap(model, optimizer, loader)

A :class:`Trial` hands the loop over to dtrain instead, which then validates, stops early and takes checkpoints, too.
docs/python.md describes both.
"""
import torch as _torch  # the engine uses the libtorch that it has loaded

_wanted = "2.11"
if not _torch.__version__.startswith(_wanted + "."):
    raise ImportError(f"this dtrain is built for torch {_wanted}, and torch {_torch.__version__} is installed: "
                      f"pip install 'torch=={_wanted}.*'")

from ._native import ConfigError, DataError, Error  # noqa: E402
from .data import divided  # noqa: E402
from .session import Session, init  # noqa: E402
from .trial import Callback, Context, Metric, Trial, run_trial  # noqa: E402

__all__ = ["Callback", "ConfigError", "Context", "DataError", "Error", "Metric", "Session", "Trial", "divided", "init",
           "run_trial"]
