"""dtrain installed into a folder of its own: what is there, and a trial built outside the source tree against it.

    installed.py BUILD_FOLDER LIBTORCH ('torch' folder)

The build folder holds the target `installed`. One file is compiled against libtorch's headers.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop(1)).resolve()
LIBTORCH = Path(sys.argv.pop(1)).resolve()
MAY_INCLUDE = ("dtrain/", "nlohmann/", "torch/", "ATen/", "c10/")
MINOR = re.search(r"__version__ = '(\d+\.\d+)", (LIBTORCH / "version.py").read_text()).group(1)
DEADLINE = 600  # seconds; only against hangs


def run(*command, folder=None, **variables):
    """Without the variables that say where libtorch is, or who a rank is."""
    drop = ("DTRAIN_", "OMPI_", "SLURM_", "LD_LIBRARY_PATH")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    environment.update({k: str(v) for k, v in variables.items()})
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="dtrain-installed-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        # Installed in one place and moved to another: nothing may know where it was.
        code, output = run("cmake", "--install", BUILD, "--prefix", cls.work / "first")
        assert code == 0, output
        cls.prefix = cls.work / "prefix"
        (cls.work / "first").rename(cls.prefix)
        cls.home = cls.work / "home"
        cls.home.mkdir()

    def program(self, name):
        return self.prefix / "bin" / name

    def elf_files(self):
        return [p for folder in ("bin", "lib") for p in sorted((self.prefix / folder).iterdir())
                if p.is_file() and not p.is_symlink() and p.read_bytes()[:4] == b"\x7fELF"]


class Layout(Installed):
    def test_what_is_there(self):
        for file in ("bin/dtrain", "bin/dtrain-agent", "bin/dtrain-calibrate", "bin/dtrain-saver", "bin/dtrain-worker",
                     "bin/dtrain-get-libtorch", "lib/libdtrain_train.so",
                     "include/dtrain/dtrain.h", "lib/cmake/dtrain/dtrainConfig.cmake",
                     "lib/cmake/dtrain/dtrainConfigVersion.cmake", "share/man/man1/dtrain.1",
                     "share/bash-completion/completions/dtrain", "share/doc/dtrain/errors.md",
                     "share/doc/dtrain/LICENSE", "share/doc/dtrain/copyright", "share/doc/dtrain/CHANGELOG.md",
                     "share/dtrain/configs/synthetic.yaml", "share/dtrain/examples/synthetic/main.cpp",
                     "share/dtrain/follow/__main__.py"):
            self.assertTrue((self.prefix / file).exists(), file)
        self.assertEqual(len(list(self.prefix.rglob("_dtrain"))), 1, "zsh's completion")

    def test_no_libtorch_and_nothing_of_the_tests(self):
        names = [p.name for p in self.prefix.rglob("*")]
        for part in ("libtorch", "libc10", "gtest", "nlohmann", "spdlog"):
            self.assertEqual([n for n in names if part in n and n not in ("dtrain-get-libtorch", "dtrainLibtorch.cmake")], [])

    def test_the_libtorch_that_is_got_is_the_one_of_the_build(self):
        script = (self.prefix / "bin/dtrain-get-libtorch").read_text()
        self.assertEqual(re.search(r"^minor=(\S+)", script, re.MULTILINE).group(1), MINOR)

    def test_libraries_have_versions_and_relative_paths(self):
        libraries = 0
        for file in self.elf_files():
            code, text = run("readelf", "-d", file)
            self.assertEqual(code, 0)
            paths = [p for found in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", text) for p in found.split(":")]
            self.assertTrue(paths, file)
            self.assertEqual([p for p in paths if not p.startswith("$ORIGIN")], [], file)
            if re.fullmatch(r"libdtrain_(comm_mpi|comm_nccl|cuda_graph|cuda_kernels|launcher_duties)\.so", file.name):  # opened by that name, linked by nobody
                self.assertNotIn("SONAME", text)
            elif file.parent.name == "lib":
                libraries += 1
                torch = rf"-torch{re.escape(MINOR)}" if re.match(r"libdtrain_(train|torch_distributed)\.", file.name) else ""
                self.assertRegex(file.name, rf"\.so\.\d+\.\d+\.\d+{torch}$")
                self.assertRegex(text, rf"SONAME.*\[libdtrain_\w+\.so\.\d+\.\d+{torch}\]")
        self.assertGreater(libraries, 8)

    def test_headers_include_only_what_is_installed(self):
        scanned = 0
        for header in (self.prefix / "include").rglob("*.h"):
            for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+/[^>"]+)[>"]', header.read_text(), re.MULTILINE):
                scanned += 1
                if name.startswith("sys/"):
                    continue
                self.assertTrue(name.startswith(MAY_INCLUDE), f"{header.name} includes {name}")
                if name.startswith("dtrain/"):
                    self.assertTrue((self.prefix / "include" / name).is_file(), f"{header.name}: {name} is not installed")
        self.assertGreater(scanned, 15)

    def test_the_command_line_needs_no_libtorch(self):
        config = self.prefix / "share/dtrain/configs/synthetic.yaml"
        for command in (("--help",), ("version",), ("config", "check", "--file-only", config)):
            code, output = run(self.program("dtrain"), *command, HOME=self.home)
            self.assertEqual(code, 0, output)
        for name in ("dtrain", "dtrain-agent", "dtrain-saver"):
            self.assertNotIn("torch", run("ldd", self.program(name))[1])


class FindPackage(Installed):
    """What find_package(dtrain) says; nothing is compiled."""

    def configure(self, *options, **variables):
        build = Path(tempfile.mkdtemp(dir=self.work))
        variables.setdefault("HOME", self.home)
        code, output = run("cmake", "-S", self.prefix / "share/dtrain/examples/synthetic", "-B", build, "-G", "Ninja",
                           f"-DCMAKE_PREFIX_PATH={self.prefix}", *options, **variables)
        return code, " ".join(output.split()), (build / "CMakeCache.txt").read_text()

    def python(self, name, folder):
        """A bin folder whose python3 has its torch in `folder` (None: has no torch)."""
        bin_folder = self.work / name
        bin_folder.mkdir()
        (bin_folder / "python3").write_text("#!/bin/sh\n" + ("exit 1\n" if folder is None else f"echo '{folder}'\n"))
        (bin_folder / "python3").chmod(0o755)
        return f"{bin_folder}:{os.environ['PATH']}"

    def test_libtorch_by_variable(self):
        for options, variables in (((f"-DDTRAIN_LIBTORCH_DIR={LIBTORCH}",), {}), ((), {"DTRAIN_LIBTORCH_DIR": LIBTORCH})):
            code, output, cache = self.configure(*options, **variables)
            self.assertEqual(code, 0, output)
            self.assertIn(f"DTRAIN_LIBTORCH_DIR:PATH={LIBTORCH}", cache)

    def test_libtorch_of_python(self):
        code, output, cache = self.configure(PATH=self.python("with", LIBTORCH))
        self.assertEqual(code, 0, output)
        self.assertIn(f"DTRAIN_LIBTORCH_DIR:PATH={LIBTORCH}", cache)

    def test_none_is_an_error_that_helps(self):
        code, output, _ = self.configure(PATH=self.python("without", None))
        self.assertNotEqual(code, 0)
        for part in (f"libtorch {MINOR} was not found", "dtrain-get-libtorch", f"pip install torch=={MINOR}.0", "DTRAIN_LIBTORCH_DIR"):
            self.assertIn(part, output)

    def test_a_wrong_place_or_version_is_named(self):
        code, output, _ = self.configure(f"-DDTRAIN_LIBTORCH_DIR={self.work}/nowhere")
        self.assertNotEqual(code, 0)
        self.assertIn(f"there is no libtorch in '{self.work}/nowhere'", output)
        old = self.work / "old"
        (old / "include/torch/csrc/api/include/torch").mkdir(parents=True)
        (old / "lib").mkdir()
        (old / "lib/libtorch_cpu.so").touch()
        (old / "include/torch/csrc/api/include/torch/torch.h").touch()
        (old / "version.py").write_text("__version__ = '2.4.1+cpu'\n")
        code, output, _ = self.configure(f"-DDTRAIN_LIBTORCH_DIR={old}")
        self.assertNotEqual(code, 0)
        self.assertIn(f"is 2.4.1, and this dtrain is built for {MINOR}", output)


class Trial(Installed):
    """The synthetic example, copied away, built against the installed dtrain and run by the installed dtrain."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        project = cls.work / "project"
        shutil.copytree(cls.prefix / "share/dtrain/examples/synthetic", project)
        shutil.copy(cls.prefix / "share/dtrain/configs/synthetic.yaml", project / "experiment.yaml")
        # The trial's own idea of where libtorch is: a place that can be taken away.
        cls.torch = cls.work / "libtorch"
        cls.torch.symlink_to(LIBTORCH)
        for command in (("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                         f"-DCMAKE_PREFIX_PATH={cls.prefix}", f"-DDTRAIN_LIBTORCH_DIR={cls.torch}"),
                        ("cmake", "--build", project / "build")):
            code, output = run(*command)
            assert code == 0, output
        cls.experiment = project / "experiment.yaml"
        cls.runs = 0

    def launch(self, **variables):
        type(self).runs += 1
        run_dir = self.work / f"run-{self.runs}"
        variables.setdefault("HOME", self.home)
        sets = ("entrypoint=./build/synthetic", "searcher.max_length.batches=4", "hyperparameters.width=32", "data.samples=512")
        code, output = run(self.program("dtrain"), "launch", self.experiment, "--run-dir", run_dir,
                           *(part for item in sets for part in ("--set", item)), **variables)
        return code, output, run_dir

    def check_trained(self, code, output, run_dir):
        self.assertEqual(code, 0, output)
        self.assertTrue((run_dir / "checkpoints/final/model.safetensors").is_file())
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        self.assertEqual(len([e for e in events if e["event"] == "rank_started"]), 2)

    def test_it_trains_on_two_ranks(self):
        code, output, run_dir = self.launch()
        self.check_trained(code, output, run_dir)
        # The program finds the answer for MKL in libdtrain_train; dtrain-calibrate finds the program's libtorch.
        plan = json.loads((run_dir / "plan.json").read_text())
        cpu = Path("/proc/cpuinfo").read_text()
        amd = "AuthenticAMD" in cpu and " avx2 " in cpu and " fma " in cpu
        self.assertEqual(plan["matmul"]["path"], "fast" if amd else "default", plan["matmul"]["reason"])
        self.assertGreater(plan["limits"][plan["ranks"][0]["host"]]["gflops"]["float32"], 0, output)

    def test_a_missing_libtorch_is_said_once_with_what_to_do(self):
        self.torch.unlink()
        self.addCleanup(lambda: self.torch.is_symlink() or self.torch.symlink_to(LIBTORCH))
        code, output, run_dir = self.launch()
        self.assertEqual(code, 2, output)
        self.assertIn(f"synthetic needs libtorch {MINOR} (libtorch_cpu.so)", output)
        self.assertEqual(output.count("dtrain-get-libtorch"), 1, output)
        self.assertFalse(run_dir.exists(), "nothing was started")

        self.check_trained(*self.launch(DTRAIN_LIBTORCH_DIR=LIBTORCH))
        code, output, _ = self.launch(DTRAIN_LIBTORCH_DIR=self.work)
        self.assertEqual(code, 2, output)
        self.assertIn(f"there is no lib/libtorch_cpu.so in {self.work}", output)

        self.assertIn("libtorch_cpu.so => not found", run("ldd", self.program("dtrain-worker"))[1])
        get = self.program("dtrain-get-libtorch")
        code, output = run(get, "--use", self.work)
        self.assertEqual(code, 2, output)
        for options in (("--to", self.home / ".local/share/dtrain/libtorch"), ()):  # the user's, then everybody's
            code, output = run(get, "--use", LIBTORCH, *options)
            self.assertEqual(code, 0, output)
            self.check_trained(*self.launch())
            shutil.rmtree(self.home / ".local", ignore_errors=True)
        self.assertTrue((self.prefix / "lib/dtrain/libtorch/torch").is_symlink())
        self.assertNotIn("not found", run("ldd", self.program("dtrain-worker"))[1])
        shutil.rmtree(self.prefix / "lib/dtrain")

    def test_another_version_is_refused(self):
        old = self.work / "older"
        (old / "lib").mkdir(parents=True)
        (old / "lib/libtorch_cpu.so").touch()
        (old / "version.py").write_text("__version__ = '2.4.1+cpu'\n")
        code, output, _ = self.launch(DTRAIN_LIBTORCH_DIR=old)
        self.assertEqual(code, 2, output)
        self.assertIn(f"is 2.4.1, and {self.experiment.parent}/build/synthetic is built for {MINOR}", output)

    def test_a_program_for_another_libtorch_is_refused(self):
        program = self.experiment.parent / "build/synthetic"
        contents = program.read_bytes()
        other = f"{MINOR[:-1]}{'0' if MINOR[-1] != '0' else '1'}"
        self.assertIn(f"-torch{MINOR}\0".encode(), contents)
        program.write_bytes(contents.replace(f"-torch{MINOR}\0".encode(), f"-torch{other}\0".encode()))
        self.addCleanup(program.write_bytes, contents)
        code, output, run_dir = self.launch()
        self.assertEqual(code, 2, output)
        self.assertIn(f"synthetic is built for libtorch {other} (libdtrain_train.so.0.1-torch{other}), and dtrain for {MINOR}", output)
        self.assertFalse(run_dir.exists(), "nothing was started")


if __name__ == "__main__":
    unittest.main()
