"""`dtrain launch` with launcher: mpi over two hosts. Runs inside `two_hosts.sh with RATE`, which makes them; no torch.

    cluster.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import re
import subprocess
import sys
import time

from cluster_bed import BED, ENDLESS, HOSTS, ClusterTest, on_host, profiles, seconds_until_all_gone
from harness import SOURCE, Result, main, wait_until

SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"

# Seconds from a host's loss until nothing is left on either: host_loss.py prints them, the tests allow thrice that.
GOAL_S = 10


class Launching(ClusterTest):
    def test_ranks_are_where_the_plan_says_and_all_records_in_one_folder(self):
        result = self.launch(self.cluster(a=1, b=2), self.experiment(slots=3)).expect(0)
        hosts = {event["rank"]: event["host"] for event in result.events("rank_started")}
        planned = {rank["rank"]: rank["host"] for rank in result.json("plan.json")["ranks"]}
        self.assertEqual(hosts, planned)
        self.assertEqual(hosts, {0: "nodeb", 1: "nodeb", 2: "nodea"})  # larger agents first, and rank 0 is not here
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertEqual(files, profiles(3))
        for rank in range(3):
            steps = [line for line in result.lines(f"profile/rank-000{rank}.jsonl") if line["record"] == "step"]
            self.assertEqual(len(steps), 30)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        self.assertIn("[rank=2] batch 30", result.output)
        self.assertIn("3 ranks on 2 hosts", result.output)

    def test_one_host_of_the_cluster(self):
        result = self.launch(self.cluster(), self.experiment(slots=2)).expect(0)
        self.assertEqual({event["host"] for event in result.events("rank_started")}, {"nodea"})

    def test_variables_reach_every_rank_and_each_has_cores_of_its_own(self):
        program = self.work.path / "program.sh"
        program.write_text(f"#!/bin/sh\necho \"mine: $COLOUR $OMP_NUM_THREADS $OMP_WAIT_POLICY $NCCL_DEBUG $(nproc)\"\n"
                           f"exec {self.rank_program} \"$@\"\n")
        program.chmod(0o755)
        experiment = self.experiment(environment={"environment_variables": {"COLOUR": "dark green"}})
        sets = [f"entrypoint={program}"]
        result = self.launch(self.cluster(), experiment, sets, variables=["NCCL_DEBUG=WARN"]).expect(0)
        said = re.findall(r"mine: (.*)", result.output)
        cores = max(1, int(on_host("a", "nproc")) // 2)
        self.assertEqual(said, [f"dark green {cores} passive WARN {cores}"] * 4)

    def test_the_secret_is_in_no_variable_and_its_file_is_gone_once_all_have_connected(self):
        running = self.start(self.cluster(), self.experiment(), ENDLESS).reached(5)
        for host in "ab":
            environment = on_host(host, "sh", "-c", "cat /proc/$(pgrep -n rank_program)/environ | tr '\\0' '\\n'").splitlines()
            self.assertEqual([line for line in environment if line.startswith("DTRAIN_SECRET=")], [])
            (file,) = (line.partition("=")[2] for line in environment if line.startswith("DTRAIN_SECRET_FILE="))
            self.assertIn("No such file", on_host(host, "ls", file))
        on_host("a", "pkill", "-INT", "-x", "dtrain")
        self.assertNotIn("secret", running.wait().expect(130).output)

    def test_interrupted_it_stops_after_the_step_everywhere(self):
        running = self.start(self.cluster(), self.experiment(), ENDLESS).reached(5)
        on_host("a", "pkill", "-INT", "-x", "dtrain")
        result = running.wait().expect(130)
        self.assertEqual(len(result.events("rank_finished")), 4, result.output)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["interrupted"])

    def test_a_killed_launcher_leaves_nothing(self):
        running = self.start(self.cluster(), self.experiment(), ENDLESS).reached(5)
        on_host("a", "pkill", "-KILL", "-x", "dtrain")
        running.wait()
        seconds_until_all_gone(time.monotonic())


class OwnFolders(ClusterTest):
    """The hosts do not share the run's folder: the second has a file system of its own there."""

    def setUp(self):
        super().setUp()
        self.shared = self.work.path / "runs"
        self.shared.mkdir()
        on_host("b", "mount", "-t", "tmpfs", "tmpfs", str(self.shared))

    def tearDown(self):
        on_host("b", "umount", str(self.shared))
        super().tearDown()

    def check_complete(self, result, ranks):
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertEqual(files, profiles(ranks))
        for rank in range(ranks):
            self.assertIn("batch 30", (result.run_dir / "logs" / f"rank-000{rank}.log").read_text())
        self.assertEqual({event["rank"] for event in result.events("rank_finished")}, set(range(ranks)))
        self.assertEqual(len(result.metrics("training")), 30)
        self.assertEqual(on_host("b", "ls", "-A", str(self.shared)), "", "the other host keeps nothing")

    def test_what_the_other_host_recorded_is_collected(self):
        result = self.launch(self.cluster(), self.experiment(), run_dir=self.shared / "one").expect(0)
        self.check_complete(result, 4)
        self.assertIn("Host nodeb", result.output)

    def test_what_is_no_plain_file_over_there_costs_nothing_but_a_warning(self):
        run_dir = self.shared / "odd"
        running = self.start(self.cluster(), self.experiment(batches=200), run_dir=run_dir).reached(5)
        on_host("b", "ln", "-s", "loop", str(run_dir / "loop"))
        on_host("b", "sh", "-c", f"echo > {run_dir}/profile/tool; chown 65534 {run_dir}/profile/tool; chmod 6755 {run_dir}/profile/tool")
        result = running.wait().expect(0)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        self.assertRegex(result.output, rf"warning: files of host nodeb .*left out: {run_dir}/loop")
        self.assertTrue((run_dir / "profile" / "rank-0003.jsonl").is_file())
        tool = (run_dir / "profile" / "tool").stat()
        self.assertEqual((tool.st_mode & 0o7777, tool.st_uid), (0o755, 0))

    def test_a_full_disk_here_leaves_the_records_there_and_the_outcome_as_it_is(self):
        run_dir = self.shared / "full"
        running = self.start(self.cluster(), self.experiment(batches=200), run_dir=run_dir).reached(5)
        on_host("b", "sh", "-c", f"head -c 3000000 /dev/zero > {run_dir}/profile/large")
        on_host("a", "mkdir", "-p", f"{run_dir}/launch")
        on_host("a", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", f"{run_dir}/launch")
        result = running.wait().expect(0)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        self.assertRegex(result.output, rf"warning: the records of agent node-2 are not all in the run's folder.* host nodeb, in {run_dir}")
        self.assertIn("rank-0003.jsonl", on_host("b", "ls", f"{run_dir}/profile"))

    def test_also_where_rank_0_is_over_there(self):
        result = self.launch(self.cluster(a=1, b=2), self.experiment(slots=3), run_dir=self.shared / "two").expect(0)
        self.check_complete(result, 3)
        self.assertEqual(result.json("plan.json")["communication"]["hosts"], 2)

    def test_another_run_over_there_is_not_touched(self):
        on_host("b", "mkdir", str(self.shared / "three"))
        on_host("b", "touch", str(self.shared / "three" / "precious"))
        result = self.launch(self.cluster(), self.experiment(), run_dir=self.shared / "three").expect(1)
        self.assertIn("is not shared with host nodeb, where there is another folder of that name", result.output)
        self.assertEqual(on_host("b", "ls", str(self.shared / "three")), "precious\n")


class Failing(ClusterTest):
    def test_the_trials_own_exception_is_told_once_and_is_no_reason_to_restart(self):
        trouble = {"rank": 3, "batch": 7, "kind": "exception"}
        experiment = self.experiment(hyperparameters={"trouble": trouble}, max_restarts=2)
        result = self.launch(self.cluster(), experiment).expect(1)
        self.assertIn("rank 3 on nodeb failed at batch 7: the model makes no sense", result.output)
        self.assertEqual(result.output.count("the model makes no sense"), 1)
        self.assertEqual(len(result.events("attempt_started")), 1)

    def test_a_rank_that_ends_by_itself(self):
        experiment = self.experiment(hyperparameters={"trouble": {"rank": 2, "batch": 7, "kind": "exit"}})
        result = self.launch(self.cluster(), experiment).expect(1)
        self.assertIn("rank 2 on nodeb ended before the run was over: exit status 7", result.output)

    def test_after_a_signal_it_starts_again_and_keeps_the_first_attempt(self):
        trouble = {"rank": 3, "batch": 7, "kind": "SIGKILL"}
        experiment = self.experiment(hyperparameters={"trouble": trouble}, max_restarts=1)
        result = self.launch(self.cluster(), experiment).expect(1)
        self.assertIn("attempt 1 failed: rank 3 on nodeb was killed by signal 9 (SIGKILL)", result.output)
        self.assertIn("it goes on from the beginning, because there is no checkpoint of it", result.output)
        for folder in ("attempt-1/", ""):
            steps = [line for line in result.lines(folder + "profile/rank-0000.jsonl") if line["record"] == "step"]
            self.assertTrue(1 <= len(steps) <= 7, len(steps))  # what was recorded when the signal came
            self.assertIn("batch 6\n", (result.run_dir / folder / "logs" / "rank-0003.log").read_text())
        self.assertEqual(len(result.events("attempt_started")), 2)

    def test_a_host_that_ssh_does_not_reach(self):
        cluster = self.cluster()
        cluster.write_text(cluster.read_text().replace('"nodeb"', '"10.71.1.77"'))
        result = self.launch(cluster, self.experiment()).expect(2)
        self.assertRegex(result.output, r"host 10\.71\.1\.77.* cannot be reached by ssh")

    def test_ssh_that_is_refused(self):
        on_host("b", "nft", "add table inet no; add chain inet no i { type filter hook input priority 0; }; "
                            "add rule inet no i tcp dport 22 reject with tcp reset")
        try:
            result = self.launch(self.cluster(), self.experiment()).expect(2)
        finally:
            on_host("b", "nft", "delete", "table", "inet", "no")
        self.assertRegex(result.output, r"host nodeb.* cannot be reached by ssh.*Connection refused")

    def test_a_program_that_one_host_lacks(self):
        folder = self.work.path / "bin"
        folder.mkdir()
        program = folder / "program.sh"
        program.write_text(f"#!/bin/sh\nexec {self.rank_program} \"$@\"\n")
        program.chmod(0o755)
        on_host("b", "mount", "-t", "tmpfs", "tmpfs", str(folder))
        try:
            result = self.launch(self.cluster(), self.experiment(), [f"entrypoint={program}"]).expect(1)
        finally:
            on_host("b", "umount", str(folder))
        self.assertIn(f"host nodeb has no {program}", result.output)
        self.assertIn("under the same paths", result.output)

    def test_another_dtrain_on_one_host(self):
        program = self.work.path / "program.sh"
        other = self.build.bin.parent / "tests" / "other_version.so"
        program.write_text(f"#!/bin/sh\n[ $(hostname) != nodeb ] || export LD_PRELOAD={other}\n"
                           f"exec {self.rank_program} \"$@\"\n")
        program.chmod(0o755)
        result = self.launch(self.cluster(), self.experiment(), [f"entrypoint={program}"]).expect(1)
        self.assertRegex(result.output, r"host nodeb has dtrain 0\.0\.7, the launching host has dtrain [0-9.]+")
        self.assertIn("install the same version on every host", result.output)


class InMemory(ClusterTest):
    """No checkpoint is on the disk when ranks are killed: the run goes on from the memory of its hosts."""
    SETS = ["searcher.max_length.batches=300", "scheduling_unit=5", "resources.slots_per_trial=2", "data.samples=2048",
            "hyperparameters.global_batch_size=512", "recovery.interval=1", "min_checkpoint_period.batches=1000000",
            "optimizations.sharded_optimizer=false"]

    def tearDown(self):
        for host in "ab":
            self.assertEqual(on_host(host, "find", "/dev/shm", "-name", "dtrain-*"), "", f"left in the memory of host {host}")
        super().tearDown()

    def train(self, sets=()):
        return self.start(self.cluster(a=1, b=1), SYNTHETIC, [*self.SETS, *sets])

    def in_memory(self, running):
        """Waits until the ranks of this attempt keep states, and for a few batches more."""
        def is_kept():
            try:
                return json.loads((running.run_dir / "plan.json").read_text()).get("states_in_memory", {}).get("kept")
            except (OSError, ValueError):
                return False
        wait_until(lambda: is_kept() or running.process.poll() is not None, "states in memory")
        running.reached(running.batches() + 2)

    def recovered(self, running, times):
        def has():
            return len(Result(0, "", running.run_dir).events("recovered")) >= times
        wait_until(lambda: has() or running.process.poll() is not None, "a recovery")

    def left(self, result):
        return result.weights_file.read_bytes(), [{**line, "time": ""} for line in result.metrics("training")]

    def test_after_a_dead_rank_it_goes_on_from_memory(self):
        whole = self.left(self.train().wait().expect(0))
        running = self.train()
        for number, host in enumerate("ba", start=1):
            self.in_memory(running)
            on_host(host, "pkill", "-KILL", "-x", "synthetic")
            self.recovered(running, number)
        result = running.wait().expect(0)
        self.assertIn("attempt 1 failed: rank 1 on nodeb was killed by signal 9 (SIGKILL)", result.output)
        self.assertIn("attempt 2 failed: rank 0 on nodea was killed by signal 9 (SIGKILL)", result.output)
        self.assertEqual(len(result.events("attempt_started")), 3)
        self.assertTrue(all("/dev/shm/" in event["path"] for event in result.events("resumed")), result.events("resumed"))
        self.assertEqual(len(result.events("resumed")), 2)
        print(f"  batches again {[event['batches_again'] for event in result.events('recovered')]}, "
              f"after {[event['step'] for event in result.events('attempt_failed')]}", flush=True)
        self.assertEqual(self.left(result), whole)

    def test_however_it_ends_the_memory_is_free(self):
        running = self.train(ENDLESS)
        self.in_memory(running)
        on_host("a", "pkill", "-INT", "-x", "dtrain")
        on_host("a", "pkill", "-INT", "-x", "dtrain")  # kills the ranks
        running.wait().expect(130)
        self.assertEqual(on_host("b", "find", "/dev/shm", "-name", "dtrain-*"), "")
        running = self.train(ENDLESS)
        self.in_memory(running)
        on_host("a", "pkill", "-KILL", "-x", "dtrain")
        running.wait()
        seconds_until_all_gone(time.monotonic())


class HostLoss(ClusterTest):
    def lose(self, how):
        running = self.start(self.cluster(), self.experiment(), ENDLESS).reached(20)
        begin = time.monotonic()
        how()
        result = running.wait().expect(1)
        seconds = seconds_until_all_gone(begin)
        print(f"  {self._testMethodName}: over after {seconds:.1f} s", flush=True)
        self.assertIn("host nodeb is lost, with rank 2, 3", result.output)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["failed"])
        self.assertLess(seconds, 3 * GOAL_S)

    def tearDown(self):
        on_host("b", "ip", "link", "set", "link0", "up")
        super().tearDown()

    def test_its_daemon_and_ranks_are_killed(self):
        self.lose(lambda: on_host("b", "pkill", "-KILL", "orted|rank_program"))

    def test_its_interface_goes_down(self):
        self.lose(lambda: on_host("b", "ip", "link", "set", "link0", "down"))

    def test_nothing_comes_over_the_link_any_more(self):
        try:
            self.lose(lambda: subprocess.run([BED, "cut", HOSTS], check=True))
        finally:
            subprocess.run([BED, "mend", HOSTS], check=True)

    def test_a_lost_host_is_a_reason_to_start_again(self):
        """It comes back meanwhile, as one that was rebooted does."""
        experiment = self.experiment(batches=200, step_ms=10, max_restarts=1)
        running = self.start(self.cluster(), experiment).reached(20)
        on_host("b", "pkill", "-KILL", "orted|rank_program")
        result = running.wait().expect(0)
        self.assertIn("attempt 1 failed: host nodeb is lost", result.output)
        self.assertTrue((result.run_dir / "attempt-1" / "profile" / "rank-0000.jsonl").is_file())
        self.assertEqual(len(result.metrics("training")), 200)


if __name__ == "__main__":
    if not HOSTS:
        sys.exit("cluster.py runs inside tests/harness/two_hosts.sh with RATE")
    main("dtrain-agent")
