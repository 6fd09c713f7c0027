"""A test that a library brings along, with the one line before it: own_test.py LINE OUT MODULE."""
import runpy
import sys

import outcome
import torch.distributed as dist

outcome.make_group()
sys.argv = outcome.ARGUMENTS[:1]
runpy.run_module(outcome.ARGUMENTS[0], run_name="__main__", alter_sys=True)
if not dist.is_initialized():  # the test has ended the group
    dist.init_process_group(outcome.backend())
outcome.tell(0)
