"""Makes a model, data and an experiment in a folder; afterwards compares the losses of two runs of it.

    train.py make FOLDER           in a Python with torch and safetensors
    train.py compare RUN RUN       the exit code is 1 if a loss differs by more than 1e-6
"""
import json
import sys
from pathlib import Path

EXPERIMENT = """
name: two processors
model: model.pt
loss: cross_entropy
optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}
data:
  format: safetensors
  training: {file: training.safetensors, features: x, target: labels}
  validation: {file: validation.safetensors, features: x, target: labels}
hyperparameters: {global_batch_size: 16}
resources: {slots_per_trial: 2}
searcher: {metric: loss, max_length: {epochs: 3}}
min_validation_period: {epochs: 1}
scheduling_unit: 1
profiling: {calibration: false}
"""
# libtorch reads the kind of an Arm processor here, and crashes at one of another maker.
CORE = "processor\t: {}\nFeatures\t: fp asimd aes crc32 atomics asimddp\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n\n"


def make(folder):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    layers = [torch.nn.Conv1d(1, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.Flatten(), torch.nn.GELU(), torch.nn.Linear(72, 4)]
    torch.jit.script(torch.nn.Sequential(*layers)).save(folder / "model.pt")
    for name, count in (("training", 131), ("validation", 20)):
        x = torch.randn(count, 1, 20)
        save_file({"x": x, "labels": x[:, 0, :4].argmax(1)}, folder / f"{name}.safetensors")
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    (folder / "cpuinfo").write_text("".join(CORE.format(core) for core in range(2)))


def losses(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(row["kind"], row["batch"]): row["metrics"]["loss"] for row in rows}


def compare(one, other):
    one, other = losses(one), losses(other)
    assert one and one.keys() == other.keys(), f"the runs have {len(one)} and {len(other)} rows of metrics, or not the same"
    difference = max(abs(loss - other[key]) for key, loss in one.items())
    print(f"{len(one)} losses of two ranks, the largest difference {difference:.1e}")
    return 0 if difference <= 1e-6 else 1


if __name__ == "__main__":
    command, folders = sys.argv[1], [Path(folder) for folder in sys.argv[2:]]
    sys.exit({"make": make, "compare": compare}[command](*folders))
