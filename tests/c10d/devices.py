"""The backend for tensors on CPUs and GPUs: where tensors go, and that PyTorch's group behind it does what it does alone. gloo's group
stands in for NCCL's, so no GPU is needed.

    devices.py BUILD/bin [TestCase.test]
"""
import sys
import tempfile
import unittest
import warnings
from typing import Any, Callable
from unittest import mock

import group_ranks
import programs
import torch
import torch.distributed as dist

torch_backend = sys.modules["dtrain.torch_backend"]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def gloo(options: Any) -> object:
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)


def native() -> Any:
    """The module, where no group has loaded it yet."""
    sys.modules["dtrain"]._find_native(str(torch.__version__))
    from dtrain import _torch_distributed
    return _torch_distributed


def make_at_once(options: Any, given: Any) -> object:
    return native().create_for_devices(options, None, gloo(options), lambda *_: None, given)


def make_when_used(options: Any, given: Any) -> object:
    return native().create_for_devices(options, None, None, lambda group, given, device, is_bound: gloo(group), given)


for name, make in (("at_once", make_at_once), ("when_used", make_when_used)):
    dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu"])


def operations(rank: int) -> list:
    """What each operation that gloo has gives."""
    size = dist.get_world_size()
    own = torch.arange(12.0) + 100 * rank
    results = []

    def note(*tensors: torch.Tensor) -> None:
        results.extend(tensor.tolist() for tensor in tensors)

    for operator in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        for is_async in (False, True):
            tensor = own.clone()
            work = dist.all_reduce(tensor, operator, async_op=is_async)
            if is_async:
                work.wait()
            note(tensor)
    tensor = own.clone()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    note(future.then(lambda done: done.value()[0] * 2).wait())
    tensor = own.clone()
    dist.broadcast(tensor, 1)
    note(tensor)
    tensor = own.clone()
    dist.reduce(tensor, 0)
    note(*([tensor] if rank == 0 else []))
    parts = [torch.empty(12) for _ in range(size)]
    dist.all_gather(parts, own)
    note(*parts)
    whole = torch.empty(12 * size)
    dist.all_gather_into_tensor(whole, own)
    note(whole)
    part = torch.empty(12 // size)
    dist.reduce_scatter_tensor(part, own.clone())
    note(part)
    parts = [torch.empty(12) for _ in range(size)] if rank == 0 else None
    dist.gather(own, parts, 0)
    note(*(parts or []))
    part = torch.empty(12)
    dist.scatter(part, [own + number for number in range(size)] if rank == 1 else None, 1)
    note(part)
    whole = torch.empty(12)
    dist.all_to_all_single(whole, own.clone())
    note(whole)
    other = torch.empty(12)
    ops = [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    note(other)
    if rank == 0:
        dist.send(own, 1, tag=3)
    else:
        dist.recv(other, tag=3)
        note(other)
    group = dist.new_group([0, 1])
    tensor = own.clone()
    dist.all_reduce(tensor, group=group)
    note(tensor)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    results.append(objects)
    dist.barrier()
    return results


class Wrapped(unittest.TestCase):
    def test_operations(self) -> None:
        expected = group_ranks.run(2, operations, backend="gloo")
        for name in ("at_once", "when_used"):
            self.assertEqual(group_ranks.run(2, operations, backend=name), expected, name)

    def test_ddp(self) -> None:
        expected = group_ranks.run(2, programs.ddp, backend="gloo")
        self.assertEqual(group_ranks.run(2, programs.ddp, backend="when_used"), expected)

    def test_hooks_of_ddp(self) -> None:
        expected = group_ranks.run(2, programs.ddp_hooks, backend="gloo")
        self.assertEqual(group_ranks.run(2, programs.ddp_hooks, backend="at_once"), expected)

    def test_fsdp2(self) -> None:
        expected = group_ranks.run(2, programs.fsdp2, backend="gloo")
        self.assertEqual(group_ranks.run(2, programs.fsdp2, backend="at_once"), expected)

    def test_the_parts_attributes(self) -> None:
        group_ranks.run(2, attributes, backend="at_once")


def meet(rank: int) -> None:
    """Waits for the other rank: gloo's connections of a rank are not ready when those of the other are, and a rank that ends breaks them."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"met by {rank}", "")
    store.wait(["met by 0", "met by 1"])


def attributes(rank: int) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(CPU)
    assert type(backend).__name__ == "DeviceBackend" and backend.host is None, backend
    assert isinstance(backend.device, dist.ProcessGroupGloo), backend.device
    assert type(backend.options) is type(backend.device.options), backend.options
    assert backend.name() == "dtrain" and backend.supports_splitting
    assert backend.supports_coalescing == backend.device.supports_coalescing  # as its part
    try:
        backend.no_such_attribute
    except AttributeError:
        pass
    else:
        raise AssertionError("no_such_attribute")
    meet(rank)


def with_cuda(rank: int, store: str, function: Callable[..., None]) -> None:
    """Calls the function where PyTorch sees GPUs, and notes in `made` which groups of NCCL were made."""
    made: list[tuple] = []

    def make_nccl(options: Any, given: Any, device: Any = None, is_bound: bool = True) -> object:
        made.append((device, is_bound))
        return gloo(options)

    with mock.patch.object(torch.cuda, "is_available", lambda: True), mock.patch.object(torch_backend, "make_nccl", make_nccl):
        function(rank, f"file://{store}", made)


def begin(backend: str, rank: int, store: str) -> Any:
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=2, timeout=group_ranks.TIMEOUT)
    return dist.distributed_c10d._get_default_group()


def summed(rank: int) -> float:
    tensor = torch.tensor([1.0 + rank])
    dist.all_reduce(tensor)
    return tensor.item()


def both(rank: int, store: str, made: list) -> None:
    group = begin("dtrain", rank, store)
    backend = group._get_backend(CPU)
    assert group._get_backend(CUDA).__class__.__name__ == "DeviceBackend"
    assert dist.get_backend() == "dtrain" and backend.host is not None and backend.device is None
    assert summed(rank) == 3 and not made, made
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank)
    dist.barrier()
    assert objects == [0, 1] and not made, made
    subgroup = dist.new_group([1, 0])
    dist.barrier(subgroup)
    assert not made, made
    backend.perform_nocolor_split(CUDA)


def gpus_alone(rank: int, store: str, made: list) -> None:
    group = begin("cuda:dtrain", rank, store)
    backend = group._get_backend(CUDA)
    assert made == [(None, True)] and backend.host is None and isinstance(backend.device, dist.ProcessGroupGloo), made
    assert [device.type for device in group._device_types] == ["cuda"], group._device_types
    meet(rank)


def cpus_alone(rank: int, store: str, made: list) -> None:
    group = begin("cpu:dtrain,cuda:gloo", rank, store)
    assert type(group._get_backend(CPU)).__name__ == "Backend", group._get_backend(CPU)
    assert isinstance(group._get_backend(CUDA), dist.ProcessGroupGloo)
    assert summed(rank) == 3 and not made, made


def without_cuda(rank: int, store: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = begin("dtrain", rank, f"file://{store}")
        assert summed(rank) == 3 and type(group._get_backend(CPU)).__name__ == "Backend"
        dist.destroy_process_group()


class Devices(unittest.TestCase):
    def check(self, function: Callable[..., None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            group_ranks.run(2, with_cuda, f"{folder}/store", function, backend=None)

    def test_both(self) -> None:
        self.check(both)

    def test_gpus_alone(self) -> None:
        self.check(gpus_alone)

    def test_cpus_alone(self) -> None:
        self.check(cpus_alone)

    def test_without_cuda(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            group_ranks.run(2, without_cuda, f"{folder}/store", backend=None)

    def test_names_in_unchanged_scripts(self) -> None:
        from dtrain import as_is
        with_gpu = {None: "dtrain", "gloo": "cpu:dtrain,cuda:gloo", "nccl": "cuda:dtrain", "cpu:gloo,cuda:nccl": "cpu:dtrain,cuda:dtrain",
                    "cuda:gloo": None, "fake": None}
        without = {None: "dtrain", "gloo": "dtrain", "nccl": "dtrain", "cpu:gloo,cuda:nccl": "cpu:dtrain,cuda:dtrain"}
        for has_gpu, expected in ((True, with_gpu), (False, without)):
            with mock.patch.object(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu):
                self.assertEqual({name: as_is._backend_in_place_of(name) for name in expected}, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
