"""Whole runs over two hosts, started by mpirun. Runs inside `two_hosts.sh with RATE`, which makes them.

    two_hosts.py BIN_FOLDER [TestClass[.test] ...]
"""
import contextlib
import json
import os
import random
import subprocess
import sys
import time
import unittest

from gpu_cases import experiment
from harness import BUILD, DEADLINE, SOURCE, Workplace, launch, main, overrides, run, wait_until, write_experiment
from parity_model import load, worst_difference
from resume import ADAM, ADAMW, LOCAL, SGD, case, differences, title, what_is_left

BED = str(SOURCE / "tests" / "harness" / "two_hosts.sh")
HOSTS = os.environ.get("TWO_HOSTS", "")
SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SETS = ["hyperparameters.width=64", "data.samples=2000", "searcher.max_length.batches=20", "communication.timeout=30"]


def on_host(host, *command):
    return subprocess.run([BED, "run", HOSTS, host, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def when_free(go_on):
    """What `go_on` gives, which is a number or None: 2 while processes of the attempt before still end."""
    end = time.monotonic() + DEADLINE
    while True:
        given = go_on()
        if given != 2 or time.monotonic() > end:
            return given
        time.sleep(0.2)


def mpirun(a, b, run_dir, sets=(), options=()):
    """`a` ranks on the first host, `b` on the second."""
    command = [BED, "mpirun", HOSTS, "--host", f"nodea:{a},nodeb:{b}", "-np", str(a + b), "-x", "OMP_NUM_THREADS", *options,
               BUILD.program("synthetic"), str(SYNTHETIC), "--run-dir", str(run_dir), *overrides([*SETS, *sets])]
    return run(command, run_dir)


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.work = Workplace(type(self).__name__, on_disk=True)

    def tearDown(self):
        for host in "ab":
            for program in ("synthetic", "gpu_trial"):
                left = on_host(host, "pgrep", "-a", "-x", program)
                self.assertEqual(left.stdout, "", f"left on host {host}")
        self.work.remove()

    def one_host(self, ranks):
        return launch(BUILD, SYNTHETIC, self.work.new_run(), [*SETS, f"resources.slots_per_trial={ranks}"]).expect(0)

    def check_same(self, result, alone):
        self.assertEqual(result.weights_file.read_bytes(), alone.weights_file.read_bytes())
        self.assertEqual(result.metrics("validation")[-1]["metrics"], alone.metrics("validation")[-1]["metrics"])


class Training(TwoHosts):
    def test_one_rank_a_host_is_like_two_ranks_on_one(self):
        result = mpirun(1, 1, self.work.new_run()).expect(0)
        self.assertIn("communication: mpi, 2 ranks", (result.run_dir / "logs" / "rank-0000.log").read_text())
        self.check_same(result, self.one_host(2))
        self.assertEqual([rank["host"] for rank in result.json("plan.json")["ranks"]], ["nodea", "nodeb"])
        self.assertEqual(result.json("plan.json")["placement"], [{"agent": "nodea", "slots": 1, "ranks": [0]},
                                                                 {"agent": "nodeb", "slots": 1, "ranks": [1]}])
        self.assertEqual({line["host"] for line in result.events("rank_finished")}, {"nodea", "nodeb"})

    def test_every_host_has_an_agent_and_every_rank_its_records(self):
        result = mpirun(1, 1, self.work.new_run()).expect(0)
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertTrue({"agent-nodea.jsonl", "agent-nodeb.jsonl", "rank-0000.jsonl", "rank-0001.jsonl"} <= files, files)
        for rank in (0, 1):
            steps = [line for line in result.lines(f"profile/rank-000{rank}.jsonl") if line["record"] == "step"]
            self.assertEqual(len(steps), 20, f"rank {rank}")

    def test_two_ranks_a_host_and_one_alone(self):
        """Sums are rounded in another order than on one host: a host's ranks first. Fewer than three hosts, fewer than
        three ranks each: 1e-6 of the weights after 20 steps is many roundings."""
        sets = ["resources.slots_per_trial=4"]
        alone = load(self.one_host(4).weights_file)
        for options in ((), ("--map-by", "node")):
            result = mpirun(2, 2, self.work.new_run(), sets, options).expect(0)
            self.assertEqual(result.json("plan.json")["communication"], {"backend": "hierarchical", "hosts": 2})
            self.check_close(result, alone)
        result = mpirun(2, 1, self.work.new_run(), ["resources.slots_per_trial=3"]).expect(0)
        self.check_close(result, load(self.one_host(3).weights_file))

    def check_close(self, result, alone):
        difference, worst = worst_difference(load(result.weights_file), alone)
        self.assertLess(difference, 1e-6, worst)

    def test_two_ranks_a_host_with_sharded_state(self):
        sets = ["resources.slots_per_trial=4", "communication.backend=hierarchical"]
        one, other = (load(mpirun(2, 2, self.work.new_run(), [*sets, f"optimizations.sharded_optimizer={sharded}"])
                           .expect(0).weights_file) for sharded in ("true", "false"))
        self.assertEqual(worst_difference(one, other)[0], 0)

    def test_a_tuned_plan_is_for_links_of_its_speed(self):
        def tune():
            sets = ["searcher.max_length.batches=100", "optimizations.auto_tune_tensor_fusion=true",
                    "optimizations.sharded_optimizer=false"]
            result = mpirun(1, 1, self.work.new_run(), sets, ("-x", f"XDG_CACHE_HOME={self.work.path}/cache")).expect(0)
            self.assertEqual(result.json("plan.json")["fusion"]["by"], "tuned")
            return result

        self.assertNotIn("another link", tune().output)
        (file,) = (self.work.path / "cache" / "dtrain" / "fusion").iterdir()
        remembered = json.loads(file.read_text())
        # Far from whatever is measured here, also where the machine is busy.
        file.write_text(json.dumps(remembered | {"us_per_byte": remembered["us_per_byte"] / 1e4}))
        self.assertIn("is for another link", tune().output)

    def test_two_ranks_a_host_over_mpi_alone(self):
        sets = ["communication.backend=mpi", "resources.slots_per_trial=4"]
        for options in ((), ("--map-by", "node")):  # ranks of a host in a row, and taking turns
            self.check_same(mpirun(2, 2, self.work.new_run(), sets, options).expect(0), self.one_host(4))


class Resuming(TwoHosts):
    """Interrupted runs over both hosts end with the bits of the whole ones."""
    CASES = [  # ranks on each host
        (2, 2, case("gpt", ADAMW, sharded_optimizer=True, sharded_gradients=True, aggregation_frequency=4)),
        (2, 1, case("cnn", ADAM, sharded_optimizer=True, clip=0.5, own_state=True, batches=[17, 12, 19],
                    length={"epochs": 4})),
        (1, 1, case("gpt", SGD, local_sgd={**LOCAL, "compression": "int8"})),
    ]

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get("DTRAIN_RESUME_SEED", random.randrange(1 << 30)))
        print(f"DTRAIN_RESUME_SEED={seed}", flush=True)
        self.dice = random.Random(seed)

    def command(self, a, b, *arguments):
        return [BED, "mpirun", HOSTS, "--host", f"nodea:{a},nodeb:{b}", "-np", str(a + b), "-x", "OMP_NUM_THREADS",
                BUILD.program("gpu_trial"), *map(str, arguments)]

    def go_on(self, a, b, run_dir, *arguments):
        """What an attempt gives, once all processes of the one before have ended."""
        results = []

        def attempt():
            results.append(run(self.command(a, b, "--continue", run_dir, *arguments), run_dir))
            return results[-1].code

        when_free(attempt)
        return results[-1]

    def prepare(self, number, a, b, one):
        folder = self.work.path / str(number)
        folder.mkdir()
        file = experiment(BUILD, one, a + b, "cpu", folder / "experiment.yaml")
        run(self.command(a, b, file, "--run-dir", folder / "whole"), folder / "whole").expect(0)
        return folder, file

    def test_after_a_warning_to_any_rank(self):
        for number, (a, b, one) in enumerate(self.CASES):
            with self.subTest(hosts=f"{a} and {b}", case=title(one)):
                folder, file = self.prepare(number, a, b, one)
                broken = folder / "broken"
                faults = [f"hyperparameters.fault={json.dumps(self.fault(a + b))}" for _ in range(2)]
                run(self.command(a, b, file, "--run-dir", broken, "--set", faults[0]), broken).expect(75)
                self.go_on(a, b, broken, "--set", faults[1]).expect(75)
                self.go_on(a, b, broken, "--set", "hyperparameters.fault={}").expect(0)
                self.assertEqual(differences(what_is_left(folder / "whole"), what_is_left(broken)), [])

    def test_with_a_storage_that_only_the_first_host_sees(self):
        a, b, one = self.CASES[1]
        storage = self.work.path / "storage"
        storage.mkdir()
        one["sections"]["checkpoint_storage"] = {"type": "directory", "container_path": str(storage)}
        self.assertEqual(on_host("b", "mount", "-t", "tmpfs", "tmpfs", str(storage)).returncode, 0)
        try:
            folder, file = self.prepare("hidden", a, b, one)
            broken = folder / "broken"
            fault = f"hyperparameters.fault={json.dumps(self.fault(a + b))}"
            run(self.command(a, b, file, "--run-dir", broken, "--set", fault), broken).expect(75)
            self.assertEqual(on_host("b", "ls", "-A", str(storage)).stdout, "")
            self.go_on(a, b, broken, "--set", "hyperparameters.fault={}").expect(0)
        finally:
            on_host("b", "umount", str(storage))
        self.assertEqual(differences(what_is_left(folder / "whole"), what_is_left(broken)), [])

    def fault(self, ranks):
        return {"kind": "terminate", "rank": self.dice.randrange(ranks), "batch": self.dice.randint(2, 15)}

    def test_after_kill_of_every_process(self):
        a, b, one = self.CASES[0]
        one["sections"]["min_checkpoint_period"] = {"batches": 5}
        folder, file = self.prepare("kill", a, b, one)
        broken = folder / "broken"
        batch = self.dice.randint(12, 40)
        stopped = f"hyperparameters.fault={json.dumps({'kind': 'stop', 'rank': self.dice.randrange(4), 'batch': batch})}"
        command = self.command(a, b, file, "--run-dir", broken, "--set", stopped)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as attempt:
            wait_until(lambda: any((broken / "checkpoints").glob("step-*")), "a checkpoint")
            killers = [subprocess.Popen([BED, "run", HOSTS, host, "pkill", "-KILL", "-x", program])
                       for program in ("gpu_trial", "dtrain-saver") for host in "ab"]
            ended = [killer.wait() for killer in killers]
            self.assertEqual(ended[:2], [0, 0])  # a saver ends with its rank, and may have done so already: then 1
            self.assertTrue(set(ended[2:]) <= {0, 1}, ended)
            self.assertNotEqual(attempt.wait(DEADLINE), 0)
        result = self.go_on(a, b, broken, "--set", "hyperparameters.fault={}").expect(0)
        self.assertEqual(len(result.events("resumed")), 1)
        self.assertEqual(differences(what_is_left(folder / "whole"), what_is_left(broken)), [])


class Failing(TwoHosts):
    def test_a_folder_that_only_one_host_has(self):
        self.assertEqual(on_host("b", "mount", "-t", "tmpfs", "tmpfs", str(self.work.path)).returncode, 0)
        try:
            result = mpirun(1, 1, self.work.new_run())
        finally:
            on_host("b", "umount", str(self.work.path))
        self.assertNotEqual(result.code, 0)
        self.assertIn(f"the run's folder {result.run_dir} of rank 0 (nodea) is not on nodeb, where rank 1 runs", result.output)
        self.assertIn("give a folder that all hosts share with --run-dir", result.output)

    def test_an_interface_that_is_not_there(self):
        result = mpirun(1, 1, self.work.new_run(), options=("-x", "DTRAIN_NETWORK_INTERFACE=eth77"))
        self.assertNotEqual(result.code, 0)
        self.assertIn("no interface 'eth77'", result.output)
        self.assertIn("link0 (10.71.1.1)", result.output)

    def test_the_interface_by_its_network(self):
        mpirun(1, 1, self.work.new_run(), options=("-x", "DTRAIN_NETWORK_INTERFACE=10.71.0.0/16")).expect(0)

    def test_a_rank_of_the_other_host_that_is_killed(self):
        run_dir = self.work.new_run()
        endless = ["searcher.max_length.batches=1000000000", "scheduling_unit=5"]
        with self.killed_on_the_other_host("synthetic", f"grep -qs loss {run_dir}/metrics.jsonl"):
            result = mpirun(1, 1, run_dir, endless)
        self.check_gone(result)

    def test_a_rank_that_is_killed_while_rank_0_is_in_a_long_step(self):
        """mpirun kills rank 0 a second later: too soon for its step to end."""
        run_dir = self.work.new_run()
        program = str(BUILD.bin.parent / "tests" / "rank_program")
        experiment = write_experiment(self.work.path / "experiment.yaml", name="long-steps", entrypoint=program,
                                      hyperparameters={"global_batch_size": 2, "step_ms": 60000},
                                      resources={"slots_per_trial": 2}, searcher={"max_length": {"batches": 3}})
        running = f"[ $(grep -s rank_running {run_dir}/events.jsonl | wc -l) = 2 ]"
        with self.killed_on_the_other_host("rank_program", running):
            result = run([BED, "mpirun", HOSTS, "--host", "nodea:1,nodeb:1", "-np", "2", program, str(experiment),
                          "--run-dir", str(run_dir)], run_dir)
        self.check_gone(result)

    @contextlib.contextmanager
    def killed_on_the_other_host(self, program, condition):
        wait = f"for i in $(seq 600); do {condition} && break; sleep 0.05; done"
        killer = subprocess.Popen([BED, "run", HOSTS, "b", "bash", "-c", f"{wait}; pkill -KILL -x {program}"])
        try:
            yield
        finally:
            killer.wait()

    def check_gone(self, result):
        self.assertNotEqual(result.code, 0)
        ended = result.events("run_ended")
        self.assertEqual([line["state"] for line in ended], ["failed"], result.output)
        self.assertRegex(ended[0]["cause"], r"rank 1 .*is gone")


if __name__ == "__main__":
    if not HOSTS:
        sys.exit("two_hosts.py runs inside tests/harness/two_hosts.sh with RATE")
    main("synthetic")
