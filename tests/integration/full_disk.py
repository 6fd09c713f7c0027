"""Real training with a full disk in the run's folder: records are lost and counted, weights are the run's.

full_disk.py BIN_FOLDER; root, for a small tmpfs in a mount namespace.
"""
import os
import subprocess
import unittest

import safetensors.numpy

from harness import BUILD, DEADLINE, SOURCE, Result, Workplace, environment, main

SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_mount(), "only root can mount a tmpfs, in a mount namespace of its own")
class FullDisk(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("full-disk", on_disk=True)
        self.addCleanup(self.work.remove)

    def launch(self, small, size, ranks, batches, *sets):
        """With a tmpfs of this size on that part of the run's folder."""
        folder = self.work.new_run()
        (folder / small).mkdir(parents=True)
        command = [BUILD.program("dtrain"), "launch", str(SYNTHETIC), "--run-dir", str(folder), "--set",
                   f"resources.slots_per_trial={ranks}", "--set", f"searcher.max_length.batches={batches}",
                   "--set", "scheduling_unit=10", *(word for one in sets for word in ("--set", one))]
        script = 'mount -t tmpfs -o size="$1" tmpfs "$2" || exit 99; shift 2; exec "$@"'
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", size, str(folder / small), *command],
                              env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
        return Result(done.returncode, done.stdout, folder)

    def test_training_goes_on_without_its_records(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                result = self.launch("profile", "64k", ranks, 200).expect(0)
                self.assertEqual(result.output.count("records of this host's ranks are missing from the profile"), 1,
                                 result.output)
                self.assertIn("No space left on device", result.output)
                self.assertIn("records could not be written", result.output)
                self.assertEqual(result.events("run_ended")[0]["state"], "done")
                self.assertGreater(sum(event["count"] for event in result.events("records_lost")), 0)
                self.assertTrue(safetensors.numpy.load_file(result.weights_file))
                self.assertEqual(result.metrics("training")[-1]["batch"], 200)

    def test_training_goes_on_without_its_events_for_tensorboard(self):
        result = self.launch("tensorboard", "8k", 2, 200, "scheduling_unit=1").expect(0)
        self.assertEqual(result.output.count("TensorBoard events are missing from the run's folder"), 1, result.output)
        self.assertIn("No space left on device", result.output)
        self.assertGreater(result.events("tensorboard_events_lost")[0]["count"], 0)
        self.assertEqual(len(result.metrics("training")), 200)

    def test_weights_that_cannot_be_saved_fail_the_run(self):
        result = self.launch("checkpoints", "16k", 2, 20).expect(1)
        self.assertIn("No space left on device", result.output)
        self.assertIn(str(result.run_dir / "checkpoints"), result.output)
        self.assertEqual(result.events("run_ended")[0]["state"], "failed")

    def test_advice_about_the_last_checkpoint_is_given_once(self):
        storage = self.work.path / "run-1" / "storage"
        result = self.launch("storage", "64k", 2, 20, f"checkpoint_storage={{type: directory, container_path: {storage}}}",
                             "min_checkpoint_period.batches=100").expect(1)
        cause = result.events("run_ended")[0]["cause"]
        self.assertIn("the last checkpoint could not be written", cause)
        self.assertEqual(cause.count("free space"), 1, cause)
        self.assertNotIn("\n  free space", result.output)
        self.assertEqual([event["retried"] for event in result.events("checkpoint_failed")], [True, False])


if __name__ == "__main__":
    main("synthetic")
