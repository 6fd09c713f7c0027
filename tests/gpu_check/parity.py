"""Weights trained on GPUs against those of the CPU and of PyTorch's DistributedDataParallel on the same GPUs.

    parity.py BIN --gpus N --scratch FOLDER [--quick]

Same initial weights, same batches, 60 optimizer steps, on one GPU and on all. From some step on they run as one CUDA graph;
the same training without graphs must give the same bits. Compared is each tensor's relative L2
norm. In float64 nothing but the order of sums differs, so its limit is strict; in float32 matrix products may be
rounded to TF32.
Exit codes: 0 all near, 1 not.
"""
import argparse
import os
import sys

import torch
import torch.distributed
import torch.multiprocessing

from files import read_safetensors, worst_difference, write_safetensors, write_tokens
from launches import Dtrain, add_arguments, free_port
from models import OPTIMIZERS, Gpt, SmallCnn, batch_loss, make_optimizer, random_weights, save_exported, save_script

from reference_optimizers import Lamb  # launches.py knows where these are
from sample_order import epoch_order

STEPS, SAMPLES, SEED = 60, 8, 5
LENGTH, TOKENS = 16, 50
LIMITS = {"float64": 1e-9, "float32": 2e-3}
SGD = {"kind": "sgd", "lr": 2**-4, "momentum": 0.9}
ADAMW = {"kind": "adamw", "lr": 2**-10, "weight_decay": 1e-2}
LAMB = {"kind": "lamb", "lr": 2**-8, "weight_decay": 1e-2}
SMALL_GPT = {"tokens": TOKENS, "length": LENGTH, "layers": 2, "heads": 2, "width": 32, "bias": False}

OPTIMIZERS["lamb"] = Lamb


def make_cases(quick):
    cases = []
    for dtype in ("float64",) if quick else ("float64", "float32"):
        for sharded in (False, True):
            cases.append({"model": "cnn", "dtype": dtype, "sharded": sharded, "optimizer": SGD})
            cases.append({"model": "gpt", "dtype": dtype, "sharded": sharded, "optimizer": ADAMW})
            if sharded or not quick:
                cases.append({"model": "gpt", "dtype": dtype, "sharded": sharded, "optimizer": LAMB})
        for model, optimizer in (("cnn", SGD), ("gpt", ADAMW)):  # from a file of torch.export
            cases.append({"model": model, "dtype": dtype, "sharded": False, "optimizer": optimizer, "file": "model.pt2"})
    return cases


def title(case):
    words = [case["model"], case["dtype"], case["optimizer"]["kind"]]
    return " ".join(words + ["sharded"] * case["sharded"] + ["exported"] * ("file" in case))


def initial_model(case):
    model = SmallCnn() if case["model"] == "cnn" else Gpt(**SMALL_GPT)
    return random_weights(model).to(getattr(torch, case["dtype"]))


def make_data(case, ranks):
    """All samples of the run, and some that fill no batch."""
    count = STEPS * ranks * SAMPLES + 5
    generator = torch.Generator().manual_seed(2)
    if case["model"] == "gpt":
        tokens = torch.randint(0, TOKENS, (count * LENGTH + 1,), generator=generator)
        return tokens[:-1].view(count, LENGTH), tokens[1:].view(count, LENGTH)
    features = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64).to(getattr(torch, case["dtype"]))
    return features, torch.randint(0, 10, (count,), generator=generator)


def batches_of(rank, ranks, data):
    features, target = data
    order = epoch_order(len(target), SEED)
    for step in range(STEPS):
        start = (step * ranks + rank) * SAMPLES
        chosen = torch.tensor(order[start : start + SAMPLES])
        yield features[chosen], target[chosen]


def ddp_rank(rank, port, ranks, cases, device, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"tcp://127.0.0.1:{port}",
                                         rank=rank, world_size=ranks)
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    for case in cases:
        model = initial_model(case).to(place)
        ddp = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[rank] if device == "cuda" else None, find_unused_parameters=case["model"] == "cnn")
        optimizer = make_optimizer(model, case["optimizer"])
        for features, target in batches_of(rank, ranks, make_data(case, ranks)):
            optimizer.zero_grad(set_to_none=True)
            batch_loss(ddp, features.to(place), target.to(place)).backward()
            optimizer.step()
        if rank == 0:
            weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
            torch.save(weights, folder / f"{title(case)}.pt")
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # without destructors, in which threads of gloo and NCCL now and then end the process


# Learning rates above are float32 numbers: a graph reads them as such.
def train_ours(dtrain, case, ranks, folder, slot_type=None, **optimizations):
    folder.mkdir(parents=True)
    features, target = make_data(case, ranks)
    file = case.get("file", "model.pt")
    model = folder.parents[1] / f"{case['model']}-{case['dtype']}-{file}"  # of all cases that begin with these weights
    if not model.exists():
        if file.endswith(".pt2"):
            save_exported(initial_model(case), features[:2], model)
        else:
            save_script(initial_model(case), model)
    if case["model"] == "gpt":
        write_tokens(torch.cat([features.flatten(), target.flatten()[-1:]]), folder / "tokens")
        data = {"format": "tokens", "token_type": "int32", "sequence_length": LENGTH, "training": {"file": "tokens"}}
    else:
        write_safetensors({"features": features, "target": target}, folder / "data.safetensors")
        data = {"format": "safetensors", "training": {"file": "data.safetensors"}}
    experiment = {"name": "gpu-parity", "model": str(model), "loss": "cross_entropy", "optimizer": case["optimizer"],
                  "data": data, "hyperparameters": {"global_batch_size": ranks * SAMPLES},
                  "optimizations": {"sharded_optimizer": case["sharded"], **optimizations},
                  "reproducibility": {"experiment_seed": SEED},
                  "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}}
    result = dtrain.launch(folder, experiment, ranks, slot_type).expect(0)
    steps = result.metrics("training")[-1]["optimizer_steps"]
    if steps != STEPS:
        raise AssertionError(f"{steps} optimizer steps, not {STEPS}")
    told = result.json("plan.json").get("cuda_graphs", {"captured": False, "text": "no graphs"})
    return read_safetensors(result.weights_file), told


def check_graphs(dtrain, case, ranks, folder, with_graphs, told):
    """What is wrong with the steps as graphs; empty: nothing."""
    if not told["captured"]:
        return told["text"]
    without, _ = train_ours(dtrain, case, ranks, folder, cuda_graphs=False)
    other = [name for name, tensor in without.items() if not torch.equal(tensor, with_graphs[name])]
    return f"without graphs other bits in {', '.join(other)}" if other else ""


def check(case, ours, references):
    """The line about a case, and whether all is near."""
    limit = LIMITS[case["dtype"]]
    worst = {what: worst_difference(ours, weights) for what, weights in references.items()}
    before = initial_model(case).state_dict()
    unchanged = [name for name in ("norm.weight", "tied", "blocks.0.up.weight", "tokens.weight")
                 if name in before and torch.equal(before[name], ours[name])]
    good = not unchanged and all(value <= limit for value, _ in worst.values())
    texts = [f"{what} {value:8.1e} ({name})" for what, (value, name) in worst.items()]
    texts += [f"not trained: {', '.join(unchanged)}"] if unchanged else []
    return f"{title(case):28} limit {limit:.0e}: {'; '.join(texts)}{'' if good else '   TOO MUCH'}", good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="float64 alone")
    arguments = parser.parse_args()
    dtrain, cases, failures = Dtrain(arguments), make_cases(arguments.quick), 0
    torch.set_num_threads(1)  # what is forked has no other threads
    for ranks in sorted({1, arguments.gpus}):
        folder = arguments.scratch / f"{ranks}-ranks"
        folder.mkdir(parents=True)
        torch.multiprocessing.start_processes(ddp_rank, args=(free_port(), ranks, cases, arguments.peer, folder), nprocs=ranks,
                                              start_method="fork" if arguments.peer == "cpu" else "spawn")
    for ranks in sorted({1, arguments.gpus}):
        folder = arguments.scratch / f"{ranks}-ranks"
        on_cpu = arguments.slot_type != "cpu" and ranks <= len(os.sched_getaffinity(0))
        print(f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {arguments.slot_type}, {STEPS} steps; against DDP on "
              f"{arguments.peer}{' and ranks on the CPU' if on_cpu else ''}")
        for case in cases:
            name = title(case).replace(" ", "-")
            ours, told = train_ours(dtrain, case, ranks, folder / f"{name}-ours")
            references = {"DDP": torch.load(folder / f"{title(case)}.pt")}
            if on_cpu:
                references["CPU"], _ = train_ours(dtrain, case, ranks, folder / f"{name}-cpu", "cpu")
            line, good = check(case, ours, references)
            print(f"  {line}", flush=True)
            wrong = ""
            if arguments.slot_type != "cpu":
                wrong = check_graphs(dtrain, case, ranks, folder / f"{name}-eager", ours, told)
                print(f"  {'':28} {wrong + '   WRONG' if wrong else told['text'] + ', with the same bits'}", flush=True)
            failures += not good or bool(wrong)
    if failures:
        sys.exit(f"{failures} differ too much")


if __name__ == "__main__":
    main()
