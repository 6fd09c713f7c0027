"""Lightning's Trainer with dtrain's strategy, against the same Trainer in one process without dtrain.

    lightning_strategy.py BIN_FOLDER [Parity|Own|Again|Callbacks|Runs|Mistakes]

The modules, the loaders and their batches are the same. No number of ranks but 1 divides the last batch of an epoch.
"""
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import forked
import harness
import package
import torch

if importlib.util.find_spec("lightning") is None:
    sys.exit("lightning is missing: scripts/setup.sh test installs it")
import lightning.pytorch  # noqa: F401  # once, and not in every fork
import torchmetrics.classification  # noqa: F401

SCRIPT = str(Path(__file__).resolve().parent / "lightning_script.py")


def plain(folder, options):
    (folder / "options.json").write_text(json.dumps({"plain": True, **options}))
    os.chdir(folder)
    sys.argv = [SCRIPT]
    runpy.run_path(SCRIPT, run_name="__main__")


class LightningTest(harness.WorkplaceTest):
    def folder(self, options):
        folder = self.work.new_run()
        folder.mkdir()
        options = {"out": str(folder / "out.pt"), **options}
        if options.get("checkpoints"):
            options["checkpoints"] = str(folder / "checkpoints")
        (folder / "options.json").write_text(json.dumps(options))
        return folder, options

    def plain(self, **options):
        folder, options = self.folder(options)
        forked.in_a_fork(plain, folder, options)
        return torch.load(folder / "out.pt"), folder

    def start_on(self, ranks, length=None, **options):
        folder, options = self.folder(options)
        experiment = harness.write_experiment(
            folder / "lightning.yaml", name="lightning", entrypoint="lightning_script.py",
            hyperparameters={"global_batch_size": options.get("batch", 24)}, resources={"slots_per_trial": ranks},
            searcher={"max_length": length or {"epochs": 100}}, **options.get("sections", {}))
        sys.argv = [SCRIPT]
        return forked.start(SCRIPT, folder, experiment, ranks), folder

    def run_on(self, ranks, code=0, **options):
        processes, folder = self.start_on(ranks, **options)
        result = forked.finish(processes, folder).expect(code)
        return result, torch.load(folder / "out.pt") if code == 0 else None, folder

    def compare(self, ranks, expected=None, **options):
        expected = expected or self.plain(**options)[0]
        for number in ranks:
            with self.subTest(ranks=number, **options):
                _, actual, _ = self.run_on(number, **options)
                self.same(expected, actual, number)
        return expected

    def same(self, expected, actual, ranks):
        self.assertEqual(actual["world_size"], ranks)
        for name, weights in expected["weights"].items():
            limit = 1e-10 if weights.dtype == torch.float64 else 1e-6
            self.assertLess((actual["weights"][name] - weights).abs().max().item(), limit, name)
        for what in ("steps", "epochs", "epoch_ends", "lr"):
            self.assertEqual(actual[what], expected[what], what)
        self.assertEqual(actual["metrics"].keys(), expected["metrics"].keys())
        for name, value in expected["metrics"].items():
            if name != "train_loss_step":  # of unlike parts Lightning takes the plain mean
                self.assertAlmostEqual(actual["metrics"][name], value, 5, name)


class Parity(LightningTest):
    def test_mlp_and_cnn(self):
        self.compare((1, 2, 3), samples=250)
        self.compare((1, 2, 3), samples=250, model="cnn", optimizer="sgd")

    def test_schedulers(self):
        self.compare((1, 2, 3), scheduler="step", samples=250)
        plateau = self.compare((2,), scheduler="plateau", optimizer="sgd", epochs=4)
        self.assertLess(plateau["lr"], 0.1)

    def test_accumulation(self):
        done = self.compare((1, 2, 3), trainer={"accumulate_grad_batches": 2}, samples=250, scheduler="step")
        self.assertEqual(done["steps"], 12)

    def test_clipping(self):
        free = self.plain(optimizer="sgd")[0]
        for trainer in ({"gradient_clip_val": 0.05}, {"gradient_clip_val": 0.001, "gradient_clip_algorithm": "value"}):
            clipped = self.compare((1, 2, 3), trainer=trainer, optimizer="sgd")
            name = "net.1.bias"
            self.assertGreater((clipped["weights"][name] - free["weights"][name]).abs().max().item(), 1e-3)

    def test_an_optimizer_that_steps_by_itself(self):
        self.compare((1, 2), optimizer="nadam")
        self.compare((1, 2, 3), model="branches", samples=250)

    def test_the_seed_of_lightning_is_that_of_the_weights(self):
        self.compare((2,), model="seeded", seed=11)

    def test_batches_without_a_loss(self):
        self.compare((1,), model="skips")
        self.compare((1, 3), model="skips_backward")


class Own(LightningTest):
    """Optimizers that step by themselves: lightning_modules.py."""

    def test_several_optimizers(self):
        for kind in ("toggled", "plain", "critic"):
            done = self.compare((1, 2, 3), model=f"gan {kind}", samples=250)
        self.assertEqual(done["steps"], 22 + 6)
        self.compare((2, 3), model="gan plain", trainer={"precision": "64-true"})

    def test_a_module_that_steps_when_it_likes(self):
        self.compare((1, 3), model="steps", samples=250)
        self.compare((1, 3), model="closes", samples=250)

    def test_accumulation_and_clipping_of_a_script(self):
        self.compare((1, 2, 3), model="accumulates", samples=250)
        self.compare((1, 2, 3), model="clips", samples=250, trainer={"accumulate_grad_batches": 2})

    def test_ranks_call_backward_equally_often(self):
        self.compare((1, 2), model="unequal 0", epochs=1)  # all parameters are frozen for the last batch
        for difference, batches in ((1, 240), (-1, 240), (1, 120)):  # 120: it is the last batch
            with self.subTest(difference=difference, batches=batches):
                result, _, _ = self.run_on(2, code=1, model=f"unequal {difference}", epochs=1, samples=batches)
                self.assertIn("every rank has to call backward() equally often", result.output)

    def test_fine_tuning(self):
        self.compare((1, 2, 3), model="fine_tunes", epochs=3, samples=250, trainer={"gradient_clip_val": 0.5})

    def test_checkpoints_go_on(self):
        options = {"model": "gan toggled", "checkpoints": True}
        whole = self.plain(epochs=4, **options)[0]
        last = str(self.run_on(2, **options)[2] / "checkpoints" / "last.ckpt")
        gone_on = self.run_on(3, epochs=4, resume=last, **options)[1]
        self.same(whole, gone_on, 3)


class Again(LightningTest):
    """More than one fit() in a process."""

    def test_the_same_module_goes_on(self):
        self.compare((1, 2, 3), again=["same", "same"], samples=250, optimizer="sgd", trainer={"gradient_clip_val": 0.05})
        self.compare((2,), again=["same"], model="gan toggled", samples=250)

    def test_another_module(self):
        self.compare((1, 3), again=["new"], model="branches", samples=250, scheduler="step")
        self.compare((1, 2), again=["resumed"], samples=250, epochs_again=4, optimizer="adamw")
        self.compare((1, 2), again=["new"], first="mlp", model="sums", samples=250, trainer={"accumulate_grad_batches": 2,
                                                                                         "gradient_clip_val": 0.5})
        self.compare((2,), again=["new", "same"], model="fine_tunes", epochs=3, trainer={"accumulate_grad_batches": 2})

    def test_ranks_call_backward_equally_often(self):
        self.compare((1, 2), again=["unequal 0"], model="accumulates", epochs=1)
        for difference, samples in ((1, 240), (-1, 240), (1, 120)):  # 120: it is the last batch
            with self.subTest(difference=difference, samples=samples):
                result, _, _ = self.run_on(2, code=1, model="accumulates", again=[f"unequal {difference}"],
                                            samples=samples, epochs=1)
                self.assertIn("every rank has to call backward() equally often", result.output)


class Callbacks(LightningTest):
    def test_hooks_come_in_lightnings_order(self):
        expected = self.plain(hooks=True)[0]
        self.assertIn("train_dataloader", expected["hooks"])
        self.assertEqual(self.run_on(1, hooks=True)[1]["hooks"], expected["hooks"])

    def test_loaders_that_are_made_anew(self):
        self.compare((3,), hooks=True, samples=250, trainer={"reload_dataloaders_every_n_epochs": 1})

    def test_the_learning_rate_finder(self):
        done = self.compare((1,), finds_rate=True, samples=250)
        self.assertNotEqual(done["lr"], 1e-2)
        self.assertNotEqual(self.run_on(2, finds_rate=True)[1]["lr"], 1e-2)

    def test_nothing_to_train_on(self):
        self.compare((2,), trainer={"limit_train_batches": 0})

    def test_early_stopping_and_test(self):
        done = self.compare((1, 2, 3), early_stopping=True, epochs=6, test=True, checkpoints=True)
        self.assertEqual(done["epochs"], 2)

    def test_checkpoints_are_those_of_lightning_and_go_on(self):
        expected, folder = self.plain(checkpoints=True, scheduler="lambda")
        _, actual, ours = self.run_on(2, checkpoints=True, scheduler="lambda")
        self.same(expected, actual, 2)
        for name in ("best.ckpt", "last.ckpt"):
            theirs = torch.load(folder / "checkpoints" / name, weights_only=False)
            mine = torch.load(ours / "checkpoints" / name, weights_only=False)
            for key, value in theirs["state_dict"].items():
                self.assertLess((mine["state_dict"][key] - value).abs().max().item(), 1e-6, key)
            self.assertEqual(mine["global_step"], theirs["global_step"])
            states = theirs["optimizer_states"][0]["state"]
            self.assertEqual(mine["optimizer_states"][0]["state"].keys(), states.keys())
            for index, state in states.items():
                for key, value in state.items():
                    ours_of = mine["optimizer_states"][0]["state"][index][key]
                    self.assertLess((ours_of - value).abs().max().item(), 1e-6, key)
        whole = self.plain(epochs=4, checkpoints=True, scheduler="lambda")[0]
        for start in (folder, ours):  # from a checkpoint of one process, and from one of two ranks
            last = str(start / "checkpoints" / "last.ckpt")
            for ranks in (2, 3):
                _, gone_on, _ = self.run_on(ranks, epochs=4, scheduler="lambda", resume=last)
                for name, weights in whole["weights"].items():
                    self.assertLess((gone_on["weights"][name] - weights).abs().max().item(), 1e-6, name)


class Runs(LightningTest):
    def test_the_run_has_the_shorter_length(self):
        self.assertEqual(self.run_on(2, length={"epochs": 1}, epochs=3)[1]["steps"], 10)
        self.assertEqual(self.run_on(2, length={"batches": 13}, epochs=3)[1]["steps"], 13)

    def test_the_run_has_metrics_and_weights(self):
        result, done, _ = self.run_on(2)
        validations = result.metrics("validation")
        self.assertEqual([line["batch"] for line in validations], [10, 20])
        self.assertEqual(set(validations[-1]["metrics"]), {"val_loss", "val_accuracy"})
        self.assertAlmostEqual(validations[-1]["metrics"]["val_loss"], done["metrics"]["val_loss"], 6)
        self.assertTrue(result.weights_file.is_file())

    def test_batches_smaller_than_the_ranks_are_left_out(self):
        self.same(self.plain(samples=240)[0], self.run_on(3, samples=242)[1], 3)

    def dtrain_run(self, **options):
        folder, options = self.folder(options)
        return folder, [harness.BUILD.program("dtrain"), "run", "--slots", "2", "--run-dir", str(folder / "run"), SCRIPT,
                        json.dumps(options)]

    def test_dtrain_run(self):
        expected = self.plain()[0]
        folder, command = self.dtrain_run()
        harness.run(command, folder / "run", **package.of(harness.BUILD)).expect(0)
        self.same(expected, torch.load(folder / "out.pt"), 2)

    def test_a_fault_at_the_end_fails_the_run_under_torchrun_too(self):
        folder, options = self.folder({"model": "unequal 1", "epochs": 1, "samples": 120})
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run([*torchrun, SCRIPT, json.dumps(options)], cwd=folder, env=harness.environment(**package.of(harness.BUILD)),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("every rank has to call backward() equally often", done.stdout)

    def test_a_signal_ends_all_ranks_at_one_batch(self):
        folder, command = self.dtrain_run(epochs=100000)
        metrics = folder / "run" / "metrics.jsonl"
        with open(folder / "output", "w") as output:
            process = subprocess.Popen(command, env=harness.environment(**package.of(harness.BUILD)), stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT)
        try:
            harness.wait_until(lambda: process.poll() is not None or metrics.is_file() and metrics.read_text(), "a batch")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(harness.DEADLINE), 75, (folder / "output").read_text())
        finally:
            process.kill()
            process.wait()

    def test_a_signal_ends_all_ranks_in_a_later_fit(self):
        ranks, folder = self.start_on(2, length={"epochs": 200000}, again=["new"], epochs_again=100000)
        harness.wait_until(lambda: any(rank.exitcode is not None for rank in ranks) or (folder / "again").exists(), "a batch")
        for rank in ranks:  # as the launcher does
            os.kill(rank.pid, signal.SIGTERM)
        output = forked.finish(ranks, folder).output
        self.assertEqual([rank.exitcode for rank in ranks], [75, 75], output)


class Mistakes(LightningTest):
    def test_what_is_not_supported_is_said(self):
        for words, options in (("Trainer(sync_batchnorm=True) is not supported", {"trainer": {"sync_batchnorm": True}}),
                               ("Trainer(precision='16-true') is not supported", {"trainer": {"precision": "16-true"}}),
                               ("use Trainer(accumulate_grad_batches", {"sections": {
                                   "optimizations": {"aggregation_frequency": 2}}}),
                               ("training_step(dataloader_iter) is not supported", {"model": "takes_batches"})):
            with self.subTest(words):
                self.assertIn(words, self.run_on(1, code=1, **options)[0].output)


if __name__ == "__main__":
    forked.main()
