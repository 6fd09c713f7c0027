"""dtrain's own loader: batches that the engine reads.

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
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import _native


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
        for batch, _, _ in self.with_counts():
            yield batch

    def with_counts(self) -> Iterator[tuple[dict[str, torch.Tensor], int, int]]:
        """With the number of this rank's samples, and that of the global batch."""
        while (loaded := self.native.next()) is not None:
            batch, damages, mine, of_all = loaded
            for damage in damages:
                self.skipped += 1
                if self.skipped <= _WARNINGS:
                    warnings.warn(f"a damaged sample was replaced: {damage}", stacklevel=3)
            yield batch, mine, of_all


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
        return DataSet(context, self._keys, self._folder, self.batch_size)

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

    def __init__(self, context: Any, keys: Mapping[str, Any], folder: str, batch_size: int) -> None:
        """``context``: the native one."""
        ranks = range(*(context.logical_ranks or (context.rank, context.rank + 1)))
        loaders = _native.open_data_set(context, keys, folder, batch_size)
        self._of_ranks = {rank: _Batches(loader) for rank, loader in zip(ranks, loaders)}
        self.batch_size = batch_size

    def __len__(self) -> int:
        return next(iter(self._of_ranks.values())).native.length

    def batches_of_rank(self, rank: int, epoch: int, skip: int) -> Iterator[tuple[dict[str, torch.Tensor], int, int]]:
        """The batches of an epoch after the first ``skip``, each with the rank's samples in it and those of all ranks. With virtual
        ranks it is a logical rank of this process."""
        batches = self._of_ranks[rank]
        batches.native.start(epoch, skip)
        yield from batches.with_counts()
