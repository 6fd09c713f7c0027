"""The model and the data of bench_step and bench_checkpoint for their peers in Python."""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def ddp_model(width, depth):
    """Linear layers of width x width with ReLU between them, the same on every rank."""
    torch.manual_seed(0)
    layers = []
    for i in range(depth):
        layers.append(nn.Linear(width, width))
        if i + 1 < depth:
            layers.append(nn.ReLU())
    return DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)


def own_data(rank, batch, width):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(batch, width, generator=generator), torch.randn(batch, width, generator=generator)
