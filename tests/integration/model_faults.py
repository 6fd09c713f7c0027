"""Models and trials that do what would quietly give other weights: what is said, or that the weights are right all the
same.

    model_faults.py BIN_FOLDER [TestClass[.test] ...]
"""
import csv
import json
import unittest

import numpy
import torch
from torch import nn

import parity_model
from harness import BUILD, Workplace, launch, main, run, write_experiment
from torchscript_models import experiment as script_experiment, save_script

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}


class Faults(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("model-faults")
        self.addCleanup(self.work.remove)

    def train(self, fault, code=0, steps=8, ranks=2, optimizer=SGD, sharded="auto", validate=False, weights=None,
              hyperparameters=(), optimizations=(), dumps=True, **sections):
        folder = self.work.new_run()
        folder.mkdir()
        batch_norm = dict(hyperparameters).get("batch_norm", False)
        parity_model.save(weights or parity_model.initial_weights("float32", batch_norm=batch_norm),
                          folder / "initial.safetensors")
        parity_model.save(parity_model.make_batches("float32", steps, ranks, 8), folder / "batches.safetensors")
        sections.setdefault("searcher", {"max_length": {"epochs": 1}})
        file = write_experiment(
            folder / "experiment.yaml", name="faults", entrypoint=BUILD.program("parity_trial"),
            hyperparameters={"global_batch_size": 8 * ranks, "dtype": "float32", "optimizer": optimizer, "fault": fault,
                             **dict(hyperparameters)},
            resources={"slots_per_trial": ranks}, optimizations={"sharded_optimizer": sharded, **dict(optimizations)},
            data={"file": "batches.safetensors", "dump": ".", "validate": validate},
            initial_weights="initial.safetensors", **sections)
        result = launch(BUILD, file, folder / "run").expect(code)
        every = [parity_model.load(folder / f"rank-{rank}.safetensors") for rank in range(ranks)] if code == 0 and dumps else []
        return result, every

    def expect_alike(self, every):
        for name, tensor in every[0].items():
            for other in every[1:]:
                self.assertTrue(torch.equal(tensor, other[name]), f"{name} differs between the ranks")

    def expect_same(self, got, expected):
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(tensor, got[name]), name)

    def test_weights_of_losses(self):
        for fault, message in (("weighs_on_one_rank", "without one for 1 of them"),
                               ("negative_weight", "context.backward() was given the weight -")):
            result, _ = self.train(fault, code=1, hyperparameters={"weighs": True})
            self.assertIn(message, result.output)

    def test_weights_of_losses_in_bf16(self):
        """All batches have the same weight, so that it makes no difference but by rounding."""
        weights = [parity_model.load(self.train("", ranks=1, optimizations={"mixed_precision": "bf16"}, dumps=False,
                                                hyperparameters={"weighs": weighs})[0].weights_file)
                   for weighs in (False, True)]
        difference, name = parity_model.worst_difference(*weights)
        self.assertLess(difference, 0.01, name)

    def test_parameter_groups(self):
        result, _ = self.train("", code=1, hyperparameters={"groups": [{"match": "encoder.*"}]})
        self.assertIn("parameter group encoder.* includes no parameter; the model has ", result.output)

    def test_gradients_changed_after_backward(self):
        for ranks, sharded in ((1, "auto"), (2, False), (2, True)):
            result, _ = self.train("clip", code=1, ranks=ranks, sharded=sharded)
            self.assertIn("after context.backward()", result.output)
            self.assertIn("context.clip_gradient_norm()", result.output)
        _, plain = self.train("")
        _, looked = self.train("look")
        self.expect_same(looked[0], plain[0])

    def test_parameters_out_of_the_flat_memory(self):
        result, _ = self.train("set_data", code=1)
        self.assertIn("parameter 'fc1.weight' no longer lies where training updates it", result.output)

    def test_unfrozen_parameters(self):
        result, _ = self.train("unfreeze", code=1)
        self.assertIn("parameter 'frozen' was frozen when training began", result.output)

    def test_a_transposed_parameter_on_one_rank(self):
        result, _ = self.train("transposed", code=1)
        self.assertIn("rank 1 has parameter 'fc1.weight' Float [32, 256] with strides [1, 32]", result.output)

    def test_a_hook_of_the_user_runs_too(self):
        _, plain = self.train("", optimizer={"kind": "sgd", "lr": 0.05})
        _, hooked = self.train("halving_hook", optimizer={"kind": "sgd", "lr": 0.1})
        self.expect_same(hooked[0], plain[0])

    def test_a_frozen_batch_norm_keeps_its_statistics(self):
        result, every = self.train("frozen_norm", validate=True, hyperparameters={"batch_norm": True},
                                   min_validation_period={"batches": 2}, perform_initial_validation=True)
        initial = parity_model.initial_weights("float32", batch_norm=True)
        for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
            self.assertTrue(torch.equal(every[0][name], initial[name]), name)
        self.assertEqual(len(result.metrics("validation")), 5)
        _, free = self.train("", hyperparameters={"batch_norm": True})
        self.assertEqual(free[0]["norm.num_batches_tracked"], 8)

    def test_a_model_that_writes_its_parameters(self):
        said = "the model writes its parameter 'fc1.weight' itself"
        _, replicated = self.train("clamp", steps=50, ranks=3, sharded=False)
        self.expect_alike(replicated)
        for fault in ("clamp", "clamp_data"):
            result, every = self.train(fault, steps=50, ranks=3)
            self.assertEqual(result.output.count(said), 1, result.output)
            self.assertIn("updates stay replicated", result.output)
            self.assertEqual(result.json("plan.json")["strategy"]["strategy"], "replicated")
            self.expect_alike(every)
            self.expect_same(every[0], replicated[0])
            refused, _ = self.train(fault, code=1, ranks=2, sharded=True)
            self.assertIn(said, refused.output)
            self.assertIn("sharded_optimizer: false", refused.output)

    def test_a_model_that_begins_late_to_write_its_parameters(self):
        """By then the ranks share one copy of them, and have read what one of them wrote: the run cannot go on."""
        refused, _ = self.train("clamp_late", code=1, steps=50, ranks=2, sharded=True)
        self.assertIn("the model writes its parameter 'fc1.weight' itself", refused.output)
        self.assertIn("sharded_optimizer: false", refused.output)
        steps = [line for line in refused.lines("profile/rank-0000.jsonl") if line["record"] == "step"]
        self.assertIn(len(steps), (40, 41))  # not at the start

    def test_a_model_that_writes_other_values_on_other_ranks(self):
        for sharded in (False, "auto"):
            result, every = self.train("clamp_by_rank", ranks=3, sharded=sharded)
            self.assertEqual(result.output.count("other values on other ranks: rank 0's count"), 1, result.output)
            self.expect_alike(every)

    def test_a_loss_that_is_not_finite(self):
        result, _ = self.train("nan_loss", validate=True, scheduling_unit=2)
        self.assertEqual(result.output.count("the loss is nan in batch 3 on rank 1"), 2, result.output)  # log, summary
        account = result.json("plan.json")["non_finite"]
        self.assertEqual(account["first_batch"], 3)
        self.assertEqual(account["batches"], 6)  # the weights are none from there on, and so is every loss
        losses = [line["metrics"]["loss"] for line in result.metrics("training")]
        self.assertTrue(isinstance(losses[0], float) and losses[1:] == ["nan"] * 3, losses)
        self.assertEqual(result.metrics("validation")[-1]["metrics"]["loss"], "nan")
        self.assertIn("loss nan", result.output)
        self.assertEqual(len(result.events("non_finite")), 1)
        summary = json.loads(run([BUILD.program("dtrain"), "summary", "--json", str(result.run_dir)], "").expect(0).output)
        self.assertEqual(summary["validation"]["loss"], "nan")
        self.assertEqual(summary["non_finite"]["batches"], 6)
        tables = result.run_dir.parent / "tables"
        run([BUILD.program("dtrain"), "export", str(result.run_dir), "--format", "csv", "-o", str(tables)], "").expect(0)
        rows = list(csv.DictReader((tables / "metrics.csv").read_text().splitlines()))
        self.assertEqual([row["value"] for row in rows if row["kind"] == "training"][1:], ["nan"] * 3)

        stopped, _ = self.train("nan_loss", code=1, on_non_finite="stop")
        self.assertIn("the loss is nan in batch 3", stopped.output)
        self.assertFalse(stopped.weights_file.exists())

        diverging = {"kind": "sgd", "lr": 1e30}
        for clip, code, mode in ((0, 0, "warn"), (0, 1, "stop"), (1e30, 1, "stop")):
            result, _ = self.train("", code=code, optimizer=diverging, hyperparameters={"clip": clip}, on_non_finite=mode)
            self.assertRegex(result.output, "(the loss|the gradients' norm) is (nan|inf) in batch [2345]")

    def test_a_gradient_that_is_not_finite(self):
        """The loss is, until the weights have it."""
        result, _ = self.train("nan_gradient", hyperparameters={"clip": 1, "fault_batch": 3})
        self.assertIn("the gradients' norm is nan in batch 3", result.output)
        self.assertEqual(result.json("plan.json")["non_finite"]["batches"], 6)
        result, _ = self.train("nan_gradient", code=1, hyperparameters={"clip": 1, "fault_batch": 3}, on_non_finite="stop")
        self.assertIn("the gradients' norm is nan in batch 3", result.output)
        result, _ = self.train("nan_gradient", hyperparameters={"fault_batch": 3})
        self.assertIn("the loss is nan in batch 4 on 2 ranks", result.output)
        result, _ = self.train("nan_gradient", hyperparameters={"fault_batch": 8})
        self.assertRegex(result.output, "parameter '[a-z0-9_.]+' holds nan after batch 8")
        result, _ = self.train("nan_gradient", code=1, hyperparameters={"fault_batch": 8}, on_non_finite="stop")
        self.assertFalse(result.weights_file.exists())

    def test_nan_is_never_the_best(self):
        result, _ = self.train("nan_validation", validate=True, min_validation_period={"batches": 4},
                               searcher={"metric": "loss", "max_length": {"epochs": 1}})
        lines = result.metrics("validation")
        self.assertEqual([line["best"] for line in lines], [False, True])
        self.assertEqual(lines[0]["metrics"]["loss"], "nan")

    def test_the_logged_learning_rate_is_the_one_used(self):
        result, _ = self.train("", scheduling_unit=1, hyperparameters={"lr_step_size": 3, "lr_gamma": 0.1})
        rates = [line["learning_rate"] for line in result.metrics("training")]
        for batch, rate in enumerate(rates):
            self.assertAlmostEqual(rate, 0.05 * 0.1 ** (batch // 3), places=12)

    def test_the_norm_of_clipped_gradients_is_logged(self):
        result, _ = self.train("", scheduling_unit=1)
        self.assertFalse(any("gradient_norm" in line for line in result.metrics("training")), "nothing is clipped")
        result, _ = self.train("", scheduling_unit=1, hyperparameters={"clip": 1e9})
        norms = [line["gradient_norm"] for line in result.metrics("training")]
        self.assertEqual(len(norms), 8)
        self.assertTrue(all(norm > 0 for norm in norms), norms)
        result, _ = self.train("", scheduling_unit=1, hyperparameters={"clip": 1e-3})
        clipped = [line["gradient_norm"] for line in result.metrics("training")]
        self.assertEqual(clipped[0], norms[0], "before clipping")
        result, _ = self.train("nan_gradient", scheduling_unit=1, hyperparameters={"clip": 1, "fault_batch": 8})
        self.assertEqual(result.metrics("training")[-1]["gradient_norm"], "nan")

    def test_every_phase_is_recorded(self):
        """Each has its time where it happens: a scope that is removed leaves it at zero."""
        result, _ = self.train("", validate=True, scheduling_unit=2)
        steps = [line for line in result.lines("profile/rank-0000.jsonl") if line["record"] == "step"]
        self.assertEqual(len(steps), 8)
        for phase in ("dataloader_next", "to_device", "train_batch.forward", "train_batch.backward", "allreduce_wait",
                      "optimizer_step", "step_lr_schedulers"):
            for step in steps:
                self.assertGreater(step["phases"].get(phase, 0), 0, f"{phase} in {step}")
        for phase in ("from_device", "reduce_metrics"):
            for step in steps:
                self.assertEqual(step["phases"].get(phase, 0) > 0, step["batch"] % 2 == 0, f"{phase} in {step}")


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, max_norm=1.0)
        self.out = nn.Linear(8, 20)

    def forward(self, tokens):
        return self.out(self.embedding(tokens))


class Modal(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout()
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(self.dropout(self.norm(self.fc1(x))))


class Scripts(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.work = Workplace("model-faults")
        self.folder = self.work.path
        self.addCleanup(self.work.remove)

    def launched(self, sections, code):
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        return launch(BUILD, file, self.work.new_run()).expect(code)

    def test_an_embedding_that_bounds_its_own_norms(self):
        # Traced: scripting leaves the bound out, without a word.
        torch.jit.trace(Bounded(), torch.zeros(8, 5, dtype=torch.int64)).save(self.folder / "model.pt")
        (numpy.arange(48 * 5 + 1) * 7 % 20).astype(numpy.uint16).tofile(self.folder / "tokens.bin")
        data = {"format": "tokens", "token_type": "uint16", "sequence_length": 5, "training": {"file": "tokens.bin"}}
        said = "the model writes its parameter 'embedding.weight' itself"
        result = self.launched(script_experiment("model.pt", data, steps=40, slots=2), 0)
        self.assertEqual(result.output.count(said + ": updates stay replicated"), 1, result.output)
        result = self.launched(script_experiment("model.pt", data, steps=40, slots=2,
                                                 optimizations={"sharded_optimizer": True}), 1)
        self.assertIn(said, result.output)

    def test_a_model_traced_in_training_mode(self):
        numpy.save(self.folder / "x.npy", numpy.random.default_rng(0).normal(size=(32, 8)).astype(numpy.float32))
        numpy.save(self.folder / "y.npy", numpy.arange(32) % 4)
        data = {"format": "npy", "training": {"features": "x.npy", "target": "y.npy"}}
        traced = torch.jit.trace(Modal().train(), torch.randn(4, 8), check_trace=False)
        traced.save(self.folder / "model.pt")
        said = "does batch_norm and dropout in training mode during validation too"
        self.assertEqual(self.launched(script_experiment("model.pt", data), 0).output.count(said), 1)
        save_script(Modal(), self.folder / "model.pt")
        self.assertNotIn("in training mode", self.launched(script_experiment("model.pt", data), 0).output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(warnings="ignore")  # torch.jit calls itself deprecated
