"""The models of the checks on GPUs, as modules that torch.jit.script takes: a CNN and a GPT for correct weights,
ResNet-50 and GPT-2 for speed."""
import warnings

import torch
import torch.nn.functional as F
from torch import nn


class SmallCnn(nn.Module):
    """For 8x8 images: a convolution, batch norm, a weight that two layers share, a frozen parameter, an unused one."""

    def __init__(self, width: int = 32):
        super().__init__()
        # No bias before batch norm: its gradient is zero but for rounding, which adam would blow up to whole steps.
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(256, width)
        self.tied = nn.Parameter(torch.empty(width, width))
        self.out = nn.Linear(width, 10)
        self.never = nn.Parameter(torch.empty(7))
        self.frozen = nn.Parameter(torch.empty(width), requires_grad=False)

    def forward(self, images):
        h = self.norm(self.conv(images)).relu().flatten(1)
        h = self.fc(h).relu() * self.frozen
        h = F.linear(F.linear(h, self.tied).relu(), self.tied).relu()
        return self.out(h)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width, bias=bias)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = self.attention(self.norm1(x)).split(width, dim=2)
        q = q.view(batch, length, self.heads, -1).transpose(1, 2)
        k = k.view(batch, length, self.heads, -1).transpose(1, 2)
        v = v.view(batch, length, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2's architecture without dropout; scores share their weight with the embedding of tokens. Defaults: 124M.
    `bias` is the attention's: the gradient of the keys' is zero but for rounding, which adam would blow up to whole
    steps."""

    def __init__(self, tokens: int = 50304, length: int = 1024, layers: int = 12, heads: int = 12, width: int = 768,
                 bias: bool = True):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([Block(width, heads, bias) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        return (self.norm3(self.conv3(y)) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """Defaults: ResNet-50 for ImageNet."""

    def __init__(self, blocks=(3, 4, 6, 3), width: int = 64, classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width),
                                  nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            for index in range(count):
                layers.append(Bottleneck(inputs, width << stage, 2 if stage > 0 and index == 0 else 1))
                inputs = 4 * (width << stage)
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(inputs, classes)

    def forward(self, images):
        return self.out(self.body(self.stem(images)).mean([2, 3]))


def random_weights(model, seed=1):
    """Random everywhere: a parameter of zeros would have no norm to compare with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() == 1 else 0.9 / parameter[0].numel() ** 0.5
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
            parameter.copy_(values + 1 if "norm" in name and name.endswith("weight") or name == "frozen" else values)
    return model


def save_script(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
        torch.jit.script(model).save(str(path))


def save_exported(model, features, path):
    """For any number of samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that torch.export imports
        program = torch.export.export(model.train(), (features,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
        torch.export.save(program, str(path))


OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_optimizer(model, options, **more):
    options = dict(options)
    kind = OPTIMIZERS[options.pop("kind")]
    return kind([p for p in model.parameters() if p.requires_grad], **options, **more)


def batch_loss(model, features, target):
    scores = model(features)
    if scores.dim() == 3:  # over tokens
        scores, target = scores.flatten(0, 1), target.flatten()
    return F.cross_entropy(scores, target)
