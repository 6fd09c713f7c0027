"""The kernels' own times, which each rank on a GPU records every so many batches, against a trace of batches between
them: the sums of a batch are the same to within 3%. With CUDA graphs the same kernels run; what they took is shown.

    kernel_times.py BIN --scratch FOLDER [--quick]

Exit codes: 0 they agree, 1 they do not.
"""
import argparse
import json
import os
import subprocess
import sys

from launches import Dtrain, add_arguments, kept_variables, mean_step_ms

MOST_DIFFERENCE = 0.03
LEAST_SHARE = 0.05  # of the GPU's work: smaller kinds are shown and not judged
DISTANCE = 20


def train(dtrain, folder, batches, profiling, **optimizations):
    folder.mkdir(parents=True)
    experiment = {"name": "kernel_times", "entrypoint": [str(dtrain.bin / "synthetic")],
                  "hyperparameters": {"global_batch_size": 2048, "features": 1024, "width": 4096, "depth": 6, "classes": 10,
                                      "learning_rate": 0.01},
                  "data": {"samples": 8192}, "optimizations": optimizations, "profiling": profiling,
                  "searcher": {"metric": "accuracy", "smaller_is_better": False, "max_length": {"batches": batches}}}
    done = dtrain.launch(folder, experiment, 1)
    if done.code != 0:
        sys.exit(done.output)
    return done


def kernels_of(done):
    path = done.run_dir / "profile" / "kernels-rank-0000.json"
    if not path.exists():
        sys.exit(f"no kernels were timed:\n{done.output}")
    return json.loads(path.read_text())


def per_batch(window):
    return {kind: seconds / window["batches"] * 1e3 for kind, seconds in window["work_s"].items()}


def show(title, times):
    print(f"{title:34}" + "".join(f"{kind} {ms:9.4f} ms   " for kind, ms in times.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    dtrain = Dtrain(arguments)
    batches = 200 if arguments.quick else 600
    trace = {"begin_on_batch": batches // 2 + 1, "end_after_batch": batches // 2 + 10}
    eager = train(dtrain, arguments.scratch / "eager", batches, {"kernel_times": DISTANCE, "trace": trace}, cuda_graphs=False)
    environment = {**os.environ, **kept_variables(arguments.libraries)}
    told = subprocess.run([str(arguments.bin / "dtrain"), "analyze", str(eager.run_dir), "--json"], env=environment, check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    analysis = json.loads(told)
    timed, traced = kernels_of(eager), analysis["operators"]["gpu_window"]
    if traced is None:
        sys.exit(f"the trace has no work of the GPU:\n{eager.output}")
    observed, expected = per_batch(timed), per_batch(traced)
    show(f"{timed['batches']} timed batches, a batch", observed)
    show(f"{traced['batches']} traced batches, a batch", expected)
    wrong = [kind for kind, ms in expected.items() if ms > LEAST_SHARE * sum(expected.values())
             and abs(observed[kind] / ms - 1) > MOST_DIFFERENCE]
    parts = {part["name"]: part["seconds"] for part in analysis["waterfall"]["parts"]}
    ms = parts["products"] / batches * 1e3
    print(f"waterfall: products {ms:.4f} ms a batch, of {sum(parts.values()) / batches * 1e3:.4f}")
    print(f"timing one batch cost {timed['cost_s'] / max(1, timed['batches'] - 1) * 1e3:.1f} ms, a batch takes "
          f"{mean_step_ms(eager, batches // 4):.2f} ms")
    graphs = kernels_of(train(dtrain, arguments.scratch / "graphs", batches, {"kernel_times": DISTANCE}, cuda_graphs=True))
    show(f"{graphs['batches']} timed batches as CUDA graphs", per_batch(graphs))
    if graphs["graphs"] != graphs["batches"]:
        sys.exit(f"{graphs['graphs']} graphs were launched in {graphs['batches']} batches")
    if wrong:
        sys.exit(f"more than {MOST_DIFFERENCE:.0%} apart: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
