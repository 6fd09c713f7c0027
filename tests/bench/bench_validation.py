"""Validation beside the training against validation that blocks it: the loop's time, and whether metrics and weights are the same.

    bench_validation.py BIN [--json] [--quick] [--rounds N]

cases: cnn (the example fashion_mnist), gpt (the example gpt, on generated text). Each with all cores taken (`full`: a rank on each of
two cores) and with one left free (`free`: one rank, on two cores, that computes with one thread). Blocking and beside alternate, in
another order each round; each pair gives a ratio of the loops' times, whose median is `loop_ratio`. `validation_s` is what blocking
validations took of the loop, `waited_s` what the training waited for those beside it: both also have the last validation, after the last
batch, which always blocks. `equal`: all metrics of all validations, and the final weights, have the same bits.
"""
import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FASHION = "/usr/share/datasets/fashion-mnist"
PATIENCE = 600  # seconds; against hangs alone


def gpt_data(folder):
    generator = random.Random(1)
    words = ["".join(generator.choice("etaoinshrdlu") for _ in range(generator.randint(2, 8))) for _ in range(300)]
    for part, count in (("training", 60_000), ("validation", 9_000)):
        text = " ".join(generator.choice(words) for _ in range(count)).encode()
        (folder / f"{part}.bin").write_bytes(array.array("H", list(text)).tobytes())  # a token is a byte of the text
    return {"training": str(folder / "training.bin"), "validation": str(folder / "validation.bin"), "sample_bytes": 1}


def experiments(folder, batches):
    common = {"min_validation_period": {"batches": batches // 5}}
    length = {"max_length": {"batches": batches}}
    return {
        "cnn": {**common, "name": "cnn", "entrypoint": "fashion_mnist", "hyperparameters": {"global_batch_size": 128},
                "searcher": {"metric": "accuracy", "smaller_is_better": False, **length}, "data": {"folder": FASHION}},
        "gpt": {**common, "name": "gpt", "entrypoint": "gpt",
                "hyperparameters": {"layers": 4, "heads": 4, "width": 128, "length": 128, "global_batch_size": 8, "learning_rate": 0.002,
                                    "warmup_steps": 40, "total_steps": batches},
                "searcher": {"metric": "perplexity", **length}, "data": gpt_data(folder)}}


class Bench:
    def __init__(self, bin_folder, folder):
        self.dtrain, self.folder, self.runs = Path(bin_folder) / "dtrain", folder, 0
        self.environment = {**os.environ, "DTRAIN_STATE_DIR": str(folder / "state")}

    def run(self, experiment, slots, beside):
        self.runs += 1
        file, run = self.folder / "experiment.yaml", self.folder / f"run-{self.runs}"
        file.write_text(json.dumps({**experiment, "resources": {"slots_per_trial": slots}, "validation": {"beside": beside}}))
        variables = {**self.environment, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([self.dtrain, "launch", file, "--run-dir", run], env=variables, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        if done.returncode != 0:
            sys.exit(f"{run} failed:\n{done.stdout}")
        summary = json.loads(subprocess.run([self.dtrain, "summary", run, "--json"], env=self.environment, stdout=subprocess.PIPE,
                                            check=True).stdout)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {"loop_s": summary["loop_s"], "validation_s": summary["phases"]["validation"]["seconds"],
                "metrics": [(line["batch"], line["metrics"]) for line in lines if line["kind"] == "validation"],
                "weights": (run / "checkpoints/final/model.safetensors").read_bytes()}

    def compare(self, experiment, slots, rounds):
        ratios, found, equal = [], {False: [], True: []}, True
        for number in range(rounds):
            turn = {}
            for beside in ((False, True) if number % 2 == 0 else (True, False)):
                turn[beside] = self.run(experiment, slots, beside)
                found[beside].append(turn[beside])
            ratios.append(turn[True]["loop_s"] / turn[False]["loop_s"])
            equal = equal and all(turn[True][of] == turn[False][of] for of in ("metrics", "weights"))
        median = {beside: {of: statistics.median(run[of] for run in found[beside]) for of in ("loop_s", "validation_s")}
                  for beside in found}
        return {"ranks": slots, "equal": equal, "validations": len(found[False][0]["metrics"]),
                "blocking_loop_s": round(median[False]["loop_s"], 3), "beside_loop_s": round(median[True]["loop_s"], 3),
                "validation_s": round(median[False]["validation_s"], 3), "waited_s": round(median[True]["validation_s"], 3),
                "loop_ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in sorted(ratios)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-validation-") as name:
        folder = Path(name)
        bench, result = Bench(arguments.bin, folder), {}
        for case, experiment in experiments(folder, 250 if arguments.quick else 1000).items():
            result[case] = {"full": bench.compare(experiment, 2, rounds), "free": bench.compare(experiment, 1, rounds)}
    if arguments.json:
        print(json.dumps(result))
        return
    for case, of_case in result.items():
        for cores, figures in of_case.items():
            print(f"{case:4} {cores:5} " + "  ".join(f"{key} {value}" for key, value in figures.items() if key != "ratios"))


if __name__ == "__main__":
    main()
