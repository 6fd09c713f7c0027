"""dtrain.Run: what a run has recorded, as frames of pandas, and without pandas and torch.

    run_frames.py BIN_FOLDER
"""
import json
import subprocess
import sys
from pathlib import Path

import forked
import harness
import package
import pandas

RANKS = 2
BATCHES = 10

WITHOUT = """
import importlib.util, sys
for name in ("pandas", "torch"):
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
import dtrain
run = dtrain.Run(sys.argv[1])
assert [row["kind"] for row in run.metrics] == sys.argv[2].split(), run.metrics
assert len(run.steps) == int(sys.argv[3]) and all(type(row["wall_ns"]) is int for row in run.steps), run.steps[:2]
assert run.findings and all("title" in row for row in run.findings)
assert len(run.plot_metrics().data) == 3
try:
    dtrain.init
except ImportError as error:
    print(error)
"""


class Frames(harness.WorkplaceTest):
    def test_frames(self):
        from dtrain.run import Run

        folder = self.work.new_run()
        folder.mkdir()
        experiment = harness.write_experiment(
            folder / "frames.yaml", name="frames", entrypoint="run_script.py", hyperparameters={"global_batch_size": 12},
            resources={"slots_per_trial": RANKS}, searcher={"max_length": {"epochs": 2}}, scheduling_unit=4)
        result = forked.run(str(Path(__file__).resolve().parent / "run_script.py"), folder, experiment, RANKS).expect(0)
        run = Run(result.run_dir)

        lines = [line for line in result.lines("metrics.jsonl") if line["kind"] in ("training", "validation")]
        self.assertEqual(list(run.metrics.kind), [line["kind"] for line in lines])
        self.assertEqual(list(run.metrics.batch), [line["batch"] for line in lines])
        self.assertEqual(run.metrics.time.dt.year.min(), pandas.Timestamp(lines[0]["time"]).year)
        training = run.metrics[run.metrics.kind == "training"]
        self.assertEqual(list(training.loss), [line["metrics"]["loss"] for line in lines if line["kind"] == "training"])
        self.assertEqual(list(training["metrics.batch"]),
                         [line["metrics"]["batch"] for line in lines if line["kind"] == "training"])
        self.assertEqual(list(run.metrics.accuracy.dropna()), [0.5, 0.75])

        self.assertEqual(len(run.steps), RANKS * BATCHES)
        self.assertEqual(run.steps.groupby("rank").samples.sum().to_dict(), {0: 60, 1: 60})
        self.assertTrue((run.steps.wall_ns >= run.steps.train_batch_ns).all())
        self.assertEqual(list(run.table("ranks")["rank"]), [0, 1])
        with self.assertRaisesRegex(KeyError, "no table 'nothing'; it has .*steps"):
            run.table("nothing")

        def said(command):
            return json.loads(subprocess.run([harness.BUILD.program("dtrain"), command, "--json", str(result.run_dir)], check=True,
                                             capture_output=True, text=True, env=harness.environment()).stdout)

        self.assertEqual(list(run.findings.title), [finding["title"] for finding in said("analyze")["findings"]])
        self.assertEqual(run.summary, said("summary"))
        self.assertEqual(run.summary["steps"], BATCHES)
        self.assertEqual(run.plan, result.json("plan.json"))

        figure = run.plot_metrics()
        curves = {curve.name: (list(curve.x), list(curve.y)) for curve in figure.data}
        self.assertEqual(set(curves), {"loss (training)", "metrics.batch (training)", "accuracy (validation)"})
        self.assertEqual(curves["accuracy (validation)"], ([5, 10], [0.5, 0.75]))
        self.assertEqual([curve.name for curve in run.plot_metrics("learning_rate").data], ["learning_rate (training)"])
        with self.assertRaisesRegex(KeyError, "no metrics called nothing"):
            run.plot_metrics("nothing")

        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator(str(result.run_dir / "tensorboard" / "metrics"),
                                  size_guidance={"images": 0, "histograms": 0}).Reload()
        self.assertEqual([e.step for e in events.Images("inputs")], list(range(1, BATCHES + 1)))
        self.assertEqual({(e.width, e.height) for e in events.Images("inputs")}, {(8, 12 // RANKS)})
        self.assertEqual({(e.step, e.histogram_value.num) for e in events.Histograms("weight")},
                         {(batch, 32) for batch in range(1, BATCHES + 1)})
        self.assertEqual([e.value for e in events.Scalars("validation/accuracy")], [0.5, 0.75])

        bare = subprocess.run([sys.executable, "-c", WITHOUT, str(result.run_dir), " ".join(run.metrics.kind),
                               str(RANKS * BATCHES)], capture_output=True, text=True,
                              env=harness.environment(**package.of(harness.BUILD)))
        self.assertEqual(bare.returncode, 0, bare.stderr)
        self.assertIn("dtrain.init needs torch", bare.stdout)

    def test_runs_that_are_not_there(self):
        from dtrain.run import Run

        with self.assertRaisesRegex(ValueError, "nothing"):
            Run("nothing")


if __name__ == "__main__":
    forked.main()
