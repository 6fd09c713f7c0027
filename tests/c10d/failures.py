"""What happens when ranks do not do the same, end, are killed, are late, or make their groups again.

    failures.py BUILD/bin [TestCase.test]
"""
import ctypes
import datetime
import inspect
import os
import signal
import sys
import tempfile
import time
import unittest

import at_once
import group_ranks
import torch
import torch.distributed as dist

LIMIT = 10.0  # seconds, only against waits for a time-out (30 s and more): a failure is named within 2 on a machine that is not loaded


def text_of(function: object, *arguments: object, **options: object) -> str:
    try:
        function(*arguments, **options)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def line_of(function: object, text: str) -> str:
    """The place of the line within the function that has the text, as errors have it."""
    lines, first = inspect.getsourcelines(function)
    return f"{os.path.basename(inspect.getsourcefile(function))}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def other_size(rank: int) -> str:
    text = text_of(dist.all_reduce, torch.ones(3 + rank))
    return text + " | " + text_of(dist.barrier)


def other_operation(rank: int) -> str:
    if rank == 0:
        return text_of(lambda: dist.all_reduce(torch.ones(3)))
    return text_of(lambda: dist.broadcast(torch.ones(3), 0))


def others_are_past_it(rank: int) -> None:
    """Rank 1 leaves the barrier before the others know that it is complete: a fault in between is told of the barrier."""
    store = dist.distributed_c10d._get_default_store()
    if rank != 1:
        store.set(f"past-{rank}", "")
    else:
        store.wait([f"past-{other}" for other in range(dist.get_world_size()) if other != 1])


def killed(rank: int) -> tuple[str, float]:
    dist.barrier()
    others_are_past_it(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def killed_with_a_child(rank: int) -> tuple[str, float]:
    """A data loader's worker has all connections of its rank, and outlives it for some seconds."""
    dist.barrier()
    others_are_past_it(rank)
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
    others_are_past_it(rank)
    if rank == 1:
        sys.last_value = ValueError("the data is gone")  # as an exception that nobody catches
        from dtrain import torch_backend
        torch_backend._announce_end(sys.modules["dtrain._torch_distributed"], os.getpid())
        os._exit(1)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def leaves(rank: int) -> tuple[str, float]:
    dist.barrier()
    others_are_past_it(rank)
    began = time.monotonic()
    text = "left" if rank == 1 else text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def late(rank: int) -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.barrier()
    if rank == 1:
        time.sleep(3)
    return text_of(lambda: dist.all_reduce(torch.ones(3), group=group))


def on_a_crowded_core(rank: int) -> tuple[str, float]:
    """Where other processes want the core, a thread that yields gets it back after milliseconds."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 1:
        store.wait(["has waited"])
        return "", 0.0
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = []
    for _ in range(8):
        others.append(os.fork())
        if others[-1] == 0:
            signal.alarm(100)
            while True:
                pass
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3), group=group)
    seconds = time.monotonic() - began
    for other in others:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    store.set("has waited", "")
    return text, seconds


def stopped(rank: int) -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    others_are_past_it(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return text_of(dist.all_reduce, torch.ones(3), group=group)


def ends_without_destroying(rank: int) -> tuple[str, float]:
    dist.barrier()
    others_are_past_it(rank)
    if rank == 1:
        sys.modules["dtrain._torch_distributed"].announce_end("")  # as at the end of a program
        os._exit(0)
    began = time.monotonic()
    text = text_of(dist.all_reduce, torch.ones(3))
    return text, time.monotonic() - began


def no_message(rank: int) -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.barrier()
    if rank == 1:
        time.sleep(2)
        return ""
    return text_of(lambda: dist.recv(torch.ones(3), 1, group=group))


def in_detail(rank: int, store: str) -> list[str]:
    """Under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("dtrain", init_method=store, rank=rank, world_size=2, timeout=group_ranks.TIMEOUT)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.barrier()
    assert tensor.tolist() == [2.0] * 3
    return [text_of(dist.all_reduce, torch.ones(3 + rank))]


def of_freed_memory(rank: int) -> str:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    if not backend.supports_tensor_alloc(torch.device("cpu")):
        return "the memory was freed"
    bucket = backend.allocate_tensor(1 << 16, dtype=torch.float32, device=torch.device("cpu"))
    memory = (ctypes.c_float * bucket.numel()).from_address(bucket.data_ptr())
    del bucket
    return text_of(dist.all_reduce, torch.frombuffer(memory, dtype=torch.float32))


def waits_a_moment(rank: int) -> str:
    """A deadline of wait() ends the wait, and not the group."""
    tensor, store = torch.ones(3), dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["has waited"])
    work = dist.all_reduce(tensor, async_op=True)
    text = ""
    if rank == 0:
        text = text_of(work.wait, datetime.timedelta(milliseconds=200))
        store.set("has waited", "")
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


def again(rank: int, size: int, stores: str) -> list[float]:
    """Each group has its own file: PyTorch's last rank to leave a store deletes the file, also under ranks of the next group."""
    results = []
    for number in range(4):
        dist.init_process_group("dtrain", init_method=f"{stores}-{number}", rank=rank, world_size=size)
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


def monitored_without_time(rank: int) -> str:
    backend = dist.distributed_c10d._get_default_group()
    return text_of(backend.monitored_barrier, datetime.timedelta(0)) if rank == 0 else ""


class Failures(unittest.TestCase):
    def test_another_size_is_named_on_both_ranks(self) -> None:
        for text in group_ranks.run(2, other_size):
            self.assertIn("rank 0 all_reduce(sum, float32, 3 elements), rank 1 all_reduce(sum, float32, 4 elements)", text)

    def test_another_operation_is_named_on_both_ranks(self) -> None:
        for text in group_ranks.run(2, other_operation):
            self.assertIn(f"rank 0: all_reduce #1, {line_of(other_operation, 'dist.all_reduce')}", text)
            self.assertIn(f"rank 1: broadcast #1, {line_of(other_operation, 'dist.broadcast')}", text)

    def test_a_killed_rank_is_named(self) -> None:
        ranks = group_ranks.run_all(3, killed)
        for rank in (0, 2):
            text, seconds = ranks[rank].result
            self.assertIn("rank 1", text)
            self.assertIn(f"rank 1: barrier #1, {line_of(killed, 'dist.barrier')} (complete)", text)
            self.assertLess(seconds, LIMIT)

    def test_a_killed_rank_whose_child_lives_is_named(self) -> None:
        text, seconds = group_ranks.run_all(2, killed_with_a_child, dying=(1,))[0].result
        self.assertIn("rank 1", text)
        self.assertLess(seconds, LIMIT)

    def test_the_exception_of_a_rank_is_the_error_of_the_others(self) -> None:
        text, seconds = group_ranks.run_all(2, raises)[0].result
        self.assertIn("ValueError: the data is gone", text)
        self.assertIn(f"last collective of rank 1: barrier #1, {line_of(raises, 'dist.barrier')} (complete)", text)
        self.assertLess(seconds, LIMIT)

    def test_a_rank_that_has_left_is_named(self) -> None:
        text, seconds = group_ranks.run_all(2, leaves)[0].result
        self.assertIn("left", text)
        self.assertIn("rank 1", text)
        self.assertLess(seconds, LIMIT)

    def test_a_late_rank_is_named(self) -> None:
        first, second = group_ranks.run(2, late)
        self.assertIn(f"dtrain:all_reduce #1, {line_of(late, 'text_of')}: Timed out after 1", first)
        self.assertIn("missing: rank 1 has not entered it (late: its heartbeats come)", first)
        self.assertIn(f"last collective of rank 1: barrier #1, {line_of(late, 'dist.barrier')} (complete)", first)
        self.assertIn("imed out", second)

    def test_a_deadline_holds_on_a_crowded_core(self) -> None:
        text, seconds = group_ranks.run(2, on_a_crowded_core)[0]
        self.assertIn("Timed out after 1", text)
        self.assertLess(seconds, 30)  # looks that are counted take minutes there

    def test_a_stopped_rank_is_named(self) -> None:
        text = group_ranks.run_all(2, stopped, dying=(1,))[0].result
        self.assertIn("Timed out after 5", text)
        self.assertIn("missing: rank 1 has not entered it (stopped: no heartbeats)", text)
        self.assertIn(f"last collective of rank 1: barrier #1, {line_of(stopped, 'dist.barrier')} (complete)", text)

    def test_a_rank_that_ends_without_destroying_its_group_is_named(self) -> None:
        text, seconds = group_ranks.run_all(2, ends_without_destroying)[0].result
        self.assertIn("waits for a rank that has left", text)
        self.assertIn(f"last collective of rank 1: barrier #1, {line_of(ends_without_destroying, 'dist.barrier')}", text)
        self.assertLess(seconds, LIMIT)

    def test_who_sends_no_message_is_named(self) -> None:
        text = group_ranks.run(2, no_message)[0]
        self.assertIn(f"dtrain:recv #1 from rank 1, {line_of(no_message, 'text_of')}: Timed out after 1", text)
        self.assertIn(f"last collective of rank 1: barrier #1, {line_of(no_message, 'dist.barrier')}", text)

    def test_debug_detail(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for (text,) in group_ranks.run(2, in_detail, f"file://{folder}/store", backend=None):
                self.assertIn("mismatch", text)

    def test_an_operation_on_memory_that_was_freed_is_refused(self) -> None:
        for text in group_ranks.run(2, of_freed_memory):
            self.assertIn("the memory was freed", text)

    def test_a_callers_deadline_is_the_callers(self) -> None:
        self.assertIn("Timed out after 200 ms", group_ranks.run(2, waits_a_moment)[0])

    def test_abort_ends_the_waits_of_all(self) -> None:
        (first, seconds), (second, _) = group_ranks.run(2, aborted)
        self.assertIn("aborted", first)
        self.assertIn("aborted", second)
        self.assertLess(seconds, LIMIT)

    def test_groups_are_made_again(self) -> None:
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
        self.assertIn("Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: "
                      "Ranks 1 failed to pass monitoredBarrier in 500 ms", second)

    def test_a_monitored_barrier_says_that_rank_0_had_no_time(self) -> None:
        text = group_ranks.run(2, monitored_without_time)[0]
        self.assertIn("Rank 0 timed out in monitoredBarrier after 0 ms; Rank 1 failed to pass monitoredBarrier in 0 ms", text)

    def test_a_fork_of_a_rank_leaves_the_group_alone(self) -> None:
        for values in group_ranks.run(2, in_a_forked_child):
            self.assertEqual(values, [4.0] * 3)


if __name__ == "__main__":
    at_once.main()
