"""A run on two hosts loses one of them, goes on with the other, and grows again when the host is back (recovery.on_host_loss):
host 1, then host 0 with rank 0. Runs inside `two_hosts.sh with unshaped`.

    host_loss.py BIN_FOLDER [Losing[.test]]
    host_loss.py BIN_FOLDER Seconds     prints a table: a host loses its power, in pods and with the same command on each host

Losing: the trial waits in chosen batches, so each change comes in mid-epoch; every batch has the samples of an undisturbed run, and
the weights of a plain model are within 1e-6 of its weights.
"""
import os
import subprocess
import sys
import time
from pathlib import Path

import host_faults
from cluster_bed import BED, HOSTS, on_host
from elastic import logged_samples, sections
from harness import BUILD, DEADLINE, Workplace, WorkplaceTest, environment, main, overrides, wait_until, write_experiment
from pods import RUNS, Pod, hosts_file

MINE = "dtrain|dtrain-agent|dtrain-saver|virtual_trial"
LOST_1, BACK_1, LOST_0, BACK_0 = 13, 22, 31, 40  # batches in which the trial waits; an epoch has 9
BATCHES = BACK_0 + 12


class Hosts:
    """`dtrain launch` on both hosts, with one rank each."""

    def __init__(self, work, name, options=(), nodes="2", **content):
        self.folder = work.path / name
        self.folder.mkdir()
        self.run_dir, self.nodes = self.folder / "run", nodes
        content = {"slots": 2, "model": "plain", "min_checkpoint_period": {"batches": 4}, "batches": BATCHES,
                   "max_restarts": 8, **content}
        self.file = write_experiment(self.folder / "experiment.yaml", **sections(folder=self.folder, **content))
        self.options, self.keepers, self.logs = options, {}, {"a": [], "b": []}

    def start(self, *hosts):
        for host in hosts:
            log = self.folder / f"output-{host}-{len(self.logs[host])}"
            self.logs[host].append(log)
            settings = {"PET_NNODES": self.nodes, "PET_NODE_RANK": "ab".index(host), "PET_MASTER_ADDR": "nodea",
                        "PET_MASTER_PORT": 29400, "PET_NPROC_PER_NODE": 1, "PET_RDZV_CONF": "last_call_timeout=600"}
            command = [BED, "run", HOSTS, host, "env", *(f"{name}={value}" for name, value in settings.items()),
                       BUILD.program("dtrain"), "launch", str(self.file), "--run-dir", str(self.run_dir), *self.options]
            with log.open("w") as output:
                self.keepers[host] = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=output,
                                                      stderr=output)

    def output(self, host):
        return "".join(log.read_text(errors="replace") for log in self.logs[host])

    def said(self, host, text):
        wait_until(lambda: text in self.output(host) or self.has_ended(host), f"{text!r} on host {host}:\n{self.output(host)}")
        if text not in self.output(host):
            raise AssertionError(f"host {host} has not said {text!r}:\n{self.output('a')}\n-- b\n{self.output('b')}")

    def has_ended(self, host):
        return self.keepers[host].poll() is not None

    def waits_in(self, batch, host):
        """Rank 0, which is on that host, is about to wait in the batch."""
        wait_until(lambda: batch - 1 in logged_samples(self.folder) or self.has_ended(host), f"batch {batch - 1}")
        if self.has_ended(host):
            raise AssertionError(f"it has ended:\n{self.output('a')}\n-- b\n{self.output('b')}")

    def let_go(self, batch):
        (self.folder / str(batch)).touch()

    def lose(self, host):
        """Every process there; the host itself answers."""
        on_host(host, "pkill", "-KILL", "-x", MINE)
        self.keepers[host].wait(DEADLINE)

    def events(self, name):
        return host_faults.events(self.run_dir, name)

    def end(self, *hosts, code=0):
        for host in hosts:
            if self.keepers[host].wait(DEADLINE) != code:
                raise AssertionError(f"host {host}: {self.keepers[host].returncode}\n{self.output('a')}\n-- b\n{self.output('b')}")

    def kill(self):
        for host in self.keepers:
            self.lose(host)


class Losing(WorkplaceTest):
    ON_DISK = True  # each host has a /dev/shm of its own

    def hosts(self, name, **content):
        hosts = Hosts(self.work, name, **content)
        self.addCleanup(hosts.kill)
        return hosts

    def test_the_run_goes_on_without_a_host_and_grows_again(self):
        elastic = {"resources": {"elastic": {"min": 1, "max": 2}}}
        whole = self.hosts("whole", **elastic)
        whole.start("a", "b")
        whole.end("a", "b")
        changed = self.hosts("changed", hold=(LOST_1, BACK_1, LOST_0, BACK_0), **elastic)
        changed.start("b", "a")
        saves = "other hosts are to take part: saving after the current step"
        for lost, left, wait, back in (("b", "a", LOST_1, BACK_1), ("a", "b", LOST_0, BACK_0)):
            changed.waits_in(wait, "a")
            changed.lose(lost)
            changed.let_go(wait)
            changed.waits_in(back, left)
            changed.start(lost)
            changed.said(left, saves)
            changed.let_go(back)
            changed.waits_in(back + 2, "a")
        changed.end("a", "b")
        steps = [event["step"] for event in changed.events("hosts_changed")]
        self.assertEqual([event["hosts"] for event in changed.events("hosts_changed")], [[0], [0, 1], [1], [0, 1]])
        for step, asked in zip(steps[1::2], (BACK_1, BACK_0)):
            self.assertIn(step, (asked, asked + 1), "it saves after the step in which it was asked")
        ranks = [event["ranks"] for event in changed.events("hosts_changed")]
        self.assertEqual(ranks, [1, 2, 1, 2])
        self.assertEqual([event["restart"] for event in changed.events("attempt_failed")], [1, 1])
        self.assertEqual([event["state"] for event in changed.events("run_ended")], ["done"])
        # A batch that was done again had the same samples.
        sets = [{batch: set(samples) for batch, samples in logged_samples(run.folder).items()} for run in (whole, changed)]
        self.assertEqual(*sets)
        batches = [line["batch"] for line in host_faults.lines(changed.run_dir / "metrics.jsonl") if line["kind"] == "training"]
        self.assertEqual(batches, sorted(set(batches)))
        self.check_weights(whole, changed)

    def check_weights(self, whole, changed):
        from safetensors.torch import load_file
        states = [load_file(run.run_dir / "checkpoints" / "final" / "model.safetensors") for run in (whole, changed)]
        furthest = max((states[0][name] - states[1][name]).abs().max().item() for name in states[0])
        print(f"largest difference of the weights: {furthest:.1e}", flush=True)
        self.assertLess(furthest, 1e-6)

    def test_fail_ends_the_run_with_the_name_of_the_host(self):
        run = self.hosts("fails", hold=(LOST_1,), recovery={"hang": "off", "on_host_loss": "fail"})
        run.start("a", "b")
        run.waits_in(LOST_1, "a")
        wait_until(lambda: run.events("checkpoint_saved"), "a checkpoint")
        run.lose("b")
        run.let_go(LOST_1)
        run.end("a", code=1)
        self.assertIn("the run failed: host 1 (nodeb) is lost: the process that keeps its ranks is gone; recovery.on_host_loss is fail",
                      run.output("a"))
        self.assertEqual([event["state"] for event in run.events("run_ended")], ["failed"])

    def test_what_is_refused(self):
        for name, content, nodes, text in (
                ("shrink", {"recovery": {"on_host_loss": "shrink"}}, "2", "shrink does not say with how few slots or hosts the run may"),
                ("both", {"resources": {"elastic": {"min": 1}}}, "1:2", "PET_NNODES=1:2 says already how many hosts may train"),
                ("few", {"resources": {"elastic": {"min": 1, "max": 1}, "slots_per_trial": 1}}, "2",
                 "1 to 1 slots may train, and all hosts have 2")):
            run = self.hosts(name, nodes=nodes, **content)
            run.start("a")
            run.end("a", code=2)
            self.assertRegex(run.output("a"), rf"experiment\.yaml:\d+: \S+: {text}")


# The table.

SETS = ["searcher.max_length.batches=100000000", "min_checkpoint_period.batches=100000000"]


class InPods(host_faults.Pods):
    def start(self, host):
        inside = str(self.run_dir).replace(str(self.work.path), RUNS)
        command = ["dtrain", "launch", str(host_faults.SYNTHETIC), "--run-dir", inside, *overrides([*host_faults.SETS, *SETS])]
        pod = Pod(host, "ab".index(host), BUILD.bin, self.work.path, command, variables={"PET_NNODES": "1:2"}.items())
        self.outputs.setdefault(host, []).append(Path(pod.output_file.name))
        self.processes.append(pod.process)


def on_after(bed, began):
    """When the first batches of an attempt after that time had been done."""
    found = []

    def goes_on():
        started = [host_faults.seconds_of(event["time"]) for event in host_faults.events(bed.run_dir, "attempt_started")]
        if started[-1] < began:
            return False
        lines = [line for line in host_faults.lines(bed.run_dir / "metrics.jsonl") if line["kind"] == "training"]
        found[:] = [at for line in lines if (at := host_faults.seconds_of(line["time"])) > started[-1]]
        return found

    if not host_faults.wait_for(goes_on, 120):
        raise AssertionError(f"the run does not go on:\n{bed.output('a')[-4000:]}\n-- b\n{bed.output('b')[-4000:]}")
    return found[0] - began


def power(bed, lost, left, off):
    """A host loses its power, and is there again: the seconds until that was noticed, and the run went on and had grown."""
    before = len(bed.output(left))
    subprocess.run([BED, "cut", HOSTS], check=True)
    at = time.time()
    host_faults.kill_all(lost)
    host_faults.wait_for(lambda: host_faults.NOTICED.search(bed.output(left)[before:]), 60)
    noticed = time.time() - at
    on = on_after(bed, at)
    time.sleep(max(0, off - (time.time() - at)))
    subprocess.run([BED, "mend", HOSTS], check=True)
    back = time.time()
    bed.start(lost)
    grown = on_after(bed, back)
    time.sleep(3)
    again = host_faults.events(bed.run_dir, "recovered")[-1]["batches_again"]
    return noticed, on, on - noticed, again, grown


def print_table(off=8):
    host_faults.PET["PET_NNODES"] = "1:2"
    host_faults.SETS.extend(SETS)
    print("| bed | host that is lost | noticed after s | first batch after s | that is, after noticing | batches again "
          "| back: trains with both after s |\n|---|---|---|---|---|---|---|", flush=True)
    for name, kind in (("pods", InPods), ("ssh", host_faults.Ssh)):
        work = Workplace("host-loss", on_disk=True)
        names = {host: hosts_file(host).read_text() for host in "ab"}
        bed = kind(work)
        try:
            bed.prepare()
            bed.start_all()
            host_faults.wait_for(lambda: len(host_faults.lines(bed.run_dir / "metrics.jsonl")) >= 200)
            for lost, left in ("ba", "ab"):
                noticed, on, after, again, grown = power(bed, lost, left, off)
                print(f"| {name} | {'ab'.index(lost)} | {noticed:.1f} | {on:.1f} | {after:.1f} | {again} | {grown:.1f} |", flush=True)
            print(f"load {os.getloadavg()[0]:.0f}", flush=True)
        finally:
            subprocess.run([BED, "mend", HOSTS], stderr=subprocess.DEVNULL)
            bed.end()
            for host in "ab":
                hosts_file(host).write_text(names[host])
            work.remove()


if __name__ == "__main__":
    if sys.argv[2:] == ["Seconds"]:
        BUILD.open(sys.argv[1], "synthetic")
        print_table()
    else:
        main("virtual_trial")
