"""Finds the Pythons for which dtrain._native can be compiled, and prints their paths as CMake's DTRAIN_PYTHONS.

    interpreters.py [NAME ...]

Without names: /usr/bin/python3 and what PATH has of python3.10 to python3.14, where their headers are installed; says which
versions are missing. A NAME is a program or a version (python3.12, 3.12, /opt/python/bin/python3), and must have headers; or it is a
folder of headers (/opt/include/python3.14), of a Python that need not be here: scripts/python_headers.sh gets them.
"""
from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# Asked of each Python by itself. Its program may be one that starts another, as pyenv's are.
QUESTIONS = """
import json, sys, sysconfig
print(json.dumps([sys.executable, "%d.%d" % sys.version_info[:2], sysconfig.get_path("include"), sys.implementation.name,
                  bool(sysconfig.get_config_var("Py_GIL_DISABLED"))]))
"""


class Interpreter(NamedTuple):
    program: str
    version: str
    headers: str
    implementation: str
    without_gil: bool

    def obstacle(self) -> str | None:
        """Why no module can be compiled for it."""
        if self.implementation != "cpython" or self.without_gil or tuple(map(int, self.version.split("."))) < (3, 10):
            return "dtrain needs CPython 3.10 or later, with the GIL"
        if not (Path(self.headers) / "Python.h").exists():
            return f"it has no headers ({self.headers}/Python.h): install python{self.version}-dev"
        return None


def with_headers(folder: Path) -> Interpreter:
    """The Python whose headers these are, in place of its program."""
    texts = [(folder / name).read_text() if (folder / name).exists() else "" for name in ("patchlevel.h", "pyconfig.h")]
    version = re.findall(r"^#define PY_(?:MAJOR|MINOR)_VERSION\s+(\d+)", texts[0], re.M)
    if len(version) != 2 or not (folder / "pyconfig.h").exists():
        sys.exit(f"interpreters: {folder} is no folder of headers of a Python: it must have Python.h, patchlevel.h and pyconfig.h")
    return Interpreter(str(folder.resolve()), ".".join(version), str(folder), "cpython",
                       re.search(r"^#define Py_GIL_DISABLED\s+1", texts[1], re.M) is not None)


def ask(program: str) -> Interpreter | None:
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, "-c", QUESTIONS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return Interpreter(*json.loads(done.stdout)) if done.returncode == 0 else None


def of_this_machine() -> list[Interpreter]:
    """One of each version, whether or not it has headers; /usr/bin/python3 is the first."""
    found: dict[str, Interpreter] = {}
    for program in ("/usr/bin/python3", *(f"python{version}" for version in VERSIONS)):
        interpreter = ask(program)
        if interpreter is not None:
            found.setdefault(interpreter.version, interpreter)
    return list(found.values())


def named(names: list[str]) -> list[Interpreter]:
    found: dict[str, Interpreter] = {}
    for name in names:
        interpreter = with_headers(Path(name)) if Path(name).is_dir() else ask(f"python{name}" if name[0].isdigit() else name)
        if interpreter is None:
            sys.exit(f"interpreters: {name} is not a Python that runs: give its path, or put it into PATH")
        if obstacle := interpreter.obstacle():
            sys.exit(f"interpreters: {name} cannot be used: {obstacle}")
        found.setdefault(interpreter.version, interpreter)
    return list(found.values())


def main() -> None:
    if sys.argv[1:]:
        chosen = named(sys.argv[1:])
    else:
        chosen = []
        obstacles = dict.fromkeys(VERSIONS, "not in PATH")
        for interpreter in of_this_machine():
            obstacles[interpreter.version] = interpreter.obstacle()
            if obstacles[interpreter.version] is None:
                chosen.append(interpreter)
        if not chosen:
            sys.exit("interpreters: no Python here has headers: scripts/setup.sh build installs those of /usr/bin/python3")
        for version, obstacle in obstacles.items():
            if obstacle:
                print(f"no module for Python {version}: {obstacle}", file=sys.stderr)
    print(";".join(interpreter.program for interpreter in chosen))


if __name__ == "__main__":
    main()
