"""Training on one GPU with operations that wait on the host made errors: a model that does not wait trains, one that
does is stopped, which shows that the errors are on.

    waiting.py BIN --scratch FOLDER

Exit codes: 0 both as they should be, 1 not.
"""
import argparse
import sys

import torch

from launches import Dtrain, add_arguments
from models import SmallCnn, random_weights, save_script
from parity import SAMPLES, SGD, STEPS, make_data

from files import write_safetensors

WORDS = "called a synchronizing CUDA operation"  # libtorch's


class WaitingCnn(SmallCnn):
    def forward(self, images):
        if float(images.sum()) > 1e30:  # the value travels to the host
            images = images * 0.5
        h = self.norm(self.conv(images)).relu().flatten(1)
        h = self.fc(h).relu() * self.frozen
        return self.out(torch.nn.functional.linear(h, self.tied).relu())


def train(dtrain, model, folder):
    folder.mkdir(parents=True)
    save_script(random_weights(model), folder / "model.pt")
    features, target = make_data({"model": "cnn", "dtype": "float32"}, 1)
    write_safetensors({"features": features, "target": target}, folder / "data.safetensors")
    experiment = {"name": "waiting", "model": "model.pt", "loss": "cross_entropy", "optimizer": SGD,
                  "data": {"format": "safetensors", "training": {"file": "data.safetensors"}},
                  "hyperparameters": {"global_batch_size": SAMPLES},
                  "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}}
    return dtrain.launch(folder, experiment, 1, DTRAIN_SYNC_DEBUG="error")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    dtrain = Dtrain(arguments)
    free, waiting = (train(dtrain, model, arguments.scratch / name) for name, model in
                     (("free", SmallCnn()), ("waiting", WaitingCnn())))
    print(f"a model that does not wait: exit code {free.code}")
    if free.code != 0:
        sys.exit(free.output)
    print(f"a model that waits in each step: exit code {waiting.code}")
    if waiting.code == 0 or WORDS not in waiting.output:
        sys.exit(f"it was not stopped by '{WORDS}', so DTRAIN_SYNC_DEBUG=error has no effect:\n{waiting.output}")


if __name__ == "__main__":
    main()
