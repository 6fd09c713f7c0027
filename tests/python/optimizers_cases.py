"""What scripts do with an optimizer besides its steps, in one loop for dtrain and for plain PyTorch."""
import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset

DTYPE = torch.float64


class Net(nn.Module):
    """Buffers that state_dict() leaves out: positions as Llama has them, and a mask. `base` is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(20, 16, dtype=DTYPE).requires_grad_(False)
        self.conv = nn.Conv2d(4, 4, 2, padding=1, dtype=DTYPE)
        self.head = nn.Linear(16 + 36, 4, dtype=DTYPE)
        angles = torch.outer(torch.arange(8.0, dtype=DTYPE), torch.tensor([1.0], dtype=DTYPE)).flatten()
        self.register_buffer("positions", torch.polar(torch.ones(8, dtype=DTYPE), angles), persistent=False)
        self.register_buffer("mask", torch.ones(512, 512), persistent=False)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.batches += 1
        features = self.base(x).tanh()
        turned = torch.view_as_complex(features.reshape(len(x), 8, 2)) * self.positions
        pictures = self.conv(features.reshape(len(x), 4, 2, 2))
        return self.head(torch.cat([torch.view_as_real(turned).flatten(1), pictures.flatten(1)], 1)) * self.mask[0, 0]


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0, dtype=DTYPE))
        self.bias = nn.Parameter(torch.zeros(4, dtype=DTYPE))

    def forward(self, out, labels):
        return F.cross_entropy(out * self.temperature + self.bias, labels)


def size_of(value):
    file = io.BytesIO()
    torch.save(value, file)
    return len(file.getvalue())


def train(kind, session=None, steps=8):
    """Returns what is to be equal. `session`: dtrain's; None: plain PyTorch."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 20, dtype=DTYPE, generator=generator)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16)
    model, loss_of = Net(), Loss()
    groups = [{"params": [], "weight_decay": 0.5}, {"params": model.base.parameters()},
              {"params": [*model.conv.parameters(), *model.head.parameters()]},
              {"params": loss_of.parameters(), "lr": 0.05}]
    optimizer = getattr(torch.optim, kind)(groups, lr=0.1)
    calls = []

    def note(name):
        def hook(*arguments):
            of, args, kwargs = arguments
            calls.append((name, of is optimizer, args[0] is optimizer, len(args), kwargs, loss_of.temperature.item()))
        return hook

    handles = [optimizer.register_step_pre_hook(note("before")),
               torch_optimizer.register_optimizer_step_pre_hook(note("before any"))]
    if session is not None:
        model, optimizer, loader = session.wrap(model, optimizer, loader)
    handles += [optimizer.register_step_post_hook(note("after")),
                torch_optimizer.register_optimizer_step_post_hook(note("after any"))]
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    rates = []
    for _ in range(steps // 4):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), labels).backward()
            rates.append(optimizer.param_groups[2]["lr"])
            optimizer.step()
            schedule.step()
    for handle in handles:
        handle.remove()
    return {"weights": {name: value.clone() for name, value in model.state_dict().items()},
            "loss": {name: value.clone() for name, value in loss_of.state_dict().items()}, "calls": calls, "rates": rates,
            "bytes": [size_of(model.state_dict()), size_of(model.head.state_dict()), size_of(model.head.bias.detach())]}
