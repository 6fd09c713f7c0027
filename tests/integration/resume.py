"""Runs that are interrupted and go on against the same runs without a break: the same bits.

    resume.py BIN_FOLDER [cases|kills|ranks|model|memory ...]

cases: each case trains to its end once, and once more interrupted by SIGTERM at random batches; after each interruption
it goes on from its checkpoint. Others end early, inside an aggregation window or between two meetings, and are then made longer. kills: the same with kill -9 of a rank and of the monitor, and restarts by the launcher.
ranks: a run goes on with another number of ranks. model: a
TorchScript file is trained; SIGTERM to the launcher, Ctrl-C, and kill -9 of every process end it. memory: ranks are killed
once a state is in memory, and runs go on from there; memory that is full; and what is left there after the end. DTRAIN_RESUME_SEED seeds the random batches and is printed;
DTRAIN_RESUME_ROUNDS repeats everything with the seeds that follow.

Equal are: all tensors and values of the last checkpoint on every rank, the final weights, metrics.jsonl without its
times.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import parity_model
from gpu_cases import experiment, free_ports, run_plans
from harness import DEADLINE, Build, Workplace, environment, launch, memory_of, run, wait_until, write_experiment

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
PLAIN_SGD = {"kind": "sgd", "lr": 0.05}
ADAM = {"kind": "adam", "lr": 2e-3, "weight_decay": 1e-3}
ADAMW = {"kind": "adamw", "lr": 3e-3}
LAMB = {"kind": "lamb", "lr": 0.01}
MUON = {"kind": "muon", "lr": 0.01, "adamw_lr": 2e-3, "adamw_match": "tokens.*|head*"}
BATCHES = 40


def case(model, optimizer, batches=None, length=None, slot_type="cpu", sections=None, **parts):
    """`parts`: hyperparameters, and optimizations by their names."""
    keys = ("aggregation_frequency", "sharded_optimizer", "sharded_gradients", "gradient_compression", "local_sgd", "tensor_fusion_threshold",
            "mixed_precision", "memory_format", "cuda_graphs", "auto_tune_tensor_fusion")
    optimizations = {key: parts.pop(key) for key in keys if key in parts}
    return {"model": model, "optimizer": optimizer, "batches": batches or [17] * 4, "slot_type": slot_type,
            "length": length or {"batches": BATCHES}, "optimizations": optimizations, "hyperparameters": parts,
            "sections": {"scheduling_unit": 7, "min_validation_period": {"batches": 11}, **(sections or {})}}


UNEVEN = {"batches": [17, 12, 19, 3], "length": {"epochs": 4}}
LOCAL = {"inner_steps": 6, "outer_lr": 0.7, "outer_momentum": 0.8}
CASES = {
    1: [case("cnn", ADAMW, aggregation_frequency=4), case("gpt", SGD, own_state=True),
        case("cnn", ADAMW, mixed_precision="bf16", memory_format="channels_last"),
        case("mlp", SGD, draws=True, own_state=True)],
    2: [case("mlp", PLAIN_SGD, sharded_optimizer=False),
        case("cnn", ADAMW, mixed_precision="bf16", memory_format="auto", aggregation_frequency=2, **UNEVEN),
        case("gpt", ADAMW, mixed_precision="bf16", sharded_optimizer=True, clip=0.5),
        case("gpt", SGD, mixed_precision="pure_bf16", sharded_optimizer="auto"),
        case("cnn", ADAM, mixed_precision="pure_bf16", gradient_compression="int8", own_state=True),
        case("cnn", ADAM, mixed_precision="pure_bf16", local_sgd=LOCAL),
        case("mlp", SGD, sharded_optimizer=True, own_state=True),
        case("cnn", ADAM, sharded_optimizer=True, halve_rate_after=13),
        case("gpt", ADAMW, aggregation_frequency=4, sharded_optimizer=True),
        case("gpt", ADAMW, aggregation_frequency=4, sharded_optimizer=False, own_state=True),
        case("cnn", ADAMW, **UNEVEN), case("cnn", ADAMW, draws=True, **UNEVEN),
        case("gpt", MUON, mixed_precision="bf16", clip=0.5), case("cnn", LAMB, aggregation_frequency=2, **UNEVEN),
        case("gpt", LAMB, mixed_precision="bf16", sharded_optimizer=True, sharded_gradients=True, aggregation_frequency=2, clip=0.5),
        case("odd", ADAM, aggregation_frequency=3, sharded_optimizer=False, clip=0.5, **UNEVEN),
        case("gpt", ADAMW, sharded_optimizer="auto"),
        *(case("gpt", ADAM, gradient_compression=word) for word in ("fp16", "bf16", "int8")),
        case("gpt", SGD, gradient_compression={"kind": "powersgd", "rank": 2, "warmup_steps": 5}),
        case("gpt", SGD, gradient_compression={"kind": "topk", "ratio": 0.1}),
        *(case("gpt", ADAM, gradient_compression=word, auto_tune_tensor_fusion=True) for word in ("fp16", "bf16", "int8")),
        case("gpt", SGD, gradient_compression={"kind": "powersgd", "rank": 2, "warmup_steps": 5}, auto_tune_tensor_fusion=True),
        case("gpt", SGD, gradient_compression={"kind": "topk", "ratio": 0.1}, auto_tune_tensor_fusion=True),
        case("cnn", ADAMW, local_sgd=LOCAL),
        case("gpt", SGD, local_sgd={**LOCAL, "compression": "int8"}, aggregation_frequency=2, **UNEVEN)],
    3: [case("cnn", ADAMW, sharded_optimizer=True, aggregation_frequency=4, **UNEVEN),
        case("cnn", ADAMW, mixed_precision="pure_bf16", sharded_optimizer=True, memory_format="channels_last", **UNEVEN),
        case("gpt", ADAM, sharded_optimizer=False, tensor_fusion_threshold=4096),
        case("cnn", LAMB, mixed_precision="pure_bf16", sharded_optimizer=True, **UNEVEN),
        case("gpt", ADAM, gradient_compression="int8", aggregation_frequency=2),
        case("cnn", SGD, local_sgd=LOCAL, own_state=True)],
}
# They end at this length, with an open window, and are then made longer.
SHORT = {"short": "batches=27"}
LONGER_CASES = {
    1: [{**case("mlp", SGD, aggregation_frequency=4), **SHORT}],
    2: [{**case("gpt", ADAMW, aggregation_frequency=4, sharded_optimizer=True), **SHORT},
        {**case("cnn", ADAM, aggregation_frequency=2, own_state=True, draws=True), **SHORT},
        {**case("cnn", SGD, local_sgd=LOCAL), **SHORT},
        {**case("odd", ADAM, aggregation_frequency=3, sharded_optimizer=False, **UNEVEN), "short": "epochs=2"},
        {**case("gpt", SGD, local_sgd={**LOCAL, "compression": "int8"}, aggregation_frequency=2, **UNEVEN), "short": "epochs=1"}],
}
# The scale of the loss falls and grows, several times.
FP16 = {"slot_type": "cuda", "mixed_precision": "fp16",
        "loss_scaling": {"initial_scale": 2.0**20, "growth_interval": 3}}
GPU_CASES = {
    1: [case("cnn", ADAMW, slot_type="cuda", aggregation_frequency=4), case("odd", ADAM, own_state=True, **FP16)],
    2: [case("cnn", ADAMW, slot_type="cuda", sharded_optimizer=False, clip=0.5, own_state=True),
        case("gpt", ADAM, slot_type="cuda", sharded_optimizer=True, aggregation_frequency=4),
        case("cnn", ADAMW, slot_type="cuda", sharded_optimizer=True, cuda_graphs=True, host="nothing",
             halve_rate_after=13),
        case("cnn", ADAMW, slot_type="cuda", cuda_graphs=True, host="nothing", draws=True),
        case("gpt", SGD, slot_type="cuda", local_sgd=LOCAL, **UNEVEN),
        case("gpt", ADAM, slot_type="cuda", gradient_compression="int8", aggregation_frequency=2),
        case("gpt", ADAM, slot_type="cuda", gradient_compression="int8", auto_tune_tensor_fusion=True),
        case("gpt", SGD, slot_type="cuda", mixed_precision="pure_bf16", sharded_optimizer=True),
        case("gpt", ADAMW, sharded_optimizer=True, clip=0.5, **FP16),
        case("cnn", ADAM, gradient_compression="int8", aggregation_frequency=2, **FP16),
        case("gpt", SGD, local_sgd=LOCAL, **FP16)],
    3: [case("gpt", ADAMW, slot_type="cuda", sharded_optimizer=True, **UNEVEN),
        case("gpt", LAMB, sharded_optimizer=True, **FP16),
        case("odd", ADAM, sharded_optimizer=False, aggregation_frequency=3, **FP16, **UNEVEN)],
}


def title(one):
    parts = [one["model"], one["optimizer"]["kind"], one["slot_type"]]
    parts += [f"{key}={value}" for key, value in {**one["optimizations"], **one["hyperparameters"]}.items()]
    return " ".join(parts + (["uneven"] if "epochs" in one["length"] else [])).replace(" ", " ")[:110]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def last_checkpoint(folder):
    elsewhere = folder / "checkpoints" / "storage.json"
    storage = pathlib.Path(json.loads(elsewhere.read_text())["storage"]) if elsewhere.is_file() else folder / "checkpoints"
    found = sorted(storage.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    if not found:
        raise AssertionError(f"{folder} has no checkpoint")
    return found[-1]


def what_is_left(folder):
    """By name: digests of what must be equal."""
    left = {"final": digest(folder / "checkpoints" / "final" / "model.safetensors")}
    checkpoint = last_checkpoint(folder)
    left["last checkpoint"] = checkpoint.name
    for file in checkpoint.iterdir():
        if file.name != "manifest.json":
            left[file.name] = digest(file)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left["metrics"] = [{key: value for key, value in line.items() if key != "time"} for line in lines]
    return left


def differences(whole, broken):
    found = [name for name in whole.keys() | broken.keys() if whole.get(name) != broken.get(name)]
    if "metrics" in found:
        pairs = zip(whole["metrics"], broken["metrics"])
        first = next((pair for pair in pairs if pair[0] != pair[1]), (len(whole["metrics"]), len(broken["metrics"])))
        found.append(f"first other line of metrics: {first[0]} became {first[1]}")
    return found


def scale_problems(folder):
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    skipped = [event["skipped"] for event in events if event["event"] == "loss_scale"]
    return [] if True in skipped and False in skipped else ["the scale of the loss did not fall and grow"]


class Interrupted:
    """A case's run with breaks: the experiments and arguments of its processes, in order."""

    def __init__(self, build, one, ranks, folder, dice):
        self.one, self.folder = one, folder
        folder.mkdir()
        self.file = experiment(build, one, ranks, one["slot_type"], folder / "experiment.yaml")
        self.breaks = []
        for _ in range(dice.randint(1, 2)):
            self.breaks.append({"kind": "terminate", "rank": dice.randrange(ranks), "batch": dice.randint(2, BATCHES // 2 - 4)})

    def arguments(self):
        """Of each process: its arguments, and the exit codes that it may have."""
        yield [str(self.file), "--run-dir", str(self.folder / "whole")], (0,)
        begin = [str(self.file), "--run-dir", str(self.folder / "broken")]
        for fault in self.breaks:
            # A rank may end before the batch at which it was to be interrupted.
            yield [*begin, "--set", f"hyperparameters.fault={json.dumps(fault)}"], (75, 0)
            begin = ["--continue", str(self.folder / "broken")]
        yield [*begin, "--set", "hyperparameters.fault={}"], (0, 2)


class MadeLonger:
    """A case's run that ends early, and goes on once it is made longer."""

    def __init__(self, build, one, ranks, folder, _dice):
        self.one, self.folder = one, folder
        folder.mkdir()
        self.file = experiment(build, one, ranks, one["slot_type"], folder / "experiment.yaml")
        self.breaks = []

    def arguments(self):
        unit, count = next(iter(self.one["length"].items()))
        yield [str(self.file), "--run-dir", str(self.folder / "whole")], (0,)
        yield [str(self.file), "--run-dir", str(self.folder / "broken"), "--set",
               f"searcher.max_length.{self.one['short']}"], (0,)
        yield ["--continue", str(self.folder / "broken"), "--set", f"searcher.max_length.{unit}={count}"], (0,)


def run_cases(build, workplace, ranks, cases, dice, kind=Interrupted):
    runs = [kind(build, one, ranks, workplace.path / f"{ranks}-{one['slot_type']}-{kind.__name__}-{index}", dice)
            for index, one in enumerate(cases)]
    arguments = [(run, *step) for run in runs for step in run.arguments()]
    ports = iter(free_ports(len(arguments)))
    plan = [{"arguments": given, "environment": {"MASTER_PORT": str(next(ports))}} for _, given, _ in arguments]
    name = f"{ranks}-{cases[0]['slot_type']}-{kind.__name__}"
    lines = run_plans(build, workplace.path, name, [plan] * ranks)
    failures = 0
    for run in runs:
        problems = []
        codes = []
        for index, (of_run, given, allowed) in enumerate(arguments):
            if of_run is not run:
                continue
            codes.append([of_rank[index]["exit_code"] for of_rank in lines])
            if any(code not in allowed for code in codes[-1]) or len(set(codes[-1])) > 1:
                problems.append(f"exit codes {codes[-1]} of {' '.join(given[-3:])}")
            reports = [report for of_rank in lines for report in of_rank[index]["reports"]]
            problems += sorted(set(reports))
        if run.breaks and 75 not in [code for step in codes for code in step]:
            problems.append("it was never interrupted")
        if not problems:
            problems = differences(what_is_left(run.folder / "whole"), what_is_left(run.folder / "broken"))
        if not problems and run.one["optimizations"].get("mixed_precision") == "fp16":
            problems += scale_problems(run.folder / "whole")
        breaks = " and ".join(f"batch {fault['batch']} on rank {fault['rank']}" for fault in run.breaks)
        what = f"interrupted at {breaks}" if run.breaks else f"made longer than {run.one['short']}"
        print(f"{ranks} {title(run.one):70} {what}: {'equal' if not problems else 'FAILED'}", flush=True)
        for problem in problems:
            print(f"    {problem} ({run.folder})", flush=True)
        failures += bool(problems)
        if not problems:
            shutil.rmtree(run.folder)
    return failures


def all_cases(build, workplace, dice):
    tables = [(CASES, Interrupted), (LONGER_CASES, MadeLonger)]
    if (build.bin.parent / "lib" / "libdtrain_comm_nccl.so").is_file():
        tables.append((GPU_CASES, Interrupted))
    else:
        print("skipped 'the cases on fake GPUs: dtrain was built without the nccl backend'", flush=True)
    return sum(run_cases(build, workplace, ranks, of_ranks, dice, kind)
               for cases, kind in tables for ranks, of_ranks in cases.items())


# Processes are killed: by the launcher's restarts, and by hand.
KILLS = [(2, case("cnn", ADAMW, sharded_optimizer=True, sections={"max_restarts": 3,
                                                                  "min_checkpoint_period": {"batches": 5}})),
         (2, case("gpt", SGD, sharded_optimizer=False, aggregation_frequency=2, own_state=True,
                  sections={"max_restarts": 3, "min_checkpoint_period": {"batches": 6}})),
         (3, case("odd", ADAM, sharded_optimizer=False, sections={"max_restarts": 3,
                                                                  "min_checkpoint_period": {"batches": 4}}))]


class AgentKiller(threading.Thread):
    """Kills the monitor of a run once, some time after it was started."""

    def __init__(self, folder, delay_s):
        super().__init__(daemon=True)
        self.folder, self.delay_s, self.killed = folder, delay_s, False
        self.start()

    def run(self):
        events = self.folder / "events.jsonl"
        for _ in range(6000):
            lines = events.read_text().splitlines() if events.is_file() else []
            started = [json.loads(line) for line in lines if '"agent_started"' in line]
            if started:
                time.sleep(self.delay_s)
                try:
                    os.kill(started[-1]["pid"], signal.SIGKILL)
                    self.killed = True
                except ProcessLookupError:
                    pass
                return
            time.sleep(0.01)


def kill_cases(build, workplace, dice):
    failures = 0
    for index, (ranks, one) in enumerate(KILLS):
        folder = workplace.path / f"kill-{index}"
        folder.mkdir()
        file = experiment(build, one, ranks, "cpu", folder / "experiment.yaml")
        launch(build, file, folder / "whole").expect(0)
        fault = {"kind": "kill", "rank": dice.randrange(ranks), "batch": dice.randint(12, BATCHES - 8), "once": str(folder / "killed")}
        killer = AgentKiller(folder / "broken", dice.uniform(0, 1.5))
        result = launch(build, file, folder / "broken", sets=[f"hyperparameters.fault={json.dumps(fault)}"]).expect(0)
        problems = differences(what_is_left(folder / "whole"), what_is_left(folder / "broken"))
        resumed = result.events("resumed")
        if len(resumed) != 1:
            problems.append(f"it went on {len(resumed)} times from a checkpoint:\n{result.output}")
        outcome = "equal" if not problems else "FAILED"
        print(f"{ranks} {title(one):70} kill -9 of rank {fault['rank']} in batch {fault['batch']}"
              f"{f' and of the agent after {killer.delay_s:.1f} s' if killer.killed else ''}, went on from batch "
              f"{[event['step'] for event in resumed]}: {outcome}", flush=True)
        for problem in problems:
            print(f"    {problem} ({folder})", flush=True)
        failures += bool(problems)
    return failures


def close_enough(one, other):
    weights, expected = (parity_model.load(folder / "checkpoints" / "final" / "model.safetensors") for folder in (one, other))
    difference, worst = parity_model.worst_difference(weights, expected)
    return difference <= 1e-6, f"{worst} differs by {difference:.1e}"


def other_ranks(build, workplace, dice):
    """The same global batches on 2 ranks and on 1 or 3: weights are equal up to rounding."""
    failures = 0
    for index, (before, after) in enumerate(((2, 1), (2, 3), (3, 2), (1, 3))):
        folder = workplace.path / f"ranks-{index}"
        folder.mkdir()
        sections = {"name": "ranks", "entrypoint": build.program("synthetic"), "searcher": {"max_length": {"batches": 40}},
                    "hyperparameters": {"global_batch_size": 24, "optimizer": "adamw"},
                    "resources": {"slots_per_trial": before, "slot_type": "cpu"}}
        file = write_experiment(folder / "experiment.yaml", **sections)
        launch(build, file, folder / "whole").expect(0)
        launch(build, file, folder / "broken", sets=["searcher.max_length.batches=17"]).expect(0)
        command = [build.program("dtrain"), "launch", "--continue", str(folder / "broken"), "--set",
                   "searcher.max_length.batches=40", "--set", f"resources.slots_per_trial={after}"]
        result = run(command, folder / "broken").expect(0)
        close, text = close_enough(folder / "whole", folder / "broken")
        told = f"the checkpoint is of {before} ranks, this run has {after}" in result.output
        print(f"from {before} to {after} ranks: {text}{'' if told else ', and nothing was said'}", flush=True)
        failures += not (close and told)
    return failures


def write_script(folder):
    """A small TorchScript model with batch normalization and dropout, and data."""
    import numpy
    import torch
    from torch import nn
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 4))
    torch.jit.script(model).save(str(folder / "model.pt"))
    generator = numpy.random.default_rng(7)
    numpy.save(folder / "features.npy", generator.standard_normal((990, 12), dtype=numpy.float32))
    numpy.save(folder / "target.npy", generator.integers(0, 4, 990))
    part = {"features": str(folder / "features.npy"), "target": str(folder / "target.npy")}
    return write_experiment(
        folder / "experiment.yaml", name="script", model=str(folder / "model.pt"), loss="cross_entropy",
        data={"format": "npy", "training": part, "validation": part}, optimizer={"kind": "adamw", "lr": 0.002},
        hyperparameters={"global_batch_size": 24}, resources={"slots_per_trial": 2, "slot_type": "cpu"},
        searcher={"metric": "accuracy", "smaller_is_better": False, "max_length": {"epochs": 40}},
        min_validation_period={"batches": 130}, scheduling_unit=10, min_checkpoint_period={"batches": 60})


def interrupt(command, folder, how, lines):
    """Starts it, and ends it once metrics.jsonl has so many lines. Gives the exit code."""
    process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    metrics = folder / "metrics.jsonl"
    try:
        wait_until(lambda: process.poll() is not None or metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines,
                   f"line {lines} of {metrics}")
        if how == "terminate":
            process.send_signal(signal.SIGTERM)
        elif how == "interrupt":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(DEADLINE)
    finally:
        process.kill()
        process.wait()


def scripts(build, workplace, dice):
    folder = workplace.path / "script"
    folder.mkdir()
    file = write_script(folder)
    launch(build, file, folder / "whole").expect(0)
    begin = [build.program("dtrain"), "launch", str(file), "--run-dir", str(folder / "broken")]
    go_on = [build.program("dtrain"), "launch", "--continue", str(folder / "broken")]
    problems = []
    line = 0
    told = []
    for how, code in (("terminate", 75), ("kill", -9), ("interrupt", 130)):
        line += dice.randint(14, 40)
        command = go_on if told else begin
        got = interrupt(command, folder / "broken", how, line)
        told.append(f"{how} at line {line}")
        if got != code:
            problems.append(f"exit code {got} after {how}, not {code}")
    got = run(go_on, folder / "broken").code
    if got != 0:
        problems.append(f"exit code {got} of the last part")
    problems += differences(what_is_left(folder / "whole"), what_is_left(folder / "broken"))
    print(f"2 TorchScript, {', '.join(told)}: {'equal' if not problems else 'FAILED'}", flush=True)
    for problem in problems:
        print(f"    {problem} ({folder})", flush=True)
    return len(problems)


# States in memory.
OFTEN = {"max_restarts": 20, "recovery": {"interval": 0.1}, "min_checkpoint_period": {"batches": 100000}}


def synthetic(build, path, ranks=2, batches=80, **sections):
    """A model whose batches take long beside what a rank publishes of its own."""
    hyperparameters = {"global_batch_size": 64 * ranks, "width": 1024, "optimizer": "adamw", **sections.pop("hyperparameters", {})}
    return write_experiment(path, name="memory", entrypoint=build.program("synthetic"), hyperparameters=hyperparameters,
                            searcher={"metric": "loss", "max_length": {"batches": batches}}, data={"samples": 2000},
                            resources={"slots_per_trial": ranks, "slot_type": "cpu"},
                            **{**OFTEN, "scheduling_unit": 7, "min_validation_period": {"batches": 23}, **sections})


def states_of(folder):
    try:
        return sorted(int(path.name.removeprefix("step-")) for path in memory_of(folder).glob("step-*"))
    except FileNotFoundError:
        return []


def events_of(folder, kind):
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if f'"{kind}"' in line and line.endswith("}")]


class RankKiller(threading.Thread):
    """Kills ranks of a run: each some time after there is a state in memory that is further than the one before, or (`trains`)
    than the one from which the attempt has begun."""

    def __init__(self, folder, ranks, delays, trains=False):
        super().__init__(daemon=True)
        self.folder, self.ranks, self.delays, self.trains, self.killed, self.over = folder, ranks, delays, trains, 0, False
        self.start()

    def attempts(self):
        return len(events_of(self.folder, "attempt_started"))

    def run(self):
        seen = 0
        for rank, delay in zip(self.ranks, self.delays):
            began = self.attempts() if self.killed else 0
            while not self.over and self.attempts() <= began:
                time.sleep(0.002)
            if self.trains:
                seen = max(states_of(self.folder), default=0)
            while not self.over and max(states_of(self.folder), default=0) <= seen:
                time.sleep(0.002)
            time.sleep(delay)
            started = [event for event in events_of(self.folder, "rank_started") if event["rank"] == rank]
            if self.over or not started:
                return
            seen = max(states_of(self.folder), default=seen)
            try:
                os.kill(started[-1]["pid"], signal.SIGKILL)
                self.killed += 1
            except ProcessLookupError:
                pass


def killed_with_states(build, workplace, dice):
    failures = 0
    cases = [("synthetic, sharded", 2, lambda path: synthetic(build, path, optimizations={"sharded_optimizer": True})),
             *((title(one), 2, lambda path, one=one: experiment(build, one, 2, "cpu", path)) for one in (
                 case("cnn", ADAMW, length={"batches": 700}, sections=OFTEN),
                 case("mlp", SGD, length={"batches": 1500}, sections=OFTEN, draws=True, own_state=True),
                 case("gpt", SGD, length={"batches": 500}, sections=OFTEN, sharded_optimizer=True),
                 case("cnn", ADAM, length={"batches": 700}, sections=OFTEN, sharded_optimizer=False, aggregation_frequency=3)))]
    for index, (name, ranks, write) in enumerate(cases):
        folder = workplace.path / f"memory-{index}"
        folder.mkdir()
        file = write(folder / "experiment.yaml")
        launch(build, file, folder / "whole").expect(0)
        kills = dice.randint(1, 3)
        killer = RankKiller(folder / "broken", [dice.randrange(ranks) for _ in range(kills)],
                            [dice.uniform(0, 0.4) for _ in range(kills)])
        result = launch(build, file, folder / "broken")
        killer.over = True
        problems = [] if result.code == 0 else [f"exit code {result.code}:\n{result.output}"]
        if not problems:
            problems = differences(what_is_left(folder / "whole"), what_is_left(folder / "broken"))
        resumed = events_of(folder / "broken", "resumed")
        if killer.killed and not any("/dev/shm/" in event["path"] for event in resumed):
            problems.append(f"it went on from no state in memory: {resumed}")
        if memory_of(folder / "broken").exists():
            problems.append(f"{memory_of(folder / 'broken')} is left")
        logs = "".join(path.read_text() for path in (folder / "broken").rglob("rank-*.log"))
        print(f"{ranks} {name:70} {killer.killed} kills, went on from {[event['step'] for event in resumed]}, "
              f"{logs.count('was saved in memory')} by survivors: {'equal' if not problems else 'FAILED'}", flush=True)
        for problem in problems:
            print(f"    {problem} ({folder})", flush=True)
        failures += bool(problems)
    return failures


def killed_with_survivors(build, workplace, dice):
    """Where every rank updates all parameters, the run goes on at the batch under way after most kills: of at least half."""
    failures = kills = states = 0
    common = {"optimizations": {"sharded_optimizer": False}, "recovery": {"interval": 0.5}, "scheduling_unit": 50}
    # Batches that take long beside their updates.
    for index, (name, ranks, write) in enumerate((
            ("synthetic, AdamW", 2, lambda path: synthetic(build, path, 2, 150, hyperparameters={"global_batch_size": 512}, **common)),
            ("synthetic, SGD", 3, lambda path: synthetic(build, path, 3, 150, **common,
                                                         hyperparameters={"global_batch_size": 768, "optimizer": "sgd"})))):
        folder = workplace.path / f"survivors-{index}"
        folder.mkdir()
        file = write(folder / "experiment.yaml")
        launch(build, file, folder / "whole").expect(0)
        killer = RankKiller(folder / "broken", [dice.randrange(ranks) for _ in range(4)], [dice.uniform(0.1, 0.4) for _ in range(4)],
                            trains=True)
        result = launch(build, file, folder / "broken")
        killer.over = True
        problems = [] if result.code == 0 else [f"exit code {result.code}:\n{result.output}"]
        problems = problems or differences(what_is_left(folder / "whole"), what_is_left(folder / "broken"))
        saved = sum(path.read_text().count("was saved in memory") for path in (folder / "broken").rglob("rank-*.log"))
        again = [event["batches_again"] for event in events_of(folder / "broken", "recovered")]
        print(f"{ranks} {name:70} {killer.killed} kills, {saved} states by survivors, {again} batches again: "
              f"{'equal' if not problems else 'FAILED'}", flush=True)
        for problem in problems:
            print(f"    {problem} ({folder})", flush=True)
        failures += bool(problems)
        kills += killer.killed
        states += saved
    if 2 * states < kills:
        print(f"survivors have saved the state after {states} of {kills} kills: FAILED", flush=True)
    return failures + (2 * states < kills)


def memory_of_failed_run(build, workplace):
    """What a run that fails has in memory goes to the disk, and --continue has it."""
    folder = workplace.path / "failed"
    folder.mkdir()
    file = synthetic(build, folder / "experiment.yaml", **{**OFTEN, "max_restarts": 1})
    RankKiller(folder / "run", [1], [0.2])

    ended = threading.Event()

    def kill_later_attempts():  # until one is killed before it is any further
        killed = 2
        while not ended.wait(0.002):
            for rank in events_of(folder / "run", "rank_started")[killed:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank["pid"], signal.SIGKILL)
                killed += 1

    killer = threading.Thread(target=kill_later_attempts)
    killer.start()
    failed = launch(build, file, folder / "run")
    ended.set()
    killer.join()
    problems = [] if failed.code == 1 else [f"exit code {failed.code}:\n{failed.output}"]
    last = events_of(folder / "run", "memory_saved")
    if not last or memory_of(folder / "run").exists():
        problems.append(f"its state in memory is lost, or stays there:\n{failed.output}")
    continued = run([build.program("dtrain"), "launch", "--continue", str(folder / "run")], folder / "run")
    resumed = events_of(folder / "run", "resumed")
    if continued.code != 0 or not last or not resumed or resumed[-1]["path"] != last[-1]["path"]:
        problems.append(f"it went on from {resumed[-1:]}, not from {last}:\n{continued.output}")
    verified = run([build.program("dtrain"), "checkpoint", "verify", str(folder / "run")], folder / "run")
    if verified.code != 0:
        problems.append(verified.output)
    print(f"the state in memory of a run that fails: {'on disk' if not problems else 'FAILED'}", flush=True)
    for problem in problems:
        print(f"    {problem} ({folder})", flush=True)
    return len(problems)


def full_memory(build, workplace):
    """Without room for states a run goes on without them, and says so once."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        print("skipped 'memory that is full: only root can mount a tmpfs'", flush=True)
        return 0
    on_disk = Workplace("full-memory", on_disk=True)  # /dev/shm is another one there
    folder = on_disk.path
    file = synthetic(build, folder / "experiment.yaml", batches=30)
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm || exit 99; exec "$@"'
    command = [build.program("dtrain"), "launch", str(file), "--run-dir", str(folder / "run")]
    result = run(["unshare", "--mount", "sh", "-c", script, "sh", *command], folder / "run")
    told = result.output.count("no training states are kept in memory: the states would take")
    good = result.code == 0 and told == 1 and not result.json("plan.json")["states_in_memory"]["kept"]
    if good:
        on_disk.remove()
    print(f"full memory: {'trained to its end' if good else f'FAILED: {result.output}'}", flush=True)
    return int(not good)


def nothing_left(build, workplace):
    """States in memory end with the launch, however it ends; those of a killed one are used, or removed by the next launch."""
    problems = []
    folder = workplace.path / "left"
    folder.mkdir()
    file = synthetic(build, folder / "experiment.yaml", batches=4000)

    def started(name, *command):
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: states_of(folder / name) or process.poll() is not None, "a state in memory")
        return process

    def begin(name):
        return started(name, build.program("dtrain"), "launch", str(file), "--run-dir", str(folder / name))

    process = begin("interrupted")
    process.send_signal(signal.SIGINT)
    if process.wait(DEADLINE) != 130 or memory_of(folder / "interrupted").exists():
        problems.append("Ctrl-C leaves states in memory")
    process = begin("killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for event in events_of(folder / "killed", "rank_started"):
        try:
            os.kill(event["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass
    state = max(states_of(folder / "killed"), default=0)
    continued = run([build.program("dtrain"), "launch", "--continue", str(folder / "killed"), "--set",
                     f"searcher.max_length.batches={state + 5}"], folder / "killed")
    resumed = events_of(folder / "killed", "resumed")
    if continued.code != 0 or not resumed or resumed[-1]["step"] < state or "/dev/shm/" not in resumed[-1]["path"]:
        problems.append(f"after kill -9 of every process it goes on from {resumed}, not from {state}:\n{continued.output}")
    if memory_of(folder / "killed").exists():
        problems.append("a continued run leaves states in memory")
    process = begin("lost")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    launch(build, file, folder / "other", sets=["searcher.max_length.batches=3"]).expect(0)
    if memory_of(folder / "lost").exists():
        problems.append("the states of a launch that was killed stay after another launch")
    print(f"states in memory after the end: {'none' if not problems else 'FAILED'}", flush=True)
    for problem in problems:
        print(f"    {problem} ({folder})", flush=True)
    return len(problems)


def memory_cases(build, workplace, dice):
    return (killed_with_states(build, workplace, dice) + killed_with_survivors(build, workplace, dice)
            + memory_of_failed_run(build, workplace) + full_memory(build, workplace) + nothing_left(build, workplace))


def main():
    build = Build(sys.argv[1], "gpu_trial")
    wanted = sys.argv[2:] or ["cases", "kills", "ranks", "model", "memory"]
    seed = int(os.environ.get("DTRAIN_RESUME_SEED", random.randrange(1 << 30)))
    failures = 0
    for round_seed in range(seed, seed + int(os.environ.get("DTRAIN_RESUME_ROUNDS", 1))):
        print(f"DTRAIN_RESUME_SEED={round_seed}", flush=True)
        workplace = Workplace("resume")
        dice = random.Random(round_seed)
        began = time.monotonic()
        broken = 0
        for name, part in (("cases", all_cases), ("kills", kill_cases), ("ranks", other_ranks),
                           ("model", scripts), ("memory", memory_cases)):
            if name in wanted:
                broken += part(build, workplace, dice)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        if not broken:
            workplace.remove()
        failures += broken
    if failures:
        sys.exit(f"{failures} failed")


if __name__ == "__main__":
    main()
