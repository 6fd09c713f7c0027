"""The real libtorch_cuda, NCCL and CUDA runtime load without a driver, and have every symbol that our modules need.

Libraries of NVIDIA that this machine lacks (the driver's, and those that the small libtorch leaves out) are stood in
for by libraries made of names alone: every symbol that the real ones ask for, under the version that they ask for. So
nothing can be computed, but everything is linked, with RTLD_NOW, and registers itself with libtorch.

    real_cuda.py BIN_FOLDER PROBE FOLDER_OF_FAKES CXX [TestClass[.test] ...]
"""
import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from collections import defaultdict
from pathlib import Path

import harness
from harness import BUILD, DEADLINE, Workplace, environment

PROBE = FAKES = CXX = LIBTORCH = None  # set by main()
DRIVER = "libcuda.so.1"


def output(*command):
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=True).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", file))


def symbols(file, which):
    """(kind, name, version or '')"""
    for line in output("nm", "-D", "--with-symbol-versions", which, file).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@")
        yield kind, name, version.lstrip("@")


@functools.cache
def undefined(file):
    """(name, version or ''), without those that may be missing (weak)."""
    return {(name, version) for kind, name, version in symbols(file, "--undefined-only") if kind == "U"}


@functools.cache
def defined(file):
    return {name for _, name, _ in symbols(file, "--defined-only")}


def version_owners(file):
    """The library that each version comes from: {"NVSHMEM": "libnvshmem_host.so.3"}."""
    owners, library = {}, None
    for line in output("readelf", "-VW", file).splitlines():
        if found := re.search(r"File: (\S+)", line):
            library = found.group(1)
        elif (found := re.search(r"Name: (\S+)", line)) and library:
            owners[found.group(1)] = library
    return owners


def is_here(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def wheel_folders():
    return [LIBTORCH / "lib", *sorted((LIBTORCH.parent / "nvidia").glob("*/lib"))]


def in_wheels(name):
    return next((folder / name for folder in wheel_folders() if (folder / name).is_file()), None)


def files_of_libtorch_cuda():
    """libtorch_cuda and what it links of the wheels; and the names of NVIDIA's libraries that the wheels lack."""
    files, missing = {}, set()
    waiting = ["libtorch_cuda.so", "libtorch_cuda_linalg.so", "libnccl.so.2", "libcudart.so.13"]
    while waiting:
        name = waiting.pop()
        if name in files or name in missing:
            continue
        file = in_wheels(name)
        if file:
            files[name] = file
            waiting += needed(file)
        elif re.match(r"lib(cu|nv)", name):
            missing.add(name)
    return files, missing


def stand_ins(folder, files, missing):
    """Writes the missing libraries into the folder."""
    have = set().union(*(defined(file) for file in files.values()))
    wanted = defaultdict(lambda: defaultdict(set))  # library, version, names
    for file in files.values():
        theirs = [name for name in needed(file) if name in missing]
        owners = version_owners(file)
        for name, version in undefined(file):
            if owners.get(version) in missing:
                wanted[owners[version]][version].add(name)
            elif theirs and not version and name not in have:  # whichever it is of: all are searched
                wanted[theirs[0]][""].add(name)
    for library in missing:
        source, script = folder / f"{library}.c", folder / f"{library}.map"
        versions = wanted[library]
        names = sorted(set().union(*versions.values()))
        source.write_text("".join(f"int {name}() {{ return 1; }}\n" for name in names))
        script.write_text("".join(f'{version} {{ global: {"".join(name + "; " for name in sorted(names))}}};\n'
                                  for version, names in versions.items() if version))
        output(CXX, "-x", "c", "-w", "-shared", "-fPIC", "-fno-builtin", "-o", folder / library, source,
               f"-Wl,-soname,{library}", *([f"-Wl,--version-script={script}"] if any(versions) else []))
    if not is_here(DRIVER):
        (folder / DRIVER).symlink_to(FAKES / "fake_cuda_libraries.so")  # a driver without GPUs


def own_files():
    """dtrain's libraries, modules and programs, without the module for MPI, for which dtrain opens libmpi first."""
    libraries = [file for file in BUILD.bin.parent.glob("lib/libdtrain_*.so") if file.name != "libdtrain_comm_mpi.so"]
    return libraries + [BUILD.bin / name for name in ("dtrain", "dtrain-agent", "dtrain-saver", "dtrain-worker")]


def modules():
    """The libraries that no program links: they are opened on demand."""
    linked = {name for file in own_files() for name in needed(file)}
    return [file for file in own_files()
            if file.suffix == ".so" and not any(name.startswith(file.name) for name in linked)]


class RealCuda(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not in_wheels("libtorch_cuda.so"):
            raise unittest.SkipTest(f"the libtorch in {LIBTORCH} is built for CPUs: it has no libtorch_cuda.so")
        cls.work = Workplace("real-cuda")
        cls.addClassCleanup(cls.work.remove)
        cls.files, cls.missing = files_of_libtorch_cuda()
        stand_ins(cls.work.path, cls.files, cls.missing)

    @staticmethod
    def environment(*folders):
        return environment(LD_LIBRARY_PATH=":".join(map(str, folders)), CUDA_VISIBLE_DEVICES="",
                           DTRAIN_LIBTORCH_DIR=str(LIBTORCH))

    @classmethod
    def probe(cls, libtorch_cuda, nccl, cuda, *others):
        done = subprocess.run([PROBE, libtorch_cuda, nccl, cuda, *others], timeout=DEADLINE, text=True,
                              env=cls.environment(cls.work.path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines = done.stdout.splitlines()
        if not lines:
            raise AssertionError(f"exit {done.returncode}: {done.stderr}")
        return json.loads(lines[-1])

    @classmethod
    @functools.cache
    def real_libraries(cls):
        report = cls.probe(in_wheels("libtorch_cuda.so"), in_wheels("libnccl.so.2"), in_wheels("libcudart.so.13"),
                           *modules())
        if "error" in report or report["libtorch_cuda"]:
            raise AssertionError(report)
        return report

    def test_libtorch_cuda_registers_itself(self):
        libtorch = self.real_libraries()["libtorch"]
        self.assertEqual(libtorch["cuda"] // 1000, 13)
        self.assertTrue(libtorch["cudnn"])
        self.assertEqual(libtorch["gpus"], 0)
        self.assertFalse(libtorch["has_cuda"])
        self.assertEqual(libtorch["kernels"], {"add": True, "convolution": True, "fused_adamw": True})

    def test_waiting_on_the_host_can_be_made_an_error(self):
        self.assertIn("called a synchronizing CUDA operation", self.real_libraries()["sync_debug"])

    def test_nccl_has_every_function_that_the_backend_calls(self):
        nccl = self.real_libraries()["nccl"]
        self.assertIn(nccl["version"] // 100, (228, 229, 230))
        self.assertTrue(nccl["shrink"] and nccl["revoke"])
        self.assertEqual(nccl["success"], "no error")
        self.assertEqual(nccl["device_count"], 100)  # cudaErrorNoDevice

    def test_a_function_that_is_not_there_is_named(self):
        """What a misspelt name in the backend's table leads to: here NCCL and CUDA have changed places."""
        report = self.probe("", in_wheels("libcudart.so.13"), in_wheels("libnccl.so.2"))
        self.assertRegex(report["error"], r"libcudart\.so\.13 has no ncclGetVersion")

    def test_our_modules_open(self):
        files = modules()
        for name in ("libdtrain_comm_nccl.so", "libdtrain_cuda_graph.so"):
            self.assertIn(name, [file.name for file in files])
        self.assertEqual(self.real_libraries()["modules"], {str(file): "" for file in files})

    def test_every_symbol_of_ours_is_somewhere(self):
        """In our libraries, libtorch, NVIDIA's wheels, or a library of the system that the file links."""
        have = set().union(*(defined(file) for file in [*self.files.values(), *own_files()]))
        listed = environment(LD_LIBRARY_PATH=":".join(map(str, [*wheel_folders(), self.work.path])))
        for ours in own_files():
            lines = subprocess.run(["ldd", str(ours)], env=listed, stdout=subprocess.PIPE, text=True, check=True).stdout
            linked = set(re.findall(r"=> (/\S+)", lines)) | set(re.findall(r"^\s(/\S+) \(", lines, re.MULTILINE))
            theirs = have.union(*(defined(file) for file in linked))
            lacking = sorted(name for name, _ in undefined(ours) if name not in theirs)
            self.assertEqual(lacking, [], f"{ours.name}: nothing defines these")

    def test_doctor_names_what_the_small_libtorch_lacks(self):
        folder = self.work.path / "nvml"
        folder.mkdir()
        shutil.copy(FAKES / "fake_nvml.so", folder / "libnvidia-ml.so.1")
        gpu = {"uuid": "GPU-a", "name": "Fake", "total": 1 << 34, "free": 1 << 34, "util": 0, "temperature": 30,
               "pids": []}
        (folder / "libnvidia-ml.so.1.json").write_text(json.dumps({"gpus": [gpu]}))

        def findings(*folders):
            done = subprocess.run([BUILD.program("dtrain"), "doctor", "--json"], env=self.environment(*folders),
                                  text=True, cwd=folder, timeout=DEADLINE, stdout=subprocess.PIPE)
            return {one["check"]: one for one in json.loads(done.stdout)["hosts"][0]["findings"]}

        with_stand_ins = findings(folder, self.work.path)
        self.assertEqual(with_stand_ins["libtorch_cuda"]["level"], "ok", with_stand_ins["libtorch_cuda"])
        self.assertRegex(with_stand_ins["NCCL"]["text"], r"^2\.(28|29|30)\.\d+, .*/libnccl\.so\.2$")
        self.assertIn("no CUDA-capable device is detected (error 100)", with_stand_ins["CUDA"]["text"])
        lacking = sorted(name for name in self.missing if not is_here(name) and name != "libcusolver.so.12")  # linalg's
        if not lacking:
            self.skipTest("this machine has all libraries of CUDA")
        finding = findings(folder)["libtorch_cuda"]
        self.assertEqual(finding["level"], "problem")
        for name in lacking:
            self.assertIn(name, finding["text"])
        self.assertIn("dtrain-get-libtorch --flavour full", finding["remedy"])


def main():
    global PROBE, FAKES, CXX, LIBTORCH
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    PROBE, FAKES, CXX = sys.argv.pop(2), Path(sys.argv.pop(2)), sys.argv.pop(2)
    found = re.search(r"libtorch_cpu\.so => (\S+)", output("ldd", PROBE))
    if not found:
        sys.exit(f"{PROBE} does not link libtorch_cpu.so")
    LIBTORCH = Path(os.path.realpath(found.group(1))).parents[1]
    harness.main("dtrain-worker")


if __name__ == "__main__":
    main()
