"""What counts as a training step of a script: loops of many kinds have the weights and the steps of plain PyTorch, also when a
rank is killed in them.

    steps.py BIN_FOLDER [Steps|Killed|All]

All has each kind on 1, 2 and 3 ranks, each killed at several steps: for `make soak`.
"""
import json
from pathlib import Path

import forked
import numpy
import safetensors.numpy
import steps_script

import harness

SCRIPT = str(Path(__file__).resolve().parent / "steps_script.py")
# A run that goes on between two steps with one batch leaves out the second (a warning says so).
# Of the public scripts' kind two are in every test.
LEFT_TO_SOAK = {one.__name__ for one in steps_script.PUBLIC} - {"glue_without_a_trainer", "timm"}
NOT_KILLED = {"two_steps_for_a_batch"}


class StepsTest(harness.WorkplaceTest):
    plain = {}

    def expected(self, what):
        if what not in self.plain:
            self.plain[what] = forked.in_a_fork(steps_script.run_plain, what)
        return self.plain[what]

    def start(self, what, ranks, death=0):
        folder = self.work.new_run()
        folder.mkdir()
        experiment = harness.write_experiment(
            folder / "steps.yaml", name="steps", entrypoint=SCRIPT, resources={"slots_per_trial": ranks},
            hyperparameters={"global_batch_size": steps_script.BATCH, "what": what, "death": death},
            min_checkpoint_period={"batches": 1}, searcher={"max_length": {"epochs": 1_000_000}})
        result = forked.run(SCRIPT, folder, experiment, ranks, "--or-continue")
        if death:
            self.assertNotEqual(result.code, 0, result.output)
            self.assertTrue((result.run_dir / "was_killed").exists(), result.output)
            result = forked.run(SCRIPT, folder, experiment, ranks, "--or-continue")
        return result

    def check(self, what, ranks, death=0):
        with self.subTest(what=what, ranks=ranks, death=death):
            weights, steps, notes = self.expected(what)
            result = self.start(what, ranks, death).expect(0)
            found = json.loads((result.run_dir / "result.json").read_text())
            self.assertEqual(found["steps"], steps, result.output)
            if not death:
                self.assertEqual(found["notes"], notes)
            ours = safetensors.numpy.load_file(result.weights_file)
            self.assertEqual(ours.keys(), weights.keys())
            for name, expected in weights.items():
                numpy.testing.assert_allclose(ours[name], expected, rtol=1e-8, atol=1e-9, err_msg=f"{name}\n{result.output}")


class Steps(StepsTest):
    def test_loops_of_many_kinds(self):
        for number, what in enumerate(steps_script.KINDS):
            if what not in LEFT_TO_SOAK:
                self.check(what, ranks=2 + number % 2)

    def test_one_rank(self):
        for what in ("break_at_the_top", "passes_that_only_evaluate", "steps_left_out"):
            self.check(what, ranks=1)


class Killed(StepsTest):
    def test_killed_in_the_middle_and_at_the_last_step(self):
        for what in ("break_at_the_top", "passes_that_only_evaluate", "without_a_loader", "nadam", "glue_without_a_trainer", "timm"):
            steps = self.expected(what)[1]
            self.check(what, 2, death=steps // 2)
            self.check(what, 2, death=steps)


    def test_a_loop_that_ends_before_the_run_goes_on(self):
        result = self.start("left_on_the_way", 2, death=16).expect(1)
        self.assertIn("begin the loop there: for epoch in range(session.epochs_done", result.output)


class All(StepsTest):
    def test_everything(self):
        for what in steps_script.KINDS:
            steps = self.expected(what)[1]
            for ranks in (1, 2, 3):
                self.check(what, ranks)
                for death in [] if what in NOT_KILLED else {2, steps // 2, steps - 1, steps}:
                    self.check(what, ranks, death)


if __name__ == "__main__":
    forked.main(defaultTest=["Steps", "Killed"])
