"""The loss of a language model from its last hidden states, without a tensor of all scores."""
from __future__ import annotations

import torch

from . import _native


def linear_cross_entropy(input: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor, *,
                         linear_bias: torch.Tensor | None = None, reduction: str = "mean", ignore_index: int = -100,
                         label_smoothing: float = 0.0, chunk_bytes: int = 64 << 20) -> torch.Tensor:
    """The loss of ``cross_entropy(linear(input, linear_weight, linear_bias), target)``, computed in chunks of rows.

    Instead of ``loss = F.cross_entropy(model.head(hidden).flatten(0, 1), target.flatten())``::

        loss = dtrain.linear_cross_entropy(hidden, model.head.weight, target)

    The scores (logits) of all rows never lie in memory at once. The call itself computes the gradients that are needed,
    chunk by chunk, and keeps these for backward. It works on CPUs and GPUs, in scripts and trials, and without a session.
    The names are those of ``torch.nn.functional.linear_cross_entropy``.

    Args:
        input: hidden states, ``[..., features]``.
        linear_weight: ``[classes, features]``; it may be an embedding's weight, too.
        target: classes, ``[...]``, int64.
        linear_bias: ``[classes]``.
        reduction: ``"mean"`` over the targets that count, or ``"sum"``.
        ignore_index: rows with this target have no loss, and do not count.
        label_smoothing: from 0 to 1.
        chunk_bytes: the most that the scores of a chunk take, unless one row alone takes more.

    Under ``torch.autocast`` products are in its type, and the loss is float32. Gradients of gradients are an error.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}: linear_cross_entropy knows 'mean' and 'sum'")
    return _native.linear_cross_entropy(input, linear_weight, target, linear_bias, reduction == "sum", ignore_index,
                                        label_smoothing, chunk_bytes)
