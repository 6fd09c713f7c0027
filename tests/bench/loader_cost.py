"""What loading costs a training run, against the same run with `--mock loader`, which repeats its first batch.

    loader_cost.py BIN [--json] [--steps N] [--rounds N] [--share S] [--case NAME]

The loader needs `--share` (0.6) of a core: pictures (JPEG) are made so large that decoding a batch takes this part of the time that
computing takes for it, with one thread. Then plain and mock runs take turns. Three cases:

  free      one rank that computes with one thread and has two cores: the loader's is free (goal: at most 5% more)
  bound     one rank that has one core: its thread and the loader share it
  full      two ranks with one core each, on two cores: no core is free for a loader

`overhead` is the median over the rounds of the mean step of the plain run over that of the mock run, less 1; `expected` what it is if
the loader's work is added to the step. `lost_s` is the time that a run lost, and `finding_seconds` what `dtrain analyze` says of the last
plain run that it lost. `wait` is the share of the steps in which the training waits for a batch.
"""
import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import Build, environment, run, write_experiment  # noqa: E402
from torchscript_models import save_script  # noqa: E402

SIZE, BATCH, WARM_UP = 32, 16, 10
PICTURES, FILES = 64, 6400  # each picture under many names, so that an epoch is longer than a run
CASES = {"free": {"slots": 1, "cores": 2}, "bound": {"slots": 1, "cores": 1}, "full": {"slots": 2, "cores": 1}}


class Model(nn.Module):
    """Some tens of milliseconds a step on one core."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        return self.out(self.body(x).mean([2, 3]))


def make_pictures(folder, side):
    generator = numpy.random.default_rng(side)
    smooth = generator.integers(0, 255, (side // 8 + 1, side // 8 + 1, 3)).astype(numpy.uint8)
    for number in range(PICTURES):
        path = folder / ("a" if number % 2 else "b") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        Image.fromarray(numpy.roll(smooth, number, 0)).resize((side, side), Image.BILINEAR).save(file, "JPEG", quality=90)
        path.write_bytes(file.getvalue())
        for copy in range(1, FILES // PICTURES):
            os.link(path, path.with_name(f"{number}-{copy}.jpg"))


class Bench:
    def __init__(self, build, scratch, steps):
        self.build, self.scratch, self.steps, self.runs = build, scratch, steps, 0
        torch.manual_seed(0)
        save_script(Model(), scratch / "model.pt")

    def launched(self, case, side, mock=False, steps=None):
        folder = self.scratch / f"pictures-{side}"
        if not folder.exists():
            make_pictures(folder, side)
        source = {"folder": str(folder), "transforms": [{"kind": "resize", "size": SIZE, "width": SIZE}, {"kind": "normalize"}]}
        sections = {
            "name": "loader-cost", "model": "model.pt", "loss": "cross_entropy", "optimizer": {"kind": "sgd", "lr": 0.001},
            "data": {"format": "image_folder", "training": source}, "searcher": {"max_length": {"batches": steps or self.steps}},
            "hyperparameters": {"global_batch_size": BATCH * case["slots"]},
            "resources": {"slots_per_trial": case["slots"], "cores_per_slot": case["cores"]},
            "environment": {"environment_variables": ["OMP_NUM_THREADS=1"]}}
        file = write_experiment(self.scratch / "experiment.yaml", **sections)
        self.runs += 1
        run_dir = self.scratch / f"run-{self.runs}"
        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)]
        return run(command + (["--mock", "loader"] if mock else []), run_dir).expect(0)

    def analysis(self, result):
        done = subprocess.run([self.build.program("dtrain"), "analyze", str(result.run_dir), "--json"], env=environment(),
                              stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)


def records(result, kind):
    """Of all ranks, without the first batches."""
    found = []
    for dump in sorted((result.run_dir / "profile").glob("rank-*.jsonl")):
        own = [json.loads(line) for line in dump.read_text().splitlines()]
        found += [one for one in own if one["record"] == kind][WARM_UP:]
    return found


def step_ms(result):
    return statistics.fmean(step["wall_ns"] for step in records(result, "step")) / 1e6


def core_ms(result):
    """What loading a batch takes on a core."""
    return statistics.fmean(record["cpu_ns"] for record in records(result, "loader")) / 1e6


def fitted_side(bench, share):
    """The side of pictures of which a batch takes this share of the time of a step: decoding takes a time for each pixel."""
    side, case = 256, CASES["free"]
    for _ in range(3):
        step = step_ms(bench.launched(case, side, mock=True, steps=100))
        core = core_ms(bench.launched(case, side, steps=100))
        if abs(core / step / share - 1) < 0.05:
            break
        side = max(16, int(side * (share * step / core) ** 0.5))
    return side


def measured(bench, case, side, rounds):
    plain, mock, core, waits = [], [], [], []
    for number in range(rounds):
        for is_mock in (False, True) if number % 2 else (True, False):
            result = bench.launched(case, side, mock=is_mock)
            (mock if is_mock else plain).append(step_ms(result))
            if not is_mock:
                last = result
                core.append(core_ms(result))
                waits.append(statistics.fmean(step["phases"]["dataloader_next"] / step["wall_ns"] for step in records(result, "step")))
    answer = {"plain_ms": statistics.median(plain), "mock_ms": statistics.median(mock), "loader_core_ms": statistics.median(core),
              "core_share": statistics.median(one / step for one, step in zip(core, mock)),
              "overhead": statistics.median(one / other for one, other in zip(plain, mock)) - 1, "wait": statistics.median(waits)}
    answer["expected"] = answer["core_share"] if case["cores"] == 1 else 0.0
    answer["lost_s"] = (answer["plain_ms"] - answer["mock_ms"]) * bench.steps / 1e3
    answer = {key: round(value, 4) for key, value in answer.items()}
    findings = bench.analysis(last)["findings"]
    loader = next((one for one in findings if one["id"] == "loader"), None)
    answer["finding"] = loader and f'{loader["cause"]}: {loader["evidence"]}'
    answer["finding_seconds"] = loader and round(loader["seconds"], 3)
    answer["advice"] = loader and loader["advice"]
    answer["findings"] = [[one["id"], one["cause"], round(one["seconds"], 3)] for one in findings]
    return answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--case", choices=CASES, action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtrain-loader-cost-") as scratch:
        bench = Bench(Build(arguments.bin, "dtrain-worker"), Path(scratch), arguments.steps)
        side = fitted_side(bench, arguments.share)
        result = {"picture_side": side, "steps": arguments.steps, "rounds": arguments.rounds}
        for name in arguments.case or CASES:
            result[name] = measured(bench, CASES[name], side, arguments.rounds)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name in arguments.case or CASES:
        one = result[name]
        print(f'{name:6} {one["plain_ms"]:.2f} ms a step, {one["mock_ms"]:.2f} with --mock loader ({one["overhead"]:+.1%}); loading takes '
              f'{one["core_share"]:.0%} of a core; {one["finding"] or "no finding about the loader"}')


if __name__ == "__main__":
    main()
