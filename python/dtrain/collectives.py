"""What the ranks of a script tell each other."""
from __future__ import annotations

import torch

from .trial import Context


class Collectives:
    """Every rank makes the same calls, in the same order."""

    _context: Context

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, rank 0's first; a tensor without dimensions is one. Ranks may have different numbers of rows.
        Collective."""
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        if tensor.dtype == torch.bool:
            return self.gather(tensor.to(torch.uint8)).to(torch.bool)
        rows = torch.tensor([tensor.shape[0]], dtype=torch.int64)
        counts = [int(count) for count in self._context.all_gather(rows)]
        padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        padded[:tensor.shape[0]] = tensor.detach()
        parts = self._context.all_gather(padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    def mean(self, value: float | torch.Tensor, weight: float = 1) -> float:
        """The mean of all ranks' values, weighted: by the number of samples, say. Collective."""
        # A part without samples has no mean.
        sums = torch.tensor([float(value) * weight if weight else 0.0, weight], dtype=torch.float64)
        total, weights = self._context.all_reduce(sums).tolist()
        return total / weights if weights else float("nan")

    def all_reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        """The tensors of all ranks as one: their ``sum``, ``mean``, ``min`` or ``max``. The argument stays as it is.
        Collective."""
        return self._context.all_reduce(tensor, reduction)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """The tensor of rank ``root``, on all ranks. They give one of its shape and dtype. Collective."""
        return self._context.broadcast(tensor, root)

    def barrier(self) -> None:
        """Waits until all ranks have called it: what one has written before, the others can read. Collective."""
        self._context.all_reduce(torch.zeros(1))
