"""Two ranks on one GPU: weights against those of two ranks on the CPU, and a rank that is killed.

    shared_card.py BIN --scratch FOLDER [--quick]

NCCL refuses two ranks of one host on one GPU, so each rank gets a NCCL_HOSTID of its own. Speed means nothing here, and is
not looked at. Exit codes: 0 all near, 1 not.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

import torch

from files import read_safetensors, worst_difference, write_safetensors
from launches import Dtrain, add_arguments, free_port, kept_variables
from models import SmallCnn, random_weights, save_script
from parity import SAMPLES, SEED, SGD, STEPS, make_data

from harness import Result, environment, write_experiment  # launches.py knows where these are

RANKS, DEADLINE = 2, 300
KILLED_RUN = 8 * STEPS  # batches; a checkpoint each STEPS
# What is set in optimizations, and the largest relative difference from the CPU's weights. A rounded or left out value of a
# compressor may be another one where the gradients differ in their last digits.
CASES = {
    "replicated": ({"sharded_optimizer": False}, 2e-3),
    "sharded": ({"sharded_optimizer": True}, 2e-3),
    "int8": ({"gradient_compression": {"kind": "int8"}}, 5e-2),
    "powersgd": ({"gradient_compression": {"kind": "powersgd", "rank": 2}}, 5e-2),
    "tuned": ({"auto_tune_tensor_fusion": True}, 2e-3),
}
QUICK = ("sharded", "powersgd")


def make_experiment(folder, optimizations, **sections):
    folder.mkdir(parents=True)
    features, target = make_data({"model": "cnn", "dtype": "float32"}, RANKS)
    save_script(random_weights(SmallCnn()), folder / "model.pt")
    write_safetensors({"features": features, "target": target}, folder / "data.safetensors")
    return {"name": "shared-card", "model": str(folder / "model.pt"), "loss": "cross_entropy", "optimizer": SGD,
            "data": {"format": "safetensors", "training": {"file": str(folder / "data.safetensors")}},
            "hyperparameters": {"global_batch_size": RANKS * SAMPLES},
            "optimizations": {"tf32": False, **optimizations}, "reproducibility": {"experiment_seed": SEED},
            "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}, **sections}


class Ranks:
    """The processes of a run, which no launcher has started."""

    def __init__(self, arguments, file, run_dir):
        port = free_port()
        self.run_dir, self.processes = run_dir, []
        for rank in range(RANKS):
            variables = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS,
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NCCL_HOSTID": f"dtrain-rank-{rank}"}
            if arguments.slot_type == "cuda":
                variables["CUDA_VISIBLE_DEVICES"] = 0
            started = environment(**kept_variables(arguments.libraries), **{k: str(v) for k, v in variables.items()})
            self.processes.append(subprocess.Popen(
                [str(arguments.bin / "dtrain-worker"), str(file), "--run-dir", str(run_dir), "--or-continue"], env=started,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    def wait(self):
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in self.processes]
        return [process.returncode for process in self.processes], "".join(outputs)

    def finish(self):
        codes, output = self.wait()
        if any(codes):
            raise AssertionError(f"exit codes {codes}:\n{output}")
        return Result(0, output, self.run_dir)


def train(arguments, folder, experiment):
    file = write_experiment(folder / "experiment.yaml", **experiment, resources={"slots_per_trial": RANKS,
                                                                                 "slot_type": arguments.slot_type})
    return Ranks(arguments, file, folder / "run")


def check_case(arguments, name):
    optimizations, limit = CASES[name]
    folder = arguments.scratch / name
    experiment = make_experiment(folder, optimizations)
    ours = read_safetensors(train(arguments, folder, experiment).finish().weights_file)
    (folder / "cpu").mkdir()
    theirs = read_safetensors(Dtrain(arguments).launch(folder / "cpu", experiment, RANKS, "cpu").expect(0).weights_file)
    value, worst = worst_difference(ours, theirs)
    good = value <= limit
    print(f"  {name:12} limit {limit:.0e}: CPU {value:8.1e} ({worst}){'' if good else '   TOO MUCH'}", flush=True)
    return good


def check_killed(arguments):
    """A rank is killed between two checkpoints; the ranks that are started again go on, with the bits of a run without that."""
    lengths = {"searcher": {"metric": "loss", "max_length": {"batches": KILLED_RUN}}, "min_checkpoint_period": {"batches": STEPS}}
    weights = []
    for killed in (False, True):
        folder = arguments.scratch / ("killed" if killed else "undisturbed")
        experiment = {**make_experiment(folder, {}), **lengths}
        ranks = train(arguments, folder, experiment)
        if killed:
            events, deadline = folder / "run" / "events.jsonl", time.monotonic() + DEADLINE
            while not (events.exists() and "checkpoint_saved" in events.read_text()) and time.monotonic() < deadline:
                time.sleep(0.002)
            ranks.processes[1].send_signal(signal.SIGKILL)
            codes, output = ranks.wait()
            if codes[1] != -signal.SIGKILL or codes[0] != 1 or "rank 1" not in output:
                print(f"  killed       exit codes {codes}:\n{output}   WRONG", flush=True)
                return False
            ranks = Ranks(arguments, folder / "experiment.yaml", folder / "run")
        weights.append(read_safetensors(ranks.finish().weights_file))
    other = [name for name, tensor in weights[0].items() if not torch.equal(tensor, weights[1][name])]
    said = f"other bits in {', '.join(other)}   WRONG" if other else "the others named it; started again: the same bits"
    print(f"  killed       {said}", flush=True)
    return not other


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    arguments = parser.parse_args()
    print(f"{RANKS} ranks on one {'GPU' if arguments.slot_type == 'cuda' else 'host'}, {STEPS} steps; against ranks on the CPU")
    good = [check_case(arguments, name) for name in (QUICK if arguments.quick else CASES)]
    good.append(check_killed(arguments))
    if not all(good):
        sys.exit(f"{good.count(False)} of {len(good)} differ too much or are wrong")


if __name__ == "__main__":
    main()
