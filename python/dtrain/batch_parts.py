"""What a batch holds, how many samples that are, and a rank's part of them.

A batch is any nesting of dicts, data classes, named tuples, tuples and lists. Its first dimension counts the samples of an array; a
list counts its elements, or holds fields. All of a batch must agree. What does not, and objects of other classes, dtrain does not
divide unless the script says how: :func:`dtrain.divisible`.
"""
from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ._native import DataError

Samples = Callable[[Any], int]
Part = Callable[[Any, slice], Any]


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray)


def _is_plain(value: Any) -> bool:
    """Belongs to the batch as a whole: a number, a text, an array without dimensions."""
    if _is_array(value):
        return value.ndim == 0
    numpy = sys.modules.get("numpy")
    return value is None or isinstance(value, (str, bytes, int, float, complex, torch.Size, torch.dtype, torch.device)) \
        or numpy is not None and isinstance(value, numpy.generic)


def _fields(value: Any) -> dict[Any, Any] | None:
    """The named parts of a container; of lists and tuples by their places. None: it is no container, or one that is not known."""
    if isinstance(value, UserDict):
        encodings = getattr(value, "_encodings", None)  # of transformers' BatchEncoding, one for each sample
        return {**value.data, **({_ENCODINGS: encodings} if encodings else {})}
    if isinstance(value, dict):
        return value
    if isinstance(value, PackedSequence):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if type(value) in (list, tuple) or isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(enumerate(value))
    return None


_ENCODINGS = "the encodings"


def _with_fields(value: Any, fields: dict[Any, Any]) -> Any:
    """The container with other parts."""
    if type(value) in (list, tuple):
        return type(value)(fields.values())
    if isinstance(value, tuple):
        return type(value)(*fields.values())
    twin = copy.copy(value)
    if isinstance(value, UserDict):
        if _ENCODINGS in fields:
            twin.__dict__["_encodings"] = fields[_ENCODINGS]
        twin.data = {name: part for name, part in fields.items() if name != _ENCODINGS}
    elif isinstance(value, dict):
        for name, part in fields.items():
            twin[name] = part
    else:
        for name, part in fields.items():
            object.__setattr__(twin, name, part)
    return twin


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """In a fixed order."""
    found: list[torch.Tensor] = []

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        else:
            for part in (_fields(value) or {}).values():
                look(part)

    look(batch)
    return found


def with_tensors(batch: Any, tensors: list[torch.Tensor]) -> Any:
    """The batch with these in place of those of tensors_of()."""
    others = iter(tensors)

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(others)
        fields = _fields(value)
        return value if not fields else _with_fields(value, {name: replaced(part) for name, part in fields.items()})

    return replaced(batch)


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is no container of others, with its place in the batch: ("target/boxes", tensor). A list of plain values is one."""
    fields = _fields(value)
    if fields is None or type(value) in (list, tuple) and all(_is_plain(part) for part in value):
        yield path, value
        return
    for name, part in fields.items():
        yield from leaves_of(part, f"{path}/{name}" if path else str(name))


def _kind_of(value: Any) -> Any:
    if _is_plain(value):
        return "plain"
    if _is_array(value):
        return type(value), value.dtype, value.ndim
    fields = _fields(value)
    return type(value) if fields is None or type(value) is list else (type(value), tuple(fields))


def _described(value: Any) -> str:
    if _is_array(value):
        return f"{type(value).__name__} of {' x '.join(map(str, value.shape)) or 'no dimension'}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__


class BatchParts:
    """How the batches of a loader are divided. Whether a list holds samples or fields is decided by the first batch.

    ``expected``: the samples of a batch as the loader has them, if it says so; a last batch has fewer. ``lists_are_fields``: those
    that are a whole batch, because torch's default_collate makes them.
    """

    def __init__(self, expected: int | None = None, lists_are_fields: bool = False, samples: Samples | None = None,
                 whole: tuple[str, ...] = (), part: Part | None = None) -> None:
        self._expected = expected
        self._lists_are_fields = lists_are_fields
        self._samples = samples
        self._whole = whole
        self._part = part
        self._holds_samples: dict[str, bool] = {}  # a list, by its place
        self._is_known = False  # a batch was seen

    def count(self, batch: Any) -> int:
        """The samples of a batch. DataError: it does not say how many they are."""
        if self._samples is not None:
            return int(self._samples(batch))
        names = {path for path, _ in leaves_of(batch)}
        unknown = [name for name in self._whole if not any(path == name or path.startswith(name + "/") for path in names)]
        if unknown and not self._is_known:
            raise DataError(f"dtrain.divisible(whole={list(self._whole)}): a batch has no '{unknown[0]}'; it has "
                            f"{', '.join(sorted(names)) or 'no named part'}")
        found = self._possible("", batch)
        if found is None or not found:
            raise self._refusal(batch)
        if self._expected in found:
            found = {self._expected}
        if len(found) > 1:
            raise DataError(f"a batch of the loader may have {' or '.join(map(str, sorted(found)))} samples, because its lists may be "
                            f"samples or fields: {self._listed(batch)}; {_REMEDY}")
        count = found.pop()
        self._check_expected(batch, count)
        self._decide("", batch, count)
        self._is_known = True
        return count

    def part(self, batch: Any, rows: slice, count: int) -> Any:
        """These samples of a batch, of which count() was asked before."""
        if self._part is not None:
            return self._part(batch, rows)
        if self._samples is not None:
            found = self._possible("", batch)
            if not found or count not in found:
                raise self._refusal(batch, f"samples says that it has {count}, and ")
            self._decide("", batch, count)
        return self._cut("", batch, rows)

    def _possible(self, path: str, value: Any) -> set[int] | None:
        """How many samples it may be; None: any number, because it belongs to the batch as a whole."""
        if _is_plain(value) or self._stays_whole(path):
            return None
        if _is_array(value):
            is_strided = not isinstance(value, torch.Tensor) or value.layout == torch.strided and not value.is_nested
            return {value.shape[0]} if is_strided else set()
        fields = _fields(value)
        if fields is None:
            return set()
        if not fields:
            return None
        inner: set[int] | None = None
        for name, part in fields.items():
            found = self._possible(_joined(path, name), part)
            if found is not None:
                inner = found if inner is None else inner & found
        decided = self._holds_samples.get(path)
        if decided is False or not self._may_hold_samples(path, value):
            return inner
        return {len(value)} if decided else {len(value)} | (inner or set())

    def _may_hold_samples(self, path: str, value: Any) -> bool:
        """A list, or a tuple within a batch, whose elements are of one kind."""
        if type(value) not in (list, tuple) or not path and (type(value) is tuple or self._lists_are_fields):
            return False
        return len({_kind_of(part) for part in value}) == 1

    def _decide(self, path: str, value: Any, count: int) -> None:
        """What the lists of a batch of so many samples hold."""
        fields = _fields(value)
        if fields is None or self._stays_whole(path):
            return
        if type(value) in (list, tuple) and fields and path not in self._holds_samples:
            found = [self._possible(_joined(path, name), part) for name, part in fields.items()]
            may_be_fields = all(counts is None or count in counts for counts in found) and any(counts is not None for counts in found)
            may_be_samples = len(value) == count and self._may_hold_samples(path, value)
            if may_be_fields and may_be_samples:
                raise DataError(f"{path or 'the batch'} is a {type(value).__name__} of {count}, and each of its elements has a first "
                                f"dimension of {count}: it may hold samples or fields; {_REMEDY}")
            self._holds_samples[path] = not may_be_fields
        if self._holds_samples.get(path):
            return
        for name, part in fields.items():
            self._decide(_joined(path, name), part, count)

    def _cut(self, path: str, value: Any, rows: slice) -> Any:
        if _is_plain(value) or self._stays_whole(path):
            return value
        fields = _fields(value)
        if fields is None or self._holds_samples.get(path):
            return value[rows]
        return _with_fields(value, {name: self._cut(_joined(path, name), part, rows) for name, part in fields.items()}) if fields \
            else value

    def _stays_whole(self, path: str) -> bool:
        return path in self._whole

    def _check_expected(self, batch: Any, count: int) -> None:
        if self._expected is None or count == self._expected:
            return
        if count > self._expected:
            raise DataError(f"a batch of the loader seems to have {count} samples, and its batch_size is {self._expected}: "
                            f"{self._listed(batch)}; {_REMEDY}")
        other = [path for path, value in leaves_of(batch) if _is_array(value) and self._expected in value.shape[1:]]
        if other and not self._is_known:
            raise DataError(f"the first dimension of a batch is {count}, and that of '{other[0]}' which is batch_size, "
                            f"{self._expected}, is another one: {self._listed(batch)}; {_REMEDY}")

    def _listed(self, batch: Any) -> str:
        parts = [f"{path or 'it'} is a {_described(value)}" for path, value in itertools.islice(leaves_of(batch), _LISTED + 1)]
        return ", ".join([*parts[:_LISTED], *(["…"] if len(parts) > _LISTED else [])]) or "it is empty"

    def _refusal(self, batch: Any, before: str = "") -> DataError:
        """That of a batch whose parts do not agree, or hold nothing that counts."""
        sizes: dict[int, list[str]] = {}
        for path, value in leaves_of(batch):
            found = self._possible(path, value)
            for size in found or ():
                sizes.setdefault(size, []).append(path)
        unlike = ""
        numbers = sorted((len(paths) for paths in sizes.values()), reverse=True)
        if len(numbers) > 1 and numbers[0] > numbers[1]:
            others = [path for paths in sizes.values() if len(paths) < numbers[0] for path in paths]
            unlike = f"; dtrain.divisible(loader, whole={others}) leaves these to all ranks as they are"
        return DataError(f"a batch of the loader cannot be divided into samples, of which a first dimension, or the length of a list, is "
                         f"the number: {before}{self._listed(batch)}{unlike}; {_REMEDY}")


_LISTED = 8  # parts of a batch that an error names


def _joined(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)


_REMEDY = ("say it with dtrain.divisible(loader, samples=lambda batch: …, part=lambda batch, rows: …), or mark a loader that gives each "
           "rank batches of its own with dtrain.divided(loader)")
