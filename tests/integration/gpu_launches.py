"""`dtrain launch` of the examples on a machine with fake GPUs: the same weights and metrics as on CPUs.

    gpu_launches.py BIN_FOLDER [TestClass[.test] ...]
"""
import unittest

import torch
from torch import nn

import parity_model
from gpu_cases import gpu_environment
from harness import BUILD, SOURCE, Workplace, launch, main, run
from torchscript_models import Net, experiment, save_script, write_experiment, write_fashion_like

RANKS = (1, 2, 4)
STEPS = 50


class BatchNormAndDropout(Net):
    def __init__(self):
        super().__init__(width=16)
        self.fc1 = nn.Linear(4 * 28 * 28, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, images):
        h = self.drop(self.fc1(self.body(images).flatten(1)).relu()) * self.frozen
        return self.out(self.tied_b(self.tied_a(h).relu()).relu())


class Launches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = Workplace("fashion-like")
        write_fashion_like(cls.data.path)

    @classmethod
    def tearDownClass(cls):
        cls.data.remove()

    def setUp(self):
        self.work = Workplace("gpu-launches")
        self.addCleanup(self.work.remove)

    def on_gpus(self, experiment_file, ranks, slot_type, sets):
        log = self.work.path / f"log-{self.work.runs}"
        log.mkdir()
        result = launch(BUILD, experiment_file, self.work.new_run(),
                        [*sets, f"resources.slots_per_trial={ranks}", f"resources.slot_type={slot_type}"],
                        **gpu_environment(BUILD, DTRAIN_FAKE_GPU_LOG=str(log))).expect(0)
        reports = sorted(log.glob("*.reports"))
        self.assertEqual(len(reports), ranks, "not every rank has opened the fake GPUs")
        self.assertEqual("".join(path.read_text() for path in reports), "")
        return result

    def on_cpus(self, experiment_file, ranks, sets):
        return launch(BUILD, experiment_file, self.work.new_run(),
                      [*sets, f"resources.slots_per_trial={ranks}", "resources.slot_type=cpu"]).expect(0)

    def check_same(self, gpus, cpus):
        expected = parity_model.load(cpus.weights_file)
        weights = parity_model.load(gpus.weights_file)
        self.assertEqual(weights.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(weights[name], tensor), name)
        for kind in ("training", "validation"):
            lines = list(zip(gpus.metrics(kind), cpus.metrics(kind), strict=True))
            self.assertTrue(lines)
            for got, wanted in lines:
                for key in ("batch", "samples", "optimizer_steps", "learning_rate", "best"):
                    self.assertEqual(got.get(key), wanted.get(key), key)
                self.assertEqual(got["metrics"].keys(), wanted["metrics"].keys())
                for name, value in wanted["metrics"].items():
                    self.assertAlmostEqual(got["metrics"][name], value, delta=1e-12 * abs(value), msg=name)

    def compare(self, experiment_file, slot_type, sets):
        sets = [*sets, f"searcher.max_length.batches={STEPS}", "hyperparameters.global_batch_size=32",
                "scheduling_unit=20", "min_validation_period.batches=30", "optimizations.memory_format=contiguous",
                "optimizations.operators=default"]  # the same on both
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                self.check_same(self.on_gpus(experiment_file, ranks, slot_type, sets),
                                self.on_cpus(experiment_file, ranks, sets))

    def test_fashion_mnist(self):
        self.compare(SOURCE / "configs" / "fashion_mnist.yaml", "cuda", [f"data.folder={self.data.path}"])

    def test_synthetic(self):
        self.compare(SOURCE / "configs" / "synthetic.yaml", "auto", ["hyperparameters.width=64", "data.samples=2000"])

    def test_gaps_close_buckets_where_the_file_says_so(self):
        """No two gradients are ready within a nanosecond: each travels alone."""
        sets = ["hyperparameters.width=64", "data.samples=2000", "searcher.max_length.batches=20"]
        for more, by in (([], "threshold"), (["optimizations.tensor_fusion_cycle_time=0.000001"], "threshold and gaps")):
            fusion = self.on_gpus(SOURCE / "configs" / "synthetic.yaml", 2, "cuda", [*sets, *more]).json("plan.json")["fusion"]
            self.assertEqual(fusion["by"], by)
            self.assertEqual(len(fusion["buckets"]) > 1, bool(more), fusion)

    def test_float16(self):
        sets = ["hyperparameters.width=64", "data.samples=2000", "searcher.max_length.batches=20",
                "optimizations.mixed_precision=fp16"]
        result = self.on_gpus(SOURCE / "configs" / "synthetic.yaml", 2, "auto", sets)
        scaling = result.json("plan.json")["loss_scaling"]
        self.assertIn("fp16", scaling["text"])
        self.assertEqual(scaling["scale"] * 2 ** scaling["skipped_updates"], 65536, scaling)
        summary = run([BUILD.program("dtrain"), "summary", str(result.run_dir)], result.run_dir).expect(0)
        self.assertIn(scaling["text"], summary.output)
        # Without GPUs: before a rank is started.
        for slot_type in ("auto", "cpu"):
            refused = launch(BUILD, SOURCE / "configs" / "synthetic.yaml", self.work.new_run(),
                             [*sets, f"resources.slot_type={slot_type}"]).expect(2)
            self.assertIn("optimizations.mixed_precision: float16 needs GPUs; use bf16 on CPUs", refused.output)
            self.assertFalse((refused.run_dir / "events.jsonl").exists())

    def test_torchscript(self):
        torch.manual_seed(0)
        model = save_script(BatchNormAndDropout(), self.work.path / "model.pt")
        files = {part: {"features": f"{self.data.path}/{name}-images-idx3-ubyte.gz",
                        "target": f"{self.data.path}/{name}-labels-idx1-ubyte.gz"}
                 for part, name in (("training", "train"), ("validation", "t10k"))}
        file = write_experiment(self.work.path / "experiment.yaml", **experiment(
            model, {"format": "idx", **files}, optimizer={"kind": "adamw", "lr": 2**-10}))  # a CUDA graph reads it as a float32
        self.compare(file, "cuda", [])


if __name__ == "__main__":
    # torch.jit calls itself deprecated.
    main("dtrain-worker", warnings="ignore")
