"""What the TorchScript tests share: models, data files, experiments, runs."""
import gzip
import struct
import warnings

import numpy
import torch
from torch import nn

import harness
from harness import BUILD, WorkplaceTest, launch, overrides, run, write_experiment
from parity_model import SharedLinear

warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch.jit


def write_idx(path, array):
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(numpy.uint8).tobytes())


def write_fashion_like(folder, training_samples=640):
    """Small data of Fashion-MNIST's shape under its files' names; labels can be learnt."""
    generator = numpy.random.default_rng(3)
    for part, samples in (("train", training_samples), ("t10k", 333)):
        labels = generator.integers(0, 10, samples)
        images = generator.integers(0, 120, (samples, 28, 28))
        images[numpy.arange(samples), 2 * labels] += 25
        for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            write_idx(folder / "plain", array)
            (folder / f"{part}-{name}.gz").write_bytes(gzip.compress((folder / "plain").read_bytes()))


def save_script(model, path, traced_with=None):
    """Scripted, or traced with this input (in training mode, so that batch norm stays trainable)."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    script = torch.jit.script(model) if traced_with is None else torch.jit.trace(model, traced_with, check_trace=False)
    # Tracing ran it, which moved batch norm's statistics. A traced module also has buffers that a state_dict leaves out.
    script.load_state_dict(before, strict=traced_with is None)
    script.save(str(path))
    return path


def experiment(model, data, steps=5, batch=16, slots=1, loss="cross_entropy", optimizer=None, **more):
    """The sections of an experiment file."""
    return {"name": "script", "model": str(model), "loss": loss, "data": data,
            "optimizer": optimizer or {"kind": "sgd", "lr": 0.05}, "hyperparameters": {"global_batch_size": batch},
            "resources": {"slots_per_trial": slots}, "searcher": {"metric": "loss", "max_length": {"batches": steps}}, **more}


class Net(nn.Module):
    """For 8x8 images: a convolution, batch norm, a weight two layers share, a frozen parameter, one that nothing uses, a
    buffer that forward() assigns anew."""

    def __init__(self, width=32):
        super().__init__()
        # No bias before batch norm: its gradient is zero but for rounding, which adam would blow up to whole steps.
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.fc1 = nn.Linear(256, width)
        self.tied_a = SharedLinear(nn.Parameter(torch.randn(width, width) * 0.2))
        self.tied_b = SharedLinear(self.tied_a.weight)
        self.out = nn.Linear(width, 10)
        self.never = nn.Parameter(torch.randn(7))
        self.frozen = nn.Parameter(torch.rand(width) + 0.5, requires_grad=False)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, images):
        h = self.fc1(self.body(images).flatten(1)).relu() * self.frozen
        if self.training:
            self.seen = self.seen * 0.9 + h.detach().mean(0) * 0.1
        h = self.tied_b(self.tied_a(h).relu()).relu()
        return self.out(h)


def random_weights(model, seed):
    """Random everywhere: a parameter of zeros would have no norm to compare with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                scale = 0.18 if parameter.dim() == 2 else 0.3
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
    return model


class Mlp(nn.Module):
    def __init__(self, inputs=64, outputs=10, hidden=16):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.fc2(self.hidden(x.flatten(1)))


class ScriptTest(WorkplaceTest):
    build = BUILD

    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.folder = self.work.path

    def idx_data(self, samples=48, size=8, classes=10):
        """Images whose class can be learnt: its row is brighter."""
        generator = numpy.random.default_rng(1)
        labels = generator.integers(0, classes, samples)
        images = generator.integers(0, 100, (samples, size, size))
        images[numpy.arange(samples), labels % size] += 100
        write_idx(self.folder / "images", images)
        write_idx(self.folder / "labels", labels)
        return {"format": "idx", "training": {"features": "images", "target": "labels"}}

    def alone(self, sections, sets=(), **extra_environment):
        """One rank, without a launcher."""
        run_dir = self.work.new_run()
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        return run([self.build.program("dtrain-worker"), str(file), "--run-dir", str(run_dir), *overrides(sets)], run_dir,
                   **extra_environment)

    def launched(self, sections):
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        return launch(self.build, file, self.work.new_run())


def main(trial="dtrain-worker"):
    """For a program of ScriptTests."""
    harness.main(trial, warnings="ignore")  # torch.jit calls itself deprecated
