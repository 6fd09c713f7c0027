"""Runs of loop_trial: logged metrics, scopes, collectives, callbacks, early stopping, and which checkpoints stay.

    around_the_loop.py BIN_FOLDER [TestClass[.test] ...]
"""
import gzip
import json

from harness import BUILD, WorkplaceTest, launch, main, overrides, run, write_experiment
from resume import differences, what_is_left

SAMPLES = 4  # of a batch of a rank


class LoopTest(WorkplaceTest):
    def launch(self, ranks, batches=(6,), length=None, sections=None, folder=None, **hyperparameters):
        folder = folder or self.work.new_run()
        folder.mkdir(exist_ok=True)
        file = write_experiment(
            folder / "experiment.yaml", name="loop", entrypoint=BUILD.program("loop_trial"),
            hyperparameters={"global_batch_size": SAMPLES * ranks, "batches": list(batches), "folder": str(folder),
                             **hyperparameters},
            resources={"slots_per_trial": ranks, "slot_type": "cpu"},
            **{"searcher": {"max_length": length or {"epochs": 1}}, "scheduling_unit": 3, **(sections or {})})
        return launch(BUILD, file, folder / "run")

    def go_on(self, result, *sets):
        command = [BUILD.program("dtrain"), "launch", "--continue", str(result.run_dir), *overrides(sets)]
        return run(command, result.run_dir)

    def journal(self, result, rank=0):
        return (result.run_dir.parent / f"journal-{rank}").read_text().splitlines()


class Logs(LoopTest):
    def test_values_are_reduced_over_batches_and_ranks(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, logs=True).expect(0)
                lines = result.metrics("training")
                self.assertEqual([line["batch"] for line in lines], [3, 6])
                for line in lines:
                    last = line["batch"]
                    metrics = line["metrics"]
                    self.assertEqual(line["samples"], 3 * SAMPLES * ranks)
                    self.assertEqual(metrics["mean"], sum(range(1, ranks + 1)) / ranks)
                    self.assertEqual(metrics["total"], 3 * SAMPLES * ranks)
                    self.assertEqual(metrics["largest"], 10 * (ranks - 1) + last)
                    self.assertEqual(metrics["smallest"], last - 2)
                    self.assertEqual(metrics["sometimes"], last)
                    self.assertEqual(metrics["counter"], last - 1)
                    self.assertEqual(metrics["calls"], 2 * last - 2)
                validation = result.metrics("validation")[-1]["metrics"]
                self.assertEqual(validation["evaluated"], 12)
                self.assertEqual(validation["most"], max(i * 37 % 101 for i in range(12)) / 101)

    def test_a_rank_whose_data_has_ended_adds_nothing(self):
        metrics = self.launch(2, batches=(6, 4), logs=True).expect(0).metrics("training")[-1]["metrics"]
        self.assertEqual(metrics["total"], 4 * SAMPLES)
        self.assertEqual((metrics["mean"], metrics["largest"], metrics["smallest"]), (1.25, 14, 4))

    def test_metrics_of_all_samples_at_once(self):
        scores = [(i * 37 % 101, i * i % 3 == 0) for i in range(12)]
        pairs = [(p > n) + (p == n) / 2 for p, yes in scores if yes for n, no in scores if not no]
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, auc=True, sections={"searcher": {"metric": "auc", "max_length": {"batches": 3}}})
                self.assertAlmostEqual(result.expect(0).metrics("validation")[-1]["metrics"]["auc"], sum(pairs) / len(pairs), 12)

    def test_metrics_of_sums_over_all_samples(self):
        guesses = [(i * 37 % 101 % 3, i % 3) for i in range(12)]
        each = [2 * guesses.count((c, c)) / sum((p == c) + (t == c) for p, t in guesses) for c in range(3)]
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, f1=True, sections={"searcher": {"metric": "f1", "max_length": {"batches": 3}}})
                self.assertAlmostEqual(result.expect(0).metrics("validation")[-1]["metrics"]["f1"], sum(each) / 3, 12)

    def test_mistakes_are_named(self):
        result = self.launch(2, mistake="sums", f1=True).expect(1)
        self.assertIn("the metric 'f1' has sums of shape [3,4] on rank 1, and of [3,3] on rank 0", result.output)
        result = self.launch(1, mistake="logs_twice").expect(1)
        self.assertIn('context.log("loss"): train_batch() returns a metric of that name, too', result.output)
        result = self.launch(2, mistake="other_reduction").expect(1)
        self.assertIn("the training metric 'x' is a sum on rank 0 and a maximum on rank 1", result.output)
        for mistake, metric in (("shape", "training metric 'loss' is a tensor of shape [2, 3]"),
                                ("logged_shape", "training metric 'each' is a tensor of shape [3]"),
                                ("validation_shape", "validation metric 'score' is a tensor of shape [4]")):
            result = self.launch(2, mistake=mistake).expect(1)
            self.assertIn(f"the {metric}", result.output)
            self.assertIn("rank 1", result.output)
        result = self.launch(2, mistake="rows", auc=True).expect(1)
        self.assertIn("the metric 'auc' was given rows of several forms", result.output)


class TensorBoard(LoopTest):
    """What rank 0 writes for TensorBoard while the run trains, read by TensorBoard."""

    def events(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0}).Reload()

    def pixels(self, event):
        import io

        import numpy
        from PIL import Image
        image = numpy.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
        self.assertEqual((event.height, event.width), image.shape[:2])
        return image

    def check_pictures(self, events, batches):
        import numpy
        for tag in ("grey", "colours", "grid"):
            self.assertEqual([e.step for e in events.Images(tag)], batches)
        for event in events.Images("grey"):
            numpy.testing.assert_array_equal(self.pixels(event), numpy.arange(24).reshape(4, 6) * 10 + event.step)
        colours = numpy.array([0, 128, 255, 0, 255, 0, 64, 191, 26, 51, 76, 102], dtype=numpy.uint8).reshape(3, 2, 2)
        numpy.testing.assert_array_equal(self.pixels(events.Images("colours")[0]), colours.transpose(1, 2, 0))
        grid = numpy.zeros((4, 9), dtype=numpy.uint8)
        for i, picture in enumerate(numpy.arange(30).reshape(5, 2, 3) * 8):
            grid[i // 3 * 2:, i % 3 * 3:][:2, :3] = picture
        numpy.testing.assert_array_equal(self.pixels(events.Images("grid")[0]), grid)

    def check_histograms(self, events, batches):
        self.assertEqual([e.step for e in events.Histograms("values")], batches)
        self.assertEqual([e.step for e in events.Histograms("at the start")], [0])
        for event in events.Histograms("values"):
            values = [-2.5, 0.0, 1e-3, 4.0, float(event.step)]  # rank 0's, without the nan
            histogram = event.histogram_value
            self.assertEqual((histogram.num, histogram.min, histogram.max), (5, -2.5, max(values)))
            self.assertAlmostEqual(histogram.sum, sum(values), 6)
            self.assertAlmostEqual(histogram.sum_squares, sum(v * v for v in values), 5)
            self.assertEqual(sum(histogram.bucket), 5)
            for i, limit in enumerate(histogram.bucket_limit):
                low = histogram.bucket_limit[i - 1] if i > 0 else float("-inf")
                self.assertEqual(histogram.bucket[i], sum(low <= v < limit for v in values), limit)

    def test_metrics_pictures_and_histograms(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, logs=True, pictures=True).expect(0)
                self.assertEqual([path.name for path in (result.run_dir / "tensorboard").iterdir()], ["metrics"])
                events = self.events(result.run_dir / "tensorboard" / "metrics")
                for line in result.metrics("training") + result.metrics("validation"):
                    for name, value in line["metrics"].items():
                        written = {e.step: e.value for e in events.Scalars(f"{line['kind']}/{name}")}
                        self.assertAlmostEqual(written[line["batch"]], value, 5)
                self.assertEqual([e.step for e in events.Scalars("training/learning_rate")], [3, 6])
                self.check_pictures(events, [1, 2, 3, 4, 5, 6])
                self.check_histograms(events, [1, 2, 3, 4, 5, 6])

    def test_an_export_keeps_them(self):
        result = self.launch(1, pictures=True).expect(0)
        elsewhere = self.work.path / "elsewhere"
        for arguments, folder in (([], result.run_dir / "tensorboard"), (["-o", str(elsewhere)], elsewhere)):
            run([BUILD.program("dtrain"), "export", str(result.run_dir), "--format", "tensorboard", *arguments],
                result.run_dir).expect(0)
            self.assertTrue((folder / "rank-0000").is_dir())
            self.assertEqual(len(list((folder / "metrics").iterdir())), 1)
            events = self.events(folder / "metrics")
            self.assertEqual([e.step for e in events.Scalars("training/loss")], [3, 6])
            self.check_pictures(events, [1, 2, 3, 4, 5, 6])

    def test_a_killed_run_leaves_what_it_has_written(self):
        result = self.launch(2, mistake="killed", pictures=True)
        self.assertNotEqual(result.code, 0)
        events = self.events(result.run_dir / "tensorboard" / "metrics")
        line = result.metrics("training")[0]
        self.assertEqual([(e.step, round(e.value, 5)) for e in events.Scalars("training/loss")],
                         [(3, round(line["metrics"]["loss"], 5))])

    def test_a_run_that_goes_on_has_every_batch_once(self):
        result = self.launch(2, batches=(12,), terminate_at=4, pictures=True, logs=True,
                             sections={"min_checkpoint_period": {"batches": 2}})
        result.expect(75)
        self.go_on(result).expect(0)
        folder = result.run_dir / "tensorboard" / "metrics"
        self.assertEqual(len(list(folder.iterdir())), 2)
        events = self.events(folder)
        batches = [line["batch"] for line in result.metrics("training")]
        steps = [e.step for e in events.Scalars("training/loss")]
        self.assertEqual([step for step in steps if step in batches], batches)
        # The line that the first attempt wrote at its end, after its last checkpoint, is of no later batch.
        more = set(steps) - set(batches)
        self.assertLessEqual(more, {event["step"] for event in result.events("checkpoint_saved")})
        self.assertLessEqual(len(more), 1)
        self.check_pictures(events, list(range(1, 13)))
        self.check_histograms(events, list(range(1, 13)))

    def test_mistakes_are_named(self):
        for mistake, text in (
                ("picture_shape", 'context.log_image("shape") was given a tensor of Float [2, 5, 5]'),
                ("picture_type", 'context.log_image("type") was given a tensor of Long [5, 5]'),
                ("no_values", 'context.log_histogram("empty") was given a tensor without values')):
            with self.subTest(mistake):
                self.assertIn(text, self.launch(2, mistake=mistake).expect(1).output)


def top_level(phases):
    return sum(time for phase, time in phases.items() if "." not in phase)


class Scopes(LoopTest):
    PATHS = {"whole", "whole/forward", "whole/backward", "whole/thrown", "journal"}

    def test_every_rank_has_them_within_the_phases(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, scopes=True, sections={"min_validation_period": {"batches": 6}}).expect(0)
                for rank in range(ranks):
                    self.check_rank(result.lines(f"profile/rank-{rank:04}.jsonl"))
                self.check_programs(result, ranks)

    def check_rank(self, dump):
        steps = {line["batch"]: line for line in dump if line["record"] == "step"}
        self.assertEqual(sorted(steps), [1, 2, 3, 4, 5, 6])
        for batch, step in steps.items():
            scopes = {line["scope"]: line for line in dump if line["record"] == "scope" and line["batch"] == batch}
            self.assertEqual(set(scopes), self.PATHS | ({"evaluate"} if batch == 6 else set()))
            self.assertEqual(top_level(step["phases"]), step["wall_ns"])
            for path, scope in scopes.items():
                self.assertEqual(scope["calls"], 2 if path == "whole/forward" else scope["calls"])
                self.assertEqual(top_level(scope["phases"]), scope["wall_ns"])
                for phase, time in scope["phases"].items():
                    self.assertLessEqual(time, step["phases"][phase], (path, phase))
            self.assertEqual(set(scopes["journal"]["phases"]), {"callbacks"})
            self.assertIn("train_batch.forward", scopes["whole/forward"]["phases"])
            self.assertIn("train_batch.backward", scopes["whole/backward"]["phases"])
            within = sum(scopes[path]["wall_ns"] for path in scopes if path.startswith("whole/"))
            self.assertGreaterEqual(scopes["whole"]["wall_ns"], within)
            if batch == 6:
                self.assertEqual(set(scopes["evaluate"]["phases"]), {"validation"})

    def check_programs(self, result, ranks):
        def dtrain(*arguments):
            return run([BUILD.program("dtrain"), *arguments], result.run_dir).expect(0).output

        summary = json.loads(dtrain("summary", str(result.run_dir), "--json"))
        self.assertEqual(set(summary["scopes"]), self.PATHS | {"evaluate"})
        self.assertEqual(summary["scopes"]["whole/forward"]["calls"], 12 * ranks)
        self.assertEqual([set(rank["scopes_s"]) for rank in summary["ranks"]], [self.PATHS | {"evaluate"}] * ranks)
        self.assertIn("Scopes of the trial", dtrain("summary", str(result.run_dir)))
        self.assertIn("Scopes of the trial", dtrain("analyze", str(result.run_dir)))
        self.assertIn(">Scopes of the trial<", (result.run_dir / "report.html").read_text())

    def test_traces_show_when_they_ran(self):
        window = {"trace": {"begin_on_batch": 2, "end_after_batch": 3}}
        result = self.launch(2, scopes=True, sections={"profiling": window}).expect(0)
        run([BUILD.program("dtrain"), "trace", str(result.run_dir)], result.run_dir).expect(0)
        with gzip.open(result.run_dir / "trace.json.gz") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "scope"]
        paths = [event["args"]["path"] for event in events]
        self.assertEqual({path: paths.count(path) for path in self.PATHS},
                         {path: 8 if path == "whole/forward" else 4 for path in self.PATHS})

    def test_mistakes_are_named(self):
        result = self.launch(2, mistake="scope_name").expect(1)
        self.assertIn('context.scope("my scope"): this is no name of a scope', result.output)
        result = self.launch(1, mistake="many_scopes", batches=(70,)).expect(1)
        self.assertIn("would be the 65th of this program; at most 64 are possible", result.output)


class Collectives(LoopTest):
    def test_every_type_and_operation(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                self.launch(ranks, collectives=True, length={"batches": 1}).expect(0)

    def test_misuse_is_named(self):
        result = self.launch(2, mistake="other_operation").expect(1)
        self.assertIn("all_reduce", result.output)
        self.assertIn("all_gather", result.output)
        result = self.launch(2, mistake="after_backward").expect(1)
        self.assertIn("context.all_reduce() cannot be called here because gradients are being exchanged", result.output)
        result = self.launch(1, mistake="type").expect(1)
        self.assertIn("context.all_reduce() was given a tensor of type Bool", result.output)


class Callbacks(LoopTest):
    def test_calls_come_in_order_on_every_rank(self):
        for ranks, batches in ((1, (3,)), (2, (3, 2)), (3, (3, 3, 1))):
            with self.subTest(ranks):
                result = self.launch(ranks, batches=batches, length={"epochs": 2}, scores=[5, 4],
                                     sections={"min_validation_period": {"batches": 3}}).expect(0)
                for rank in range(ranks):
                    expected = ["on_training_start 0 0 "]
                    for epoch in range(2):
                        for batch in range(3):
                            if batch >= batches[rank]:
                                continue
                            number = 3 * epoch + batch + 1
                            first = batch * SAMPLES * ranks + rank
                            expected += [f"before_batch {number} {epoch} {first}", f"after_batch {number} {epoch} loss"]
                        expected += [f"on_validation_end {3 * epoch + 3} {epoch} {5.0 - epoch}",
                                     f"on_epoch_end {3 * epoch + 3} {epoch} "]
                    self.assertEqual(self.journal(result, rank), expected + ["on_training_end 6 1 "])

    def test_their_time_is_a_phase(self):
        result = self.launch(1).expect(0)
        dump = [json.loads(line) for line in (result.run_dir / "profile" / "rank-0000.jsonl").read_text().splitlines()]
        phases = [line["phases"]["callbacks"] for line in dump if line.get("record") == "step"]
        self.assertTrue(phases and all(time > 0 for time in phases))

    def test_a_callback_that_throws_is_named(self):
        for event, batch in (("before_batch", 2), ("after_batch", 3), ("on_validation_end", 6), ("on_checkpoint", 6),
                             ("on_epoch_end", 6), ("on_training_end", 6), ("on_training_start", 0)):
            with self.subTest(event):
                result = self.launch(2, fault={"in": event, "batch": batch, "rank": 1}).expect(1)
                self.assertIn(f"the callback journal failed in {event}(), at batch {batch}: no more paper", result.output)
                self.assertIn("rank 1", result.output)

    def test_other_callbacks_on_a_rank(self):
        result = self.launch(2, mistake="other_callbacks").expect(1)
        self.assertIn('the trial has added {"callbacks":["journal"],"metrics":[]} on rank 0', result.output)


STOPPING = {"searcher": {"metric": "score", "max_length": {"batches": 60}}, "min_validation_period": {"batches": 2},
            "early_stopping": {"patience": 3, "min_delta": 0.5}}
# The best after batch 4; 3.7 is not better by more than 0.5. Training ends after batch 10.
SCORES = [5, 4, 4.5, 3.7, 9, 1, 1]


class EarlyStopping(LoopTest):
    def check_end(self, result, batch=10, best=4.0, best_batch=4, validations=None):
        event = result.expect(0).events("early_stop")[-1]
        self.assertEqual((event["batch"], event["metric"], event["best"], event["best_batch"]), (batch, "score", best, best_batch))
        self.assertEqual(result.metrics("validation")[-1]["batch"], batch)
        self.assertEqual(result.json("plan.json")["early_stop"]["batch"], batch)
        self.assertIn(f"training ends early, after batch {batch}: score has not improved", result.output)
        if validations:
            self.assertIn(f"in the last {validations} validations", result.output)

    def test_training_ends_when_the_metric_no_longer_improves(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                result = self.launch(ranks, batches=(7,), scores=SCORES, sections=STOPPING)
                self.check_end(result)
                self.assertIn("by more than 0.5 in the last 3 validations; the best was 4.0, after batch 4", result.output)
                self.assertEqual(self.journal(result)[-1].split()[:2], ["on_training_end", "10"])

    def test_the_trial_asks_for_it(self):
        sections = {key: value for key, value in STOPPING.items() if key != "early_stopping"}
        settings = {"metric": "score", "smaller_is_better": False, "patience": 2}
        result = self.launch(2, batches=(7,), scores=[1, 2, 1, 2, 3], sections=sections, stop_early=settings)
        self.check_end(result, batch=8, best=2.0, best_batch=4)
        result = self.launch(1, batches=(7,), scores=SCORES, sections=STOPPING, stop_early=settings).expect(1)
        self.assertIn("the experiment has early_stopping, and the trial calls context.stop_early()", result.output)

    def test_a_metric_that_is_not_there(self):
        sections = {**STOPPING, "early_stopping": {"metric": "scores", "patience": 3}}
        result = self.launch(2, scores=SCORES, sections=sections).expect(1)
        self.assertIn("the metric of early stopping is 'scores', which evaluate_batch() does not return", result.output)

    def test_a_run_that_goes_on_ends_at_the_same_batch(self):
        for ranks in (1, 2, 3):
            whole = self.launch(ranks, batches=(7,), scores=SCORES, sections=STOPPING, logs=True)
            self.check_end(whole)
            for batch in (5, 8):
                with self.subTest(ranks=ranks, batch=batch):
                    broken = self.launch(ranks, batches=(7,), scores=SCORES, sections=STOPPING, logs=True,
                                         terminate_at=batch).expect(75)
                    broken = self.go_on(broken, "hyperparameters.terminate_at=0")
                    self.check_end(broken)
                    self.assertEqual(differences(what_is_left(whole.run_dir), what_is_left(broken.run_dir)), [])

    def test_a_run_that_has_ended_goes_on_with_more_patience(self):
        result = self.launch(2, batches=(7,), scores=SCORES, sections=STOPPING)
        self.check_end(result)
        # From batch 16 on the score is 0.
        longer = self.go_on(result, "early_stopping.patience=5", "searcher.max_length.batches=64")
        self.check_end(longer, batch=26, best=0.0, best_batch=16, validations=5)


class Kept(LoopTest):
    def kept(self, result):
        return sorted(int(path.name.removeprefix("step-")) for path in (result.run_dir / "checkpoints").glob("step-*"))

    def test_the_best_ones_stay(self):
        # By batch: 2: 5, 4: 3, 6: 4, 8: 6, 10: 2, 12: 7. Also those stay that were never the best so far, as that of batch 6.
        scores = [5, 3, 4, 6, 2, 7]
        sections = {"searcher": {"metric": "score", "max_length": {"batches": 12}}, "min_validation_period": {"batches": 2},
                    "checkpoint_storage": {"save_trial_best": 3, "save_trial_latest": 1}}
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                whole = self.launch(ranks, batches=(20,), scores=scores, sections=sections).expect(0)
                self.assertEqual(self.kept(whole), [4, 6, 10, 12])
                broken = self.launch(ranks, batches=(20,), scores=scores, sections=sections, terminate_at=5).expect(75)
                broken = self.go_on(broken, "hyperparameters.terminate_at=0").expect(0)
                self.assertEqual(self.kept(broken), [4, 6, 10, 12])
                self.assertEqual(differences(what_is_left(whole.run_dir), what_is_left(broken.run_dir)), [])

    def test_one_best_as_before(self):
        sections = {"searcher": {"metric": "score", "max_length": {"batches": 8}}, "min_validation_period": {"batches": 2}}
        result = self.launch(2, batches=(20,), scores=[5, 3, 4, 6], sections=sections).expect(0)
        self.assertEqual(self.kept(result), [4, 8])


if __name__ == "__main__":
    main("loop_trial")
