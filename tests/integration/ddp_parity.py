"""Two ranks of dtrain against PyTorch's DistributedDataParallel, and one rank with the whole batch against both.

    ddp_parity.py BIN_FOLDER

Same initial weights, same batches, 20 optimizer steps. Compared is each parameter's relative L2 norm.
"""
import math
import sys

import torch

import parity_model
from ddp_peer import WORLD, run_ddp
from harness import Build, Workplace, write_experiment
from many_runs import run_many

STEPS = 20
SAMPLES = 8  # of a rank's batch
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
ADAMW = {"kind": "adamw", "lr": 1e-3, "weight_decay": 1e-2}
ADAM = {"kind": "adam", "lr": 1e-3, "weight_decay": 1e-4}
AGAINST_DDP = {"float32": 1e-6, "float64": 1e-12}
AGAINST_ONE_RANK = {"float32": 1e-4, "float64": 1e-10}


def make_cases():
    cases = []
    for dtype in ("float32", "float64"):
        for optimizer in (SGD, ADAMW):
            for k in (1, 4):
                for sharded in (False, True):
                    cases.append({"optimizer": optimizer, "k": k, "dtype": dtype, "clip": 0, "average": True,
                                  "fusion": 64, "sharded": sharded})
    plain = {"k": 1, "dtype": "float32", "clip": 0, "average": True, "fusion": 64}
    cases += [
        {**plain, "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}, "fusion": 0},  # every gradient on its own
        {**plain, "optimizer": {"kind": "sgd", "lr": 0.1}},
        {**plain, "optimizer": ADAM, "fusion": 0},
        {**plain, "optimizer": SGD, "clip": 0.5},
        {**plain, "optimizer": SGD, "clip": 0.5, "sharded": True},
        {**plain, "optimizer": ADAM, "fusion": 0, "sharded": True},
        {**plain, "optimizer": ADAMW, "clip": 0.5, "k": 4},
        {**plain, "optimizer": {**SGD, "lr": 0.01}, "k": 4, "average": False},
        {**plain, "optimizer": SGD, "batch_norm": True},
        {**plain, "optimizer": SGD, "batch_norm": True, "sharded": True},
    ]
    for case in cases:
        case["weights"] = parity_model.initial_weights(case["dtype"], batch_norm=case.get("batch_norm", False))
        case["batches"] = parity_model.make_batches(case["dtype"], STEPS * case["k"], WORLD, SAMPLES)
    return cases


def title(case):
    o = case["optimizer"]
    text = f"{o['kind']}{' momentum' if o.get('momentum') else ''}{' nesterov' if o.get('nesterov') else ''} k={case['k']}"
    text += f" {case['dtype']}"
    if case["clip"]:
        text += f" clip={case['clip']}"
    if not case["average"]:
        text += " summed"
    if case.get("batch_norm"):
        text += " batch norm"
    if case["fusion"] == 0:
        text += " unfused"
    if case.get("sharded"):
        text += " sharded"
    return text


def ddp_rank(rank, cases, results):
    for index, case in enumerate(cases):
        weights = parity_model.train_ddp(case, rank)
        if rank == 0:
            parity_model.save(weights, results / f"ddp-{index}")


def experiment(case, build, path, batches, slots):
    optimizations = {"aggregation_frequency": case["k"], "average_aggregated_gradients": case["average"],
                     "tensor_fusion_threshold": case["fusion"], "sharded_optimizer": case.get("sharded", False),
                     "matmul": "default", "operators": "default", "memory_format": "contiguous"}
    hyperparameters = {"global_batch_size": WORLD * SAMPLES, "dtype": case["dtype"], "optimizer": case["optimizer"]}
    if case["clip"]:
        hyperparameters["clip"] = case["clip"]
    if case.get("batch_norm"):
        hyperparameters["batch_norm"] = True
    return write_experiment(
        path, name="parity", entrypoint=build.program("parity_trial"), hyperparameters=hyperparameters,
        resources={"slots_per_trial": slots}, optimizations=optimizations, data={"file": batches},
        searcher={"metric": "loss", "max_length": {"epochs": 1}}, initial_weights="initial.safetensors")


def prepare(case, build, folder, ranks):
    """The experiment file of a run."""
    folder.mkdir()
    parity_model.save(case["weights"], folder / "initial.safetensors")
    batches = case["batches"] if ranks == WORLD else parity_model.whole_batches(case["batches"])
    parity_model.save(batches, folder / "batches.safetensors")
    return experiment(case, build, folder / "experiment.yaml", "batches.safetensors", ranks)


def weights_of(result):
    result.expect(0)
    steps = result.metrics("training")[-1]["optimizer_steps"]
    if steps != STEPS:
        raise AssertionError(f"{steps} optimizer steps, not {STEPS}")
    return parity_model.load(result.weights_file)


def check_never_used(case, weights):
    for name in ("never", "frozen", "offset"):
        if not torch.equal(weights[name], case["weights"][name]):
            raise AssertionError(f"{name} has changed, which no gradient reached")
    for name in ("conv.weight", "extra.weight", "tied_a.weight"):
        if torch.equal(weights[name], case["weights"][name]):
            raise AssertionError(f"{name} has not changed: nothing was trained")


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1])
    workplace = Workplace("parity")
    cases = make_cases()
    run_ddp(ddp_rank, cases, workplace.path)
    files = {(index, ranks): prepare(case, build, workplace.path / f"{index}-{ranks}", ranks)
             for index, case in enumerate(cases) for ranks in (WORLD, 1)
             if ranks == WORLD or not case.get("batch_norm")}  # whose statistics are those of a rank's batch
    results = dict(zip(files, run_many(build, "parity_trial", workplace.path, files.values())))

    failures = 0
    print(f"relative L2 difference of the worst parameter after {STEPS} steps (files: {workplace.path})")
    print(f"{'case':52} {'DDP':>10} {'limit':>8} {'1 rank':>10} {'limit':>8}  worst")
    for index, case in enumerate(cases):
        two = weights_of(results[index, WORLD])
        check_never_used(case, two)
        ddp, worst = parity_model.worst_difference(two, parity_model.load(workplace.path / f"ddp-{index}"))
        whole = math.nan
        if (index, 1) in results:
            whole, _ = parity_model.worst_difference(two, weights_of(results[index, 1]))
        limit, one_limit = AGAINST_DDP[case["dtype"]], AGAINST_ONE_RANK[case["dtype"]]
        good = ddp <= limit and not whole > one_limit
        failures += not good
        print(f"{title(case):52} {ddp:10.2e} {limit:8.0e} {whole:10.2e} {one_limit:8.0e}  {worst}"
              f"{'' if good else '   TOO MUCH'}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(cases)} cases differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
