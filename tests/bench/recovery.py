"""From the death of a rank to the end of the next new batch: dtrain, and torchrun's elastic restarts beside it.

    recovery.py BIN [--json] [--quick] [--soon] [--seed N] [--cases cnn,mlp,torchrun,cost] [--seconds N] [--torchft FOLDER]

A random rank, rank 0 too, gets SIGKILL while the run trains; then again, until the turn's time is over. A new batch is one that no
rank had done before. Its end, and the last batch before the kill, are those of the ranks' own records.

When it kills: a user's faults are hours apart, so each finds a run that has trained for long, and at a random place in its batch. So
each kill comes a random time (uniform, FROM_S to UNTIL_S) after all ranks have done a batch in their attempt. With --soon it comes
within the first second instead, where the waiting process may not be ready.

cases: cnn (Fashion-MNIST, C++), mlp (25M parameters, C++), python (a script with dtrain's lines, the CNN), sharded (the MLP with
sharded moments), all_dead (the MLP; all ranks are killed at once), and each of cnn and mlp with 4 ranks (not with --quick, which kills
QUICK_KILLS times).
For each `median_ms worst_ms batches_again restart_ms` (restart_ms: to the end of the first batch, new or not), the medians of the
parts that the run's events give, and which share of the kills found a waiting process (`forked`) and a survivor that saved the state
of the last batch (`by_survivor`).

torchrun: the same CNN (and MLP, without --quick) under `torchrun --max-restarts`, in turns with ours. torchrun_restart_ms is as
restart_ms. What it repeats follows from its checkpoints: torch.save() holds up the loop for torchrun_save_ms, so a period in
which that is 1% of the loop repeats half of that period at the mean: torchrun_ms is the sum. torchrun_ratio is
torchrun_ms over the median_ms of the script in Python, cpp_ratio over that of the same model in C++.

torchft (--torchft FOLDER, into which pip has installed it): the CNN in two replica groups under torchrun. Nothing is repeated: the others
train without the dead group's samples, which are dropped. goes_on_ms is until their next update (with the rest of the replicas),
torchft_ms until the end of the first batch of the group that came back, torchft_ratio that over the script's median_ms.

cost: of undisturbed training, the share that states in memory and publications take: runs of the CNN without states
(recovery.interval: off) and with them (as it comes) take turns. cost_off_ms and cost_ms are the medians over the runs of their mean
steps, cost is the median over the rounds of the one over the other, less 1, and cost_rounds their number. At least COST_ROUNDS, more
where there is time: with --quick until QUICK_S are over.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("DTRAIN_PEERS_PYTHON", str(HERE.parents[1] / ".deps/peers/bin/python"))
PATIENCE = 120  # seconds; against hangs alone
SHARE = 0.01  # of the loop, that checkpoints of torchrun's script may cost
PARTS = ("noticed_s", "ended_s", "started_s", "joined_s", "resumed_s", "new_batch_s")
MLP = {"features": 2048, "width": 2048, "depth": 7, "learning_rate": 0.01}
OFF = "recovery.interval=off"  # no states in memory
FROM_S, UNTIL_S, SOON_S = 1.0, 4.0, (0.0, 1.0)
LONGEST_COST_S = 90
QUICK_S, QUICK_WAIT_S = 50, (1.0, 2.5)
QUICK_KILLS = {"cnn": 2, "mlp": 2, "python": 2}  # others: 1
COST_ROUNDS, COST_WARM_UP_S, COST_TURN_S, QUICK_COST_TURN_S = 2, 0.5, 8, 1.5


def records(path, *words):
    """The objects of a file of lines, of those with one of the words; a last line that is not whole is none."""
    if not path.is_file():
        return
    with open(path, errors="replace") as lines:
        for line in lines:
            if line.endswith("\n") and (not words or any(word in line for word in words)):
                yield json.loads(line)


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen in {PATIENCE} s")
        time.sleep(0.1)


def experiment(case, ranks, folder):
    """`case`: as in the list above."""
    sections = {"name": case, "resources": {"slots_per_trial": ranks, "slot_type": "cpu"}, "max_restarts": 1000,
                "searcher": {"max_length": {"batches": 10**6}}, "hyperparameters": {"global_batch_size": 64 * ranks},
                "min_checkpoint_period": {"batches": 40}, "optimizations": {"sharded_optimizer": case == "sharded"}}
    if case == "python":
        sections["entrypoint"] = [str(HERE / "recovery_script.py"), "dtrain", "cnn"]
        sections["searcher"] = {"max_length": {"epochs": 10**6}}
    elif case == "cnn":
        sections["entrypoint"] = "fashion_mnist"
        sections["data"] = {"folder": "/usr/share/datasets/fashion-mnist"}
    else:
        sections["entrypoint"] = "synthetic"
        sections["hyperparameters"] |= MLP
        sections["data"] = {"samples": 1024}
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(sections))
    return file


class Ours:
    """A run of `dtrain launch` that goes on until it is closed."""

    def __init__(self, case, ranks, folder, arguments, sets=()):
        self.case, self.ranks, self.run = case, ranks, folder / "run"
        folder.mkdir()
        self.log = folder / "log"
        command = [arguments.bin / "dtrain", "launch", experiment(case, ranks, folder), "--run-dir", self.run]
        command += [word for one in sets for word in ("--set", one)]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | {
            "DTRAIN_STATE_DIR": str(folder / "state"), "DTRAIN_CALIBRATION": "false", "DTRAIN_PYTHON": PYTHON,
            "PYTHONPATH": f"{arguments.bin.parent / 'python'}:{HERE}"}
        self.launcher = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                                         stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def events(self, name):
        return list(records(self.run / "events.jsonl", f'"event":"{name}"'))

    def attempts(self):
        if self.launcher.poll() is not None:
            raise RuntimeError(f"the run of {self.case} has ended:\n{self.log.read_text()[-3000:]}")
        return len(self.events("attempt_started"))

    def batches(self, profile):
        """Of each rank: {batch: its end in ns}. Batches that were folded into a window have its end."""
        result = []
        for dump in sorted(profile.glob("rank-*.jsonl")):
            ends = {}
            for record in records(dump, '"record":"step"', '"record":"window"'):
                if record["record"] == "step":
                    ends[record["batch"]] = record["start_ns"] + record["wall_ns"]
                elif record["record"] == "window":
                    ends |= {batch: record["end_ns"] for batch in (record["first_batch"], record["last_batch"])}
            result.append(ends)
        return result

    def trains(self):
        """Waits until each rank has done a batch in this attempt."""
        wait_until(lambda: self.attempts() and (ends := self.batches(self.run / "profile")) and len(ends) == self.ranks
                   and all(ends), f"the first batch of {self.case}")

    def processes(self):
        return {event["rank"]: event["pid"] for event in self.events("rank_started")}

    def disturb(self, dice):
        """Kills, and returns what came of it."""
        before = self.attempts()
        pids = self.processes()
        victims = pids if self.case == "all_dead" else [dice.choice(sorted(pids))]
        killed_ns = time.monotonic_ns()
        for rank in victims:
            os.kill(pids[rank], signal.SIGKILL)
        wait_until(lambda: self.attempts() > before, f"the next attempt of {self.case}")
        old = self.batches(self.run / f"attempt-{before}" / "profile")
        done = max(max(ends, default=0) for ends in old)

        def new_batch():
            self.attempts()
            ends = self.batches(self.run / "profile")
            return len(ends) == self.ranks and all(max(one, default=0) > done for one in ends) and ends

        ends = wait_until(new_batch, f"a new batch of {self.case}")
        first = min(min(one) for one in ends)
        ms = lambda batch: (max(min(end for number, end in one.items() if number >= batch) for one in ends) - killed_ns) / 1e6
        told = self.told(before)
        logs = (self.run / f"attempt-{before}" / "logs").glob("rank-*.log")
        return {"ms": ms(done + 1), "restart_ms": ms(first), "again": done + 1 - first,
                "forked": all(event.get("from_standby") for event in self.events("rank_started")[-self.ranks:]),
                "by_survivor": any("was saved in memory" in log.read_text() for log in logs),
                "parts": {part: told[part] for part in PARTS} if told else {}}

    def told(self, before):
        """The event of the recovery, which the launcher writes some moments later; None: this dtrain has no such event."""
        end = time.monotonic() + 2
        while True:
            told = [event for event in self.events("recovered") if event["attempt"] > before]
            if told or time.monotonic() > end:
                return told[-1] if told else None
            time.sleep(0.05)

    def close(self):
        """Without a last checkpoint, which the second signal leaves out."""
        for wait_s in (0.1, PATIENCE):
            self.launcher.send_signal(signal.SIGINT)
            try:
                self.launcher.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                pass
        self.launcher.kill()


class Torchrun:
    def __init__(self, model, ranks, folder, _):
        self.case, self.ranks, self.folder = f"torchrun's {model}", ranks, folder
        folder.mkdir()
        self.log = folder / "log"
        command = [Path(PYTHON).parent / "torchrun", "--nproc-per-node", ranks, "--max-restarts", 1000, "--monitor-interval", 0.1,
                   HERE / "recovery_script.py", "torchrun", model, folder, 20]
        self.launcher = subprocess.Popen([str(word) for word in command], env=os.environ | {"OMP_NUM_THREADS": "1"},
                                         stdin=subprocess.DEVNULL, stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def lines(self, name):
        path = self.folder / name
        if self.launcher.poll() is not None:
            raise RuntimeError(f"{self.case} has ended:\n{self.log.read_text()[-3000:]}")
        return [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []

    def trains(self):
        wait_until(lambda: self.lines("saves"), f"the first save of {self.case}")

    def disturb(self, dice):
        pids = {int(rank): int(pid) for rank, pid in self.lines("pids")}
        rank = dice.choice(sorted(pids))
        killed_ns = time.monotonic_ns()
        os.kill(pids[rank], signal.SIGKILL)

        def first_batch():
            ends = [[int(end) for _, began, end in self.lines(f"batches-{rank}") if int(began) > killed_ns + 1e8]
                    for rank in range(self.ranks)]
            # A batch that a survivor was in when the other died never ends.
            return len(self.lines("pids")) % self.ranks == 0 and all(ends) and max(one[0] for one in ends)

        return {"restart_ms": (wait_until(first_batch, f"a batch of {self.case}") - killed_ns) / 1e6}

    def save_and_step_ms(self):
        steps = [(int(end) - int(began)) / 1e6 for _, began, end in self.lines("batches-1")]
        return statistics.median(float(one) * 1e3 for (one,) in self.lines("saves")), statistics.median(steps)

    def close(self):
        self.launcher.terminate()
        try:
            self.launcher.wait(PATIENCE)
        finally:
            self.launcher.kill()


class Torchft:
    def __init__(self, folder, arguments):
        self.folder, self.log = folder, folder / "log"
        folder.mkdir()
        script = HERE / "recovery_torchft.py"
        environment = os.environ | {"PYTHONPATH": str(arguments.torchft), "OMP_NUM_THREADS": "1"}
        self.lighthouse = subprocess.Popen([PYTHON, script, "lighthouse"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=open(folder / "lighthouse", "w"), text=True)
        environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{self.lighthouse.stdout.readline().strip()}"
        command = [Path(PYTHON).parent / "torchrun", "--standalone", "--nproc-per-node", 1, "--max-restarts", 1000,
                   "--monitor-interval", 0.1, script, "replica", "cnn", folder]
        self.replicas = [subprocess.Popen([str(word) for word in command], env=environment | {"REPLICA_GROUP_ID": str(group)},
                                          stdin=subprocess.DEVNULL, stdout=open(self.log, "a"), stderr=subprocess.STDOUT)
                         for group in range(2)]

    def lines(self, name):
        if any(one.poll() is not None for one in self.replicas):
            raise RuntimeError(f"torchft has ended:\n{self.log.read_text()[-3000:]}")
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [[int(word) for word in line.split()] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def batches(self, group, from_ns):
        """The ends of its updates with all replicas, and with any, after `from_ns`."""
        made = [(end, replicas) for _, _, end, committed, replicas in self.lines(f"batches-{group}") if committed and end > from_ns]
        return [end for end, replicas in made if replicas == 2], [end for end, _ in made]

    def trains(self):
        wait_until(lambda: all(len(self.batches(group, 0)[0]) > 20 for group in range(2)), "training of both replicas of torchft")

    def disturb(self, dice):
        group = dice.choice(range(2))
        pid = dict(self.lines("pids"))[group]
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.batches(group, killed_ns + 10**8)[0], "a batch of the replica of torchft that was killed")
        ms = lambda end: (end - killed_ns) / 1e6
        others = self.batches(1 - group, killed_ns)[1]
        return {"goes_on_ms": ms(others[0]), "torchft_ms": ms(self.batches(group, killed_ns + 10**8)[0][0])}

    def close(self):
        for one in self.replicas:
            one.terminate()
        self.lighthouse.stdin.close()
        for one in [*self.replicas, self.lighthouse]:
            try:
                one.wait(PATIENCE)
            finally:
                one.kill()


def disturbed(run, end, dice, wait_s, kills=0):
    """What came of each kill: of so many, or until the time: then of one at least."""
    found = []
    run.trains()
    while len(found) < (kills or 1) or (not kills and time.monotonic() < end):
        time.sleep(dice.uniform(*wait_s))
        found.append(run.disturb(dice))
    return found


def row(case, ranks, found):
    parts = {}
    for part in PARTS:
        known = [one["parts"][part] for one in found if one["parts"].get(part) is not None]
        if known:
            parts[part.replace("_s", "_ms")] = round(1e3 * statistics.median(known), 1)
    return {"case": case, "ranks": ranks, "kills": len(found),
            "median_ms": round(statistics.median(one["ms"] for one in found), 1),
            "worst_ms": round(max(one["ms"] for one in found), 1),
            "restart_ms": round(statistics.median(one["restart_ms"] for one in found), 1),
            "batches_again": statistics.mean(one["again"] for one in found),
            "forked": round(statistics.mean(one["forked"] for one in found), 2),
            "by_survivor": round(statistics.mean(one["by_survivor"] for one in found), 2), "parts": parts}


def torchrun_row(model, found, save_ms, step_ms):
    period = save_ms / SHARE / step_ms
    restart_ms = statistics.median(one["restart_ms"] for one in found)
    return {"case": "torchrun", "model": model, "kills": len(found), "torchrun_restart_ms": round(restart_ms, 1),
            "torchrun_save_ms": round(save_ms, 1), "step_ms": round(step_ms, 2), "batches_again": round(period / 2, 1),
            "torchrun_ms": round(restart_ms + period / 2 * step_ms, 1)}


def mean_step_ms(folder, arguments, sets, seconds):
    """Of rank 0 of an undisturbed run, once it has warmed up."""
    run = Ours("cnn", 2, folder, arguments, sets)
    try:
        run.trains()
        time.sleep(COST_WARM_UP_S)
        first = max(run.batches(run.run / "profile")[0])
        time.sleep(seconds)
        ends = run.batches(run.run / "profile")[0]
        return (ends[max(ends)] - ends[first]) / (max(ends) - first) / 1e6
    finally:
        run.close()


def undisturbed_cost(folder, arguments, end):
    """Rounds of a run without states in memory and one with them; the first one of a round is the second of the next."""
    off, kept = [], []
    turn_s = QUICK_COST_TURN_S if arguments.quick else COST_TURN_S
    order = [((OFF,), off), ((), kept)]
    while len(kept) < COST_ROUNDS or time.monotonic() + 2 * (turn_s + COST_WARM_UP_S + 1) < end:
        for sets, steps in order:
            steps.append(mean_step_ms(folder / f"{len(steps)}-{len(sets)}", arguments, sets, turn_s))
        order.reverse()
    return {"cost": round(statistics.median(one / other for one, other in zip(kept, off)) - 1, 4),
            "cost_off_ms": round(statistics.median(off), 3), "cost_ms": round(statistics.median(kept), 3), "cost_rounds": len(kept)}


def measure(arguments, folder):
    began = time.monotonic()
    dice = random.Random(arguments.seed)
    wanted = arguments.cases.split(",")
    cases = [(case, 2) for case in ("cnn", "mlp", "python", "sharded", "all_dead")]
    cases += [] if arguments.quick else [("cnn", 4), ("mlp", 4)]
    cases = [one for one in cases if one[0] in wanted]
    models = [model for model in ("cnn",) + (() if arguments.quick else ("mlp",)) if model in wanted]
    if "torchrun" not in wanted:
        models = []
    rounds = 1 if arguments.quick else 3
    cost_s = min(LONGEST_COST_S, arguments.seconds / 4) if "cost" in wanted else 0
    turn_s = (arguments.seconds - cost_s) / (rounds * max(1, len(cases) + len(models) + bool(arguments.torchft)))
    wait_s = SOON_S if arguments.soon else QUICK_WAIT_S if arguments.quick else (FROM_S, UNTIL_S)
    kills = lambda case: QUICK_KILLS.get(case, 1) if arguments.quick else 0
    of_case, of_peer, steps, of_torchft = {}, {}, {}, []
    for turn in range(rounds):
        for case, ranks in cases:
            end = time.monotonic() + turn_s
            run = Ours(case, ranks, folder / f"{case}-{ranks}-{turn}", arguments)
            try:
                of_case.setdefault((case, ranks), []).extend(disturbed(run, end, dice, wait_s, kills(case)))
            finally:
                run.close()
        for model in models:
            end = time.monotonic() + turn_s
            run = Torchrun(model, 2, folder / f"torchrun-{model}-{turn}", arguments)
            try:
                of_peer.setdefault(model, []).extend(disturbed(run, end, dice, (0.2, 1), kills("torchrun")))
                steps.setdefault(model, []).append(run.save_and_step_ms())
            finally:
                run.close()
        if arguments.torchft:
            end = time.monotonic() + turn_s
            run = Torchft(folder / f"torchft-{turn}", arguments)
            try:
                of_torchft += disturbed(run, end, dice, (0.2, 1), kills("torchft"))
            finally:
                run.close()
    rows = [row(case, ranks, found) for (case, ranks), found in of_case.items()]
    peers = [torchrun_row(model, found, *(statistics.median(values) for values in zip(*steps[model])))
             for model, found in of_peer.items()]
    result = {"rows": rows, "torchrun": peers, "seed": arguments.seed}
    medians = {one["case"]: one["median_ms"] for one in rows if one["ranks"] == 2}
    result |= {f"{case}_ms": median for case, median in medians.items()}
    if "cnn" in of_peer and "python" in medians:
        result["torchrun_ratio"] = round(peers[0]["torchrun_ms"] / medians["python"], 2)
    for peer in peers:
        if peer["model"] in medians:
            result[f"{peer['model']}_cpp_ratio"] = round(peer["torchrun_ms"] / medians[peer["model"]], 2)
    if of_torchft:
        result["torchft"] = {name: round(statistics.median(one[name] for one in of_torchft), 1) for name in of_torchft[0]}
        result["torchft"]["kills"] = len(of_torchft)
        if "python" in medians:
            result["torchft_ratio"] = round(result["torchft"]["torchft_ms"] / medians["python"], 2)
    if "cost" in wanted:
        (folder / "cost").mkdir()
        result |= undisturbed_cost(folder / "cost", arguments, began + QUICK_S if arguments.quick else time.monotonic() + cost_s)
    return result | {"seconds": round(time.monotonic() - began, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: Path(text).resolve())
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--quick", action="store_true", help="under 55 s: one or two kills of each, 2 ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--soon", action="store_true", help="kill within the first second of each attempt")
    parser.add_argument("--cases", default="cnn,mlp,python,sharded,all_dead,torchrun,cost")
    parser.add_argument("--seconds", type=float, help="of the whole measurement, about; each turn has at least one kill (not with --quick)")
    parser.add_argument("--torchft", type=Path, metavar="FOLDER",
                        help="torchft is a contestant: pip install --target FOLDER --no-deps torchft and, with what it needs,"
                        " opentelemetry-exporter-otlp-proto-http")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the runs are ended, too
    arguments.seconds = arguments.seconds or 400
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        result = measure(arguments, Path(folder))
    print(json.dumps(result, indent=None if arguments.json else 1))


if __name__ == "__main__":
    sys.exit(main())
