"""Process groups of some of the ranks, several at once, over hosts, and beside a default group of gloo's.

    groups.py BUILD/bin [TestCase.test]
"""
import os
import tempfile
import unittest

import group_ranks
import torch
import torch.distributed as dist
from operations import same


def groups(rank: int) -> None:
    size = dist.get_world_size()
    order = list(range(size))[::-1][:max(1, size - 1)]
    some = dist.new_group(order)
    if rank in order:
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=some)
        same(tensor, torch.full((3,), float(sum(order))), "group")
    first, second = dist.new_group(), dist.new_group()
    x, y = torch.full((1 << 20,), rank + 1.0), torch.full((1 << 20,), rank + 2.0)
    one, other = dist.all_reduce(x, group=first, async_op=True), dist.all_reduce(y, group=second, async_op=True)
    for work in (one, other) if rank == 0 else (other, one):
        work.wait()
    same(x[:3], torch.full((3,), size * (size + 1) / 2), "the first of two")
    # Rank 0 is blocked in the store, not in a call of the backend, until another rank has its result.
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((1 << 20,), rank + 1.0)
    work = dist.all_reduce(tensor, group=first, async_op=True)
    if rank == 0 and size > 1:
        store.wait(["go"], group_ranks.TIMEOUT)
        work.wait()
    else:
        work.wait()
        if rank == size - 1:
            store.set("go", "1")
    same(tensor[:3], torch.full((3,), size * (size + 1) / 2), "helped")
    dist.destroy_process_group(first)
    dist.all_reduce(y, group=second)


def sum_in(group: dist.ProcessGroup, rank: int, want: float) -> None:
    """Of ordinary and of registered memory, which others read in place."""
    backend = group._get_backend(torch.device("cpu"))
    for tensor in (torch.empty(1 << 16), backend.allocate_tensor(1 << 16, dtype=torch.float32, device=torch.device("cpu"))):
        dist.all_reduce(tensor.fill_(rank + 1), group=group)
        same(tensor, torch.full((1 << 16,), want), "sum in a group")


def over_hosts(rank: int, hosts: list[int], store: str) -> None:
    """Each number of `hosts` is a rank's host. The group's ranks have other numbers in the world than in the group."""
    os.environ.update(DTRAIN_AGENT_ID=f"host {hosts[rank]}", DTRAIN_NETWORK_INTERFACE="lo")
    dist.init_process_group("dtrain", init_method=store, rank=rank, world_size=len(hosts), timeout=group_ranks.TIMEOUT)
    some = dist.new_group([1, 2, 3])
    if rank:
        sum_in(some, rank, 9.0)
    sum_in(dist.group.WORLD, rank, 10.0)
    dist.destroy_process_group()


def beside_gloo(rank: int) -> None:
    """The first group of dtrain's has not all ranks of the program."""
    some = dist.new_group([1, 3, 2], backend="dtrain")
    two = dist.new_group([2, 3], backend="dtrain")
    if rank:
        sum_in(some, rank, 9.0)
    if rank > 1:
        sum_in(two, rank, 7.0)


class Groups(unittest.TestCase):
    def test_groups(self) -> None:
        for size in (1, 2, 3, 4):
            with self.subTest(ranks=size):
                group_ranks.run(size, groups)

    def test_over_hosts(self) -> None:
        for hosts in ([0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]):
            with self.subTest(hosts=hosts), tempfile.TemporaryDirectory() as folder:
                group_ranks.run(4, over_hosts, hosts, f"file://{folder}/store", backend=None)

    def test_beside_gloo(self) -> None:
        group_ranks.run(4, beside_gloo, backend="gloo")


if __name__ == "__main__":
    unittest.main(verbosity=2)
