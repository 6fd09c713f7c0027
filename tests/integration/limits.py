"""The limits of a machine: measured once, remembered, and in plan.json; and the path of float32 matrix products.

Nothing here asserts how fast anything is.

    limits.py BIN_FOLDER
"""
import json
import os
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from harness import BUILD, SOURCE, Workplace, environment, launch, main, overrides, run

FIGURES = ("memory_gb_s", "gflops", "convolution_gflops", "all_reduce_gb_s")
STATE = "DTRAIN_STATE_DIR"
SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SMALL = ["hyperparameters.width=192", "hyperparameters.depth=3", "hyperparameters.global_batch_size=32",
         "data.samples=256", "resources.slot_type=cpu", "searcher.max_length.batches=6"]


def is_amd_with_avx2():
    text = Path("/proc/cpuinfo").read_text()
    flags = next((line.split(":")[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return "AuthenticAMD" in text and "avx2" in flags and "fma" in flags


class LimitsTest(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("limits")
        self.cache = self.work.path / "cache"

    def tearDown(self):
        if self._outcome.success:
            self.work.remove()

    def launch(self, sets=(), **extra):
        variables = {"XDG_CACHE_HOME": str(self.cache), "DTRAIN_CALIBRATION": "true", **extra}
        return launch(BUILD, SYNTHETIC, self.work.new_run(), [*SMALL, *sets], **variables).expect(0)

    def doctor(self, *words, **extra):
        command = [BUILD.program("dtrain"), "doctor", "--runs", str(self.work.path), *words]
        return run(command, self.work.path, XDG_CACHE_HOME=str(self.cache), **extra)

    def cached(self):
        return sorted((self.cache / "dtrain" / "limits").glob("*.json"))

    def limits(self, result):
        plan = result.json("plan.json")
        self.assertEqual(list(plan["limits"]), sorted({rank["host"] for rank in plan["ranks"]}))
        return plan["limits"][plan["ranks"][0]["host"]]

    def check(self, limits, ranks, threads=1):
        self.assertEqual((limits["threads"], limits["ranks"]), (threads, ranks))
        for name in FIGURES:
            figures = limits[name].values() if isinstance(limits[name], dict) else [limits[name]]
            self.assertTrue(figures and all(0 < one < 1e7 for one in figures), f"{name}: {limits[name]}")
        self.assertLessEqual({"float32", "bfloat16"}, set(limits["gflops"]))
        self.assertEqual(set(limits["convolution_gflops"]), {"float32", "bfloat16"})
        self.assertEqual("matmul_default_gflops" in limits, is_amd_with_avx2())

    def test_a_machine_is_measured_once(self):
        first = self.launch()
        self.assertIn("measured this machine once", first.output)
        self.check(self.limits(first), ranks=2)
        fast = is_amd_with_avx2()
        self.assertEqual(self.limits(first)["matmul"], "fast" if fast else "default")
        self.assertEqual(first.json("plan.json")["matmul"]["path"], "fast" if fast else "default")

        again = self.launch()
        self.assertNotIn("measured this machine", again.output)
        self.assertEqual(self.limits(again), self.limits(first))

        stock = self.launch(["optimizations.matmul=default"])
        self.assertEqual(self.limits(stock), {**self.limits(first), "matmul": "default"})
        self.assertEqual(stock.json("plan.json")["matmul"],
                         {"path": "default", "reason": "optimizations.matmul: default"})

        known = json.loads(self.doctor("--json").output)["limits"]
        self.assertEqual(known, [self.limits(first)])
        self.assertIn("matrix products", self.doctor().output)

        # Runs that may not measure use what is there; of another number of ranks nothing is.
        self.assertEqual(self.limits(self.launch(["profiling.calibration=false"])), self.limits(first))
        alone = self.launch(["profiling.calibration=false", "resources.slots_per_trial=1"])
        self.assertNotIn("limits", alone.json("plan.json"))

        # Another host is asked through `dtrain host-probe`.
        request = {"do": "limits", "ranks": {"threads": 1, "most_threads": 1, "ranks": 2, "slots": 2, "of_cores": False,
                                              "cpus": [], "program": ""}}
        probe = subprocess.run([BUILD.program("dtrain"), "host-probe"], input=json.dumps(request) + "\n", text=True,
                               env=environment(XDG_CACHE_HOME=str(self.cache)), stdout=subprocess.PIPE, check=True)
        answer = json.loads(probe.stdout.splitlines()[1])
        self.assertEqual(answer, {"limits": self.limits(first), "seconds": 0, "before": 0, "failure": ""})

        # A damaged file is measured anew and replaced.
        (entry,) = self.cached()
        whole = entry.read_text()
        other_name = whole.replace('"memory_gb_s":', '"memory":')
        for damage in (whole[: len(whole) // 2], '{"key": {}, "limits": {}}', other_name):
            entry.write_text(damage)
            self.assertEqual(json.loads(self.doctor("--json").output)["limits"], [], damage)
        third = self.launch()
        self.assertIn("measured this machine once", third.output)
        self.check(self.limits(third), ranks=2)
        self.assertEqual(json.loads(entry.read_text())["limits"], self.limits(third))

    def test_a_rank_without_a_launcher_uses_what_is_known(self):
        def alone():
            run_dir = self.work.new_run()
            command = [BUILD.program("synthetic"), str(SYNTHETIC), "--run-dir", str(run_dir), *overrides(SMALL)]
            return run(command, run_dir, XDG_CACHE_HOME=str(self.cache)).expect(0)

        self.assertNotIn("limits", alone().json("plan.json"))
        launched = self.launch(["resources.slots_per_trial=1"])
        self.assertIn("measured this machine once", launched.output)
        self.assertNotIn("all_reduce_gb_s", self.limits(launched))
        self.assertEqual(self.limits(alone()), self.limits(launched))

    def test_two_launches_at_once_measure_once(self):
        results = [None, None]

        def one(index):
            results[index] = self.launch(**{STATE: str(self.work.path / f"state-{index}")})

        threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted("measured this machine" in one.output for one in results), [False, True])
        self.assertEqual(self.limits(results[0]), self.limits(results[1]))

    def test_a_measurement_that_other_programs_disturbed_is_said_and_repeated(self):
        hogs = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"])
                for cpu in sorted(os.sched_getaffinity(0))[:2] for _ in range(2)]
        try:
            busy = self.launch()
            self.assertNotIn("measured this machine", self.launch().output, "while the machine is as busy")
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        self.assertGreater(self.limits(busy)["displaced_share"], 0.2)
        self.assertIn("of the cores of host", " ".join(busy.json("plan.json")["warnings"]))
        self.assertIn("too low: other programs had", self.doctor().output)
        (entry,) = self.cached()
        self.assertNotIn("repeats", json.loads(entry.read_text()))
        hours_ago = time.time() - 2 * 3600
        os.utime(entry, (hours_ago, hours_ago))
        again = self.launch()
        share = round(100 * self.limits(busy)["displaced_share"])
        self.assertRegex(again.output, rf"measured this machine again, as other programs had {share}% of its cores the last time: ")
        self.assertEqual(json.loads(entry.read_text())["repeats"], 1)
        self.assertLessEqual(self.limits(again).get("displaced_share", 0), self.limits(busy)["displaced_share"])

    def test_nothing_is_measured_where_it_is_switched_off(self):
        for sets, variables in ((["profiling.calibration=false"], {}), ([], {"DTRAIN_CALIBRATION": "false"})):
            result = self.launch(sets, **variables)
            self.assertNotIn("measured", result.output)
            self.assertNotIn("limits", result.json("plan.json"))
            self.assertEqual(self.cached(), [])
        wrong = launch(BUILD, SYNTHETIC, self.work.new_run(), SMALL, DTRAIN_CALIBRATION="perhaps").expect(2)
        self.assertIn("DTRAIN_CALIBRATION=perhaps is neither true nor false", wrong.output)

    def test_a_run_goes_on_where_measuring_fails(self):
        (self.cache / "dtrain").mkdir(parents=True)
        (self.cache / "dtrain" / "limits").write_text("a file in the place of the folder")
        result = self.launch()
        self.assertIn("warning: the limits of host", result.output)
        self.assertNotIn("limits", result.json("plan.json"))
        self.assertIn("limits of host", " ".join(result.json("plan.json")["warnings"]))

    def test_the_doctor_measures(self):
        result = self.doctor("--bench", "--json")
        report = json.loads(result.output)
        (limits,) = report["limits"]
        self.check({"all_reduce_gb_s": 1, **limits}, ranks=limits["ranks"])
        checks = [finding["check"] for host in report["hosts"] for finding in host["findings"]]
        self.assertNotIn("limits", checks)
        self.assertEqual("matmul" in checks, is_amd_with_avx2())
        self.assertEqual(json.loads(self.doctor("--json").output)["limits"], [limits])

    def test_a_process_that_measures_is_told_what_is_wrong(self):
        program = BUILD.program("dtrain-calibrate")
        for words in (["--cpus", "a"], ["--threads", "0"], ["--ranks", "x"], ["surplus"]):
            done = subprocess.run([program, *words], env=environment(), capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0, words)
        done = subprocess.run([program, "--cpus", "100000"], env=environment(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("pin", done.stderr)


class MatmulTest(unittest.TestCase):
    """On processors of AMD the two paths give different bits, each always the same ones."""

    def setUp(self):
        self.work = Workplace("matmul")
        self.addCleanup(self.work.remove)

    def weights(self, matmul):
        result = launch(BUILD, SYNTHETIC, self.work.new_run(), [*SMALL, f"optimizations.matmul={matmul}"]).expect(0)
        return result.weights_file.read_bytes()

    def test_the_choice_is_made_and_repeated(self):
        fast, stock = self.weights("auto"), self.weights("default")
        self.assertEqual(self.weights("auto"), fast)
        self.assertEqual(self.weights("default"), stock)
        self.assertEqual(fast != stock, is_amd_with_avx2(), "whether the two paths differ")


if __name__ == "__main__":
    main("synthetic")
