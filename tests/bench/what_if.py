"""Predictions against mock runs: `dtrain what-if --verify` of Fashion-MNIST and of the synthetic model, two ranks each.

    what_if.py BIN [--json] [--steps N] [--rounds N] [--only NAME]

Each of configs/*.yaml named below is launched once for a few hundred steps, and what is predicted is verified: short runs, plain and
mock in turns, several rounds of them. `ratio` is predicted over measured; the goal is within 10% for loader, comm and loader,comm (what
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

# The synthetic model with either way of updating, between which `auto` finds little difference. What sharing one copy
# costs is known to a run that has tried both, so one is launched with `auto` until it takes sharded updates.
CONFIGS = {"fashion_mnist": ("fashion_mnist.yaml", None), "synthetic_replicated": ("synthetic.yaml", "replicated"),
           "synthetic_sharded": ("synthetic.yaml", "sharded")}
LAUNCHES = 20
GOAL = ("loader", "comm", "loader,comm")


def verify(build, config, scratch, options):
    file, strategy = config
    sets = ["searcher.max_length.batches=200", "min_validation_period.batches=0"]
    if strategy == "replicated":
        sets.append("optimizations.sharded_optimizer=false")
    for attempt in range(LAUNCHES):
        original = launch(build, SOURCE / "configs" / file, scratch / f"run-{attempt}", sets).expect(0)
        if strategy in (None, original.json("plan.json")["strategy"]["strategy"]):
            break
    else:
        sys.exit(f"what_if.py: {LAUNCHES} runs of {file} have not taken {strategy} updates")
    command = [build.program("dtrain"), "what-if", str(original.run_dir), "--verify", "--json", *options]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    keys = ("plain_ms", "predicted_ms", "predicted_from_run_ms", "measured_ms", "ratio")
    result = {one["mock"] or one["set"]: {**{key: one[key] and round(one[key], 4) for key in keys},
                            "ratios": [round(ratio, 4) for ratio in one["ratios"]]} for one in answer["predictions"]}
    return {**result, "steps": answer["steps"], "rounds": answer["rounds"], "foreign_percent": answer["foreign_percent"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", choices=CONFIGS)
    arguments = parser.parse_args()
    build = Build(arguments.bin, "fashion_mnist")
    options = [word for name in ("steps", "rounds") if getattr(arguments, name)
               for word in (f"--{name}", str(getattr(arguments, name)))]
    result = {}
    for name, config in CONFIGS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="dtrain-what-if-") as scratch:
                result[name] = verify(build, config, Path(scratch), options)
    ratios = [result[name][mock]["ratio"] for name in CONFIGS if name in result for mock in GOAL]
    result["worst"] = round(max(abs(ratio - 1) for ratio in ratios), 4)
    if arguments.json:
        print(json.dumps(result))
        return
    for name in CONFIGS:
        for mock in (*GOAL, "train") if name in result else ():
            one = result[name][mock]
            ratio = f"{one['ratio']:.3f}" if one["ratio"] else "-"
            print(f"{name:20} --mock {mock:12} predicted {one['predicted_ms'] or float('nan'):8.3f} ms, measured "
                  f"{one['measured_ms']:8.3f} ms, ratio {ratio} (plain {one['plain_ms']:.3f} ms)")
        if name in result:
            print(f"{name:20} {result[name]['rounds']} rounds of {result[name]['steps']} steps; other programs took up to "
                  f"{result[name]['foreign_percent'] or 0:.0f}% of a core")
    print(f"worst of {', '.join(GOAL)}: {result['worst']:.1%} off (goal: 10%)")


if __name__ == "__main__":
    main()
