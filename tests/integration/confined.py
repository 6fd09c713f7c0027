"""A C++ trial in a cgroup with a CPU quota or a memory limit: do findings, rules and causes say so? And ranks of which one has
another time namespace.

Cgroups and namespaces are made by this process, which takes root; where that is not possible, the tests are skipped and say so.
What the files of the other version of cgroups look like is in tests/base/cgroup_test.cpp.

    confined.py BIN_FOLDER [TestClass[.test] ...]
    confined.py BIN_FOLDER --table  runs with 100, 50 and 25% of a CPU and near a memory limit, with and without a busy neighbour
"""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import BUILD, Workplace, WorkplaceTest, environment, main, wait_until, write_experiment

MIB = 1 << 20
# Holds more memory with each line that it reads.
BALLAST = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(int(line)))
    print(len(kept), flush=True)
"""


def hierarchy(controller):
    """The folder of this process's cgroup that may limit this, and whether it is of version 2; None: there is none."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        for name in names.split(",") if names else ["v2"] if number == "0" else []:
            own[name] = path
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = (part.split() for part in line.split(" - ", 1))
        if after[0] == "cgroup" and controller in after[2].split(",") and controller in own:
            return Path(before[4]) / os.path.relpath(own[controller], before[3]), False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = (part.split() for part in line.split(" - ", 1))
        if after[0] == "cgroup2" and "v2" in own:
            folder = Path(before[4]) / os.path.relpath(own["v2"], before[3])
            if controller in (folder / "cgroup.controllers").read_text().split():
                return folder, True
    return None, False


class Group:
    """A new cgroup. OSError where this process may not make one."""

    def __init__(self, controller):
        parent, self.v2 = hierarchy(controller)
        if parent is None:
            raise OSError(f"no hierarchy of cgroups has the controller {controller}")
        if self.v2:
            (parent / "cgroup.subtree_control").write_text("+" + controller)
        self.folder = parent / f"dtrain-test-{os.getpid()}-{time.monotonic_ns()}"
        self.folder.mkdir()

    def limit_cpus(self, cpus):
        """And so much weight that other programs do not matter."""
        if self.v2:
            (self.folder / "cpu.max").write_text(f"{int(cpus * 100000)} 100000")
            (self.folder / "cpu.weight").write_text("10000")
        else:
            (self.folder / "cpu.cfs_quota_us").write_text(str(int(cpus * 100000)))
            (self.folder / "cpu.shares").write_text("100000")

    def limit_memory(self, size):
        (self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes")).write_text(str(size))

    def used(self):
        name, prefix = ("memory.current", "") if self.v2 else ("memory.usage_in_bytes", "total_")
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        caches = int(stat[prefix + "inactive_file"]) + int(stat[prefix + "active_file"])
        return int((self.folder / name).read_text()) - caches

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        deadline = time.monotonic() + 10
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def start(place, groups, ranks, batches, entrypoint=None):
    file = write_experiment(place.path / "limited.yaml", name="limited", entrypoint=entrypoint or BUILD.program("synthetic"),
                            hyperparameters={"global_batch_size": 64, "depth": 4, "width": 512}, data={"samples": 4096},
                            resources={"slots_per_trial": ranks}, searcher={"max_length": {"batches": batches}},
                            optimizations={"sharded_optimizer": False})
    return subprocess.Popen([BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(place.new_run())], cwd=place.path,
                            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=lambda: [group.enter() for group in groups])


def analysis(place):
    run = place.path / f"run-{place.runs}"
    done = subprocess.run([BUILD.program("dtrain"), "analyze", str(run), "--json"], env=environment(), capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


def rule(result, name):
    return next(one for one in result["rules"] if one["name"] == name)


class TrialTest(WorkplaceTest):
    def wrapper(self, line):
        """The trial's program, after a line of a shell."""
        path = self.work.path / "wrapper.sh"
        path.write_text(f'#!/bin/sh\n{line}\nexec {BUILD.program("synthetic")} "$@"\n')
        path.chmod(0o755)
        return str(path)


class LimitsTest(TrialTest):
    def group(self, controller):
        try:
            group = Group(controller)
        except OSError as error:
            self.skipTest(f"no cgroup can be made here for {controller}: {error}")
        self.addCleanup(group.remove)
        return group


class Cpu(LimitsTest):
    def test_a_quota_is_the_first_finding_also_beside_a_busy_neighbour(self):
        group = self.group("cpu")
        group.limit_cpus(0.5)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
            launch = start(self.work, [group], 1, 600)
            output = launch.communicate(timeout=100)[0]
            neighbour.kill()
        self.assertEqual(launch.returncode, 0, output)
        result = analysis(self.work)
        first = result["findings"][0]
        self.assertEqual(first["id"], "cpu_quota", result["findings"])
        self.assertIn(f"/{group.folder.name} stops the ranks for", first["title"])
        self.assertIn("it grants 0.5 CPUs' worth of time", first["evidence"])
        self.assertIn(first["title"], output)
        self.assertNotIn("stalls", [one["id"] for one in result["findings"]])
        self.assertEqual(rule(result, "CPUQuota")["triggered"], 1)


class Memory(LimitsTest):
    def ballast(self, group):
        process = subprocess.Popen([sys.executable, "-c", BALLAST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   preexec_fn=group.enter)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)

        def add(size):
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            return process.stdout.readline()
        return add

    def test_the_limit_that_kills_is_the_one_that_rules_and_causes_name(self):
        group = self.group("memory")
        limit = 1024 * MIB
        group.limit_memory(limit)
        add = self.ballast(group)
        launch = start(self.work, [group], 2, 1_000_000, self.wrapper("echo 1000 >/proc/self/oom_score_adj"))
        self.addCleanup(launch.kill)
        top = [BUILD.program("dtrain"), "top", str(self.work.path / "run-1"), "--once", "--json"]

        def view():
            done = subprocess.run(top, env=environment(), capture_output=True, text=True, check=False)
            return json.loads(done.stdout) if done.returncode == 0 else {"batch": 0, "hosts": []}
        wait_until(lambda: view()["batch"] > 50, "the 50th batch")
        add(int(0.94 * limit) - group.used())
        wait_until(lambda: [(host["memory_of"], host["free_bytes"] < 0.1 * limit) for host in view()["hosts"]]
                   == [(f"the cgroup {self.name_of(group)}", True)], "a sample that shows what is held")
        self.assertEqual(view()["hosts"][0]["total_bytes"], limit)
        add(limit // 4)  # too much: the kernel kills a rank, which it is told to do first
        output = launch.communicate(timeout=100)[0]
        self.assertEqual(launch.returncode, 1, output)
        self.assertIn("was killed by signal 9 (SIGKILL)", output)
        self.assertIn(f"the kernel killed it, because the cgroup {self.name_of(group)} has reached its limit of 1.0 GiB", output)
        full = rule(analysis(self.work), "HostMemoryFull")
        self.assertEqual((full["triggered"], full["details"]["hosts"][0]["whose"]), (1, f"the cgroup {self.name_of(group)}"))

    @staticmethod
    def name_of(group):
        parent = Path("/" + os.path.relpath(group.folder, "/sys/fs/cgroup")).parts
        return "/" + "/".join(parent[1:] if group.v2 else parent[2:])


class Clocks(TrialTest):
    def test_a_rank_of_another_time_namespace_joins_and_records_the_same_times(self):
        unshare = ["unshare", "--time", "--monotonic", "100000", "--boottime", "100000"]
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no time namespace can be made here (unshare --time)")
        launch = start(self.work, [], 2, 60, self.wrapper(
            f'[ "$DTRAIN_RANK" = 1 ] && exec {" ".join(unshare)} {BUILD.program("synthetic")} "$@"'))
        self.addCleanup(launch.kill)
        output = launch.communicate(timeout=100)[0]
        self.assertEqual(launch.returncode, 0, output)
        starts = []
        for rank in range(2):
            dump = self.work.path / "run-1" / "profile" / f"rank-{rank:04}.jsonl"
            lines = [json.loads(line) for line in dump.read_text().splitlines()]
            starts.append(next(line["start_ns"] for line in lines if line["record"] == "step"))
        self.assertLess(abs(starts[0] - starts[1]), 60e9)
        result = analysis(self.work)
        self.assertGreater(result["stragglers"]["compared_steps"], 50)


def table():
    """Figures of runs under quotas, one line each."""
    for busy in (False, True):
        for ranks in (1, 2):
            for percent in (None, 100, 50, 25):
                place, group = Workplace("quotas"), Group("cpu")
                if percent:
                    group.limit_cpus(percent / 100)
                neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                launch = start(place, [group], ranks, 1000)
                output = launch.communicate(timeout=300)[0]
                for neighbour in neighbours:
                    neighbour.kill()
                    neighbour.wait()
                group.remove()
                if launch.returncode != 0:
                    sys.exit(output)
                result = analysis(place)
                what = f"{ranks} ranks, {percent or 'no'}% of a CPU, {'a busy neighbour' if busy else 'alone'}"
                rules = [one["name"] for one in result["rules"] if one["triggered"] > 0]
                print(f"{what}: loop {result['waterfall']['wall_s']:.1f} s")
                for one in result["findings"][:3]:
                    print(f"    {100 * one['share']:.0f}% {one['id']}: {one['title']}; {one['evidence']}")
                print(f"    rules: {', '.join(rules) or 'none'}", flush=True)
                place.remove()


if __name__ == "__main__":
    if sys.argv[2:] == ["--table"]:
        BUILD.open(sys.argv[1], "synthetic")
        sys.exit(table())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main("synthetic")
