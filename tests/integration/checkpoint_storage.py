"""Checkpoints in a folder that the experiment file names, by a section as users of Determined have it.

    checkpoint_storage.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file
from torch import nn

from harness import SOURCE, environment, launch, overrides, run, wait_until, write_experiment
from torchscript_models import Mlp, ScriptTest, experiment, main, random_weights, save_script

sys.path.insert(0, str(SOURCE / "examples" / "resume"))
from crc32c import crc32c  # noqa: E402

SECTION = {"type": "shared_fs", "host_path": "mount", "storage_path": "team/checkpoints", "propagation": "rprivate",
           "save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 2}


class Decaying(nn.Module):
    """Changes its own weights before it uses them."""

    def __init__(self, hidden: bool):
        super().__init__()
        self.a, self.b = nn.Linear(64, 96), nn.Linear(96, 10)
        self.hidden = hidden

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for layer in (self.a, self.b):
                    if self.hidden:
                        layer.weight.data.mul_(0.9)
                    else:
                        layer.weight.mul_(0.9)
        return self.b(self.a(x.flatten(1)).relu())


class Writing(ScriptTest):
    """What a model writes into its parameters must not get into the checkpoint of the batch before."""

    def weights(self, name, slots, steps, **more):
        sections = experiment("net.pt", self.idx_data(), steps, slots=slots, optimizer={"kind": "adamw", "lr": 1e-3}, **more)
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        launch(self.build, file, self.folder / name).expect(0)
        return load_file(self.folder / name / "checkpoints" / "step-9" / "model.safetensors")

    def test_a_checkpoint_in_training_is_the_one_of_a_run_that_ends_there(self):
        for hidden in (False, True):
            save_script(random_weights(Decaying(hidden), 1), self.folder / "net.pt")
            for slots in (1, 2):
                with self.subTest(hidden=hidden, slots=slots):
                    ended = self.weights(f"{hidden}-{slots}-ended", slots, 9)
                    going_on = self.weights(f"{hidden}-{slots}-going-on", slots, 12, min_checkpoint_period={"batches": 9},
                                            checkpoint_policy="none", checkpoint_storage={"save_trial_latest": 9})
                    self.assertEqual(ended.keys(), going_on.keys())
                    self.assertEqual([name for name in ended if not torch.equal(ended[name], going_on[name])], [])


def say_taken_with(version, checkpoint):
    """As if another libtorch had taken it."""
    manifest = checkpoint / "manifest.json"
    text = manifest.read_text().rsplit("\n\"manifest_checksum\"", 1)[0]
    text, changed = re.subn(r'"libtorch":"[^"]*"', f'"libtorch":"{version}"', text)
    assert changed == 1, text
    manifest.write_text(f'{text}\n"manifest_checksum":"{crc32c(text.encode()):08x}"}}\n')


class Changed(ScriptTest):
    """What --continue names that is not as it was, and what the best validation is compared with."""

    def write(self, seed, samples):
        save_script(random_weights(Mlp(), seed=seed), self.folder / "net.pt")
        return self.idx_data(samples) | {"validation": {"features": "images", "target": "labels"}}

    def test_each_change_is_named_and_another_metric_begins_anew(self):
        sections = experiment("net.pt", self.write(1, 48), 6, slots=2, min_validation_period={"batches": 3})
        run_dir = self.folder / "run"
        launch(self.build, write_experiment(self.folder / "experiment.yaml", **sections), run_dir).expect(0)
        same = run([self.build.program("dtrain"), "launch", "--continue", run_dir, "--set", "searcher.max_length.batches=9"],
                   run_dir).expect(0)
        self.assertNotIn(" when the checkpoint was taken and is ", same.output)
        self.assertNotIn(" from here on", same.output)
        say_taken_with("2.9.1", run_dir / "checkpoints" / "step-9")
        self.write(2, 32)
        sets = ["optimizations.mixed_precision=bf16", "optimizations.average_aggregated_gradients=false",
                "optimizations.memory_format=contiguous", "optimizations.tf32=false", "optimizations.matmul=default",
                "searcher.metric=accuracy", "searcher.smaller_is_better=false"]
        command = [self.build.program("dtrain"), "launch", "--continue", run_dir, *overrides(sets), "--set",
                   "searcher.max_length.batches=15"]
        changed = run(command, run_dir).expect(0)
        for key in sets:
            self.assertIn(f"{key.split('=')[0]} was ", changed.output)
        self.assertRegex(changed.output, r'libtorch was "2\.9\.1" when the checkpoint was taken and is "2\.[\d.]+" now: weights may differ')
        for text in ('program was "net.pt with the checksum ', "samples_per_epoch was 48 when the checkpoint was taken and is 32 now",
                     'metric was "loss, smaller is better" when the checkpoint was taken and is "accuracy, larger is better" '
                     "now: no validation before this counts as the best any more"):
            self.assertIn(text, changed.output)
        validations = {line["batch"]: line["best"] for line in changed.metrics("validation")}
        self.assertTrue(validations[12], "the first accuracy is the best so far")


class NotFinite(ScriptTest):
    """A run whose weights become NaN keeps the last checkpoint before that, and says how to go on from it."""

    def command(self, words):
        return run([self.build.program("dtrain"), *words], self.folder / "none")

    def test_the_last_finite_checkpoint_stays_and_the_advice_works(self):
        save_script(random_weights(Mlp(), seed=1), self.folder / "net.pt")
        data = self.idx_data() | {"validation": {"features": "images", "target": "labels"}}
        sections = experiment("net.pt", data, 8, slots=2, optimizer={"kind": "sgd", "lr": 1e30}, checkpoint_policy="all",
                              min_validation_period={"batches": 1},
                              checkpoint_storage={"save_trial_latest": 2, "save_trial_best": 0})
        run_dir = self.folder / "run"
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        first = launch(self.build, file, run_dir).expect(0)
        self.assertIn("has values that are not finite (model.safetensors: ", first.output)
        listed = json.loads(self.command(["checkpoint", "list", run_dir, "--json"]).expect(0).output)
        finite = [one["step"] for one in listed if one["not_finite"] is None]
        self.assertEqual(finite, [1])
        self.assertEqual([one["step"] for one in listed], [1, 7, 8])
        longer = ["launch", "--continue", run_dir, "--set", "searcher.max_length.batches=10"]
        said = self.command(longer).expect(0).output
        warning = next(line for line in said.splitlines() if "the checkpoint of batch 8 has values" in line)
        self.assertIn(f"the last one with finite values is step-{finite[0]}; ", warning)
        delete, go_on = re.search(r"after it: \S+ (checkpoint delete .*); then \S+ (launch --continue .*)", warning).groups()
        self.command([*delete.split(), "--yes"]).expect(0)
        self.command([*go_on.split(), "--set", "optimizer.lr=0.01", "--set", "searcher.max_length.batches=12"]).expect(0)
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        self.assertEqual([one["step"] for one in events if one["event"] == "resumed"], [8, finite[0]])


class Storage(ScriptTest):
    def setUp(self):
        super().setUp()
        save_script(random_weights(Mlp(), seed=1), self.folder / "net.pt")
        data = self.idx_data() | {"validation": {"features": "images", "target": "labels"}}
        self.sections = experiment("net.pt", data, 12, optimizer={"kind": "sgd", "lr": 0.1}, checkpoint_storage=SECTION,
                                   checkpoint_policy="all", min_validation_period={"batches": 2},
                                   min_checkpoint_period={"batches": 1}, max_restarts=5)
        self.storage = self.folder / "mount" / "team" / "checkpoints"

    def launch(self, run_dir):
        return launch(self.build, write_experiment(self.folder / "experiment.yaml", **self.sections), run_dir)

    def steps(self, folder):
        return sorted(int(path.name[5:]) for path in folder.glob("step-*"))

    def test_runs_have_folders_of_their_own_which_stay_theirs(self):
        (self.folder / "mount").mkdir()
        runs = [self.folder / place / "0001-net" for place in ("a", "b")]
        for run_dir in runs:
            self.launch(run_dir).expect(0)
        folders = {run_dir: next(folder for folder in self.storage.iterdir() if str(run_dir) in (folder / "run.json").read_text())
                   for run_dir in runs}
        self.assertEqual(len(set(folders.values())), 2)
        for run_dir, folder in folders.items():
            self.assertRegex(folder.name, r"^0001-net-[0-9a-f]{8}$")
            steps = self.steps(folder)
            self.assertEqual(steps[-1], 12)
            self.assertLessEqual(len(steps), 3, "two of the newest, and the best")
            self.assertEqual(self.steps(run_dir / "checkpoints"), [])
            self.assertTrue((run_dir / "checkpoints" / "final" / "model.safetensors").is_file())
        # The run's folder is moved; its checkpoints are where they were.
        moved = self.folder / "moved"
        shutil.move(runs[0], moved)
        command = [self.build.program("dtrain"), "launch", "--continue", str(moved), "--set", "searcher.max_length.batches=20"]
        resumed = run(command, moved).expect(0)
        self.assertEqual([event["step"] for event in resumed.events("resumed")], [12])
        self.assertEqual(self.steps(folders[runs[0]])[-1], 20)
        self.assertEqual(self.steps(folders[runs[1]])[-1], 12)

    def test_a_checkpoint_of_a_validated_batch_has_its_metric(self):
        """Also where it is taken for its distance to the one before."""
        (self.folder / "mount").mkdir()
        for policy in ("none", "all"):
            with self.subTest(policy=policy):
                self.sections |= {"checkpoint_policy": policy, "min_checkpoint_period": {"batches": 4}}
                result = self.launch(self.folder / policy).expect(0)
                losses = {line["batch"]: line["metrics"]["loss"] for line in result.metrics("validation")}
                saved = {event["step"]: event.get("metric_value") for event in result.events("checkpoint_saved")}
                self.assertIn(4, saved)
                self.assertEqual({step: losses.get(step) for step in saved}, saved)

    def test_a_disk_that_vanishes_for_a_while(self):
        mount, away = self.folder / "mount", self.folder / "away"
        mount.mkdir()
        self.sections["searcher"]["max_length"] = {"batches": 10_000_000}
        self.sections |= {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": 500},
                          "min_validation_period": {"batches": 1_000_000}}
        run_dir = self.folder / "run"
        file = write_experiment(self.folder / "experiment.yaml", **self.sections)
        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)]

        def count(event):
            events = run_dir / "events.jsonl"
            return events.read_text().count(f'"event":"{event}"') if events.is_file() else 0

        with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            wait_until(lambda: count("checkpoint_saved") > 0, "a checkpoint")
            mount.rename(away)
            mount.mkdir()
            failed = count("checkpoint_failed")
            wait_until(lambda: count("checkpoint_failed") > failed + 2, "checkpoints that fail")
            self.assertEqual(list(mount.iterdir()), [], "written below the mount point")
            mount.rmdir()
            away.rename(mount)
            saved = count("checkpoint_saved")
            wait_until(lambda: count("checkpoint_saved") > saved, "a checkpoint after the disk is back")
            process.send_signal(signal.SIGTERM)
            output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, output)
        self.assertIn("is its disk still mounted?", output)

    def test_training_waits_for_a_slow_disk_longer_than_for_a_rank(self):
        (self.folder / "mount").mkdir()
        self.sections["searcher"]["max_length"] = {"batches": 4000}
        self.sections["resources"]["slots_per_trial"] = 2
        self.sections |= {"min_validation_period": {"batches": 50}, "communication": {"timeout": 3}}
        run_dir = self.folder / "run"
        file = write_experiment(self.folder / "experiment.yaml", **self.sections)
        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)]
        events = run_dir / "events.jsonl"
        with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            wait_until(lambda: events.is_file() and '"checkpoint_saved"' in events.read_text(), "a checkpoint")
            lines = [json.loads(line) for line in events.read_text().splitlines()]
            (rank_0,) = (line["pid"] for line in lines if line["event"] == "rank_started" and line["rank"] == 0)
            saver = int(subprocess.check_output(["pgrep", "-P", str(rank_0), "-x", "dtrain-saver"]))
            os.kill(saver, signal.SIGSTOP)
            try:
                time.sleep(7)
                self.assertIsNone(process.poll(), "the run has ended")
            finally:
                os.kill(saver, signal.SIGCONT)
            output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"training has waited \d+(\.\d+)? s for the checkpoint of batch")

    def test_a_mount_that_is_missing_is_told_before_anything_begins(self):
        run_dir = self.folder / "0001-net"
        result = self.launch(run_dir).expect(2)
        self.assertIn(f"checkpoint_storage.host_path: there is no folder {self.folder / 'mount'}", result.output)
        self.assertFalse(run_dir.exists())
        self.assertFalse((self.folder / "mount").exists())


if __name__ == "__main__":
    main()
