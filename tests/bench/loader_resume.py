"""Samples that a resume in the middle of an epoch loses or repeats: dtrain.data.Loader, StatefulDataLoader (torchdata) and
LitData, each with the same and with another number of workers or ranks.

    loader_resume.py PACKAGE_FOLDER [--json]

PACKAGE_FOLDER: build/release/python. An epoch of 960 samples is stopped after 10 global batches of 24 and resumed from the states
that the ranks have then. For each case: `lost` and `repeated` samples of the epoch, or the error that refuses it. Peers have one
state for each rank: another number of ranks gets those of rank (number modulo the old ranks). Needs the wheels of
`scripts/setup.sh bench`.
"""
from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy
import torch

SAMPLES, GLOBAL_BATCH, STOP = 960, 24, 10
#: (ranks before, ranks after, workers before, workers after)
CASES = {"same": (2, 2, 2, 2), "workers": (2, 2, 2, 1), "ranks": (2, 4, 2, 2), "fewer_ranks": (4, 2, 2, 2)}


def numbers(batch) -> list[int]:
    return [int(number) for number in (batch["target"] if isinstance(batch, dict) else batch)]


class Ours:
    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, sys.argv[1])
        import dtrain

        self.make = dtrain.data.Loader
        numpy.save(folder / "x.npy", numpy.zeros((SAMPLES, 1), "float32"))
        numpy.save(folder / "y.npy", numpy.arange(SAMPLES))
        self.files = {"features": folder / "x.npy", "target": folder / "y.npy"}

    def loader(self, rank: int, ranks: int, workers: int):
        return self.make("npy", **self.files, batch_size=GLOBAL_BATCH, seed=1, rank=rank, world_size=ranks, workers=workers)


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Stateful:
    def __init__(self, folder: Path) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        self.make, self.sampler = StatefulDataLoader, StatefulDistributedSampler

    def loader(self, rank: int, ranks: int, workers: int):
        sampler = self.sampler(Numbers(), ranks, rank, shuffle=True, seed=1)
        return self.make(Numbers(), GLOBAL_BATCH // ranks, sampler=sampler, num_workers=workers, drop_last=True)


def one(index: int) -> torch.Tensor:
    return torch.tensor(index)


class LitData:
    def __init__(self, folder: Path) -> None:
        import litdata

        self.litdata = litdata
        self.folder = str(folder / "litdata")
        litdata.optimize(fn=one, inputs=list(range(SAMPLES)), output_dir=self.folder, chunk_size=60, num_workers=1,
                         start_method="fork")

    def loader(self, rank: int, ranks: int, workers: int):
        # It finds its rank as under torchrun.
        from litdata.utilities.env import _DistributedEnv

        _DistributedEnv.detect = classmethod(lambda kind, *_: kind(ranks, rank, 1))
        data = self.litdata.StreamingDataset(self.folder, shuffle=True, seed=1, drop_last=True)
        return self.litdata.StreamingDataLoader(data, batch_size=GLOBAL_BATCH // ranks, num_workers=workers, drop_last=True)


def counted(kind, ranks_before: int, ranks_after: int, workers_before: int, workers_after: int) -> dict:
    seen: Counter = Counter()
    states = []
    for rank in range(ranks_before):
        loader = kind.loader(rank, ranks_before, workers_before)
        for done, batch in enumerate(loader, 1):
            seen.update(numbers(batch))
            if done == STOP:
                states.append(json.loads(json.dumps(loader.state_dict(), default=str)) if isinstance(kind, Ours)
                              else loader.state_dict())
                break
    try:
        for rank in range(ranks_after):
            loader = kind.loader(rank, ranks_after, workers_after)
            loader.load_state_dict(states[rank % ranks_before])
            for batch in loader:
                seen.update(numbers(batch))
    except Exception as error:  # a peer's way to refuse
        text = str(error).partition("\n")[0]
        return {"refused": f"{type(error).__name__}: {text[:120]}".rstrip(": ")}
    return {"lost": SAMPLES - len(seen), "repeated": sum(count - 1 for count in seen.values())}


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = tempfile.mkdtemp()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("dtrain", Ours), ("stateful_dataloader", Stateful), ("litdata", LitData)):
            with contextlib.redirect_stdout(sys.stderr):  # LitData prints its progress
                kind = make(Path(folder))
            result[name] = {case: counted(kind, *numbers_of) for case, numbers_of in CASES.items()}
    if "--json" in sys.argv:
        print(json.dumps(result))
    else:
        for name, cases in result.items():
            for case, outcome in cases.items():
                print(f"{name:20} {case:12} {outcome}")


if __name__ == "__main__":
    main()
