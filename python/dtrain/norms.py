"""Layer norm and RMS norm of a sum with a residual, in one pass over memory on GPUs."""
from __future__ import annotations

import torch

from . import _native


def add_layer_norm(input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *,
                   eps: float = 1e-5) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual + input`` and layer norm of it over the last dimension: (the normalized sum, the sum).

    Instead of ``x = x + attention(hidden)`` and ``hidden = norm(x)``::

        hidden, x = dtrain.add_layer_norm(attention(hidden), x, norm.weight, norm.bias)

    On GPUs that run dtrain's kernels one kernel does both, and one the gradients of both, besides their sums for weight
    and bias. Elsewhere torch's operators compute it. It works in scripts and trials, and without a session.

    Args:
        input: what a layer has computed, ``[..., columns]``.
        residual: of the same shape.
        weight: ``[columns]``.
        bias: ``[columns]``.
        eps: added to the variance.

    The sum has the type that torch's addition gives it, and so has the normalized sum; under ``torch.autocast`` that has
    autocast's type, in which the next product reads it.
    """
    return _native.add_layer_norm(input, residual, weight, bias, eps)


def add_rms_norm(input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *,
                 eps: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual + input`` and RMS norm of it over the last dimension: (the normalized sum, the sum).

    As :func:`add_layer_norm`. ``eps`` is added to the mean square; without it ``torch.finfo(torch.float32).eps``, or that
    of float64 where the sum has this type.
    """
    return _native.add_rms_norm(input, residual, weight, eps)
