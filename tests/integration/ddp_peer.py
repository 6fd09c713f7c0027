"""Two ranks of DistributedDataParallel over gloo in processes of their own: what our results are compared with."""
import os
import socket
import sys

import torch
import torch.distributed
import torch.multiprocessing

WORLD = 2


def run_ddp(function, *args):
    """Calls function(rank, *args) on WORLD ranks; what it finds it writes to files. They are forked, so that they need not
    import PyTorch: this process must not have computed a gradient yet, after which PyTorch refuses to do so in a child."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.start_processes(_rank, args=(port, function, args), nprocs=WORLD, start_method="fork")


def _rank(rank, port, function, args):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    function(rank, *args)
    torch.distributed.barrier()
    # Without destructors: gloo's threads are now and then still running when theirs come, and end the process by abort().
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
