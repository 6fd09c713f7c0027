"""The time of a step on GPUs: dtrain against PyTorch's DistributedDataParallel, as it is and with torch.compile.

    bench.py BIN --gpus N --workload gpt2|resnet50 --scratch FOLDER

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

from launches import Dtrain, add_arguments, free_port, mean_step_ms
from models import save_script
from workloads import Workload

ALLOWED = 1.02


class Peers:
    """The ranks of DDP: processes that make steps when told to, and wait in between."""

    def __init__(self, arguments, workload):
        port, script = free_port(), Path(__file__).with_name("ddp_bench_rank.py")
        self.processes = [
            subprocess.Popen([sys.executable, "-B", str(script), str(rank), str(arguments.gpus), str(port),
                              arguments.peer, workload.name, str(workload.batch), str(int(workload.tiny)),
                              arguments.precision],
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


def ours(dtrain, arguments, workload, folder, number):
    run = folder / f"round-{number}"
    run.mkdir()
    for file in ("model.pt", "tokens", "data.safetensors"):
        if (folder / file).exists():
            (run / file).symlink_to(folder / file)
    experiment = {"name": f"bench-{workload.name}", "model": "model.pt", "loss": "cross_entropy",
                  "optimizer": workload.optimizer, "data": arguments.data,
                  "hyperparameters": {"global_batch_size": arguments.gpus * workload.batch},
                  "searcher": {"metric": "loss", "max_length": {"batches": arguments.warm_up + arguments.steps}}}
    return mean_step_ms(dtrain.launch(run, experiment, arguments.gpus).expect(0), arguments.warm_up)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--workload", choices=("gpt2", "resnet50"), required=True)
    parser.add_argument("--batch", type=int, default=0, help="samples of a rank's batch (8 for gpt2, 64 for resnet50)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="timed in each round")
    parser.add_argument("--warm-up", type=int, default=20, help="steps before them")
    parser.add_argument("--precision", choices=("highest", "high"), default="high",
                        help="of the peer's float32 matrix products (torch.set_float32_matmul_precision): high is TF32")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--tiny", action="store_true", help="a model of the same kind for which a CPU is enough")
    arguments = parser.parse_args()
    workload = Workload(arguments.workload, arguments.tiny, arguments.batch)
    folder = arguments.scratch / workload.name
    folder.mkdir(parents=True)
    model = workload.model()
    save_script(model, folder / "model.pt")
    arguments.data = workload.write(folder)
    dtrain, times, problems = Dtrain(arguments), {"dtrain": [], "eager": [], "compiled": []}, {}
    peers = Peers(arguments, workload)
    try:
        for number in range(arguments.rounds):
            times["dtrain"].append(ours(dtrain, arguments, workload, folder, number))
            for which in ("eager",) if arguments.no_compile else ("eager", "compiled"):
                if which in problems:
                    continue
                try:
                    peers.steps(which, arguments.warm_up)
                    times[which].append(peers.steps(which, arguments.steps))
                except RuntimeError as error:
                    problems[which] = str(error)
    finally:
        peers.end()
    medians = {which: statistics.median(values) for which, values in times.items() if values}
    report = {"workload": workload.name, "tiny": workload.tiny, "gpus": arguments.gpus,
              "slot_type": arguments.slot_type, "batch": workload.batch,
              "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
              "peer_precision": arguments.precision, "rounds": arguments.rounds,
              **{f"{which}_ms": round(value, 3) for which, value in medians.items()},
              **{f"{which}_ratio": round(medians["dtrain"] / value, 3)
                 for which, value in medians.items() if which != "dtrain"},
              "problems": problems}
    print(f"{workload.name}{' (tiny)' if workload.tiny else ''}, {report['parameters'] / 1e6:.1f}M parameters, "
          f"{arguments.gpus} x {workload.batch} samples a step")
    for which, value in medians.items():
        rounds = ", ".join(f"{one:.2f}" for one in times[which])
        print(f"  {which:9} {value:10.3f} ms  (rounds: {rounds})")
    for which, problem in problems.items():
        print(f"  {which:9} {problem}")
    print(json.dumps(report))
    if "eager" in problems:
        sys.exit("DDP failed")
    if not workload.tiny and report["eager_ratio"] > ALLOWED:
        sys.exit(f"dtrain takes {report['eager_ratio']:.3f} of the time of DDP")


if __name__ == "__main__":
    main()
