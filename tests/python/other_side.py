"""A checkpoint trained in Python goes on as a `model:` experiment in C++, and the other way round, with the bits of a run
without a break: parameters, buffers, optimizer state, in the middle of an epoch.

    other_side.py BIN_FOLDER
"""
import json
from pathlib import Path

import forked
import numpy
import other_side_models as models
import torch

import harness

HERE = Path(__file__).resolve().parent
SAMPLES, BATCH = 96, 16  # six batches an epoch
BREAK, END = 8, 14  # in the second epoch, and in the third
OPTIMIZERS = {"mlp": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.01},
              "cnn": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}}
SCHEDULE = {"lr_schedule": {"kind": "step", "step_size": 3, "gamma": 0.5}}
SIDES = ("other_side_script.py", "other_side_trial.py:OtherSide")


def write_model(net, path):
    model = models.make(net).train()
    if path.suffix == ".pt2":
        batch = torch.export.Dim("batch", min=2, max=64)
        torch.export.save(torch.export.export(model, (torch.rand(4, 1, 8, 8),), dynamic_shapes=({0: batch},)), path)
    else:
        torch.jit.script(model).save(path)


def write_data(folder):
    numbers = numpy.random.default_rng(1)
    labels = numbers.integers(0, 10, SAMPLES)
    images = numbers.integers(0, 100, (SAMPLES, 8, 8))
    images[numpy.arange(SAMPLES), labels % 8] += 100
    for name, array in (("images", images), ("labels", labels)):
        header = bytes([0, 0, 8, array.ndim]) + numpy.array(array.shape, ">u4").tobytes()
        (folder / name).write_bytes(header + array.astype(numpy.uint8).tobytes())


class OtherSide(harness.WorkplaceTest):
    @classmethod
    def setUpClass(cls):
        """Exporting takes longer than a run."""
        cls.inputs = harness.Workplace("OtherSideInputs")
        cls.addClassCleanup(cls.inputs.remove)
        cls.folder = cls.inputs.path
        write_data(cls.folder)
        for net, ending in (("mlp", "pt2"), ("cnn", "pt")):
            forked.in_a_fork(write_model, net, cls.folder / f"{net}.{ending}")

    def files(self):
        return {"features": str(self.folder / "images"), "target": str(self.folder / "labels")}

    def common(self, batches, start, more):
        sections = {"searcher": {"max_length": {"batches": batches}}, "resources": {"slots_per_trial": 2},
                    "reproducibility": {"experiment_seed": 3}, **more}
        if start:
            sections["initial_weights"] = {"file": str(start.run_dir), "training_state": True}
        return sections

    def python(self, side, net, batches, start=None, schedule=False, **more):
        folder = self.work.new_run()
        folder.mkdir()
        experiment = harness.write_experiment(
            folder / "python.yaml", name="python", entrypoint=str(HERE / side),
            hyperparameters={"global_batch_size": BATCH, "net": net, "schedule": schedule, **self.files()},
            **self.common(batches, start, more))
        return forked.run(str(HERE / side), folder, experiment, 2)

    def model(self, net, batches, start=None, schedule=False, **more):
        run_dir = self.work.new_run()
        (file,) = self.folder.glob(f"{net}.pt*")
        experiment = harness.write_experiment(
            run_dir.with_suffix(".yaml"), name="model", model=str(file), loss="cross_entropy",
            data={"format": "idx", "training": self.files()}, hyperparameters={"global_batch_size": BATCH},
            **{"optimizer": OPTIMIZERS[net] | (SCHEDULE if schedule else {}), **self.common(batches, start, more)})
        return harness.launch(harness.BUILD, experiment, run_dir)

    def check_same(self, result, whole):
        """All that the last checkpoints hold of model and optimizer."""
        ours, theirs = (one.expect(0).run_dir / "checkpoints" / f"step-{END}" for one in (result, whole))
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes(), name)
        numbers = [json.loads((one / "state.json").read_text()) for one in (ours, theirs)]
        for name, value in numbers[1].items():
            if name.startswith(("step/optimizer/", "batches", "epoch")):
                self.assertEqual(numbers[0][name], value, name)
        self.assertEqual(result.weights_file.read_bytes(), whole.weights_file.read_bytes())

    def test_there_and_back(self):
        for net, side in zip(OPTIMIZERS, SIDES):
            with self.subTest(net=net, side=side):
                whole = self.model(net, END)
                self.check_same(self.python(side, net, END), whole)  # both sides compute the same
                of_python, of_model = self.python(side, net, BREAK).expect(0), self.model(net, BREAK).expect(0)
                self.check_same(self.model(net, END, of_python), whole)
                self.check_same(self.python(side, net, END, of_model), whole)
                on_this_side = self.python(side, net, END, of_python)
                self.check_same(on_this_side, whole)
                self.assertEqual([event["step"] for event in on_this_side.events("began_from")], [BREAK])
                self.assertEqual(min(line["batch"] for line in on_this_side.metrics("training")), END)

    def test_schedules(self):
        whole = self.model("mlp", END, schedule=True)
        of_model = self.model("mlp", BREAK, schedule=True)
        # A Trial's schedulers are stepped to where the checkpoint is; a script's begin anew, with a warning.
        self.check_same(self.python(SIDES[1], "mlp", END, of_model, schedule=True), whole)
        script = self.python(SIDES[0], "mlp", END, of_model, schedule=True).expect(0)
        self.assertIn("the schedulers of the script begin anew", script.output)
        of_script = self.python(SIDES[0], "mlp", BREAK, schedule=True)
        again = self.model("mlp", END, of_script, schedule=True)
        self.check_same(again, whole)
        self.assertIn("the checkpoint is of a script in Python, this run of a model's file", again.output)
        self.check_same(self.python(SIDES[0], "mlp", END, of_script, schedule=True), whole)

    def test_other_schedulers(self):
        for side, cosine in ((SIDES[0], "of the script begin anew"), (SIDES[1], "of this run are stepped to where it begins")):
            with self.subTest(side=side):
                first = self.python(side, "mlp", BREAK, schedule="step").expect(0)
                other = self.python(side, "mlp", END, first, schedule="cosine").expect(0)
                self.assertIn("the checkpoint has the state of StepLR, and this run has CosineAnnealingLR: those " + cosine,
                              other.output)

    def test_schedules_after_aggregated_batches(self):
        first = self.model("mlp", BREAK, schedule=True, optimizations={"aggregation_frequency": 2}).expect(0)
        # Four optimizer steps: a Trial's schedulers are stepped to there, not to batch 8.
        self.check_same(self.python(SIDES[1], "mlp", END, first, schedule=True),
                        self.model("mlp", END, first, schedule=True))

    def test_an_optimizer_that_steps_by_itself(self):
        first, whole = (self.python(SIDES[0], "nadam", batches).expect(0) for batches in (BREAK, END))
        self.check_same(self.python(SIDES[0], "nadam", END, first), whole)
        of_trial = self.python(SIDES[1], "nadam", BREAK).expect(0)
        for side, start in ((SIDES[1], first), (SIDES[0], of_trial)):
            with self.subTest(side=side):
                refused = self.python(side, "nadam", END, start).expect(1)
                self.assertIn("the checkpoint does not have the state of NAdam", refused.output)

    def test_what_does_not_go_over(self):
        first = self.model("mlp", BREAK).expect(0)
        for short in (self.model("mlp", BREAK, first), self.python(SIDES[0], "mlp", BREAK, first)):
            self.assertIn(f"searcher.max_length is {BREAK} batches, and in the checkpoint", short.expect(1).output)
        refused = self.python(SIDES[1], "cnn", END, first)
        self.assertIn("does not fit the model", refused.expect(1).output)
        adam = self.model("mlp", END, first, optimizer={"kind": "rmsprop", "lr": 0.1})
        self.assertIn("it has no 'step/optimizer/square_avg", adam.expect(1).output)
        weights = self.model("mlp", END, **{"initial_weights": {"file": str(first.weights_file), "training_state": True}})
        self.assertIn("initial_weights.training_state: true needs a checkpoint", weights.expect(1).output)


if __name__ == "__main__":
    forked.main()
