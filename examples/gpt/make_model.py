"""Writes the model of main.cpp as a TorchScript file, which `dtrain` trains by gpt_torchscript.yaml alone.

    make_model.py [FILE] [--layers 4] [--heads 4] [--width 128] [--length 128] [--dropout 0] [--seed 0]
                                                        (default: gpt.pt beside this file)
"""
import argparse
import math
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256  # a token is a byte


class Block(nn.Module):
    def __init__(self, heads: int, width: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = [part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.attention(self.norm1(x)).split(width, dim=2)]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """Tokens [batch, length] to scores of the next token [batch, length, 256]."""

    def __init__(self, layers: int = 4, heads: int = 4, width: int = 128, length: int = 128, dropout: float = 0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(heads, width, dropout) for _ in range(layers))
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                ends_branch = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if ends_branch else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)  # tied: the output layer is the embedding


def main():
    parser = argparse.ArgumentParser(description="Write a language model as TorchScript.")
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).resolve().parent / "gpt.pt")
    for name, default in (("layers", 4), ("heads", 4), ("width", 128), ("length", 128), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = Gpt(arguments.layers, arguments.heads, arguments.width, arguments.length, arguments.dropout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
        torch.jit.script(model).save(str(arguments.file))
    print(f"written to {arguments.file}")


if __name__ == "__main__":
    main()
