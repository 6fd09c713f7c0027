"""Schedules of `model:` experiments that count epochs, against PyTorch's schedulers, stepped once an epoch.

    torchscript_schedules.py BIN_FOLDER

Same initial weights, same batches, in float64, on 1, 2 and 3 ranks. Compared are each parameter and the learning rate of
each optimizer step. With aggregated batches an epoch is no whole number of steps.
"""
import copy
import sys

import numpy
import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

from harness import Build, Workplace, launch, write_experiment
from sample_order import epoch_order
from torchscript_models import experiment, save_script

EPOCHS = 6
BATCHES = 5  # of an epoch
SAMPLES = 4  # of a rank's batch
SEED = 5
LIMIT = 1e-10
SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
SCHEDULES = torch.optim.lr_scheduler
STEP = {"kind": "step", "unit": "epochs", "step_size": 2, "gamma": 0.5}
MILESTONES = {"kind": "multi_step", "unit": "epochs", "milestones": [1, 3], "gamma": 0.1}
WARM = {"kind": "cosine", "unit": "epochs", "warmup_steps": 2, "total_steps": 6, "final_factor": 0.1}
EXPONENTIAL = {"kind": "exponential", "gamma": 0.9}  # counts optimizer steps


def warm_factor(epoch):
    return (epoch + 1) / 2 if epoch < 2 else 0.1 + 0.9 * 0.5 * (1 + numpy.cos(numpy.pi * (epoch - 2) / 4))


# The schedule of all, that of the biases, the batches of an optimizer step, and the same for PyTorch. None: no group.
CASES = {
    "step": (STEP, None, 1, lambda o: [SCHEDULES.StepLR(o, 2, 0.5)], None),
    "step, k=2": (STEP, None, 2, lambda o: [SCHEDULES.StepLR(o, 2, 0.5)], None),
    "warm-up, cosine": (WARM, None, 1, lambda o: [SCHEDULES.LambdaLR(o, warm_factor)], None),
    "steps, a group in epochs": (EXPONENTIAL, MILESTONES, 1, lambda o: [SCHEDULES.ExponentialLR(o, 0.9)],
                                 lambda o: [SCHEDULES.MultiStepLR(o, [1, 3], 0.1)]),
    "epochs, a group in steps, k=3": (MILESTONES, EXPONENTIAL, 3, lambda o: [SCHEDULES.MultiStepLR(o, [1, 3], 0.1)],
                                      lambda o: [SCHEDULES.ExponentialLR(o, 0.9)]),
}


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def make_data(ranks):
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(BATCHES * ranks * SAMPLES + 2, 6, generator=generator, dtype=torch.float64)
    return features, (features[:, 0] > 0).long() + (features[:, 1] > 0)


def batches_of(target, ranks):
    """(epoch, the rows of all ranks)"""
    for epoch in range(EPOCHS):
        order = torch.tensor(epoch_order(len(target), SEED, epoch))
        for batch in order[: BATCHES * ranks * SAMPLES].reshape(BATCHES, ranks * SAMPLES):
            yield epoch, batch


def train_plain(case, features, target, ranks):
    """The parameters, and the learning rate of each step."""
    of_all, of_biases, k, make_schedules, make_of_biases = case
    model = make_model()
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and of_biases]
    others = [p for name, p in model.named_parameters() if not (name.endswith("bias") and of_biases)]
    # An optimizer for each schedule: a scheduler of torch sets all groups of one.
    parts = [(others, of_all, make_schedules)] + ([(biases, of_biases, make_of_biases)] if of_biases else [])
    optimizers = [(torch.optim.SGD(parameters, lr=SGD["lr"], momentum=SGD["momentum"]), settings, make)
                  for parameters, settings, make in parts]
    schedulers = [(scheduler, settings.get("unit") == "epochs")
                  for optimizer, settings, make in optimizers for scheduler in make(optimizer)]
    batches = list(batches_of(target, ranks))
    rates, now = [], 0
    for start in range(0, len(batches), k):
        window = batches[start : start + k]
        for scheduler, in_epochs in schedulers:
            for _ in range(window[0][0] - now if in_epochs else min(start, 1)):
                scheduler.step()
        now = window[0][0]
        rates.append(optimizers[0][0].param_groups[0]["lr"])
        for _, rows in window:
            (F.cross_entropy(model(features[rows]), target[rows]) / len(window)).backward()
        for optimizer, _, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict(), rates


def train_ours(case, build, folder, features, target, ranks):
    of_all, of_biases, k, _, _ = case
    folder.mkdir()
    numpy.save(folder / "features.npy", features.numpy())
    numpy.save(folder / "target.npy", target.numpy())
    save_script(copy.deepcopy(make_model()), folder / "model.pt")
    optimizer = {**SGD, "lr_schedule": of_all}
    if of_biases:
        optimizer["groups"] = [{"match": "*bias", "lr_schedule": of_biases}]
    data = {"format": "npy", "training": {"features": "features.npy", "target": "target.npy"}}
    sections = experiment("model.pt", data, batch=ranks * SAMPLES, slots=ranks, optimizer=optimizer, scheduling_unit=k,
                          optimizations={"aggregation_frequency": k, "matmul": "default", "operators": "default"},
                          reproducibility={"experiment_seed": SEED})
    sections["searcher"] = {"max_length": {"epochs": EPOCHS}}
    result = launch(build, write_experiment(folder / "experiment.yaml", **sections), folder / "run").expect(0)
    return safetensors.numpy.load_file(result.weights_file), result.metrics("training")


def check(title, case, build, folder, ranks):
    features, target = make_data(ranks)
    expected, rates = train_plain(case, features, target, ranks)
    weights, lines = train_ours(case, build, folder, features, target, ranks)
    assert len(set(rates)) >= 3, f"{title}: the rate hardly changes: {rates}"
    steps = [line["optimizer_steps"] for line in lines]
    assert steps == list(range(1, len(rates) + 1)), f"{title}: {steps} optimizer steps, not {len(rates)}"
    numpy.testing.assert_allclose([line["learning_rate"] for line in lines], rates, rtol=1e-6, err_msg=title)
    return max((numpy.linalg.norm(weights[name] - wanted.numpy()) / numpy.linalg.norm(wanted.numpy()), name)
               for name, wanted in expected.items())


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "dtrain-worker")
    workplace = Workplace("schedules")
    failures = 0
    print(f"relative L2 difference of the worst parameter after {EPOCHS} epochs; limit {LIMIT} (files: {workplace.path})")
    for number, (title, case) in enumerate(CASES.items()):
        for ranks in (1, 2, 3):
            difference, name = check(title, case, build, workplace.path / f"{number}-{ranks}", ranks)
            good = difference <= LIMIT
            failures += not good
            print(f"{title:32} {ranks} ranks {difference:10.2e}{'' if good else f'   TOO MUCH ({name})'}", flush=True)
    if failures:
        sys.exit(f"{failures} results differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
