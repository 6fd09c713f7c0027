"""Each operation of torch.distributed, with all types and sizes, on 1 to 4 ranks: the values are those that the ranks compute alone.

    operations.py BUILD/bin [TestCase.test]
"""
import importlib
import sys
import tempfile
import unittest
import warnings

import group_ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

warnings.filterwarnings("ignore")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16]
TYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
COUNTS = [0, 1, 3, 1000, 100003]
Op = dist.ReduceOp


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small numbers, whose sums and products over four ranks are exact in each type."""
    return ((torch.arange(count) * 7 + 3 * rank) % 3).to(dtype)


def reduced(parts: list[torch.Tensor], op: object) -> torch.Tensor:
    dtype = parts[0].dtype
    if dtype is torch.bool:
        whole = torch.stack(parts)
        both = op in (Op.PRODUCT, Op.MIN, Op.BAND)
        return whole.all(0) if both else whole.sum(0) % 2 == 1 if op == Op.BXOR else whole.any(0)
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        result = parts[0].clone()
        for part in parts[1:]:
            result = result & part if op == Op.BAND else result | part if op == Op.BOR else result ^ part
        return result
    wide = torch.stack([part.to(torch.complex128 if dtype.is_complex else torch.float64) for part in parts])
    if op == Op.SUM:
        return wide.sum(0).to(dtype)
    if op == Op.AVG:
        return wide.mean(0).to(dtype)
    if op == Op.PRODUCT:
        return wide.prod(0).to(dtype)
    return (wide.amin(0) if op == Op.MIN else wide.amax(0)).to(dtype)


def operators(dtype: torch.dtype) -> list[object]:
    if dtype.is_complex:
        return [Op.SUM, Op.AVG]
    if dtype.is_floating_point:
        return [Op.SUM, Op.AVG, Op.MIN, Op.MAX, Op.PRODUCT]
    return [Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT, Op.BAND, Op.BOR, Op.BXOR]


def same(have: torch.Tensor, want: torch.Tensor, *what: object) -> None:
    if have.shape != want.shape or not torch.equal(have, want):
        raise AssertionError(f"{what}: {have.flatten()[:5]} and not {want.flatten()[:5]}")


class Pending:
    """Operations that have been issued, with the values that they are to bring. They are waited for together: where other processes want the
    cores, each wait costs a rank a turn of all of them."""

    def __init__(self) -> None:
        self.operations: list[tuple] = []

    def add(self, work: object, have: list[torch.Tensor], want: list[torch.Tensor], *what: object) -> None:
        self.operations.append((work, have, want, what))

    def check(self) -> None:
        for work, have, want, what in self.operations:
            work.wait()
            for one, other in zip(have, want, strict=True):
                same(one, other, *what)
        self.operations.clear()


def reductions(rank: int) -> None:
    size, pending = dist.get_world_size(), Pending()
    for dtype in TYPES:
        for count in COUNTS:
            parts = [values(r, count, dtype) for r in range(size)]
            whole = [values(r, count * size, dtype) for r in range(size)]
            for op in operators(dtype):
                want = reduced(parts, op)
                tensor = parts[rank].clone()
                pending.add(dist.all_reduce(tensor, op, async_op=True), [tensor], [want], "all_reduce", dtype, count, op)
                tensor = parts[rank].clone()
                work = dist.reduce(tensor, size - 1, op, async_op=True)
                at_root = rank == size - 1
                pending.add(work, [tensor] if at_root else [], [want] if at_root else [], "reduce", dtype, count, op)
                want = reduced(whole, op).view(size, count)[rank]
                output = torch.empty(count, dtype=dtype)
                work = dist.reduce_scatter_tensor(output, whole[rank].clone(), op, async_op=True)
                pending.add(work, [output], [want], "reduce_scatter_tensor", dtype, count, op)
                output = torch.empty(count, dtype=dtype)
                work = dist.reduce_scatter(output, [part.clone() for part in whole[rank].view(size, count)], op, async_op=True)
                pending.add(work, [output], [want], "reduce_scatter", dtype, count, op)
        pending.check()


def scaled(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.full((5,), rank + 1.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, torch.full((5,), 0.25 * size * (size + 1)), "PREMUL_SUM")
    for dtype in (torch.int8, torch.int32, torch.int64):
        tensor = torch.tensor([7 + rank, -7 - rank, 0], dtype=dtype)
        total = 7 * size + size * (size - 1) // 2
        dist.all_reduce(tensor, Op.AVG)
        same(tensor, torch.tensor([total // size, -(total // size), 0], dtype=dtype), "AVG of integers", dtype)


def copies(rank: int) -> None:
    size, pending = dist.get_world_size(), Pending()
    for dtype in TYPES:
        for count in COUNTS:
            parts = [values(r, count, dtype) for r in range(size)]

            def add(work: object, have: list[torch.Tensor], want: list[torch.Tensor], name: str) -> None:
                pending.add(work, have, want, name, dtype, count)

            def empty(factor: int = 1) -> torch.Tensor:
                return torch.empty(count * factor, dtype=dtype)

            tensor = parts[rank].clone()
            add(dist.broadcast(tensor, size - 1, async_op=True), [tensor], [parts[-1]], "broadcast")
            outputs = [empty() for _ in parts]
            add(dist.all_gather(outputs, parts[rank], async_op=True), outputs, parts, "all_gather")
            output = empty(size)
            add(dist.all_gather_into_tensor(output, parts[rank], async_op=True), [output], [torch.cat(parts)], "all_gather_into_tensor")
            outputs = [empty() for _ in parts] if rank == 0 else None
            work = dist.gather(parts[rank], outputs, 0, async_op=True)
            add(work, outputs or [], parts if rank == 0 else [], "gather")
            output = empty()
            add(dist.scatter(output, parts if rank == 0 else None, 0, async_op=True), [output], [parts[rank]], "scatter")
            given, taken = ([values(one + 5 * other, count, dtype) for one, other in pairs]
                            for pairs in ([(rank, r) for r in range(size)], [(r, rank) for r in range(size)]))
            output = empty(size)
            add(dist.all_to_all_single(output, torch.cat(given), async_op=True), [output], [torch.cat(taken)], "all_to_all_single")
            outputs = [empty() for _ in parts]
            add(dist.all_to_all(outputs, given, async_op=True), outputs, taken, "all_to_all")
        pending.check()


def uneven(rank: int) -> None:
    size = dist.get_world_size()
    output = torch.empty(sum(r + 1 for r in range(size)))
    dist.all_to_all_single(output, torch.full(((rank + 1) * size,), float(rank)), [r + 1 for r in range(size)], [rank + 1] * size)
    same(output, torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]), "all_to_all_single")
    outputs = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for r in range(size):
        same(outputs[r], torch.full((r + 1,), float(r)), "all_gather")
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((r + 1,), float(r + rank)) for r in range(size)])
    same(output, torch.full((rank + 1,), float(sum(rank + r for r in range(size)))), "reduce_scatter")


def strided(rank: int) -> None:
    """Tensors that are not contiguous, in every place."""
    size = dist.get_world_size()
    part = torch.arange(12.0).view(3, 4) + rank
    total = torch.arange(12.0).view(3, 4) * size + sum(range(size))
    tensor = part.t().contiguous().t()
    dist.all_reduce(tensor)
    same(tensor, total, "all_reduce")
    tensor = part.t().contiguous().t()
    dist.broadcast(tensor, 0)
    same(tensor, torch.arange(12.0).view(3, 4), "broadcast")
    outputs = [torch.empty(4, 3).t() for _ in range(size)]
    dist.all_gather(outputs, part.t().contiguous().t())
    for r in range(size):
        same(outputs[r], torch.arange(12.0).view(3, 4) + r, "all_gather")
    images = torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last)
    dist.all_reduce(images, Op.MAX)
    same(images, torch.full((2, 3, 4, 4), float(size)), "channels_last")
    tensor = torch.full((6, 6), float(rank))
    if rank == 0:
        for r in range(1, size):
            dist.send(tensor[:, 1], r)
    else:
        dist.recv(tensor[:, 2], 0)
        same(tensor, torch.full((6, 6), float(rank)).index_fill_(1, torch.tensor(2), 0.0), "recv")


def messages(rank: int) -> None:
    size = dist.get_world_size()
    if rank == 0:
        for r in range(1, size):
            dist.send(torch.full((300000,), float(r)), r, tag=r)
        senders = set()
        for _ in range(1, size):
            tensor = torch.zeros(3)
            senders.add(sender := dist.recv(tensor, tag=size))
            same(tensor, torch.full((3,), float(sender)), "any source")
        assert senders == set(range(1, size)), senders
    else:
        tensor = torch.zeros(300000)
        dist.recv(tensor, 0, tag=rank)
        same(tensor, torch.full((300000,), float(rank)), "recv")
        # The tag is of these messages alone: a rank that is ahead has sent the next one before the others have sent this.
        dist.send(torch.full((3,), float(rank)), 0, tag=size)
    # Messages of different tags may be received in another order.
    ring = [dist.isend(torch.full((50,), float(tag)), (rank + 1) % size, tag=tag) for tag in range(4)] if size > 1 else []
    for tag in reversed(range(4 if size > 1 else 0)):
        tensor = torch.zeros(50)
        dist.recv(tensor, (rank - 1) % size, tag=tag)
        same(tensor, torch.full((50,), float(tag)), "tag")
    for work in ring:
        work.wait()
    if size > 1:
        output = torch.zeros(5)
        operations = [dist.P2POp(dist.isend, torch.full((5,), float(rank)), (rank + 1) % size),
                      dist.P2POp(dist.irecv, output, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(output, torch.full((5,), float((rank - 1) % size)), "batch_isend_irecv")


def lists(rank: int) -> None:
    """Several tensors in one operation, and objects."""
    size = dist.get_world_size()
    tensors = [torch.full((n,), rank + 1.0) for n in (3, 1000)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, size * (size + 1) / 2), "all_reduce_coalesced")
    inputs = [torch.full((n,), float(rank)) for n in (2, 500)]
    outputs = [[torch.empty(n) for n in (2, 500)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    for r in range(size):
        same(outputs[r][1], torch.full((500,), float(r)), "all_gather_coalesced")
    with dist._coalescing_manager() as manager:
        together = [torch.full((n,), rank + 1.0) for n in (3, 1000)]
        for tensor in together:
            dist.all_reduce(tensor)
    for tensor in together:
        same(tensor, torch.full_like(tensor, size * (size + 1) / 2), "coalescing manager", manager)
    everyone: list[object] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    assert everyone == [{"rank": r} for r in range(size)]
    objects = [f"of rank {rank}"]
    dist.broadcast_object_list(objects, size - 1)
    assert objects == [f"of rank {size - 1}"]


def sparse(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.sparse_coo_tensor(torch.tensor([[rank, 4]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (6, 2))
    dist.all_reduce(tensor)
    want = torch.zeros(6, 2)
    for r in range(size):
        want[r] += torch.tensor([1.0, 2.0])
        want[4] += torch.tensor([3.0, 4.0])
    same(tensor.to_dense(), want, "sparse")


def works(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.ones(100000)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    twice = future.then(lambda done: done.value()[0] * 2)
    same(twice.wait(), torch.full((100000,), 2.0 * size), "future")
    assert work.is_completed() and work.wait()
    # A callback that issues a collective and waits for it.
    tensor = torch.ones(3)

    def again(done: torch.futures.Future) -> torch.Tensor:
        result = done.value()[0].clone()
        dist.all_reduce(result)
        return result

    same(dist.all_reduce(tensor, async_op=True).get_future().then(again).wait(), torch.full((3,), 1.0 * size * size), "callback")
    dist.barrier()
    assert dist.get_backend() == "dtrain" and dist.distributed_c10d._get_default_group()._get_backend(tensor.device).name() == "dtrain"


def futures_of_ended_works(rank: int) -> None:
    """Whoever has seen an operation end finds its future complete, also in a backward pass, at whose end others are completed."""
    seen = []

    def look(gradient: torch.Tensor) -> None:
        for asks_before, polls in ((False, False), (False, True), (True, False), (True, True)):
            work = dist.all_reduce(gradient.clone(), async_op=True)
            future = work.get_future() if asks_before else None
            while polls and not work.is_completed():
                pass
            if not polls:
                work.wait()
            future = future or work.get_future()
            assert future.done(), (asks_before, polls)
            seen.append(future.value()[0].sum().item())

    x = torch.ones(3, requires_grad=True)
    x.register_hook(look)
    (x * (rank + 1)).sum().backward()
    size = dist.get_world_size()
    assert seen == [3 * size * (size + 1) / 2] * 4, seen
    # The thread that helps may find the operation complete just before the one that waits does.
    for turn in range(300):
        work = dist.all_reduce(torch.ones(1 << (turn % 16)), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done(), turn


def registered(rank: int) -> None:
    """Memory of the backend, in which operations copy nothing."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(100000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(rank + 1)
    dist.all_reduce(tensor)
    size = dist.get_world_size()
    same(tensor, torch.full((100000,), size * (size + 1) / 2), "registered")
    view = tensor[100:200]
    del tensor
    dist.all_reduce(view)
    same(view, torch.full((100,), size * size * (size + 1) / 2), "a view of registered memory")


def refused(rank: int) -> list[str]:
    """What is not defined, with the text."""
    texts = []
    for tensor, op in ((torch.ones(2, dtype=torch.complex64), Op.PRODUCT), (torch.ones(2, dtype=torch.bool), Op.AVG),
                       (torch.ones(2), Op.BAND)):
        try:
            dist.all_reduce(tensor, op)
        except (RuntimeError, ValueError) as error:
            texts.append(str(error).splitlines()[0])
    return texts


def memory_of_fsdp2(rank: int, store: str, is_loaded_before: bool) -> list[str]:
    """Who gives the memory of FSDP2's collectives over dtrain, where the script asks for PyTorch's, and over gloo."""
    loaded = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    if is_loaded_before:
        importlib.import_module(loaded)
    dist.init_process_group("dtrain", init_method=store, rank=rank, world_size=2, timeout=group_ranks.TIMEOUT)
    assert (loaded in sys.modules) == is_loaded_before
    from torch.distributed.fsdp import fully_shard

    def givers(module: torch.nn.Module) -> list[str]:
        group, = module._get_fsdp_state()._fsdp_param_groups
        return [type(one).__name__ for one in (group._all_gather_comm, group._reduce_scatter_comm)]

    module = fully_shard(torch.nn.Linear(4, 4))
    seen = givers(module)
    module.set_allocate_memory_from_process_group_for_comm(False)
    gloo = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    return [*seen, *givers(module), *givers(fully_shard(torch.nn.Linear(4, 4), mesh=gloo))]


class Operations(unittest.TestCase):
    def check(self, function: object, *sizes: int) -> None:
        for size in sizes or (1, 2, 3, 4):
            with self.subTest(ranks=size):
                group_ranks.run(size, function)

    def test_reductions(self) -> None:
        self.check(reductions, 1, 2, 3)

    def test_copies(self) -> None:
        self.check(copies, 1, 2, 3)

    def test_scaled(self) -> None:
        self.check(scaled)

    def test_uneven(self) -> None:
        self.check(uneven)

    def test_strided(self) -> None:
        self.check(strided)

    def test_messages(self) -> None:
        self.check(messages)

    def test_lists(self) -> None:
        self.check(lists)

    def test_sparse(self) -> None:
        self.check(sparse)

    def test_works(self) -> None:
        self.check(works)

    def test_futures_of_ended_works(self) -> None:
        self.check(futures_of_ended_works, 1, 2, 3)

    def test_registered(self) -> None:
        self.check(registered)

    def test_refused(self) -> None:
        for texts in group_ranks.run(2, refused):
            self.assertEqual(len(texts), 3)
            self.assertIn("PRODUCT on complex tensors", texts[0])  # PyTorch refuses it before
            self.assertIn("AVG is not defined for Bool", texts[1])
            self.assertIn("BAND is not defined for Float", texts[2])

    def test_fsdp2_copies_nothing(self) -> None:
        of_group, of_torch = (["ProcessGroupAllocAllGather", "ProcessGroupAllocReduceScatter"], ["DefaultAllGather", "DefaultReduceScatter"])
        for is_loaded_before in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                for seen in group_ranks.run(2, memory_of_fsdp2, f"file://{folder}/store", is_loaded_before, backend=None):
                    self.assertEqual(seen, of_group + of_torch + of_torch)


if __name__ == "__main__":
    unittest.main(verbosity=2)
