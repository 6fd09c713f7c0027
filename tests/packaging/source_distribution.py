"""The source distribution: what it has, that CMake makes the package of it, and what pip says where something is missing.

    source_distribution.py SOURCE_FOLDER TOOLS LIBTORCH PYTHON    TOOLS: where scikit-build-core is; PYTHON: has pip and torch

Nothing is compiled.
"""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

SOURCE, TOOLS, LIBTORCH = (Path(sys.argv.pop(1)).absolute() for _ in range(3))
PYTHON = sys.argv.pop(1)
MADE = {"PKG-INFO", "runtime/analysis/report/assets/chart.min.js"}
FOLDERS = ["cmake", "comm", "packaging", "python", "runtime", "scheduler"]
FILES = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"]
REQUIRED = "import source_build; print(source_build.get_requires_for_build_wheel())"


def run(*command, folder=None, **variables):
    """In a session without a terminal. None removes a variable."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DTRAIN_", "PYTHON", "CXX", "CMAKE"))}
    environment.update({key: str(value) for key, value in variables.items() if value is not None})
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    return done.returncode, done.stdout


def make_torch(folder, version):
    """What is asked of a torch before a build."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libtorch_cpu.so").touch()
    (folder / "__init__.py").touch()
    (folder / "version.py").write_text(f"__version__ = '{version}+cpu'\n")
    return folder


def setUpModule():
    Distribution.made = Path(tempfile.mkdtemp(prefix="dtrain-sources-"))
    unittest.addModuleCleanup(shutil.rmtree, Distribution.made)
    code, output = run("/usr/bin/python3", "-B", "-c", f"import source_build; source_build.build_sdist('{Distribution.made}')",
                       folder=SOURCE, PYTHONPATH=f"{TOOLS}:packaging")
    assert code == 0, output
    (Distribution.archive,) = Distribution.made.glob("dtrain-*.tar.gz")


class Distribution(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(dir=cls.made))
        with tarfile.open(cls.archive) as archive:
            archive.extractall(cls.work)
        cls.root = cls.work / cls.archive.name.removesuffix(".tar.gz")

    def hook(self, python="/usr/bin/python3", code=REQUIRED, root=None, **variables):
        """As pip calls it: in the folder of the sources, with tools in PYTHONPATH and without the user's packages."""
        return run(python, "-B", "-c", code, folder=root or self.root, PYTHONPATH=f"{TOOLS}:packaging", PYTHONNOUSERSITE="1",
                   **variables)


class Contents(Distribution):
    def test_the_files_are_those_that_a_build_needs(self):
        tracked = subprocess.run(["git", "ls-files", *FOLDERS, *FILES], cwd=SOURCE, capture_output=True, text=True, check=True)
        found = {file.relative_to(self.root).as_posix() for file in self.root.rglob("*") if file.is_file()}
        self.assertEqual(found - MADE, set(tracked.stdout.split()))
        self.assertLessEqual(MADE, found)
        self.assertLess(self.archive.stat().st_size, 3e6)

    def test_metadata(self):
        text = (self.root / "PKG-INFO").read_text()
        self.assertEqual(re.findall(r"^Requires-Dist: (.*)", text, re.M), ["torch>=2.11"], "an upper bound replaces a newer torch")
        self.assertIn("\nRequires-Python: >=3.10\n", text)
        self.assertIn("\nLicense-Expression: Apache-2.0\n", text)
        version = re.search(r"project\(dtrain VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertIn(f"\nVersion: {version}\n", text)
        self.assertEqual(self.archive.name, f"dtrain-{version}.tar.gz")


class Configured(Distribution):
    """What CMake would build and install."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        build = cls.work / "build"
        code, output = run("cmake", "-S", cls.root, "-B", build, "-G", "Ninja", "-DSKBUILD=2", f"-DSKBUILD_SCRIPTS_DIR={cls.work}/bin",
                           "-DDTRAIN_TESTS=OFF", "-DDTRAIN_BENCH=OFF", f"-DDTRAIN_LIBTORCH_DIR={LIBTORCH}")
        assert code == 0, output
        code, cls.commands = run("ninja", "-C", build, "-t", "commands", "python_package")
        assert code == 0, cls.commands
        cls.minor = re.search(r"^__version__ = '(\d+\.\d+)", (LIBTORCH / "version.py").read_text(), re.M)[1]
        cls.installed = {}
        for script in build.rglob("cmake_install.cmake"):
            for part in re.findall(r'COMPONENT STREQUAL "python_package".*?\nendif\(\)', script.read_text(), re.S):
                folder, name = re.search(r'DESTINATION "(.*?)".*? FILES\s+"(?:.*/)?(.*?)"', part, re.S).groups()
                rpath = re.search(r'NEW_RPATH "(.*)"', part)
                cls.installed[name] = folder.replace("${CMAKE_INSTALL_PREFIX}/", ""), rpath and rpath[1].replace("\\", "")

    def test_programs_and_libraries_lie_as_in_the_wheel(self):
        torch = f"torch{self.minor}", "$ORIGIN:$ORIGIN/../lib:$ORIGIN/../../torch/lib"
        for name in ("dtrain", "dtrain-agent", "dtrain-saver"):
            self.assertEqual(self.installed.pop(name), ("bin", "$ORIGIN/../lib"), name)
        libraries = [f"libdtrain_{name}.so.0.1-torch{self.minor}" for name in ("train", "torch_distributed")]
        for name in ("dtrain-worker", "dtrain-calibrate", *libraries):
            self.assertEqual(self.installed.pop(name), torch, name)
        natives = [name for name in self.installed if name.startswith(("_native.cpython-", "_torch_distributed.cpython-"))]
        self.assertEqual([self.installed.pop(name) for name in natives], [torch, torch])
        self.installed.pop("libdtrain_cuda_graph.so", None)  # where CUDA's headers are
        self.assertEqual(self.installed.pop("command.py"), (f"{self.work}/bin", None))
        for name, place in self.installed.items():
            self.assertRegex(name, r"^libdtrain_\w+\.so(\.0\.1)?$")
            self.assertEqual(place, ("lib", "$ORIGIN"), name)
        self.assertIn("libdtrain_base.so.0.1", self.installed)

    def test_nothing_else_is_compiled(self):
        self.assertIn("dtrain-worker", self.commands)
        for name in ("fashion_mnist", "gtest"):
            self.assertNotIn(name, self.commands)


class Torch(Distribution):
    """Which torch is compiled against."""

    def environment(self, name, *options):
        code, output = run("/usr/bin/python3", "-m", "venv", "--without-pip", *options, self.work / name)
        self.assertEqual(code, 0, output)
        python = self.work / name / "bin/python"
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[1].strip()
        return python, Path(site)

    def test_that_of_the_environment(self):
        find = "import source_build; print(source_build.find_torch())"
        python, site = self.environment("with_torch")
        torch = make_torch(site / "torch", "2.15.0")
        # pip hides the environment's packages from a build.
        (self.root / "packaging" / "sitecustomize.py").write_text(f"import sys\nsys.path.remove('{site}')\n")
        self.addCleanup((self.root / "packaging" / "sitecustomize.py").unlink)
        self.assertEqual(self.hook(python, "import torch", DTRAIN_CHECK="1")[0], 1, "torch is hidden")
        self.assertEqual(self.hook(python, find), (0, f"{torch}\n"))
        self.assertEqual(self.hook(python, find, DTRAIN_LIBTORCH_DIR="/elsewhere"), (0, "/elsewhere\n"))
        self.assertEqual(self.hook(python)[0], 0)

    def test_that_of_a_folder_in_its_path(self):
        python, site = self.environment("with_path")
        torch = make_torch(self.work / "elsewhere/torch", "2.15.0")
        (site / "more.pth").write_text(f"{torch.parent}\n")
        self.assertEqual(self.hook(python, "import source_build; print(source_build.find_torch())"), (0, f"{torch}\n"))

    def test_that_of_the_user(self):
        base = self.work / "user"
        site = run("/usr/bin/python3", "-c", "import site; print(site.getusersitepackages())", PYTHONUSERBASE=base)[1].strip()
        torch = make_torch(Path(site) / "torch", "2.15.0")
        self.assertEqual(self.hook(code="import source_build; print(source_build.find_torch())", PYTHONUSERBASE=base), (0, f"{torch}\n"))

    def test_none(self):
        python, _ = self.environment("without_torch")
        code, output = self.hook(python)
        self.assertEqual(code, 1)
        self.assertRegex(output, r"^dtrain is compiled against the torch .*without_torch/bin/python has none: pip install torch.*\n$")

    def test_one_that_cannot_be_used(self):
        old = make_torch(self.work / "old/torch", "2.10.1")
        code, output = self.hook(DTRAIN_LIBTORCH_DIR=old)
        self.assertEqual((code, output.count("\n")), (1, 1), output)
        self.assertRegex(output, r"^torch 2\.10 is in '.*/old/torch', and dtrain needs 2\.11 or later")
        code, output = self.hook(DTRAIN_LIBTORCH_DIR=self.work)
        self.assertEqual((code, output.count("\n")), (1, 1), output)
        self.assertIn(f"there is no torch in '{self.work}'", output)

    def test_an_untested_one_is_said(self):
        warn = "import source_build as s; s.warn_of_untested('{}')"
        self.assertEqual(self.hook(code=warn.format("2.15")), (0, ""))
        self.assertRegex(self.hook(code=warn.format("2.99"))[1], r"^dtrain: torch 2\.99 is tried, but .* tested with 2\.11, .*2\.15")


class Missing(Distribution):
    """A line that names what is missing, and the packages that have it."""

    def needs(self, **variables):
        code, output = self.hook(DTRAIN_LIBTORCH_DIR=LIBTORCH, **variables)
        self.assertEqual((code, output.count("\n")), (1, 1), output)
        return output

    def test_nothing(self):
        code, output = self.hook(DTRAIN_LIBTORCH_DIR=LIBTORCH)
        self.assertEqual(code, 0, output)

    def test_compilers(self):
        programs = self.work / "programs"
        programs.mkdir()
        self.assertEqual(self.needs(PATH=programs),
                         "dtrain needs g++ 11 or later, pkg-config: apt install g++ pkg-config\n")
        old = programs / "c++"
        old.write_text("#!/bin/sh\necho '#define __GNUC__ 10'\n")
        old.chmod(0o755)
        self.assertEqual(self.needs(PATH=f"{programs}:{os.environ['PATH']}"),
                         f"dtrain needs g++ 11 or later (c++ is version 10): apt install g++\n")
        self.assertEqual(self.needs(CXX="g++-99"),
                         "dtrain needs g++ 11 or later (CXX is 'g++-99', which is not there): apt install g++\n")

    def test_libraries(self):
        table = self.root / "packaging/libraries.txt"
        text = table.read_text()
        self.addCleanup(table.write_text, text)
        table.write_text(text.replace(" yaml-cpp/yaml.h ", " yaml-cpp/none.h ").replace(" hwloc.h ", " none.h "))
        self.assertEqual(self.needs(), "dtrain needs yaml-cpp, hwloc: apt install libyaml-cpp-dev libhwloc-dev\n")
        prefix = self.work / "prefix"
        (prefix / "include/yaml-cpp").mkdir(parents=True)
        (prefix / "include/yaml-cpp/none.h").touch()
        self.assertEqual(self.needs(CMAKE_PREFIX_PATH=prefix), "dtrain needs hwloc: apt install libhwloc-dev\n")

    def test_what_pip_shows(self):
        line = "dtrain needs g++ 11 or later (CXX is 'g++-99', which is not there): apt install g++"
        code, output = run(PYTHON, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir",
                           "--target", self.work / "target", self.archive, PYTHONPATH=TOOLS, CXX="g++-99",
                           PIP_DISABLE_PIP_VERSION_CHECK="1")
        self.assertEqual(code, 1, output)
        shown = re.search(r"\[(\d+) lines? of output\]\n(.*?)\n\s*\[end of output\]", output, re.S)
        self.assertEqual([text.strip() for text in shown[2].splitlines()], [line])


if __name__ == "__main__":
    unittest.main()
