"""What people build on torch.distributed gives gloo's bits on two ranks: DDP, FSDP, DTensor, ZeroRedundancyOptimizer, and others.

    programs.py BUILD/bin [TestCase.test]
"""
import tempfile
import unittest
import warnings

import group_ranks
import torch
import torch._dynamo  # once, and not in each rank: the first optimizer imports it, which takes seconds
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore")
WIDTH = 64


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(dtype)


def train(module: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None, steps: int = 4) -> list[float]:
    optimizer = optimizer or torch.optim.AdamW(module.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        loss = module(torch.randn(8, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *(float(p.detach().sum()) for p in module.parameters() if not hasattr(p, "full_tensor"))]


def ddp(rank: int) -> list:
    variants = [{}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.001}, {"static_graph": True}, {"find_unused_parameters": True},
                {"broadcast_buffers": False, "bucket_cap_mb": 0.02, "gradient_as_bucket_view": True}]
    return [train(DistributedDataParallel(model(), **options), rank) for options in variants]


def ddp_hooks(rank: int) -> list:
    results = []
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook, default_hooks.allreduce_hook):
        module = DistributedDataParallel(model(), bucket_cap_mb=0.02)
        module.register_comm_hook(None, hook)
        results.append(train(module, rank))
    return results


def power_sgd(rank: int) -> list:
    module = DistributedDataParallel(model())
    module.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return train(module, rank, torch.optim.SGD(module.parameters(), lr=1e-2), steps=8)


def power_sgd_with_buckets(rank: int) -> list:
    """Its callbacks issue collectives: in the same order on all ranks, however many buckets there are."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    module.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return train(module, rank, torch.optim.SGD(module.parameters(), lr=1e-2), steps=20)


def ddp_uneven(rank: int) -> list:
    module = DistributedDataParallel(model(torch.bfloat16))
    generator = torch.Generator().manual_seed(rank)
    with module.join():
        for _ in range(rank + 1):
            module(torch.randn(8, WIDTH, generator=generator).bfloat16()).square().mean().backward()
    return [p.grad.float().sum().item() for p in module.parameters()]


def ddp_in_distributed_autograd(rank: int) -> list:
    """DDP that divides by the number of ranks at work reads a future within the backward pass, after it has waited for the work."""
    from torch.distributed import autograd, rpc

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=dist.get_world_size(),
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder[0]}/rpc"))
    module = DistributedDataParallel(model())
    generator = torch.Generator().manual_seed(rank)
    results = []
    with module.join(divide_by_initial_world_size=False):
        for _ in range(2 * rank + 1):
            with autograd.context() as context:
                autograd.backward(context, [module(torch.randn(8, WIDTH, generator=generator)).square().mean()])
                gradients = autograd.get_gradients(context)
                results += [gradients[p].sum().item() for p in module.parameters()]
            module(torch.randn(8, WIDTH, generator=generator)).square().mean().backward()
            results += [p.grad.sum().item() for p in module.parameters()]
    rpc.shutdown()
    return results


def ddp_sparse(rank: int) -> list:
    embedding = DistributedDataParallel(nn.Embedding(50, 8, sparse=True))
    embedding(torch.tensor([rank, 3, 5])).sum().backward()
    return embedding.module.weight.grad.coalesce().to_dense()[:6].sum(1).tolist()


def waits_for_futures(rank: int) -> list:
    """A hook that waits for futures within the backward pass, as ZeroRedundancyOptimizer's do."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.02)

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
        future.wait()
        return future.then(lambda done: done.value()[0])

    module.register_comm_hook(None, hook)
    return train(module, rank, steps=2)


def fsdp2(rank: int) -> list:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    results = []
    for options in ({}, {"reshard_after_forward": False},
                    {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}):
        module = model()
        for layer in module:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, **options)
        fully_shard(module, **options)
        results.append(train(module, rank))
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))
    results.append(float(sum(value.float().sum() for value in state.values())) if rank == 0 else 0)
    return results


def hybrid(rank: int) -> list:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    module = model()
    fully_shard(module, mesh=mesh)
    return train(module, rank)


def fsdp1(rank: int) -> list:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    return [train(FullyShardedDataParallel(model(), sharding_strategy=strategy, device_id=torch.device("cpu")), rank)
            for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD)]


def dtensor(rank: int) -> list:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    x = torch.randn(8 * size, 16)
    rows, columns = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, mesh, [Shard(1)])
    product = rows @ columns.redistribute(mesh, [Replicate()]).t()
    module = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return [product.full_tensor().sum().item(), rows.redistribute(mesh, [Shard(1)]).to_local().sum().item(),
            rows.sum().full_tensor().item(), module(x[:4, :1].expand(4, WIDTH)).sum().item()]


def functional(rank: int) -> list:
    import torch.distributed._functional_collectives as functions

    size = dist.get_world_size()
    group = dist.group.WORLD
    tensor = torch.full((4,), rank + 1.0)
    return [functions.all_reduce(tensor, "sum", group).tolist(), functions.all_gather_tensor(tensor, 0, group).tolist(),
            functions.reduce_scatter_tensor(torch.arange(4.0 * size), "sum", 0, group).tolist(),
            functions.all_to_all_single(torch.arange(2.0 * size) + rank, None, None, group).tolist(),
            functions.broadcast(tensor, 1, group).tolist(),
            [one.tolist() for one in functions.all_reduce_coalesced([tensor, tensor * 2], "max", group)]]


def zero(rank: int) -> list:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model())
    return train(module, rank, ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-2))


def zero_overlapped(rank: int) -> list:
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=1e-2)
    module.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, module, optimizer, shard_buckets=True))  # not with gloo
    return train(module, rank, optimizer, steps=6)


def pipeline(rank: int) -> list:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    results = []
    for schedule in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(rank)
        layer = nn.Linear(16, 16)
        size = dist.get_world_size()
        run = schedule(PipelineStage(layer, rank, size, torch.device("cpu")), 4, loss_fn=lambda y, t: (y - t).square().mean())
        torch.manual_seed(5)
        x = torch.randn(16, 16)
        losses: list = []
        run.step(*([x] if rank == 0 else []), **({"target": x, "losses": losses} if rank == size - 1 else {}))
        results.append([*map(float, losses), layer.weight.grad.sum().item()])
    return results


def compiled(rank: int) -> list:
    return train(torch.compile(DistributedDataParallel(model()), backend="aot_eager"), rank)


def checkpoint(rank: int) -> list:
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.tensor import Shard, distribute_tensor

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"tensor": distribute_tensor(torch.arange(32.0).view(8, 4), mesh, [Shard(0)]), "ones": torch.ones(3)}
    checkpoints.save(state, checkpoint_id=folder[0])
    loaded = {"tensor": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(1)]), "ones": torch.zeros(3)}
    checkpoints.load(loaded, checkpoint_id=folder[0])
    return [loaded["tensor"].full_tensor().tolist(), loaded["ones"].tolist()]


class Programs(unittest.TestCase):
    def same_as_gloo(self, function: object, size: int = 2) -> None:
        want = group_ranks.run(size, function, backend="gloo")
        self.assertEqual(group_ranks.run(size, function, backend="dtrain"), want)

    def test_steps_are_the_same_each_time(self) -> None:
        for function in (power_sgd_with_buckets, zero_overlapped):
            with self.subTest(function=function.__name__):
                want = group_ranks.run(3, function)
                self.assertEqual(group_ranks.run(3, function), want)


for _function in (ddp, ddp_hooks, power_sgd, ddp_uneven, ddp_in_distributed_autograd, ddp_sparse, waits_for_futures, fsdp2, fsdp1, dtensor,
                  functional, zero, pipeline, compiled, checkpoint):
    setattr(Programs, f"test_{_function.__name__}", lambda self, function=_function: self.same_as_gloo(function))
setattr(Programs, "test_hybrid", lambda self: self.same_as_gloo(hybrid, 4))


if __name__ == "__main__":
    unittest.main(verbosity=2)
