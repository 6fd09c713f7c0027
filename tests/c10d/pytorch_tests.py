"""PyTorch's own distributed_test.py, out of the installed torch, over gloo and over dtrain: passed, failed and skipped of both.

    pytorch_tests.py BUILD/bin [--ranks 2] [--match PATTERN] [--backend gloo|dtrain] [--verbose]

Each test runs in ranks that are forked from this process, 0.3 s instead of 25 s. Conditions of the file on the name "gloo" hold for dtrain,
too. Exit code 1 if a test fails that passes over gloo, unless PyTorch itself refuses other names there (REFUSED).
"""
import argparse
import contextlib
import datetime
import faulthandler
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
from pathlib import Path

import group_ranks
import torch.distributed as dist

with contextlib.suppress(ImportError):
    import expecttest
if "expecttest" not in sys.modules:  # PyTorch's helpers import it; the tests here do not use it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal import common_distributed  # noqa: E402

NAME = "torch.testing._internal.distributed.distributed_test"
LIMIT, GRACE = 60, 8  # seconds of a test; of the other ranks after the first has failed
SKIPPED = 77
REFUSED = {"test_ddp_logging_data_cpu"}  # DDP's log has the name "custom" for every backend that is not PyTorch's


def load(backend: str) -> types.ModuleType:
    """The tests, in which what is true of gloo is true of this backend, too."""
    for feature in ("plugin", "ddp", "subgroup", "gpu"):
        common_distributed.DistTestCases.backend_feature[feature].add("dtrain")
    spec = importlib.util.find_spec(NAME)
    text = Path(spec.origin).read_text()
    if backend != "gloo":
        for have, want in (('BACKEND != "gloo"', 'BACKEND not in ("gloo", "dtrain")'),
                           ('BACKEND == "gloo"', 'BACKEND in ("gloo", "dtrain")'),
                           ('BACKEND != "mpi"', 'BACKEND not in ("mpi", "dtrain")'),
                           ('@require_backend_is_available({"gloo"})', '@require_backend_is_available({"gloo", "dtrain"})'),
                           ("    dist.Backend.GLOO,\n", '    dist.Backend.GLOO,\n    "dtrain",\n')):
            text = text.replace(have, want)
    module = types.ModuleType(NAME)
    module.__file__, module.__spec__ = spec.origin, spec
    sys.modules[NAME] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module


class Suite:
    def __init__(self, backend: str, ranks: int, folder: str) -> None:
        self.backend, self.ranks, self.folder = backend, ranks, folder
        os.environ.update(BACKEND=backend, WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1", TEMP_DIR=folder, MASTER_ADDR="localhost",
                          DTRAIN_RECORD="false",
                          INIT_METHOD=f"file://{folder}/shared")
        self.module = load(backend)
        self.skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
        self.case = type("TestDistBackend", (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase), {})

    def names(self, pattern: str) -> list[str]:
        return [name for name in unittest.defaultTestLoader.getTestCaseNames(self.case) if re.search(pattern, name)]

    def _rank(self, name: str, rank: int) -> int:
        module = self.module
        try:
            test = self.case(name)
            test.rank, test.file_name = rank, f"{self.folder}/store"
            seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
            dist.init_process_group(self.backend, init_method=f"file://{self.folder}/store", world_size=self.ranks, rank=rank,
                                    timeout=datetime.timedelta(seconds=seconds))
            test._barrier(timeout=20)
            getattr(test, name)()
            test._barrier(timeout=20)
            dist.destroy_process_group()
            return 0
        except SystemExit as leave:
            return leave.code or 0
        except unittest.SkipTest as why:
            print("SKIP:", why)
            return SKIPPED
        except BaseException:
            traceback.print_exc()
            return 10

    def _fork(self, name: str, rank: int, log: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        code = self._rank(name, rank)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _wait(self, pids: dict[int, int]) -> dict[int, int | str]:
        codes: dict[int, int | str] = {}
        began, failed = time.monotonic(), None
        while len(codes) < len(pids):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                codes[pids[pid]] = os.waitstatus_to_exitcode(status)
                continue
            time.sleep(0.01)
            passed = time.monotonic() - began
            if failed is None and any(code not in (0, SKIPPED) and code not in self.skips for code in codes.values()):
                failed = passed
            if passed < LIMIT and (failed is None or passed < failed + GRACE):
                continue
            left = [pid for pid, rank in pids.items() if rank not in codes]
            for one in left:
                os.kill(one, signal.SIGUSR1)
            time.sleep(0.5)
            for one in left:
                os.kill(one, signal.SIGKILL)
                os.waitpid(one, 0)
                codes[pids[one]] = "hangs"
        return codes

    def run(self, name: str) -> tuple[str, str]:
        """passed, failed or skipped, and why."""
        method = getattr(self.case, name)
        if getattr(method, "__unittest_skip__", False):
            return "skipped", getattr(method, "__unittest_skip_why__", "")
        for folder in ("barrier", "test_dir"):
            shutil.rmtree(f"{self.folder}/{folder}", ignore_errors=True)
            os.makedirs(f"{self.folder}/{folder}")
        for file in ("store", "lockfile", "log"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{self.folder}/{file}")
        log = f"{self.folder}/log"
        codes = list(self._wait({self._fork(name, rank, log): rank for rank in range(self.ranks)}).values())
        text = Path(log).read_text(errors="replace") if os.path.exists(log) else ""
        if all(code == 0 for code in codes):
            return "passed", ""
        if all(code == 0 or code == SKIPPED or code in self.skips for code in codes):
            why = [self.skips[code] for code in codes if code in self.skips] + re.findall(r"SKIP: (.*)", text)
            return "skipped", why[0] if why else ""
        return "failed", f"{codes}\n{text[-6000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(usage="pytorch_tests.py BUILD/bin [options]")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--match", default=".")
    parser.add_argument("--backend", choices=("gloo", "dtrain"))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, tuple[str, str]]] = {}
    for backend in [options.backend] if options.backend else ["gloo", "dtrain"]:
        with tempfile.TemporaryDirectory() as folder:
            suite = Suite(backend, options.ranks, folder)
            results[backend] = {}
            for name in suite.names(options.match):
                results[backend][name] = found = suite.run(name)
                if options.verbose or found[0] == "failed":
                    print(f"{backend} {name}: {found[0]}\n{found[1] if found[0] == 'failed' else ''}", flush=True)
        counts = {word: sum(one[0] == word for one in results[backend].values()) for word in ("passed", "failed", "skipped")}
        print(f"{backend}, {options.ranks} ranks: " + ", ".join(f"{count} {word}" for word, count in counts.items()), flush=True)
    worse = [name for name, (found, _) in results.get("dtrain", {}).items()
             if found == "failed" and results.get("gloo", {}).get(name, ("passed",))[0] == "passed"]
    print("worse than gloo:", ", ".join(worse) or "none", "(refused by name in PyTorch:", ", ".join(REFUSED & set(worse)) or "none", end=")\n")
    return int(bool(set(worse) - REFUSED))


if __name__ == "__main__":
    assert group_ranks
    sys.exit(main())
