"""What happens when ranks do not do the same, end, are killed, are late, or make their groups again.

    failures.py BUILD/bin [TestCase.test]
"""
import datetime
import os
import signal
import time
import unittest

import group_ranks
import torch
import torch.distributed as dist


def text_of(function: object, *arguments: object, **options: object) -> str:
    try:
        function(*arguments, **options)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def other_size(rank: int) -> str:
    text = text_of(dist.all_reduce, torch.ones(3 + rank))
    return text + " | " + text_of(dist.barrier)


def other_operation(rank: int) -> str:
    return text_of(dist.all_reduce, torch.ones(3)) if rank == 0 else text_of(dist.broadcast, torch.ones(3), 0)


def killed(rank: int) -> tuple[str, float]:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def killed_with_a_child(rank: int) -> tuple[str, float]:
    """A data loader's worker has all connections of its rank, and outlives it for some seconds."""
    dist.barrier()
    if rank == 1:
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            time.sleep(4)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def raises(rank: int) -> tuple[str, float]:
    dist.barrier()
    if rank == 1:
        import sys
        sys.last_value = ValueError("the data is gone")  # as an exception that nobody catches
        from dtrain import torch_backend
        torch_backend._announce_end(sys.modules["dtrain._torch_distributed"], os.getpid())
        os._exit(1)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def leaves(rank: int) -> tuple[str, float]:
    dist.barrier()
    began = time.monotonic()
    text = "left" if rank == 1 else text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def late(rank: int) -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 1:
        time.sleep(3)
    return text_of(dist.all_reduce, torch.ones(3), group=group)


def waits_a_moment(rank: int) -> str:
    """A deadline of wait() ends the wait, and not the group."""
    tensor = torch.ones(3)
    if rank == 1:
        time.sleep(0.6)
    work = dist.all_reduce(tensor, async_op=True)
    text = text_of(work.wait, datetime.timedelta(milliseconds=200)) if rank == 0 else ""
    work.wait()
    assert tensor.tolist() == [2.0] * 3
    return text


def aborted(rank: int) -> tuple[str, float]:
    group = dist.new_group()
    began = time.monotonic()
    if rank == 1:
        time.sleep(0.3)
        group._get_backend(torch.device("cpu")).abort()
        text = text_of(dist.all_reduce, torch.ones(3), group=group)
        dist.all_reduce(torch.ones(3))
        return text, 0.0
    text = text_of(dist.all_reduce, torch.ones(3), group=group)
    dist.all_reduce(torch.ones(3))  # the other groups go on
    return text, time.monotonic() - began


def again(rank: int, size: int, store: str) -> list[float]:
    results = []
    for _ in range(4):
        dist.init_process_group("dtrain", init_method=store, rank=rank, world_size=size)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=dist.new_group())
        results.append(tensor[0].item())
        dist.destroy_process_group()
    return results


def again_in_one_store(rank: int, size: int, port: int) -> list[float]:
    """As under torchrun, whose store outlives the groups."""
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    results = []
    for _ in range(4):
        dist.init_process_group("dtrain", store=store, rank=rank, world_size=size)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        results.append(tensor[0].item())
        dist.destroy_process_group()
    if rank == 0:
        time.sleep(0.5)  # it has the store
    return results


def monitored(rank: int) -> str:
    backend = dist.distributed_c10d._get_default_group()
    backend.monitored_barrier(datetime.timedelta(seconds=5), True)
    if rank == 1:
        time.sleep(1.5)
    return text_of(backend.monitored_barrier, datetime.timedelta(milliseconds=500), True)


def in_a_forked_child(rank: int) -> list[float]:
    """What a data loader's worker does: a fork of the rank ends, and the group goes on."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    dist.all_reduce(tensor)
    return tensor.tolist()


class Failures(unittest.TestCase):
    def test_another_size_is_named_on_both_ranks(self) -> None:
        for text in group_ranks.run(2, other_size):
            self.assertIn("rank 0 all_reduce(sum, float32, 3 elements), rank 1 all_reduce(sum, float32, 4 elements)", text)

    def test_another_operation_is_named_on_both_ranks(self) -> None:
        for text in group_ranks.run(2, other_operation):
            self.assertIn("all_reduce", text)
            self.assertIn("broadcast", text)

    def test_a_killed_rank_is_named_within_two_seconds(self) -> None:
        ranks = group_ranks.run_all(3, killed)
        for rank in (0, 2):
            text, seconds = ranks[rank].result
            self.assertIn("rank 1", text)
            self.assertLess(seconds, 2.0)

    def test_a_killed_rank_whose_child_lives_is_named_within_two_seconds(self) -> None:
        text, seconds = group_ranks.run_all(2, killed_with_a_child)[0].result
        self.assertIn("rank 1", text)
        self.assertLess(seconds, 2.0)

    def test_the_exception_of_a_rank_is_the_error_of_the_others(self) -> None:
        text, seconds = group_ranks.run_all(2, raises)[0].result
        self.assertIn("ValueError: the data is gone", text)
        self.assertLess(seconds, 2.0)

    def test_a_rank_that_has_left_is_named(self) -> None:
        text, seconds = group_ranks.run_all(2, leaves)[0].result
        self.assertIn("left", text)
        self.assertIn("rank 1", text)
        self.assertLess(seconds, 2.0)

    def test_a_late_rank_is_named(self) -> None:
        first, second = group_ranks.run(2, late)
        self.assertIn("Timed out after 1", first)
        self.assertIn("rank 1", first)
        self.assertIn("imed out", second)

    def test_a_callers_deadline_is_the_callers(self) -> None:
        self.assertIn("Timed out after 200 ms", group_ranks.run(2, waits_a_moment)[0])

    def test_abort_ends_the_waits_of_all(self) -> None:
        (first, seconds), (second, _) = group_ranks.run(2, aborted)
        self.assertIn("aborted", first)
        self.assertIn("aborted", second)
        self.assertLess(seconds, 2.0)

    def test_groups_are_made_again(self) -> None:
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            for results in group_ranks.run(2, again, 2, f"file://{folder}/store", backend=None):
                self.assertEqual(results, [4.0] * 4)

    def test_groups_are_made_again_in_one_store(self) -> None:
        import socket
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        for results in group_ranks.run(3, again_in_one_store, 3, port, backend=None):
            self.assertEqual(results, [3.0] * 4)

    def test_a_monitored_barrier_names_who_is_missing(self) -> None:
        first, second = group_ranks.run(2, monitored)
        self.assertIn("Ranks 1 failed to pass monitoredBarrier in 500 ms", first)
        self.assertIn("Ranks 1 failed to pass monitoredBarrier in 500 ms", second)

    def test_a_fork_of_a_rank_leaves_the_group_alone(self) -> None:
        for values in group_ranks.run(2, in_a_forked_child):
            self.assertEqual(values, [4.0] * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
