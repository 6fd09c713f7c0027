"""Deep windows of a real run of two ranks, read by the programs they are made for.

    traces.py BIN [TestClass[.test] ...]

HolisticTraceAnalysis and TensorBoard's event reader read what was written; the rest is checked against the Chrome trace
format and against the run's own records.
"""
import csv
import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import unittest

from harness import BUILD, SOURCE, Workplace, environment, launch, main, wait_until, write_experiment

FIRST, LAST = 8, 13


def experiment(path, batches, **sections):
    sections.setdefault("optimizations", {"tensor_fusion_threshold": 0.5, "sharded_optimizer": False})
    sections.setdefault("hyperparameters", {"global_batch_size": 64, "depth": 3, "width": 512})
    return write_experiment(path, name="traced", entrypoint=BUILD.program("synthetic"),
                            resources={"slots_per_trial": 2}, searcher={"max_length": {"batches": batches}}, **sections)


def read(path):
    with gzip.open(path) as file:
        return json.load(file)


def dtrain(*arguments, code=0):
    done = subprocess.run([BUILD.program("dtrain"), *map(str, arguments)], env=environment(), capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def slices(trace, category):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event.get("cat") == category]


def check_chrome_trace(test, trace):
    """The Trace Event Format, as its readers rely on it."""
    open_flows = {}
    nested = {}
    for event in trace["traceEvents"]:
        test.assertIn(event["ph"], "XMsfi", event)
        test.assertIsInstance(event.get("name", ""), str)
        if event["ph"] != "M":
            test.assertIsInstance(event["ts"], (int, float), event)
        if event["ph"] == "X":
            test.assertGreaterEqual(event["dur"], 0, event)
            test.assertTrue(event["name"])
            nested.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "M":
            test.assertIn(event["name"], ("process_name", "process_sort_index", "process_labels", "thread_name",
                                          "thread_sort_index"))
            test.assertIsInstance(event["args"], dict)
        if event["ph"] in "sf":
            open_flows.setdefault((event["cat"], event["id"]), []).append(event["ph"])
        if "tid" in event and event["ph"] in "Xsf":
            test.assertIsInstance(event["tid"], int)
    for ends in open_flows.values():
        test.assertEqual(sorted(ends), ["f", "s"])
    # Slices of one track lie inside of each other or apart.
    for track, spans in nested.items():
        stack = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= start + 0.01:
                stack.pop()
            test.assertTrue(not stack or end <= stack[-1] + 0.01, (track, start, end, stack))
            stack.append(end)


class Configured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("traces")
        file = experiment(cls.place.path / "e.yaml", 20,
                          profiling={"trace": {"begin_on_batch": FIRST, "end_after_batch": LAST}})
        cls.run_dir = cls.place.new_run()
        cls.result = launch(BUILD, file, cls.run_dir).expect(0)
        cls.merged_path = cls.place.path / "merged.json.gz"
        cls.said = json.loads(dtrain("trace", cls.run_dir, "-o", cls.merged_path, "--json").stdout)
        cls.merged = read(cls.merged_path)

    @classmethod
    def tearDownClass(cls):
        cls.place.remove()

    def trace(self, rank):
        return read(self.run_dir / "profile" / f"trace-rank-{rank:04}.json.gz")

    def test_each_rank_traced_exactly_these_batches(self):
        for rank in range(2):
            trace = self.trace(rank)
            check_chrome_trace(self, {"traceEvents": [e for e in trace["traceEvents"] if isinstance(e["pid"], int)]})
            ours = trace["dtrain"]
            self.assertEqual((ours["rank"], ours["first_batch"], ours["last_batch"], ours["cut"], ours["reason"]),
                             (rank, FIRST, LAST, None, "configured"))
            steps = [e["name"] for e in slices(trace, "user_annotation") if e["name"].startswith("ProfilerStep#")]
            self.assertEqual(steps, [f"ProfilerStep#{batch}" for batch in range(FIRST, LAST + 1)])
            self.assertEqual([e["args"]["batch"] for e in slices(trace, "step")], list(range(FIRST, LAST + 1)))
            names = {e["name"] for e in slices(trace, "cpu_op")}
            self.assertGreater(ours["operators"], len(slices(trace, "cpu_op")) / 2, "counted while they ran")
            self.assertIn("aten::addmm", names)
            self.assertIn("aten::mm", names, "backward runs on the same thread and is traced")
        self.assertEqual(sorted(e["rank"] for e in self.result.events("trace_written")), [0, 1])
        self.assertEqual(list(self.run_dir.glob("profile/*.raw")) + list(self.run_dir.glob("profile/*.part")), [])

    def test_operators_and_phases_are_on_one_time_line(self):
        """Every product of matrices lies in a phase that computes, though two clocks timed them."""
        for rank in range(2):
            trace = self.trace(rank)
            error = max(point["error_ns"] for point in trace["dtrain"]["clock"]) / 1e3
            self.assertLess(error, 50)
            computing = [(e["ts"], e["ts"] + e["dur"]) for e in slices(trace, "phase")
                         if e["name"] in ("train_batch.forward", "train_batch.backward")]
            products = [e for e in slices(trace, "cpu_op") if e["name"] in ("aten::addmm", "aten::mm")]
            self.assertGreater(len(products), 3 * (LAST - FIRST + 1))
            slack = 2 * error + 5
            for e in products:
                self.assertTrue(any(start - slack <= e["ts"] and e["ts"] + e["dur"] <= end + slack
                                    for start, end in computing), e)

    def test_the_merged_trace_is_a_chrome_trace_of_both_ranks(self):
        check_chrome_trace(self, self.merged)
        names = {e["pid"]: e["args"]["name"] for e in self.merged["traceEvents"] if e["name"] == "process_name"}
        self.assertEqual(sorted(name.split(" on ")[0] for name in names.values()), ["rank 0", "rank 1"])
        self.assertEqual(self.said["ranks"], [0, 1])
        self.assertFalse(self.said["from_dumps"])
        for pid in names:
            for category in ("step", "phase", "collective", "cpu_op", "user_annotation"):
                self.assertTrue(any(e["pid"] == pid for e in slices(self.merged, category)), (pid, category))

    def test_collectives_of_both_ranks_are_aligned_within_the_stated_error(self):
        error = self.said["clock_error_ns"] / 1e3
        self.assertLess(error, 200)
        pairs = {}
        for e in slices(self.merged, "collective"):
            pairs.setdefault((e["args"]["batch"], e["args"]["sequence"], e["args"]["operation"]), []).append(e)
        dumped = {0: {}, 1: {}}
        for rank in dumped:
            for line in self.result.lines(f"profile/rank-{rank:04}.jsonl"):
                if line["record"] == "collective" and FIRST <= line["batch"] <= LAST:
                    dumped[rank][line["batch"], line["sequence"], line["operation"]] = line
        self.assertEqual(pairs.keys(), dumped[0].keys())
        for key, both in pairs.items():
            self.assertEqual(len(both), 2, key)
            ranks = sorted(both, key=lambda e: e["pid"])
            # Nobody's is over before everybody has come (a small one's data counts from where it was
            # enqueued; the note of that may be a few microseconds late).
            come = [e["ts"] - (dumped[rank][key]["started_ns"] - dumped[rank][key]["enqueued_ns"]) / 1e3
                    for rank, e in enumerate(ranks)]
            self.assertGreaterEqual(min(e["ts"] + e["dur"] for e in both) + error + 5, max(come), key)
            # On one host the recorder's clock is one: slices are as far apart as the dumps say.
            apart = (dumped[1][key]["started_ns"] - dumped[0][key]["started_ns"]) / 1e3
            self.assertAlmostEqual(ranks[1]["ts"] - ranks[0]["ts"], apart, delta=error)
            for e, rank in zip(ranks, dumped):
                line = dumped[rank][key]
                self.assertEqual((e["args"]["bytes"], e["args"]["bucket"], e["args"]["ranks"]),
                                 (line["bytes"], line["bucket"], 2))
        flows = [e for e in self.merged["traceEvents"] if e.get("cat") == "waited_for"]
        self.assertEqual(len(flows), 2 * len(pairs))
        self.assertEqual(self.said["arrows"], len(pairs))

    def test_holistic_trace_analysis_reads_it(self):
        folder = self.place.path / "hta"
        done = dtrain("trace", self.run_dir, "--hta", folder)
        self.assertIn("stand in for kernels", done.stderr)
        script = ("import sys, json; from hta.trace_analysis import TraceAnalysis\n"
                  "a = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)\n"
                  "b = a.get_temporal_breakdown(visualize=False)\n"
                  "o = a.get_comm_comp_overlap(visualize=False)\n"
                  "print(json.dumps([b.to_dict('records'), o.to_dict('records')], default=float))\n")
        read_it = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True,
                                 timeout=120, check=False)
        self.assertEqual(read_it.returncode, 0, read_it.stderr[-2000:])
        breakdown, overlap = json.loads(read_it.stdout.splitlines()[-1])
        self.assertEqual([row["rank"] for row in breakdown], [0, 1])
        self.assertEqual([row["rank"] for row in overlap], [0, 1])
        for row, share in zip(breakdown, overlap):
            trace = self.trace(int(row["rank"]))
            computing = sum(e["dur"] for e in slices(trace, "phase") if e["name"] in
                            ("train_batch", "train_batch.forward", "train_batch.backward", "optimizer_step",
                             "step_lr_schedulers"))
            # Its compute time is our phases', whole microseconds each.
            self.assertAlmostEqual(row["compute_time(us)"], computing, delta=len(slices(trace, "phase")) + 5)
            self.assertGreater(row["non_compute_time(us)"] + row["idle_time(us)"], 0)
            self.assertTrue(0 <= share["comp_comm_overlap_pctg"] <= 100, share)

    def test_shares_of_operators_sum_to_one(self):
        folder = self.place.path / "tables"
        dtrain("export", self.run_dir, "--format", "csv", "-o", folder)
        with open(folder / "operators.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertAlmostEqual(sum(float(row["share"]) for row in rows), 1, places=6)
        by_name = {row["name"]: row for row in rows}
        self.assertEqual(by_name["aten::addmm"]["class"], "contraction")
        # Self time counts nothing twice: it is no more than the time the traced steps took.
        stepping = sum(e["dur"] for rank in range(2) for e in slices(self.trace(rank), "step")) / 1e6
        spent = sum(float(row["self_s"]) for row in rows)
        self.assertLess(spent, stepping)
        self.assertGreater(spent, 0.02 * stepping)


class Exported(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("exports")
        cls.run_dir = cls.place.new_run()
        cls.result = launch(BUILD, experiment(cls.place.path / "e.yaml", 30, scheduling_unit=10), cls.run_dir).expect(0)

    @classmethod
    def tearDownClass(cls):
        cls.place.remove()

    def test_tensorboard_reads_the_event_files(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        folder = self.run_dir / "tensorboard"
        for _ in range(2):  # an export replaces an earlier one
            self.assertIn(str(folder), dtrain("export", self.run_dir, "--format", "tensorboard").stdout)
        self.assertEqual({path.name for path in folder.iterdir()} - {"metrics", "rank-0000", "rank-0001"},
                         {path.name for path in folder.glob("agent-*")})
        self.assertEqual(len(list(folder.glob("agent-*"))), 1)
        for rank in range(2):
            events = EventAccumulator(str(folder / f"rank-{rank:04}"), size_guidance={"scalars": 0}).Reload()
            steps = [line for line in self.result.lines(f"profile/rank-{rank:04}.jsonl") if line["record"] == "step"]
            walls = events.Scalars("step/wall_ms")
            self.assertEqual([e.step for e in walls], [line["batch"] for line in steps])
            for e, line in zip(walls, steps):
                self.assertAlmostEqual(e.value, line["wall_ns"] / 1e6, places=3)
            backward = events.Scalars("phases_ms/train_batch.backward")
            self.assertAlmostEqual(backward[5].value, steps[5]["phases"]["train_batch.backward"] / 1e6, places=3)
            self.assertLess(abs(walls[0].wall_time - os.path.getmtime(self.run_dir / "plan.json")), 600)
        metrics = EventAccumulator(str(folder / "metrics"), size_guidance={"scalars": 0}).Reload()
        lines = [line for line in self.result.metrics("training") if line["metrics"]]
        self.assertGreaterEqual(len(lines), 3)
        for name in lines[0]["metrics"]:
            self.assertEqual([e.step for e in metrics.Scalars("training/" + name)], [line["batch"] for line in lines])

    def test_tables_hold_what_the_dumps_hold_and_every_column_is_explained(self):
        dtrain("export", self.run_dir, "--format", "sqlite")
        dtrain("export", self.run_dir, "--format", "csv")
        database = sqlite3.connect(f"file:{self.run_dir / 'profile.db'}?mode=ro", uri=True)
        tables = [name for name, in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        explained = (SOURCE / "docs" / "profile-tables.md").read_text()
        sections = {part.split("\n")[0]: part for part in explained.split("\n## ")[1:]}
        self.assertEqual(sorted(sections), sorted(tables))
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            with open(self.run_dir / "tables" / f"{table}.csv", newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
            self.assertEqual(rows[0], columns)
            self.assertEqual(len(rows) - 1, database.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table)
            for column in columns:
                also = sections["steps"] if table == "windows" else sections["collectives"] if table.startswith("coll") else ""
                self.assertIn(f"`{column}`", sections[table] + also, f"{table}.{column}")
        for rank in range(2):
            dump = [line for line in self.result.lines(f"profile/rank-{rank:04}.jsonl") if line["record"] == "step"]
            rows = database.execute("SELECT batch, wall_ns, samples, train_batch_ns, other_ns FROM steps WHERE rank = ?"
                                    " ORDER BY batch", (rank,)).fetchall()
            self.assertEqual(rows, [(line["batch"], line["wall_ns"], line["samples"], line["phases"]["train_batch"],
                                     line["phases"]["other"]) for line in dump])
        count, = database.execute("SELECT count(*) FROM collectives WHERE operation = 'all_reduce'").fetchone()
        self.assertGreater(count, 60)
        self.assertGreater(database.execute("SELECT count(*) FROM events").fetchone()[0], 3)
        database.close()

    def test_without_a_window_the_trace_has_the_steps_and_collectives_of_the_dumps(self):
        said = json.loads(dtrain("trace", self.run_dir, "--json").stdout)
        self.assertTrue(said["from_dumps"])
        trace = read(self.run_dir / "trace.json.gz")
        check_chrome_trace(self, trace)
        self.assertEqual(len(slices(trace, "step")), 60)
        self.assertEqual(len(slices(trace, "collective")), said["collectives"])
        done = dtrain("trace", self.run_dir, "--hta", self.place.path / "none", code=1)
        self.assertIn("has no trace", done.stderr)
        done = dtrain("trace", self.run_dir, "--now", code=2)
        self.assertIn("is over", done.stderr)


class Now(unittest.TestCase):
    """A job that runs is asked for a trace."""

    def run_with(self, **sections):
        place = Workplace("trace-now")
        self.addCleanup(place.remove)
        run_dir = place.new_run()
        process = subprocess.Popen([BUILD.program("dtrain"), "launch", experiment(place.path / "e.yaml", 10**6, **sections),
                                    "--run-dir", run_dir], env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(lambda: process.poll() is not None or (run_dir / "metrics.jsonl").is_file() and
                   (run_dir / "metrics.jsonl").stat().st_size > 0, "the first metrics")
        return run_dir, process

    def windows(self, run_dir, number):
        suffix = "" if number == 1 else f".{number}"
        heads = [read(run_dir / "profile" / f"trace-rank-{rank:04}{suffix}.json.gz")["dtrain"] for rank in range(2)]
        return [(head["first_batch"], head["last_batch"], head["reason"]) for head in heads]

    def test_all_ranks_trace_the_same_steps_and_go_on(self):
        run_dir, process = self.run_with(scheduling_unit=10)
        done = dtrain("trace", run_dir, "--now", "--steps", 4)
        self.assertIn("all ranks trace batches", done.stderr)
        first, last, reason = self.windows(run_dir, 1)[0]
        self.assertEqual(self.windows(run_dir, 1), [(first, last, "requested")] * 2)
        self.assertEqual(last - first, 3)
        check_chrome_trace(self, read(run_dir / "trace.json.gz"))
        dtrain("trace", run_dir, "--now", "--steps", 2)  # once more
        again = self.windows(run_dir, 2)
        self.assertEqual(again[0], again[1])
        self.assertGreater(again[0][0], last)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, output)

    def test_a_window_without_an_end_is_cut_when_it_is_full(self):
        run_dir, process = self.run_with(scheduling_unit=100, profiling={"enabled": True},
                                         hyperparameters={"global_batch_size": 2, "depth": 24, "width": 8})

        def written():
            return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()
                    if '"trace_written"' in line]

        wait_until(lambda: len(written()) == 2 or process.poll() is not None, "both traces")
        self.assertIsNone(process.poll(), "training goes on")
        for event in written():
            self.assertIn("400000 operators were recorded", event["cut"])
            self.assertLess(event["operators"], 410_000)
            self.assertLess(event["bytes"], 40e6)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    def test_with_local_steps_too(self):
        run_dir, process = self.run_with(scheduling_unit=10, optimizations={"local_sgd": {"inner_steps": 8}})
        dtrain("trace", run_dir, "--now", "--steps", 3)
        both = self.windows(run_dir, 1)
        self.assertEqual(both[0], both[1])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


if __name__ == "__main__":
    main("synthetic")
