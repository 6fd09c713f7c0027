"""Training in each precision against PyTorch in the same precision: a CNN and a GPT on 1, 2 and 3 ranks.

    precision_parity.py BIN_FOLDER

Same initial weights, same batches, 20 optimizer steps with fused AdamW. The reference of several ranks sums gradients in
the order of the ranks (precision_models.py); DistributedDataParallel does the same with two ranks, except in pure_bf16,
which it does not have. Compared is each tensor's relative L2 norm. Every case runs twice: the same bits.
"""
import hashlib
import sys

import torch

import parity_model
import precision_models
from ddp_peer import WORLD, run_ddp
from harness import Build, Workplace, write_experiment
from many_runs import run_many

STEPS = 20
LIMIT = 1e-6
ADAMW = {"lr": 1e-3, "weight_decay": 1e-2}
# Far enough that training in another precision than the one that was asked for is found out.
APART = 1e-4


def make_cases():
    """Every rank count with the strategy that training takes by itself, and each strategy once."""
    cases = [{"model": model, "precision": precision, "ranks": ranks, "sharded": "auto"}
             for model in ("cnn", "gpt") for precision in ("none", "bf16", "pure_bf16") for ranks in (1, 2, 3)]
    for precision in ("bf16", "pure_bf16"):
        cases += [{"model": "gpt", "precision": precision, "ranks": 2, "sharded": sharded} for sharded in (False, True)]
    return cases


def title(case):
    strategy = {"auto": "", False: " replicated", True: " sharded"}[case["sharded"]]
    return f"{case['model']} {case['precision']} {case['ranks']} rank{'s' * (case['ranks'] > 1)}{strategy}"


def prepare(case, build, folder):
    """The experiment file of a run."""
    folder.mkdir()
    batches = precision_models.make_batches(case["model"], STEPS, case["ranks"])
    parity_model.save(batches, folder / "batches.safetensors")
    parity_model.save(precision_models.initial_model(case["model"]).state_dict(), folder / "initial.safetensors")
    return write_experiment(
        folder / "experiment.yaml", name="precision", entrypoint=build.program("precision_trial"),
        hyperparameters={"global_batch_size": case["ranks"] * precision_models.SAMPLES, "model": case["model"],
                         "optimizer": {"kind": "adamw", **ADAMW}},
        resources={"slots_per_trial": case["ranks"]}, data={"file": "batches.safetensors"},
        optimizations={"mixed_precision": case["precision"], "memory_format": "contiguous", "matmul": "default", "operators": "default",
                       "sharded_optimizer": case["sharded"]},
        searcher={"metric": "loss", "max_length": {"epochs": 1}}, initial_weights="initial.safetensors")


def weights_of(result):
    result.expect(0)
    steps = result.metrics("training")[-1]["optimizer_steps"]
    if steps != STEPS:
        raise AssertionError(f"{steps} optimizer steps, not {STEPS}")
    return result.weights_file


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def reference(case, precision=None):
    batches = precision_models.make_batches(case["model"], STEPS, case["ranks"])
    return precision_models.train(case["model"], precision or case["precision"], batches, ADAMW)


def has_ddp(case):
    return case["ranks"] == WORLD and case["precision"] != "pure_bf16" and case["sharded"] == "auto"


def ddp_rank(rank, cases, folder):
    for index, case in enumerate(cases):
        if not has_ddp(case):
            continue
        batches = precision_models.make_batches(case["model"], STEPS, WORLD)
        weights = precision_models.train_ddp(case["model"], case["precision"], batches, ADAMW, rank)
        if rank == 0:
            parity_model.save(weights, folder / f"ddp-{index}")


def check(case, index, results, folder):
    """What differs too much, and the line that is printed."""
    files = [weights_of(result) for result in results]
    weights = parity_model.load(files[0])
    difference, worst = parity_model.worst_difference(weights, reference(case))
    problems = [] if difference <= LIMIT else [f"PyTorch's {worst}"]
    if digest(files[0]) != digest(files[1]):
        problems.append("the second run's bits")
    line = f"{title(case):34} {difference:10.2e}"
    if has_ddp(case):
        difference, worst = parity_model.worst_difference(weights, parity_model.load(folder / f"ddp-{index}"))
        line += f" {difference:10.2e}"
        problems += [] if difference <= LIMIT else [f"DDP's {worst}"]
    else:
        line += f" {'-':>10}"
    if case["precision"] != "none":
        distance, _ = parity_model.worst_difference(weights, reference(case, "none"))
        line += f" {distance:10.2e}"
        problems += [] if distance > APART else ["the precision: it is float32's result"]
    return problems, line


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "precision_trial")
    workplace = Workplace("precision")
    cases = make_cases()
    run_ddp(ddp_rank, cases, workplace.path)
    turns = [[prepare(case, build, workplace.path / f"{index}-{turn}") for index, case in enumerate(cases)]
             for turn in ("first", "again")]
    results = [run_many(build, "precision_trial", workplace.path, files) for files in turns]
    print(f"relative L2 difference of the worst tensor after {STEPS} steps (limit {LIMIT:.0e}; files: {workplace.path})")
    print(f"{'case':34} {'PyTorch':>10} {'DDP':>10} {'float32':>10}")
    failures = 0
    for index, (case, both) in enumerate(zip(cases, zip(*results))):
        problems, line = check(case, index, both, workplace.path)
        failures += bool(problems)
        print(line + (f"   DIFFERS FROM {', '.join(problems)}" if problems else ""), flush=True)
    if failures:
        sys.exit(f"{failures} of {len(cases)} cases differ")
    workplace.remove()


if __name__ == "__main__":
    main()
