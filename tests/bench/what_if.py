"""Predictions against mock runs: `dtrain what-if --verify` of Fashion-MNIST and of the synthetic model, two ranks each.

    what_if.py BIN [--json] [--steps 200] [--only NAME]

Each of configs/*.yaml named below is launched once for as many steps, and what that run predicts is verified (nine short runs,
plain and mock in turns). `ratio` is predicted over measured; the goal is within 10% for loader, comm and loader,comm (what
computing alone takes). `train` (loading alone) is told beside them.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import SOURCE, Build, environment, launch  # noqa: E402

CONFIGS = {"fashion_mnist": "fashion_mnist.yaml", "synthetic": "synthetic.yaml"}
GOAL = ("loader", "comm", "loader,comm")


def verify(build, config, scratch, steps):
    sets = [f"searcher.max_length.batches={steps}", "min_validation_period.batches=0"]
    original = launch(build, SOURCE / "configs" / config, scratch / "run", sets).expect(0)
    command = [build.program("dtrain"), "what-if", str(original.run_dir), "--verify", "--steps", str(steps), "--json"]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    return {one["mock"]: {key: one[key] and round(one[key], 4)
                          for key in ("plain_ms", "predicted_ms", "predicted_from_run_ms", "measured_ms", "ratio")}
            for one in answer["predictions"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=CONFIGS)
    arguments = parser.parse_args()
    build = Build(arguments.bin, "fashion_mnist")
    result = {"steps": arguments.steps}
    for name, config in CONFIGS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="dtrain-what-if-") as scratch:
                result[name] = verify(build, config, Path(scratch), arguments.steps)
    ratios = [result[name][mock]["ratio"] for name in CONFIGS if name in result for mock in GOAL]
    result["worst"] = round(max(abs(ratio - 1) for ratio in ratios), 4)
    if arguments.json:
        print(json.dumps(result))
        return
    for name in CONFIGS:
        for mock, one in result.get(name, {}).items():
            ratio = f"{one['ratio']:.3f}" if one["ratio"] else "-"
            print(f"{name:14} --mock {mock:12} predicted {one['predicted_ms'] or float('nan'):8.3f} ms, measured "
                  f"{one['measured_ms']:8.3f} ms, ratio {ratio} (plain {one['plain_ms']:.3f} ms)")
    print(f"worst of {', '.join(GOAL)}: {result['worst']:.1%} off (goal: 10%)")


if __name__ == "__main__":
    main()
