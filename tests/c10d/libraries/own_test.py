"""A test that a library brings along, with the one line before it: own_test.py LINE OUT MODULE [FUNCTION ...].

The functions are tests that are left out.
"""
import importlib
import sys

import outcome
import torch.distributed as dist

outcome.make_group()
name, *left_out = outcome.ARGUMENTS
sys.argv = [name]
module = importlib.import_module(name)
for function in left_out:
    getattr(module, function)
    setattr(module, function, lambda: None)
module.main()
if not dist.is_initialized():  # the test has ended the group
    dist.init_process_group(outcome.backend())
outcome.tell(0)
