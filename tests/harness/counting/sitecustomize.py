"""Counts the assertions of unittest that a test program executes, and prints their number when it ends, as
tests/harness/include/harness/assertion_count.h does in C++. Python imports this file by itself: scripts/run_tests.sh puts its
folder into PYTHONPATH, and says by TEST_COUNTS_ASSERTIONS that the program to come is a test. What the test starts is none."""
import os

if os.environ.pop("TEST_COUNTS_ASSERTIONS", None):
    import atexit
    import functools
    import mmap
    import unittest

    executed = mmap.mmap(-1, 8)  # shared with forked children
    running = 0  # an assertion that is executed by another one is not counted
    test_process = os.getpid()

    def counted(assertion):
        @functools.wraps(assertion)
        def call(*arguments, **options):
            global running
            if not running:
                executed[:] = (int.from_bytes(executed[:], "little") + 1).to_bytes(8, "little")
            running += 1
            try:
                return assertion(*arguments, **options)
            finally:
                running -= 1

        return call

    for name, member in list(vars(unittest.TestCase).items()):
        if name.startswith("assert") and callable(member):
            setattr(unittest.TestCase, name, counted(member))

    def print_count():
        count = int.from_bytes(executed[:], "little")
        if os.getpid() == test_process and count:
            print(f"assertions: {count}", flush=True)

    atexit.register(print_count)
