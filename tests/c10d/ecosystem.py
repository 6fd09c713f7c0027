"""Libraries of others over dtrain's backend: the values of gloo to the last digit, and dtrain's run of the unchanged script.

    ecosystem.py BUILD/bin [accelerate] [trainer] [lightning] [checkpoint] [deepspeed]

Each script of tests/c10d/libraries runs under torchrun with gloo, there with dtrain (with the one line before the library, or with
dtrain's name given to it), and unchanged under `dtrain run --as-is`. scripts/ecosystem.sh installs the libraries and calls this.
"""
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

import launches

import harness

SCRIPTS = launches.HERE / "libraries"


class Case(NamedTuple):
    script: str
    parts: list[tuple[int, list[str]]]  # how many ranks, and the arguments; later parts find what earlier ones have left
    own: str = ""  # the module of a library's own test, which is a script itself under --as-is


def own_test(module: str) -> Case:
    return Case("own_test.py", [(2, [module])], module)


# Accelerate joins uneven inputs on GPUs alone: over CPUs this test waits for ever, with gloo, too.
DATA_LOOP = Case("own_test.py", [(2, ["accelerate.test_utils.scripts.test_distributed_data_loop", "test_can_join_uneven_inputs",
                                      "test_join_can_override_even_batches", "test_join_can_override_for_mixed_type_dataloaders",
                                      "test_join_raises_warning_for_iterable_when_overriding_even_batches"])])
CASES = {
    "accelerate": [own_test("accelerate.test_utils.scripts.test_script"), own_test("accelerate.test_utils.scripts.test_sync"),
                   own_test("accelerate.test_utils.scripts.test_ops"), DATA_LOOP,
                   Case("accelerate_loop.py", [(2, ["ddp"])]), Case("accelerate_loop.py", [(2, ["fsdp2"])])],
    "trainer": [Case("trainer.py", [(2, ["gpt2"])]), Case("trainer.py", [(2, ["bert"])])],
    "lightning": [Case("lightning_strategies.py", [(2, ["ddp"])]), Case("lightning_strategies.py", [(2, ["model_parallel"])]),
                  Case("fabric_loop.py", [(2, ["ddp"])])],
    "checkpoint": [Case("sharded_checkpoint.py", [(2, ["save"]), (2, ["load"]), (1, ["load"])])],
    "deepspeed": [Case("deepspeed_zero.py", [(2, [str(stage)])]) for stage in range(4)],
}


class Failure(Exception):
    pass


class Trial:
    """A case in one of the three ways."""

    def __init__(self, place: launches.Place, case: Case, way: str) -> None:
        self.place, self.case, self.way = place, case, way
        self.out = place.path / way

    def _command(self, number: int, ranks: int, arguments: list[str]) -> list:
        script = SCRIPTS / self.case.script
        if self.way != "as-is":
            return launches.torchrun(ranks, script, self.way, self.out, *arguments)
        run_folder = self.out / f"run-{number}"
        if self.case.own:
            return launches.as_is(ranks, run_folder, importlib.util.find_spec(self.case.own).origin)
        return launches.as_is(ranks, run_folder, script, "-", self.out, *arguments)

    def _check_run(self, number: int, steps: int | None) -> None:
        found = launches.recorded(self.out / f"run-{number}")
        if not found:
            raise Failure("there is no run")
        if steps is not None and found["steps"] != steps:
            raise Failure(f"{found['steps']} steps are recorded of {steps}")

    def run(self) -> list:
        """The values of each rank in each part."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        values = []
        for number, (ranks, arguments) in enumerate(self.case.parts):
            code, output = self.place.start(self._command(number, ranks, arguments))
            if code != 0:
                raise Failure(f"{' '.join(arguments)}: {code}\n{output[-6000:]}")
            if self.way == "as-is" and self.case.own:
                self._check_run(number, None)
                continue
            told = [json.loads((self.out / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
            want = "gloo" if self.way == "gloo" else "dtrain"
            if {one["backend"] for one in told} != {want}:
                raise Failure(f"the backend is {told[0]['backend']}")
            if self.way == "as-is":
                self._check_run(number, told[0]["steps"])
            values.append([one["values"] for one in told])
        return values


def differences(expected: list, actual: list) -> str:
    names = {name for part, other in zip(expected, actual) for one, two in zip(part, other) for name in one if one[name] != two.get(name)}
    return ", ".join(sorted(names))


def compare_with(place: launches.Place, case: Case) -> list:
    """What gloo gives. Its ranks may abort at their end ("terminate called without an active exception"): twice, then."""
    try:
        return Trial(place, case, "gloo").run()
    except Failure:
        return Trial(place, case, "gloo").run()


def run(case: Case) -> bool:
    """Prints a line for the case."""
    title = " ".join([case.script, *dict.fromkeys(word for _, arguments in case.parts for word in arguments)])
    place, expected, words = launches.Place("ecosystem"), None, []
    for way in ("gloo", "dtrain", "as-is"):
        began = time.monotonic()
        try:
            values = compare_with(place, case) if way == "gloo" else Trial(place, case, way).run()
            word = "passed"
            if way == "gloo":
                expected = values
            elif expected is None:
                word = "passed, compared with nothing"
            elif values and differences(expected, values):
                word = f"DIFFERS in {differences(expected, values)}"
        except Failure as failure:
            print(failure, file=sys.stderr)
            word = "FAILED"
        words.append(f"{way} {word} ({time.monotonic() - began:.0f} s)")
    print(f"{title}: {', '.join(words)}", flush=True)
    well = all(f"{way} passed (" in word for way, word in zip(("gloo", "dtrain", "as-is"), words))
    if well:
        shutil.rmtree(place.path)
    else:
        print(f"what it has left is in {place.path}", file=sys.stderr)
    return well


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    harness.BUILD.open(sys.argv[1], "dtrain")
    wanted = sys.argv[2:] or list(CASES)
    unknown = set(wanted) - set(CASES)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; use {', '.join(CASES)}")
    return int(not all([run(case) for name in wanted for case in CASES[name]]))


if __name__ == "__main__":
    sys.exit(main())
