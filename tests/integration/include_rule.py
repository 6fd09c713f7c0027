"""Only runtime/train (and examples, tests) may include libtorch, and `dtrain` itself must not load it. No program looks for
libraries in the current folder.

    include_rule.py SOURCE_FOLDER DTRAIN_PROGRAM
"""
import re
import subprocess
import sys
from pathlib import Path

TORCH = re.compile(r'^\s*#\s*include\s*[<"](torch|ATen|c10|caffe2)/')
MAY = ("runtime/train/", "examples/", "tests/")
FOLDERS = ("runtime", "comm", "scheduler", "examples", "tests")


def offenders(source):
    scanned = 0
    for folder in FOLDERS:
        for path in sorted((source / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".in"):
                continue
            scanned += 1
            name = path.relative_to(source).as_posix()
            if name.startswith(MAY):
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if TORCH.match(line) or "dtrain/train/" in line and "#include" in line:
                    yield f"{name}:{number}: {line.strip()}"
    if scanned < 100:
        yield f"only {scanned} source files found under {source}: this test looks in the wrong place"


def loaded_libraries(program):
    """Also those that its libraries need."""
    done = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True)
    return [line.strip() for line in done.stdout.splitlines()]


def look_in_the_current_folder(build):
    """An empty entry of a runpath means the current folder."""
    files = [path for folder in ("bin", "lib") for path in sorted((build / folder).iterdir())
             if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"]
    for path in files:
        dynamic = subprocess.run(["readelf", "-d", str(path)], check=True, capture_output=True, text=True).stdout
        for runpath in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic):
            if "" in runpath.split(":"):
                yield f"{path.name} looks for libraries in the current folder: its runpath is {runpath}"
    if len(files) < 5:
        yield f"only {len(files)} programs and libraries found under {build}: this test looks in the wrong place"


def main():
    source, program = Path(sys.argv[1]), Path(sys.argv[2])
    problems = list(offenders(source))
    libraries = loaded_libraries(program)
    if not any("libdtrain_run" in line for line in libraries):
        problems.append(f"ldd {program} does not show libdtrain_run: this test looks at the wrong file")
    problems += [f"{program.name} loads {line}" for line in libraries if re.search(r"libtorch|libc10|libdtrain_train", line)]
    problems += look_in_the_current_folder(program.parent.parent)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
