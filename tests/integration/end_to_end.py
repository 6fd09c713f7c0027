"""Whole runs of the examples and of parity_trial: what they leave on disk, and that it is right.

    end_to_end.py BIN_FOLDER [TestClass[.test] ...]
"""
import math
import re
import shutil
import signal
import subprocess
import sys

import numpy
import safetensors.numpy

import parity_model
from harness import (BUILD, SOURCE, Result, WorkplaceTest, environment, launch, main, overrides, run, wait_until,
                     write_experiment)

FASHION = SOURCE / "configs" / "fashion_mnist.yaml"
SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SMALL_SYNTHETIC = ["hyperparameters.width=64", "data.samples=2000"]

# What each file of configs/ leaves behind: name -> shape.
MODELS = {
    "fashion_mnist.yaml": {
        "conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,), "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,),
        "fc1.weight": (128, 3136), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,),
    },
    "synthetic.yaml": {
        "layer0.weight": (512, 256), "layer0.bias": (512,), "layer1.weight": (512, 512), "layer1.bias": (512,),
        "layer2.weight": (512, 512), "layer2.bias": (512,), "layer3.weight": (10, 512), "layer3.bias": (10,),
    },
}
MODELS["torchscript_fashion_mnist.yaml"] = MODELS["fashion_mnist.yaml"]
VALIDATION_SAMPLES = {"fashion_mnist.yaml": 10_000, "synthetic.yaml": 2_000, "torchscript_fashion_mnist.yaml": 10_000}


def mpirun(ranks, program, experiment, run_dir, sets=()):
    command = ["mpirun", "-np", str(ranks), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
               BUILD.program(program), str(experiment), "--run-dir", str(run_dir), *overrides(sets)]
    return run(command, run_dir)


class RunTest(WorkplaceTest):
    def launch(self, experiment, sets=(), **extra_environment):
        return launch(BUILD, experiment, self.work.new_run(), sets, **extra_environment)

    def parity(self, batches, ranks=2, k=1, epochs=1, sets=(), dump=False, data=None, **hyperparameters):
        """Runs parity_trial in float64 on these batches."""
        folder = self.work.new_run()
        folder.mkdir()
        weights = parity_model.initial_weights("float64")
        parity_model.save(weights, folder / "initial.safetensors")
        parity_model.save(batches, folder / "batches.safetensors")
        data = {"file": "batches.safetensors", **({"dump": "."} if dump else {}), **(data or {})}
        file = write_experiment(
            folder / "experiment.yaml", name="parity", entrypoint=BUILD.program("parity_trial"), data=data,
            hyperparameters={"global_batch_size": 16, "dtype": "float64", "optimizer": SGD, **hyperparameters},
            resources={"slots_per_trial": ranks}, optimizations={"aggregation_frequency": k},
            searcher={"metric": "loss", "max_length": {"epochs": epochs}}, initial_weights="initial.safetensors")
        return launch(BUILD, file, folder / "run", sets)


SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}


def parity_case(batches, k):
    return {"weights": parity_model.initial_weights("float64"), "dtype": "float64", "optimizer": SGD, "k": k, "batches": batches}


class Configs(RunTest):
    def fashion_script(self):
        file = self.work.path / "fashion_cnn.pt"
        command = [sys.executable, "-B", SOURCE / "examples" / "torchscript" / "make_model.py", file]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
        return file

    def test_every_config_trains_and_leaves_its_model(self):
        configs = sorted(path.name for path in (SOURCE / "configs").glob("*.yaml"))
        self.assertEqual(configs, sorted(MODELS), "a config without an expectation here")
        for name in configs:
            with self.subTest(name):
                sets = ["searcher.max_length.batches=12", "scheduling_unit=5"]
                if name == "torchscript_fashion_mnist.yaml":
                    sets.append(f"model={self.fashion_script()}")
                result = self.launch(SOURCE / "configs" / name, sets).expect(0)
                weights = safetensors.numpy.load_file(result.weights_file)
                self.assertEqual({n: w.shape for n, w in weights.items()}, MODELS[name])
                for tensor, values in weights.items():
                    self.assertEqual(values.dtype, numpy.float32, tensor)
                    self.assertTrue(numpy.isfinite(values).all(), tensor)
                    self.assertGreater(numpy.abs(values).max(), 0, tensor)
                validation = result.metrics("validation")
                self.assertEqual([(v["batch"], v["samples"]) for v in validation], [(12, VALIDATION_SAMPLES[name])])
                training = result.metrics("training")
                self.assertEqual([(t["batch"], t["samples"]) for t in training], [(5, 640), (10, 640), (12, 256)])
                for line in training + validation:
                    for metric, value in line["metrics"].items():
                        self.assertTrue(math.isfinite(value), metric)
                # The summary leaves out what rounds to nothing, as all else may in so short a run.
                for phase in ("train_batch", ".forward", ".backward"):
                    self.assertIn(phase, result.output)

    def test_training_learns(self):
        result = self.launch(SYNTHETIC, SMALL_SYNTHETIC + ["searcher.max_length.batches=150", "perform_initial_validation=true"]).expect(0)
        first, last = result.metrics("validation")
        self.assertLess(last["metrics"]["loss"], 0.8 * first["metrics"]["loss"])
        self.assertGreater(last["metrics"]["accuracy"], 0.2)


class Determinism(RunTest):
    def test_same_seed_same_bytes(self):
        length = ["searcher.max_length.batches=30"]  # more than the turns of the memory formats
        first = self.launch(FASHION, length).expect(0)
        second = self.launch(FASHION, length).expect(0)
        self.assertEqual(first.weights_file.read_bytes(), second.weights_file.read_bytes())
        other = self.launch(FASHION, length + ["reproducibility.experiment_seed=7"]).expect(0)
        self.assertNotEqual(first.weights_file.read_bytes(), other.weights_file.read_bytes())

        # A run that starts from these weights starts where that one ended.
        memory_format = first.json("plan.json")["memory_format"]["format"]
        on = self.launch(FASHION, ["searcher.max_length.batches=1", "perform_initial_validation=true",
                                   f"optimizations.memory_format={memory_format}",
                                   f"initial_weights={first.weights_file}"]).expect(0)
        self.assertEqual(on.metrics("validation")[0]["batch"], 0)
        self.assertEqual(on.metrics("validation")[0]["metrics"], first.metrics("validation")[-1]["metrics"])

    def test_one_rank_with_two_threads_repeats_its_bytes(self):
        for precision in ("none", "bf16"):
            with self.subTest(precision):
                sets = ["searcher.max_length.batches=30", "resources.slots_per_trial=1",
                        f"optimizations.mixed_precision={precision}"]
                first = self.launch(FASHION, sets, OMP_NUM_THREADS="2").expect(0)
                self.assertEqual([rank["threads"] for rank in first.json("plan.json")["ranks"]], [2])
                second = self.launch(FASHION, sets, OMP_NUM_THREADS="2").expect(0)
                self.assertEqual(first.weights_file.read_bytes(), second.weights_file.read_bytes())

    def test_all_ranks_hold_the_same_bits(self):
        result = self.parity(parity_model.make_batches("float64", 12, 2, 8), dump=True).expect(0)
        folder = result.run_dir.parent
        ranks = [(folder / f"rank-{rank}.safetensors").read_bytes() for rank in (0, 1)]
        self.assertEqual(ranks[0], ranks[1])
        self.assertEqual(ranks[0], result.weights_file.read_bytes())


class Starting(RunTest):
    SETS = SMALL_SYNTHETIC + ["searcher.max_length.batches=20"]

    def check_same(self, result, launched, same_weights=True):
        self.assertEqual(self.files(result), self.files(launched))
        if same_weights:
            self.assertEqual(result.weights_file.read_bytes(), launched.weights_file.read_bytes())
        self.assertEqual(result.metrics("validation")[-1]["metrics"], launched.metrics("validation")[-1]["metrics"])
        for phase in ("train_batch", "allreduce_wait", "optimizer_step"):
            self.assertIn(phase, result.output)
        self.assertIn("samples/s", result.output)

    @staticmethod
    def files(result):
        """Without the agent's number, and the second in which TensorBoard's events begin."""
        paths = (path.relative_to(result.run_dir) for path in result.run_dir.rglob("*") if path.is_file())
        return sorted(re.sub(r"agent-.*|(?<=tfevents\.)\d+", "", str(path)) for path in paths)

    def test_mpirun_is_like_launch(self):
        launched = self.launch(SYNTHETIC, self.SETS).expect(0)
        result = mpirun(2, "synthetic", SYNTHETIC, self.work.new_run(), self.SETS).expect(0)
        self.check_same(result, launched)
        self.assertIn("logs/rank-0001.log", self.files(result))

    def test_torchrun_is_like_launch(self):
        launched = self.launch(SYNTHETIC, self.SETS).expect(0)
        run_dir = self.work.new_run()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d",
                    "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "--no-python", "--nproc-per-node", "2"]
        command = [*torchrun, BUILD.program("synthetic"), str(SYNTHETIC), "--run-dir", str(run_dir), *overrides(self.SETS)]
        self.check_same(run(command, run_dir).expect(0), launched)

    def test_agents_of_this_machine_are_like_one(self):
        launched = self.launch(SYNTHETIC, self.SETS).expect(0)
        cluster = self.work.path / "cluster.yaml"
        cluster.write_text("agents: [{id: left, host: localhost, slots: 1}, {id: right, host: 127.0.0.1, slots: 1}]")
        result = self.launch(SYNTHETIC, self.SETS, DTRAIN_CLUSTER=str(cluster)).expect(0)
        self.check_same(result, launched)
        plan = result.json("plan.json")
        self.assertEqual(plan["placement"], [{"agent": "left", "slots": 1, "ranks": [0]},
                                             {"agent": "right", "slots": 1, "ranks": [1]}])
        cpus = [set(rank["cpus"]) for rank in plan["ranks"]]
        self.assertTrue(cpus[0] and cpus[1])
        cores = {core for rank in launched.json("plan.json")["ranks"] for core in rank["cpus"]}
        if len(cores) > 1:
            self.assertFalse(cpus[0] & cpus[1], "each agent has cores of its own")
        refused = self.launch(SYNTHETIC, self.SETS + ["resources.is_single_node=true"], DTRAIN_CLUSTER=str(cluster)).expect(2)
        self.assertIn("2 slots never fit on this cluster", refused.output)
        self.assertFalse(refused.run_dir.exists())

    def test_alone_is_like_launch(self):
        one = self.SETS + ["resources.slots_per_trial=1"]
        launched = self.launch(SYNTHETIC, one).expect(0)
        run_dir = self.work.new_run()
        result = run([BUILD.program("synthetic"), str(SYNTHETIC), "--run-dir", str(run_dir), *overrides(one)], run_dir).expect(0)
        self.check_same(result, launched)


class Ragged(RunTest):
    """Ranks with different numbers of batches, and windows that do not come out even."""

    def compare(self, result, case, rounds):
        expected = parity_model.train_rounds(case, rounds)
        worst, name = parity_model.worst_difference(parity_model.load(result.weights_file), expected)
        self.assertLess(worst, 1e-12, name)

    def test_batches_left_over_are_exchanged(self):
        batches = parity_model.make_batches("float64", 7, 2, 8)
        result = self.parity(batches, k=4).expect(0)
        self.compare(result, parity_case(batches, 4), [[(b, 0), (b, 1)] for b in range(7)])
        self.assertEqual(result.metrics("training")[-1]["optimizer_steps"], 2)

    def test_a_rank_that_ends_early_hangs_nobody(self):
        batches = parity_model.make_batches("float64", 7, 2, 8, counts=[7, 3])
        rounds = [[(b, 0), (b, 1)] if b < 3 else [(b, 0)] for b in range(7)]
        for k in (1, 4):
            with self.subTest(k=k):
                result = self.parity(batches, k=k, epochs=2, dump=True).expect(0)
                self.compare(result, parity_case(batches, k), rounds * 2)
                folder = result.run_dir.parent
                self.assertEqual((folder / "rank-0.safetensors").read_bytes(), (folder / "rank-1.safetensors").read_bytes())

    def test_rank_zero_may_end_first(self):
        batches = parity_model.make_batches("float64", 5, 2, 8, counts=[2, 5])
        rounds = [[(b, 0), (b, 1)] if b < 2 else [(b, 1)] for b in range(5)]
        self.compare(self.parity(batches).expect(0), parity_case(batches, 1), rounds)

    def test_a_source_that_does_not_tell_its_length(self):
        batches = parity_model.make_batches("float64", 5, 2, 8, counts=[5, 4])
        rounds = [[(b, 0), (b, 1)] if b < 4 else [(b, 0)] for b in range(5)]
        result = self.parity(batches, epochs=2, data={"tells_length": False}).expect(0)
        self.compare(result, parity_case(batches, 1), rounds * 2)
        # records_per_epoch gives it one: three batches of 16.
        result = self.parity(batches, epochs=2, data={"tells_length": False}, sets=["records_per_epoch=48"]).expect(0)
        self.compare(result, parity_case(batches, 1), rounds[:3] * 2)

    def test_lengths_in_records(self):
        batches = parity_model.make_batches("float64", 5, 2, 8)
        result = self.parity(batches, sets=["searcher.max_length.records=50"]).expect(0)
        self.compare(result, parity_case(batches, 1), [[(b, 0), (b, 1)] for b in range(4)])

    def test_learning_rate_counts_optimizer_steps(self):
        batches = parity_model.make_batches("float64", 18, 2, 8)
        result = self.parity(batches, k=4, sets=["scheduling_unit=2"], lr_step_size=2, lr_gamma=0.5).expect(0)
        lines = [(t["batch"], t["optimizer_steps"], t["learning_rate"]) for t in result.metrics("training")]
        # The rate is that of the step last made, or of the first one.
        steps = [(b, b // 4) for b in range(2, 18, 2)] + [(18, 5)]
        expected = [(b, step, 0.05 * 0.5 ** (max(step - 1, 0) // 2)) for b, step in steps]
        self.assertEqual(lines, expected)


class ValidationCounts(RunTest):
    def test_each_sample_counts_once_whatever_the_ranks(self):
        trained = self.launch(FASHION, ["searcher.max_length.batches=15"]).expect(0)
        sets = ["searcher.max_length.batches=1", "perform_initial_validation=true", f"initial_weights={trained.weights_file}"]
        lines = []
        for ranks in (1, 2, 3):
            result = mpirun(ranks, "fashion_mnist", FASHION, self.work.new_run(), sets + [f"resources.slots_per_trial={ranks}"])
            lines.append(result.expect(0).metrics("validation")[0])
        for line in lines:
            self.assertEqual((line["batch"], line["samples"]), (0, 10_000))
            self.assertAlmostEqual(line["metrics"]["accuracy"], lines[0]["metrics"]["accuracy"], delta=1e-12)
            self.assertAlmostEqual(line["metrics"]["loss"], lines[0]["metrics"]["loss"], delta=1e-6)
        self.assertGreater(lines[0]["metrics"]["accuracy"], 0.2)


class Stopping(RunTest):
    ENDLESS = SMALL_SYNTHETIC + ["searcher.max_length.batches=1000000000", "scheduling_unit=5"]

    def stop(self, command, run_dir):
        metrics = run_dir / "metrics.jsonl"
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        try:
            wait_until(lambda: process.poll() is not None or metrics.is_file() and metrics.stat().st_size > 0, "training")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        return Result(process.returncode, output, run_dir)

    def check(self, result):
        result.expect(75)
        weights = safetensors.numpy.load_file(result.weights_file)
        self.assertEqual(weights["layer0.weight"].shape, (64, 256))
        self.assertTrue(all(numpy.isfinite(w).all() for w in weights.values()))
        self.assertEqual(len(result.events("weights_written")), 1)
        self.assertEqual(result.metrics("validation"), [])

    def check_against_full_run(self, result, sets):
        """The step it was in was finished and counted, and nothing after it."""
        self.check(result)
        batches = result.metrics("training")[-1]["batch"]
        length = [f"searcher.max_length.batches={batches}"]
        again = self.launch(SYNTHETIC, [s for s in sets if "max_length" not in s] + length).expect(0)
        self.assertEqual(result.weights_file.read_bytes(), again.weights_file.read_bytes(), f"after {batches} batches")

    def test_sigterm_to_the_launcher_saves(self):
        run_dir = self.work.new_run()
        result = self.stop([BUILD.program("dtrain"), "launch", str(SYNTHETIC), "--run-dir", str(run_dir), *overrides(self.ENDLESS)], run_dir)
        self.check_against_full_run(result, self.ENDLESS)

    def test_sigterm_to_a_lone_rank_saves(self):
        run_dir = self.work.new_run()
        sets = self.ENDLESS + ["resources.slots_per_trial=1"]
        result = self.stop([BUILD.program("synthetic"), str(SYNTHETIC), "--run-dir", str(run_dir), *overrides(sets)], run_dir)
        self.check_against_full_run(result, sets)


class Errors(RunTest):
    def test_different_models_name_parameter_and_rank(self):
        result = self.parity(parity_model.make_batches("float64", 2, 2, 8), wider_on_rank=1).expect(1)
        self.assertIn("rank 1 has parameter 'frozen' Double [33] (frozen) where rank 0 has parameter 'frozen' Double [32]",
                      result.output)
        self.assertEqual(result.output.count("built different models"), 1, result.output)
        self.assertNotIn("rank 0 could not start", result.output)
        self.assertFalse(result.weights_file.exists())

    def test_a_missing_data_file_is_named(self):
        folder = self.work.new_run()
        folder.mkdir()
        for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
            shutil.copy(f"/usr/share/datasets/fashion-mnist/{name}", folder)
        result = self.launch(FASHION, [f"data.folder={folder}", "searcher.max_length.batches=1"]).expect(1)
        self.assertIn(str(folder / "t10k-labels-idx1-ubyte.gz"), result.output)
        self.assertIn("apt install dataset-fashion-mnist", result.output)

    def test_weights_of_another_model_are_refused(self):
        result = self.launch(SYNTHETIC, SMALL_SYNTHETIC + ["searcher.max_length.batches=2"]).expect(0)
        other = self.launch(SYNTHETIC, SMALL_SYNTHETIC[1:] + ["searcher.max_length.batches=2", "hyperparameters.depth=3",
                                                              f"initial_weights={result.weights_file}"]).expect(1)
        self.assertIn("'layer0.weight' is [64, 256] in the file and [512, 256] in the model", other.output)
        self.assertIn("'layer3.weight' is in the file but not in the model", other.output)

    def test_a_metric_nobody_returns_is_named(self):
        endless = SMALL_SYNTHETIC + ["searcher.max_length.batches=1000000000", "scheduling_unit=1"]
        result = self.launch(SYNTHETIC, endless + ["searcher.metric=f1"]).expect(1)
        self.assertEqual(result.metrics("training"), [], "it is known before the first step")
        self.assertIn("'f1'", result.output)
        self.assertIn("accuracy, loss", result.output)


if __name__ == "__main__":
    main()
