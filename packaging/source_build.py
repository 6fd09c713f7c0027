"""How pip builds dtrain from its sources: scikit-build-core, after a look at what is there. What is missing is a line that names it.

pip builds in an environment of its own, where there is no torch. The torch to compile against is the one in DTRAIN_LIBTORCH_DIR, or
that of the environment to which dtrain will belong. There is no `build_editable`: `make build` makes a package to develop with.
"""
from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import scikit_build_core.build as backend
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist, prepare_metadata_for_build_wheel

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_sdist", "get_requires_for_build_wheel",
           "prepare_metadata_for_build_wheel"]

SOURCE = Path(__file__).resolve().parent.parent
OLDEST_GCC = 11
GIGABYTES_OF_A_COMPILER = 3  # of those that read libtorch's headers
# What NCCL's headers and libtorch's CUDA headers include. torch's own requirements lack some of it.
CUDA_HEADERS = [f"nvidia-cuda-{part}==13.2.86" for part in ("runtime", "crt", "cccl")]
FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"


def find_torch() -> Path | None:
    if named := os.environ.get("DTRAIN_LIBTORCH_DIR"):
        return Path(named)
    # --no-build-isolation
    if (spec := importlib.util.find_spec("torch")) and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    # pip isolates a build by these variables. Without them this Python sees what it will see when dtrain is used.
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    done = subprocess.run([sys.executable, "-c", FIND_TORCH], cwd="/", env=outside, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def tested_minors() -> list[str]:
    return re.findall(r"^  \[([\d.]+)\]=", (SOURCE / "packaging" / "dtrain-get-libtorch").read_text("utf-8"), re.M)


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def problem_of_torch(folder: Path | None) -> str | None:
    oldest = tested_minors()[0]
    if folder is None:
        return (f"dtrain is compiled against the torch that is installed, and {sys.executable} has none: pip install torch, then "
                "install dtrain again (or name the folder of a torch elsewhere in DTRAIN_LIBTORCH_DIR)")
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        return f"there is no torch in '{folder}' (no lib/libtorch_cpu.so): DTRAIN_LIBTORCH_DIR is the 'torch' folder of a PyTorch"
    if (version := version_of(folder)) is None:
        return f"'{folder}' has no version.py that says which torch it is: use that of an installed PyTorch"
    if as_numbers(version) < as_numbers(oldest):
        return f"torch {version} is in '{folder}', and dtrain needs {oldest} or later: pip install --upgrade torch"
    return None


def version_of(torch: Path) -> str | None:
    file = torch / "version.py"
    found = re.search(r"^__version__ = '(\d+\.\d+)", file.read_text("utf-8"), re.M) if file.exists() else None
    return found and found.group(1)


def problem_of_compiler() -> str | None:
    """None where there is a compiler that is not too old."""
    wanted = f"g++ {OLDEST_GCC} or later"
    named = os.environ.get("CXX")
    found = [shlex.split(named)] if named else [[name] for name in ("c++", "g++", "clang++")]  # in CMake's order
    command = next((words for words in found if shutil.which(words[0])), None)
    if command is None:
        return wanted + (f" (CXX is '{named}', which is not there)" if named else "")
    done = subprocess.run([*command, "-dM", "-E", "-x", "c++", os.devnull], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True)
    macros = dict(re.findall(r"^#define (__GNUC__|__clang__) (\d+)$", done.stdout, re.M))
    if "__GNUC__" not in macros:
        return f"{wanted} ({command[0]} does not work)"
    if "__clang__" not in macros and int(macros["__GNUC__"]) < OLDEST_GCC:
        return f"{wanted} ({command[0]} is version {macros['__GNUC__']})"
    return None


def folders_of_headers() -> list[Path]:
    prefixes = [Path("/usr/local"), Path("/usr")]
    for variable in ("CMAKE_PREFIX_PATH", "CONDA_PREFIX"):
        prefixes += map(Path, filter(None, os.environ.get(variable, "").split(os.pathsep)))
    folders = [prefix / "include" for prefix in prefixes]
    folders += map(Path, filter(None, os.environ.get("CPATH", "").split(os.pathsep)))
    # Of Chart.js alone. The source distribution has it.
    return [*folders, SOURCE / "runtime/analysis/report/assets", Path("/usr/share/javascript/chart.js")]


def what_is_missing() -> str | None:
    names, packages = [], []
    if problem := problem_of_compiler():
        names.append(problem)
        packages.append("g++")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        names.append(f"the headers of Python {python}")
        packages.append(f"python{python}-dev")
    if not shutil.which(os.environ.get("PKG_CONFIG", "pkg-config")):
        names.append("pkg-config")
        packages.append("pkg-config")
    folders = folders_of_headers()
    for line in (SOURCE / "packaging" / "libraries.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, header, package = line.split()
            if not any((folder / header).exists() for folder in folders):
                names.append(name)
                packages.append(package)
    return f"dtrain needs {', '.join(names)}: apt install {' '.join(packages)}" if names else None


def warn_of_untested(version: str) -> None:
    tested = tested_minors()
    if version not in tested:
        text = f"dtrain: torch {version} is tried, but dtrain is tested with {', '.join(tested)} alone"
        print(text, file=sys.stderr)
        with contextlib.suppress(OSError):  # pip shows what a build prints only where it fails
            with open("/dev/tty", "w") as terminal:
                print(f"\n{text}", file=terminal)


def compilers_at_once() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no limit of a container
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(1, min(len(os.sched_getaffinity(0)), (memory >> 30) // GIGABYTES_OF_A_COMPILER))


def checked_torch() -> Path:
    """The torch to compile against. Ends the build where that is impossible."""
    if sys.platform != "linux" or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit("dtrain needs Linux, and CPython with the GIL")
    torch = find_torch()
    if problems := list(filter(None, (problem_of_torch(torch), what_is_missing()))):
        raise SystemExit("\n".join(problems))
    return torch


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    # Here already: without torch pip would download that of its choice before it builds.
    torch = checked_torch()
    headers = CUDA_HEADERS if (torch.parent / "nvidia/nccl/include/nccl.h").exists() else []
    return [*backend.get_requires_for_build_wheel(config_settings), *headers]


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    torch = checked_torch()
    warn_of_untested(version_of(torch))
    headers = [str(found) for entry in sys.path for found in Path(entry).glob("nvidia/cu*/include")]
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(compilers_at_once()))
    settings = {
        "cmake.define.DTRAIN_LIBTORCH_DIR": str(torch),
        "cmake.define.DTRAIN_PYTHON": sys.executable,
        "cmake.define.DTRAIN_PYTHON3": sys.executable,
        "cmake.define.DTRAIN_CUDA_HEADERS": ";".join(headers),
    }
    return backend.build_wheel(wheel_directory, {**settings, **(config_settings or {})}, metadata_directory)
