"""Packs a build into a wheel: dtrain-VERSION-PYTHONS-PYTHONS-PLATFORM.whl.

    build_wheel.py BUILD_FOLDER [FOLDER]     (default: build/wheel)

    dtrain/       the modules, and _native for each Python for which the build has one
    dtrain/bin/   the programs, which look for libraries in ../lib, and for libtorch in the torch that is installed beside
    dtrain/lib/   our libraries, and copies of those that a plain distribution lacks
    the command   python/command.py, which starts dtrain/bin/dtrain

Needs patchelf, strip, ldd and dpkg-query (scripts/setup.sh wheel).
"""
from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
PROGRAMS = ("dtrain", "dtrain-agent", "dtrain-calibrate", "dtrain-saver", "dtrain-worker")
# The machine's C and C++ libraries and zlib, on which manylinux relies, too; what torch brings; and MPI's.
NOT_COPIED = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z)\.so|libtorch|libc10|libcuda|libcupti|libnv|libnccl|libmpi")
MEGABYTES = 12  # what a wheel may have at most


def output_of(*command: str | Path) -> str:
    if shutil.which(command[0]) is None:
        sys.exit(f"build_wheel: there is no {command[0]} in PATH: scripts/setup.sh wheel installs it")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"build_wheel: {' '.join(map(str, command))} has failed with exit code {done.returncode}")
    return done.stdout


def needed_by(file: Path) -> list[str]:
    return output_of("patchelf", "--print-needed", file).split()


def foreign_libraries(files: list[Path]) -> dict[str, Path]:
    """The libraries to copy, and where they are: what the files need, and what those need in turn."""
    places: dict[str, Path] = {}
    for file in files:
        for name, path in re.findall(r"(\S+) => (/\S+)", output_of("ldd", file)):
            places[name] = Path(path).resolve()
    found: dict[str, Path] = {}
    waiting = list(files)
    while waiting:
        for name in needed_by(waiting.pop()):
            if name.startswith("libdtrain_") or NOT_COPIED.match(name) or name in found:
                continue
            if name not in places:
                sys.exit(f"build_wheel: {name} is needed, and ldd does not find it: scripts/setup.sh build installs it")
            found[name] = places[name]
            waiting.append(places[name])
    return found


def name_of_copy(library: str) -> str:
    """A name of its own, so that Python's modules and ours do not get each other's version: libssl-dtrain.so.3."""
    return library.replace(".so", "-dtrain.so", 1)


def adapt(file: Path, folder_of_package: str, copies: dict[str, Path]) -> None:
    """Strips it, and lets it find its libraries from where it will be. `folder_of_package`: seen from the file."""
    output_of("strip", "--strip-unneeded", file)
    # One change a call: patchelf 0.14 mixes several up.
    for name in needed_by(file):
        if name in copies:
            output_of("patchelf", "--replace-needed", name, name_of_copy(name), file)
    rpath = f"$ORIGIN/{folder_of_package}lib:$ORIGIN/{folder_of_package}../torch/lib"
    output_of("patchelf", "--set-rpath", rpath, file)


def copyright_of(library: Path) -> tuple[str, Path]:
    """The Debian package of a library, and its licence."""
    package = output_of("dpkg-query", "-S", f"*/{library.name}").split(":")[0]
    return package, Path("/usr/share/doc") / package / "copyright"


def natives_of(build: Path) -> dict[str, Path]:
    """The module of each Python, whose ABI is the key: cp311."""
    found = {}
    for file in (build / "python" / "dtrain").glob("_native.*.so"):
        if match := re.match(r"_native\.cpython-(\d+)-", file.name):
            found[f"cp{match[1]}"] = file
    if not found:
        sys.exit(f"build_wheel: {build}/python/dtrain has no _native: make wheel builds it")
    return dict(sorted(found.items()))


def fill(build: Path, package: Path) -> list[Path]:
    """Puts everything into the package; returns the libraries that were copied."""
    shutil.copytree(SOURCE / "python" / "dtrain", package, ignore=shutil.ignore_patterns("__pycache__"))
    natives = natives_of(build).values()
    for native in natives:
        shutil.copy2(native, package)
    (package / "bin").mkdir()
    (package / "lib").mkdir()
    programs = [build / "bin" / name for name in PROGRAMS]
    libraries = {}  # by the name that they are opened by, which links have in the build
    for library in sorted((build / "lib").glob("libdtrain_*.so")):
        libraries[output_of("patchelf", "--print-soname", library).strip() or library.name] = library
    copies = foreign_libraries([*programs, *libraries.values(), *natives])
    for program in programs:
        shutil.copy2(program, package / "bin")
        adapt(package / "bin" / program.name, "../", copies)
    for name, library in libraries.items():
        shutil.copy2(library, package / "lib" / name)
        adapt(package / "lib" / name, "../", copies)
    for name, library in copies.items():
        copy = package / "lib" / name_of_copy(name)
        shutil.copy2(library, copy)
        copy.chmod(0o755)
        adapt(copy, "../", copies)
        output_of("patchelf", "--set-soname", copy.name, copy)
    for native in natives:
        adapt(package / native.name, "", copies)
    return list(copies.values())


def describe(root: Path, information: Path, version: str, abis: list[str], copied: list[Path]) -> str:
    """Writes the folder dist-info and the command; returns the wheel's tag."""
    torch = re.search(r'^_wanted = "(.*)"', (root / "dtrain" / "__init__.py").read_text(), re.M).group(1)
    # A distribution with this C library, or a later one, has a libstdc++ that is late enough, too.
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[1].replace(".", "_")
    machine = f"manylinux_{glibc}_{platform.machine()}"
    # The name of a wheel has each set once; it stands for all combinations, of which pip knows those of a Python with its ABI.
    tags = [f"{python}-{abi}-{machine}" for python in abis for abi in abis]
    licenses = information / "licenses"
    licenses.mkdir(parents=True)
    shutil.copy2(SOURCE / "LICENSE", licenses)
    shutil.copy2(SOURCE / "packaging" / "copyright", licenses / "copyright")
    for name, file in map(copyright_of, copied):
        shutil.copy2(file, licenses / f"copyright.{name}")
    (information / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: dtrain {version}\nRoot-Is-Purelib: false\n"
                                       + "".join(f"Tag: {tag}\n" for tag in tags))
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: dtrain\nVersion: {version}\n"
        "Summary: Distributed data-parallel training with a profile of where the time goes\n"
        # The tags say which Pythons it is for.
        f"License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch=={torch}.*\n"
        "Description-Content-Type: text/markdown\n\n" + (SOURCE / "README.md").read_text("utf-8"), "utf-8")
    scripts = root / f"dtrain-{version}.data" / "scripts"
    scripts.mkdir(parents=True)
    shutil.copy2(SOURCE / "python" / "command.py", scripts / "dtrain")
    (scripts / "dtrain").chmod(0o755)
    return f"{'.'.join(abis)}-{'.'.join(abis)}-{machine}"


def pack(root: Path, information: Path, wheel: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    record = ""
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(name: str, contents: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(name)  # of 1980, so that the same build gives the same wheel
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, contents, zipfile.ZIP_DEFLATED)

        for file in files:
            name, contents = file.relative_to(root).as_posix(), file.read_bytes()
            add(name, contents, 0o755 if os.access(file, os.X_OK) else 0o644)
            digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(contents)}\n"
        name = f"{information.name}/RECORD"
        add(name, f"{record}{name},,\n".encode(), 0o644)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: build_wheel.py BUILD_FOLDER [FOLDER]")
    build = Path(sys.argv[1])
    for file in (build / "bin" / name for name in PROGRAMS):
        if not file.exists():
            sys.exit(f"build_wheel: there is no {file}: make wheel builds it")
    version = re.search(r"CMAKE_PROJECT_VERSION:\w+=(.*)", (build / "CMakeCache.txt").read_text()).group(1)
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else SOURCE / "build" / "wheel"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("dtrain-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as root:
        information = Path(root) / f"dtrain-{version}.dist-info"
        copied = fill(build, Path(root) / "dtrain")
        tag = describe(Path(root), information, version, list(natives_of(build)), copied)
        wheel = folder / f"dtrain-{version}-{tag}.whl"
        pack(Path(root), information, wheel)
    size = wheel.stat().st_size / 1e6
    if size > MEGABYTES:
        sys.exit(f"build_wheel: {wheel} has {size:.1f} MB, and {MEGABYTES} MB are allowed")
    print(f"{wheel} ({size:.1f} MB)")


main()
