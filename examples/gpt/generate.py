"""Lets the trained model of a run of gpt_torchscript.yaml write text, from its final weights.

    generate.py RUN_FOLDER [--prompt TEXT] [--bytes 500] [--temperature 0.8] [--seed 1] [--length 128]
"""
import argparse
from pathlib import Path

import torch


@torch.no_grad()
def continue_text(model, text, count, temperature, length, seed):
    """`length`: the tokens that the model sees at once."""
    generator = torch.Generator().manual_seed(seed)
    tokens = list(text)
    for _ in range(count):
        scores = model(torch.tensor([tokens[-length:]]))[0, -1]
        if temperature > 0:
            tokens.append(int(torch.multinomial((scores / temperature).softmax(0), 1, generator=generator)))
        else:
            tokens.append(int(scores.argmax()))
    return bytes(tokens)


def main():
    parser = argparse.ArgumentParser(description="Write text with a trained model.")
    parser.add_argument("run", type=Path, help="the run's folder, such as runs/0001-gpt-torchscript")
    parser.add_argument("--prompt", default="%\n")
    parser.add_argument("--bytes", type=int, default=500)
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest byte each time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="the model's length")
    arguments = parser.parse_args()
    model = torch.jit.load(str(arguments.run / "checkpoints" / "final" / "model.pt"))
    text = continue_text(model, arguments.prompt.encode(), arguments.bytes, arguments.temperature, arguments.length,
                         arguments.seed)
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
