"""How the batches of a script's or a trial's loader become those of each rank.

Where a DataLoader makes its batches of a data set by index, the indices are divided, and a rank reads its own samples alone. Every
other loader is iterated as it is, and its batches are divided (batch_parts.py). What is drawn for that at random is the same on
every rank; what a rank draws for its own samples is not.
"""
from __future__ import annotations

import copy
import itertools
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import data

from ._native import ConfigError, DataError, Error
from .batch_parts import BatchParts, Part, Samples, leaves_of
from .seeds import SeedingIndices, drawn_alike, seed_all, seed_python

if TYPE_CHECKING:
    from .trial import Context

_END = object()
_SHOWN = 8  # indices, or parts of a batch, that ranks compare one by one


class Described:
    """A loader, and what its batches are: what divided() and divisible() return."""

    def __init__(self, loader: Iterable[Any], is_own: bool, samples: Samples | None = None, whole: tuple[str, ...] = (),
                 part: Part | None = None) -> None:
        self.loader = loader
        self.is_own = is_own  # this rank's
        self.said = {"samples": samples, "whole": whole, "part": part}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of a copy, which has nothing yet
            raise AttributeError(name)
        return getattr(self.loader, name)


def divided(loader: Iterable[Any], samples: Samples | None = None) -> Any:
    """Returns the loader for ``wrap()`` or ``training_loader()`` with the mark that its batches are this rank's own.

    For a data set that divides itself among the ranks. Ranks may have different numbers of batches. The mean over each rank's batch
    counts the same, however many samples it has. ``samples``: called with a batch, says how many those are, for the metrics.
    """
    return Described(loader, True, samples)


def divisible(loader: Iterable[Any], *, samples: Samples | None = None, whole: Iterable[str] = (), part: Part | None = None) -> Any:
    """Returns the loader for ``wrap()`` or ``training_loader()`` with what its batches are, where they do not say it themselves.

    ``samples``: called with a batch, says how many samples it has. ``whole``: parts that all ranks get as they are ("class_weights",
    "target/names"; "1" is the second element of a tuple). ``part``: called with a batch and a slice of its samples, returns the batch
    of these; it needs ``samples``, unless the first dimension of all else says how many they are.
    """
    return Described(loader, False, samples, tuple([whole] if isinstance(whole, str) else whole), part)


def part_of(count: int, rank: int, world_size: int) -> slice:
    """The samples of a global batch of ``count`` that ``rank`` trains on: parts differ by one sample at most."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


class _Shuffled:
    """The order of torch's RandomSampler, in 4 bytes for each sample instead of a list."""

    def __init__(self, sampler: data.RandomSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[int]:
        count, left, generator = len(self._sampler.data_source), self._sampler.num_samples, self._sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        dtype = torch.int32 if count < 1 << 31 else torch.int64
        while left > 0:
            for piece in torch.randperm(count, generator=generator, dtype=dtype)[:left].split(1 << 16):
                yield from piece.tolist()
            left -= count


class _Indices(data.Sampler):
    """A rank's part of each batch of indices of a DataLoader. The batches of indices are the same on every rank, and are drawn one
    by one: a sampler may go on for ever."""

    def __init__(self, source: Source, loader: data.DataLoader, is_own: bool) -> None:
        self.source = source
        self._loader = loader
        self._is_own = is_own
        self._sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self.samplers = _samplers_of(loader)
        # Samplers of torch draw when they begin.
        self._draws_later = any(not type(sampler).__module__.startswith("torch.utils.data") for sampler in self.samplers)
        self._seeds_workers = loader.num_workers > 0 and loader.worker_init_fn is None
        self.skip = 0
        #: Of the epoch under way: its first batch of all ranks; and of each batch that has not come out of the loader yet, the
        #: samples of this rank, and of all. None: the batch of indices has no length.
        self.first: Any = None
        self.given: deque[tuple[int | None, int | None]] = deque()
        #: Of the epoch under way, those of drawn().
        self.batches: Iterator[tuple[Any, bool]] = iter(())

    def __len__(self) -> int:
        return _batches_of(self._sampler, self.source.fewest)

    def __iter__(self) -> Iterator[Any]:
        source = self.source
        self.first = None
        self.given.clear()
        draws_anew = False
        skip, place = self.skip, self.skip  # batches of this rank: to be left out, and the next one's number
        for number, (batch, drew) in enumerate(self.batches):
            draws_anew |= drew
            self.first = batch if self.first is None else self.first
            count = len(batch) if hasattr(batch, "__len__") else None
            if source.leaves_out(count):
                continue
            if skip > 0:
                skip -= 1
                continue
            if not source.takes(number):
                continue
            mine = batch if self._is_own else self._part(batch, count)
            if count is not None and len(mine) == 0:
                continue
            self.given.append((None, None) if count is None else (len(mine), 0 if self._is_own else count))
            of_rank = (*source.key(True), source.number_of(place))
            if draws_anew:
                seed_python(*of_rank)
                draws_anew = False
            place += 1
            if self._seeds_workers and not isinstance(mine, list) and source.is_logical:
                raise ConfigError(f"the batch sampler {type(self._sampler).__name__} gives indices as a {type(mine).__name__}, with which "
                                  "worker processes (num_workers) are not supported with reproducibility.virtual_ranks: give a list")
            yield SeedingIndices(mine, of_rank) if self._seeds_workers and isinstance(mine, list) else mine

    def drawn(self) -> Iterator[tuple[Any, bool]]:
        """The batches of indices of all ranks in this epoch; with each, whether it was drawn with streams that are alike on all ranks."""
        key = self.source.key(self._is_own)
        batches: Iterator[Any] | None = None
        for number in itertools.count():
            draws = batches is None or self._draws_later
            if draws:
                with drawn_alike(*key, number):
                    batches = iter(self._order()) if batches is None else batches
                    batch = next(batches, _END)
            else:
                assert batches is not None
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch, draws

    def _order(self) -> Iterable[Any]:
        sampler = self._sampler
        inner = getattr(sampler, "sampler", None)
        if type(sampler) is data.BatchSampler and type(inner) is data.RandomSampler and not inner.replacement:
            return data.BatchSampler(_Shuffled(inner), sampler.batch_size, sampler.drop_last)
        return sampler

    def _part(self, batch: Any, count: int | None) -> Any:
        source = self.source
        if source.world_size == 1 or source.deals:
            return batch
        try:
            return batch[part_of(len(batch), source.rank, source.world_size)]
        except TypeError:
            raise ConfigError(f"the batch sampler {type(self._sampler).__name__} gives indices as a {type(batch).__name__}, which cannot "
                              "be divided among the ranks: give a list of indices") from None


def _batches_of(sampler: Any, fewest: int) -> int:
    """The batches of an epoch, without a last one of fewer samples."""
    batches = len(sampler)
    if type(sampler) is data.BatchSampler and not sampler.drop_last:
        batches -= 0 < len(sampler.sampler) % sampler.batch_size < fewest  # type: ignore[arg-type]
    return batches


def _samplers_of(loader: Any) -> list[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    return list({id(sampler): sampler for sampler in samplers if sampler is not None}.values())


def _is_by_index(loader: Any) -> bool:
    """Whether it is a DataLoader whose own iteration makes batches of the data set by lists of indices."""
    if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
        return False
    is_plain = all(getattr(type(loader), name) is getattr(data.DataLoader, name) for name in ("__iter__", "_get_iterator"))
    return is_plain and (loader.batch_sampler is not None or isinstance(loader.sampler, data.BatchSampler))


def _with_indices(loader: data.DataLoader, indices: _Indices, shares_draws: bool) -> data.DataLoader:
    """The loader with another sampler. DataLoader refuses an attribute of these names. ``shares_draws``: other copies have the same one."""
    twin = copy.copy(loader)
    own = vars(twin)
    own["sampler" if loader.batch_sampler is None else "batch_sampler"] = indices
    own["_iterator"] = None
    own["in_order"] = True  # the ranks' parts belong together
    if shares_draws:
        own["generator"] = None  # from which each copy would draw a number that no worker uses
    return twin


def _base(dataset: Any) -> Any:
    while isinstance(dataset, data.Subset):
        dataset = dataset.dataset
    return dataset


def _base_index(dataset: Any, index: Any) -> Any:
    """Of a data set that others are a Subset of."""
    while isinstance(dataset, data.Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    return int(index) if hasattr(index, "__index__") else index


class _Fact(NamedTuple):
    """What must be the same on all ranks."""

    name: str
    value: float
    exact: bool = True


class Draws:
    """What the logical ranks of a process take from one loader (reproducibility.virtual_ranks): its samplers are iterated once in an
    epoch, whatever their number. ConfigError for a loader whose batches cannot be taken so."""

    _made = itertools.count()

    def __init__(self, loader: Any, ranks: int) -> None:
        self._number = next(self._made)
        self._gathered = 0
        self._ranks = ranks
        self._waiting: dict[int, list[Iterator[tuple[Any, bool]]]] = {}  # by pass over the loader
        if hasattr(loader, "batches_of_rank"):
            return
        why = None
        if isinstance(loader, Described):
            why = "dtrain.divided() and dtrain.divisible() are"
        elif not _is_by_index(loader):
            why = f"a loader that does not make its batches of a data set by lists of indices ({type(loader).__name__}) is"
        elif loader.num_workers > 0 and loader.worker_init_fn is not None:
            why = "a DataLoader with a worker_init_fn, whose random numbers depend on the number of worker processes, is"
        if why is not None:
            raise ConfigError(f"{why} not supported yet with reproducibility.virtual_ranks: leave one of both out")

    def take(self, number: int, indices: _Indices) -> Iterator[tuple[Any, bool]]:
        """The batches of indices of a pass, for one of the ranks."""
        if number not in self._waiting:
            self._waiting[number] = list(itertools.tee(self._of_pass(indices), self._ranks))
        mine = self._waiting[number].pop()
        if not self._waiting[number]:
            del self._waiting[number]
        return mine

    @staticmethod
    def _of_pass(indices: _Indices) -> Iterator[tuple[Any, bool]]:
        indices.source.begin_samplers()
        yield from indices.drawn()

    def gather(self, context: Context, mine: torch.Tensor) -> list[torch.Tensor]:
        """The values of each process. Collective."""
        self._gathered += 1
        rows = context._native.gather_text(f"loader/{self._number}/{self._gathered}", json.dumps(mine.tolist()))
        return [torch.tensor(json.loads(row), dtype=mine.dtype) for row in rows]


def _begun(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterates a loader. That draws a number from torch's stream, which stays as it was: a run that goes on begins in mid-epoch."""
    before = torch.get_rng_state()
    iterator = iter(batches)
    torch.set_rng_state(before)
    return iterator


class Source:
    """The batches of one rank, epoch by epoch.

    ``whole_batches``: global batches with fewer samples than ranks are left out, so that all ranks have the same number. ``context``:
    with it the ranks compare what their loaders give: their lengths now (collective), and samples once an epoch, in compare();
    ``compares``: the ranks take the same batches, so epoch() calls it. ``deals``: each batch goes to one rank as a whole, in turn, so
    that batches are the same on any number of ranks. A data.Loader has to be that of a run already. ``draws``: with virtual ranks, shared
    by the sources of a process; then ``rank`` is a logical one, and the first one of the process has the context.
    """

    def __init__(self, loader: Any, rank: int, world_size: int, seed: int, whole_batches: bool = False,
                 context: Context | None = None, compares: bool = False, deals: bool = False, draws: Draws | None = None) -> None:
        described = loader if isinstance(loader, Described) else Described(loader, False)
        loader = described.loader
        #: Whether the script has marked the batches as this rank's own.
        self.is_divided = described.is_own
        self._loader = loader
        self._is_of_engine = hasattr(loader, "batches_of_rank")
        self._is_own = described.is_own or self._is_of_engine
        self.rank = rank
        self.world_size = world_size
        self.deals = deals and not self._is_own
        self._seed = seed
        self._number = 0  # of the epoch
        self._draws = draws
        #: Whether the rank is a logical one: what it draws for a batch is the same with any number of worker processes.
        self.is_logical = draws is not None
        self._passes = 0  # over the loader, that have begun
        #: Samples of a global batch that are too few.
        self.fewest = world_size if whole_batches and not self._is_own else 0
        self._warn = context._native.warn if context is not None and rank == 0 else None
        self._context = context if world_size > 1 and not self._is_own else None  # that of ranks that compare
        self._compares = compares
        self._facts: list[_Fact] = []  # of the epoch under way
        self._is_compared = False
        self._told: set[str] = set()
        #: Samples of all ranks in a batch; None where the loader does not say it.
        self.batch_size: int | None = getattr(loader, "batch_size", None)
        #: Of the batch that was given last: samples of this rank; samples of all ranks, 0 where its mean counts as that of any other
        #: rank; and what its mean counts, so that the mean over the ranks with a batch is that of all samples.
        self.count, self.global_samples, self.share = 1, 0, 1.0
        is_collated = getattr(loader, "collate_fn", None) is data.default_collate
        self._parts = BatchParts(self.batch_size, is_collated, **described.said)
        self._samplers = _samplers_of(loader) if isinstance(loader, data.DataLoader) else []
        if not described.is_own and any(isinstance(sampler, data.distributed.DistributedSampler) for sampler in self._samplers):
            raise ValueError("the loader has a DistributedSampler, and dtrain divides batches itself: "
                             "leave the sampler out, and use shuffle=True")
        self._indices = _Indices(self, loader, described.is_own) if _is_by_index(loader) else None
        self._batches: Iterable[Any] = loader if self._indices is None else _with_indices(loader, self._indices, draws is not None)
        if self._context is not None:
            self._compare_all(self._lengths(), "the loader")

    def length(self) -> int | None:
        """The batches of an epoch of this rank, where that is known."""
        loader = self._batches
        try:
            if isinstance(loader, data.DataLoader) and type(loader).__len__ is data.DataLoader.__len__ and self._samplers \
                    and not isinstance(loader.dataset, data.IterableDataset):
                return _batches_of(loader.batch_sampler or loader.sampler, self.fewest)
            return len(loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def __bool__(self) -> bool:
        return True  # also without batches

    def __len__(self) -> int:
        length = self.length()
        if length is None:
            raise TypeError("the loader has no length")
        return length

    def samples(self) -> int | None:
        return None

    def key(self, of_rank: bool) -> tuple[int, ...]:
        """Of random streams in this epoch."""
        return (self._seed, self._number, 0 if self.deals else self.rank) if of_rank else (self._seed, self._number)

    def takes(self, number: int) -> bool:
        """Whether this rank has a part of this batch of all ranks."""
        return not self.deals or number % self.world_size == self.rank

    def number_of(self, place: int) -> int:
        """Of this rank's batch of that number, the number in random streams."""
        return place * self.world_size + self.rank if self.deals else place

    def leaves_out(self, count: int | None) -> bool:
        if count is None or count >= self.fewest:
            return False
        self._tell(f"a batch of {count} samples is left out, because it has fewer than there are ranks ({self.world_size}): "
                   "drop_last=True, or a data set or batch_size of another size, leaves it out on any number of ranks")
        return True

    def epoch(self, number: int, skip: int) -> Iterator[Any]:
        """The batches of epoch ``number`` without the first ``skip``, which are not read where that can be."""
        self._number = number
        self._facts, self._is_compared = [], False
        if self._is_of_engine:
            return self._of_engine(number, skip)
        if self._indices is None:
            return self._whole(skip)
        self._passes += 1
        self._indices.batches = self._indices.drawn() if self._draws is None else self._draws.take(self._passes, self._indices)
        return self._by_index(self._indices, skip)

    def _of_engine(self, number: int, skip: int) -> Iterator[Any]:
        for batch, self.count, count in self._loader.batches_of_rank(self.rank, number, skip):
            self._weigh(count)
            yield batch

    def _weigh(self, count: int) -> None:
        self.global_samples = count
        self.share = self.count * min(count, self.world_size) / count if count else 1.0

    def begin_samplers(self) -> None:
        """An epoch of the loader begins."""
        key = self.key(self._is_own)
        for holder in {id(part): part for part in (self._loader, *self._samplers, getattr(self._loader, "dataset", None))}.values():
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(self._number)
        for sampler in self._samplers:
            own = getattr(sampler, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(hash(key) & 0x7FFFFFFFFFFFFFFF)

    def _by_index(self, indices: _Indices, skip: int) -> Iterator[Any]:
        indices.skip = skip
        if self._draws is None:
            self.begin_samplers()
        batches = _begun(self._batches)
        has_workers = self._loader.num_workers > 0
        if has_workers and skip > 0 and self._loader.worker_init_fn is not None:
            self._tell("the run goes on within an epoch, and the loader's worker_init_fn seeds its workers when they start: what they "
                       "draw in this epoch differs from a run without a break; without a worker_init_fn they are seeded for each batch")
        for number in itertools.count(skip):
            key = (*self.key(True), self.number_of(number))
            if self.is_logical:
                with drawn_alike(*key):  # as worker processes draw, so that their number does not matter
                    batch = next(batches, _END)
            else:
                if not has_workers:
                    seed_python(*key)
                batch = next(batches, _END)
            if has_workers:  # they have read it; samplers may draw for later batches
                seed_python(*key)
            if self._context is not None and not self._facts:
                self._note_indices(indices.first)
            self._compare_if_due()
            if batch is _END:
                return
            count, of_all = indices.given.popleft()
            self.count = self._count_softly(batch) if count is None else count
            self._weigh(of_all or 0)
            yield batch

    def _whole(self, skip: int) -> Iterator[Any]:
        self.begin_samplers()
        batches: Iterator[Any] | None = None
        is_shared = not self._is_own and self.world_size > 1 and not self.deals
        for number in itertools.count():
            if self._is_own:
                seed_all(*self.key(True), number)
                batches = iter(self._batches) if batches is None else batches
                batch = next(batches, _END)
            else:
                with drawn_alike(*self.key(False), number):
                    batches = iter(self._batches) if batches is None else batches
                    batch = next(batches, _END)
                seed_python(*self.key(True), number)
            if batch is _END:
                self._note_batch(_END, 0)
                self._compare_if_due()
                return
            count = self._parts.count(batch) if is_shared else 0
            self._note_batch(batch, count)
            self._compare_if_due()
            if is_shared and self.leaves_out(count):
                continue
            if skip > 0:
                skip -= 1
                continue
            if not self.takes(number):
                continue
            rows = part_of(count, self.rank, self.world_size)
            self.count = rows.stop - rows.start if is_shared else self._count_softly(batch)
            if self.count == 0 and is_shared:
                continue
            self._weigh(count)
            yield self._parts.part(batch, rows, count) if is_shared else batch

    def _count_softly(self, batch: Any) -> int:
        """Of a batch that is not divided: training does not depend on it."""
        try:
            return self._parts.count(batch)
        except DataError as error:
            self._tell(f"the metrics count {self.batch_size or 1} samples for each batch of the training, because {error}")
            return self.batch_size or 1

    def _tell(self, text: str) -> None:
        if self._warn is not None and text not in self._told:
            self._told.add(text)
            self._warn(text)

    # What the ranks compare.

    def compare(self) -> None:
        """Compares what the ranks' loaders give in this epoch, once: to be called on every rank after the first batch. Collective."""
        if self._context is None or not self._facts or self._is_compared:
            return
        self._is_compared = True
        self._compare_all(self._facts, f"epoch {self._number} of the loader")

    def _compare_if_due(self) -> None:
        if self._compares:
            self.compare()

    def _lengths(self) -> list[_Fact]:
        try:
            samples = len(self._loader.dataset)
        except (AttributeError, TypeError, NotImplementedError):
            samples = -1
        length = self.length()
        return [_Fact("the number of samples", samples), _Fact("the number of batches", -1 if length is None else length)]

    def _note_indices(self, first: Any) -> None:
        indices = [_base_index(self._loader.dataset, index) for index in first] if isinstance(first, (list, tuple)) else []
        numbers = [index if isinstance(index, int) else -1 for index in indices[:_SHOWN]]
        self._facts = [*self._lengths(), _Fact("a digest of the first batch's indices", zlib.crc32(repr(indices).encode())),
                       *(_Fact(f"sample {place} of the first batch", number) for place, number in enumerate(numbers))]
        tensors = getattr(_base(self._loader.dataset), "tensors", None)  # of a TensorDataset
        if isinstance(tensors, tuple) and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self._facts.append(_Fact("a digest of the data set's tensors", sum(map(_digest_of, tensors)), False))

    def _note_batch(self, batch: Any, count: int) -> None:
        if self._context is None or self._facts:
            return
        leaves = [] if batch is _END else list(leaves_of(batch))
        form = repr([(path, type(value).__name__, getattr(value, "shape", None)) for path, value in leaves])
        values = [_Fact(f"a digest of '{path}' in the first batch", _digest_of(value), False) for path, value in leaves]
        self._facts = [*self._lengths(), _Fact("the samples of the first batch", count),
                       _Fact("a digest of the first batch's form", zlib.crc32(form.encode())), *values[:_SHOWN]]

    def _compare_all(self, facts: list[_Fact], what: str) -> None:
        assert self._context is not None
        mine = torch.full((_FACTS,), -2.0, dtype=torch.float64)
        mine[:len(facts)] = torch.tensor([fact.value for fact in facts], dtype=torch.float64)
        exact = torch.tensor([fact.exact for fact in facts] + [True] * (_FACTS - len(facts)))
        try:
            of_all = self._context.all_gather(mine) if self._draws is None else self._draws.gather(self._context, mine)
        except Error as error:
            if "different operations" not in str(error):
                raise
            raise Error(f"this rank has begun {what}, and another one has not: end the loop over batches on all ranks alike, by a value "
                        f"that is the same on each, such as one of session.mean() or session.broadcast(): {error}") from None
        for rank, theirs in enumerate(of_all[1:], 1):
            # Arithmetic on another machine may give a sample other last bits.
            unlike = (of_all[0] != theirs) & (exact | ~torch.isclose(of_all[0], theirs, rtol=1e-3, atol=1e-9))
            if not unlike.any():
                continue
            place = int(unlike.nonzero()[0])
            name = facts[place].name if place < len(facts) else "the number of parts of a batch"
            raise DataError(f"{what} is not the same on all ranks: {name}: {of_all[0][place]:.10g} on rank 0, {theirs[place]:.10g} on "
                            f"rank {rank}; make the same data set, split and order on every rank (dtrain.init() seeds torch, "
                            "numpy.random and random alike), or mark a loader that gives each rank batches of its own with "
                            "dtrain.divided(loader)")


_FACTS = 4 + _SHOWN


def _digest_of(value: Any) -> float:
    """A number that follows from the first elements of an array, or from plain values."""
    if not hasattr(value, "shape"):
        return zlib.crc32(repr(value).encode()) if isinstance(value, (str, int, float, list, tuple)) else 0
    if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_nested or value.is_complex()):
        return 0
    first = torch.as_tensor(value).detach().reshape(-1)[:4096].to("cpu", torch.float64)
    weights = torch.arange(first.numel(), dtype=torch.float64) % 97 + 1
    return float((first.nan_to_num(0, 0, 0) * weights).sum() / weights.sum()) if first.numel() else 0
