"""Models with backward code of their own, and models whose code looks like it, for exported_runs.py."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES = 12, 5


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


sign = Sign.apply


def sign_in_a_helper(x):
    return Sign.apply(x)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)


class Applied(Base):
    def forward(self, x):
        x = Sign.apply(self.fc(x))  # applied
        return self.out(x)


class Named(Base):
    def forward(self, x):
        x = sign(self.fc(x))  # by a name
        return self.out(x)


class Helped(Base):
    def forward(self, x):
        x = sign_in_a_helper(self.fc(x))  # by a helper
        return self.out(x)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def scale(x):
    return Scale.apply(x)


class Scaled(Base):
    def forward(self, x):
        x = scale(self.fc(x))  # like a module of another model
        return self.out(x)


class Reversed(Base):
    def forward(self, x):
        x = Reverse.apply(self.fc(x))  # reversed
        return self.out(x)


class Mirror(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def mirror(x):
    return Mirror.apply(x)


class Mirrored(Base):
    def forward(self, x):
        x = mirror(self.fc(x))  # mirrored
        return self.out(x)


class Hooked(Base):
    """A hook of a module; one of a tensor leaves nothing in the file."""

    def __init__(self):
        super().__init__()
        self.fc.register_full_backward_hook(lambda module, to_input, to_output: tuple(-one for one in to_input))

    def forward(self, x):
        return self.out(self.fc(x))


class Reentrant(Base):
    def forward(self, x):
        x = checkpoint(self.fc, x, use_reentrant=True)  # reentrant
        return self.out(x)


class Calls(nn.Module):
    def forward(self, x):
        return x * 2


class CallsMore(Calls):
    def forward(self, x):
        return super().forward(x) + 1


class LooksLikeIt(Base):
    """apply() of modules, forward() that is called by its name, modules made on the way, parametrizations, and an
    estimator with the gradient of its argument."""

    def __init__(self):
        super().__init__()
        self.more, self.norm, self.still = CallsMore(), nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
        self.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.apply(lambda module: None)

    def forward(self, x):
        x = self.fc(x) if callable(self.apply(lambda module: None)) else x
        x = x + (x.sign() - x).detach()
        x = nn.ReLU()(self.more(self.more.forward(x)))
        x = checkpoint(self.layers, x, use_reentrant=False)
        x = x[:, :].view_as(x)
        return self.out(self.still(self.norm(self.weighted(x))))

    def train(self, mode=True):
        super().train(mode)
        self.still.eval()
        return self


class Masked(nn.Module):
    """The numbers that the mask has left."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, numbers, mask):
        return self.fc(F.silu(numbers) * ~mask)
