"""What scripts and trials in Python do wrong, what is said of it, and what is no mistake.

    mistakes.py BIN_FOLDER [Scripts|Trials|Alone|Launched]
"""
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import forked
import numpy
import safetensors.numpy

import harness

HERE = Path(__file__).resolve().parent


class MistakeTest(harness.WorkplaceTest):
    def write(self, entrypoint, what, folder, **sections):
        folder.mkdir(exist_ok=True)
        return harness.write_experiment(
            folder / "mistakes.yaml", name="mistakes", entrypoint=str(HERE / entrypoint),
            hyperparameters={"global_batch_size": 8, "what": what},
            **{"resources": {"slots_per_trial": 2}, "searcher": {"max_length": {"epochs": 4}}, "scheduling_unit": 1, **sections})

    def start(self, entrypoint, what, **sections):
        folder = self.work.new_run()
        return forked.run(str(HERE / entrypoint), folder, self.write(entrypoint, what, folder, **sections), 2)

    def fails(self, entrypoint, what, *texts):
        with self.subTest(entrypoint=entrypoint, what=what):
            result = self.start(entrypoint, what)
            self.assertEqual(result.code, 1, result.output)
            for text in texts:
                self.assertIn(text, result.output)


class Scripts(MistakeTest):
    def test_mistakes(self):
        for what, text in (("init twice", "dtrain.init() was called twice"),
                           ("wrap twice", "session.wrap() was called twice"),
                           ("no wrap", "without a call of session.wrap()"),
                           ("lazy", "has no shape yet"),
                           ("cycled momentum", "cycle_momentum=False"),
                           ("batch size", "the loader has batches of 16, and hyperparameters.global_batch_size is 8"),
                           ("distributed sampler", "the loader has a DistributedSampler"),
                           ("model within ddp", "a model within DistributedDataParallel"),
                           ("model within data parallel", "a model within DataParallel"),
                           ("ddp around", "has put the model of session.wrap() into DistributedDataParallel"),
                           ("ddp around later", "has put the model of session.wrap() into DistributedDataParallel"),
                           ("expanded parameter", "the parameter '0.bias' of the model is an expanded tensor"),
                           ("expanded buffer", "the buffer 'mask' of the model is an expanded tensor"),
                           ("complex buffer", "register it with persistent=False"),
                           ("fully sharded", "'0.weight' of the model is a DTensor"),
                           ("nothing to train", "no parameter that requires a gradient"),
                           ("step twice", "optimizer.step() was called again without a backward()"),
                           ("rate of a rank", "the learning rates of batch 4 differ between ranks: [0.0,0.10"),
                           ("rate of a rank, nadam", "the learning rates of batch 4 differ between ranks: [0.10"),
                           ("batch left out by a rank",
                            "parts of different batches in step 2: batch 1 of pass 0 over the loader on rank 0 and batch 2 of pass 0"),
                           ("step left out by a rank", "dropped the gradients of this batch (zero_grad() after backward())"),
                           ("step left out", "`with session.no_sync()` around every loss.backward() but the last"),
                           ("clip", "session.wrap(..., clip_gradient_norm=...)"),
                           ("rank 0 leaves", "this rank has begun epoch 2 of the loader, and another one has not: end the loop over batches"),
                           ("mean after close", "session.close() was called before"),
                           ("backward twice", "backward through the graph a second time"),
                           ("growing buffer", "a buffer keeps its type and shape"),
                           ("keep without a state", "session.keep(averages=…): a list has no state_dict()"),
                           ("keep a set", "state/kept/seen/indices cannot be saved: it is of type set"),
                           ("keep late", "session.keep() was called after the first batch"),
                           ("load late", "optimizer.load_state_dict() was called after the first batch"),
                           ("load other settings", "param_groups have changed in more than lr"),
                           ("scaled loss", "GradScaler has scaled the loss"),
                           ("lbfgs", "LBFGS")):
            self.fails("mistakes_script.py", what, text)

    def test_a_compiled_model_keeps_its_memory_format(self):
        result = self.start("mistakes_script.py", "compiled", optimizations={"memory_format": "channels_last"}).expect(1)
        self.assertIn("optimizations.memory_format is channels_last, and a model of torch.compile()", result.output)

    def test_what_ranks_tell_each_other(self):
        result = self.start("mistakes_script.py", "collectives").expect(0)
        (metrics,) = (line["metrics"] for line in result.metrics("validation"))
        self.assertEqual(metrics, {"sum": 3, "min": 1, "untouched": 1, "of_rank_1": 11, "written": 1, "gathered": 1})

    def test_an_exception_is_shown_once_and_with_its_rank(self):
        result = self.start("mistakes_script.py", "exception").expect(1)
        self.assertIn("rank 1 failed", result.output)
        self.assertEqual(result.output.count("ValueError: the third batch is bad"), 1, result.output)

    def test_a_summed_loss_is_warned_of(self):
        for what, warnings in (("summed loss", 1), ("nothing", 0)):
            result = self.start("mistakes_script.py", what).expect(0)
            self.assertEqual(result.output.count('the loss is a sum over samples (CrossEntropyLoss(reduction="sum"))'), warnings,
                             result.output)

    def test_a_folder_that_is_removed_or_moved_loses_no_weights(self):
        weights = self.start("mistakes_script.py", "nothing").expect(0).weights_file.read_bytes()
        for what, became in (("folder removed", "was removed"), ("folder moved", "was moved to ")):
            with self.subTest(what=what):
                result = self.start("mistakes_script.py", what).expect(1)
                (final,) = result.run_dir.parent.glob("lost-run-*/checkpoints/final/model.safetensors")
                self.assertEqual(final.read_bytes(), weights)
                warned = result.output.index(f"the run's folder {result.run_dir} {became}")
                self.assertLess(warned, result.output.index("trained 16 batches"), result.output)
                self.assertIn(f"its final weights are in {final}", result.output)

    def test_what_is_no_mistake(self):
        for what, batches in (("nothing", 16), ("break", 8), ("custom sampler", 12), ("batch sampler", 16),
                              ("replaced buffer", 16), ("workers", 16), ("iterable", 16),
                              ("closure", 16), ("divided", 16), ("scheduled", 16), ("batch norm", 16)):
            with self.subTest(what=what):
                result = self.start("mistakes_script.py", what).expect(0)
                self.assertEqual(max(line["batch"] for line in result.metrics("training")), batches)
                self.assertNotIn("begin anew", result.output)
                if what == "batch sampler":
                    (metrics,) = (line["metrics"] for line in result.metrics("validation"))
                    self.assertEqual(metrics, {"complete": 1, "orders": 4, "told": 1})
                if what == "batch norm":
                    (metrics,) = (line["metrics"] for line in result.metrics("validation"))
                    self.assertEqual(metrics, {"alike": 1, "moved": 1})
                if what == "replaced buffer":
                    for file in (result.weights_file, result.run_dir / "checkpoints" / "step-16" / "model.safetensors"):
                        self.assertEqual(safetensors.numpy.load_file(file)["passes"].tolist(), [16])

    def test_evaluation_after_the_last_epoch(self):
        for sections in ({}, {"searcher": {"max_length": {"epochs": 3}}}):  # it also comes after a run that is over
            with self.subTest(**sections):
                result = self.start("mistakes_script.py", "evaluate", **sections).expect(0)
                (metrics,) = (line["metrics"] for line in result.metrics("validation"))
                self.assertAlmostEqual(metrics.pop("by_mean"), metrics.pop("of_all"), places=12)
                self.assertEqual(metrics, {"gathered": 1, "named": 1, "nan": "nan", "inf": "inf", "low": "-inf", "half": 0.5,
                                           "one": 1, "large": 2 ** 53, "false": 0})
                for text in (" nan nan", " inf inf", " low -inf"):
                    self.assertIn(text, result.output)  # the summary
                self.assertTrue(result.weights_file.is_file())

    def test_the_run_may_be_shorter_than_the_loop(self):
        result = self.start("mistakes_script.py", "nothing", searcher={"max_length": {"batches": 6}}).expect(0)
        self.assertEqual(max(line["batch"] for line in result.metrics("training")), 6)
        self.assertIn("trained 6 batches", result.output)


class Trials(MistakeTest):
    def test_a_checkpoint_that_one_rank_asks_for(self):
        result = self.start("mistakes_trial.py:Mistaken", "save", checkpoint_policy="none").expect(0)
        saved = [(event["step"], event["reason"]) for event in result.events("checkpoint_saved")]
        self.assertEqual([reason for _, reason in saved], ["period", "end"], saved)
        self.assertIn(saved[0][0], range(4, 9))

    def test_hooks_of_the_optimizer_are_called(self):
        result = self.start("mistakes_trial.py:Mistaken", "hooks").expect(0)
        calls = [(line["metrics"]["before"], line["metrics"]["after"]) for line in result.metrics("training")]
        self.assertEqual(calls, [(number, number) for number in range(16)])

    def test_mistakes(self):
        for what, text in (("lazy", "has no shape yet"), ("cycled momentum", "cycle_momentum=False"),
                           ("batch size", "training_loader() has batches of 16"),
                           ("learning loss", "SGD.param_groups[1]['params'][0] [3] is no parameter of the model")):
            self.fails("mistakes_trial.py:Mistaken", what, text)

    def test_an_exception_is_shown_once_and_with_its_rank(self):
        result = self.start("mistakes_trial.py:Mistaken", "exception").expect(1)
        self.assertIn("train_batch() failed in Python", result.output)
        self.assertEqual(result.output.count("ValueError: the third batch is bad"), 1, result.output)


    def test_exits(self):
        for code, text in ((1, "0"), (1, "1"), (3, "3"), (1, "'no more'")):
            with self.subTest(text=text):
                result = self.start("mistakes_trial.py:Mistaken", "exit " + text.strip("'")).expect(code)
                self.assertIn(f"train_batch() ended with sys.exit({text})", result.output)
                self.assertNotIn("Traceback", result.output)


class Alone(MistakeTest):
    """Scripts that no launcher of dtrain's has started: Python says how they end, and dtrain has to notice it."""

    @classmethod
    def setUpClass(cls):
        cls.warm = forked.WarmPython(**environment)
        cls.addClassCleanup(cls.warm.close)

    def python(self, what):
        return self.run_warm(self.script(what))

    @staticmethod
    def script(what):
        text = (HERE / "mistakes_script.py").read_text()
        return text.replace("dtrain.init()", f"dtrain.init(hyperparameters={{'what': {what!r}}})")

    def run_warm(self, script):
        folder = self.work.new_run()
        folder.mkdir()
        (folder / "alone.py").write_text(script)
        return self.warm.run(["alone.py"], folder, folder / "runs" / "0001-alone")

    def run_script(self, script, ranks=1, arrays=(), within="", moves=False):
        """Started in its own folder, or in the folder `within` that; or it moves there itself."""
        folder = self.work.new_run()
        (folder / within).mkdir(parents=True)
        (folder / "alone.py").write_text(f"import os\nos.chdir({within!r})\n{script}" if moves else script)
        start = folder if moves else folder / within
        for name, array in arrays:
            numpy.save(folder / name, array)
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        done = subprocess.run([sys.executable, *torchrun, os.path.relpath(folder / "alone.py", start)], cwd=start,
                              env=harness.environment(**environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=harness.DEADLINE)
        return harness.Result(done.returncode, done.stdout, folder / within / "runs" / "0001-alone")

    def test_exits(self):
        for what, code, batches in (("exit 0", 0, 3), ("exit 1", 1, 0), ("exit 3", 3, 0), ("exit no more", 1, 0),
                                    ("exit caught", 0, 16), ("exit caught by a function", 0, 16),
                                    ("exit caught by a generator", 0, 16), ("exit caught without its traceback", 0, 16),
                                    ("exit of a thread", 0, 16), ("exit raised again", 1, 0), ("exit of site", 3, 0),
                                    ("exit imported before", 3, 0)):
            with self.subTest(what=what):
                result = self.python(what).expect(code)
                self.assertEqual(result.weights_file.is_file(), code == 0, result.output)
                if code == 0:
                    self.assertEqual(max(line["batch"] for line in result.metrics("training")), batches)
                else:
                    self.assertIn("it ended with sys.exit(", result.output)
                if what == "exit no more":
                    self.assertIn("\nno more\n", result.output)

    def test_what_torch_distributed_would_do(self):
        for what, error in (("process group", "Default process group has not been initialized"),
                            ("variable of torchrun", "KeyError: 'LOCAL_WORLD_SIZE'")):
            with self.subTest(what=what):
                self.assertRegex(self.python(what).expect(1).output, f"{error}.*\n  dtrain needs no process group")

    def test_an_error_after_the_run_is_shown(self):
        result = self.python("mean after close").expect(1)
        self.assertEqual(result.output.count("dtrain.Error: the run has ended: session.close() was called before"), 1,
                         result.output)
        self.assertTrue(result.weights_file.is_file())

    def test_the_loader_need_not_say_its_batch_size(self):
        self.assertNotIn("batch_size_of_loader", self.python("divided").expect(0).output)

    def test_relative_paths_start_from_the_scripts_folder(self):
        numbers = numpy.random.default_rng(1)
        arrays = [("x.npy", numbers.random((32, 6), "float32")), ("y.npy", numbers.random((32, 1), "float32"))]
        for moves in (False, True):
            with self.subTest(moves=moves):
                result = self.run_script((HERE / "relative_script.py").read_text(), arrays=arrays, within="elsewhere",
                                         moves=moves).expect(0)
                self.assertEqual(max(line["batch"] for line in result.metrics("training")), 4)
                file = Path(result.json("plan.json")["experiment_file"])
                self.assertEqual(file, result.run_dir.parents[2] / "alone.py (dtrain.init)")  # errors name no other file

    def test_errors_in_settings_name_the_script(self):
        result = self.run_warm("import dtrain\ndtrain.init(nothing=1)\n").expect(2)
        self.assertIn("alone.py (dtrain.init)", result.output)

    def test_torchrun(self):
        result = self.run_script(self.script("exit no more"), ranks=2).expect(1)
        self.assertIn("it ended with sys.exit('no more')", result.output)


class Launched(MistakeTest):
    def launch(self, what, **sections):
        folder = self.work.new_run()
        return harness.launch(harness.BUILD, self.write("mistakes_script.py", what, folder, **sections), folder / "run", **environment)

    def test_exits_under_dtrain_run(self):
        for what, code, text, ranks in (("exit 0", 0, "done", 1), ("exit 1", 1, "it ended with sys.exit(1)\n  exit status 1", 1),
                                        ("exit no more", 1, "it ended with sys.exit('no more')\n  exit status 1", 2)):
            with self.subTest(what=what):
                run_dir = self.work.new_run()
                command = [harness.BUILD.program("dtrain"), "run", "--slots", str(ranks), "--set", f"hyperparameters.what={what}",
                           "--run-dir", str(run_dir), str(HERE / "mistakes_script.py")]
                result = harness.run(command, run_dir, **environment)
                self.assertIn(text, result.expect(code).output)
                self.assertRegex(result.output, r"cpus +threads\n")  # the batch is not known before the script runs

    def test_a_script_that_never_calls_init(self):
        folder = self.work.new_run()
        folder.mkdir()
        (folder / "trainer.py").write_text("print('trained')\n")
        command = [harness.BUILD.program("dtrain"), "run", "--slots", "2", "--run-dir", str(folder / "run"), str(folder / "trainer.py")]
        result = harness.run(command, folder / "run", **environment).expect(1)
        self.assertEqual(result.output.count("trainer.py does not mention dtrain"), 1, result.output)
        self.assertIn("trainer.py, which has not called dtrain.init()\n  a script begins with session = dtrain.init()", result.output)
        (folder / "starting.py").write_text("import dtrain\nsession = dtrain.init()\n")  # a module of the script's
        (folder / "trainer.py").write_text("import sys\nfrom starting import session\nsys.exit(0)\n")
        result = harness.run([*command[:-2], str(folder / "again"), command[-1]], folder / "again", **environment)
        self.assertNotIn("does not mention dtrain", result.output)

    def test_a_folder_that_is_removed_while_the_run_is_launched(self):
        result = self.launch("folder removed").expect(1)
        (final,) = result.run_dir.parent.glob("lost-run-*/checkpoints/final/model.safetensors")
        said = f"the run's folder {result.run_dir} was removed while the run went on; its final weights are in {final}"
        self.assertEqual(result.output.count(said), 1, result.output)
        self.assertLess(result.output.index(f"{result.run_dir} was removed while the run goes on"), result.output.index(said))
        self.assertNotIn("written to", result.output)

    def test_what_torch_distributed_would_do(self):
        result = self.launch("process group").expect(1)
        self.assertEqual(result.output.count("\n  dtrain needs no process group"), 1, result.output)

    def test_exit_codes(self):
        self.assertEqual(self.start("mistakes_script.py", "exit 3").code, 3)
        result = self.launch("exit 3", resources={"slots_per_trial": 1}).expect(1)
        self.assertIn("it ended with sys.exit(3)\n  exit status 3", result.output)
        result = self.launch("exception").expect(1)
        self.assertIn("rank 1 failed at batch 3", result.output)
        self.assertIn("ValueError: the third batch is bad\n  exit status 1", result.output)
        self.assertEqual(result.output.count("Traceback"), 1, result.output)

    def stopped(self, by):
        folder = self.work.new_run()
        run = harness.Result(0, "", folder / "run")
        command = [harness.BUILD.program("dtrain"), "launch", str(self.write("mistakes_script.py", "slow", folder)), "--run-dir",
                   str(run.run_dir)]
        process = subprocess.Popen(command, env=harness.environment(**environment), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            harness.wait_until(lambda: (run.run_dir / "metrics.jsonl").is_file() and len(run.metrics("training")) >= 3,
                               "the third batch")
            process.send_signal(by)
            output, _ = process.communicate(timeout=harness.DEADLINE)
            (folder / "was_slow").touch()
        finally:
            process.kill()
        return harness.Result(process.returncode, output, run.run_dir)

    def test_sigterm_and_going_on(self):
        whole = self.start("mistakes_script.py", "nothing").expect(0)
        result = self.stopped(signal.SIGTERM).expect(75)
        again = harness.run([harness.BUILD.program("dtrain"), "launch", "--continue", str(result.run_dir)], result.run_dir,
                            **environment).expect(0)
        self.assertEqual(len(again.events("resumed")), 1)
        self.assertEqual([line["batch"] for line in again.metrics("training")], list(range(1, 17)))
        self.assertEqual(again.weights_file.read_bytes(), whole.weights_file.read_bytes())

    def test_ctrl_c(self):
        result = self.stopped(signal.SIGINT).expect(130)
        self.assertNotIn("Traceback", result.output)


if __name__ == "__main__":
    environment = forked.use_package()
    unittest.main()
