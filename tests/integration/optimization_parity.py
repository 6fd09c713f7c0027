"""What a trial can ask of its optimizer, each against one process of plain PyTorch: parameter groups, optimizers,
schedules, a plateau, clipping by value, batches that count differently, the average of the weights.

    optimization_parity.py BIN_FOLDER [WORD ...]     those whose title has all words

Same initial weights, same batches, 48 optimizer steps in float64, on 1, 2 and 3 ranks, with replicated and sharded
updates. Compared is each parameter's relative L2 norm. In float32 the order of sums alone makes more difference.
"""
import os
import shutil
import sys
import typing

import torch
import torch.nn.functional as F

import parity_model
from harness import Build, Workplace, run, write_experiment
from many_runs import run_many
from reference_optimizers import Lamb, Lion

STEPS = 48
SAMPLES = 12  # of all ranks
LIMIT = 1e-10
IGNORED = -100
WAYS = [(1, False), (2, True), (3, False), (3, True)]  # ranks, sharded
VALIDATION_PERIOD = 3  # in batches


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for matrices, torch.optim.AdamW for the rest and for some matrices by name."""

    def __init__(self, params, lr, adamw_lr, adamw_match="", weight_decay=0.0, nesterov=True, match_rms_adamw=False):
        super().__init__(params, {"lr": lr})
        del adamw_match  # parity_model's parameters that it names are marked by groups_for_torch()
        adjust = "match_rms_adamw" if match_rms_adamw else None
        self.parts = []
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.dim() == 2 and not getattr(p, "by_adamw", False)]
            others = [p for p in group["params"] if all(p is not m for m in matrices)]
            if matrices:
                self.parts.append(torch.optim.Muon(matrices, lr=group["lr"], weight_decay=weight_decay, nesterov=nesterov,
                                                   adjust_lr_fn=adjust))
            if others:
                self.parts.append(torch.optim.AdamW(others, lr=adamw_lr, weight_decay=weight_decay, fused=True))

    def step(self):
        for part in self.parts:
            part.step()


KINDS = {"lamb": Lamb, "muon": Muon, "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam,
         "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "lion": Lion}
ADAMW = {"kind": "adamw", "lr": 1e-3, "weight_decay": 1e-2}
SGD = {"kind": "sgd", "lr": 0.02, "momentum": 0.9}
GROUPS = [{"match": "*.bias|never", "weight_decay": 0.0}, {"match": "conv.*|tied_*", "lr": 5e-3}]


def schedulers(name, *arguments):
    """The schedule of torch for what the trial calls by the same name."""
    schedules = torch.optim.lr_scheduler
    return {
        "one_cycle": lambda o, n: schedules.OneCycleLR(o, [g["lr"] for g in o.param_groups], n, cycle_momentum=False),
        "linear": lambda o, n, first, last: schedules.LinearLR(o, first, last, n),
        "polynomial": lambda o, n, power: schedules.PolynomialLR(o, n, power),
        "cosine": lambda o, n: schedules.CosineAnnealingLR(o, n),
        "exponential": lambda o, gamma: schedules.ExponentialLR(o, gamma),
        "multi_step": lambda o, first, second, gamma: schedules.MultiStepLR(o, [first, second], gamma),
    }[name], arguments


def cases():
    plain = {"k": 1, "optimizer": ADAMW}
    return {
        "sgd": {**plain, "optimizer": SGD},
        "adamw, groups": {**plain, "groups": GROUPS},
        "sgd, groups, one_cycle, k=4": {"optimizer": SGD, "k": 4, "schedule": ["one_cycle", STEPS],
                                        "groups": [{"match": "*.bias", "lr": 0.005}]},
        "sgd, a group without momentum": {**plain, "optimizer": SGD, "groups": [{"match": "*.bias", "momentum": 0.0}]},
        "radam": {**plain, "optimizer": {"kind": "radam", "lr": 2e-3, "weight_decay": 1e-3}},
        "rmsprop": {**plain, "optimizer": {"kind": "rmsprop", "lr": 1e-3, "weight_decay": 1e-3}},
        "rmsprop, centered, momentum": {**plain, "optimizer": {"kind": "rmsprop", "lr": 3e-4, "momentum": 0.9,
                                                               "centered": True}},
        "adagrad": {**plain, "optimizer": {"kind": "adagrad", "lr": 1e-2, "lr_decay": 0.01, "weight_decay": 1e-3}},
        "lion": {**plain, "optimizer": {"kind": "lion", "lr": 1e-4, "weight_decay": 0.1}},
        "lamb": {**plain, "optimizer": {"kind": "lamb", "lr": 5e-3, "weight_decay": 0.01}},
        "lamb, groups, ema, k=2": {"k": 2, "ema": 0.9, "optimizer": {"kind": "lamb", "lr": 5e-3},
                                   "groups": [{"match": "*.bias", "lr": 1e-3}]},
        "lamb, clipped by norm, k=2, mpi": {"k": 2, "backend": "mpi", "zero2": True, "clip_norm": 0.3,
                                            "optimizer": {"kind": "lamb", "lr": 5e-3, "weight_decay": 0.01}},
        "muon": {**plain, "shards": False,
                 "optimizer": {"kind": "muon", "lr": 0.02, "adamw_lr": 1e-3, "weight_decay": 0.01}},
        "muon, adamw_match, match_rms_adamw, ema": {
            **plain, "shards": False, "ema": 0.9,
            "optimizer": {"kind": "muon", "lr": 2e-3, "adamw_lr": 1e-3, "adamw_match": "out.*|extra.*", "nesterov": False,
                          "match_rms_adamw": True}},
        "adamw, linear": {**plain, "schedule": ["linear", 30, 0.25, 0.5]},
        "adamw, polynomial": {**plain, "schedule": ["polynomial", 60, 2.0]},
        "adamw, cosine": {**plain, "schedule": ["cosine", STEPS]},
        "adamw, exponential": {**plain, "schedule": ["exponential", 0.97]},
        "adamw, multi_step": {**plain, "schedule": ["multi_step", 15, 30, 0.3]},
        "sgd, plateau": {**plain, "optimizer": SGD,
                         "plateau": {"factor": 0.5, "patience": 2, "min_delta": 0.05, "min_factor": 0.1}},
        "sgd, clipped by value": {**plain, "optimizer": SGD, "clip_value": 0.02},
        "sgd, groups clipped by norm": {**plain, "optimizer": SGD, "clip_norm": 0.3, "groups": [
            {"match": "conv.*|out.*", "max_gradient_norm": 0.05}, {"match": "fc1.bias", "max_gradient_norm": 0.0}]},
        "sgd, groups clipped by both, mpi": {**plain, "optimizer": SGD, "backend": "mpi", "zero2": True, "groups": [
            {"match": "*.bias", "max_gradient_value": 0.01}, {"match": "conv.*|tied_*", "max_gradient_norm": 0.02}]},
        "adamw, ema": {**plain, "ema": 0.9},
        "adamw, ema, mpi": {**plain, "ema": 0.9, "backend": "mpi"},  # no memory that the ranks share
        "sgd, ema, groups, k=4": {"optimizer": SGD, "k": 4, "ema": 0.95,
                                  "groups": [{"match": "*.bias", "lr": 0.005}]},
        "adamw, uneven labels, k=4": {**plain, "k": 4, "weighs": True},
        "sgd, uneven labels": {**plain, "optimizer": SGD, "weighs": True},
    }


def make_batches(case):
    batches = parity_model.make_batches("float64", STEPS * case["k"], 1, SAMPLES)
    if case.get("weighs"):
        # The first ranks ignore more labels than the others, and some ignore all of a batch.
        generator = torch.Generator().manual_seed(5)
        share = torch.linspace(0.9, 0.1, SAMPLES)
        ignored = torch.rand(batches["y"].shape, generator=generator) < share
        ignored[:, :, -1] = False
        batches["y"] = batches["y"].masked_fill(ignored, IGNORED)
    return batches


def for_ranks(batches, ranks):
    count = batches["x"].shape[0]
    divided = {name: tensor.reshape(count, ranks, SAMPLES // ranks, *tensor.shape[3:]).contiguous()
               for name, tensor in batches.items() if name != "counts"}
    return {**divided, "counts": torch.tensor([count] * ranks)}


def groups_for_torch(model, case):
    """As dtrain has them: a parameter is in the first group that matches."""
    import fnmatch

    left = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = []
    for group in case.get("groups", []):
        patterns = group["match"].split("|")
        mine = [n for n in left if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)]
        groups.append({"params": [left.pop(n) for n in mine], **{k: v for k, v in group.items() if k != "match"}})
    for name, p in model.named_parameters():
        p.by_adamw = any(fnmatch.fnmatchcase(name, one) for one in case["optimizer"].get("adamw_match", "").split("|"))
    return [{"params": list(left.values())}, *groups]


def clip_groups(groups, case):
    """Groups with a limit of their own by themselves, all other parameters together."""
    limited = any("max_gradient_norm" in g or "max_gradient_value" in g for g in groups)
    if "clip_norm" not in case and not limited:
        return
    others = []
    for group in groups:
        norm, value = group.get("max_gradient_norm"), group.get("max_gradient_value")
        if norm is None and value is None:
            others += group["params"]
        elif norm:
            torch.nn.utils.clip_grad_norm_(group["params"], norm)
        elif value:
            torch.nn.utils.clip_grad_value_(group["params"], value)
    if "clip_norm" in case:
        torch.nn.utils.clip_grad_norm_(others, case["clip_norm"])


class Trained(typing.NamedTuple):
    weights: dict
    final: dict  # the average, where there is one
    validation_loss: float


def state_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def validation_loss(model, batches):
    """Of the training batches."""
    with torch.no_grad():
        return sum(F.cross_entropy(model(x[0], mask[0]), y[0], ignore_index=IGNORED).item()
                   for x, y, mask in zip(batches["x"], batches["y"], batches["mask"])) / len(batches["x"])


def train_plain(case, weights, batches):
    model = parity_model.make_model(weights, "float64")
    options = {k: v for k, v in case["optimizer"].items() if k != "kind"}
    optimizer = KINDS[case["optimizer"]["kind"]](groups_for_torch(model, case), **options)
    schedule = None
    if "schedule" in case:
        make, arguments = schedulers(*case["schedule"])
        schedule = make(optimizer, *arguments)
    plateau = None
    if "plateau" in case:
        settings = case["plateau"]
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=settings["factor"], patience=settings["patience"] - 1, threshold=settings["min_delta"],
            threshold_mode="abs", min_lr=settings["min_factor"] * case["optimizer"]["lr"], eps=0)
    k = case["k"]
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(case.get("ema", 0)))
    for start in range(0, batches["x"].shape[0], k):
        window = range(start, start + k)
        labels = sum((batches["y"][index] != IGNORED).sum().item() for index in window)
        for index in window:
            scores = model(batches["x"][index, 0], batches["mask"][index, 0])
            total = F.cross_entropy(scores, batches["y"][index, 0], ignore_index=IGNORED, reduction="sum")
            (total / labels).backward()
        clip_groups(optimizer.param_groups, case)
        if "clip_value" in case:
            torch.nn.utils.clip_grad_value_(model.parameters(), case["clip_value"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if schedule:
            schedule.step()
        averaged.update_parameters(model)
        if plateau and (start // k + 1) % VALIDATION_PERIOD == 0:
            plateau.step(validation_loss(model, batches))
    used = averaged.module if "ema" in case else model
    return Trained(state_of(model), state_of(used), validation_loss(used, batches))


def prepare(case, build, weights, batches, folder, ranks, sharded):
    """The experiment file of a run."""
    folder.mkdir()
    parity_model.save(weights, folder / "initial.safetensors")
    parity_model.save(for_ranks(batches, ranks), folder / "batches.safetensors")
    hyperparameters = {"global_batch_size": SAMPLES, "dtype": "float64", "optimizer": case["optimizer"]}
    hyperparameters.update({key: case[key] for key in ("groups", "schedule", "plateau", "clip_norm", "clip_value", "weighs") if key in case})
    return write_experiment(
        folder / "experiment.yaml", name="optimization", entrypoint=build.program("parity_trial"),
        hyperparameters=hyperparameters, resources={"slots_per_trial": ranks},
        optimizations={"aggregation_frequency": case["k"], "sharded_optimizer": sharded, "operators": "default",
                       "sharded_gradients": sharded and case.get("zero2", False),
                       "memory_format": "contiguous", "ema": case.get("ema", 0)},
        data={"file": "batches.safetensors", "validate": "ema" in case or "plateau" in case}, searcher={"metric": "loss", "max_length": {"epochs": 1}},
        min_validation_period={"batches": VALIDATION_PERIOD if "plateau" in case else 0},
        initial_weights="initial.safetensors", communication={"backend": case.get("backend", "auto")})


def run_with_mpi(build, file, ranks):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    run_dir = file.parent / "run"
    return run(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), build.program("parity_trial"),
                str(file), "--run-dir", str(run_dir)], run_dir)


def trained_by(case, result):
    result.expect(0)
    steps = result.metrics("training")[-1]["optimizer_steps"]
    if steps != STEPS:
        raise AssertionError(f"{steps} optimizer steps, not {STEPS}")
    final = parity_model.load(result.weights_file)
    if "ema" not in case:
        return Trained(final, final, None)
    without = parity_model.load(result.weights_file.with_name("model_without_ema.safetensors"))
    return Trained(without, final, result.metrics("validation")[-1]["metrics"]["loss"])


def difference_of(got, expected):
    """The worst relative difference, and of what."""
    worst = max(parity_model.worst_difference(got.weights, expected.weights),
                parity_model.worst_difference(got.final, expected.final))
    if got.validation_loss is not None:
        loss = abs(got.validation_loss / expected.validation_loss - 1)
        worst = max(worst, (loss, "validation loss"))
    return worst


def ways_of(case):
    """(ranks, sharded)"""
    return WAYS if case.get("shards", True) else sorted({(ranks, False) for ranks, _ in WAYS})


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1])
    workplace = Workplace("optimization")
    weights = parity_model.initial_weights("float64")
    chosen = {title: case for title, case in cases().items() if all(word in title for word in sys.argv[2:])}
    if not shutil.which("mpirun"):
        for title in [title for title, case in chosen.items() if case.get("backend") == "mpi"]:
            print(f"{title}: left out, there is no mpirun")
            del chosen[title]
    files, batches = {}, {title: make_batches(case) for title, case in chosen.items()}
    for title, case in chosen.items():
        for ranks, sharded in ways_of(case):
            folder = workplace.path / f"{title.replace(', ', '-')}-{ranks}-{sharded}"
            files[title, ranks, sharded] = prepare(case, build, weights, batches[title], folder, ranks, sharded)
    together = [key for key in files if "backend" not in chosen[key[0]]]
    results = dict(zip(together, run_many(build, "parity_trial", workplace.path, [files[key] for key in together])))

    failures = 0
    print(f"relative L2 difference of the worst parameter after {STEPS} steps; limit {LIMIT} (files: {workplace.path})")
    print(f"{'case':32} " + " ".join(f"{r} rank{'s' if r > 1 else ' '} {'sharded' if s else '':7}" for r, s in WAYS))
    for title, case in chosen.items():
        expected = train_plain(case, weights, batches[title])
        line = f"{title:32} "
        for ranks, sharded in ways_of(case):
            key = title, ranks, sharded
            result = results[key] if key in results else run_with_mpi(build, files[key], ranks)
            difference, name = difference_of(trained_by(case, result), expected)
            good = difference <= LIMIT
            failures += not good
            line += f"{difference:15.2e}" + ("" if good else f" TOO MUCH ({name})")
        print(line, flush=True)
    if failures:
        sys.exit(f"{failures} results differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
