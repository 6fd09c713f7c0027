"""One value for one name, of a run that was recorded: summary, analyze, waterfall, findings, report and top agree.

agreement.py BIN_FOLDER
"""
import html
import json
import re
import subprocess
import unittest

from harness import BUILD, DEADLINE, SOURCE, Workplace, environment, launch, main

BATCHES = 60
SETS = ["hyperparameters.global_batch_size=64", f"searcher.max_length.batches={BATCHES}",
        "optimizations.aggregation_frequency=3"]


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Workplace("agreement")
        cls.run_dir = cls.work.new_run()
        cls.result = launch(BUILD, SOURCE / "configs" / "synthetic.yaml", cls.run_dir,
                            SETS + ["resources.slots_per_trial=3"]).expect(0)

    @classmethod
    def tearDownClass(cls):
        cls.work.remove()

    def say(self, *arguments):
        done = subprocess.run([BUILD.program("dtrain"), *arguments], env=environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_all_say_the_same_of_exposed_communication(self):
        summary = json.loads(self.say("summary", str(self.run_dir), "--json"))
        analysis = json.loads(self.say("analyze", str(self.run_dir), "--json"))
        report = (self.run_dir / "report.html").read_text()
        embedded = json.loads(re.search(r'id="analysis"[^>]*>(.*?)</script>', report, re.S).group(1))
        parts = {part["name"]: part for part in analysis["waterfall"]["parts"]}
        self.assertGreater(summary["exposed_s"], 0)
        self.assertAlmostEqual(summary["exposed_s"], summary["exchange_s"] + summary["waiting_s"], places=9)
        self.assertAlmostEqual(summary["exposed_s"], summary["phases"]["allreduce_wait"]["seconds"], places=9)
        for name in ("exchange", "waiting"):
            self.assertAlmostEqual(summary[f"{name}_s"], parts[name]["seconds"], places=9)
            self.assertAlmostEqual(summary[f"{name}_share"], parts[name]["share"], places=9)
        self.assertEqual(analysis["stragglers"]["waiting_s"], summary["waiting_s"])
        for one in (analysis, embedded):
            for key in ("exposed_s", "exchange_s", "waiting_s", "exposed_share"):
                self.assertEqual(one["summary"][key], summary[key], key)
        for finding in analysis["findings"]:
            if finding["id"] == "exchange" and "of the stalls" not in finding["evidence"]:
                self.assertAlmostEqual(finding["seconds"], summary["exchange_s"], places=9)
        text = self.say("summary", str(self.run_dir))
        sentence = re.search(r"exposed communication .*?waiting for the last rank [^)]*\)", " ".join(text.split())).group(0)
        self.assertIn("E" + sentence[1:], html.unescape(report))

        top = json.loads(self.say("top", str(self.run_dir), "--once", "--json"))
        self.assertTrue(any("those of its last seconds" in note for note in top["notes"]), top["notes"])
        for live, rank in zip(top["ranks"], summary["ranks"]):
            if live["recent"]["steps"] != rank["steps"]:
                continue  # longer than what top looks back on
            self.assertAlmostEqual(live["recent"]["exposed"] * rank["in_steps_s"], rank["exposed_s"], places=6)

    def test_batches_are_not_optimizer_steps(self):
        summary = json.loads(self.say("summary", str(self.run_dir), "--json"))
        self.assertEqual((summary["steps"], summary["optimizer_steps"]), (BATCHES, BATCHES // 3))
        self.assertEqual((summary["global_batch_size"], summary["batch_samples"]), (64, 63))
        words = "global batch 64, of which 63 are trained on, effective batch 189 (3 x 63)"
        text = self.say("summary", str(self.run_dir))
        self.assertIn(words, text)
        self.assertIn("60 batches, 20 optimizer steps", text)
        self.assertIn("60 batches, 20 optimizer steps", self.say("analyze", str(self.run_dir)))
        report = (self.run_dir / "report.html").read_text()
        self.assertIn(words.removeprefix("global batch "), report)
        self.assertIn("60 batches, 20 optimizer steps", report)
        self.assertIn("63 = 3 x 21, of 64 asked for", self.result.output)
        self.assertIn("189 = 3 x 63 in an optimizer step", self.result.output)


if __name__ == "__main__":
    main("synthetic")
