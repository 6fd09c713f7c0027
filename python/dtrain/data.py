"""dtrain's own loader, and how batches are divided among ranks.

:class:`Loader` reads, decodes and transforms samples in threads of the engine. It works in any program with PyTorch, in a
script with ``session.wrap()``, and in a Trial::

    loader = dtrain.data.Loader("image_folder", folder="photos/train", batch_size=64, transforms=[
        {"kind": "random_resized_crop", "size": 224}, {"kind": "horizontal_flip"}, {"kind": "normalize"}])
    for batch in loader:            # an epoch
        train(batch["image"], batch["label"])

A loader's batches are those of all ranks together, as in a script with one process: of a batch of 64 each of two ranks
trains on 32. So a run does not depend on the number of ranks, but for rounding.
"""
from __future__ import annotations

import os
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import data
from torch.utils._pytree import tree_flatten, tree_map

from . import _native


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


_WARNINGS = 10  # of damaged samples, for each loader


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has them, without those that are None."""

    def plain(value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return {name: plain(inside) for name, inside in value.items()}
        return [plain(inside) for inside in value] if isinstance(value, (list, tuple)) else value

    return {name: plain(value) for name, value in keys.items() if value is not None}


class _Batches:
    """The batches of a loader of the engine. Names damaged samples that others have replaced."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.skipped = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while (loaded := self.native.next()) is not None:
            batch, damages = loaded
            for damage in damages:
                self.skipped += 1
                if self.skipped <= _WARNINGS:
                    warnings.warn(f"a damaged sample was replaced: {damage}", stacklevel=3)
            yield batch


class Loader:
    """Batches of files in one of dtrain's formats: dicts of tensors on the CPU. Each iteration is an epoch.

    ``format`` and ``keys`` are the keys of an experiment's ``data`` section (docs/experiment.md), those of the source and
    ``transforms`` beside the others: ``Loader("npy", features="x.npy", target="y.npy", batch_size=64)``, ``idx``,
    ``safetensors``, ``raw``, ``tokens``, ``csv``, ``image_folder``, ``shards``; ``workers``, ``prefetch``, ``shuffle``,
    ``drop_last``, ``shuffle_window``, ``on_error``, ``max_skipped``, ``pin``. Relative paths start from the current folder. For
    validation: ``shuffle=False, drop_last=False``.

    ``batch_size``: samples of all ranks together. Under ``session.wrap()`` and in a Trial the ranks and the seed are those of
    the run. By itself a loader gives all samples, or, with ``rank`` and ``world_size``, its part of each batch; ``seed`` is that
    of the order and of random transforms. The order is a function of (seed, epoch), and the same as in C++.
    ``timeout``: seconds until a batch that does not come is an error; 0: never. It needs ``workers``.

    Tensors are the memory that the workers wrote into, not copies; a batch may be kept and changed. One thread uses a loader.
    ConfigError: a key that is wrong. DataError: data that cannot be read, with file and offset.
    """

    def __init__(self, format: str, *, batch_size: int, seed: int | None = None, rank: int | None = None,
                 world_size: int | None = None, timeout: float = 600, **keys: Any) -> None:
        self.batch_size = batch_size
        self._keys = _given({"format": format, **keys})
        self._folder = os.getcwd()
        self._place = {"seed": seed, "rank": rank, "world_size": world_size}
        self._timeout = timeout
        self._batches: _Batches | None = None  # opened when it is needed: a run opens it in another way
        self._epoch = 0
        self._goes_on = False

    def _own(self) -> _Batches:
        if self._batches is None:
            place = self._place
            native = _native.open_loader(self._keys, self._folder, self.batch_size, place["rank"] or 0,
                                         place["world_size"] or 1, place["seed"] or 0, self._timeout)
            self._batches = _Batches(native)
        return self._batches

    def _of_run(self, context: Any) -> DataSet:
        """The same batches for a rank of a run. ``context``: the native one."""
        for name, value in self._place.items():
            if value is not None:
                raise _native.ConfigError(f"Loader({name}={value}) has no effect in a run, which has a {name} of its own: "
                                          "leave it out" + ("; reproducibility.experiment_seed is the run's"
                                                            if name == "seed" else ""))
        return DataSet(_native.open_data_set(context, self._keys, self._folder, self.batch_size), self.batch_size)

    def __len__(self) -> int:
        """The batches of an epoch."""
        length = self._own().native.length
        assert length is not None
        return length

    @property
    def samples(self) -> int:
        """Of an epoch, over all ranks."""
        return self._own().native.samples

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next iteration begins or continues."""
        return self._epoch

    @property
    def skipped(self) -> int:
        """Damaged samples that this object has replaced (``on_error="skip"``)."""
        return self._batches.skipped if self._batches else 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        batches = self._own()
        if self._goes_on:
            self._goes_on = False
        else:
            batches.native.start(self._epoch, 0)
        self._epoch += 1
        yield from batches

    def state_dict(self) -> dict[str, str]:
        """Where the loader stands after the last batch it gave: less than 1 KB, and no sample of it is kept."""
        return {"position": self._own().native.position()}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """The next iteration goes on there, without reading what came before; also on another number of ranks, and with
        another batch size. After an epoch's last batch it begins the next one. DataError: the data, the seed or
        ``shuffle_window`` is another one, so that samples would be lost or come twice."""
        native = self._own().native
        if differs := native.go_on_from(state["position"]):
            raise _native.DataError(f"{differs}: go on with the same data, seed and shuffle_window, or begin an epoch anew")
        self._epoch = _native.epoch_of(state["position"])
        self._goes_on = native.left > 0
        if not self._goes_on:
            self._epoch += 1


class DataSet:
    """Batches of one of dtrain's own data sets in a run: dicts of tensors. ``context.data_set()`` opens it."""

    def __init__(self, native: Any, batch_size: int | None = None) -> None:
        self._batches = _Batches(native)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self._batches.native.length

    def epoch(self, number: int, skip: int) -> Iterator[dict[str, torch.Tensor]]:
        self._batches.native.start(number, skip)
        yield from self._batches


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
        batch_sampler = self._loader.batch_sampler
        samplers = {id(one): one for one in (self._loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
                    if one is not None}.values()
        if any(isinstance(sampler, data.distributed.DistributedSampler) for sampler in samplers):
            raise ValueError("the loader has a DistributedSampler, and dtrain divides batches itself: "
                             "leave the sampler out, and use shuffle=True")
        # Samplers draw from torch's generator, or from one of their own: seeded alike on every rank.
        with torch.random.fork_rng(devices=[]):
            seed = hash((self._seed, self.epoch)) & 0x7FFFFFFFFFFFFFFF
            torch.manual_seed(seed)
            for sampler in samplers:
                own = getattr(sampler, "generator", None)
                if isinstance(own, torch.Generator):
                    own.manual_seed(seed)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(self.epoch)
            batches = list(batch_sampler)
        if self._whole_batches:
            batches = [batch for batch in batches if len(batch) >= self._world_size]
        self.shares.clear()
        for batch in batches[self.skip:]:
            mine = batch[part_of(len(batch), self._rank, self._world_size)]
            if mine:
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
    A :class:`Loader` has to be that of a run already (``_of_run()``).
    """

    def __init__(self, loader: Any, rank: int, world_size: int, seed: int, whole_batches: bool = False) -> None:
        self._is_divided = isinstance(loader, (_Divided, DataSet)) or world_size == 1
        #: Whether the batches are those of this rank alone.
        self.is_divided = isinstance(loader, _Divided)
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
        for batch in self._batches:
            count = 0 if self._is_divided else samples_of(batch)
            if self._whole_batches and not self._is_divided and count < self._world_size:
                continue
            if skip > 0:
                skip -= 1
                continue
            if not self._is_divided:
                part = part_of(count, self._rank, self._world_size)
                mine = part.stop - part.start
                if mine == 0:
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
