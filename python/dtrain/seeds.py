"""The random streams that a program's data is drawn from, beside torch's, which the engine seeds."""
from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def _seed_of(key: tuple[int, ...]) -> int:
    return hash(key) & 0x7FFFFFFFFFFFFFFF


def seed_python(*key: int) -> None:
    """random's and numpy's global streams become a function of the key."""
    seed = _seed_of(key)
    random.seed(seed)
    if "numpy" in sys.modules:  # torch imports it, where it is installed
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)


def seed_all(*key: int) -> None:
    """torch's as well."""
    seed = _seed_of(key)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    seed_python(*key)


@contextmanager
def drawn_alike(*key: int) -> Iterator[None]:
    """Within it all streams are a function of the key; afterwards torch's is what it was before."""
    before = torch.get_rng_state()
    seed_all(*key)
    try:
        yield
    finally:
        torch.set_rng_state(before)


class SeedingIndices(list):
    """The indices of a batch, which seed the streams of the worker process that gets them: so what it draws is a function of the
    batch, also in a run that goes on."""

    def __init__(self, indices: list[int], key: tuple[int, ...]) -> None:
        super().__init__(indices)
        self._key = key

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (list(self), self._key)


def _received(indices: list[int], key: tuple[int, ...]) -> list[int]:
    seed_all(*key)
    return indices
