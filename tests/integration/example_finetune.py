"""examples/finetune: a trunk, then a new head on it, by the program and by the TorchScript file, as its README starts them,
but shorter.

    example_finetune.py BIN_FOLDER [TestClass[.test] ...]
"""
import subprocess

import numpy
import safetensors.numpy

from harness import BUILD, DEADLINE, SOURCE, Workplace, WorkplaceTest, environment, launch, main, python

EXAMPLE = SOURCE / "examples" / "finetune"


class FinetuneTest(WorkplaceTest):
    """The tests of a class share the data and the first step."""

    @classmethod
    def setUpClass(cls):
        cls.shared = Workplace("finetune")
        cls.addClassCleanup(cls.shared.remove)
        cls.data = cls.shared.path / "data"
        python(EXAMPLE / "prepare.py", "--to", cls.data)
        cls.first = launch(BUILD, EXAMPLE / "pretrain.yaml", cls.shared.new_run(),
                           [f"data.folder={cls.data}", "searcher.max_length.batches=60"]).expect(0)

    def finetune(self, *sets, batches=100, ranks=2):
        return launch(BUILD, EXAMPLE / "finetune.yaml", self.work.new_run(), [
            f"data.folder={self.data}", f"initial_weights.file={self.first.run_dir}", f"searcher.max_length.batches={batches}",
            "min_validation_period.batches=0", f"resources.slots_per_trial={ranks}", *sets]).expect(0)

    def weights(self, result):
        return safetensors.numpy.load_file(result.weights_file)

    def same_trunk(self, result):
        """Whether the trunk is that of the first step, and the head is not. Each as a whole."""
        before, after = self.weights(self.first), self.weights(result)
        self.assertEqual(before.keys(), after.keys())
        same = {name: bool(numpy.array_equal(before[name], after[name])) for name in before}
        self.assertFalse(same["head.weight"] or same["head.bias"])
        trunk = {value for name, value in same.items() if name.startswith("trunk.")}
        self.assertEqual(len(trunk), 1, same)
        return trunk.pop()

    def validated(self, result):
        return result.metrics("validation")[-1]["metrics"]


class Program(FinetuneTest):
    def test_the_experiments_are_valid(self):
        files = sorted(EXAMPLE.glob("*.yaml"))
        self.assertEqual(len(files), 4)
        for file in files:
            subprocess.run([BUILD.program("dtrain"), "config", "check", "--file-only", file], env=environment(), check=True,
                           timeout=DEADLINE, stdout=subprocess.DEVNULL)

    def test_a_frozen_trunk(self):
        self.assertGreater(self.validated(self.first)["accuracy"], 0.7)
        result = self.finetune()
        self.assertTrue(self.same_trunk(result))
        self.assertGreater(self.validated(result)["accuracy"], 0.5)
        self.assertLess(self.validated(result)["loss"], 1.3)
        self.assertIn("old_head.weight", result.output)  # the warning lists what was left out
        self.assertNotIn("has not read", result.output)

    def test_a_trunk_that_learns_slowly(self):
        result = self.finetune("hyperparameters.trunk=slow")
        self.assertFalse(self.same_trunk(result))
        self.assertGreater(self.validated(result)["accuracy"], 0.5)
        groups = result.json("plan.json")["optimizer"]["groups"]
        self.assertIn("trunk", [group["name"] for group in groups])

    def test_from_scratch(self):
        result = self.finetune("hyperparameters.trunk=trained", "initial_weights=null", batches=2)
        self.assertFalse(self.same_trunk(result))


class Ranks(FinetuneTest):
    def test_the_same_loss_on_any_number_of_ranks(self):
        for trunk in ("frozen", "slow"):
            losses = [self.validated(self.finetune("hyperparameters.global_batch_size=24", f"hyperparameters.trunk={trunk}",
                                                   batches=6, ranks=ranks))["loss"] for ranks in (1, 2, 3)]
            for loss in losses[1:]:
                self.assertLess(abs(loss / losses[0] - 1), 1e-4, losses)


class Script(FinetuneTest):
    def script(self, name, part, *sets, batches):
        files = [f"data.{use}.{key}={self.data}/{part}-{use}-{kind}.idx" for use in ("training", "validation")
                 for key, kind in (("features", "images"), ("target", "labels"))]
        return launch(BUILD, EXAMPLE / f"{name}_torchscript.yaml", self.work.new_run(), [
            f"model={self.data}/net.pt", *files, f"searcher.max_length.batches={batches}", "min_validation_period.batches=0",
            *sets]).expect(0)

    def test_both_steps(self):
        python(EXAMPLE / "make_model.py", self.data / "net.pt")
        self.first = self.script("pretrain", "old", batches=60)
        self.assertGreater(self.validated(self.first)["accuracy"], 0.7)
        start = f"initial_weights.file={self.first.run_dir}"
        frozen = self.script("finetune", "new", start, batches=100)
        self.assertTrue(self.same_trunk(frozen))
        self.assertGreater(self.validated(frozen)["accuracy"], 0.5)
        slow = self.script("finetune", "new", start, 'optimizer.trainable="*"', 'optimizer.groups=[{match: "trunk.*", lr: 0.001}]',
                           batches=100)
        self.assertFalse(self.same_trunk(slow))
        self.assertGreater(self.validated(slow)["accuracy"], 0.5)

    def test_a_trunk_of_the_program(self):
        python(EXAMPLE / "make_model.py", self.data / "net.pt")
        self.assertTrue(self.same_trunk(self.script("finetune", "new", f"initial_weights.file={self.first.run_dir}", batches=2)))


if __name__ == "__main__":
    main("finetune")
