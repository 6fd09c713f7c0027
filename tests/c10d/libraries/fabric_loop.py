"""A loop of Lightning's Fabric, over its strategy for DDP: fabric_loop.py LINE OUT ddp."""
import outcome
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

fabric = Fabric(accelerator="cpu", devices=outcome.RANKS, strategy=DDPStrategy(process_group_backend=outcome.backend()))
fabric.launch()
model = outcome.perceptron()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(outcome.samples(), batch_size=4))
losses = []
for number, (features, targets) in enumerate(loader):
    last = number % 2 == 1
    with fabric.no_backward_sync(model, enabled=not last):
        loss = torch.nn.functional.mse_loss(model(features), targets)
        fabric.backward(loss)
    if last:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(fabric.all_gather(loss.detach()).tolist())
outcome.tell(len(losses) // 2, losses=losses, mean=fabric.all_reduce(loss.detach()).item(), weights=outcome.checksum(model))
