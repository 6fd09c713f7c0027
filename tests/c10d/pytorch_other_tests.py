"""PyTorch's tests but distributed_test.py (pytorch_tests.py), over gloo and over dtrain: passed, failed and skipped of both.

    pytorch_other_tests.py BUILD/bin [--debian FOLDER] [--match PATTERN] [--backend gloo|dtrain] [--verbose]

Of the installed torch: DDP beside distributed autograd, and the tests of RPC that make a process group. Of FOLDER, test/distributed of
Debian's source package of PyTorch 1.13.1: process groups, DDP, the reducer, collectives of objects, join, ZeroRedundancyOptimizer.
For dtrain the name "gloo" in a file is replaced. Exit code 1 if a test fails that passes over gloo,
unless PyTorch refuses other names there, or the test gives several tensors to one operation (OWN).
"""
import argparse
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path

import pytorch_tests
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

RPC_WITH_GROUPS = "test_pg_init_no_rpc_init|test_deadlock|test_init_pg_then_rpc|test_init_rpc_then_pg|test_dynamic_and_static_init_rpc_together"
INTERNAL = "torch.testing._internal.distributed."
# The file (of the wheel, or of Debian's folder), its classes, and a pattern for its tests.
OF_THE_WHEEL = [(INTERNAL + "ddp_under_dist_autograd_test", ["DdpUnderDistAutogradTest", "DdpComparisonTest"], "."),
                (INTERNAL + "rpc.rpc_test", ["RpcTest", "TensorPipeAgentRpcTest"], f"^({RPC_WITH_GROUPS})$")]
OF_DEBIAN = [
    ("test_c10d_gloo.py", ["ProcessGroupGlooTest", "DistributedDataParallelTest", "ReducerTest", "CommTest"], "."),
    ("test_c10d_common.py", ["ComputeBucketAssignmentTest", "CommTest", "PythonProcessGroupExtensionTest", "ReduceOpTest"], "."),
    ("test_c10d_object_collectives.py", ["TestObjectCollectives"], "."),
    ("algorithms/test_join.py", ["TestJoin"], "."),
    ("optim/test_zero_redundancy_optimizer.py", ["TestZeroRedundancyOptimizerSingleRank", "TestZeroRedundancyOptimizerDistributed"], "."),
]
# Several tensors of one rank in one operation (NCCL refuses them, too), and the wording of errors about them.
OWN = {"test_allgather_basics", "test_allgather_noncontiguous_input", "test_allreduce_basics", "test_allreduce_basics_using_work_api",
       "test_broadcast_basics", "test_reduce_checks"}


class Options(types.SimpleNamespace):
    """In place of those of ProcessGroupGloo, of which the time-out is of use."""

    def __init__(self) -> None:
        super().__init__(_timeout=50.0, _threads=1, _devices=[])


class Maker:
    """In place of the class ProcessGroupGloo, whose objects DDP took in 1.13 and does not take any more."""

    _Options = Options

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def __call__(self, store: dist.Store, rank: int, size: int, options: Options | timedelta | None = None) -> dist.ProcessGroup:
        if dist.is_initialized():
            return dist.new_group()
        timeout = getattr(options, "_timeout", options or 50.0)
        if not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, timeout=timeout)
        return dist.group.WORLD

    @staticmethod
    def create_device(**_: str) -> None:
        return None


def add_former_modules() -> None:
    """What the files of 1.13 import, and torch has no more. No test of OF_DEBIAN uses the first."""
    gone = types.ModuleType("torch.distributed._spmd.comm_tensor")
    gone._wait_comm = gone.CommTensor = None
    sys.modules.setdefault("torch.distributed._spmd", types.ModuleType("torch.distributed._spmd"))
    sys.modules.setdefault(gone.__name__, gone)
    for module, name, now in ((common_utils, "sandcastle_skip", unittest.skip), (common_utils, "sandcastle_skip_if", unittest.skipIf),
                              (common_distributed, "skip_if_rocm", lambda test: test)):
        if not hasattr(module, name):
            setattr(module, name, now)


def load(name: str, place: Path, backend: str) -> types.ModuleType:
    """The file as a module, in which dtrain stands where gloo did."""
    text = place.read_text().replace("c10d.ProcessGroupGloo", "_make_group")
    if backend != "gloo":
        text = re.sub(r"""(["'])gloo\1""", f'"{backend}"', text).replace("dist.Backend.GLOO", f'"{backend}"')
    module = types.ModuleType(name)
    module.__file__ = str(place)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=str(place))
    module._make_group = Maker(backend)
    sys.modules[name] = module
    exec(compile(text, str(place), "exec"), module.__dict__)
    return module


def make_case(module: types.ModuleType, name: str) -> type:
    """A class that can be run: what the wheel has of tests of RPC is without a fixture."""
    case = getattr(module, name)
    if issubclass(case, unittest.TestCase):
        return case
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    return type(name, (case, TensorPipeRpcAgentTestFixture, common_distributed.MultiProcessTestCase), {})


class Suite(pytorch_tests.Suite):
    """A class of tests that make their groups themselves."""

    def __init__(self, case: type, folder: str) -> None:
        self.case, self.folder = case, folder
        self.skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
        self.ranks = 1

    def run(self, name: str) -> tuple[str, str]:
        self.ranks = 1
        if issubclass(self.case, common_distributed.MultiProcessTestCase):
            self.ranks = int(self.case(name).world_size)
        return super().run(name)

    def _rank(self, name: str, rank: int) -> int:
        try:
            test = self.case(name)
            test.rank, test.file_name, test.pids, test.pid_to_pipe = rank, f"{self.folder}/store", [], {}
            if not isinstance(test, common_distributed.MultiProcessTestCase):
                test.setUp()
            getattr(test, name)()
            return 0
        except SystemExit as leave:
            return leave.code or 0
        except unittest.SkipTest as why:
            print("SKIP:", why)
            return pytorch_tests.SKIPPED
        except BaseException:
            traceback.print_exc()
            return 10


def files(debian: Path | None) -> list[tuple[str, Path, list[str], str]]:
    found = [(name, Path(importlib.util.find_spec(name).origin), classes, match) for name, classes, match in OF_THE_WHEEL]
    if debian is not None and debian.is_dir():
        sys.path.insert(0, str(debian))  # the files import each other
        add_former_modules()
        found += [(Path(name).stem, debian / name, classes, match) for name, classes, match in OF_DEBIAN]
    return found


def run(options: argparse.Namespace, backend: str) -> dict[str, str]:
    """What has become of each test, with a line for each file."""
    os.environ.update(BACKEND=backend, OMP_NUM_THREADS="1", MASTER_ADDR="localhost", MASTER_PORT="29999")
    results: dict[str, str] = {}
    for title, place, classes, match in files(options.debian):
        counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
        sys.argv = [str(place)]
        module = load(title, place, backend)
        for name in classes:
            case = make_case(module, name) if hasattr(module, name) else None
            tests = unittest.defaultTestLoader.getTestCaseNames(case) if case else []
            for test in [test for test in tests if re.search(match, test) and re.search(options.match, f"{name}.{test}")]:
                with tempfile.TemporaryDirectory() as folder:
                    os.environ["TEMP_DIR"] = folder
                    word, why = Suite(case, folder).run(test)
                counts[word] += 1
                results[f"{title}.{name}.{test}"] = word
                if options.verbose or word == "failed":
                    print(f"{backend} {name}.{test}: {word}\n{why if word == 'failed' else ''}", flush=True)
        print(f"{title.rpartition('.')[2]}, {backend}: " + ", ".join(f"{count} {word}" for word, count in counts.items()), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(usage="pytorch_other_tests.py BUILD/bin [options]")
    parser.add_argument("--debian", type=Path)
    parser.add_argument("--match", default=".")
    parser.add_argument("--backend", choices=("gloo", "dtrain"))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    results = {backend: run(options, backend) for backend in ([options.backend] if options.backend else ["gloo", "dtrain"])}
    expected, actual = results.get("gloo", {}), results.get("dtrain", {})
    worse = [name for name, word in actual.items() if word == "failed" and expected.get(name, "passed") == "passed"]
    refused = [name for name in worse if name.rpartition(".")[2] in OWN | pytorch_tests.REFUSED]
    print("worse than gloo:", ", ".join(sorted(set(worse) - set(refused))) or "none")
    print("refused by name in PyTorch, or several tensors in one operation:", ", ".join(refused) or "none")
    return int(len(worse) > len(refused))


if __name__ == "__main__":
    sys.exit(main())
