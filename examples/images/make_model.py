"""Writes torchvision's ResNet-18 with random weights as a TorchScript file: make_model.py [FILE] [--classes 10]"""
import argparse
import warnings

import torch
from torchvision.models import resnet18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="resnet18.pt")
    parser.add_argument("--classes", type=int, default=10)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
        torch.jit.script(resnet18(num_classes=arguments.classes)).save(arguments.file)
    print(f"written to {arguments.file}")


if __name__ == "__main__":
    main()
