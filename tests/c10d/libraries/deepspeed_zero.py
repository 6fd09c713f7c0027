"""DeepSpeed: deepspeed_zero.py LINE OUT STAGE, with the sharding of that stage of ZeRO, and a checkpoint that is loaded again."""
import logging

import outcome
import torch

logging.disable(logging.WARNING)
import deepspeed
import torch.distributed as dist

# It would compile an all-reduce of its own, for inference. ZeRO does not use it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
stage = int(outcome.ARGUMENTS[0])
deepspeed.init_distributed(dist_backend=outcome.backend())
model = outcome.perceptron()
settings = {"train_batch_size": 16, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage}}
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config=settings)
features, targets = outcome.samples(128).tensors


def train(begin: int, end: int) -> list[float]:
    losses = []
    for part in range(begin, end):
        own = slice(8 * part + outcome.RANK, 8 * part + 8, outcome.RANKS)
        loss = torch.nn.functional.mse_loss(engine(features[own]), targets[own])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


first = train(0, 8)
engine.save_checkpoint(str(outcome.OUT / "saved"), tag="half")
second = train(8, 12)
engine.load_checkpoint(str(outcome.OUT / "saved"), tag="half")
assert train(8, 12) == second, "the loaded checkpoint trains otherwise"
total = torch.tensor([sum(one.double().abs().sum().item() for one in engine.module.parameters())])
dist.all_reduce(total)
outcome.tell(8, losses=first + second, weights=total.item())
dist.destroy_process_group()
