"""The last operations of each rank are in the form that PyTorch's analysis reads, and it finds the rank that is to blame.

    flight_records.py BUILD/bin [TestCase.test]
"""
import datetime
import os
import pickle
import signal
import tempfile
import time
import unittest
from pathlib import Path

import at_once
import group_ranks
import torch
import torch.distributed as dist
from failures import others_are_past_it
from torch.distributed.flight_recorder import fr_trace


def line_of(function: object, text: str) -> int:
    """The line of this file within the function that has the text."""
    import inspect
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def fails(function: object) -> str:
    try:
        function()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def begin(prefix: str, seconds: float = 60) -> dist.ProcessGroup:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
    dist.all_reduce(torch.ones(3))
    return dist.new_group(timeout=datetime.timedelta(seconds=seconds), group_desc="those that fail")


def hangs(rank: int, prefix: str) -> str:
    group = begin(prefix, 1)
    dist.all_reduce(torch.ones(5), group=group)
    if rank == 1:
        time.sleep(3)
        return ""
    return fails(lambda: dist.all_reduce(torch.ones(7), group=group))


def out_of_step(rank: int, prefix: str) -> str:
    group = begin(prefix)
    if rank == 1:
        return fails(lambda: dist.broadcast(torch.ones(7), 0, group=group))
    return fails(lambda: dist.all_reduce(torch.ones(7), group=group))


def other_size(rank: int, prefix: str) -> str:
    begin(prefix)
    return fails(lambda: dist.all_reduce(torch.ones(7 + rank)))


def is_killed(rank: int, prefix: str) -> str:
    begin(prefix)
    others_are_past_it(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return fails(lambda: dist.all_reduce(torch.ones(7)))


def hangs_on_another_host(rank: int, store: str) -> str:
    os.environ.update(DTRAIN_AGENT_ID=f"host {rank}", DTRAIN_NETWORK_INTERFACE="lo")  # so each rank has a host of its own
    dist.init_process_group("dtrain", init_method=store, rank=rank, world_size=2, timeout=group_ranks.TIMEOUT)
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    dist.barrier()
    if rank == 1:
        time.sleep(6)
        return ""
    return fails(lambda: dist.all_reduce(torch.ones(7), group=group))


def everything(rank: int, prefix: str) -> str:
    import dtrain.distributed
    begin(prefix)
    tensor = torch.ones(2, 3)
    dist.all_gather([torch.empty(2, 3), torch.empty(2, 3)], tensor)
    dist.all_gather_into_tensor(torch.empty(4, 3), tensor)
    dist.reduce_scatter_tensor(torch.empty(1, 3), tensor)
    dist.reduce_scatter(torch.empty(2, 3), [tensor, tensor])
    dist.all_to_all_single(torch.empty(2, 3), tensor)
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    dist.gather(tensor, [torch.empty(2, 3), torch.empty(2, 3)] if rank == 0 else None)
    dist.scatter(tensor, [tensor, tensor] if rank == 0 else None)
    dist.barrier()
    dist.all_reduce(torch.eye(3).to_sparse())
    if rank == 0:
        dist.send(torch.ones(5), 1)
    else:
        dist.recv(torch.ones(5), 0)
    return dtrain.distributed.dump(prefix)


def many(rank: int, prefix: str) -> str:
    import dtrain.distributed
    tensor = torch.ones(1)
    for _ in range(2100):
        dist.all_reduce(tensor)
    return dtrain.distributed.dump(prefix)


class FlightRecords(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.prefix = str(self.folder / "records" / "rank_")

    def record(self, rank: int) -> dict:
        return pickle.loads(Path(f"{self.prefix}{rank}").read_bytes())

    def analysis(self) -> str:
        """What PyTorch's program says of the files, in this process: it starts faster."""
        with self.assertLogs("Flight Recorder", "INFO") as logs:
            fr_trace.main([str(self.folder / "records"), "-p", "rank_"])
        return "\n".join(record.getMessage() for record in logs.records)

    def test_a_rank_that_hangs(self) -> None:
        error = group_ranks.run(2, hangs, self.prefix)[0]
        last = line_of(hangs, "torch.ones(5)")
        self.assertIn(f"dtrain:all_reduce #2, flight_records.py:{line_of(hangs, 'torch.ones(7)')}: Timed out after 1", error)
        self.assertIn(f"last collective of rank 1: all_reduce #1, flight_records.py:{last} (complete)", error)
        self.assertIn(f"record of the last operations: {self.prefix}*", error)
        found = self.analysis()
        self.assertIn("Not all ranks joining collective, sequence number: 2", found)
        self.assertIn("those that fail", found)
        self.assertIn("collective: dtrain:all_reduce", found)
        self.assertIn("missing ranks: {1}", found)
        self.assertRegex(found, r"flight_records\.py")

    def test_a_rank_that_is_out_of_step(self) -> None:
        for error in group_ranks.run(2, out_of_step, self.prefix):
            self.assertIn(f"rank 0: all_reduce #1, flight_records.py:{line_of(out_of_step, 'fails(lambda: dist.all_reduce')}", error)
            self.assertIn(f"rank 1: broadcast #1, flight_records.py:{line_of(out_of_step, 'fails(lambda: dist.broadcast')}", error)
        found = self.analysis()
        self.assertIn("Collective sequence number: 1 has errors", found)
        self.assertIn("Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH", found)

    def test_another_size(self) -> None:
        group_ranks.run(2, other_size, self.prefix)
        self.assertIn("Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH", self.analysis())

    def test_the_others_write_the_file_of_a_rank_that_was_killed(self) -> None:
        ranks = group_ranks.run_all(3, is_killed, self.prefix)
        for rank in (0, 2):
            self.assertIn(f"rank 1: all_reduce #1, flight_records.py:{line_of(begin, 'dist.all_reduce')} (complete)", ranks[rank].result)
        self.assertEqual([entry["profiling_name"] for entry in self.record(1)["entries"]], ["dtrain:all_reduce"])

    def test_a_rank_that_hangs_on_another_host(self) -> None:
        error = group_ranks.run(2, hangs_on_another_host, f"file://{self.folder}/store", backend=None)[0]
        line = line_of(hangs_on_another_host, "dist.barrier")
        self.assertIn(f"last collective of rank 1: barrier #1, flight_records.py:{line} (complete)", error)

    def test_every_operation(self) -> None:
        paths = group_ranks.run(2, everything, self.prefix)
        self.assertEqual(paths, [f"{self.prefix}{rank}" for rank in (0, 1)])
        self.assertNotRegex(self.analysis(), "(?i)mismatch|has errors|not all")
        record = self.record(0)
        self.assertEqual(record["version"], "2.10")
        self.assertEqual(record["pg_config"]["0"], {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"})
        entries = record["entries"]
        self.assertEqual([entry["record_id"] for entry in entries], list(range(len(entries))))
        for entry in entries:
            self.assertEqual(entry["state"], "completed")
            self.assertGreaterEqual(entry["time_discovered_completed_ns"], entry["time_created_ns"])
            self.assertEqual([frame["filename"] for frame in entry["frames"]], [__file__])
        gather = next(entry for entry in entries if entry["profiling_name"] == "dtrain:all_gather")
        self.assertEqual(gather["input_sizes"], [[2, 3]])
        self.assertEqual(gather["output_sizes"], [[2, 3], [2, 3]])
        self.assertEqual(gather["output_dtypes"], ["Float", "Float"])
        self.assertEqual(gather["frames"][0]["name"], "everything")
        self.assertEqual(gather["timeout_ms"], 60_000)
        message = entries[-1]
        self.assertTrue(message["is_p2p"])
        self.assertEqual((message["profiling_name"], message["p2p_seq_id"]), ("dtrain:send 0->1", 1))

    def test_the_ring_has_the_last_two_thousand(self) -> None:
        group_ranks.run(2, many, self.prefix)
        entries = self.record(1)["entries"]
        self.assertEqual([entry["record_id"] for entry in entries], list(range(100, 2100)))


if __name__ == "__main__":
    at_once.main()
