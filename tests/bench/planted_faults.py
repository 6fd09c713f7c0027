"""Plants faults into real runs of two ranks, one at a time, and checks that the first finding of `dtrain analyze` names
cause, rank and cost, to within a fifth of what the fault is known to have taken; in healthy runs no finding is to call
something above 3% a fault.

    planted_faults.py BIN [CASE ...] [--json] [--keep FOLDER]

What a fault took is what the run would have been shorter by without it, measured without any of dtrain's records:

  stall          the time slept, added up: the other rank can do nothing about it
  leak           bytes kept, over batches
  hog, loader,   at work in turns with nothing, a second or two each; the trial notes when its batches begin. What
  shard, link    batches with the fault took longer than those before and after it. (A rank that is late leaves its core's
                 neighbour and the memory to the other one, whose loader may read ahead meanwhile: the time the injector
                 itself takes is not what the run loses, and is only printed, as `injected_s`.)

The hog spins on rank 1's core (cpu_hog.py); `hog_half` only half of the time, 30 ms in 60. The link joins two hosts
(network namespaces; needs root), one rank and one core each; its speed changes in turns. `healthy` is the trial without a fault,
`healthy_fashion` the Fashion-MNIST example, `healthy_hosts` the trial over the two hosts, whose link nothing slows.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import SOURCE, Build, environment, wait_until, write_experiment  # noqa: E402

BED = str(SOURCE / "tests" / "harness" / "two_hosts.sh")
RANK = 1  # the faulty one
TOLERANCE = 0.2
HEALTHY = 0.03
LEAD = 80  # batches before the first fault: strategies are tried, buffers grow
BLOCK = 60  # batches, of faults that the trial switches

MODEL = {"features": 256, "width": 1024, "depth": 4, "global_batch_size": 128}
SMALL = {"features": 256, "width": 256, "depth": 4, "global_batch_size": 1024}  # its gradients pass a slow link


class Case:
    def __init__(self, cause=None, rank=RANK, batches=1100, fault="none", hosts=False, hog=None, slow_link=None,
                 experiment=None, model=None, **amounts):
        self.cause, self.rank, self.batches, self.fault, self.hosts = cause, rank, batches, fault, hosts
        self.hog, self.slow_link, self.experiment, self.model, self.amounts = hog, slow_link, experiment, model, amounts


CASES = {
    "healthy": Case(),
    "healthy_fashion": Case(experiment="fashion_mnist", batches=600),
    "stall": Case("periodic_stalls", fault="stall", amount=120, period=40),
    "loader": Case("slow_loader", fault="loader", amount=30, batches=LEAD + 13 * BLOCK),
    "shard": Case("uneven_shard", fault="shard", amount=36, batches=LEAD + 17 * BLOCK),
    "leak": Case("memory_leak", fault="leak", amount=25 * os.sysconf("SC_PAGE_SIZE")),
    "hog": Case("cpu_contention", hog=(1.5, 1.5, 1)),
    "hog_half": Case("cpu_contention", hog=(1.5, 1.5, 0.5)),
    "healthy_hosts": Case(hosts=True, model=SMALL),
    "link": Case("slow_link", rank=None, hosts=True, model=SMALL, slow_link=("200mbit", 3, 1.5), batches=800),
}


def experiment_of(case, build, folder):
    if case.experiment:
        return SOURCE / "configs" / f"{case.experiment}.yaml", ["min_validation_period.batches=0",
                                                                f"searcher.max_length.batches={case.batches}"]
    hyperparameters = {**(case.model or MODEL), "fault": case.fault, "rank": RANK, "lead": LEAD, "block": BLOCK,
                       **case.amounts}
    return write_experiment(folder / "experiment.yaml", name="planted", entrypoint=build.program("planted_fault_trial"),
                            hyperparameters=hyperparameters, resources={"slots_per_trial": 2},
                            searcher={"max_length": {"batches": case.batches}}, data={"record": str(folder)}), []


def launch_command(case, build, folder):
    file, sets = experiment_of(case, build, folder)
    command = [build.program("dtrain"), "launch", str(file), "--run-dir", str(folder / "run"),
               *(part for item in sets for part in ("--set", item))]
    if not case.hosts:
        return command
    hosts = os.environ["TWO_HOSTS"]
    cluster = folder / "cluster.yaml"
    cluster.write_text(json.dumps({
        "agents": [{"id": f"node-{i}", "host": f"node{h}", "slots": 1} for i, h in ((1, "a"), (2, "b"))],
        "task_container_defaults": {"dtrain_network_interface": "10.71.1.0/24"},
        "launcher": {"type": "mpi", "options": ["--mca", "plm_rsh_agent", f"ssh -F {hosts}/ssh_config", "--mca", "pml",
                                                "ob1"]}}))
    passed_on = ("DTRAIN_STATE_DIR", "XDG_CONFIG_HOME", "DTRAIN_CALIBRATION")
    variables = [f"{name}={environment()[name]}" for name in passed_on]
    return [BED, "run", hosts, "a", "taskset", "-c", "0", "env", *variables, *command, "--cluster", str(cluster)]


def give_each_host_a_core():
    """What ssh starts on a host stays on its core."""
    for core, host in enumerate("ab"):
        pid = subprocess.run([BED, "run", os.environ["TWO_HOSTS"], host, "pgrep", "-o", "-x", "sshd"], check=True,
                             capture_output=True, text=True).stdout.strip()
        subprocess.run([BED, "run", os.environ["TWO_HOSTS"], host, "taskset", "-pc", str(core), pid], check=True,
                       stdout=subprocess.DEVNULL)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Injector:
    """What is planted from outside while the run goes on; `windows`: when it was at work."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.hog, self.windows, self.injected_s = None, [], None
        self.change_at, self.slow = time.monotonic(), False

    def start(self):
        if not self.case.hog:
            return
        plan = json.loads((self.folder / "run" / "plan.json").read_text())
        core = next(rank["cpus"] for rank in plan["ranks"] if rank["rank"] == RANK)[0]
        self.hog = subprocess.Popen([sys.executable, "-B", str(Path(__file__).with_name("cpu_hog.py")), str(core),
                                     *map(str, self.case.hog), str(self.folder / "hog.json")])

    def work(self):
        if not self.case.slow_link or time.monotonic() < self.change_at:
            return
        rate, slow_s, fast_s = self.case.slow_link
        self.slow = not self.slow
        if self.slow:
            self.windows.append([time.monotonic_ns(), None])
        subprocess.run([BED, "rate", os.environ["TWO_HOSTS"], rate if self.slow else "unshaped"], check=True)
        if not self.slow:
            self.windows[-1][1] = time.monotonic_ns()
        self.change_at = time.monotonic() + (slow_s if self.slow else fast_s)

    def stop(self):
        if self.hog:
            self.hog.send_signal(signal.SIGTERM)
            self.hog.wait()
            self.hog = None
            done = json.loads((self.folder / "hog.json").read_text())
            self.windows, self.injected_s = done["windows"], done["cpu_s"]
        if self.slow:
            self.windows[-1][1] = time.monotonic_ns()
        (self.folder / "windows.json").write_text(json.dumps(self.windows))


def run(case, build, folder):
    """Returns the injector; the run has ended well."""
    injector = Injector(case, folder)
    dump = folder / "run" / "profile" / "rank-0000.jsonl"
    with open(folder / "output", "w+") as output:
        process = subprocess.Popen(launch_command(case, build, folder), env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT)
        try:
            def steps():
                return dump.read_text().count('"record":"step"') if dump.is_file() else 0

            wait_until(lambda: process.poll() is not None or steps() >= LEAD, "the first batches")
            injector.start()
            while process.poll() is None:
                injector.work()
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            injector.stop()
        if process.returncode != 0:
            output.seek(0)
            raise SystemExit(f"the run ended with {process.returncode}:\n{output.read()}")
    return injector


def lost_s(begin_ns, faulty):
    """What the batches with the fault took longer than those around them; and the standard error of that."""
    blocks = []  # [faulty, batches, seconds]
    for batch, at_work in enumerate(faulty):
        if batch < LEAD // 2:
            continue
        if not blocks or blocks[-1][0] != at_work:
            blocks.append([at_work, 0, 0.0])
        blocks[-1][1] += 1
        blocks[-1][2] += (begin_ns[batch + 1] - begin_ns[batch]) / 1e9
    costs = []
    for i, (at_work, batches, seconds) in enumerate(blocks):
        if at_work:
            around = [block for block in (blocks[max(0, i - 1)], *blocks[i + 1:i + 2]) if not block[0]]
            usual = sum(block[2] for block in around) / sum(block[1] for block in around)
            costs.append((batches, seconds - batches * usual))
    lost = sum(cost for _, cost in costs)
    per_batch = [cost / batches for batches, cost in costs]
    error = statistics.stdev(per_batch) / len(costs) ** 0.5 * sum(batches for batches, _ in costs)
    return lost, error


def in_windows(begin_ns, windows):
    """Of each batch, whether it overlaps with a window, or its predecessor did: what was under way then ends in it."""
    result = []
    for begin, end in zip(begin_ns, begin_ns[1:]):
        result.append(any(begin < last and end > first for first, last in windows))
    return [here or before for here, before in zip(result, [False, *result])]


def truth_of(case, injector, folder):
    ranks = [json.loads((folder / f"planted-{rank}.json").read_text()) for rank in range(2)]
    own = ranks[RANK]
    if case.fault == "stall":
        return {"truth_seconds": own["slept_ns"] / 1e9}
    if case.fault == "leak":
        return {"truth_bytes_per_step": own["kept_bytes"] / case.batches}
    begin_ns = ranks[0]["begin_ns"]
    outside = bool(case.hog or case.slow_link)
    faulty = in_windows(begin_ns, injector.windows) if outside else own["faulty"]
    seconds, error = lost_s(begin_ns, faulty)
    truth = {"truth_seconds": seconds, "truth_error": error}
    injected = injector.injected_s if outside else own["slept_ns"] / 1e9
    return {**truth, "injected_s": injected} if injected else truth


def judge(name, case, injector, folder, analysis):
    findings = analysis["findings"]
    loop_s = analysis["waterfall"]["wall_s"]
    if case.cause is None:
        faults = [one for one in findings if one["fault"]]
        worst = max(faults, key=lambda one: 1 if one["bytes_per_step"] else one["share"], default=None)
        ok = worst is None or (worst["share"] <= HEALTHY and not worst["bytes_per_step"])
        return {"case": name, "found": worst and worst["id"], "cause": worst and worst["cause"],
                "rank": worst and worst["rank"], "seconds": worst and worst["seconds"],
                "share": worst["share"] if worst else 0, "loop_s": loop_s, "ok": ok}
    truth = truth_of(case, injector, folder)
    first = findings[0] if findings else {"id": None, "cause": None, "rank": None, "seconds": 0, "bytes_per_step": None}
    leak = "truth_bytes_per_step" in truth
    found = (first["bytes_per_step"] or 0) if leak else first["seconds"]
    ratio = found / (truth["truth_bytes_per_step"] if leak else truth["truth_seconds"])
    ok = first["cause"] == case.cause and first["rank"] == case.rank and abs(ratio - 1) <= TOLERANCE
    return {"case": name, "found": first["id"], "cause": first["cause"], "rank": first["rank"],
            ("bytes_per_step" if leak else "seconds"): found, **truth, "ratio": ratio, "loop_s": loop_s, "ok": ok}


def busy_share():
    """Of this machine's cores, within a second."""
    def read():
        user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        return user + nice + system + sum(others), idle + iowait

    before = read()
    time.sleep(1)
    busy, idle = (now - then for now, then in zip(read(), before))
    return busy / max(1, busy + idle)


def rounded(result):
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in result.items()}


def try_case(name, build, keep):
    case = CASES[name]
    if case.hosts and "TWO_HOSTS" not in os.environ:
        command = [BED, "with", "unshaped", sys.executable, "-B", __file__, str(build.bin), name, "--one"]
        done = subprocess.run(command + (["--keep", keep] if keep else []), stdout=subprocess.PIPE, text=True)
        if done.returncode == 77:
            return {"case": name, "skipped": "it needs root and network namespaces", "ok": True}
        if not done.stdout.startswith("{"):
            raise SystemExit(f"{name} did not run (exit code {done.returncode}): {done.stdout}")
        return json.loads(done.stdout)
    if case.hosts:
        give_each_host_a_core()
    folder = Path(tempfile.mkdtemp(prefix=f"dtrain-planted-{name}-"))
    try:
        injector = run(case, build, folder)
        done = subprocess.run([build.program("dtrain"), "analyze", str(folder / "run"), "--json"], env=environment(),
                              stdout=subprocess.PIPE, text=True, check=True)
        return rounded(judge(name, case, injector, folder, json.loads(done.stdout)))
    finally:
        if keep:
            shutil.copytree(folder, Path(keep) / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin")
    parser.add_argument("case", nargs="*", choices=[[], *CASES], help="all of them unless named")
    parser.add_argument("--json", action="store_true", help="one object in all, on one line")
    parser.add_argument("--keep", metavar="FOLDER", help="keep each run's folder there")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the runs end with this program
    build = Build(arguments.bin, "planted_fault_trial")
    if arguments.one:
        print(json.dumps(try_case(arguments.case[0], build, arguments.keep)))
        return
    results = []
    for name in arguments.case or CASES:
        if (share := busy_share()) > 0.1:
            print(f"{name}: other programs take {share:.0%} of the cores, which will be found as well", file=sys.stderr)
        results.append(try_case(name, build, arguments.keep))
        if not arguments.json:
            print(json.dumps(results[-1]), flush=True)
    wrong = [result["case"] for result in results if not result["ok"]]
    summary = {"cases": len(results), "skipped": sum("skipped" in result for result in results), "wrong": wrong}
    print(json.dumps({**summary, "results": results} if arguments.json else summary))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
