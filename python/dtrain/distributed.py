"""``import dtrain.distributed`` registers the backend ``dtrain`` of torch.distributed, where no entry point has done so.

An installed dtrain needs no import: ``import torch`` has registered it.
"""
from .torch_backend import _autoload

_autoload()
