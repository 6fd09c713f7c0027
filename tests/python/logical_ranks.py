"""Virtual ranks of trials in Python: any number of ranks gives the same bits, also after a stop in mid-epoch.

    logical_ranks.py BIN_FOLDER [--long] [Bits|Mistakes[.test]]

Compared is what tests/integration/virtual_ranks.py compares. Random numbers of torch, numpy and random are drawn for each sample,
each batch and each order of samples, in the process or in worker processes, whose number does not matter. --long: all numbers of
ranks, and a loader of dtrain's own.
"""
from pathlib import Path

import forked
import package  # noqa: F401  (finds harness)

import harness
from virtual_ranks import LONG, differences, left

HERE = Path(__file__).resolve().parent
TRIAL = str(HERE / "logical_ranks_trial.py") + ":Logical"
VIRTUAL, BATCHES, STOP = 4, 14, 8
KINDS = ("lazy", "engine") if LONG else ("lazy",)


def write_arrays(folder):
    import numpy
    numpy.random.seed(1)
    numpy.save(folder / "x.npy", numpy.random.rand(93, 36).astype("float32"))
    numpy.save(folder / "y.npy", numpy.random.randint(0, 5, 93).astype("int64"))


class Runs(harness.WorkplaceTest):
    def setUp(self):
        super().setUp()
        forked.in_a_fork(write_arrays, self.work.path)

    def train(self, name, ranks, kind="lazy", fault="", stop_at=0, code=0):
        folder = self.work.path / name
        folder.mkdir()
        file = harness.write_experiment(
            folder / "experiment.yaml", name="logical", entrypoint=TRIAL,
            hyperparameters={"global_batch_size": 16, "kind": kind, "fault": fault, "stop_at": stop_at},
            data={"features": str(self.work.path / "x.npy"), "target": str(self.work.path / "y.npy")},
            resources={"slots_per_trial": ranks, "slot_type": "cpu"}, searcher={"max_length": {"batches": BATCHES}},
            min_validation_period={"batches": 5}, scheduling_unit=3, optimizations={"aggregation_frequency": 2},
            reproducibility={"virtual_ranks": VIRTUAL, "experiment_seed": 5})
        result = forked.run(TRIAL, folder, file, ranks)
        return result if code is None else result.expect(code)

    def go_on(self, result, ranks):
        folder = result.run_dir.parent / f"on-{ranks}"
        folder.mkdir()
        processes = forked.start(TRIAL, folder, None, ranks, "--continue", str(result.run_dir), "--set",
                                 f"resources.slots_per_trial={ranks}", "--set", "hyperparameters.stop_at=0")
        return forked.finish(processes, folder).expect(0)


class Bits(Runs):
    def test_are_the_same_on_any_number_of_ranks(self):
        for kind in KINDS:
            whole = left(self.train(f"{kind}-1", 1, kind).run_dir)
            self.assertGreater(len(whole["metrics"]), 4)
            for ranks in range(2, VIRTUAL + 1) if LONG else (3,):
                self.assertEqual(differences(whole, left(self.train(f"{kind}-{ranks}", ranks, kind).run_dir)), [], f"{kind} on {ranks}")
            stopped = self.train(f"{kind}-stopped", 2, kind, stop_at=STOP, code=75)
            self.go_on(stopped, 1)
            self.assertEqual(differences(whole, left(stopped.run_dir)), [], f"{kind} from 2 ranks to 1")
            if kind == "lazy":
                self.compare_with_workers(whole)

    def compare_with_workers(self, whole):
        self.assertEqual(differences(whole, left(self.train("two-3", 3, "two").run_dir)), [], "with two workers on 3 ranks")
        stopped = self.train("one-stopped", 2, "one", stop_at=STOP, code=75)
        self.go_on(stopped, 1)
        self.assertEqual(differences(whole, left(stopped.run_dir)), [], "with one worker from 2 ranks to 1")


class Mistakes(Runs):
    def test_are_refused_by_name(self):
        refused = {"hooks": "an optimizer has hooks", "callback": "callbacks are not supported yet",
                   "worker_init": "worker_init_fn", "tuples": "gives indices as a tuple", "divided": r"dtrain\.divided\(\)", "list": r"lists of indices \(list\)",
                   "state": r"save_state\(\)"}
        for fault, text in refused.items():
            result = self.train(fault, 2, fault=fault, code=None)
            self.assertNotEqual(result.code, 0, fault)
            self.assertRegex(result.output, text)
            self.assertIn("virtual", result.output)


if __name__ == "__main__":
    forked.main()
