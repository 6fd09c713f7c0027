"""The backend between two hosts. Runs inside `two_hosts.sh with RATE`, which makes them.

    hosts.py BUILD/bin [TestCase.test]

A process on each host imports torch once, and forks the ranks of each case.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BIN = sys.argv[1]

import group_ranks  # noqa: E402  takes the first argument
import groups  # noqa: E402
import operations  # noqa: E402
import programs  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from failures import line_of, text_of  # noqa: E402

BED = str(HERE.parent / "harness" / "two_hosts.sh")
HOSTS = os.environ.get("TWO_HOSTS", "")
LIMIT = 20.0  # seconds, only against waits for a time-out (60 s): a host that is silent is noticed after 5


def killed(rank: int) -> tuple[str, float]:
    """Only the rank of the other host knows what the one that is killed did last, if that is 2 s ago."""
    dist.barrier()
    time.sleep(3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    return text_of(dist.all_reduce, torch.ones(3)), time.monotonic() - began


def raises(rank: int) -> tuple[str, float]:
    dist.barrier()
    time.sleep(1)  # until the others, too, know that the barrier is complete
    if rank == 3:
        raise ValueError("the data is gone")
    began = time.monotonic()
    return text_of(dist.all_reduce, torch.ones(3)), time.monotonic() - began


def mismatch(rank: int) -> str:
    return text_of(dist.all_reduce, torch.ones(3 + rank // 2))


def unplugged(rank: int, file: str) -> tuple[str, float]:
    """The link is cut when both ranks have made the file."""
    dist.barrier()
    pathlib.Path(f"{file}{rank}").touch()
    while not os.path.exists(f"{file}cut"):
        time.sleep(0.05)
    began = time.monotonic()
    return text_of(dist.all_reduce, torch.ones(1 << 20)), time.monotonic() - began


CASES = {function.__name__: function for function in (
    killed, raises, mismatch, unplugged, programs.ddp, programs.fsdp2, operations.reductions, operations.copies, operations.uneven,
    operations.messages, operations.lists, operations.registered, groups.groups)}


def serve(host: int) -> None:
    """Runs its ranks of the cases that are asked for, a line of JSON each, and answers with a line each."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what the ranks print is no answer
        for line in sys.stdin:
            name, backend, ranks, store, arguments = json.loads(line)
            place = group_ranks.Place(host * ranks, 2 * ranks, store)
            ended = group_ranks.run_all(ranks, CASES[name], *arguments, backend=backend, place=place)
            print(json.dumps([[one.code, one.result, one.error] for one in ended]), file=answers, flush=True)


class BetweenHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="dtrain-c10d-hosts-")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "link0"}
        cls.hosts = [subprocess.Popen([BED, "run", HOSTS, host, sys.executable, "-B", __file__, BIN, "serve", str(number)], text=True,
                                      env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for number, host in enumerate("ab")]
        cls.cases = 0

    @classmethod
    def tearDownClass(cls) -> None:
        for host in cls.hosts:
            host.stdin.close()
            host.wait(60)
            host.stdout.close()
        cls.folder.cleanup()

    def start(self, function: object, ranks: int = 1, backend: str = "dtrain", arguments: tuple = ()) -> None:
        type(self).cases += 1
        store = f"{self.folder.name}/store{self.cases}"
        for host in self.hosts:
            print(json.dumps([function.__name__, backend, ranks, store, arguments]), file=host.stdin, flush=True)

    def ended(self) -> list[list]:
        """Code, result and error of each rank."""
        return [rank for host in self.hosts for rank in json.loads(host.stdout.readline())]

    def results(self, function: object, ranks: int = 1, backend: str = "dtrain") -> list:
        self.start(function, ranks, backend)
        ended = self.ended()
        self.assertEqual([code for code, _, _ in ended], [0] * 2 * ranks, "\n".join(error for _, _, error in ended))
        return [result for _, result, _ in ended]

    def test_programs_have_gloos_bits(self) -> None:
        for program in (programs.ddp, programs.fsdp2):
            with self.subTest(program=program.__name__):
                self.assertEqual(self.results(program), self.results(program, backend="gloo"))

    def test_operations(self) -> None:
        for operation in (operations.reductions, operations.copies, operations.uneven, operations.messages, operations.lists,
                          operations.registered, groups.groups):
            for ranks in (1, 2):
                with self.subTest(operation=operation.__name__, ranks_of_a_host=ranks):
                    self.results(operation, ranks)

    def test_sizes_that_differ_are_named(self) -> None:
        for text in self.results(mismatch, 2):
            self.assertIn("all_reduce(sum, float32, 3 elements)", text)
            self.assertIn("all_reduce(sum, float32, 4 elements)", text)

    def test_a_killed_rank_of_the_other_host_is_named(self) -> None:
        self.start(killed)
        (code, (text, seconds), _), (other_code, _, _) = self.ended()
        self.assertEqual((code, other_code), (0, -1))
        self.assertIn("rank 1", text)
        self.assertIn(f"barrier #1, {line_of(killed, 'dist.barrier')}", text)
        self.assertLess(seconds, LIMIT)

    def test_the_exception_of_a_rank_of_the_other_host(self) -> None:
        self.start(raises, 2)
        *others, (code, _, _) = self.ended()
        self.assertEqual(code, 1)
        for code, result, error in others:
            self.assertEqual(code, 0, error)
            self.assertIn("rank 3", result[0])
            self.assertIn("ValueError: the data is gone", result[0])
            self.assertLess(result[1], LIMIT)

    def test_a_host_that_is_cut_off_is_named(self) -> None:
        file = f"{self.folder.name}/unplugged"
        self.start(unplugged, arguments=(file,))
        end = time.monotonic() + 60
        while not all(os.path.exists(f"{file}{rank}") for rank in range(2)) and time.monotonic() < end:
            time.sleep(0.05)
        subprocess.run([BED, "cut", HOSTS], check=True)
        pathlib.Path(f"{file}cut").touch()
        try:
            ended = self.ended()
        finally:
            subprocess.run([BED, "mend", HOSTS], check=True)
        for rank, (code, result, error) in enumerate(ended):
            self.assertEqual(code, 0, error)
            self.assertIn(f"rank {1 - rank}", result[0])
            self.assertLess(result[1], LIMIT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    else:
        unittest.main(verbosity=2)
