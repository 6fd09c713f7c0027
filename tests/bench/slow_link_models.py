"""The two workloads of bench_slow_link: models, and a corpus for the transformer.

    slow_link_models.py FOLDER     writes transformer.pt, fashion.pt and the bytes of the corpus as tokens

The corpus is real text that every Debian and Ubuntu has: the licences of /usr/share/common-licenses, as bytes. Samples
of LENGTH bytes are shuffled once, with a fixed seed; 256 of them are held out for validation.
"""
import random
import sys
import warnings
from pathlib import Path

import numpy
import torch
from torch import nn

LENGTH = 32  # tokens of a sample
LICENCES = ["Apache-2.0", "Artistic", "GFDL-1.2", "GFDL-1.3", "GPL-1", "GPL-2", "GPL-3", "LGPL-2", "LGPL-2.1", "LGPL-3",
            "MPL-1.1", "MPL-2.0"]


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, l, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, l, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, l, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Bytes [batch, length] to scores [batch, length, 128]."""

    def __init__(self, width: int = 192, layers: int = 3, heads: int = 4):
        super().__init__()
        self.token = nn.Embedding(128, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128)

    def forward(self, tokens):
        places = torch.arange(tokens.size(1), device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(places))))


class FashionCnn(nn.Module):
    """Images [batch, 1, 28, 28] with values from 0 to 1, to scores [batch, 10].

    examples/torchscript with half its channels and no dropout.
    """

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images):
        x = (images - 0.286) / 0.353
        x = nn.functional.max_pool2d(self.conv1(x), 2).relu()
        x = nn.functional.max_pool2d(self.conv2(x), 2).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())


def make(name):
    torch.manual_seed(0)
    return {"transformer": Transformer, "fashion": FashionCnn}[name]()


def main():
    folder = Path(sys.argv[1])
    for name in ("transformer", "fashion"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
            torch.jit.script(make(name)).save(str(folder / f"{name}.pt"))
    text = b"".join((Path("/usr/share/common-licenses") / name).read_bytes() for name in LICENCES)
    text = bytes(byte for byte in text if byte < 128)
    samples = [text[start:start + LENGTH] for start in range(0, len(text) - LENGTH + 1, LENGTH)]
    random.Random(0).shuffle(samples)
    held_out = 256
    for part, chosen in (("training", samples[held_out:]), ("validation", samples[:held_out])):
        numpy.frombuffer(b"".join(chosen), numpy.uint8).astype("<u2").tofile(folder / f"{part}.tokens")


if __name__ == "__main__":
    main()
