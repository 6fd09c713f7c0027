"""Checkpoints in a folder that the experiment file names, by a section as users of Determined have it.

    checkpoint_storage.py BIN_FOLDER [TestClass[.test] ...]
"""
import shutil

from harness import launch, run, write_experiment
from torchscript_models import Mlp, ScriptTest, experiment, main, random_weights, save_script

SECTION = {"type": "shared_fs", "host_path": "mount", "storage_path": "team/checkpoints", "propagation": "rprivate",
           "save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 2}


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

    def test_a_mount_that_is_missing_is_told_before_anything_begins(self):
        run_dir = self.folder / "0001-net"
        result = self.launch(run_dir).expect(2)
        self.assertIn(f"checkpoint_storage.host_path: there is no folder {self.folder / 'mount'}", result.output)
        self.assertFalse(run_dir.exists())
        self.assertFalse((self.folder / "mount").exists())


if __name__ == "__main__":
    main()
