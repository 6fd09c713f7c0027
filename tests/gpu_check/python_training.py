"""Models trained in Python on dtrain's engine on GPUs, by a loop of its own in three lines and by a Trial, against the same
loop in plain PyTorch on one GPU: weights after 60 steps in float64.

    python_training.py BIN --gpus N --scratch FOLDER

Exit codes: 0 all near, 1 not, 77 this Python has no dtrain.
"""
import argparse
import sys
from pathlib import Path

import torch
from files import read_safetensors, worst_difference
from launches import Dtrain, add_arguments, has_package, python_variables
from models import make_optimizer
from parity import ADAMW, LIMITS, SAMPLES, SGD, STEPS, initial_model
from plain_loop import make_loader, train

HERE = Path(__file__).resolve().parent
CASES = (("cnn", "lines", SGD, False), ("gpt", "lines", ADAMW, False), ("gpt", "lines compiled", ADAMW, True),
         ("cnn", "Trial", SGD, False), ("gpt", "Trial", ADAMW, False))


def train_plain(case, ranks, device):
    model = initial_model(case).to(device)
    train(model, make_optimizer(model, case["optimizer"]), make_loader(case, ranks), device)
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def train_ours(dtrain, case, way, ranks, folder):
    folder.mkdir(parents=True)
    script = str(HERE / "python_loop.py")
    experiment = {"name": "gpu-python", "entrypoint": [script if way != "Trial" else f"{script}:Loop"],
                  "hyperparameters": {"global_batch_size": ranks * SAMPLES, "case": case},
                  "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}}
    result = dtrain.launch(folder, experiment, ranks, **python_variables(dtrain.bin)).expect(0)
    if way == "Trial":
        return read_safetensors(result.weights_file)
    return torch.load(result.run_dir / "weights.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="without torch.compile")
    arguments = parser.parse_args()
    if not has_package(arguments.bin):
        sys.exit(77)
    dtrain, failures = Dtrain(arguments), 0
    for ranks in sorted({1, arguments.gpus}):
        print(f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {arguments.slot_type}, {STEPS} steps, against plain "
              f"PyTorch on {arguments.peer}")
        for model, way, optimizer, compiled in CASES:
            if model == "cnn" and ranks > 1:  # batch norm: the plain loop has the statistics of the whole batch
                continue
            if compiled and (arguments.quick or arguments.peer == "cpu"):  # Inductor of PyTorch 2.11 cannot train attention in float64 on CPUs
                continue
            case = {"model": model, "dtype": "float64", "optimizer": optimizer, "compile": compiled}
            ours = train_ours(dtrain, case, way, ranks, arguments.scratch / f"{ranks}-{model}-{way.replace(' ', '-')}")
            value, name = worst_difference(ours, train_plain(case, ranks, arguments.peer))
            good = value <= LIMITS["float64"]
            print(f"  {model} {way:16} limit {LIMITS['float64']:.0e}: {value:8.1e} ({name})"
                  f"{'' if good else '   TOO MUCH'}", flush=True)
            failures += not good
    if failures:
        sys.exit(f"{failures} differ too much")


if __name__ == "__main__":
    main()
