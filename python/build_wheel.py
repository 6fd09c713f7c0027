"""Packs builds into a wheel: dtrain-VERSION-PYTHONS-PYTHONS-PLATFORM.whl.

    build_wheel.py BUILD_FOLDER [BUILD_FOLDER ...] [--to FOLDER]     (default: build/wheel)

Each build is for another minor version of torch. What links libtorch comes from each of them, the rest from the first.

    dtrain/            the modules
    dtrain/bin/        the programs, which look for libraries in ../lib
    dtrain/lib/        our libraries, and copies of those that a plain distribution lacks
    dtrain/torch2.15/  what links libtorch, for torch 2.15: _native for each Python, libraries, programs. They look for libtorch in
                       the torch that is installed beside
    the command        python/command.py, which starts dtrain/bin/dtrain

Needs patchelf, strip, ldd, readelf, nm and dpkg-query (scripts/setup.sh wheel).
"""
from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent
PROGRAMS = ("dtrain", "dtrain-agent", "dtrain-saver")
TORCH_PROGRAMS = ("dtrain-calibrate", "dtrain-worker")
TORCH_LIBRARIES = ("libdtrain_cuda_graph.so", "libdtrain_torch_distributed.so", "libdtrain_train.so")
# The machine's C and C++ libraries and zlib, on which manylinux relies, too; what torch brings; and MPI's.
NOT_COPIED = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z)\.so|libtorch|libc10|libcuda|libcupti|libnv|libnccl|libmpi")
# What a wheel may have at most, with five Pythons: for one minor version of torch, and for each further one.
MEGABYTES, MEGABYTES_OF_MINOR = 16, 5
# What the distributions of a tag have at most, beside the C library: libstdc++ and libgcc of RHEL 7, RHEL 8, Debian 11, RHEL 9,
# Ubuntu 22.04 (as Debian 12), Fedora 38, Ubuntu 24.04.
TAGS = {(2, 17): {"GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)},
        (2, 28): {"GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8, 0, 0)},
        (2, 31): {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (8, 0, 0)},
        (2, 34): {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (8, 0, 0)},
        (2, 35): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
        (2, 37): {"GLIBCXX": (3, 4, 31), "CXXABI": (1, 3, 14), "GCC": (13, 0, 0)},
        (2, 39): {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)}}
# The one symbol for which files that GCC 11 or 12 has linked need a libstdc++ that RHEL 9 does not have, and its versions.
WAIT, NEWER, OLDER = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", "GLIBCXX_3.4.30", "GLIBCXX_3.4.11"


class Build(NamedTuple):
    """A build, and what of it links the libtorch of its minor version."""
    folder: Path
    minor: str
    natives: dict[str, Path]  # of each Python, whose ABI is the key: cp311
    backends: list[Path]  # of torch.distributed, as many
    programs: list[Path]
    libraries: dict[str, Path]  # by the names under which they are opened, which in a build are links

    def files(self) -> dict[str, Path]:
        return {file.name: file for file in (*self.natives.values(), *self.backends, *self.programs)} | self.libraries


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


def adapt(file: Path, copies: dict[str, Path], *folders: str) -> None:
    """Strips it, and lets it find its libraries in folders, as seen from its own."""
    output_of("strip", "--strip-unneeded", file)
    # One change a call: patchelf 0.14 mixes several up.
    for name in needed_by(file):
        if name in copies:
            output_of("patchelf", "--replace-needed", name, name_of_copy(name), file)
    output_of("patchelf", "--set-rpath", ":".join(("$ORIGIN/" + folder).rstrip("/") for folder in folders), file)
    use_older_wait(file)


def use_older_wait(file: Path) -> None:
    """Asks for the older version of condition_variable::wait, which does the same, where nothing else needs GCC 12's libstdc++."""
    listed = output_of("nm", "-D", "--undefined-only", "--with-symbol-versions", file).split()
    if [word for word in listed if word.endswith(f"@{NEWER}")] != [f"{WAIT}@{NEWER}"]:
        return
    data = bytearray(file.read_bytes())
    table, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    needs = next(s for s in sections if s[1] == 0x6FFFFFFE)
    strings = sections[needs[6]]
    older = data.find(f"\0{OLDER}\0".encode(), strings[4], strings[4] + strings[5])
    if older < 0:
        return
    digest = 0
    for letter in OLDER.encode():
        digest = (digest << 4) + letter
        digest = (digest ^ ((digest & 0xF0000000) >> 24)) & 0x0FFFFFFF
    need = needs[4]
    while True:
        aux, next_need = struct.unpack_from("<II", data, need + 8)
        entry = need + aux
        while True:
            name, next_one = struct.unpack_from("<II", data, entry + 8)
            start = strings[4] + name
            if data[start:data.index(0, start)] == NEWER.encode():
                struct.pack_into("<I", data, entry, digest)
                struct.pack_into("<I", data, entry + 8, older + 1 - strings[4])
            if not next_one:
                break
            entry += next_one
        if not next_need:
            break
        need += next_need
    file.write_bytes(data)


def copyright_of(library: Path) -> tuple[str, Path]:
    """The Debian package of a library, and its licence."""
    package = output_of("dpkg-query", "-S", f"*/{library.name}").split(":")[0]
    return package, Path("/usr/share/doc") / package / "copyright"


def named_libraries(folder: Path) -> dict[str, Path]:
    """By the name that they are opened by, which links have in the build. A library that the build made once, and makes no more,
    is none of them."""
    made = (folder.parent / "build.ninja").read_text()
    files = [file for file in sorted(folder.glob("libdtrain_*.so")) if f"lib/{file.name}" in made]
    return {output_of("patchelf", "--print-soname", file).strip() or file.name: file for file in files}


def look_at(folder: Path) -> Build:
    """Ends with a line that says what a build lacks."""
    found = sorted((folder / "python" / "dtrain").glob("torch*/_native.*.so"))
    minors = {file.parent.name.removeprefix("torch") for file in found}
    if len(minors) != 1:
        sys.exit(f"build_wheel: {folder}/python/dtrain has _native for {', '.join(sorted(minors)) or 'no torch'}, and must have it for "
                 "one: make wheel builds it")
    natives = {}
    for file in found:
        if match := re.match(r"_native\.cpython-(\d+)-", file.name):
            natives[f"cp{match[1]}"] = file
    backends = [file.with_name(file.name.replace("_native", "_torch_distributed")) for file in natives.values()]
    programs = [folder / "bin" / name for name in TORCH_PROGRAMS]
    libraries = {name: file for name, file in named_libraries(folder / "lib").items() if file.name in TORCH_LIBRARIES}
    for file in (*programs, *backends, folder / "lib" / "libdtrain_train.so"):
        if not file.exists():
            sys.exit(f"build_wheel: there is no {file}: make wheel builds it")
    return Build(folder, minors.pop(), dict(sorted(natives.items())), backends, programs, libraries)


def check_together(builds: list[Build]) -> None:
    """Ends with a line where they cannot be in one wheel."""
    first = builds[0]
    for other in builds[1:]:
        if other.minor in {build.minor for build in builds if build is not other}:
            sys.exit(f"build_wheel: two builds are for torch {other.minor}")
        if list(other.natives) != list(first.natives):
            sys.exit(f"build_wheel: {first.folder} has modules for {', '.join(first.natives)}, and {other.folder} for "
                     f"{', '.join(other.natives)}: build both with the same DTRAIN_PYTHONS")
        if set(map(lambda file: file.name, other.libraries.values())) != set(map(lambda file: file.name, first.libraries.values())):
            sys.exit(f"build_wheel: {first.folder} and {other.folder} do not have the same of {', '.join(TORCH_LIBRARIES)}: build "
                     "both with the same options")


def symbols(file: Path, which: str) -> set[str]:
    """dtrain's own, of those that it defines or needs."""
    return {name for name in output_of("nm", "-D", "--format=just-symbols", which, file).split() if "6dtrain" in name}


def check_symbols(build: Build, common: list[Path]) -> None:
    """What links libtorch must come from the same sources as the rest: Python would find out while it imports the package."""
    defined = set().union(*(symbols(file, "--defined-only") for file in (*common, *build.libraries.values())))
    for file in build.files().values():
        if missing := symbols(file, "--undefined-only") - defined:
            sys.exit(f"build_wheel: {file} needs {min(missing)}, which no library of the wheel has: make its build anew")


def fill(builds: list[Build], package: Path) -> list[Path]:
    """Puts everything into the package; returns the libraries that were copied."""
    shutil.copytree(SOURCE / "python" / "dtrain", package, ignore=shutil.ignore_patterns("__pycache__"))
    first = builds[0].folder
    programs = [first / "bin" / name for name in PROGRAMS]
    for program in programs:
        if not program.exists():
            sys.exit(f"build_wheel: there is no {program}: make wheel builds it")
    libraries = {name: file for name, file in named_libraries(first / "lib").items() if file.name not in TORCH_LIBRARIES}
    copies = foreign_libraries([*programs, *libraries.values(), *(file for build in builds for file in build.files().values())])
    for build in builds:
        check_symbols(build, list(libraries.values()))

    def put(file: Path, folder: str, name: str, *paths: str) -> Path:
        (package / folder).mkdir(exist_ok=True)
        copy = package / folder / name
        shutil.copy2(file, copy)
        copy.chmod(0o755)
        adapt(copy, copies, *paths)
        return copy

    for program in programs:
        put(program, "bin", program.name, "../lib")
    for name, file in libraries.items():
        put(file, "lib", name, "", "../../torch/lib")  # NCCL's is beside that of torch
    for name, file in copies.items():
        copy = put(file, "lib", name_of_copy(name), "")
        output_of("patchelf", "--set-soname", copy.name, copy)
    for build in builds:
        for name, file in build.files().items():
            put(file, f"torch{build.minor}", name, "", "../lib", "../../torch/lib")
    return list(copies.values())


def platform_of(package: Path) -> str:
    """The oldest tag whose distributions have all versions of symbols that the files need."""
    needed = {"GLIBC": (2, 17), "GLIBCXX": (0,), "CXXABI": (0,), "GCC": (0,)}
    for file in package.rglob("*"):
        if not file.is_file() or file.read_bytes()[:4] != b"\x7fELF":
            continue
        versions = output_of("readelf", "--version-info", "--wide", file).partition("Version needs section")[2]
        for name, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", versions):
            needed[name] = max(needed[name], tuple(map(int, version.split("."))))
    glibc = needed.pop("GLIBC")
    fitting = [tag for tag, has in TAGS.items() if all(needed[name] <= has[name] for name in needed)]
    if not fitting:
        sys.exit(f"build_wheel: no tag of manylinux has what the files need: {needed}")
    return "manylinux_{}_{}".format(*max(glibc, min(fitting))) + f"_{platform.machine()}"


def describe(root: Path, information: Path, version: str, abis: list[str], copied: list[Path]) -> str:
    """Writes the folder dist-info and the command; returns the wheel's tag."""
    oldest = output_of(SOURCE / "packaging" / "dtrain-get-libtorch", "--releases").split()[0]
    machine = platform_of(root / "dtrain")
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
        # The tags say which Pythons it is for. pip must not replace a torch: `import dtrain` says what to do where the wheel has no
        # folder for it.
        f"License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch>={oldest}\n"
        "Description-Content-Type: text/markdown\n\n" + (SOURCE / "README.md").read_text("utf-8"), "utf-8")
    shutil.copy2(SOURCE / "python" / "entry_points.txt", information)
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


def version_of(folder: Path) -> str:
    return re.search(r"CMAKE_PROJECT_VERSION:\w+=(.*)", (folder / "CMakeCache.txt").read_text()).group(1)


def main() -> None:
    parser = argparse.ArgumentParser(usage="build_wheel.py BUILD_FOLDER [BUILD_FOLDER ...] [--to FOLDER]")
    parser.add_argument("builds", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, default=SOURCE / "build" / "wheel")
    arguments = parser.parse_args()
    builds = [look_at(folder) for folder in arguments.builds]
    check_together(builds)
    version = version_of(builds[0].folder)
    arguments.to.mkdir(parents=True, exist_ok=True)
    for old in arguments.to.glob("dtrain-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as root:
        information = Path(root) / f"dtrain-{version}.dist-info"
        copied = fill(builds, Path(root) / "dtrain")
        tag = describe(Path(root), information, version, list(builds[0].natives), copied)
        wheel = arguments.to / f"dtrain-{version}-{tag}.whl"
        pack(Path(root), information, wheel)
    size, allowed = wheel.stat().st_size / 1e6, MEGABYTES + MEGABYTES_OF_MINOR * (len(builds) - 1)
    if size > allowed:
        sys.exit(f"build_wheel: {wheel} has {size:.1f} MB, and {allowed} MB are allowed")
    print(f"{wheel} ({size:.1f} MB, for torch {', '.join(build.minor for build in builds)})")


main()
