"""Two ranks of dtrain-worker on a TorchScript file against the same model under PyTorch's DistributedDataParallel.

    torchscript_parity.py BIN_FOLDER

Same initial weights, same batches, 20 optimizer steps. Compared is each parameter's and buffer's relative L2 norm.
"""
import copy
import sys

import numpy
import torch
import torch.nn.functional as F

import parity_model
from ddp_peer import WORLD, run_ddp
from harness import Build, Workplace, launch, write_experiment
from sample_order import epoch_order
from torchscript_models import Net, experiment, random_weights, save_script, write_idx

STEPS = 20
SAMPLES = 8  # of a rank's batch
SEED = 5
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LIMITS = {"float32": 1e-6, "float64": 1e-12}
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
ADAMW = {"kind": "adamw", "lr": 1e-3, "weight_decay": 1e-2}


class TracedNet(Net):
    """A trace cannot keep an assignment to a buffer."""

    def forward(self, images):
        h = self.fc1(self.body(images).flatten(1)).relu() * self.frozen
        return self.out(self.tied_b(self.tied_a(h).relu()).relu())


def make_cases():
    torch.manual_seed(0)
    cases = [{"dtype": dtype, "optimizer": optimizer, "traced": traced, "clip": 0}
             for dtype in DTYPES for optimizer in (SGD, ADAMW) for traced in (False, True)]
    cases.append({"dtype": "float32", "optimizer": {**SGD, "nesterov": True, "weight_decay": 1e-4}, "traced": False, "clip": 0.5})
    for case in cases:
        model = random_weights(TracedNet() if case["traced"] else Net(), seed=1).to(DTYPES[case["dtype"]])
        case["model"] = model
    return cases


def make_data():
    generator = numpy.random.default_rng(2)
    images = generator.integers(0, 256, (STEPS * WORLD * SAMPLES + 5, 8, 8))
    return images, generator.integers(0, 10, len(images))


def batches_of(rank, images, labels, dtype):
    order = epoch_order(len(images), SEED)
    for step in range(STEPS):
        start = (step * WORLD + rank) * SAMPLES
        chosen = order[start : start + SAMPLES]
        yield torch.from_numpy(images[chosen]).unsqueeze(1).to(dtype) * (1 / 255), torch.from_numpy(labels[chosen])


def ddp_rank(rank, cases, images, labels, folder):
    for index, case in enumerate(cases):
        model = copy.deepcopy(case["model"])
        ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = parity_model.make_optimizer(model, case["optimizer"])
        for x, y in batches_of(rank, images, labels, DTYPES[case["dtype"]]):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(ddp(x), y).backward()
            if case["clip"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
            optimizer.step()
        if rank == 0:
            parity_model.save(dict(model.state_dict()), folder / f"ddp-{index}")


def train_ours(case, build, folder, data):
    folder.mkdir()
    example = torch.zeros(SAMPLES, 1, 8, 8, dtype=DTYPES[case["dtype"]]) if case["traced"] else None
    save_script(copy.deepcopy(case["model"]), folder / "model.pt", example)
    optimizer = dict(case["optimizer"])
    if case["clip"]:
        optimizer["max_gradient_norm"] = case["clip"]
    sections = experiment("model.pt", data, steps=STEPS, batch=WORLD * SAMPLES, slots=WORLD, optimizer=optimizer,
                          reproducibility={"experiment_seed": SEED}, optimizations={"matmul": "default", "operators": "default", "memory_format": "contiguous"})
    result = launch(build, write_experiment(folder / "experiment.yaml", **sections), folder / "run").expect(0)
    steps = result.metrics("training")[-1]["optimizer_steps"]
    if steps != STEPS:
        raise AssertionError(f"{steps} optimizer steps, not {STEPS}")
    return result


def check(case, weights, file):
    """What must not change has not, what must has, and model.pt holds the same numbers as the safetensors."""
    before = case["model"].state_dict()
    for name in ("never", "frozen"):
        if not torch.equal(weights[name], before[name]):
            raise AssertionError(f"{name} has changed, which no gradient reached")
    for name in ("body.0.weight", "tied_a.weight", "body.1.running_mean", *(() if case["traced"] else ("seen",))):
        if torch.equal(weights[name], before[name]):
            raise AssertionError(f"{name} has not changed: nothing was trained")
    script = torch.jit.load(str(file))
    if script.training or script.tied_a.weight.data_ptr() != script.tied_b.weight.data_ptr():
        raise AssertionError("model.pt is in training mode, or its shared weight is no longer shared")
    if [n for n, p in script.named_parameters() if not p.requires_grad] != ["frozen"]:
        raise AssertionError("model.pt has other frozen parameters")
    state = script.state_dict()
    if set(state) != set(weights) or any(not torch.equal(state[n], w) for n, w in weights.items()):
        raise AssertionError("model.pt and model.safetensors differ")


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "dtrain-worker")
    workplace = Workplace("torchscript-parity")
    cases = make_cases()
    images, labels = make_data()
    write_idx(workplace.path / "images", images)
    write_idx(workplace.path / "labels", labels)
    data = {"format": "idx", "training": {"features": str(workplace.path / "images"), "target": str(workplace.path / "labels")}}
    run_ddp(ddp_rank, cases, images, labels, workplace.path)

    failures = 0
    print(f"relative L2 difference of the worst tensor after {STEPS} steps (files: {workplace.path})")
    for index, case in enumerate(cases):
        result = train_ours(case, build, workplace.path / str(index), data)
        weights = parity_model.load(result.weights_file)
        check(case, weights, result.weights_file.with_name("model.pt"))
        worst, name = parity_model.worst_difference(weights, parity_model.load(workplace.path / f"ddp-{index}"))
        good = worst <= LIMITS[case["dtype"]]
        failures += not good
        title = f"{case['optimizer']['kind']} {case['dtype']} {'traced' if case['traced'] else 'scripted'}"
        title += f" clip={case['clip']}" if case["clip"] else ""
        print(f"{title:34} {worst:10.2e} {LIMITS[case['dtype']]:8.0e}  {name}{'' if good else '   TOO MUCH'}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(cases)} cases differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
