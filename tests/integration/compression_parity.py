"""Our codecs against the communication hooks of PyTorch's DistributedDataParallel (gloo, two ranks).

    compression_parity.py REPLAY_PROGRAM

Both get the same gradients in 100 iterations; what is compared is each gradient after the exchange, by its relative L2
difference, in every iteration. PowerSGD starts from the Q that DDP's hook drew and then goes on by itself, with gradients
whose leading directions stand out. Where they do not, error feedback lifts one direction after the other above the rest,
and the last bit of a sum decides which one a step sends: two runs of the same program on other hardware drift apart. There
("step by step") every iteration starts from the state that DDP's hook has before it.
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from ddp_peer import WORLD, run_ddp

ITERATIONS = 100
WARMUP = 2  # the least that DDP's hook allows
# Matrices whose second dimensions differ, a vector, one too small to be worth it, and a convolution's kernel.
SHAPES = {"wide": (40, 96), "tall": (120, 33), "bias": (50,), "small": (5, 6), "kernel": (32, 4, 3, 3)}
# Hook, rank, step by step, tolerance. PowerSGD: float32 sums in another order. fp16: one rounding to 11 bits each (theirs
# rounds after the cast, the division and the sum).
CASES = [("powersgd", 1, False, 1e-4), ("powersgd", 2, False, 1e-4), ("powersgd", 4, False, 1e-4),
         ("powersgd", 1, True, 2e-5), ("powersgd", 2, True, 2e-5), ("powersgd", 4, True, 2e-5), ("fp16", 0, False, 1e-3)]


def gradients(rank, iteration, leading):
    """`leading` directions whose strength varies, and noise."""
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    fixed = torch.Generator().manual_seed(7)
    result = []
    for shape in SHAPES.values():
        rows, columns = shape[0], columns_of(shape)
        u, v = torch.randn(rows, 6, generator=fixed), torch.randn(6, columns, generator=fixed)
        strength = 2 + torch.rand(6, generator=generator)
        strength[leading:] = 0
        matrix = u * strength @ v + 0.02 * torch.randn(rows, columns, generator=generator)
        result.append(matrix.reshape(shape))
    return result


class Holder(torch.nn.Module):
    """Its gradients are whatever they are to be: the loss is the product with them."""

    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES.values()])

    def forward(self, wanted):
        return sum((parameter * gradient).sum() for parameter, gradient in zip(self.tensors, wanted))


def columns_of(shape):
    return int(numpy.prod(shape[1:], dtype=int))


def is_compressed(shape, rank):
    n, m = shape[0], columns_of(shape)
    return (n + m) * min(n, m, rank) * 2 < n * m


def from_both(values):
    """[iteration][rank][values]"""
    mine = torch.stack(values)
    gathered = [torch.empty_like(mine) for _ in range(WORLD)]
    torch.distributed.all_gather(gathered, mine)
    return torch.stack(gathered, dim=1).contiguous()


class Watched:
    """DDP's PowerSGD hook, and what it keeps between iterations, in our order of tensors and column by column."""

    def __init__(self, approximation):
        self.approximation = approximation
        self.columns = {columns_of(s): None for s in SHAPES.values() if is_compressed(s, approximation)}
        self.bucket = []  # shapes, in DDP's order
        self.state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=approximation,
                                                 start_powerSGD_iter=WARMUP)
        self.orthogonalize = powerSGD_hook._orthogonalize
        powerSGD_hook._orthogonalize = self.see

    def see(self, matrices, epsilon=0):
        """The first matrix with so many rows is the Q that was drawn."""
        if self.columns.get(matrices.shape[1], 0) is None:
            self.columns[matrices.shape[1]] = matrices[0].T.clone()
        self.orthogonalize(matrices, epsilon)

    def hook(self, _, bucket):
        self.bucket = [tuple(t.shape) for t in bucket.gradients()]
        return powerSGD_hook.powerSGD_hook(self.state, bucket)

    def initial_q(self):
        return torch.cat([q.flatten() for q in self.columns.values()])

    def q(self):
        """None: not drawn yet."""
        if 0 not in self.state.q_memory_dict:
            return None
        flat, found = self.state.q_memory_dict[0], {}
        for shape in self.bucket:
            if is_compressed(shape, self.approximation):
                m, r = columns_of(shape), min(shape[0], columns_of(shape), self.approximation)
                found[m], flat = flat[:m * r].view(m, r).T.flatten().clone(), flat[m * r:]
        return torch.cat([found[m] for m in self.columns])

    def error(self):
        if 0 not in self.state.error_dict:
            return torch.zeros(sum(s[0] * columns_of(s) for s in SHAPES.values()))
        parts = self.state.error_dict[0].split([s[0] * columns_of(s) for s in self.bucket])
        return torch.cat([dict(zip(self.bucket, parts))[shape] for shape in SHAPES.values()])


def folder_of(workplace, kind, approximation, stepwise):
    return workplace / f"{kind}-{approximation}{'-steps' if stepwise else ''}"


def record_all(rank, workplace):
    for kind, approximation, stepwise, _ in CASES:
        record(rank, kind, approximation, stepwise, folder_of(workplace, kind, approximation, stepwise))


def record(rank, kind, approximation, stepwise, folder):
    model = Holder()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    leading = 6 if stepwise else max(1, approximation)
    watched = Watched(approximation) if kind == "powersgd" else None
    if watched:
        ddp.register_comm_hook(None, watched.hook)
    else:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    inputs, outputs, errors, qs = [], [], [], []
    for iteration in range(ITERATIONS):
        if stepwise:
            errors.append(watched.error())
            qs.append(watched.q())
        inputs.append(torch.cat([g.flatten() for g in gradients(rank, iteration, leading)]))
        ddp(gradients(rank, iteration, leading)).backward()
        outputs.append(torch.cat([p.grad.flatten() for p in model.tensors]))
        model.zero_grad(set_to_none=True)
    inputs = from_both(inputs)
    if stepwise:
        errors = from_both(errors)
        qs = torch.stack([watched.initial_q() if q is None else q for q in qs])
    if rank == 0:
        inputs.numpy().tofile(folder / "inputs.bin")
        torch.stack(outputs).numpy().tofile(folder / "outputs.bin")
        if stepwise:
            errors.numpy().tofile(folder / "errors.bin")
        if watched:
            (qs if stepwise else watched.initial_q()).numpy().tofile(folder / "q.bin")
    if watched:
        powerSGD_hook._orthogonalize = watched.orthogonalize


def main():
    program = sys.argv[1]
    workplace = Path(tempfile.mkdtemp(prefix="dtrain-compression-"))
    print(f"relative L2 difference of the worst gradient in {ITERATIONS} iterations (files: {workplace})")
    failures = 0
    for case in CASES:
        folder_of(workplace, *case[:3]).mkdir()
    run_ddp(record_all, workplace)
    for kind, approximation, stepwise, limit in CASES:
        folder = folder_of(workplace, kind, approximation, stepwise)
        tensors = [{"name": name, "rows": shape[0], "columns": columns_of(shape)}
                   for name, shape in SHAPES.items()]
        (folder / "manifest.json").write_text(json.dumps(
            {"kind": kind, "rank": max(1, approximation), "warmup": WARMUP if kind == "powersgd" else 0, "world": WORLD,
             "iterations": ITERATIONS, "from_recorded_state": stepwise, "tensors": tensors}))
        done = subprocess.run([program, str(folder)], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
        result = json.loads(done.stdout)
        steps = ITERATIONS - (WARMUP if kind == "powersgd" else 0)
        good = result["worst"] is not None and result["worst"] <= limit and result["compressed_steps"] == steps
        failures += not good
        print(f"{kind:9} rank {approximation}{'  step by step' if stepwise else '':14}  worst {result['worst']:.2e}  limit {limit:.0e}"
              f"{'' if good else '   TOO MUCH: ' + done.stdout}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(CASES)} cases differ too much")
    shutil.rmtree(workplace)


if __name__ == "__main__":
    main()
