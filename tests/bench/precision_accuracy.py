"""What mixed precision costs in accuracy: each precision trains the same, with several seeds.

    precision_accuracy.py BIN [--json] [--seeds 3] [--only fashion_mnist|gpt] [--steps N]

fashion_mnist: configs/fashion_mnist.yaml; the accuracy at the end, in percent, is to be within 0.3 points of float32's.
gpt: a transformer of 1.4M parameters on text (slow_link_models.py); the validation loss at the end is to be within 0.5%.
Both are means over the seeds, which initialise the weights and shuffle the samples alike in each precision. --steps ends
both earlier. Exit codes: 0 all near, 1 not.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import SOURCE, Build, overrides, run, write_experiment  # noqa: E402

PRECISIONS = ("none", "bf16", "pure_bf16")
POINTS, SHARE = 0.3, 0.005  # how far from float32 the mean over the seeds may be
DEADLINE = 3600  # seconds of a run; only against hangs
LENGTH, GPT_BATCH, GPT_STEPS = 32, 64, 1500


def train(build, experiment, run_dir, precision, seed, *sets):
    """The metrics of the last validation."""
    sets = [f"optimizations.mixed_precision={precision}", f"reproducibility.experiment_seed={seed}", *sets]
    command = [build.program("dtrain"), "launch", str(experiment), "--run-dir", str(run_dir), *overrides(sets)]
    return run(command, run_dir, deadline=DEADLINE).expect(0).metrics("validation")[-1]["metrics"]


def fashion_mnist(build, folder, precision, seed, steps):
    experiment = SOURCE / "configs" / "fashion_mnist.yaml"
    length = [f"searcher.max_length.batches={steps}"] if steps else []
    return 100 * train(build, experiment, folder / f"fashion-{precision}-{seed}", precision, seed, *length)["accuracy"]


def gpt(build, folder, precision, seed, steps):
    """Weights are those of the file, whatever the seed; it shuffles the samples."""
    steps = steps or GPT_STEPS
    experiment = write_experiment(
        folder / "gpt.yaml", name="precision-gpt", model="transformer.pt", loss="cross_entropy",
        optimizer={"kind": "adamw", "lr": 0.001, "lr_schedule": {"kind": "cosine", "total_steps": steps}},
        hyperparameters={"global_batch_size": GPT_BATCH}, resources={"slots_per_trial": 2},
        data={"format": "tokens", "sequence_length": LENGTH, "training": {"file": "training.tokens"},
              "validation": {"file": "validation.tokens"}},
        searcher={"metric": "loss", "max_length": {"batches": steps}})
    return train(build, experiment, folder / f"gpt-{precision}-{seed}", precision, seed)["loss"]


def compare(workload, build, folder, seeds, steps):
    return {precision: [workload(build, folder, precision, seed, steps) for seed in range(seeds)] for precision in PRECISIONS}


def differences(results, relative):
    """Of each precision's mean to float32's."""
    base = statistics.mean(results["none"])
    return {precision: (statistics.mean(values) - base) / (base if relative else 1)
            for precision, values in results.items() if precision != "none"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("fashion_mnist", "gpt"))
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    build = Build(arguments.bin, "fashion_mnist")
    report, near = {"seeds": arguments.seeds}, True
    with tempfile.TemporaryDirectory(prefix="dtrain-precision-") as name:
        folder = Path(name)
        if arguments.only != "gpt":
            results = compare(fashion_mnist, build, folder, arguments.seeds, arguments.steps)
            points = differences(results, relative=False)
            report |= {"fashion_accuracy": results, "fashion_points": points}
            near = near and all(abs(value) <= POINTS for value in points.values())
        if arguments.only != "fashion_mnist":
            subprocess.run([sys.executable, "-B", SOURCE / "tests/bench/slow_link_models.py", folder], check=True)
            results = compare(gpt, build, folder, arguments.seeds, arguments.steps)
            shares = differences(results, relative=True)
            report |= {"gpt_loss": results, "gpt_share": shares}
            near = near and all(abs(value) <= SHARE for value in shares.values())
    report["near"] = near
    if arguments.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key:18} {json.dumps(value)}")
    sys.exit(not near)


if __name__ == "__main__":
    main()
