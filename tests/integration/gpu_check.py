"""scripts/gpu_check.sh where there is no GPU: what it packs, its sections on CPUs and on GPUs that are not there, what
it does when a section fails, what it refuses.

    gpu_check.py BIN_FOLDER [TestClass[.test] ...]
"""
import os
import re
import subprocess
import sys
import unittest

from harness import BUILD, SOURCE, Workplace, environment, main

SECTIONS = ["machine", "doctor", "limits", "nccl", "conformance", "parity", "shared_card", "python", "waiting", "sanitizer",
            "kernels", "kernel_times", "examples", "profile", "bench_bf16", "bench"]


class GpuCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Workplace("gpu-check")
        cls.addClassCleanup(cls.work.remove)
        cls.packed = cls.work.path / "packed"
        cls.pack = cls.run_script(SOURCE / "scripts" / "gpu_check.sh", "--build", str(BUILD.bin.parent),
                                  "--pack", str(cls.packed))

    @classmethod
    def run_script(cls, script, *words, **more):
        return subprocess.run([str(script), *words], env=environment(**more), stdin=subprocess.DEVNULL, timeout=500,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def check(self, *words, **more):
        """Runs the packed check with this Python. What it did, its results, and the outcome of each section."""
        results = self.work.path / f"{self.id().rsplit('.', 1)[1]}.md"
        done = self.run_script(self.packed / "scripts" / "gpu_check.sh", "--python", sys.executable,
                               "--out", str(results), *words, **more)
        text = results.read_text() if results.exists() else ""
        table = dict(re.findall(r"^\| \[(\w+)\]\(#\w+\) \| [^|]* \| ([^|]*) \| \d+ \|$", text, re.MULTILINE))
        return done, text, table

    def test_what_is_packed_is_all_and_small(self):
        self.assertEqual(self.pack.returncode, 0, self.pack.stdout)
        for file in ("bin/dtrain", "bin/dtrain-agent", "bin/dtrain-saver", "bin/dtrain-worker", "bin/bench_nccl", "bin/bench_gpu_kernels", "bin/synthetic",
                     "bin/test_comm_nccl_device", "lib/libdtrain_comm_nccl.so", "scripts/gpu_check.sh",
                     "tests/gpu_check/parity.py", "tests/integration/harness.py"):
            self.assertTrue((self.packed / file).is_file(), file)
        names = [path.name for path in self.packed.rglob("*") if path.is_file()]
        self.assertFalse([name for name in names if re.match(r"lib(torch|c10|cu|nccl|nv|c\.so|stdc)", name)
                          and not (self.packed / "lib" / "gcc" / name).exists()])
        size = sum(path.stat().st_size for path in self.packed.rglob("*") if path.is_file() and not path.is_symlink())
        self.assertLess(size, 64 << 20)

    def test_nothing_of_the_build_is_needed(self):
        """The packed programs find their libraries in the packed folder and the machine's own."""
        done = subprocess.run(["ldd", *map(str, self.packed.glob("bin/*"))], stdout=subprocess.PIPE, text=True,
                              env=environment(LD_LIBRARY_PATH=str(self.packed / "lib")))
        self.assertEqual([line for line in done.stdout.splitlines() if str(BUILD.bin.parent / "lib") in line], [])
        lacking = set(re.findall(r"(\S+) => not found", done.stdout))
        self.assertFalse([name for name in lacking if not re.match(r"lib(torch|c10)", name)], lacking)

    def test_on_gpus_that_are_not_there(self):
        """Every section passes, but for those that say why they are skipped."""
        fakes = BUILD.bin.parent / "tests" / "fake_gpus"
        done, text, table = self.check("--fake", str(fakes), "--quick", "--skip", "bench")
        self.assertEqual(done.returncode, 0, done.stdout)
        skipped = {one: "skipped: it needs real GPUs" for one in ("python", "waiting", "sanitizer", "kernels", "kernel_times")}
        self.assertEqual(table, {one: skipped.get(one, "ok") for one in SECTIONS if one != "bench"})
        self.assertIn("on 2 GPUs that are not there.", text)
        self.assertIn("the limits of a GPU (Fake GPU)", text)
        self.assertRegex(text, r"matrix products +[0-9.]+ GFLOP/s +float32\n +[0-9.]+ GFLOP/s +tf32\n")
        self.assertRegex(text, r"launch +[0-9.]+ us ")
        self.assertIn("20 cases on 2 of 2 GPUs", text)
        self.assertRegex(text, r"results: \d+ checked on all ranks, 0 wrong")
        self.assertIn("2 ranks on cuda, 60 steps; against DDP on cpu and ranks on the CPU", text)
        self.assertEqual(len(re.findall(r"(?:cnn|gpt) float64 .* DDP .* CPU ", text)), 14)
        self.assertEqual(len(re.findall(r"steps run as one CUDA graph from batch \d+ on, with the same bits", text)), 14)
        self.assertRegex(text, r'"workload": "resnet50", "tiny": true, "gpus": 2,\s+"slot_type": "cuda"')

    def test_on_cpus(self):
        """The sections that need no GPU pass, and the others say why they are skipped."""
        done, text, table = self.check("--slot-type", "cpu", "--quick", "--skip", "doctor,parity,bench_bf16,bench")
        self.assertEqual(done.returncode, 0, done.stdout)
        skipped = {one: "skipped: it needs GPUs" for one in ("limits", "nccl", "conformance", "shared_card")}
        skipped |= {one: "skipped: it needs real GPUs" for one in ("python", "waiting", "sanitizer", "kernels", "kernel_times")}
        self.assertEqual(table, {one: skipped.get(one, "ok") for one in SECTIONS
                                 if one not in ("doctor", "parity", "bench_bf16", "bench")})
        self.assertRegex(text, r"\nPyTorch 2\.\d+\.")

    def test_without_gpus_nothing_is_claimed(self):
        path = ":".join(one for one in os.environ["PATH"].split(":") if not os.path.exists(f"{one}/nvidia-smi"))
        done, _, table = self.check("--only", "nccl,parity,bench", PATH=path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(set(table.values()), {"skipped: there is no GPU"})

    def test_a_section_that_fails_does_not_end_the_check(self):
        program = self.packed / "bin" / "synthetic"
        kept = program.with_suffix(".kept")
        program.rename(kept)
        self.addCleanup(kept.rename, program)
        program.write_text("#!/bin/sh\necho 'a broken program' >&2\nexit 3\n")
        program.chmod(0o755)
        done, text, table = self.check("--slot-type", "cpu", "--only", "examples,machine,bench")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(table, {"machine": "ok", "examples": "FAILED", "bench": "ok"})
        self.assertIn("gpu_check: failed: examples", done.stdout)
        self.assertIn("a broken program", text)

    def test_what_is_refused(self):
        def said(*words, **more):
            done = self.run_script(self.packed / "scripts" / "gpu_check.sh", *words, **more)
            self.assertEqual(done.returncode, 2, done.stdout)
            return done.stdout

        self.assertIn("unknown argument '--fast'", said("--fast"))
        self.assertIn("there is no section 'speed'", said("--only", "speed"))
        self.assertIn("--out needs a value", said("--out"))
        self.assertIn("--slot-type is cuda or cpu, not 'tpu'", said("--slot-type", "tpu"))
        self.assertIn("there is no no-such-python", said("--python", "no-such-python"))
        empty = self.work.path / "empty"
        (empty / "lib").mkdir(parents=True)
        self.assertIn("the PyTorch in", said("--python", sys.executable, DTRAIN_LIBTORCH_DIR=str(empty)))
        self.assertIn("there is something in", said("--pack", str(self.packed)))

    def test_help_and_list(self):
        script = self.packed / "scripts" / "gpu_check.sh"
        self.assertIn("scripts/gpu_check.sh --pack FOLDER", self.run_script(script, "--help").stdout)
        listed = self.run_script(script, "--list").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in listed], SECTIONS)


if __name__ == "__main__":
    main("bench_nccl")
