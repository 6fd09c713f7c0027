"""Which gradients travel together, in whole runs: by size, by gaps, tuned, and as an earlier run found; the result is the
same to the last bit.

    fusion.py BIN_FOLDER
"""
import csv
import json
import unittest

from harness import BUILD, SOURCE, Workplace, launch, main

SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"


class Fusion(unittest.TestCase):
    def setUp(self):
        self.place = Workplace("fusion")
        self.cache = self.place.path / "cache"
        # Deep enough for gaps that a busy machine cannot hide; four layers of 1 MiB.
        # One strategy: while two take turns, what a bucket costs is neither's.
        self.common = ["searcher.max_length.batches=130", "hyperparameters.width=512", "hyperparameters.depth=6",
                       "optimizations.sharded_optimizer=false"]

    def tearDown(self):
        if self._outcome.success:
            self.place.remove()

    def run_with(self, **optimizations):
        sets = self.common + [f"optimizations.{key}={json.dumps(value)}" for key, value in optimizations.items()]
        result = launch(BUILD, SYNTHETIC, self.place.new_run(), sets, XDG_CACHE_HOME=str(self.cache)).expect(0)
        result.fusion = json.loads((result.run_dir / "plan.json").read_text())["fusion"]
        return result

    def test_plans_differ_and_results_do_not(self):
        by_size = self.run_with(tensor_fusion_cycle_time=0, grad_updates_size_file=str(self.place.path / "sizes.csv"))
        self.assertEqual(by_size.fusion["by"], "threshold")
        self.assertEqual(len(by_size.fusion["buckets"]), 1)
        self.assertEqual(by_size.fusion["steps"], 130)
        self.assertGreater(by_size.fusion["buckets"][0]["measured_exposed_ms"], 0)

        # No two gradients are ready within a nanosecond: each travels alone.
        apart = self.run_with(tensor_fusion_cycle_time=1e-6)
        self.assertEqual(apart.fusion["by"], "threshold and gaps")
        self.assertEqual(len(apart.fusion["buckets"]), 12)
        self.assertEqual(apart.fusion["steps"], 130 - 8, "it was measured for eight steps")
        self.assertEqual(sum(b["bytes"] for b in apart.fusion["buckets"]), by_size.fusion["buckets"][0]["bytes"])
        for bucket in apart.fusion["buckets"]:
            self.assertGreaterEqual(bucket["predicted_exposed_ms"], 0)

        tuned = self.run_with(auto_tune_tensor_fusion=True)
        self.assertEqual(tuned.fusion["by"], "tuned")
        report = tuned.events("fusion_tuned")[0]
        self.assertLessEqual(report["steps"], 100)
        self.assertGreater(report["plans_tried"], 1)

        (remembered,) = (self.cache / "dtrain" / "fusion").glob("*.json")
        again = self.run_with(auto_tune_tensor_fusion=True)
        self.assertEqual(again.fusion["by"], "remembered")
        self.assertEqual(again.fusion["steps"], 130, "tuned from the first step")
        self.assertEqual(len(again.fusion["buckets"]), len(tuned.fusion["buckets"]))
        self.assertEqual([b["predicted_exposed_ms"] for b in again.fusion["buckets"]],
                         [b["predicted_exposed_ms"] for b in tuned.fusion["buckets"]])

        sharded = self.run_with(auto_tune_tensor_fusion=True, sharded_optimizer=True)
        self.assertEqual(sharded.fusion["by"], "tuned", "exchanges of another kind take another time")
        self.assertEqual(len(list(remembered.parent.iterdir())), 2)

        remembered.write_text("{")  # as a crash of another program may leave it
        damaged = self.run_with(auto_tune_tensor_fusion=True)
        self.assertEqual(damaged.fusion["by"], "tuned")
        self.assertIn("what an earlier run remembered is not used", damaged.output)
        self.assertIsInstance(json.loads(remembered.read_text()), dict, "and written anew")

        for other in (apart, tuned, again, sharded, damaged):
            self.assertEqual(other.weights_file.read_bytes(), by_size.weights_file.read_bytes())

        rows = list(csv.DictReader((self.place.path / "sizes.csv").read_text().splitlines()))
        self.assertEqual([int(row["order"]) for row in rows], list(range(12)))
        self.assertEqual(rows[0]["name"], "layer5.bias", "the last layer's gradients are ready first")
        self.assertEqual((rows[3]["shape"], rows[3]["bytes"]), ("512x512", str(512 * 512 * 4)))


if __name__ == "__main__":
    main("synthetic")
