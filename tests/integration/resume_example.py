"""examples/resume: PyTorch goes on from a checkpoint as dtrain does, and dtrain from what PyTorch writes.

    resume_example.py BIN_FOLDER [TestClass[.test] ...]
"""
import subprocess
import sys

import numpy
import torch
from torch.nn import functional

from harness import DEADLINE, SOURCE, environment, launch, run, write_experiment
from sample_order import epoch_order
from torchscript_models import Mlp, Net, ScriptTest, experiment, main, random_weights, save_script, write_fashion_like

EXAMPLE = SOURCE / "examples" / "resume"
sys.path.insert(0, str(EXAMPLE))
import checkpoint  # noqa: E402

BATCH = 16
SAMPLES = 20 * BATCH  # 20 batches in an epoch
ADAMW = {"kind": "adamw", "lr": 1e-3, "weight_decay": 1e-2}
LIMIT = 2e-6  # relative L2 norm; float32, and sums over two ranks in another order


class TorchAndBack(ScriptTest):
    """A net with batch norm, tied weights, a frozen and an unused parameter, past the end of an epoch."""

    def setUp(self):
        super().setUp()
        generator = numpy.random.default_rng(5)
        self.images = generator.standard_normal((SAMPLES, 1, 8, 8)).astype(numpy.float32)
        self.labels = generator.integers(0, 10, SAMPLES)
        numpy.save(self.folder / "x.npy", self.images)
        numpy.save(self.folder / "y.npy", self.labels)
        self.model = self.make_model()
        save_script(self.model, self.folder / "model.pt")

    def make_model(self):
        return random_weights(Net(), seed=1)

    def sections(self, steps, slots):
        return experiment("model.pt", {"format": "npy", "training": {"features": "x.npy", "target": "y.npy"}}, steps, BATCH,
                          slots, optimizer=ADAMW, checkpoint_storage={"save_trial_latest": 10},
                          optimizations={"matmul": "default"})

    def train(self, steps, slots=2):
        return launch(self.build, write_experiment(self.folder / "experiment.yaml", **self.sections(steps, slots)),
                      self.work.new_run()).expect(0)

    def go_on(self, run_dir, steps):
        command = [self.build.program("dtrain"), "launch", "--continue", str(run_dir), "--set",
                   f"searcher.max_length.batches={steps}"]
        return run(command, run_dir).expect(0)

    def batches(self, first, last):
        """Those that dtrain reads: whole batches, of both ranks together."""
        for number in range(first, last):
            epoch, batch = divmod(number, SAMPLES // BATCH)
            chosen = epoch_order(SAMPLES, 0, epoch)[batch * BATCH : (batch + 1) * BATCH]
            yield torch.from_numpy(self.images[chosen]), torch.from_numpy(self.labels[chosen])

    def in_torch(self, folder, first, last):
        model = self.make_model()
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.zero_()  # all comes from the checkpoint
        optimizer = torch.optim.AdamW(model.parameters(), lr=ADAMW["lr"], weight_decay=ADAMW["weight_decay"])
        self.assertEqual(checkpoint.load(folder, model, optimizer), first)
        model.train()
        for images, labels in self.batches(first, last):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return model, optimizer

    def check_equal(self, folder, other):
        """The weights and the optimizer's state of two checkpoints."""
        compared = 0
        for file in ("model.safetensors", "optimizer.safetensors"):
            first, second = (checkpoint._read(path / file)[0] for path in (folder, other))
            self.assertEqual(first.keys(), second.keys())
            for name, tensor in first.items():
                difference = (tensor.double() - second[name].double()).norm() / tensor.double().norm().clamp(min=1e-12)
                self.assertLess(float(difference), LIMIT, f"{file}: {name}")
                compared += 1
        self.assertGreater(compared, 11)
        updates = [{key: value for key, value in checkpoint._numbers(path).items() if "optimizer" in key}
                   for path in (folder, other)]
        self.assertEqual(*updates)

    def whole_way(self, slots):
        ten, fifteen, thirty = (self.train(steps, slots) for steps in (10, 15, 30))
        storage = ten.run_dir / "checkpoints"
        model, optimizer = self.in_torch(storage / "step-10", 10, 15)
        checkpoint.save(storage / "step-15", storage / "step-10", model, optimizer, 15, 0, 15)
        self.check_equal(fifteen.run_dir / "checkpoints" / "step-15", storage / "step-15")
        resumed = self.go_on(ten.run_dir, 30)
        self.assertEqual([event["step"] for event in resumed.events("resumed")], [15])
        self.check_equal(thirty.run_dir / "checkpoints" / "step-30", storage / "step-30")
        said = subprocess.run([self.build.program("dtrain"), "checkpoint", "verify", str(storage / "step-15")],
                              env=environment(), capture_output=True, text=True, check=False, timeout=DEADLINE)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

    def test_way(self):
        self.whole_way(1)


class OnTwoRanks(TorchAndBack):
    """A net without buffers: those of a rank follow from its half of a batch."""

    def make_model(self):
        return random_weights(Mlp(), seed=1)

    def test_way(self):
        self.whole_way(2)


class Script(ScriptTest):
    """The commands of examples/resume/README.md, on small data of Fashion-MNIST's shape."""

    def python(self, *command):
        done = subprocess.run([sys.executable, "-B", *map(str, command)], env=environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=DEADLINE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_goes_on_and_back(self):
        write_fashion_like(self.folder)
        model = self.folder / "model.pt"
        self.python(SOURCE / "examples" / "torchscript" / "make_model.py", model)
        sets = [f"model={model}", "searcher.max_length.batches=5", "min_validation_period.epochs=0",
                *(f"data.{key}.{field}={self.folder}/{part}-{file}.gz" for key, part in (("training", "train"), ("validation", "t10k"))
                  for field, file in (("features", "images-idx3-ubyte"), ("target", "labels-idx1-ubyte")))]
        first = launch(self.build, SOURCE / "configs" / "torchscript_fashion_mnist.yaml", self.work.new_run(), sets).expect(0)
        storage = first.run_dir / "checkpoints"
        said = self.python(EXAMPLE / "go_on.py", storage / "step-5", "--batches", "4", "--data", self.folder)
        self.assertIn("step-5: 5 batches are done", said)
        self.assertIn(f"written to {storage / 'step-9'}: epoch 1, batch 4 of it", said)
        command = [self.build.program("dtrain"), "launch", "--continue", str(first.run_dir), "--set", "searcher.max_length.batches=12"]
        resumed = run(command, first.run_dir).expect(0)
        self.assertEqual([event["step"] for event in resumed.events("resumed")], [9])
        self.assertEqual(resumed.metrics("validation")[-1]["batch"], 12)


if __name__ == "__main__":
    main()
