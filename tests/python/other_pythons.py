"""The wheel of a build in the other Pythons of this machine.

    other_pythons.py BUILD_FOLDER DTRAIN_PYTHON [PYTHON ...]

DTRAIN_PYTHON is the one with which fresh_venv.sh is a test of its own. The others are those given (of which the build has modules) and
those in PATH. Where the build has a module for one: fresh_venv.sh, all of it if that Python has torch, else the part that needs none.
Where it has not: pip refuses the wheel, and `import dtrain` says for which Pythons it is.
"""
import functools
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "python"))
import interpreters

scratch = tempfile.TemporaryDirectory()
build = main = pythons = None


def run(*command, **variables):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", **variables})
    return done.returncode, done.stdout


@functools.cache
def wheel():
    code, output = run(sys.executable, "-B", str(SOURCE / "python" / "build_wheel.py"), str(build), "--to", scratch.name)
    if code != 0:
        raise AssertionError(output)
    return next(Path(scratch.name).glob("*.whl"))


@functools.cache
def minor():
    """Of torch, for which the build is."""
    return next((build / "python" / "dtrain").glob("torch[0-9]*")).name.removeprefix("torch")


class OtherPythons(unittest.TestCase):
    def try_python(self, version):
        if version == main.version:
            self.skipTest(f"Python {version} is fresh_venv's")
        if version not in pythons:
            self.skipTest(f"there is no Python {version} in PATH")
        program = pythons[version].program
        self.compiles(program)
        if run(program, "-c", "import ensurepip")[0] != 0:
            self.skipTest(f"Python {version} makes no environments (python{version}-venv)")
        if f"cp{version.replace('.', '')}" not in wheel().name:
            self.refuses(program, version)
            self.skipTest(f"the build has no module for Python {version}, and says so")
        torch = run(program, "-c", "import torch; print(torch.__version__)")[1].startswith(f"{minor()}.")
        code, output = run(str(SOURCE / "tests" / "python" / "fresh_venv.sh"), str(wheel()), program if torch else "--without-torch",
                           DTRAIN_PYTHON=program)
        self.assertEqual(code, 0, output)
        if not torch:
            self.skipTest(f"Python {version} has no torch {minor()}: tried is only what needs none")

    def compiles(self, program):
        """All that this Python may be given, without a warning."""
        files = [str(file) for folder in ("python", "examples/python") for file in (SOURCE / folder).rglob("*.py")]
        code, output = run(program, "-W", "error", "-c", "import pathlib, sys\n"
                           "for name in sys.argv[1:]: compile(pathlib.Path(name).read_text('utf-8'), name, 'exec')", *files)
        self.assertEqual((code, output), (0, ""))

    def refuses(self, program, version):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run(program, "-m", "venv", folder)[0], 0)
            code, output = run(f"{folder}/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", str(wheel()))
            self.assertNotEqual(code, 0, output)
            self.assertIn("is not a supported wheel", output)
            torch = Path(folder) / "torch"
            torch.mkdir()
            (torch / "__init__.py").write_text("raise SystemExit('torch was imported')")
            code, output = run(program, "-c", "import dtrain", PYTHONPATH=f"{build / 'python'}:{folder}")
        self.assertEqual(code, 1, output)
        self.assertRegex(output, rf"\nImportError: this dtrain is built for Python 3\.\d+.*, and this is cpython {version}:")

    def test_3_10(self):
        self.try_python("3.10")

    def test_3_11(self):
        self.try_python("3.11")

    def test_3_12(self):
        self.try_python("3.12")

    def test_3_13(self):
        self.try_python("3.13")

    def test_3_14(self):
        self.try_python("3.14")

    def test_folder_of_headers(self):
        """In place of a Python that is not here: its version is read from them, and what cannot be used is refused."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()

            def found():
                return run(sys.executable, "-B", str(SOURCE / "python" / "interpreters.py"), str(folder))

            def write(minor, configuration):
                (folder / "patchlevel.h").write_text(f"#define PY_MAJOR_VERSION 3\n#define PY_MINOR_VERSION        {minor}\n"
                                                     "#define PY_VERSION_HEX ((PY_MAJOR_VERSION << 24) | \\\n")
                (folder / "pyconfig.h").write_text(configuration)

            self.assertEqual(found(), (1, f"interpreters: {folder} is no folder of headers of a Python: it must have Python.h, "
                                          "patchlevel.h and pyconfig.h\n"))
            write(14, "/* #undef Py_GIL_DISABLED */\n")
            self.assertIn("it has no headers", found()[1])
            (folder / "Python.h").touch()
            self.assertEqual(found(), (0, f"{folder}\n"))
            for minor, configuration in ((14, "#define Py_GIL_DISABLED 1\n"), (9, "")):
                write(minor, configuration)
                code, output = found()
                self.assertEqual(code, 1, output)
                self.assertIn("cannot be used: dtrain needs CPython 3.10 or later, with the GIL", output)


if __name__ == "__main__":
    build = Path(sys.argv[1]).resolve()
    main = interpreters.ask(sys.argv[2])
    given = [interpreters.ask(program) for program in sys.argv[3:]]
    pythons = {one.version: one for one in [*filter(None, given), *interpreters.of_this_machine()]}
    with scratch:
        unittest.main(argv=[sys.argv[0], "-v"])
