"""Settings that a run does not use are told: keys that a trial never reads, an epoch's length that the data itself has.

    unused_settings.py BIN_FOLDER [TestClass[.test] ...]
"""
import unittest

from harness import BUILD, SOURCE, Workplace, launch, main

SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SMALL = ["hyperparameters.width=32", "data.samples=512", "searcher.max_length.batches=3"]


class UnusedSettings(unittest.TestCase):
    def setUp(self):
        self.work = Workplace(type(self).__name__)
        self.addCleanup(self.work.remove)

    def launch(self, *sets):
        return launch(BUILD, SYNTHETIC, self.work.new_run(), [*SMALL, *sets]).expect(0)

    def test_a_key_that_the_trial_does_not_read_is_told_once(self):
        for ranks in (1, 2, 3):
            result = self.launch(f"resources.slots_per_trial={ranks}", "hyperparameters.learning_rat=5.0",
                                 "data.sampels=10", "data.zzz=1")
            self.assertEqual(result.output.count("the trial has not read"), 1, result.output)
            # learning_rate is in the file: there is nothing that was asked for and missed
            self.assertIn("warn  the trial has not read hyperparameters.learning_rat, data.sampels, data.zzz by the end of "
                          "its first batch", result.output)

    def test_a_slip_is_told_with_what_was_meant(self):
        experiment = self.work.path / "slip.yaml"
        experiment.write_text(SYNTHETIC.read_text().replace("learning_rate:", "lerning_rate:")
                              .replace("samples:", "sampels:"))
        result = launch(BUILD, experiment, self.work.new_run(),
                        ["hyperparameters.width=32", "searcher.max_length.batches=3"]).expect(0)
        self.assertIn("hyperparameters.lerning_rate (did you mean learning_rate?)", result.output)
        self.assertIn("data.sampels (did you mean samples?)", result.output)

    def test_a_file_whose_keys_are_all_read_is_not_warned_of(self):
        self.assertNotIn("has not read", self.launch().output)

    def test_records_per_epoch_yields_to_the_data_s_own_length(self):
        # 512 samples in batches of 128
        result = self.launch("records_per_epoch=1280")
        self.assertEqual(result.output.count("records_per_epoch"), 1, result.output)
        self.assertIn("records_per_epoch (1280) has no effect: the training data has a length of its own, 4 batches of 128 "
                      "samples", result.output)
        self.assertEqual(result.json("plan.json")["length"]["batches_per_epoch"], 4)
        self.assertNotIn("records_per_epoch", self.launch("records_per_epoch=512").output)


if __name__ == "__main__":
    main("synthetic")
