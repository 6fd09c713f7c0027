"""Whole runs of `model:` experiments: workers, going on with other ranks, damaged samples, files that change.

    data_loading.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy
import safetensors.numpy
import torch
from torch import nn

from harness import DEADLINE, environment, overrides, run, wait_until, write_experiment
from torchscript_models import Mlp, ScriptTest, experiment, main, save_script

SAMPLES = 100


class Counts(nn.Module):
    """Its weights count how often each sample was trained with: each use takes 1 / ranks off."""

    def __init__(self):
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, x, target):
        return self.uses[x.to(torch.long)].sum()


class Loading(ScriptTest):
    def numbers(self, **keys):
        """A data set whose samples are their own numbers."""
        save_script(Counts(), self.folder / "model.pt")
        numpy.save(self.folder / "x.npy", numpy.arange(SAMPLES, dtype=numpy.float32))
        numpy.save(self.folder / "y.npy", numpy.zeros(SAMPLES, dtype=numpy.float32))
        return {"format": "npy", "training": {"features": "x.npy", "target": "y.npy"}, **keys}

    def counting(self, data, **more):
        sections = experiment("model.pt", data, loss="from_model", optimizer={"kind": "sgd", "lr": 1.0}, **more)
        sections["searcher"].pop("metric")
        return sections

    def uses(self, result):
        """How many samples have which weight."""
        weights = -safetensors.numpy.load_file(result.weights_file)["uses"]
        return Counter(round(float(weight), 4) for weight in weights)

    def go_on(self, result, *sets):
        command = [self.build.program("dtrain"), "launch", "--continue", str(result.run_dir), *overrides(sets)]
        return run(command, result.run_dir)


class Workers(Loading):
    def test_any_number_gives_the_same_weights(self):
        for number, rows in ((0, 40), (1, 25)):
            features = numpy.random.default_rng(number).normal(size=(rows, 8)).astype(numpy.float32)
            numpy.save(self.folder / f"x-{number}.npy", features)
            numpy.save(self.folder / f"y-{number}.npy", numpy.arange(rows) % 3)
        save_script(Mlp(8, 3), self.folder / "model.pt")
        source = {"features": "x-*.npy", "target": "y-*.npy"}
        weights = set()
        for keys in ({"workers": 0}, {"workers": 1, "prefetch": 0}, {"workers": 3},
                     {"workers": "auto", "in_memory": "never"}):
            data = {"format": "npy", "training": source, "validation": source, **keys}
            result = self.launched(experiment("model.pt", data, steps=20, batch=8, slots=2)).expect(0)
            weights.add(result.weights_file.read_bytes())
            self.assertEqual(result.metrics("validation")[-1]["samples"], 65)
        self.assertEqual(len(weights), 1)

    def test_records_say_what_reading_took(self):
        data = self.numbers(workers=2, in_memory="never")
        result = self.launched(self.counting(data, steps=12, batch=8)).expect(0)
        dump = result.run_dir / "profile" / "rank-0000.jsonl"
        records = [json.loads(line) for line in dump.read_text().splitlines()]
        loading = [record for record in records if record["record"] == "loader"]
        self.assertEqual(len(loading), 12)
        for record in loading:
            self.assertEqual(record["workers"], 2)
            self.assertEqual(record["skipped"], 0)
            self.assertGreater(record["cpu_ns"], 0)
            self.assertLessEqual(record["cpu_ns"], record["fetch_ns"] * 1.5 + 1e6)
        summary = subprocess.run([self.build.program("dtrain"), "summary", str(result.run_dir), "--json"], check=True,
                                 env=environment(), stdout=subprocess.PIPE, text=True).stdout
        of_rank = json.loads(summary)["ranks"][0]["loader"]
        self.assertEqual(of_rank["batches"], 12)
        self.assertEqual(of_rank["skipped_samples"], 0)


class GoingOn(Loading):
    def test_another_global_batch_loses_and_repeats_nothing(self):
        sections = self.counting(self.numbers(), steps=5, batch=9)
        result = self.launched(sections).expect(0)
        self.assertEqual(self.uses(result), {1.0: 45, 0.0: 55})
        # Two ranks take 8 of 9. One epoch of which 45 samples are used has 6 batches left.
        went_on = self.go_on(result, "resources.slots_per_trial=2", "searcher.max_length={epochs: 1}",
                             "data.workers=3").expect(0)
        self.assertEqual(self.uses(went_on), {1.0: 45, 0.5: 48, 0.0: 7})
        self.assertEqual(went_on.json("plan.json")["length"], {"batches": 11, "batches_per_epoch": 12})

    def test_several_times_in_one_epoch(self):
        sections = self.counting(self.numbers(workers=1, shuffle=True), steps=2, batch=10)
        result = self.launched(sections).expect(0)
        for workers, batches in ((0, 3), (3, 7), (1, 10)):
            result = self.go_on(result, f"searcher.max_length.batches={batches}", f"data.workers={workers}").expect(0)
            left = 100 - 10 * batches
            self.assertEqual(self.uses(result), {1.0: 100 - left, **({0.0: left} if left else {})})

    def test_another_order_is_said(self):
        result = self.launched(self.counting(self.numbers(), steps=5, batch=10)).expect(0)
        result = self.go_on(result, "searcher.max_length.batches=8", "data.shuffle=false").expect(0)
        self.assertIn("samples of epoch 0 may be missing or come twice", result.output + (
            result.run_dir / "logs" / "rank-0000.log").read_text())


class Damage(Loading):
    def tokens(self, **keys):
        """Sample 5 has a token that is none."""
        tokens = numpy.arange(4 * 30 + 1, dtype=numpy.int32) % 7
        tokens[22] = -1
        tokens.tofile(self.folder / "tokens.bin")

        class Bigram(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(7, 7)

            def forward(self, x):
                return self.table(x)

        save_script(Bigram(), self.folder / "model.pt")
        source = {"file": "tokens.bin"}
        data = {"format": "tokens", "token_type": "int32", "sequence_length": 4, "training": source, **keys}
        sections = experiment("model.pt", data, batch=10, slots=2)
        sections["searcher"] = {"max_length": {"epochs": 2}}
        return {**sections, "scheduling_unit": 3}

    def test_an_error_names_the_sample(self):
        for workers in (0, 3):
            result = self.launched(self.tokens(workers=workers)).expect(1)
            self.assertRegex(result.output, r"sample 5: \S+/tokens.bin: offset 88: token id -1 is negative")

    def test_skipping_counts(self):
        result = self.launched(self.tokens(on_error="skip", max_skipped=1, validation={"file": "tokens.bin"})).expect(0)
        counts = [line["metrics"]["skipped_samples"] for line in result.metrics("training")]
        self.assertEqual(sum(counts), 2)  # once in each epoch
        self.assertEqual(result.metrics("validation")[-1]["metrics"]["skipped_samples"], 1)
        self.assertIn("2 damaged samples", result.output)
        logs = "".join(path.read_text() for path in (result.run_dir / "logs").glob("rank-*.log"))
        self.assertIn("training: left out a damaged sample: sample 5", logs)

    def test_skipping_has_a_limit(self):
        result = self.launched(self.tokens(on_error="skip", max_skipped=0)).expect(1)
        self.assertIn("damaged samples were left out in epoch 0", result.output)
        self.assertIn("max_skipped", result.output)

    def test_a_file_that_shrinks_while_it_is_read(self):
        data = self.numbers(in_memory="never")
        sections = {**self.counting(data, steps=10**7, batch=10, slots=2), "scheduling_unit": 10}
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        run_dir = self.work.new_run()
        process = subprocess.Popen([self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)],
                                   env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            metrics = run_dir / "metrics.jsonl"
            wait_until(lambda: metrics.is_file() and metrics.read_text(), "the first metrics")
            os.truncate(self.folder / "x.npy", 200)
            output, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 1, output)
        self.assertRegex(output, r"sample \d+: \S+/x.npy: offset \d+: truncated: the file ends here, though it had 528 bytes")


class PlantedDisks(Loading):
    """A disk that is slow, and a shared file system that hangs (tests/data/slow_reads.cpp)."""

    def launched_on(self, data, slots=2, **variables):
        sections = {**self.counting(data, steps=60, batch=10, slots=slots), "communication": {"timeout": 10}}
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        run_dir = self.work.new_run()
        library = Path(self.build.bin).parent / "tests" / "slow_reads.so"
        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)]
        return run(command, run_dir, LD_PRELOAD=str(library), DTRAIN_SLOW_READS_OF="x.npy", **variables)

    def test_a_file_system_that_hangs_is_an_error_that_names_the_file(self):
        for workers in (1, 2):
            result = self.launched_on(self.numbers(in_memory="never", workers=workers), DTRAIN_SLOW_READS_HANG_AFTER="150")
            result.expect(1)
            self.assertRegex(result.output, r"no batch came for 9 s: .*sample \d+ \(\S+/x.npy, offset \d+\)")
            self.assertIn("does the disk or the network that has the data answer?", result.output)

    def test_a_slow_disk_is_a_finding_that_names_what_to_change(self):
        result = self.launched_on(self.numbers(in_memory="never", workers=1), slots=1, DTRAIN_SLOW_READS_MS="4").expect(0)
        analyzed = run([self.build.program("dtrain"), "analyze", str(result.run_dir), "--json"], result.run_dir).expect(0)
        finding = json.loads(analyzed.output)["findings"][0]
        self.assertEqual((finding["id"], finding["cause"]), ("loader", "slow_loader"), finding)
        self.assertIn("waiting for storage", finding["evidence"])
        self.assertIn("data.workers", finding["advice"])


if __name__ == "__main__":
    main()
