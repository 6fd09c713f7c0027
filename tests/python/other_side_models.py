"""The models of other_side.py, with their optimizers in torch.optim. Without dtrain."""
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1))
        self.out = nn.Linear(32, 10)

    def forward(self, images):
        return self.out(self.hidden(images.flatten(1)))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.MaxPool2d(2))
        self.out = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images):
        return self.out(self.body(images).flatten(1))


def make(net):
    torch.manual_seed(5)
    return {"mlp": Mlp, "cnn": Cnn, "nadam": Mlp}[net]()


def make_optimizer(net, model):
    if net == "nadam":  # steps by itself
        return torch.optim.NAdam(model.parameters(), lr=0.01)
    if net == "mlp":
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def make_schedules(kind, optimizer):
    if kind == "cosine":
        return [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)]
    return [torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)] if kind else []


def features_of(batch):
    """As `model:` makes them of bytes."""
    return batch["image"].unsqueeze(1).float() * (1.0 / 255)
