"""Goes on in PyTorch from a checkpoint of the Fashion-MNIST run (configs/torchscript_fashion_mnist.yaml), and writes a
checkpoint from which dtrain goes on.

    go_on.py CHECKPOINT --batches N [--data FOLDER]

The new checkpoint lies beside the old one, so `dtrain launch --continue RUN` takes it.
"""
import argparse
import json
import sys
from pathlib import Path

import torch
from torch.nn import functional

import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torchscript"))
from make_model import FashionCnn  # noqa: E402
from use_weights import read_idx  # noqa: E402

BATCH = 128  # the experiment's hyperparameters.global_batch_size


def make_optimizer(model):
    """That of the experiment: {kind: adamw, lr: 0.001}, and dtrain's defaults, which are PyTorch's."""
    return torch.optim.AdamW(model.parameters(), lr=0.001)


def train(model, optimizer, batches):
    """Returns the mean loss."""
    model.train()
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return sum(losses) / len(losses)


def random_batches(images, labels, count):
    for _ in range(count):
        chosen = torch.randint(len(images), (BATCH,))
        yield images[chosen].unsqueeze(1).float() * (1 / 255), labels[chosen].long()


def main():
    parser = argparse.ArgumentParser(description="Go on from a checkpoint in PyTorch.")
    parser.add_argument("checkpoint", type=Path, help="such as runs/0001-torchscript-fashion-mnist/checkpoints/step-938")
    parser.add_argument("--batches", type=int, required=True, help="how many to train")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="the IDX files")
    arguments = parser.parse_args()

    model = FashionCnn()
    optimizer = make_optimizer(model)
    done = checkpoint.load(arguments.checkpoint, model, optimizer)
    print(f"{arguments.checkpoint}: {done} batches are done")

    images = torch.from_numpy(read_idx(arguments.data / "train-images-idx3-ubyte.gz"))
    labels = torch.from_numpy(read_idx(arguments.data / "train-labels-idx1-ubyte.gz"))
    loss = train(model, optimizer, random_batches(images, labels, arguments.batches))
    print(f"{arguments.batches} more batches, mean loss {loss:.4f}")

    total = done + arguments.batches
    in_epoch = len(images) // BATCH
    folder = arguments.checkpoint.resolve().with_name(f"step-{total}")
    checkpoint.save(folder, arguments.checkpoint, model, optimizer, total, total // in_epoch, total % in_epoch)
    about = json.loads((folder / "manifest.json").read_text())["about"]
    print(f"written to {folder}: epoch {about['epoch']}, batch {total % in_epoch} of it")


if __name__ == "__main__":
    main()
