"""The model of parity_trial.cpp in Python, its batches, and training it with PyTorch alone."""
import contextlib

import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(tensors, path):
    safetensors.numpy.save_file({name: tensor.contiguous().numpy() for name, tensor in tensors.items()}, path)


def load(path):
    return {name: torch.from_numpy(array.copy()) for name, array in safetensors.numpy.load_file(path).items()}


class SharedLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(weight.shape[0]))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Net(nn.Module):
    def __init__(self, batch_norm=False, width=32):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc1 = nn.Linear(256, width)
        self.tied_a = SharedLinear(nn.Parameter(torch.randn(width, width)))
        self.tied_b = SharedLinear(self.tied_a.weight)
        self.extra = nn.Linear(width, width)
        self.out = nn.Linear(width, 10)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.never = nn.Parameter(torch.randn(7))
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.register_buffer("offset", torch.zeros(width))

    def forward(self, x, mask):
        h = self.conv(x.view(-1, 1, 8, 8)).relu().flatten(1)
        h = self.fc1(h).relu() * self.frozen + self.offset
        h = self.norm(h)
        h = self.tied_a(h).relu()
        h = self.tied_b(h).relu()
        if mask.any():
            h = h + mask.unsqueeze(1) * self.extra(h)
        return self.out(h)


def initial_weights(dtype, seed=1, batch_norm=False):
    """Random everywhere: a parameter of zeros would have no norm to compare with."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in Net(batch_norm).state_dict().items():
        if name.startswith("norm."):
            weights[name] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
            continue
        scale = 0.18 if tensor.dim() == 2 else 0.3
        weights[name] = (torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * scale).to(DTYPES[dtype])
    weights["frozen"] += 1
    weights["tied_b.weight"] = weights["tied_a.weight"].clone()
    return weights


def make_batches(dtype, batches, world_size, samples, seed=2, counts=None):
    """`extra` is used by both ranks, by one of them, or (for whole windows of four batches) by none."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batches, world_size, samples, 64, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 10, (batches, world_size, samples), generator=generator)
    used = torch.rand(batches, world_size, generator=generator) < 0.6
    for window in range(batches // 4):
        if window % 4 == 2:
            used[4 * window : 4 * window + 4] = False
    used[0:4] = False  # a parameter whose first gradient comes late
    mask = used.unsqueeze(2).expand(batches, world_size, samples)
    return {"x": x.to(DTYPES[dtype]), "y": y, "mask": mask.to(DTYPES[dtype]).contiguous(),
            "counts": torch.tensor(counts or [batches] * world_size)}


def whole_batches(batches):
    """The same samples as batches of one rank."""
    count = batches["x"].shape[0]
    merged = {k: v.reshape(count, 1, -1, *v.shape[3:]).contiguous() for k, v in batches.items() if k != "counts"}
    return {**merged, "counts": torch.tensor([count])}


def make_model(weights, dtype):
    model = Net("norm.weight" in weights).to(DTYPES[dtype])
    model.load_state_dict(weights)
    return model


def make_optimizer(model, options):
    parameters = [p for p in model.parameters() if p.requires_grad]
    options = dict(options)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.pop("kind")]
    return kind(parameters, **options)


def batch_loss(model, batches, index, rank):
    scores = model(batches["x"][index, rank], batches["mask"][index, rank])
    return F.cross_entropy(scores, batches["y"][index, rank])


def train_ddp(case, rank):
    """One rank of DistributedDataParallel; a window's last batch exchanges, those before do not."""
    model = make_model(case["weights"], case["dtype"])
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = make_optimizer(model, case["optimizer"])
    k = case["k"]
    for index in range(case["batches"]["x"].shape[0]):
        exchange = (index + 1) % k == 0
        with contextlib.nullcontext() if exchange else ddp.no_sync():
            loss = batch_loss(ddp, case["batches"], index, rank)
            (loss / k if case["average"] else loss).backward()
        if not exchange:
            continue
        if case["clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert model.never.grad is None
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train_rounds(case, rounds):
    """One process: each round is the list of (batch, rank) that have data, `k` rounds a window, leftovers included.
    The gradient of a window is the mean over the batches it had."""
    model = make_model(case["weights"], case["dtype"])
    optimizer = make_optimizer(model, case["optimizer"])
    for start in range(0, len(rounds), case["k"]):
        window = [entry for entries in rounds[start : start + case["k"]] for entry in entries]
        for index, rank in window:
            (batch_loss(model, case["batches"], index, rank) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def worst_difference(ours, theirs):
    """(relative L2 norm of the difference, name) of the worst parameter; both must hold the same tensors."""
    if not theirs or set(ours) != set(theirs):
        raise AssertionError(f"not the same tensors: {sorted(ours)} and {sorted(theirs)}")
    worst = (-1.0, "")
    for name, expected in theirs.items():
        got = ours[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise AssertionError(f"{name} is {got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}")
        norm = expected.double().norm()
        difference = (got.double() - expected.double()).norm()
        relative = (difference / norm if norm > 0 else difference).item()
        if not relative < float("inf"):
            raise AssertionError(f"{name} is not finite")
        worst = max(worst, (relative, name))
    return worst
