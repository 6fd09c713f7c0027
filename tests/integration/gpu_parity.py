"""Training on fake GPUs against training on CPUs: the same weights and metrics, no race, no wait of the host in a step.

    gpu_parity.py BIN_FOLDER

Every case trains with the same number of ranks on both. Where gradients are summed and scaled in the same order, all
bits are equal. Else (a scale that is no power of two, the norm of clipping) the worst parameter's relative L2 difference
has a limit; such cases are in float64, so that training does not enlarge differences of rounding.
"""
import sys
import time

import torch

import parity_model
from gpu_cases import run_cases
from harness import Build, Workplace

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
ADAM = {"kind": "adam", "lr": 2e-3, "weight_decay": 1e-3}
ADAMW = {"kind": "adamw", "lr": 3e-3}
LAMB = {"kind": "lamb", "lr": 1e-2, "weight_decay": 1e-2}
OTHERS = [
    {"kind": "radam", "lr": 2e-3, "weight_decay": 1e-3},
    {"kind": "rmsprop", "lr": 1e-3, "momentum": 0.5, "centered": True},
    {"kind": "adagrad", "lr": 1e-2, "lr_decay": 1e-2, "weight_decay": 1e-3},
    {"kind": "lion", "lr": 1e-3, "weight_decay": 1e-2},
    {"kind": "muon", "lr": 2e-2, "weight_decay": 1e-2, "adamw_lr": 2e-3},
]
EXACT = 0
SUMS = 1e-11  # other orders of sums, in float64
NARROW = 5e-3  # NCCL sums float16 and bfloat16 in their own type
AUTOCAST = 0.3
NORM = 1e-6  # clipping's factor is a float32 on a GPU
FACTORS = 2e-4  # float32 products of other kernels, whose differences training enlarges

# Between these batches nothing but steps happens: no metrics are due, buckets and strategy do not change.
COUNTED = {"count_from": 25, "count_to": 35}
BATCHES = COUNTED["count_to"] - COUNTED["count_from"]
# A batch, on rank 0 of several. The batch is two tensors; the loss goes to the host for on_non_finite and for the
# display of progress. Copies on the device: the loss becomes a double for each of the two, gradients get to their places.
PINNED = {
    ("mlp", False): {"kernels": 25, "copies_on_device": 2, "nccl_operations": 1},
    ("cnn", False): {"kernels": 33, "copies_on_device": 3, "nccl_operations": 1},
    ("gpt", False): {"kernels": 126, "copies_on_device": 20, "nccl_operations": 1},
    ("mlp", True): {"kernels": 25, "copies_on_device": 2, "nccl_operations": 2},  # reduce-scatter and all-gather
    ("cnn", True): {"kernels": 33, "copies_on_device": 3, "nccl_operations": 2},
    ("gpt", True): {"kernels": 126, "copies_on_device": 20, "nccl_operations": 2},
}
PINNED_FOR_ALL = {"copies_to_device": 2, "copies_to_host": 2, "pageable_copies": 0, "scalar_reads": 0, "host_syncs": 0}


def case(model, optimizer, sharded, limit, k=1, dtype="float32", batches=None, epochs=None, count=False, local_sgd=None,
         fusion=None, compression=None, precision=None, ema=None, **hyperparameters):
    optimizations = {"aggregation_frequency": k, "operators": "default"}  # as on GPUs
    if ema is not None:
        optimizations["ema"] = ema
    if precision is not None:
        optimizations["mixed_precision"] = precision
    if compression is not None:
        optimizations["gradient_compression"] = compression
    elif local_sgd:
        optimizations["local_sgd"] = local_sgd
    else:
        optimizations["sharded_optimizer"] = sharded
    if fusion is not None:
        optimizations["tensor_fusion_threshold"] = fusion
    hyperparameters = {"dtype": dtype, **(COUNTED if count else {}), **hyperparameters}
    return {"model": model, "optimizer": optimizer, "sharded": sharded, "limit": limit, "batches": batches or [60] * 4,
            "optimizations": optimizations, "hyperparameters": hyperparameters, "count": count, "epochs": epochs,
            "sections": {"scheduling_unit": 20, "min_validation_period": {"batches": 22}}}


def title(one):
    parts = [one["model"], one["optimizer"]["kind"], STRATEGIES[one["sharded"]]]
    parts += [f"{key}={value}" for key, value in one["hyperparameters"].items() if key not in COUNTED]
    optimizations = one["optimizations"]
    parts += [f"k={optimizations['aggregation_frequency']}"] if optimizations["aggregation_frequency"] > 1 else []
    if "local_sgd" in optimizations:
        parts.append("local " + str(optimizations["local_sgd"].get("compression", "")))
    parts += [str(optimizations["gradient_compression"])] if "gradient_compression" in optimizations else []
    parts += [optimizations["mixed_precision"]] if "mixed_precision" in optimizations else []
    parts += [f"ema={optimizations['ema']}"] if "ema" in optimizations else []
    parts += ["buckets"] if "tensor_fusion_threshold" in optimizations else []
    parts += ["uneven"] if one["epochs"] else []
    return " ".join(parts)


STRATEGIES = {False: "replicated", True: "sharded", "auto": "auto"}
F64 = {"dtype": "float64"}
UNEVEN = {"batches": [17, 12, 19, 3], "epochs": 3}  # of each rank
TOP_K = {"kind": "topk", "ratio": 0.1}
POWER_SGD = {"kind": "powersgd", "rank": 2, "warmup_steps": 5}
CHECKPOINTED = {"checkpointed": "cuda"}  # not on the CPUs: nothing but memory and time differ
# Autocast casts other operators on GPUs than on CPUs, so weights are alike and no more.
MIXED = [
    case("gpt", SGD, False, AUTOCAST, precision="bf16"),
    case("cnn", SGD, True, AUTOCAST, precision="pure_bf16"),
    case("mlp", SGD, "auto", AUTOCAST, precision="pure_bf16", clip=0.3, k=3),
]
COMPRESSED = [  # the bits of the CPU's codecs; powersgd: about the same values
    case("gpt", ADAMW, False, EXACT, compression="int8", count=True),
    case("odd", SGD, False, EXACT, compression="int8", k=3, fusion=256),
    case("gpt", SGD, False, EXACT, compression=TOP_K, count=True, delay_queries=3),
    case("gpt", SGD, False, FACTORS, compression=POWER_SGD, count=True),
    case("mlp", SGD, False, FACTORS, compression=POWER_SGD, k=3, fusion=4096),
]
NEAR = [  # whatever the number of ranks
    case("mlp", SGD, True, NORM, clip=0.1, **F64),
    case("odd", ADAM, True, SUMS, k=3, **F64),
    case("cnn", SGD, False, SUMS, **UNEVEN, **F64),
]
SAME_ORDER = [  # the number of ranks is a power of two
    case("mlp", SGD, False, EXACT, count=True),
    case("cnn", ADAMW, True, EXACT, count=True),
    case("gpt", ADAM, False, EXACT, count=True),
]
CASES = {
    1: [*SAME_ORDER,
        case("gpt", SGD, False, EXACT, compression="fp16"),
        case("gpt", ADAM, False, EXACT, k=2, **CHECKPOINTED),
        case("gpt", ADAMW, False, NORM, clip=0.3, k=3, **F64), case("odd", ADAM, True, EXACT)],
    2: [*SAME_ORDER, *NEAR, *MIXED,
        case("mlp", SGD, True, EXACT, count=True),
        case("cnn", ADAMW, False, EXACT, count=True, delay_queries=3),
        case("gpt", ADAMW, True, EXACT, count=True),
        case("gpt", SGD, False, NORM, clip=0.3, **F64),
        case("gpt", ADAM, True, EXACT, fusion=4096),
        # The strategies take turns: the optimizer's state moves.
        case("gpt", ADAMW, "auto", EXACT),
        case("odd", SGD, False, EXACT, sparse=True),
        case("odd", ADAMW, True, SUMS, k=3, **UNEVEN, **F64),
        case("odd", ADAM, False, NORM, k=3, clip=0.5, delay_queries=2, **UNEVEN, **F64),
        case("mlp", SGD, False, SUMS, local_sgd={"inner_steps": 7}, **F64),
        *COMPRESSED,
        case("gpt", ADAM, True, EXACT, fusion=4096, **CHECKPOINTED),
        case("gpt", ADAM, False, EXACT, compression="fp16", count=True),
        case("cnn", SGD, False, NARROW, compression="bf16", clip=0.3),
        case("odd", ADAM, False, EXACT, compression="fp16", **UNEVEN),
        case("mlp", SGD, False, EXACT, local_sgd={"inner_steps": 7, "compression": "int8"}),
        *[case("gpt", other, False, EXACT) for other in OTHERS],
        *[case("odd", other, True, EXACT) for other in OTHERS if other["kind"] != "muon"],  # it updates whole parameters
        case("gpt", LAMB, False, SUMS, **F64), case("odd", LAMB, True, SUMS, **F64),
        case("gpt", LAMB, False, FACTORS),  # square roots of the CPU are not always the nearest numbers
        case("cnn", ADAMW, False, EXACT, ema=0.9), case("gpt", ADAM, True, EXACT, ema=0.9)],
    3: [*NEAR, *MIXED,
        *COMPRESSED,
        case("gpt", SGD, False, SUMS, **CHECKPOINTED, **F64),
        case("gpt", SGD, False, NARROW, compression="fp16", fusion=4096),
        case("odd", SGD, False, NARROW, compression="bf16", k=3),
        case("mlp", SGD, False, EXACT, local_sgd={"inner_steps": 7, "compression": TOP_K}),
        case("mlp", SGD, False, FACTORS, local_sgd={"inner_steps": 4, "compression": {**POWER_SGD, "warmup_steps": 1}}),
        case("gpt", SGD, False, SUMS, **F64),
        case("gpt", SGD, True, SUMS, **F64),
        case("odd", SGD, True, SUMS, k=3, sparse=True, **F64),
        case("odd", LAMB, True, NORM, k=3, clip=0.5, delay_queries=2, **UNEVEN, **F64),
        case("odd", ADAM, False, SUMS, fusion=256, **F64)],
    4: [*SAME_ORDER,
        case("odd", ADAM, True, EXACT),
        case("gpt", SGD, True, NORM, clip=0.3, delay_queries=3, **F64),
        case("mlp", ADAM, "auto", EXACT),
        case("cnn", SGD, True, SUMS, k=3, **UNEVEN, **F64)],
}


def with_length(one):
    length = {"epochs": one["epochs"]} if one["epochs"] else {"batches": 38}
    return {**one, "length": length}


def check_metrics(on_gpus, on_cpus, limit):
    """Every line but for rounding of sums; how many optimizer steps there were, too."""
    if len(on_gpus) != len(on_cpus) or not on_gpus:
        raise AssertionError(f"{len(on_gpus)} lines of metrics on GPUs, {len(on_cpus)} on CPUs")
    for got, expected in zip(on_gpus, on_cpus):
        got, expected = ({key: value for key, value in line.items() if key != "time"} for line in (got, expected))
        values, expected_values = got.pop("metrics"), expected.pop("metrics")
        for line, of_line in ((got, values), (expected, expected_values)):
            of_line.update({key: line.pop(key) for key in ("gradient_norm",) if key in line})
        got.pop("best", None), expected.pop("best", None)
        if got != expected or values.keys() != expected_values.keys():
            raise AssertionError(f"{got} {values} on GPUs, {expected} {expected_values} on CPUs")
        for name, value in values.items():
            wanted = expected_values[name]  # one that is no number is a text
            if not abs(float(value) - float(wanted)) <= max(limit, 1e-12) * 10 * abs(float(wanted)):
                raise AssertionError(f"{name} is {value} on GPUs, {expected_values[name]} on CPUs, in {got}")


def check_counts(one, counts):
    sharded = one["sharded"] and len(counts) > 1
    compressed = "gradient_compression" in one["optimizations"]
    expected = {**({} if compressed else PINNED[one["model"], sharded]), **PINNED_FOR_ALL}
    if len(counts) == 1 and not compressed:
        expected["kernels"] -= 1  # one that makes the divisor of the sum over ranks
    for rank, of_rank in enumerate(counts):
        for name, number in expected.items():
            # The loss is shown, and so copied, by rank 0 alone.
            number -= rank > 0 and name in ("copies_to_host", "copies_on_device")
            if of_rank[name] != number * BATCHES:
                raise AssertionError(f"{of_rank[name] / BATCHES} {name} a batch on rank {rank}, not {number}")


def check_trained(result):
    """Weights that nothing has changed would be equal, too."""
    losses = [line["metrics"]["loss"] for line in result.metrics("validation")]
    if len(losses) < 2 or len(set(losses)) < len(losses):
        raise AssertionError(f"the validation's loss was {losses}: nothing has been trained")


def check(one, gpus, cpus):
    gpus.result.expect(0), cpus.result.expect(0)
    reports = [*gpus.reports, *cpus.reports]
    if reports:
        raise AssertionError("\n".join(sorted(set(reports))))
    weights = parity_model.load(gpus.result.weights_file)
    expected = parity_model.load(cpus.result.weights_file)
    check_trained(cpus.result)
    difference, worst = parity_model.worst_difference(weights, expected)
    if one["limit"] == EXACT:
        for name, tensor in expected.items():
            if not torch.equal(weights[name], tensor):
                raise AssertionError(f"{name} differs; the worst, {worst}, by {difference}")
    elif not difference <= one["limit"]:
        raise AssertionError(f"{worst} differs by {difference}")
    for kind in ("training", "validation"):
        check_metrics(gpus.result.metrics(kind), cpus.result.metrics(kind), one["limit"])
    if one["count"]:
        check_counts(one, gpus.counts)
    if gpus.result.json("plan.json")["communication"] != cpus.result.json("plan.json")["communication"]:
        raise AssertionError("the ranks' communicator of the host is another one")
    return difference


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "gpu_trial")
    workplace = Workplace("gpu-parity")
    failures = 0
    print(f"relative L2 difference of the worst parameter (files: {workplace.path})")
    for ranks in map(int, sys.argv[2:] or CASES):
        began = time.monotonic()
        cases = [with_length(one) for one in CASES[ranks]]
        for one, (gpus, cpus) in zip(cases, run_cases(build, workplace.path, ranks, cases)):
            try:
                outcome = f"{check(one, gpus, cpus):10.2e} {one['limit']:8.0e}"
            except AssertionError as error:
                failures += 1
                outcome = f"FAILED in {gpus.folder}: {error}"
            print(f"{ranks} {title(one):52} {outcome}", flush=True)
        print(f"{ranks} ranks: {time.monotonic() - began:.0f} s", flush=True)
    if failures:
        sys.exit(f"{failures} cases failed")
    workplace.remove()


if __name__ == "__main__":
    main()
