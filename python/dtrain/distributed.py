"""``import dtrain.distributed`` registers the backend ``dtrain`` of torch.distributed, where no entry point has done so.

An installed dtrain needs no import: ``import torch`` has registered it.
"""
import sys

from .torch_backend import _autoload

_autoload()


def dump(prefix: str) -> str:
    """Writes the last 2000 operations of this rank to the file ``prefix`` and its rank, and returns the file's name. PyTorch's
    ``python -m torch.distributed.flight_recorder.fr_trace FOLDER`` compares the files of all ranks. Failures write them by themselves:
    docs/torch-distributed.md says where."""
    native = sys.modules.get("dtrain._torch_distributed")
    path = native.write_flight_record(prefix) if native else ""
    if not path:
        raise RuntimeError("dtrain.distributed.dump: there is no process group of dtrain")
    return path
