"""Takes a trained model back into Python, both ways, and evaluates each on the validation images.

    use_weights.py RUN_FOLDER [--data FOLDER]
"""
import argparse
import gzip
from pathlib import Path

import numpy
import safetensors.numpy
import torch

from make_model import FashionCnn


def read_idx(path):
    """An IDX file of bytes, gzip or not: two zeros, the type (8), the number of dimensions, the dimensions, the data."""
    raw = Path(path).read_bytes()
    content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    dimensions = numpy.frombuffer(content, ">i4", count=content[3], offset=4)
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * content[3]).reshape(dimensions).copy()


def from_safetensors(path):
    """Names are those of the model's state_dict()."""
    model = FashionCnn()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in safetensors.numpy.load_file(path).items()})
    return model


@torch.no_grad()
def count_right(model, images, labels, batch_size=64):
    model.eval()
    right = 0
    for start in range(0, len(images), batch_size):
        pixels = torch.from_numpy(images[start : start + batch_size]).unsqueeze(1).float() * (1 / 255)
        right += int((model(pixels).argmax(1).numpy() == labels[start : start + batch_size]).sum())
    return right


def main():
    parser = argparse.ArgumentParser(description="Evaluate a run's final weights in Python.")
    parser.add_argument("run", type=Path, help="the run's folder, such as runs/0001-torchscript-fashion-mnist")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="the IDX files")
    arguments = parser.parse_args()
    images = read_idx(arguments.data / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(arguments.data / "t10k-labels-idx1-ubyte.gz")
    final = arguments.run / "checkpoints" / "final"
    models = {"model.safetensors": from_safetensors(final / "model.safetensors"),
              "model.pt": torch.jit.load(str(final / "model.pt"))}
    for name, model in models.items():
        right = count_right(model, images, labels)
        print(f"{name:18} accuracy {right / len(labels):.4f}  ({right} of {len(labels)})")


if __name__ == "__main__":
    main()
