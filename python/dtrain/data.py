"""How batches are divided among ranks.

A loader's batches are those of all ranks together, as in a script with one process: of a batch of 64 each of two ranks
trains on 32. So a run does not depend on the number of ranks, but for rounding.
"""
from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import data
from torch.utils._pytree import tree_flatten, tree_map


class _Divided:
    """Marks a loader whose batches are those of this rank alone."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def divided(loader: Iterable[Any]) -> Any:
    """Returns the loader for ``wrap()`` or ``training_loader()`` with the mark that its batches are this rank's own.

    For a data set that divides itself among the ranks. Ranks may have different numbers of batches.
    """
    return _Divided(loader)


class DataSet:
    """Batches of one of dtrain's own data sets: dicts of tensors. ``context.data_set()`` opens it."""

    batch_size = None

    def __init__(self, native: Any) -> None:
        self._native = native

    def __len__(self) -> int:
        return self._native.length

    def epoch(self, number: int, skip: int) -> Iterator[dict[str, torch.Tensor]]:
        self._native.start(number, skip)
        while (batch := self._native.next()) is not None:
            yield batch


def part_of(count: int, rank: int, world_size: int) -> slice:
    """The samples of a global batch of ``count`` that ``rank`` trains on: parts differ by one sample at most."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def share_of(mine: int, count: int, world_size: int) -> float:
    """What a rank's loss is multiplied by, so that the mean over the ranks is that of a global batch's samples."""
    return mine * min(count, world_size) / count


class _Indices(data.Sampler):
    """Rank's part of each global batch of indices. The same global batches on every rank."""

    def __init__(self, loader: data.DataLoader, rank: int, world_size: int, seed: int, whole_batches: bool) -> None:
        self._loader = loader
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._whole_batches = whole_batches
        self.epoch = 0
        self.skip = 0
        #: Of the batches that were given and have not come out of the loader yet.
        self.shares: deque[float] = deque()

    def global_batches(self) -> int:
        sampler = self._loader.batch_sampler
        batches = len(sampler)
        if self._whole_batches and type(sampler) is data.BatchSampler and not sampler.drop_last:
            batches -= 0 < len(sampler.sampler) % sampler.batch_size < self._world_size
        return batches

    def __len__(self) -> int:
        return self.global_batches()

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._loader.sampler
        if isinstance(sampler, data.distributed.DistributedSampler):
            raise ValueError("the loader has a DistributedSampler, and dtrain divides batches itself: "
                             "leave the sampler out, and use shuffle=True")
        # Samplers draw from torch's generator, or from one of their own: seeded alike on every rank.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((self._seed, self.epoch)) & 0x7FFFFFFFFFFFFFFF)
            own = getattr(sampler, "generator", None)
            if own is not None:
                own.manual_seed(hash((self._seed, self.epoch)) & 0x7FFFFFFFFFFFFFFF)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
            batches = list(self._loader.batch_sampler)
        self.shares.clear()
        for batch in batches[self.skip:]:
            mine = batch[part_of(len(batch), self._rank, self._world_size)]
            if mine and not (self._whole_batches and len(batch) < self._world_size):
                self.shares.append(share_of(len(mine), len(batch), self._world_size))
                yield mine


def _part_of_batch(batch: Any, rank: int, world_size: int) -> Any:
    def part(leaf: Any) -> Any:
        return leaf[part_of(leaf.shape[0], rank, world_size)] if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf

    return tree_map(part, batch)


def samples_of(batch: Any) -> int:
    """The first dimension of the batch's first tensor."""
    for leaf in tree_flatten(batch)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return leaf.shape[0]
    raise ValueError("a batch of the loader has no tensor whose first dimension counts its samples: it is a "
                     f"{type(batch).__name__}")


class Source:
    """The batches of one rank, epoch by epoch.

    ``whole_batches``: global batches with fewer samples than ranks are left out, so that all ranks have the same number.
    """

    def __init__(self, loader: Any, rank: int, world_size: int, seed: int, whole_batches: bool = False) -> None:
        self._is_divided = isinstance(loader, (_Divided, DataSet)) or world_size == 1
        self._loader = loader.loader if isinstance(loader, _Divided) else loader
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._whole_batches = whole_batches
        self._indices: _Indices | None = None
        #: The share (share_of()) of the batch that was given last. 1 where the loader divides itself.
        self.share = 1.0
        #: Samples of all ranks in a batch; None where the loader does not say it.
        self.batch_size: int | None = getattr(self._loader, "batch_size", None)
        is_map_style = (isinstance(self._loader, data.DataLoader) and self._loader.batch_sampler is not None
                        and not isinstance(self._loader.dataset, data.IterableDataset))
        if is_map_style and not isinstance(loader, _Divided):
            self._indices = _Indices(self._loader, rank, world_size, seed, whole_batches)
            self._batches: Iterable[Any] = _with_indices(self._loader, self._indices)
        else:
            self._batches = self._loader

    def length(self) -> int | None:
        """The batches of an epoch of this rank, where that is known."""
        try:
            return len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def samples(self) -> int | None:
        return None

    def epoch(self, number: int, skip: int) -> Iterator[Any]:
        """The batches of epoch ``number`` without the first ``skip``, which are not read where that can be."""
        random.seed(hash((self._seed, number, self._rank)))
        if isinstance(self._loader, DataSet):
            yield from self._loader.epoch(number, skip)
            return
        if self._indices is not None:
            self._indices.epoch, self._indices.skip = number, skip
            for batch in self._batches:
                self.share = self._indices.shares.popleft()
                yield batch
            return
        for holder in (self._loader, getattr(self._loader, "sampler", None), getattr(self._loader, "dataset", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(number)
        for index, batch in enumerate(self._batches):
            if index < skip:
                continue
            if not self._is_divided:
                count = samples_of(batch)
                part = part_of(count, self._rank, self._world_size)
                mine = part.stop - part.start
                if mine == 0 or (self._whole_batches and count < self._world_size):
                    continue
                self.share = share_of(mine, count, self._world_size)
                batch = _part_of_batch(batch, self._rank, self._world_size)
            yield batch


def _with_indices(loader: data.DataLoader, indices: _Indices) -> data.DataLoader:
    return data.DataLoader(
        loader.dataset, batch_sampler=indices, num_workers=loader.num_workers, collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory, timeout=loader.timeout, worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context, generator=loader.generator,
        prefetch_factor=loader.prefetch_factor, persistent_workers=loader.persistent_workers)
