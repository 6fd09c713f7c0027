"""Only runtime/train and runtime/torch_distributed (and examples, tests) may include libtorch, and `dtrain` itself must not load it. A training
program must not load what only a launcher needs.

    include_rule.py SOURCE_FOLDER DTRAIN_PROGRAM TRAINING_PROGRAM
"""
import re
import subprocess
import sys
from pathlib import Path

TORCH = re.compile(r'^\s*#\s*include\s*[<"](torch|ATen|c10|caffe2)/')
MAY = ("runtime/train/", "runtime/torch_distributed/", "examples/", "tests/")
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


def main():
    source, program, trial = (Path(argument) for argument in sys.argv[1:])
    problems = list(offenders(source))
    for file, own, others in ((program, "libdtrain_launcher", r"libtorch|libc10|libdtrain_train"),
                              (trial, "libdtrain_rank", r"libdtrain_(launcher|analysis|scheduler)|libsqlite|libsimdjson")):
        libraries = loaded_libraries(file)
        if not any(own in line for line in libraries):
            problems.append(f"ldd {file} does not show {own}: this test looks at the wrong file")
        problems += [f"{file.name} loads {line}" for line in libraries if re.search(others, line)]
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
