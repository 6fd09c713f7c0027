"""A loop of Accelerate's: accelerate_loop.py LINE OUT ddp|fsdp2."""
import outcome
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

outcome.make_group()
plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if outcome.ARGUMENTS[0] == "fsdp2" else None
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=2)
model = outcome.perceptron()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(outcome.samples(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
steps = 0
for epoch in range(2):
    for features, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                steps += 1
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()[None]).tolist())
outcome.tell(steps, losses=losses, weights=outcome.checksum(model), kind=str(accelerator.distributed_type))
accelerator.end_training()
