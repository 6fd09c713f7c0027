"""Does a test fail for each mistake in the lists?

    mutants.py LIST.toml [LIST.toml ...] [NAME ...]

The list has the tests, each with the targets that it needs, and the mutants:

    [tests]
    test_comm_nccl = ["test_comm_nccl"]

    [[mutant]]
    name = "what-is-wrong"
    file = "comm/nccl/nccl_launch.cpp"
    old = "..."        # one statement or one expression, which the file has once
    within = "..."     # where the file has it more than once: a text around it that is there once
    new = "..."        # the mistake in its place
    tests = ["..."]    # names in ctest of those that should fail, the quickest first

The checkout stays as it is: its files are copied to build/mutants/, where one build has all mistakes of the lists. Each is a branch that
the environment variable MUTANT_OF_DTRAIN takes (mutant.h). First the tests must pass without a mistake; then the tests of
each mutant are run until one fails.
"""
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
BUILD = COPY / "build" / "release"
JOBS = os.environ.get("JOBS") or str(os.cpu_count())
DEADLINE = 300  # seconds of a test that a mistake makes wait for ever
# What says in a test's output which case has failed, and why: what the fakes have reported, else the first expectation.
CASE = re.compile(r"^\[  FAILED  \] ([\w./]+)|^(?:FAIL|ERROR): (\S+)", re.M)
REASONS = [re.compile(pattern, re.M) for pattern in (
    r"(?:missing wait|freed too early|missing device guard)[^\"\n]*", r"[^\"\n]*while NCCL still launches[^\"\n]*",
    r"^  Actual: .*", r"^(?:\w+Error|C\+\+ exception).*", r"(?<=: Failure\n)(?:.*\n){1,5}")]


class ListIsWrong(Exception):
    pass


class Mutant:
    def __init__(self, name, file, old, new, tests, within=None):
        self.name, self.file, self.old, self.new, self.tests = name, file, old.strip(), new.strip(), tests
        self.within = within.strip() if within else self.old

    def plant(self, text):
        """The text with both forms, of which the process chooses one."""
        if (text.count(self.within), self.within.count(self.old)) != (1, 1):
            raise ListIsWrong(f"{self.name}: {self.file} has the old text {text.count(self.within)} times, not once")
        condition = f'makes_mistake("{self.name}")'
        if self.old.endswith((";", "}")):
            both = f"if ({condition}) {{ {self.new} }} else {{ {self.old} }}"
        else:
            both = f"({condition} ? ({self.new}) : ({self.old}))"
        return text.replace(self.within, self.within.replace(self.old, both))


def read_lists(paths, names):
    """The targets of each test, all mutants, and those of the names: all, where none is given."""
    tests, mutants = {}, []
    for path in paths:
        content = tomllib.loads(Path(path).read_text())
        mutants += [Mutant(**mutant) for mutant in content["mutant"]]
        tests |= content["tests"]
        for mutant in content["mutant"]:
            for test in mutant["tests"]:
                if test not in content["tests"]:
                    raise ListIsWrong(f"{mutant['name']}: {test} is not among the tests of {path}")
    known = [mutant.name for mutant in mutants]
    for wrong in [name for name in known if known.count(name) > 1]:
        raise ListIsWrong(f"two mutants are called {wrong}")
    for name in names:
        if name not in known:
            raise ListIsWrong(f"there is no mutant {name}; there are: {', '.join(known)}")
    return tests, mutants, [mutant for mutant in mutants if not names or mutant.name in names]


def write_if_new(path, content, mode):
    """A file that stays the same is not compiled again."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path.chmod(mode)


def copy_sources(mutants):
    """Everything that git knows or would add, with the mistakes in it."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for name in sorted(names):
        content = (ROOT / name).read_bytes()
        planted = [mutant for mutant in mutants if mutant.file == name]
        if planted:
            text = content.decode()
            for mutant in planted:
                text = mutant.plant(text)
            content = f'#include "{COPY}/tests/mutants/mutant.h"\n#line 1\n{text}'.encode()
        write_if_new(COPY / name, content, (ROOT / name).stat().st_mode)
    for mutant in mutants:
        if mutant.file not in names:
            raise ListIsWrong(f"{mutant.name}: there is no file {mutant.file}")
    for folder, folders, files in os.walk(COPY):
        if Path(folder) == COPY:
            folders[:] = [name for name in folders if name not in ("build", ".deps")]
        for name in files:
            path = Path(folder) / name
            if str(path.relative_to(COPY)) not in names:
                path.unlink()
    dependencies = COPY / ".deps"
    if not dependencies.is_symlink():
        dependencies.symlink_to(ROOT / ".deps")


def build(targets):
    log = COPY / "build" / "mutants.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CCACHE_BASEDIR": str(COPY), "CCACHE_NOHASHDIR": "1"}
    with open(log, "w") as output:
        # -O1 takes less of the compiler's time, which is most of all that this takes.
        for command in (["cmake", "--preset", "release", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -DNDEBUG",
                         "-DDTRAIN_TESTS=ON", "-DDTRAIN_BENCH=OFF"],
                        ["cmake", "--build", str(BUILD), "-j", JOBS, "--target", *targets]):
            if subprocess.run(command, cwd=COPY, env=environment, stdout=output, stderr=output).returncode:
                print("".join(open(log, errors="replace").readlines()[-60:]), end="")
                sys.exit(f"the mutants do not compile; all of it is in {log}")


def run_test(test, mutant=None):
    """Whether it has passed, and what it said."""
    environment = {**os.environ, "GTEST_FAIL_FAST": "1", **({"MUTANT_OF_DTRAIN": mutant.name} if mutant else {})}
    done = subprocess.run(["ctest", "--test-dir", str(BUILD), "--no-tests=error", "--output-on-failure", "--timeout", str(DEADLINE),
                           "-R", f"^{re.escape(test)}$"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    return done.returncode == 0, done.stdout


def in_short(output):
    """The case that has failed, and the first line that says why."""
    case = CASE.search(output)
    parts = [case.group(1) or case.group(2)] if case else []
    reason = next(filter(None, (pattern.search(output) for pattern in REASONS)), None)
    parts += [" ".join(reason.group().split())[:160]] if reason else []
    if "***Timeout" in output:
        parts.append("it did not end")
    return ": ".join(parts) or "it failed"


def main():
    lists = [argument for argument in sys.argv[1:] if argument.endswith(".toml")]
    tests, all_mutants, chosen = read_lists(lists, [argument for argument in sys.argv[1:] if argument not in lists])
    used = [test for test in tests if any(test in mutant.tests for mutant in chosen)]
    began = time.monotonic()
    copy_sources(all_mutants)
    build(sorted({target for test in used for target in tests[test]}))
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    for test in used:
        began_test = time.monotonic()
        passed, output = run_test(test)
        if not passed:
            print(output)
            sys.exit(f"{test} fails without a mutant")
        print(f"{test} passes without a mutant ({time.monotonic() - began_test:.0f} s)", flush=True)
    rows = []
    for mutant in chosen:
        began_mutant = time.monotonic()
        found = None
        for test in mutant.tests:
            passed, output = run_test(test, mutant)
            if not passed:
                found = test
                break
        seconds = time.monotonic() - began_mutant
        said = f"caught by {found} ({in_short(output)})" if found else "SURVIVED"
        print(f"{mutant.name}: {said}, {seconds:.0f} s", flush=True)
        rows.append((mutant.name, mutant.file, found or "SURVIVED", f"{seconds:.0f}"))
    print_table([("mutant", "file", "caught by", "seconds"), *rows])
    survivors = [row[0] for row in rows if row[2] == "SURVIVED"]
    print(f"{len(rows) - len(survivors)} of {len(rows)} mutants caught, in {time.monotonic() - began:.0f} s")
    if survivors:
        sys.exit(f"no test found: {', '.join(survivors)}")


def print_table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    try:
        main()
    except ListIsWrong as error:
        print(f"mutants: {error}", file=sys.stderr)
        sys.exit(2)
