"""What the profile of a run on GPUs has: times of the GPUs, exposed communication, memory, traces, advice.

    gpu_profiles.py BIN_FOLDER [TestClass[.test] ...]
"""
import collections
import gzip
import json
import subprocess
import unittest

from gpu_cases import FAKE_GPUS, gpu_environment
from harness import BUILD, SOURCE, Workplace, environment, launch, main

BATCHES = 60
EXPERIMENT = SOURCE / "configs" / "synthetic.yaml"
SETS = ["resources.slot_type=cuda", f"searcher.max_length.batches={BATCHES}", "min_validation_period.batches=25",
        "hyperparameters.width=64", "scheduling_unit=20"]  # the first epoch is longer


class GpuRuns(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("gpu-profiles")
        self.addCleanup(self.work.remove)

    def launch(self, ranks, *sets, **extra):
        # The GPU is behind its host: events are not ready when they are asked for at once.
        extra = {"DTRAIN_FAKE_GPU_DELAYED_QUERIES": "2", "XDG_CACHE_HOME": str(self.work.path / "no-cache"), **extra}
        return launch(BUILD, EXPERIMENT, self.work.new_run(), [*SETS, f"resources.slots_per_trial={ranks}", *sets],
                      **gpu_environment(BUILD, **extra)).expect(0)

    def machine(self, driver=None, **gpu):
        """The fake libraries in a folder of their own, with GPUs of which the driver says `gpu`."""
        folder = self.work.path / "libraries"
        if not folder.exists():
            folder.mkdir()
            for library in (BUILD.bin.parent / "tests" / "fake_gpus").iterdir():
                (folder / library.name).symlink_to(library.resolve())
        gpus = [{"uuid": f"GPU-fake0000-0000-0000-0000-{index:012x}", "name": "Fake GPU", "total": 4 << 30,
                 "free": 3 << 30, "util": 0, "temperature": 40, "capability": [9, 0], "pids": [], **gpu}
                for index in range(FAKE_GPUS)]
        told = {"gpus": gpus, **({"driver": driver} if driver else {})}
        (folder / "libnvidia-ml.so.1.json").write_text(json.dumps(told))
        return {"LD_LIBRARY_PATH": str(folder)}

    def dtrain(self, *arguments):
        return subprocess.run([BUILD.program("dtrain"), *arguments], env=environment(), check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def dump(self, run, rank):
        by_kind = collections.defaultdict(list)
        for line in run.lines(f"profile/rank-{rank:04}.jsonl"):
            by_kind[line["record"]].append(line)
        return by_kind

    def check_steps(self, dump):
        self.assertEqual([step["batch"] for step in dump["step"]], list(range(1, BATCHES + 1)))
        loop, = (part for part in dump["part"] if part["part"] == "loop")
        end = loop["start_ns"]
        for step in dump["step"]:
            phases = step["phases"]
            self.assertEqual(sum(time for phase, time in phases.items() if "." not in phase), step["wall_ns"], step)
            self.assertGreaterEqual(min(phases.values()), 0, step)
            self.assertGreaterEqual(step["start_ns"], end, step)
            end = step["start_ns"] + step["wall_ns"]
            for phase in ("train_batch.forward", "train_batch.backward", "optimizer_step"):
                self.assertGreater(phases[phase], 0, step)
        self.assertLessEqual(end, loop["end_ns"])

    def collectives_by_batch(self, dump):
        by_batch = collections.defaultdict(list)
        for one in dump["collective"]:
            self.assertLessEqual(one["enqueued_ns"], one["started_ns"], one)
            self.assertLessEqual(one["started_ns"], one["ended_ns"], one)
            self.assertGreaterEqual(one["exposed_ns"], 0, one)
            by_batch[one["batch"]].append(one)
        return by_batch


class Times(GpuRuns):
    def test_of_steps_are_those_of_the_gpus(self):
        for ranks in (1, 2, 4):
            for sharded in ("false", "true") if ranks == 2 else ("auto",):
                with self.subTest(ranks=ranks, sharded=sharded):
                    self.check(self.launch(ranks, f"optimizations.sharded_optimizer={sharded}"), ranks)

    def check_flops(self, run, ranks, summary):
        width = 64
        flops = 2 * (2 * 256 * width + 3 * (2 * width * width + 10 * width))  # the data gets no gradient
        self.assertEqual(run.json("plan.json")["flops"], {"per_sample": flops, "dtype": "float32", "device": "cuda"})
        for rank in range(ranks):
            counts = run.json(f"profile/operators-rank-{rank:04}.json")
            self.assertEqual(counts["flops_per_sample"], flops)  # backward's, too, which runs on a thread of autograd
            self.assertEqual({row["seconds"] for row in counts["operators"]}, {None})
        self.assertGreater(summary["achieved_gflops"], 0)
        self.assertIsNone(summary["mfu"])

    def check(self, run, ranks):
        for rank in range(ranks):
            dump = self.dump(run, rank)
            self.check_steps(dump)
            collectives = self.collectives_by_batch(dump)
            last = 0
            for line in run.lines(f"profile/rank-{rank:04}.jsonl"):  # in the order of the steps
                if line["record"] in ("step", "collective", "loader"):
                    self.assertGreaterEqual(line["batch"], last)
                    last = line["batch"]
            for step in dump["step"]:
                self.assertEqual(step["phases"]["device_wait"], 0)
                exposed = sum(one["exposed_ns"] for one in collectives[step["batch"]])
                self.assertLessEqual(exposed, step["phases"]["allreduce_wait"], step)
                buckets = [one for one in collectives[step["batch"]] if one["bucket"] >= 0]
                self.assertTrue(buckets, step)
            validated = [step["batch"] for step in dump["step"] if step["phases"]["validation"] > 0]
            self.assertEqual(validated, [25, 50, BATCHES])
        summary = json.loads(self.dtrain("summary", str(run.run_dir), "--json"))
        self.check_flops(run, ranks, summary)
        self.assertTrue(summary["times_of_gpus"])
        self.assertIn("Where the GPU's time went" if ranks == 1 else "Where the GPUs' time went", run.output)
        self.assertLessEqual(summary["in_steps_s"], summary["loop_s"])

    def test_are_the_hosts_where_that_is_asked_for(self):
        run = self.launch(2, "profiling.sync_timings=false")
        for rank in range(2):
            dump = self.dump(run, rank)
            self.check_steps(dump)
            collectives = self.collectives_by_batch(dump)
            self.assertTrue(all(any(one["bucket"] >= 0 for one in collectives[batch + 1]) for batch in range(BATCHES)))
            self.assertGreater(sum(step["phases"]["device_wait"] for step in dump["step"]), 0)
        summary = json.loads(self.dtrain("summary", str(run.run_dir), "--json"))
        self.assertFalse(summary["times_of_gpus"])
        self.assertIn("Where the time went", run.output)
        waterfall = json.loads(self.dtrain("analyze", str(run.run_dir), "--json"))["waterfall"]
        parts = {part["name"]: part["seconds"] for part in waterfall["parts"]}
        self.assertGreater(parts["device_wait"], 0)
        self.assertAlmostEqual(sum(parts.values()), waterfall["wall_s"], places=6)

    def test_of_steps_that_are_cuda_graphs(self):
        batches = 120
        sets = [f"searcher.max_length.batches={batches}", "optimizations.cuda_graphs=true",
                "optimizations.sharded_optimizer=false"]
        for more in ([], ["profiling.sync_timings=false"]):
            with self.subTest(more):
                run = self.launch(2, *sets, *more)
                told = run.json("plan.json")["cuda_graphs"]
                self.assertTrue(told["captured"], told)
                self.assertLess(told["batch"], batches // 2)
                for rank in range(2):
                    dump = self.dump(run, rank)
                    collectives = self.collectives_by_batch(dump)
                    self.assertEqual([step["batch"] for step in dump["step"]], list(range(1, batches + 1)))
                    for step in dump["step"]:
                        phases, batch = step["phases"], step["batch"]
                        self.assertEqual(sum(time for phase, time in phases.items() if "." not in phase),
                                         step["wall_ns"], step)
                        as_graph = batch >= told["batch"]
                        self.assertTrue(step["exchanged"])
                        self.assertEqual(phases["graph"] > 0, as_graph, step)
                        self.assertEqual(phases["train_batch.backward"] == 0, as_graph, step)
                        self.assertEqual(phases["optimizer_step"] == 0, as_graph, step)
                        buckets = [one for one in collectives[batch] if one["bucket"] >= 0]
                        self.assertEqual(buckets == [], as_graph, step)
                analysis = json.loads(self.dtrain("analyze", str(run.run_dir), "--json"))
                self.assertGreater(analysis["summary"]["graphs_s"], 0)
                waterfall = analysis["waterfall"]
                self.assertAlmostEqual(sum(part["seconds"] for part in waterfall["parts"]), waterfall["wall_s"], places=6)
                self.assertTrue([note for note in analysis["what_if"]["notes"] if "CUDA graphs" in note])
                self.assertIn("in CUDA graphs (", " ".join(run.output.split()))

    def test_of_batches_without_an_exchange(self):
        run = self.launch(2, "optimizations.aggregation_frequency=3")
        for rank in range(2):
            for step in self.dump(run, rank)["step"]:
                exchanged = step["batch"] % 3 == 0
                self.assertEqual(step["exchanged"], exchanged)
                self.assertEqual(step["phases"]["optimizer_step"] > 0, exchanged, step)


class Limits(GpuRuns):
    """The limits of the kinds of GPUs: measured once, remembered, in plan.json, and what MFU is a part of."""

    def launch(self, ranks, *sets, **extra):
        self.variables = {"XDG_CACHE_HOME": str(self.work.path / "cache"), **extra}
        return super().launch(ranks, *sets, DTRAIN_CALIBRATION="true", **self.variables)

    def doctor(self, *words):
        command = [BUILD.program("dtrain"), "doctor", "--runs", str(self.work.path), *words, "--json"]
        done = subprocess.run(command, env=environment(**gpu_environment(BUILD, **self.variables)), text=True,
                              stdout=subprocess.PIPE)
        return json.loads(done.stdout)["gpu_limits"]

    def limits(self, run):
        plan = run.json("plan.json")
        self.assertNotIn("limits", plan)
        (kinds,) = plan["gpu_limits"].values()
        self.assertEqual(list(plan["gpu_limits"]), sorted({rank["host"] for rank in plan["ranks"]}))
        self.assertEqual({kind["gpu"] for kind in kinds}, {rank["gpu"]["name"] for rank in plan["ranks"]})
        return kinds

    def test_a_kind_is_measured_once(self):
        first = self.launch(2)
        self.assertIn("measured Fake GPU and NCCL between 2 GPUs of this machine once", first.output)
        (both,) = self.limits(first)
        nccl = both["exchange"]
        self.assertEqual(nccl["gpus"], 2)
        for operation in ("all_reduce_gb_s", "all_gather_gb_s"):
            self.assertIn("65536", nccl[operation])  # larger ones are left out where they take too long
            self.assertLessEqual(set(nccl[operation]), {"65536", "1048576", "26214400", "104857600"})
            self.assertGreater(min(nccl[operation].values()), 0)
        kind = {name: figure for name, figure in both.items() if name != "exchange"}
        self.assertEqual(set(kind["gflops"]), {"float32", "tf32", "bfloat16", "float16"})
        self.assertEqual(set(kind["host_copy_gb_s"]), {"to_gpu", "from_gpu", "to_gpu_pageable", "from_gpu_pageable"})
        for figure in (*kind["gflops"].values(), *kind["host_copy_gb_s"].values(), kind["memory_read_gb_s"],
                       kind["memory_copy_gb_s"], kind["launch_us"]):
            self.assertTrue(0 < figure < 1e9, kind)
        summary = json.loads(self.dtrain("summary", str(first.run_dir), "--json"))
        self.assertEqual(summary["limit_dtype"], "tf32")
        self.assertAlmostEqual(summary["limit_gflops"], 2 * kind["gflops"]["tf32"])
        self.assertAlmostEqual(summary["mfu"], summary["achieved_gflops"] / summary["limit_gflops"])
        self.assertRegex(" ".join(first.output.split()), r"MFU [0-9.]+% of [0-9.]+ .?FLOP/s in tf32")
        analysis = json.loads(self.dtrain("analyze", str(first.run_dir), "--json"))
        parts = analysis["waterfall"]["parts"]
        self.assertEqual([part["name"] for part in parts[:3]], ["products", "memory_bound", "slower_kernels"])
        self.assertGreater(parts[0]["seconds"], 0)
        self.assertAlmostEqual(sum(part["seconds"] for part in parts), analysis["waterfall"]["wall_s"], places=6)
        self.assertEqual(analysis["roofline"]["gpu_limits"], both)
        self.assertTrue(analysis["roofline"]["operators"])
        self.assertIsNone(analysis["operators"]["gpu_window"], "no trace")
        plain = self.launch(1, "optimizations.tf32=false")
        self.assertEqual(json.loads(self.dtrain("summary", str(plain.run_dir), "--json"))["limit_gflops"],
                         kind["gflops"]["float32"])
        again = self.launch(1)
        self.assertNotIn("of this machine once", again.output)
        self.assertEqual(self.limits(again), [kind])
        self.assertEqual(self.limits(self.launch(2)), [both])
        self.assertEqual(self.doctor(), [kind])
        self.assertEqual(self.limits(self.launch(1, "profiling.calibration=false")), [kind])
        (anew,) = self.doctor("--bench")
        self.assertEqual(anew["gpu"], kind["gpu"])
        self.assertGreater(anew["launch_us"], 0)
        self.assertEqual(anew["exchange"]["gpus"], FAKE_GPUS)

    def test_another_driver_or_other_clocks_are_measured_again(self):
        old = self.machine(driver="580.1", clocks={"max_sm": 1980, "application": 1800})
        (kind,) = self.limits(self.launch(1, **old))
        self.assertEqual((kind["driver"], kind["application_clock"], kind["most_clock"]), ("580.1", 1800, 1980))
        for change in ({"driver": "590.1", "clocks": {"max_sm": 1980, "application": 1800}},
                       {"driver": "580.1", "clocks": {"max_sm": 1980, "application": 900}}):
            other = self.launch(1, **self.machine(**change))
            self.assertIn("once", other.output)
            self.assertNotEqual(self.limits(other)[0]["launch_us"], kind["launch_us"])
        back = self.launch(1, **self.machine(driver="580.1", clocks={"max_sm": 1980, "application": 1800}))
        self.assertEqual(self.limits(back), [kind])

    def test_where_nothing_may_be_measured_nothing_is_claimed(self):
        run = self.launch(1, "profiling.calibration=false")
        self.assertNotIn("gpu_limits", run.json("plan.json"))
        self.assertEqual(self.doctor(), [])
        self.assertIn("no MFU", " ".join(run.output.split()))


class Memory(GpuRuns):
    def test_of_each_rank_is_in_summary_and_report(self):
        run = self.launch(2)
        summary = json.loads(self.dtrain("summary", str(run.run_dir), "--json"))
        for rank in summary["ranks"]:
            memory = rank["gpu_memory"]
            self.assertIn("train_batch.backward", memory["phases"])
            self.assertEqual(memory["phases"][memory["peak_phase"]], memory["peak_bytes"])
            self.assertEqual(max(memory["phases"].values()), memory["peak_bytes"])
            self.assertGreaterEqual(memory["reserved_bytes"], memory["peak_bytes"])
        self.assertIn("GPU memory of the ranks", run.output)
        gpus = {gpu["index"]: gpu["rank"] for gpu in summary["agents"][0]["gpus"]}
        self.assertEqual(gpus, {0: 0, 1: 1, **{unused: None for unused in range(2, FAKE_GPUS)}})
        page = (run.run_dir / "report.html").read_text()
        self.assertIn("The most that tensors took on each rank&#39;s GPU, by phase".replace("&#39;", "'"),
                      page.replace("&#39;", "'").replace("&#x27;", "'"))
        self.assertIn('"rank-gpu-memory"', page)


class Traces(GpuRuns):
    def test_have_all_but_what_the_machine_cannot_record(self):
        first, last = 20, 24
        run = self.launch(2, f"profiling.trace.begin_on_batch={first}", f"profiling.trace.end_after_batch={last}")
        for rank in range(2):
            with gzip.open(run.run_dir / "profile" / f"trace-rank-{rank:04}.json.gz") as file:
                trace = json.load(file)
            events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
            steps = [event["args"]["batch"] for event in events if event.get("cat") == "step"]
            self.assertEqual(steps, list(range(first, last + 1)))
            traced = sorted(event["args"]["sequence"] for event in events if event.get("cat") == "collective")
            recorded = sorted(one["sequence"] for one in self.dump(run, rank)["collective"]
                              if first <= one["batch"] <= last)
            self.assertEqual(traced, recorded)
            self.assertTrue(any(event.get("cat") == "cpu_op" for event in events))
            self.assertIn("the work of the GPU", trace["dtrain"]["missing"])  # no CUPTI here
        self.assertTrue(all("CUPTI" in event["missing"] for event in run.events("trace_written")))
        self.assertIn("the trace lacks the work of the GPU", run.output)
        self.assertIn("lacks the work of the GPU", self.dtrain("trace", str(run.run_dir)))


class KernelTimes(GpuRuns):
    def test_end_once_where_cupti_is_missing(self):
        for graphs in ("false", "true"):
            with self.subTest(graphs=graphs):
                run = self.launch(2, "profiling.kernel_times=10", f"optimizations.cuda_graphs={graphs}")
                for rank in range(2):
                    log = (run.run_dir / "logs" / f"rank-{rank:04}.log").read_text()
                    self.assertEqual(log.count("no kernels are timed from now on"), 1, log)
                    self.assertIn("CUPTI", log)
                    self.assertFalse((run.run_dir / "profile" / f"kernels-rank-{rank:04}.json").exists())

    def test_are_not_asked_for_in_short_runs(self):
        run = self.launch(2)
        self.assertNotIn("no kernels are timed", run.output)


class Advice(GpuRuns):
    def test_can_be_followed_on_gpus(self):
        run = self.launch(2, **self.machine(util=20))
        analysis = json.loads(self.dtrain("analyze", str(run.run_dir), "--json"))
        texts = [finding["advice"] for finding in analysis["findings"]]
        texts += [change["title"] for change in analysis["what_if"]["changes"]]
        texts.append(self.dtrain("analyze", str(run.run_dir)))  # with the rules' advice
        for refused in ("gradient_compression", "auto_tune_tensor_fusion"):
            self.assertFalse([text for text in texts if refused in text])
        self.assertNotIn("half_the_bytes", [change["name"] for change in analysis["what_if"]["changes"]])
        rules = {rule["name"]: rule for rule in analysis["rules"]}
        self.assertTrue(rules["PinnedMemory"]["applicable"])
        self.assertEqual(rules["PinnedMemory"]["triggered"], 0)
        of_ranks = [gpu for gpu in analysis["summary"]["agents"][0]["gpus"] if gpu["rank"] is not None]
        self.assertEqual([gpu["metrics"]["gpu_util"]["max"] for gpu in of_ranks], [20, 20])


if __name__ == "__main__":
    main("synthetic")
