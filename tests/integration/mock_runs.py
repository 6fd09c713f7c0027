"""`--mock`: each rank's weights against PyTorch's, where the ranks train by themselves or on one batch; what the dumps hold
and lack; what is refused. And `dtrain what-if --verify` of a real run.

    mock_runs.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import shutil
import subprocess
import unittest

import torch

import parity_model
from harness import BUILD, Workplace, environment, interrupt_training, launch, main, run, write_experiment

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
STEPS = 14


class MockTest(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("mock")
        self.addCleanup(self.work.remove)
        self.runs = 0

    def experiment(self, case, **more):
        """In a folder of its own, which is where the ranks leave their weights."""
        self.runs += 1
        folder = self.work.path / f"experiment-{self.runs}"
        folder.mkdir()
        parity_model.save(case["weights"], folder / "initial.safetensors")
        parity_model.save(case["batches"], folder / "batches.safetensors")
        world = case["batches"]["x"].shape[1]
        return write_experiment(
            folder / "experiment.yaml", name="mock", entrypoint=BUILD.program("parity_trial"),
            hyperparameters={"global_batch_size": 8 * world, "dtype": "float32", "optimizer": SGD, **case.get("more", {})},
            resources={"slots_per_trial": world}, data={"file": "batches.safetensors", "dump": "."},
            searcher={"max_length": {"epochs": 1}}, initial_weights="initial.safetensors", **more)

    def case(self, world=2, counts=None, **more):
        return {"weights": parity_model.initial_weights("float32"), "dtype": "float32", "k": 1, "clip": 0, "optimizer": SGD,
                "batches": parity_model.make_batches("float32", STEPS, world, 8, counts=counts), "more": more}

    def mock(self, what, file, *words, code=0, **extra):
        run_dir = file.parent / "run"
        command = [BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir), "--mock", what, *words]
        return run(command, run_dir, **extra).expect(code)

    @staticmethod
    def weights(file, world=2):
        return [parity_model.load(file.parent / f"rank-{rank}.safetensors") for rank in range(world)]

    @staticmethod
    def records(result, kind, world=2):
        return [[line for line in result.lines(f"profile/rank-{rank:04}.jsonl") if line["record"] == kind]
                for rank in range(world)]

    def expect_marked(self, result, what):
        self.assertEqual(result.json("plan.json")["mock"]["what"], what)
        self.assertIn(f"warning: mock run ({what})", result.output)
        self.assertEqual(result.output.count("its weights mean nothing"), 2, result.output)  # warning, summary
        self.assertFalse(result.weights_file.exists())
        self.assertEqual(result.metrics("validation"), [])
        self.assertIn(f"mock run ({what})", (result.run_dir / "report.html").read_text())

    def same(self, ours, theirs):
        difference, worst = parity_model.worst_difference(ours, theirs)
        self.assertLessEqual(difference, 1e-5, worst)

    @staticmethod
    def alone(case, batches):
        """One rank's model, trained on these (batch, rank)."""
        return parity_model.train_rounds(case, [[one] for one in batches])


class Words(MockTest):
    def test_comm_trains_each_rank_by_itself(self):
        """The second rank's data ends early: nobody waits for it, and it begins again."""
        case = self.case(counts=[STEPS, 9])
        file = self.experiment(case)
        result = self.mock("comm", file)
        self.expect_marked(result, "comm")
        self.assertIn("gradients are not exchanged", result.output)
        for rank, weights in enumerate(self.weights(file)):
            self.same(weights, self.alone(case, [(i % int(case["batches"]["counts"][rank]), rank) for i in range(STEPS)]))
            self.assertEqual(self.records(result, "collective")[rank], [])
            steps = self.records(result, "step")[rank]
            self.assertEqual([step["batch"] for step in steps], list(range(1, STEPS + 1)))
            self.assertTrue(all(step["phases"]["allreduce_wait"] == 0 for step in steps))
            self.assertTrue(all(step["exchanged"] for step in steps))

    def test_comm_computes_what_the_rank_would_update(self):
        """With a sharded optimizer its part of every bucket, and the norm of the gradients there."""
        case = self.case(clip=1.0)
        file = self.experiment(case, optimizations={"sharded_optimizer": True})
        self.mock("comm", file)
        first, second = self.weights(file)
        changed = [0, 0]
        for name, before in case["weights"].items():
            by = [weights[name] != before for weights in (first, second)]
            self.assertFalse(torch.any(by[0] & by[1]), name)
            changed = [count + int(mask.sum()) for count, mask in zip(changed, by)]
        self.assertGreater(min(changed), 1000)

    def test_comm_leaves_out_the_meetings_of_local_steps(self):
        case = self.case()
        file = self.experiment(case, optimizations={"local_sgd": {"inner_steps": 3}})
        result = self.mock("comm", file)
        for rank, weights in enumerate(self.weights(file)):
            self.same(weights, self.alone(case, [(i, rank) for i in range(STEPS)]))
        self.assertEqual(self.records(result, "collective"), [[], []])

    def test_comm_and_compression_and_tuned_buckets(self):
        for optimizations in ({"gradient_compression": "fp16"}, {"auto_tune_tensor_fusion": True}):
            with self.subTest(**optimizations):
                case = self.case()
                file = self.experiment(case, optimizations={"aggregation_frequency": 3, **optimizations})
                result = self.mock("comm", file)
                case["k"] = 3
                for rank, weights in enumerate(self.weights(file)):
                    self.same(weights, self.alone(case, [(i, rank) for i in range(STEPS)]))
                self.assertNotIn("compression", result.json("plan.json"))

    def test_loader_trains_on_one_batch(self):
        case = self.case(counts=[STEPS, 9])
        file = self.experiment(case)
        result = self.mock("loader", file)
        self.expect_marked(result, "loader")
        rounds = [[(0, 0), (0, 1)] if i < 9 else [(0, 0)] for i in range(STEPS)]
        for weights in self.weights(file):
            self.same(weights, parity_model.train_rounds(case, rounds))
        self.assertTrue(all(self.records(result, "collective")))

    def test_loader_and_comm_compute_alone(self):
        case = self.case()
        file = self.experiment(case)
        result = self.mock("comm,loader", file)
        self.expect_marked(result, "loader,comm")
        for rank, weights in enumerate(self.weights(file)):
            self.same(weights, self.alone(case, [(0, rank)] * STEPS))
        self.assertEqual(self.records(result, "collective"), [[], []])

    def test_train_reads_and_does_nothing_else(self):
        case = self.case(counts=[STEPS, 9])
        file = self.experiment(case)
        result = self.mock("train", file)
        self.expect_marked(result, "train")
        for rank, weights in enumerate(self.weights(file)):
            for name, tensor in case["weights"].items():
                self.assertTrue(torch.equal(weights[name], tensor), name)
            steps = self.records(result, "step")[rank]
            self.assertEqual(len(steps), STEPS)
            idle = ("train_batch", "train_batch.forward", "train_batch.backward", "to_device", "allreduce_wait",
                    "optimizer_step")
            self.assertTrue(all(step["phases"][phase] == 0 for step in steps for phase in idle))
            self.assertTrue(all(step["samples"] == 8 for step in steps))
            loads = self.records(result, "loader")[rank]
            # The round in which the data of the second rank ends is begun twice.
            self.assertEqual(sorted({load["batch"] for load in loads}), list(range(1, STEPS + 1)))
        self.assertEqual(self.records(result, "collective"), [[], []])

    def test_the_loader_of_a_data_set_reads_once(self):
        """The synthetic example's loader says of each batch how long reading it took."""
        file = write_experiment(self.work.path / "synthetic.yaml", name="s", entrypoint=BUILD.program("synthetic"),
                                hyperparameters={"global_batch_size": 32, "features": 64, "width": 32, "depth": 2},
                                resources={"slots_per_trial": 1}, searcher={"max_length": {"epochs": 2}},
                                data={"samples": 320})
        loads = {}
        for what in ("loader", "train"):
            command = [BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(self.work.path / what), "--mock", what]
            result = run(command, self.work.path / what).expect(0)
            loads[what] = [line for line in self.records(result, "loader", 1)[0] if line["queue_depth"] >= 0]
            self.assertEqual(len(self.records(result, "step", 1)[0]), 20)
        # Without a time of reading there is no cost of it either (docs/profile-format.md).
        self.assertEqual([load for load in loads["loader"] if "fetch_ns" in load or "cpu_ns" in load or "skipped" in load], [])
        self.assertEqual(len([load for load in loads["train"] if load.get("fetch_ns", -1) >= 0]), 20)

    def test_a_rank_program_takes_it_as_well(self):
        case = self.case()
        file = self.experiment(case)
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun")
        root = ["--allow-run-as-root", "--oversubscribe"]
        command = ["mpirun", *root, "-np", "2", BUILD.program("parity_trial"), "--mock=comm", str(file), "--run-dir",
                   str(file.parent / "run")]
        result = run(command, file.parent / "run").expect(0)
        self.assertEqual(result.json("plan.json")["mock"]["what"], "comm")
        for rank, weights in enumerate(self.weights(file)):
            self.same(weights, self.alone(case, [(i, rank) for i in range(STEPS)]))

    def test_a_stop_ends_ranks_that_say_nothing_to_each_other(self):
        file = self.experiment(self.case(), scheduling_unit=5)
        run_dir = file.parent / "run"
        interrupt_training([BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir), "--mock", "comm",
                            "--set", "searcher.max_length.epochs=100000"], run_dir)

    def test_what_makes_no_sense_is_refused(self):
        file = self.experiment(self.case())
        for what, words in (("network", "there is no 'network'"), ("train,comm", "it cannot be combined"), ("", "no ''")):
            self.assertIn(words, self.mock(what, file, code=2).output)
        single = self.experiment(self.case(world=1))
        self.assertIn("one rank has no exchange to leave out", self.mock("comm", single, code=2).output)
        alone = run([BUILD.program("parity_trial"), str(single), "--mock", "comm"], single.parent).expect(2)
        self.assertIn("one rank has no exchange to leave out", alone.output)
        unknown = run([BUILD.program("parity_trial"), str(single), "--mock", "all"], single.parent).expect(2)
        self.assertIn("it is one of loader, train, comm", unknown.output)
        self.assertFalse((file.parent / "run").exists())


class Verify(MockTest):
    def what_if(self, folder, *words, code=0):
        return run([BUILD.program("dtrain"), "what-if", str(folder), "--verify", *words], folder).expect(code)

    def test_a_key_that_is_predicted_is_set_in_runs(self):
        file = write_experiment(self.work.path / "e.yaml", name="small", entrypoint=BUILD.program("synthetic"),
                                hyperparameters={"global_batch_size": 64, "features": 64, "depth": 3, "width": 256},
                                resources={"slots_per_trial": 1}, searcher={"max_length": {"batches": 40}},
                                min_validation_period={"batches": 0}, data={"samples": 2000})
        original = launch(BUILD, file, self.work.path / "run").expect(0)
        plan = original.json("plan.json")
        host = original.json("profile/operators-rank-0000.json")["host"]
        plan["limits"] = {host: {"memory_gb_s": 1000, "gflops": {"float32": 1000, "bfloat16": 4000}}}
        (original.run_dir / "plan.json").write_text(json.dumps(plan))
        said = subprocess.run([BUILD.program("dtrain"), "what-if", str(original.run_dir), "--verify", "--steps", "20",
                               "--rounds", "1", "--json"],
                              env=environment(), capture_output=True, text=True, timeout=120)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("--set optimizations.mixed_precision=bf16", said.stderr)
        answer = json.loads(said.stdout)
        changed = [one for one in answer["predictions"] if one["set"]]
        self.assertEqual([(one["name"], one["mock"], one["set"]) for one in changed],
                         [("bf16", None, "optimizations.mixed_precision=bf16")])
        for key in ("plain_ms", "measured_ms", "predicted_from_run_ms"):
            self.assertGreater(changed[0][key], 0)
        runs = [path for path in (original.run_dir / "what-if" / "1").iterdir() if path.is_dir()]
        precisions = {path.name.split("-", 1)[1]:
                      json.loads((path / "plan.json").read_text())["experiment"]["optimizations"]["mixed_precision"]
                      for path in runs}
        self.assertEqual(precisions.pop("set-mixed_precision-bf16"), "bf16")
        self.assertEqual(set(precisions.values()), {"O0"})

    def test_predicted_and_measured_side_by_side(self):
        sets = ["hyperparameters.global_batch_size=32", "hyperparameters.width=256", "searcher.max_length.batches=60"]
        file = write_experiment(self.work.path / "e.yaml", name="small", entrypoint=BUILD.program("synthetic"),
                                hyperparameters={"global_batch_size": 64, "features": 64, "depth": 3},
                                resources={"slots_per_trial": 2}, searcher={"max_length": {"batches": 5}},
                                min_validation_period={"batches": 7}, data={"samples": 2000})
        original = launch(BUILD, file, self.work.path / "run", sets).expect(0)
        plan = original.json("plan.json")
        plan.pop("limits", None)  # by which what-if also predicts keys, see below
        (original.run_dir / "plan.json").write_text(json.dumps(plan))
        said = subprocess.run([BUILD.program("dtrain"), "what-if", str(original.run_dir), "--verify", "--steps", "40",
                               "--rounds", "1", "--json"],
                              env=environment(), capture_output=True, text=True, timeout=120)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("9 of 9: plain", said.stderr)
        answer = json.loads(said.stdout)
        self.assertEqual(answer["steps"], 40)
        self.assertEqual([(one["name"], one["mock"]) for one in answer["predictions"]],
                         [("free_loader", "loader"), ("free_network", "comm"), ("compute_alone", "loader,comm"),
                          ("loader_alone", "train")])
        for one in answer["predictions"]:
            self.assertAlmostEqual(one["ratio"], one["predicted_ms"] / one["measured_ms"])
            self.assertEqual(one["ratios"], [one["ratio"]])
            for key in ("plain_ms", "predicted_from_run_ms"):
                self.assertGreater(one[key], 0)
        runs = sorted((original.run_dir / "what-if" / "1").iterdir())
        folders = [path for path in runs if path.is_dir()]
        self.assertEqual(len(folders), 9)
        strategy = original.json("plan.json").get("strategy", {}).get("strategy")
        for folder in folders:
            plan = json.loads((folder / "plan.json").read_text())
            what = plan.get("mock", {}).get("what", "")
            self.assertEqual(folder.name[2:], f"mock-{what.replace(',', '-')}" if what else "plain")
            self.assertEqual(plan["experiment"]["searcher"]["max_length"], {"batches": 40})
            self.assertEqual(plan["experiment"]["hyperparameters"]["width"], 256)
            self.assertEqual(plan["global_batch_size"], 32)
            if strategy:
                self.assertEqual(plan["experiment"]["optimizations"]["sharded_optimizer"], strategy == "sharded")
            if what:
                self.assertFalse((folder / "checkpoints").exists())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
