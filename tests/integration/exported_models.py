"""Models exported by torch.export, each trained by `model: file.pt2` and by plain PyTorch, whose losses agree.

    exported_models.py BIN_FOLDER [all | NAME ...]      the models of exported_zoo.py; default: some of them

20 steps of AdamW on the same changing batches, with the same random numbers for dropout and drop path, 1, 2 and 3 ranks;
then a validation, whose last batch is short, from the same file. PyTorch trains the Python module, rank by rank: batch
norm normalises the samples of one rank, and rank 0's statistics count.
"""

import copy
import sys
import time

import safetensors.numpy
import safetensors.torch
import torch

from exported_zoo import CASES, call, export, make_data
from harness import Build, Workplace, launch, write_experiment
from sample_order import epoch_order
from torchscript_models import experiment

STEPS, SEED, LIMIT, VALIDATED = 20, 5, 1e-6, 14
MASK = (1 << 64) - 1
TRAINING, VALIDATION = 0, 4


def random_seed(rank, number, draws):
    """runtime/train/loop/random_seed.h"""
    x = SEED ^ (draws << 61)
    for part in (rank, number):
        x = (x + 0x9E3779B97F4A7C15 * (part + 1)) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        x ^= x >> 31
    return x


def train_plain(case, model, data, ranks, groups=None, after_step=None):
    """The loss of each step. groups: of AdamW, made of the model; after_step: called with the model after each update."""
    model = copy.deepcopy(model).train()
    trained = groups(model) if groups else [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=case.lr, eps=case.eps, weight_decay=0.01, fused=True)
    order = torch.tensor(epoch_order(len(data[case.target]), SEED))
    losses = []
    for step, batch in enumerate(order[: STEPS * ranks * case.samples].reshape(STEPS, ranks, case.samples)):
        optimizer.zero_grad()
        whole = 0.0
        for rank, rows in enumerate(batch):
            torch.manual_seed(random_seed(rank, step + 1, TRAINING))
            loss = case.loss_of(call(case, model, data, rows), data[case.target][rows])
            loss.backward()
            whole += loss.item() / ranks
            if rank == 0:
                buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / ranks)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        losses.append(whole)
        optimizer.step()
        if after_step:
            after_step(model)
    return losses


def validate_plain(case, model, weights, held_out):
    """With the weights of our run: where a gradient is all rounding, AdamW makes whole steps of it."""
    model = copy.deepcopy(model).eval()
    model.load_state_dict(safetensors.torch.load_file(weights))
    total = 0.0
    for rows in torch.arange(VALIDATED).split(case.samples):
        with torch.no_grad():
            out = call(case, model, held_out, rows)
            if "auxiliary" in case.loss:  # which evaluation does not return
                out = out if torch.is_tensor(out) else out["out"]
                loss = torch.nn.functional.cross_entropy(out, held_out[case.target][rows])
            else:
                loss = case.loss_of(out, held_out[case.target][rows])
        total += loss.item() * len(rows)
    return total / VALIDATED


def sections_of(case, folder, ranks, model=None, **more):
    own_loss = case.loss == "from_model"
    inputs = [name for name in case.inputs if not (own_loss and name == case.target)]

    def source(name):
        return {"file": str(folder / name), "features": inputs[0], "target": case.target}

    sections = experiment(
        folder / "model.pt2",
        {
            "format": "safetensors",
            "training": source("data.safetensors"),
            "validation": source("held_out.safetensors"),
            "more_inputs": inputs[1:],
        },
        steps=STEPS,
        batch=ranks * case.samples,
        slots=ranks,
        loss=case.loss,
        **{
            "optimizer": {"kind": "adamw", "lr": case.lr, "eps": case.eps, "weight_decay": 0.01},
            "reproducibility": {"experiment_seed": SEED},
            "scheduling_unit": 1,
            "min_validation_period": {"batches": STEPS},
            "optimizations": {"matmul": "default", "operators": "default", "memory_format": "contiguous"},
            **more,
        },
    )
    sections["metrics"] = []
    if model:
        sections["model"] = model
    return sections


def save_data(case, folder, ranks):
    data = make_data(case, STEPS * ranks * case.samples + 3)
    held_out = make_data(case, VALIDATED, seed=9)
    for name, tensors in (("data", data), ("held_out", held_out)):
        safetensors.numpy.save_file(
            {key: tensor.numpy() for key, tensor in tensors.items()}, folder / f"{name}.safetensors"
        )
    return data, held_out


def train_ours(case, build, folder, ranks, **more):
    return launch(
        build,
        write_experiment(folder / f"{ranks}.yaml", **sections_of(case, folder, ranks, **more)),
        folder / f"run-{ranks}",
    ).expect(0)


def relative(got, expected):
    return abs(got - expected) / abs(expected)


def check_case(title, case, build, folder, rank_counts):
    """The failures."""
    torch.manual_seed(len(title))
    model = case.make()
    data, held_out = save_data(case, folder, max(rank_counts))
    export(case, copy.deepcopy(model), data, folder / "model.pt2")
    failures = []
    for ranks in rank_counts:
        expected = train_plain(case, model, data, ranks)
        result = train_ours(case, build, folder, ranks)
        validated = validate_plain(case, model, result.weights_file, held_out)
        ours = [line["metrics"]["loss"] for line in result.metrics("training")]
        assert len(ours) == STEPS, f"{title}: {len(ours)} losses"
        assert len(set(expected)) > STEPS / 2, f"{title}: the loss does not change: {expected}"
        worst, step = max((relative(got, loss), step) for step, (got, loss) in enumerate(zip(ours, expected)))
        evaluated = relative(result.metrics("validation")[-1]["metrics"]["loss"], validated)
        good = worst <= LIMIT and evaluated <= LIMIT
        print(
            f"{title:14} {ranks} ranks {worst:10.2e} at step {step + 1:2}, validation {evaluated:10.2e}, "
            f"loss {expected[0]:.4f} to {expected[-1]:.4f}{'' if good else '   TOO MUCH'}",
            flush=True,
        )
        if not good:
            failures.append(f"{title} on {ranks} ranks")
    return failures


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "dtrain-worker")
    chosen = sys.argv[2:]
    every = chosen == ["all"]
    titles = [title for title, case in CASES.items() if every or (title in chosen if chosen else case.in_suite)]
    workplace = Workplace("exported-models")
    failures = []
    print(f"largest relative difference of a loss in {STEPS} steps (files: {workplace.path})")
    for number, title in enumerate(titles):
        begun = time.monotonic()
        folder = workplace.path / title
        folder.mkdir()
        rank_counts = (1, 2, 3) if chosen else (1 + number % 3,)
        failures += check_case(title, CASES[title], build, folder, rank_counts)
        print(f"{title:14} {time.monotonic() - begun:.1f} s", flush=True)
    if failures:
        sys.exit(f"too much: {', '.join(failures)}")
    workplace.remove()


if __name__ == "__main__":
    main()
