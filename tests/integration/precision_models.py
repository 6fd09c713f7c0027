"""The models of precision_trial.cpp in Python, their batches, and training them with PyTorch alone, in each precision."""
import copy
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu_check"))
from models import Gpt, random_weights  # noqa: E402

SAMPLES = 8  # of a rank's batch
LENGTH, TOKENS = 16, 50


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = self.norm(self.conv1(x)).relu()
        x = F.max_pool2d(self.conv2(x), 2).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())


def initial_model(name):
    if name == "cnn":
        return random_weights(Cnn())
    return random_weights(Gpt(tokens=TOKENS, length=LENGTH, layers=2, heads=2, width=32, bias=False))


def make_batches(name, batches, ranks):
    generator = torch.Generator().manual_seed(2)
    counts = torch.full((ranks,), batches)
    if name == "cnn":
        x = torch.randn(batches, ranks, SAMPLES, 1, 8, 8, generator=generator)
        return {"x": x, "y": torch.randint(0, 10, (batches, ranks, SAMPLES), generator=generator), "counts": counts}
    tokens = torch.randint(0, TOKENS, (batches, ranks, SAMPLES, LENGTH + 1), generator=generator)
    return {"x": tokens[..., :-1].contiguous(), "y": tokens[..., 1:].contiguous(), "counts": counts}


def batch_loss(model, x, y, precision):
    with torch.autocast("cpu", torch.bfloat16, enabled=precision != "none"):
        scores = model(x)
        if scores.dim() == 3:  # over tokens
            scores = scores.flatten(0, 1)
        return F.cross_entropy(scores, y.flatten())


def in_precision(model, precision):
    """pure_bf16: parameters in bfloat16, but for those of normalization layers."""
    if precision == "pure_bf16":
        for module in model.modules():
            if not isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(torch.bfloat16)
    return model


def train(name, precision, batches, optimizer):
    """{name: tensor} after training on the batches of all ranks in this process: each has a model of its own, gradients are
    summed in float32 in the order of the ranks, and AdamW(fused=True) updates float32 values, which all models get."""
    ranks = batches["x"].shape[1]
    models = [in_precision(initial_model(name), precision) for _ in range(ranks)]
    masters = {n: nn.Parameter(p.detach().clone()) for n, p in initial_model(name).named_parameters()}
    update = torch.optim.AdamW(masters.values(), fused=True, **optimizer)
    for index in range(batches["x"].shape[0]):
        for rank, model in enumerate(models):
            model.zero_grad(set_to_none=True)
            batch_loss(model, batches["x"][index, rank], batches["y"][index, rank], precision).backward()
        parameters = [dict(model.named_parameters()) for model in models]
        for n, master in masters.items():
            total = parameters[0][n].grad.float()
            for others in parameters[1:]:
                total = total + others[n].grad.float()
            # As the ranks keep it: in the type that gradients have.
            master.grad = (total * (1 / ranks)).to(parameters[0][n].dtype).float()
        update.step()
        with torch.no_grad():
            for of_rank in parameters:
                for n, parameter in of_rank.items():
                    parameter.copy_(masters[n])
    buffers = {n: tensor.detach().clone() for n, tensor in models[0].named_buffers()}
    return {n: master.detach().clone() for n, master in masters.items()} | buffers


def train_ddp(name, precision, batches, optimizer, rank):
    """The same as one rank of DistributedDataParallel; not pure_bf16."""
    model = copy.deepcopy(initial_model(name))
    ddp = nn.parallel.DistributedDataParallel(model)
    update = torch.optim.AdamW(model.parameters(), fused=True, **optimizer)
    for index in range(batches["x"].shape[0]):
        update.zero_grad(set_to_none=True)
        batch_loss(ddp, batches["x"][index, rank], batches["y"][index, rank], precision).backward()
        update.step()
    return {n: tensor.detach().clone() for n, tensor in model.state_dict().items()}
