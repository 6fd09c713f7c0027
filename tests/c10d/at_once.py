"""Runs the test cases of a program in forks, some at once, because most of their time they wait."""
import io
import sys
import unittest
from multiprocessing import connection
from typing import Any, Iterator

import group_ranks

AT_ONCE = 3


def _cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _cases(test)
        else:
            yield test


def _run(case: unittest.TestCase, pipe: Any) -> None:
    text = io.StringIO()
    result = unittest.TextTestRunner(text, verbosity=2).run(case)
    pipe.send((result.wasSuccessful(), text.getvalue()))


def main() -> None:
    """As unittest.main(): the arguments name cases; none: all of the program."""
    loader, program = unittest.TestLoader(), sys.modules["__main__"]
    waiting = list(_cases(loader.loadTestsFromNames(sys.argv[1:], program) if sys.argv[1:] else loader.loadTestsFromModule(program)))
    count, failed = len(waiting), 0
    running: dict[Any, Any] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            case = waiting.pop(0)
            ours, theirs = group_ranks.FORK.Pipe(duplex=False)
            process = group_ranks.FORK.Process(target=_run, args=(case, theirs))
            process.start()
            theirs.close()
            running[ours] = (case, process)
        for pipe in connection.wait(list(running)):
            case, process = running.pop(pipe)
            try:
                good, text = pipe.recv()
            except EOFError:
                good, text = False, f"{case}: its process has died\n"
            process.join()
            failed += not good
            print(f"{case} ... ok" if good else text, file=sys.stderr, flush=True)
    print(f"{count} cases, {failed} failed", file=sys.stderr)
    sys.exit(failed > 0 or count == 0)
