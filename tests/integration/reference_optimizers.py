"""Optimizers that PyTorch does not have, as their papers state them."""
import torch


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:2302.06675."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                direction = (average * beta1 + p.grad * (1 - beta1)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:1904.00962."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                number = state["number"] = state.get("number", 0) + 1
                average = state.setdefault("average", torch.zeros_like(p))
                square = state.setdefault("square", torch.zeros_like(p))
                average.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                square.mul_(beta2).add_(p.grad ** 2, alpha=1 - beta2)
                root = (square / (1 - beta2 ** number)).sqrt() + group["eps"]
                step = average / (1 - beta1 ** number) / root + group["weight_decay"] * p
                trust = p.norm() / step.norm() if p.norm() > 0 and step.norm() > 0 else 1.0
                p.sub_(step * trust * group["lr"])
