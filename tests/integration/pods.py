"""Runs on two hosts as Kubernetes starts them: nothing but PET_*, no MPI, no ssh, no root, 64 MB of /dev/shm, a root file
system that cannot be written, names that resolve late. Runs inside `two_hosts.sh with RATE`.

    pods.py BIN_FOLDER [TestClass[.test] ...]

Soak, which is not in the suite, repeats the start in a random order: POD_RUNS (20), LATE_S (20 s until names resolve).
"""
import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from cluster_bed import BED, HOSTS, on_host
from harness import BUILD, DEADLINE, SOURCE, Result, Workplace, main, overrides, wait_until, write_job
from trainer_server import read_posts

MASTER = "trainer-node-0-0.trainer"
USER = 1000
SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SMALL = ["data.samples=2048", "hyperparameters.width=64"]
RUNS = "/runs"
# A container, in a mount namespace of its own: the machine's files under a root that cannot be written, without MPI.
# /tmp is the pod's own (emptyDir), /runs is the volume that all pods share ($1). $2: the tree under test.
POD = r"""
mount -t tmpfs -o size=64m tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
root=/mnt/root
sed -i '/^[^:]*:[^:]*:USER:/d' $root/etc/passwd  # a user without a name, as in most containers
rm -f $root/usr/bin/mpirun $root/usr/bin/mpiexec $root/usr/lib/*/libmpi.so.40*
mkdir -p $root/runs "$root$2"
folder=$(dirname "$2")  # which may lie in a home folder that is closed to others
until [ "$folder" = / ]; do chmod a+x "$root$folder"; folder=$(dirname "$folder"); done
for folder in /proc /sys /dev "$2"; do mount --rbind $folder "$root$folder"; done
for file in /etc/hosts /etc/resolv.conf; do [ ! -e $file ] || mount --bind $file $root$file; done
mount -t tmpfs -o size=64m,mode=1777 tmpfs $root/dev/shm
mount -t tmpfs -o size=64m,mode=1777 tmpfs $root/tmp
mount --bind "$1" $root/runs
mount -o remount,ro $root
shift 2
exec /usr/sbin/chroot $root setpriv --reuid USER --regid USER --clear-groups --no-new-privs -- env --chdir=/runs "$@"
""".replace("USER", str(USER))


def hosts_file(host):
    return Path("/etc/netns") / (Path(HOSTS) / f"namespace.{host}").read_text().strip() / "hosts"


def manifests():
    """The TrainingRuntime and the TrainJob of docs/kubernetes.md."""
    import yaml  # of the Python peers

    text = (SOURCE / "docs" / "kubernetes.md").read_text()
    block = text.partition("<!-- trainjob")[2].partition("```yaml\n")[2].partition("```")[0]
    return list(yaml.safe_load_all(block))


class Pod:
    """`dtrain launch` or `dtrain run` on one of the hosts, in the background."""

    def __init__(self, host, rank, bin_folder, volume, command, ranks_here=2, variables=(), hosts=2):
        pet = {"PET_NNODES": hosts, "PET_NODE_RANK": rank, "PET_MASTER_ADDR": MASTER, "PET_MASTER_PORT": 29400}
        if ranks_here:
            pet["PET_NPROC_PER_NODE"] = ranks_here
        plain = {"PATH": f"{bin_folder}:/usr/local/bin:/usr/bin:/bin", "HOME": "/", "OMP_NUM_THREADS": "1",
                 "DTRAIN_CALIBRATION": "false", **{name: str(value) for name, value in pet.items()}, **dict(variables)}
        settings = [f"{name}={value}" for name, value in plain.items()]
        self.output_file = open(volume / f"pod-{host}-{time.monotonic_ns()}.out", "w+")
        # A third pod is beside the second one, and as far from it as another host: ranks see neither its processes nor its
        # shared memory.
        apart = [] if host in "ab" else ["unshare", "--uts", "--ipc", "--pid", "--mount-proc", "--fork",
                                         "bash", "-c", f'hostname node{host}; exec "$@"', self.mark_of(host)]
        self.process = subprocess.Popen(
            [BED, "run", HOSTS, host if host in "ab" else "b", "env", "-i", *settings, *apart, "unshare", "--mount",
             "--propagation", "private", "bash", "-ec", POD, "pod", str(volume), str(SOURCE), *command],
            stdin=subprocess.DEVNULL, stdout=self.output_file, stderr=subprocess.STDOUT)
        self.host = host

    @staticmethod
    def mark_of(host):
        """In the command line of a third pod's first process."""
        return f"dtrain-pod-{host}"

    def output(self):
        return Path(self.output_file.name).read_text(errors="replace")

    def has_ended(self):
        return self.process.poll() is not None

    def wait(self, deadline=DEADLINE):
        code = self.process.wait(deadline)
        self.output_file.close()
        return code


class PodsTest(unittest.TestCase):
    build = BUILD

    def setUp(self):
        self.work = Workplace(type(self).__name__, on_disk=True)
        os.chown(self.work.path, USER, USER)
        self.rank_program = str(self.build.bin.parent / "tests" / "rank_program")
        self.names = {host: hosts_file(host).read_text() for host in "ab"}
        self.pods = []

    def tearDown(self):
        for pod in self.pods:
            if not pod.has_ended():
                self.kill_pod(pod)
                pod.process.wait(DEADLINE)
        for host in "ab":
            self.resolve(host, False)
            wait_until(lambda host=host: self.left_running(host) == [], f"the end of every process on host {host}")
        self.work.remove()

    def kill_pod(self, pod):
        """With all of its processes, and its /dev/shm. With the second pod the third one ends."""
        if pod.host in "ab":
            on_host(pod.host, "pkill", "-KILL", "-u", str(USER))
        else:
            for parent in on_host("b", "pgrep", "-f", f"^unshare .*{Pod.mark_of(pod.host)}").split():
                on_host("b", "pkill", "-KILL", "-P", parent)  # the first process of the pod's own process namespace

    def left_running(self, host):
        lines = on_host(host, "ps", "-u", str(USER), "-o", "stat=,args=").splitlines()
        return [line for line in lines if not line.startswith("Z")]

    def resolve(self, host, does=True):
        """In place: /etc/hosts of the host is this very file."""
        with open(hosts_file(host), "r+") as file:
            file.truncate(0)
            file.write(self.names[host] + (f"10.71.1.1 {MASTER}\n" if does else ""))

    def start(self, host, command, **more):
        pod = Pod(host, "abc".index(host), self.build.bin, self.work.path, command, **more)
        self.pods.append(pod)
        return pod

    def launch(self, experiment, run_dir, *more):
        return ["dtrain", "launch", self.inside(experiment), "--run-dir", self.inside(run_dir), *more]

    def inside(self, path):
        return str(path).replace(str(self.work.path), RUNS)

    def run_both(self, command, order="ba", **more):
        for host in "ab":
            self.resolve(host)
        return [self.start(host, command, **more) for host in order]

    def experiment(self, **sections):
        return write_job(self.work.path, self.rank_program, 4, **sections)

    def batches(self, run_dir):
        file = run_dir / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.is_file() else 0

    def reached(self, run_dir, batches):
        wait_until(lambda: self.batches(run_dir) >= batches or any(pod.has_ended() for pod in self.pods),
                   f"batch {batches}")
        self.assertFalse(any(pod.has_ended() for pod in self.pods), "\n".join(pod.output() for pod in self.pods))

    def expect(self, pods, code):
        codes = [pod.wait() for pod in pods]
        self.assertEqual(codes, [code] * len(pods), "\n".join(f"-- {pod.host}\n{pod.output()}" for pod in pods))

    def start_with_late_names(self, run_dir, order, late_s, gap_s):
        """Pods in that order, the second gap_s later; the first host's name resolves late_s after the first start."""
        experiment = self.experiment(step_ms=20)
        began = time.monotonic()
        pods = []
        for host in order:
            pods.append(self.start(host, self.launch(experiment, run_dir)))
            time.sleep(gap_s if len(pods) == 1 else 0)
        time.sleep(max(0, late_s - (time.monotonic() - began)))
        for host in "ab":
            self.resolve(host)
        return pods

    def check_run(self, run_dir):
        result = Result(0, "", run_dir)
        self.assertEqual(len(result.metrics("training")), 30)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        self.assertEqual({event["rank"]: event["host"] for event in result.events("rank_started")},
                         {0: "nodea", 1: "nodea", 2: "nodeb", 3: "nodeb"})
        self.assertEqual(result.json("plan.json")["communication"], {"backend": "tcp", "hosts": 2})
        files = {path.name for path in (run_dir / "profile").iterdir()}
        ranks = {f"rank-000{rank}.jsonl" for rank in range(4)}
        self.assertEqual(files, {"agent-nodea.jsonl", "agent-nodeb.jsonl", *ranks})


class Starting(PodsTest):
    def test_names_resolve_late_and_the_second_host_starts_first(self):
        run_dir = self.work.new_run()
        pods = self.start_with_late_names(run_dir, "ba", late_s=6, gap_s=0.5)
        self.expect(pods, 0)
        self.check_run(run_dir)
        output = {pod.host: pod.output() for pod in pods}
        self.assertRegex(output["b"],
                         rf"host 1 \(nodeb\) waits for host 0: the name {MASTER} does not resolve: .* \(2.* so far, at most")
        self.assertRegex(output["b"], rf"host 1 \(nodeb\) has found {MASTER} at 10\.71\.1\.1 after ")
        self.assertIn("host        nodeb, 2 of 2: ranks 2 to 3 of 4", output["b"])
        self.assertIn("4 ranks on 2 hosts", output["a"])
        self.assertNotIn("[c10d]", output["a"] + output["b"], "no messages of PyTorch's store")

    def test_ranks_run_as_the_user_in_little_shared_memory_and_without_mpi(self):
        run_dir = self.work.new_run()
        pods = self.run_both(self.launch(self.experiment(batches=1_000_000), run_dir))
        self.reached(run_dir, 5)
        for host in "ab":
            (pid, *_) = on_host(host, "pgrep", "-f", "^" + self.rank_program).split()
            maps = on_host(host, "cat", f"/proc/{pid}/maps")
            self.assertIn("libdtrain_comm.so", maps)
            self.assertNotIn("libmpi", maps)
            self.assertRegex(on_host(host, "cat", f"/proc/{pid}/status"), rf"Uid:\s+{USER}\s+{USER}")
            self.assertRegex(on_host(host, "cat", f"/proc/{pid}/mounts"), r"tmpfs /dev/shm tmpfs [^\n]*size=65536k")
        on_host("a", "pkill", "-INT", "-x", "dtrain")
        self.expect(pods, 130)

    def test_slots_per_trial_is_divided_where_the_pod_names_no_number(self):
        run_dir = self.work.new_run()
        self.expect(self.run_both(self.launch(self.experiment(), run_dir), order="ab", ranks_here=None), 0)
        self.check_run(run_dir)


class Ending(PodsTest):
    def test_a_killed_rank_is_named_with_its_host_everywhere(self):
        run_dir = self.work.new_run()
        pods = self.run_both(self.launch(self.experiment(batches=1_000_000), run_dir))
        self.reached(run_dir, 5)
        ranks = on_host("b", "pgrep", "-f", "^" + self.rank_program).split()
        on_host("b", "kill", "-KILL", ranks[-1])
        self.expect(pods, 1)
        output = {pod.host: pod.output() for pod in pods}
        gone = r"rank {} stopped because rank [23] failed.*: rank [23] \(pid \d+ on nodeb\) is gone: connection lost"
        for rank in (0, 1):
            self.assertRegex(output["a"], gone.format(rank))
        self.assertRegex(output["b"], r"dtrain: rank [23] was killed by signal 9")

    def test_a_pod_that_vanishes_is_named(self):
        run_dir = self.work.new_run()
        pods = self.run_both(self.launch(self.experiment(batches=1_000_000), run_dir))
        self.reached(run_dir, 5)
        on_host("b", "pkill", "-KILL", "-u", str(USER))
        self.assertEqual(pods[1].wait(), 1)
        self.assertIn("the run failed: host 1 (nodeb) is lost: the process that keeps its ranks is gone", pods[1].output())
        gone = r"rank 0 stopped because rank [23] failed.*: rank [23] \(pid \d+ on nodeb\) is gone: connection lost"
        self.assertRegex(pods[1].output(), gone)

    def test_sigterm_to_one_pod_saves_and_the_same_command_goes_on(self):
        run_dir = self.work.new_run()
        sets = ["searcher.max_length.batches=3000", "scheduling_unit=10", "resources.slots_per_trial=4", *SMALL]
        command = self.launch(SYNTHETIC, run_dir, *overrides(sets))
        pods = self.run_both(command)
        self.reached(run_dir, 5)  # a line for each scheduling unit
        on_host("b", "pkill", "-TERM", "-x", "dtrain")
        self.expect(pods, 75)
        (saved,) = (event["step"] for event in Result(0, "", run_dir).events("checkpoint_saved"))
        self.assertGreaterEqual(saved, 50)
        self.expect(self.run_both(command), 0)
        result = Result(0, "", run_dir)
        self.assertEqual([event.get("step") for event in result.events("attempt_started")], [None, saved])
        self.assertEqual(result.metrics("training")[-1]["batch"], 3000)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["interrupted", "done"])

    def test_bad_input_ends_both_before_the_run(self):
        pods = self.run_both(self.launch(self.experiment(), self.work.new_run(), "--set", "communication.backend=mpi"))
        self.expect(pods, 2)
        self.assertIn("communication.backend mpi and hierarchical need mpirun to start them", pods[1].output())


class Recovering(PodsTest):
    """Ranks and pods are killed, and the run goes on in place, with the bits of an undisturbed run."""
    BATCHES = 1500
    undisturbed = None  # the weights of the same run without a fault
    SETS = [f"searcher.max_length.batches={BATCHES}", "scheduling_unit=10", "resources.slots_per_trial=4",
            "min_checkpoint_period.batches=100", *SMALL]

    def setUp(self):
        super().setUp()
        self.run_dir = self.work.new_run()
        self.command = self.launch(SYNTHETIC, self.run_dir, *overrides(self.SETS))

    def saved(self, number):
        """Waits for so many checkpoints."""
        wait_until(lambda: len(self.checkpoints()) >= number or any(pod.has_ended() for pod in self.pods), "a checkpoint")
        self.assertFalse(any(pod.has_ended() for pod in self.pods), "\n".join(pod.output() for pod in self.pods))

    def checkpoints(self):
        return Result(0, "", self.run_dir).events("checkpoint_saved") if (self.run_dir / "events.jsonl").is_file() else []

    def ranks(self, host):
        return on_host(host, "pgrep", "-f", "^" + self.build.program("synthetic")).split()

    def check_bits(self, restarts):
        result = Result(0, "", self.run_dir)
        self.assertEqual(result.metrics("training")[-1]["batch"], self.BATCHES)
        self.assertEqual([event["restart"] for event in result.events("attempt_failed")], restarts)
        started = result.events("attempt_started")
        self.assertEqual([event["attempt"] for event in started], list(range(1, len(restarts) + 2)))
        self.assertTrue(all(event["step"] > 0 for event in started[1:]), started)
        self.assertEqual(result.events("run_ended")[-1]["state"], "done")
        self.assertEqual(result.events("continued"), [], "no user has continued it")
        if Recovering.undisturbed is None:
            run_dir = self.work.new_run()
            self.expect(self.run_both(self.launch(SYNTHETIC, run_dir, *overrides(self.SETS))), 0)
            Recovering.undisturbed = Result(0, "", run_dir).weights_file.read_bytes()
        self.assertEqual(result.weights_file.read_bytes(), Recovering.undisturbed)

    def test_killed_ranks_are_started_again_in_place(self):
        pods = self.run_both(self.command)
        for number, host in enumerate("ba", start=1):
            self.saved(2 * number)
            before = self.ranks("a") + self.ranks("b")
            on_host(host, "kill", "-KILL", self.ranks(host)[0])
            wait_until(lambda: len(self.ranks("a") + self.ranks("b")) == 4
                       and not set(before) & set(self.ranks("a") + self.ranks("b")), "four new ranks")
        self.expect(pods, 0)
        self.check_bits([1, 1])
        for pod in pods:
            self.assertRegex(pod.output(), r"dtrain: attempt 1 failed: rank [23] was killed by signal 9 \(SIGKILL\)\n"
                                           r"dtrain: restart 1 of 5")

    def test_the_first_keeper_tells_kubeflow_of_the_progress_through_a_restart(self):
        folder = self.work.path / "server"
        address, program = "10.71.1.2", str(Path(__file__).with_name("trainer_server.py"))  # in neither pod
        server = subprocess.Popen([BED, "run", HOSTS, "b", sys.executable, "-B", program, str(folder), address])
        try:
            wait_until((folder / "url").is_file, "the server")
            inside = {"URL": (folder / "url").read_text(), "TOKEN": self.inside(folder / "token"),
                      "CA_CERT": self.inside(folder / "ca.crt")}
            variables = {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in inside.items()}
            pods = self.run_both(self.command, variables=variables.items())
            self.saved(2)
            on_host("a", "kill", "-KILL", self.ranks("a")[0])
            self.expect(pods, 0)
        finally:
            server.kill()
            server.wait()
        self.check_bits([1])
        posts = [post["body"]["trainerStatus"] for post in read_posts(folder)]
        self.assertGreaterEqual(len(posts), 2)
        self.assertEqual([post["progressPercentage"] for post in posts[-1:]], [100])
        metrics = {metric["name"]: metric["value"] for metric in posts[-1]["metrics"]}
        self.assertEqual(metrics["batch"], str(self.BATCHES))
        self.assertLessEqual({"loss", "training/loss", "validation/loss"}, set(metrics))
        self.assertNotIn("Kubeflow", "".join(pod.output() for pod in pods))

    def test_a_rank_that_is_stopped_is_named_and_started_again_in_place(self):
        pods = self.run_both([*self.command, "--set", "recovery.hang=1"])
        self.saved(2)
        on_host("b", "kill", "-STOP", self.ranks("b")[0])
        self.expect(pods, 0)
        self.check_bits([1])
        (event,) = Result(0, "", self.run_dir).events("rank_hangs")
        self.assertIn(event["rank"], (2, 3))
        self.assertTrue(event["stopped"])
        for pod in pods:
            self.assertRegex(pod.output(), rf"dtrain: attempt 1 failed: rank {event['rank']} (at|after) batch \d+.*, is stopped \(SIGSTOP\): "
                                           "it has not got on for .*, while rank 0 waits in ")

    def test_a_rank_that_hangs_alone_on_its_host_is_named_with_its_stack(self):
        """Nobody waits for it on its own host: the keepers find it together."""
        trouble = {"rank": 1, "batch": 12, "kind": "deadlock", "times": 1}
        experiment = write_job(self.work.path, self.rank_program, 2, max_restarts=1, recovery={"hang": 1},
                               hyperparameters={"trouble": trouble})
        pods = self.run_both(self.launch(experiment, self.run_dir), ranks_here=1)
        self.expect(pods, 0)
        logs = self.run_dir / "attempt-1" / "logs"
        for pod in pods:
            self.assertRegex(pod.output(), "dtrain: attempt 1 failed: rank 1 at batch 12, in train_batch.forward, hangs: it has not got "
                                           "on for .*, while rank 0 waits in all_reduce")
        self.assertRegex(pods[0].output(), r"rank 1 is at .*lock_twice\(\) in rank_program")
        self.assertIn("lock_twice() in rank_program", (logs / "hang-rank-1.txt").read_text())
        self.assertEqual(sorted(file.name for file in (logs / "flight_record").iterdir()), ["rank_0", "rank_1"])
        self.assertEqual([event["rank"] for event in Result(0, "", self.run_dir).events("rank_hangs")], [1])

    def replace(self, host):
        """A pod that vanishes, and another one in its place."""
        pods = {pod.host: pod for pod in self.run_both(self.command)}
        self.saved(2)
        on_host(host, "pkill", "-KILL", "-u", str(USER))
        pods[host].process.wait(DEADLINE)
        self.pods.remove(pods[host])
        return pods

    def test_a_pod_that_is_replaced_joins_again_with_another_address(self):
        pods = self.replace("b")
        link = ["ip", "address"]
        on_host("b", *link, "add", "10.71.1.3/25", "dev", "link0")
        on_host("b", *link, "delete", "10.71.1.2/24", "dev", "link0")
        try:
            wait_until(lambda: "waits for host 1 (PET_NODE_RANK)" in pods["a"].output(), "host a's line")
            pods["b"] = self.start("b", self.command)
            self.expect(pods.values(), 0)
        finally:
            on_host("b", *link, "add", "10.71.1.2/24", "dev", "link0")
            on_host("b", *link, "delete", "10.71.1.3/25", "dev", "link0")
        self.check_bits([1])
        self.assertIn("host 1 (nodeb) is lost: the process that keeps its ranks is gone", pods["a"].output())

    def test_the_first_pod_is_replaced(self):
        pods = self.replace("a")
        pods["a"] = self.start("a", self.command)
        self.expect(pods.values(), 0)
        self.check_bits([1])

    def test_a_keeper_that_is_killed_alone_is_replaced_once_its_ranks_have_saved(self):
        pods = {pod.host: pod for pod in self.run_both(self.command)}
        self.saved(2)
        on_host("b", "pkill", "-KILL", "-x", "dtrain")
        pods["b"].process.wait(DEADLINE)
        self.pods.remove(pods["b"])
        pods["b"] = self.start("b", self.command)
        self.expect(pods.values(), 0)
        self.check_bits([1])

    def test_without_a_folder_the_run_goes_on_in_the_one_that_rank_0_has_made(self):
        command = ["dtrain", "launch", str(SYNTHETIC), *overrides(self.SETS)]
        pods = self.run_both(command)
        self.run_dir = self.work.path / "runs" / "0001-synthetic"
        self.saved(2)
        on_host("a", "kill", "-KILL", self.ranks("a")[0])
        self.expect(pods, 0)
        self.check_bits([1])

    def test_an_error_of_the_program_ends_the_run(self):
        trouble = {"rank": 3, "batch": 5, "kind": "exception"}
        run_dir = self.work.new_run()
        pods = self.run_both(self.launch(self.experiment(hyperparameters={"trouble": trouble}, max_restarts=5), run_dir))
        self.expect(pods, 1)
        self.assertEqual(Result(0, "", run_dir).events("attempt_failed"), [])
        self.assertEqual([line["state"] for line in Result(0, "", run_dir).events("run_ended")], ["failed"])

    def test_a_host_that_does_not_come_back_is_named(self):
        pods = self.run_both(self.launch(self.experiment(batches=1_000_000, max_restarts=5), self.run_dir, "--set",
                                         "communication.timeout=5"))
        self.reached(self.run_dir, 5)
        on_host("b", "pkill", "-KILL", "-u", str(USER))
        (survivor,) = (pod for pod in pods if pod.host == "a")
        self.assertEqual(survivor.wait(), 1)
        self.assertIn("host 0 (nodea) has waited 5.00 s for host 1 (PET_NODE_RANK)", survivor.output())


class InMemory(PodsTest):
    """No checkpoint is on the disk when ranks are killed: the run goes on from the memory of its hosts."""
    BATCHES = 300
    SETS = [f"searcher.max_length.batches={BATCHES}", "scheduling_unit=5", "resources.slots_per_trial=4", "data.samples=2048",
            "hyperparameters.global_batch_size=512", "recovery.interval=1"]
    REPLICATED, SHARDED = ("optimizations.sharded_optimizer=false",), ("optimizations.sharded_optimizer=true",)
    undisturbed = {}  # by sets: what the same run leaves without a fault

    def begin(self, *sets, **more):
        self.run_dir = self.work.new_run()
        self.sets = sets
        self.command = self.launch(SYNTHETIC, self.run_dir, *overrides([*self.SETS, *sets]))
        pods = self.run_both(self.command, **more)
        self.in_memory()
        return {pod.host: pod for pod in pods}

    def in_memory(self):
        """Waits until the ranks of this attempt have their memory, and for a few batches more."""
        def is_kept():
            try:
                return json.loads((self.run_dir / "plan.json").read_text()).get("states_in_memory", {}).get("kept")
            except (OSError, ValueError):
                return False
        wait_until(lambda: is_kept() or any(pod.has_ended() for pod in self.pods), "states in memory")
        self.reached(self.run_dir, self.batches(self.run_dir) + 2)

    def kill(self, host, number=1):
        for pid in on_host(host, "pgrep", "-f", "^" + self.build.program("synthetic")).split()[:number]:
            on_host(host, "kill", "-KILL", pid)

    def recovered(self, times):
        wait_until(lambda: len(self.events("recovered")) >= times or any(pod.has_ended() for pod in self.pods), "a recovery")

    def events(self, name):
        return Result(0, "", self.run_dir).events(name)

    def left(self, run_dir):
        result = Result(0, "", run_dir)
        return result.weights_file.read_bytes(), [{**line, "time": ""} for line in result.metrics("training")]

    def check(self, pods, kills, most_again, by_survivors=False):
        self.expect(pods.values(), 0)
        self.assertEqual(len(self.events("attempt_failed")), kills)
        self.assertEqual(self.events("memory_saved"), [])
        self.assertTrue(all("/dev/shm/" in event["path"] for event in self.events("resumed")), self.events("resumed"))
        again = [event["batches_again"] for event in self.events("recovered")]
        print(f"{self.id().rpartition('.')[2]}: batches again {again}, after {[event['step'] for event in self.events('attempt_failed')]}",
              file=sys.stderr)
        self.assertLessEqual(max(again), most_again)
        if by_survivors:  # but for a rank that died between the exchange and the end of its update
            self.assertLessEqual(sorted(again)[len(again) // 2], 1)
        left = self.left(self.run_dir)
        if self.sets not in self.undisturbed:
            run_dir = self.work.new_run()
            self.expect(self.run_both(self.launch(SYNTHETIC, run_dir, *overrides([*self.SETS, *self.sets]))), 0)
            self.undisturbed[self.sets] = self.left(run_dir)
        self.assertEqual(left, self.undisturbed[self.sets])

    def test_a_dead_rank_costs_one_batch_wherever_it_is(self):
        pods = self.begin(*self.REPLICATED)
        for number, host in enumerate("ba", start=1):
            self.kill(host)
            self.recovered(number)
            self.in_memory()
        self.kill("b", number=2)  # no rank of the host is left
        self.check(pods, kills=3, most_again=self.BATCHES // 2, by_survivors=True)

    def test_a_host_without_its_memory_gets_the_state_from_another(self):
        pods = self.begin(*self.SHARDED)
        time.sleep(1.5)  # more than an interval: each host has all of a state
        on_host("b", "pkill", "-KILL", "-u", str(USER))
        pods["b"].wait()
        self.pods.remove(pods["b"])
        pods["b"] = self.start("b", self.command)
        self.check(pods, kills=1, most_again=self.BATCHES // 2)


class Copies(PodsTest):
    """Three hosts, whose ranks have divided the optimizer's state: each host's part is on the next one, too."""
    BATCHES = 900
    SETS = [f"searcher.max_length.batches={BATCHES}", "scheduling_unit=5", "resources.slots_per_trial=3", "data.samples=2048",
            "hyperparameters.global_batch_size=384", "optimizations.sharded_optimizer=true", "recovery.interval=0.5",
            "min_checkpoint_period.batches=1000000"]

    def run_three(self, run_dir, hosts="cba"):
        for host in "ab":
            self.resolve(host)
        command = self.launch(SYNTHETIC, run_dir, *overrides(self.SETS))
        return [self.start(host, command, ranks_here=1, hosts=3) for host in hosts]

    def events(self, name):
        file = self.run_dir / "events.jsonl"
        return Result(0, "", self.run_dir).events(name) if file.is_file() else []

    def state_is_settled(self, after):
        """Waits until the attempt that began then has put a state into memory, with its copies."""
        def is_settled():
            try:
                told = json.loads((self.run_dir / "plan.json").read_text()).get("states_in_memory", {})
            except (OSError, ValueError):
                return False
            return len(self.events("attempt_started")) > after and "copied_s" in told
        wait_until(lambda: is_settled() or any(pod.has_ended() for pod in self.pods), "a state with its copies")
        self.assertFalse(any(pod.has_ended() for pod in self.pods), "\n".join(pod.output() for pod in self.pods))

    def lose(self, hosts):
        for pod in [pod for pod in self.pods if pod.host in hosts]:
            self.kill_pod(pod)
            pod.wait()
            self.pods.remove(pod)

    def test_a_lost_host_gets_its_part_from_its_neighbour(self):
        self.run_dir = self.work.new_run()
        self.run_three(self.run_dir)
        self.state_is_settled(after=0)
        plan = json.loads((self.run_dir / "plan.json").read_text())["states_in_memory"]
        self.assertEqual(plan["copies"], 1)
        self.assertGreater(plan["copied_bytes"], 0)
        self.lose("c")
        self.run_three(self.run_dir, "c")
        self.state_is_settled(after=1)
        self.lose("bc")  # what belongs to rank 1 was on both, and on no other
        self.run_three(self.run_dir, "bc")
        self.expect(self.pods, 0)
        (resumed,) = self.events("resumed")
        self.assertIn("/dev/shm/", resumed["path"])
        self.assertGreater(resumed["step"], 0)
        self.assertEqual(len(self.events("attempt_failed")), 2)
        said = "".join(path.read_text() for path in [*(self.run_dir / "logs").iterdir(), *self.work.path.glob("pod-a-*.out")]
                       if path.is_file())
        self.assertRegex(said, r"the state of batch \d+ in memory is lost: no host has what belongs to rank 1 .* the run goes on from "
                               r"its beginning")
        run_dir = self.work.new_run()
        self.pods.clear()
        self.expect(self.run_three(run_dir), 0)
        self.assertEqual(Result(0, "", self.run_dir).weights_file.read_bytes(), Result(0, "", run_dir).weights_file.read_bytes())


class Changing(PodsTest):
    """PET_NNODES=1:2: the run begins and goes on with the hosts that are there."""
    SETS = ["scheduling_unit=10", "min_checkpoint_period.batches=100", "resources.slots_per_trial=4", *SMALL]

    def begin(self, *hosts, batches=1500, seconds=2, sets=(), **more):
        self.run_dir = getattr(self, "run_dir", None) or self.work.new_run()
        for host in "ab":
            self.resolve(host)
        command = self.launch(SYNTHETIC, self.run_dir, *overrides([*self.SETS, f"searcher.max_length.batches={batches}", *sets]))
        variables = {"PET_NNODES": "1:2", "PET_RDZV_CONF": f"join_timeout=600,last_call_timeout={seconds}"}
        return [self.start(host, command, variables=variables.items(), **more) for host in hosts]

    def reached_checkpoint(self):
        events = self.run_dir / "events.jsonl"
        wait_until(lambda: (events.is_file() and Result(0, "", self.run_dir).events("checkpoint_saved"))
                   or any(pod.has_ended() for pod in self.pods), "a checkpoint")

    def lose(self, host, pods):
        on_host(host, "pkill", "-KILL", "-u", str(USER))
        (lost,) = (pod for pod in pods if pod.host == host)
        lost.wait()
        self.pods.remove(lost)
        return [pod for pod in pods if pod is not lost]

    def test_it_begins_with_the_number_that_is_there_after_the_last_call(self):
        pods = self.begin("a", batches=100)
        self.expect(pods, 0)
        result = Result(0, "", self.run_dir)
        self.assertEqual([rank["host"] for rank in result.json("plan.json")["ranks"]], ["nodea", "nodea"])
        self.assertIn("hosts       1, 2 of them may train", pods[0].output())
        self.assertEqual(result.events("hosts_changed"), [])

    def test_all_hosts_that_come_in_time_take_part(self):
        self.expect(self.begin("b", "a", batches=100, seconds=60), 0)
        self.assertEqual(len(Result(0, "", self.run_dir).json("plan.json")["ranks"]), 4)

    def test_it_goes_on_with_another_number(self):
        pods = self.begin("a", "b")
        self.reached_checkpoint()
        pods = self.lose("b", pods)
        self.expect(pods, 0)
        result = Result(0, "", self.run_dir)
        (changed,) = result.events("hosts_changed")
        self.assertEqual((changed["hosts"], changed["before"], changed["ranks"]), ([0], [0, 1], 2))
        self.assertGreaterEqual(changed["step"], 100)
        self.assertRegex(pods[0].output(), r"dtrain: host 1 has not come back: the run goes on from batch \d+ with 2 ranks on 1 host in "
                                           r"place of 4 ranks on 2 hosts; the batches stay, and another number of ranks gives other bits")
        self.assertEqual([event.get("step") for event in result.events("attempt_started")], [None, changed["step"]])
        # Each batch is in the metrics once, and the batches have their size with either number.
        self.assertEqual([line["batch"] for line in result.metrics("training")], list(range(10, 1501, 10)))
        plan = result.json("plan.json")
        self.assertEqual((len(plan["ranks"]), plan["effective_batch_size"]), (2, plan["global_batch_size"]))

    def test_virtual_ranks_keep_the_bits(self):
        sets = ["reproducibility.virtual_ranks=4"]
        pods = self.begin("a", "b", sets=sets)
        self.reached_checkpoint()
        pods = self.lose("b", pods)
        self.expect(pods, 0)
        self.assertRegex(pods[0].output(), r"with 2 ranks on 1 host in place of 4 ranks on 2 hosts; virtual ranks keep the bits")
        weights = Result(0, "", self.run_dir).weights_file.read_bytes()
        self.run_dir = self.work.new_run()
        self.expect(self.begin("a", sets=sets, seconds=0), 0)
        self.assertEqual(Result(0, "", self.run_dir).weights_file.read_bytes(), weights)

    def test_a_run_that_waits_for_a_lost_host_keeps_the_number(self):
        sets = ["recovery.on_host_loss=wait"]
        pods = self.begin("a", "b", sets=sets)
        self.reached_checkpoint()
        pods = [*self.lose("b", pods), *self.begin("b", sets=sets)]
        self.expect(pods, 0)
        self.assertEqual(Result(0, "", self.run_dir).events("hosts_changed"), [])
        self.assertEqual(len(Result(0, "", self.run_dir).json("plan.json")["ranks"]), 4)

    def test_a_host_that_comes_later_takes_part(self):
        pods = self.begin("a", batches=12000, seconds=1)
        self.reached_checkpoint()
        pods += self.begin("b", batches=12000, seconds=1)
        self.expect(pods, 0)
        (changed,) = Result(0, "", self.run_dir).events("hosts_changed")
        self.assertEqual((changed["hosts"], changed["before"], changed["ranks"]), ([0, 1], [0], 4))
        self.assertEqual(Result(0, "", self.run_dir).events("attempt_failed"), [])
        for pod in pods:
            self.assertRegex(pod.output(), r"host 1 takes part: the run goes on from batch \d+ with 4 ranks on 2 hosts in place of 2")

    def test_a_host_whose_ranks_do_not_divide_the_batch_waits_for_a_place(self):
        pods = self.begin("a", "b", batches=300, sets=["hyperparameters.global_batch_size=6"])
        self.expect(pods, 0)
        self.assertIn("host 1 (nodeb) waits for a place: the ranks of 1 host train", pods[1].output())
        self.assertEqual(len(Result(0, "", self.run_dir).json("plan.json")["ranks"]), 2)

    def test_a_batch_that_no_number_divides_is_refused(self):
        pods = self.begin("a", "b", sets=["hyperparameters.global_batch_size=7"])
        self.expect(pods, 2)
        self.assertIn("hyperparameters.global_batch_size: 7 is not divided exactly by 2, 4, the numbers of ranks of 1 to 2 hosts",
                      pods[0].output())

    def test_the_number_of_ranks_of_a_host_must_be_said(self):
        self.expect(self.begin("a", ranks_here=None), 2)
        self.assertIn("set PET_NPROC_PER_NODE to a number", self.pods[0].output())

    def test_hosts_that_wait_for_host_0_meet_where_it_is(self):
        pods = self.begin("a", "b", sets=["communication.timeout=5", "recovery.on_host_loss=wait"])
        self.reached_checkpoint()
        (survivor,) = self.lose("a", pods)
        self.assertEqual(survivor.wait(), 1)
        self.assertIn("host 1 (nodeb) has waited 5.00 s for host 0", survivor.output())


class Training(PodsTest):
    def test_the_weights_are_those_of_mpi_to_the_bit(self):
        if not (self.build.bin.parent / "lib" / "libdtrain_comm_mpi.so").is_file():
            self.skipTest("this build has no mpi backend")
        sets = overrides(["searcher.max_length.batches=30", "resources.slots_per_trial=4", *SMALL])
        over_tcp = self.work.new_run()
        self.expect(self.run_both(self.launch(SYNTHETIC, over_tcp, *sets)), 0)
        over_mpi = self.work.new_run()
        command = [BED, "mpirun", HOSTS, "--host", "nodea:2,nodeb:2", "-np", "4", "-x", "OMP_NUM_THREADS=1",
                   "-x", "DTRAIN_NETWORK_INTERFACE=10.71.1.0/24", self.build.program("synthetic"), str(SYNTHETIC),
                   "--run-dir", str(over_mpi), *sets]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout)
        weights = [Result(0, "", run).weights_file.read_bytes() for run in (over_tcp, over_mpi)]
        self.assertEqual(weights[0], weights[1])

    def test_the_train_job_of_the_document(self):
        package = self.build.bin.parent / "python"
        if not list(package.glob("dtrain/torch*/_native*.so")):
            self.skipTest("this build has no Python package")
        runtime, job = manifests()
        pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        # What POD makes is what the manifest says.
        self.assertEqual([pod["securityContext"][name] for name in ("runAsUser", "runAsGroup")], [USER, USER])
        self.assertTrue(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"])
        self.assertEqual({mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}, {RUNS, "/tmp"})
        trainer = job["spec"]["trainer"]
        self.assertEqual(trainer["numNodes"], 2)
        command = [str(SOURCE / "tests" / "python" / "run_script.py") if word == "/app/train.py" else word
                   for word in trainer["command"]]
        pods = self.run_both(command, ranks_here=trainer["numProcPerNode"], variables={
            "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "DTRAIN_PYTHON": sys.executable}.items())
        self.expect(pods, 0)
        result = Result(0, "", self.work.path / "first")
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        self.assertEqual(result.json("plan.json")["communication"], {"backend": "tcp", "hosts": 2})


    def test_torchrun_over_two_hosts(self):
        package = self.build.bin.parent / "python"
        if not list(package.glob("dtrain/torch*/_native*.so")):
            self.skipTest("this build has no Python package")
        # The last rank kills itself at batch 12. torchrun's restart goes on in the folder that rank 0 has made.
        command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1",
                   str(SOURCE / "tests" / "python" / "resume_init_script.py"), "-", "12", "8"]
        pods = self.run_both(command, order="ab", variables={"PYTHONPATH": str(package),
                                                             "PYTHONDONTWRITEBYTECODE": "1"}.items())
        self.expect(pods, 0)
        (run_dir,) = (self.work.path / "runs").glob("0*")
        events = Result(0, "", run_dir).events("attempt_started")
        self.assertEqual([event.get("step", 0) > 0 for event in events], [False, True], events)
        plan = Result(0, "", run_dir).json("plan.json")
        self.assertEqual(plan["communication"], {"backend": "tcp", "hosts": 2})
        self.assertEqual([rank["host"] for rank in plan["ranks"]], ["nodea", "nodea", "nodeb", "nodeb"])
        self.assertEqual(plan["started_by"], "torchrun")


class Soak(PodsTest):
    def test_every_run_trains(self):
        runs = int(os.environ.get("POD_RUNS", 20))
        late_s = float(os.environ.get("LATE_S", 20))
        seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1 << 30)))
        print(f"SOAK_SEED={seed}", flush=True)
        chance = random.Random(seed)
        for number in range(1, runs + 1):
            order, gap_s = chance.choice(("ab", "ba")), chance.uniform(0, late_s * 1.2)
            for host in "ab":
                self.resolve(host, False)
            run_dir = self.work.new_run()
            began = time.monotonic()
            pods = self.start_with_late_names(run_dir, order, late_s, gap_s)
            self.expect(pods, 0)
            self.check_run(run_dir)
            print(f"run {number} of {runs}: {order[0]} first, the other after {gap_s:.1f} s: done after "
                  f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # tearDown runs
    main("dtrain-agent", defaultTest=["Starting", "Ending", "Recovering", "Changing", "Training"])
