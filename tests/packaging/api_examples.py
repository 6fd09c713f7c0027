"""The C++ examples of docs/api.md compile against the headers that are installed, and no others.

    api_examples.py SOURCE_FOLDER COMPILER LIBTORCH ('torch' folder)
"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()
COMPILER = sys.argv.pop(1)
LIBTORCH = Path(sys.argv.pop(1)).resolve()
DEADLINE = 600  # seconds; only against hangs


def published():
    """Headers that are installed, as paths below include/, with where they are."""
    for lists in sorted(SOURCE.glob("*/CMakeLists.txt")) + sorted(SOURCE.glob("*/*/CMakeLists.txt")):
        match = re.search(r"^\s*PUBLISH ([^\n)]*)", lists.read_text(), re.MULTILINE)
        include = lists.parent / "include"
        if match and match.group(1).split() == ["ALL"]:
            yield from ((header.relative_to(include), header) for header in include.rglob("*.h"))
        elif match:
            folder = Path("dtrain") / lists.parent.name
            yield from ((folder / name, include / folder / name) for name in match.group(1).split())


def examples():
    return re.findall(r"^```cpp\n(.*?)^```", (SOURCE / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL)


class ApiExamples(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="dtrain-api-"))
        self.addCleanup(shutil.rmtree, self.work)

    def test_compile(self):
        include = self.work / "include"
        for name, header in published():
            (include / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(header, include / name)
        self.assertTrue((include / "dtrain" / "dtrain.h").is_file())
        includes, bodies = [], []
        for number, text in enumerate(examples()):
            lines = text.splitlines()
            includes += [line for line in lines if line.startswith("#include")]
            body = "\n".join("" if line.startswith("#include") else line for line in lines)
            bodies.append(f"namespace example_{number} {{\n{body.replace('int main(', 'int run(')}\n}}\n")
        self.assertGreaterEqual(len(bodies), 15)
        program = self.work / "examples.cpp"
        program.write_text("\n".join(dict.fromkeys(includes)) + "\n" + "".join(bodies))
        command = [COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{include}",
                   "-isystem", LIBTORCH / "include", "-isystem", LIBTORCH / "include" / "torch" / "csrc" / "api" / "include",
                   "-D_GLIBCXX_USE_CXX11_ABI=1", program]
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_every_public_class_is_named(self):
        text = (SOURCE / "docs" / "api.md").read_text()
        missing = []
        for name, header in published():
            if name.parts[1] == "base":
                continue  # what the others are made of
            for kind in re.findall(r"^(?:class|struct|enum class) (\w+)\s*(?:final)?\s*(?::[^;{]*)?\{", header.read_text(),
                                   re.MULTILINE):
                if not re.search(rf"\b{kind}\b", text):
                    missing.append(f"{name}: {kind}")
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
