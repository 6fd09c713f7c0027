"""The peers of bench_loader: loader_peers.py FOLDER FIFO_BASE BATCH

FOLDER has the shards train-*.tar, and the arrays raw.features (float32) and raw.target (int64). Commands on FIFO_BASE +
"0.commands": "has NAME 1" is answered by 1 or 0; "NAME WORKERS N" makes N batches with that library and number of workers, and is
answered by one line of N times in nanoseconds; "end" ends it. Loaders go on from command to command, so starting workers is not
measured.
"""
from __future__ import annotations

import importlib
import sys
import tarfile
import time
from pathlib import Path
from typing import Iterator

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

folder, base, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SIZE = (375, 500)  # height and width of the pictures of bench_loader
shards = sorted(str(path) for path in folder.glob("train-*.tar"))
torch.set_num_threads(1)

# On uint8 as long as possible, which is the fastest that torchvision offers.
transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                        v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


def to_sample(data: bytes) -> torch.Tensor:
    return transform(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB))


class Pictures(Dataset):
    """The members of the shards at random places, as a data set of files has them."""

    def __init__(self) -> None:
        self.places = []
        for shard in shards:
            with tarfile.open(shard) as archive:
                for member in archive:
                    if member.name.endswith(".jpg"):
                        self.places.append((shard, member.offset_data, member.size, int(member.name.split(".")[0]) % 10))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        shard, offset, size, label = self.places[index]
        with open(shard, "rb") as file:
            file.seek(offset)
            return to_sample(file.read(size)), label


def forever(loader) -> Iterator:
    while True:
        yield from loader


def torchvision_batches(workers: int) -> Iterator:
    return forever(DataLoader(Pictures(), batch, shuffle=True, num_workers=workers, drop_last=True,
                              persistent_workers=workers > 0))


def webdataset_batches(workers: int) -> Iterator:
    import webdataset

    data = (webdataset.WebDataset(shards, shardshuffle=len(shards), resampled=False, empty_check=False,
                                  nodesplitter=webdataset.single_node_only)
            .shuffle(256).map(lambda sample: (to_sample(sample["jpg"]), int(sample["cls"]))).batched(batch, partial=False))
    return forever(webdataset.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0))


def spdl_batches(workers: int) -> Iterator:
    """SPDL's own decoding (FFmpeg) on threads of its own; crop, resizing and flip are filters of FFmpeg."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    pictures = Pictures()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    crop = v2.RandomResizedCrop(224, antialias=True)
    picture = torch.empty(3, *SIZE, dtype=torch.uint8)  # all have one size, which SPDL need not find out

    def load_one(index: int) -> torch.Tensor:
        shard, offset, size, _ = pictures.places[index]
        with open(shard, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        top, left, height, width = crop.make_params([picture]).values() if hasattr(crop, "make_params") else \
            crop.get_params(picture, crop.scale, crop.ratio)
        flip = ",hflip" if torch.rand(()) < 0.5 else ""
        filters = f"crop={width}:{height}:{left}:{top}:exact=1,scale=224:224:flags=bilinear{flip},format=pix_fmts=rgb24"
        return spdl.io.to_torch(spdl.io.load_image(data, filter_desc=filters))

    def load(indices: list[int]) -> torch.Tensor:
        bytes_of_batch = torch.stack([load_one(index) for index in indices]).permute(0, 3, 1, 2)
        return (bytes_of_batch / 255 - mean) / std

    def indices() -> Iterator[list[int]]:
        while True:
            order = torch.randperm(len(pictures)).tolist()
            yield from (order[at : at + batch] for at in range(0, len(order) - batch + 1, batch))

    count = max(1, workers)  # it has no mode without threads
    pipeline = (PipelineBuilder().add_source(indices()).pipe(load, concurrency=count).add_sink(2)
                .build(num_threads=count, max_failures=0))
    pipeline.start()
    return iter(pipeline.get_iterator())


RAW = (3, 224, 224)  # shape of a sample of raw.features


def mapped(dtype: str, name: str, *shape: int) -> numpy.memmap:
    return numpy.memmap(folder / name, dtype, "r").reshape(-1, *shape)


def raw_memory_batches(workers: int) -> Iterator:
    features, targets = torch.from_numpy(mapped("float32", "raw.features", *RAW).copy()), torch.zeros(512, dtype=torch.int64)
    return forever(DataLoader(TensorDataset(features, targets), batch, shuffle=True, num_workers=workers, drop_last=True,
                              persistent_workers=workers > 0))


class Mapped(Dataset):
    def __init__(self) -> None:
        self.features, self.targets = mapped("float32", "raw.features", *RAW), mapped("int64", "raw.target")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[numpy.ndarray, numpy.int64]:
        return self.features[index], self.targets[index]


def raw_mapped_batches(workers: int) -> Iterator:
    return forever(DataLoader(Mapped(), batch, shuffle=True, num_workers=workers, drop_last=True,
                              persistent_workers=workers > 0))


def has(name: str) -> bool:
    """Whether the library is installed and works: SPDL is there without FFmpeg's libraries, too."""
    try:
        importlib.import_module(name)
        if name == "spdl":
            from spdl.io.utils import get_ffmpeg_versions

            get_ffmpeg_versions()
        return True
    except (ImportError, RuntimeError) as error:
        print(f"loader_peers.py: without {name}: {error}", file=sys.stderr, flush=True)
        return False


makers = {"torchvision": torchvision_batches, "webdataset": webdataset_batches, "spdl": spdl_batches,
          "raw_memory": raw_memory_batches, "raw_mapped": raw_mapped_batches}
loaders: dict[tuple[str, int], Iterator] = {}
with open(f"{base}0.commands") as commands, open(f"{base}0.replies", "w") as replies:
    for line in commands:
        words = line.split()
        if words[0] == "end":
            break
        if words[0] == "has":
            print(int(has(words[1])), file=replies, flush=True)
            continue
        name, workers, count = words[0], int(words[1]), int(words[2])
        if (name, workers) not in loaders:
            loaders[name, workers] = makers[name](workers)
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            next(loaders[name, workers])
            times.append(time.perf_counter_ns() - start)
        print(*times, file=replies, flush=True)
