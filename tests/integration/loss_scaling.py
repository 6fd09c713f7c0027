"""float16 training on fake GPUs against PyTorch's GradScaler with autocast in float16 on the CPU.

    loss_scaling.py BIN_FOLDER [RANKS ...]

Some batches have so large a weight that their gradients overflow, on all ranks or on one alone. The same updates must be
skipped, and the scale must be the same after each; losses and weights are compared, too. The reference of several ranks
sums gradients in the order of the ranks; DistributedDataParallel does the same on two ranks. A step makes the host wait
for nothing. bfloat16 is compared with PyTorch's autocast alike, where nothing is scaled.
"""
import copy
import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

import parity_model
from ddp_peer import WORLD, run_ddp
from gpu_cases import run_cases
from harness import Build, Workplace

BATCHES, SAMPLES = 42, 6
# Where the scale of the sums is a power of two, and nothing is clipped, every rounding is the same but for elements that
# fill no vector of the optimizer's kernel.
EXACT = 1e-6
# Else rounding differs, and float16 enlarges that: a weight may round to the neighbouring number, which is up to 2^-10 of it
# away. Whether one does depends on the processor (6e-4 where MKL has AVX-512, 3e-6 with its code for AVX2).
ROUNDED = 1e-3
# One lost message of error feedback is far more.
COMPRESSED_LIMIT = 1e-5
SETTINGS = {"initial_scale": 2.0**14, "growth_interval": 4}
ADAMW = {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01}
SGD = {"kind": "sgd", "lr": 0.02, "momentum": 0.9}
# Of a spike one parameter's gradient alone is infinite: where updates are sharded, one rank sees it.
ALL, LAST, SPIKE = "on all ranks", "on the last rank", "in one parameter on the last rank"
# Batches, from 1, whose gradients overflow.
PLANTED = {5: ALL, 9: LAST, 10: SPIKE, 23: LAST, 24: ALL, 25: SPIKE, 40: LAST}
COUNTED = {"count_from": 25, "count_to": 38}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class NormedMlp(nn.Module):
    """That of gpu_trial_models.cpp."""

    def __init__(self):
        super().__init__()
        self.spiked = nn.Parameter(torch.randn(16))
        self.first, self.norm = nn.Linear(32, 64), nn.LayerNorm(64)
        self.second, self.out = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.norm(self.first(x).relu().float())
        return self.out(self.second(x).relu()).float()


def initial_model():
    torch.manual_seed(3)
    model = NormedMlp()
    nn.init.normal_(model.norm.bias, std=0.3)  # zeros would have no norm to compare with
    return model


def make_batches(ranks, planted, batches=BATCHES):
    generator = torch.Generator().manual_seed(2)
    made = {"x": torch.randn(batches, ranks, SAMPLES, 32, generator=generator),
            "y": torch.randint(0, 10, (batches, ranks, SAMPLES), generator=generator),
            "weight": torch.ones(batches, ranks, SAMPLES), "spike": torch.zeros(batches, ranks, SAMPLES),
            "counts": torch.full((ranks,), batches)}
    for batch, where in planted.items():
        if where == SPIKE:
            made["spike"][batch - 1, ranks - 1] = 1e37  # times the scale: infinite
        else:
            made["weight"][batch - 1, slice(None) if where == ALL else ranks - 1] = 1e4
    return made


def without_batch(batches, number):
    left = [index for index in range(batches["x"].shape[0]) if index != number - 1]
    return {**{name: tensor[left] for name, tensor in batches.items() if name != "counts"},
            "counts": batches["counts"] - 1}


def batch_loss(model, batches, index, rank, dtype=torch.float16):
    with torch.autocast("cpu", dtype):
        loss = F.cross_entropy(model(batches["x"][index, rank]), batches["y"][index, rank])
        spiked = getattr(model, "module", model).spiked  # DistributedDataParallel has the model in it
        zero = (spiked * batches["spike"][index, rank, 0]).sum()
        return loss * batches["weight"][index, rank, 0] + (zero - zero.detach())


class Peer:
    """An optimizer of PyTorch with a GradScaler, and what they do in each update."""

    def __init__(self, model, case):
        options = dict(case["optimizer"])
        kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[options.pop("kind")]
        self.model, self.clip = model, case.get("clip", 0)
        self.optimizer = kind(model.parameters(), fused=True, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SETTINGS["initial_scale"],
                                           growth_interval=SETTINGS["growth_interval"],
                                           enabled=case["precision"] == "fp16")
        self.changes = []  # (batch, scale, whether the update was skipped)

    def update(self, batch):
        before = self.scaler.get_scale()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        after = self.scaler.get_scale()
        if after != before:
            self.changes.append((batch, after, after < before))

    def weights(self):
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def reference(case, batches):
    """(changes of the scale, losses, weights) of all ranks' batches in this process."""
    ranks, k = batches["x"].shape[1], case.get("k", 1)
    model = initial_model()
    peer = Peer(model, case)
    losses, sums = [], None
    for index in range(batches["x"].shape[0]):
        if index % k == 0:
            sums = [None] * ranks
        of_ranks = []
        for rank in range(ranks):
            model.zero_grad(set_to_none=True)
            loss = batch_loss(model, batches, index, rank, TYPES[case["precision"]])
            of_ranks.append(loss.item())
            peer.scaler.scale(loss).backward()
            gradients = [p.grad for p in model.parameters()]
            sums[rank] = gradients if sums[rank] is None else [a + b for a, b in zip(sums[rank], gradients)]
        losses.append(sum(of_ranks) / ranks)
        if (index + 1) % k:
            continue
        for p, of_ranks in zip(model.parameters(), zip(*sums)):
            p.grad = sum(of_ranks[1:], of_ranks[0]) / (ranks * k)
        peer.update(index + 1)
    return peer.changes, losses, peer.weights()


def ddp_rank(rank, case, folder):
    batches = make_batches(WORLD, PLANTED)
    model = initial_model()
    ddp = nn.parallel.DistributedDataParallel(model)
    peer = Peer(model, case)
    for index in range(BATCHES):
        model.zero_grad(set_to_none=True)
        peer.scaler.scale(batch_loss(ddp, batches, index, rank)).backward()
        peer.update(index + 1)
    (folder / f"ddp-{rank}.json").write_text(json.dumps(peer.changes))


def case(name, optimizer=ADAMW, planted=PLANTED, settings=SETTINGS, count=False, peer=True, precision="fp16", **parts):
    return {"name": name, "optimizer": optimizer, "planted": planted, "settings": settings, "count": count,
            "peer": peer, "precision": precision, **parts}


def bfloat16(name, optimizer=ADAMW, **parts):
    return case(f"bfloat16 {name}", optimizer, planted={}, precision="bf16", **parts)


# Another scale changes nothing here, but an update that is skipped does.
STEADY = {**SETTINGS, "growth_interval": 1000}
LATE = 33  # when the compressor's comparison with uncompressed steps is over
LOCAL = {"inner_steps": 6, "outer_lr": 0.7, "outer_momentum": 0.8}


def compressed(name, compression):
    """With a batch that overflows on one rank, and without that batch."""
    parts = {"gradient_compression": compression, "settings": STEADY, "peer": False, "optimizer": SGD}
    return [case(name, planted={LATE: LAST}, **parts), case(f"{name} without", planted={}, without=LATE, **parts)]


CASES = {
    1: [bfloat16("adamw"), case("adamw"), case("sgd clip", SGD, clip=0.3), case("adamw k=2", k=2),
        case("counted", count=True)],
    2: [case("adamw replicated", sharded_optimizer=False), case("adamw sharded", sharded_optimizer=True),
        case("sgd auto", SGD), case("adamw sharded clip", sharded_optimizer=True, clip=0.3),
        case("sgd replicated clip k=3", SGD, sharded_optimizer=False, clip=0.3, k=3),
        case("sgd sharded k=2", SGD, sharded_optimizer=True, k=2),
        bfloat16("adamw sharded", sharded_optimizer=True),
        bfloat16("sgd replicated k=2", SGD, sharded_optimizer=False, k=2),
        case("counted", count=True, sharded_optimizer=True), case("local", local_sgd=LOCAL, peer=False),
        *compressed("int8", "int8"), *compressed("topk", {"kind": "topk", "ratio": 0.1}), *compressed("fp16", "fp16"),
        *compressed("bf16", "bf16"), *compressed("powersgd", {"kind": "powersgd", "rank": 4, "warmup_steps": 5})],
    3: [bfloat16("sgd sharded", SGD, sharded_optimizer=True), case("adamw replicated", sharded_optimizer=False),
        case("sgd sharded", SGD, sharded_optimizer=True),
        case("adamw sharded clip k=2", sharded_optimizer=True, clip=0.3, k=2)],
}


def batches_of(one, ranks):
    batches = make_batches(ranks, one["planted"])
    return without_batch(batches, one["without"]) if "without" in one else batches


def with_files(one, ranks, folder):
    """The case as gpu_cases has it."""
    path = folder / f"{ranks}-{one['name']}.safetensors".replace(" ", "-")
    parity_model.save(batches_of(one, ranks), path)
    optimizations = {"mixed_precision": one["precision"], "aggregation_frequency": one.get("k", 1), "operators": "default"}
    for key in ("sharded_optimizer", "gradient_compression", "local_sgd"):
        if key in one:
            optimizations[key] = one[key]
    return {"model": "normed_mlp", "optimizer": one["optimizer"], "batches": [0] * ranks, "length": {"epochs": 1},
            "optimizations": optimizations,
            "hyperparameters": {**({"loss_scaling": one["settings"]} if one["precision"] == "fp16" else {}),
                                "clip": one.get("clip", 0.0), **(COUNTED if one["count"] else {})},
            "sections": {"data": {"file": str(path)}, "initial_weights": str(folder / "initial.safetensors"),
                         "scheduling_unit": 100 if one["count"] else 1}}


def changes_of(run, rank=0):
    events = [event for event in run.result.events("loss_scale") if event["rank"] == rank]
    return [(event["batch"], event["scale"], event["skipped"]) for event in events]


def check_told(run, speakers=1):
    """plan.json and the log say what the events say; of `speakers` ranks each."""
    changes = changes_of(run)
    skipped = sum(one[2] for one in changes)
    told = run.result.json("plan.json")["loss_scaling"]
    if (told["skipped_updates"], told["scale"]) != (skipped, changes[-1][1] if changes else SETTINGS["initial_scale"]):
        raise AssertionError(f"plan.json says {told} after {changes}")
    if "non_finite" in run.result.json("plan.json"):
        raise AssertionError("a skipped update was taken for a loss or a norm that is not finite")
    if run.result.output.count("the scale of the loss falls") != (speakers if skipped else 0):
        raise AssertionError(f"the log has not said once of each that the scale falls:\n{run.result.output}")


def check_against_peer(one, run, batches):
    changes, losses, weights = reference(one, batches)
    if changes_of(run) != changes:
        raise AssertionError(f"the scale changed at {changes_of(run)}, PyTorch's at {changes}")
    overflows = any(skipped for _, _, skipped in changes)
    if one["planted"] and (not overflows or all(skipped for _, _, skipped in changes)):
        raise AssertionError("the case does not make the scale fall and grow")
    difference, worst = parity_model.worst_difference(parity_model.load(run.result.weights_file), weights)
    limit = EXACT if batches["x"].shape[1] * one.get("k", 1) in (1, 2, 4) and not one.get("clip") else ROUNDED
    if not difference <= limit:
        raise AssertionError(f"{worst} differs by {difference}, limit {limit}")
    if not one["count"]:
        got = [line["metrics"]["loss"] for line in run.result.metrics("training")]
        if len(got) != len(losses):
            raise AssertionError(f"{len(got)} losses, not {len(losses)}")
        apart = max(abs(a - b) / abs(b) for a, b in zip(got, losses))
        if not apart <= limit:
            raise AssertionError(f"a loss differs by {apart}")
    return f"{difference:10.2e} {limit:8.0e}   {sum(one[2] for one in changes)} skipped, {len(changes)} changes"


def check_counts(run):
    batches = COUNTED["count_to"] - COUNTED["count_from"]
    for rank, counts in enumerate(run.counts):
        # The loss for on_non_finite and, on rank 0, for the display of progress; there also the scale.
        expected = {"host_syncs": 0, "scalar_reads": 0, "pageable_copies": 0, "copies_to_host": 3 if rank == 0 else 1}
        for name, number in expected.items():
            if counts[name] != number * batches:
                raise AssertionError(f"{counts[name] / batches} {name} a batch on rank {rank}, not {number}")


def check_local(run, ranks):
    """Each rank has a scale of its own."""
    skipped = [[batch for batch, _, one in changes_of(run, rank) if one] for rank in range(ranks)]
    for rank, of_rank in enumerate(skipped):
        # A scale that grows far enough makes other batches overflow, too.
        own = {batch for batch, where in PLANTED.items() if where == ALL or rank == ranks - 1}
        if not own <= set(of_rank) or (PLANTED.keys() - own) & set(of_rank):
            raise AssertionError(f"rank {rank} skipped {of_rank}; of the planted ones it has {sorted(own)}")
    return f"{'':10}   skipped by rank: {[len(of_rank) for of_rank in skipped]}"


def check_without(run, other):
    """`other` never had the batch whose update `run` has skipped."""
    skipped = [batch for batch, _, one in changes_of(run) if one]
    if skipped != [LATE]:
        raise AssertionError(f"it skipped {skipped}, not {[LATE]}")
    weights, expected = (parity_model.load(one.result.weights_file) for one in (run, other))
    difference, worst = parity_model.worst_difference(weights, expected)
    if not difference <= COMPRESSED_LIMIT:
        raise AssertionError(f"{worst} differs by {difference} from training without the batch")
    return f"{difference:10.2e}"


def check(one, run, ranks, following):
    run.result.expect(0)
    if run.reports:
        raise AssertionError("\n".join(sorted(set(run.reports))))
    if one["precision"] == "fp16":
        check_told(run, ranks if "local_sgd" in one else 1)
    outcome = ""
    if one["count"]:
        check_counts(run)
    if one["peer"]:
        outcome = check_against_peer(one, run, batches_of(one, ranks))
    elif "local_sgd" in one:
        outcome = check_local(run, ranks)
    elif "without" not in one:
        outcome = check_without(run, following)
    return outcome


def check_repeated(cases, runs):
    """The case whose steps are counted is another one again: the same seed, the same bits."""
    counted = next((index for index, one in enumerate(cases) if one["count"]), None)
    if counted is None:
        return
    wanted = {**cases[counted], "name": ""}
    twin = next(index for index, one in enumerate(cases) if {**one, "name": "", "count": True} == wanted)
    first, again = (runs[index].result.weights_file.read_bytes() for index in (twin, counted))
    if first != again:
        raise AssertionError(f"{runs[counted].folder} has other weights than {runs[twin].folder}")


def check_ddp(run, folder):
    for rank in range(WORLD):
        changes = [tuple(change) for change in json.loads((folder / f"ddp-{rank}.json").read_text())]
        if changes_of(run) != changes:
            raise AssertionError(f"the scale changed at {changes_of(run)}, DDP's at {changes}")


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "gpu_trial")
    workplace = Workplace("loss-scaling")
    parity_model.save(initial_model().state_dict(), workplace.path / "initial.safetensors")
    failures = 0
    print(f"relative L2 difference of the worst parameter, and its limit (files: {workplace.path})")
    chosen = list(map(int, sys.argv[2:] or CASES))
    if WORLD in chosen:
        run_ddp(ddp_rank, copy.deepcopy(CASES[WORLD][0]), workplace.path)  # which is in float16
    for ranks in chosen:
        cases = CASES[ranks]
        runs = [run for (run,) in run_cases(build, workplace.path, ranks,
                                            [with_files(one, ranks, workplace.path) for one in cases], ("cuda",))]
        for index, (one, run) in enumerate(zip(cases, runs)):
            try:
                outcome = check(one, run, ranks, runs[index + 1] if index + 1 < len(runs) else None)
                if ranks == WORLD and index == 0:
                    check_ddp(run, workplace.path)
                    outcome += ", as DDP's"
            except AssertionError as error:
                failures += 1
                outcome = f"FAILED in {run.folder}: {error}"
            print(f"{ranks} {one['name']:26} {outcome}", flush=True)
        check_repeated(cases, runs)
    if failures:
        sys.exit(f"{failures} cases failed")
    workplace.remove()


if __name__ == "__main__":
    main()
