"""What a rank of a library's script tells the test: SCRIPT.py LINE OUT [ARGUMENTS].

LINE is a backend for the one line that makes the process group before the library does, or "-" for a script without this line. OUT is a
folder, where each rank writes rank-N.json.
"""
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
LINE, OUT, ARGUMENTS = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def make_group() -> None:
    """The one line, for libraries that take no backend's name."""
    if LINE != "-":
        dist.init_process_group(LINE)


def backend() -> str:
    """For libraries that take a name."""
    return "gloo" if LINE == "-" else LINE


def perceptron() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def samples(count: int = 64) -> torch.utils.data.TensorDataset:
    features = torch.randn(count, 16, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))


def checksum(module: torch.nn.Module) -> float:
    """Of all weights, whether they are sharded or not."""
    from torch.distributed.tensor import DTensor

    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in module.state_dict().values()]
    return sum(one.double().abs().sum().item() for one in whole)


def tell(steps: int, **values: object) -> None:
    """`steps`: of the optimizer, which dtrain's run has to have recorded."""
    used = dist.get_backend()
    (OUT / f"rank-{RANK}.json").write_text(json.dumps({"backend": used, "steps": steps, "values": values}))
