"""The time of a step on GPUs: dtrain (a TorchScript file, a file of torch.export, a script in Python with three lines, as it
is and with torch.compile) against PyTorch's DistributedDataParallel (as it is, with channels_last, and with torch.compile too).

    bench.py BIN --gpus N --workload gpt2|resnet50 --scratch FOLDER [--mixed-precision bf16]

The contestants take turns within one run, so that the machine's drift affects all. Prints a table and one JSON object:
medians of the rounds, and dtrain's time over each peer's (below 1: dtrain is faster). Exit codes: 0 dtrain is at least
as fast as eager DDP (within 2%), 1 it is slower, or something failed. With --tiny the times mean nothing and are not
judged.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from launches import HERE, Dtrain, add_arguments, free_port, has_package, mean_step_ms, python_variables
from models import save_exported, save_script
from workloads import Workload

ALLOWED = 1.02
PYTHON = ("lines", "lines_compiled")


class Peers:
    """The ranks of DDP: processes that make steps when told to, and wait in between."""

    def __init__(self, arguments, workload):
        port, script = free_port(), Path(__file__).with_name("ddp_bench_rank.py")
        self.processes = [
            subprocess.Popen([sys.executable, "-B", str(script), str(rank), str(arguments.gpus), str(port),
                              arguments.peer, workload.name, str(workload.batch), str(int(workload.tiny)),
                              arguments.precision, arguments.mixed_precision],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for rank in range(arguments.gpus)]

    def steps(self, which, count):
        """The mean milliseconds of a step on the slowest rank; RuntimeError with the reason."""
        for process in self.processes:
            process.stdin.write(f"{which} {count}\n")
            process.stdin.flush()
        answers = [process.stdout.readline().strip() for process in self.processes]
        for rank, answer in enumerate(answers):
            if not answer or answer.startswith("error"):
                raise RuntimeError(f"rank {rank}: {answer or 'it has ended'}")
        return max(map(float, answers))

    def end(self):
        for process in self.processes:
            try:
                process.communicate("end\n", timeout=30)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                process.kill()
                process.wait()


def ours(dtrain, arguments, workload, folder, which, number):
    run = folder / f"{which}-{number}"
    run.mkdir()
    for file in ("model.pt", "model.pt2", "tokens", "data.safetensors"):
        if (folder / file).exists():
            (run / file).symlink_to(folder / file)
    steps = arguments.warm_up + arguments.steps
    experiment = {"name": f"bench-{workload.name}", "searcher": {"metric": "loss", "max_length": {"batches": steps}},
                  "hyperparameters": {"global_batch_size": arguments.gpus * workload.batch},
                  "optimizations": {"mixed_precision": arguments.mixed_precision}}
    variables = {}
    if which in PYTHON:
        experiment["entrypoint"] = [str(HERE / "python_loop.py")]
        experiment["hyperparameters"] |= {"name": workload.name, "tiny": workload.tiny, "batch": workload.batch,
                                          "steps": steps, "compile": which == "lines_compiled"}
        variables = python_variables(dtrain.bin)
    else:
        experiment |= {"model": "model.pt2" if which == "exported" else "model.pt", "loss": "cross_entropy",
                       "optimizer": workload.optimizer, "data": arguments.data}
    return mean_step_ms(dtrain.launch(run, experiment, arguments.gpus, **variables).expect(0), arguments.warm_up)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--workload", choices=("gpt2", "resnet50"), required=True)
    parser.add_argument("--batch", type=int, default=0, help="samples of a rank's batch (8 for gpt2, 64 for resnet50)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="timed in each round")
    parser.add_argument("--warm-up", type=int, default=40,
                        help="steps before them, in which dtrain compares memory formats and captures a step")
    parser.add_argument("--precision", choices=("highest", "high"), default="high",
                        help="of the peer's float32 matrix products (torch.set_float32_matmul_precision): high is TF32")
    parser.add_argument("--mixed-precision", choices=("none", "bf16"), default="none", help="of all (autocast)")
    parser.add_argument("--contestants", help="these alone, such as dtrain,eager; all: dtrain, exported, lines, "
                        "lines_compiled, eager, channels_last, compiled")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--tiny", action="store_true", help="a model of the same kind for which a CPU is enough")
    arguments = parser.parse_args()
    workload = Workload(arguments.workload, arguments.tiny, arguments.batch)
    folder = arguments.scratch / workload.name
    folder.mkdir(parents=True)
    model = workload.model()
    save_script(model, folder / "model.pt")
    arguments.data = workload.write(folder)
    save_exported(model, workload.example(), folder / "model.pt2")
    print(f"{workload.name}{' (tiny)' if workload.tiny else ''}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M "
          f"parameters, {arguments.gpus} x {workload.batch} samples a step, mixed precision {arguments.mixed_precision}")
    # Python's libtorch does not load stand-ins for GPUs.
    with_python = has_package(arguments.bin) and (arguments.slot_type == "cpu" or arguments.peer == "cuda")
    of_dtrain = ["dtrain", "exported", *(PYTHON if with_python else ())]
    of_peers = ["eager", *(("channels_last",) if workload.name == "resnet50" else ()), "compiled"]
    contestants = [which for which in of_dtrain + of_peers if not (arguments.no_compile and "compiled" in which)
                   and (not arguments.contestants or which in arguments.contestants.split(","))]
    dtrain, times, problems = Dtrain(arguments), {which: [] for which in contestants}, {}
    peers = Peers(arguments, workload)
    try:
        for number in range(arguments.rounds):
            print(f"  round {number + 1}:", end="", flush=True)
            for which in contestants:
                if which in problems:
                    continue
                try:
                    if which in of_dtrain:
                        times[which].append(ours(dtrain, arguments, workload, folder, which, number))
                    else:
                        peers.steps(which, arguments.warm_up)
                        times[which].append(peers.steps(which, arguments.steps))
                except (AssertionError, RuntimeError) as error:
                    problems[which] = str(error)
                else:
                    print(f" {which} {times[which][-1]:.2f}", end="", flush=True)
            print(" ms", flush=True)
    finally:
        peers.end()
    medians = {which: statistics.median(values) for which, values in times.items() if values}
    report = {"workload": workload.name, "tiny": workload.tiny, "gpus": arguments.gpus,
              "slot_type": arguments.slot_type, "batch": workload.batch,
              "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
              "peer_precision": arguments.precision, "mixed_precision": arguments.mixed_precision, "rounds": arguments.rounds,
              **{f"{which}_ms": round(value, 3) for which, value in medians.items()},
              **{f"{which}_ratio": round(medians["dtrain"] / value, 3)
                 for which, value in medians.items() if which != "dtrain" and "dtrain" in medians},
              "problems": problems}
    for which, value in medians.items():
        print(f"  {which:14} {value:10.3f} ms")
    for which, problem in problems.items():
        print(f"  {which:14} {problem}")
    print(json.dumps(report))
    if problems.keys() - {"compiled", "lines_compiled"}:
        sys.exit(f"failed: {', '.join(problems)}")
    if not workload.tiny and report.get("eager_ratio", 0) > ALLOWED:
        sys.exit(f"dtrain takes {report['eager_ratio']:.3f} of the time of DDP")


if __name__ == "__main__":
    main()
