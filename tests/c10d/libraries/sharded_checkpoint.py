"""FSDP2 and torch.distributed.checkpoint: sharded_checkpoint.py LINE OUT save|load.

`save` trains, saves after half of the steps, and goes on. `load` trains from there, on as many ranks or others: each rank takes its share of
the same batches, so that the losses differ by no more than rounding.
"""
import outcome
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group(outcome.backend())
STEPS, SAVED = 6, 3
folder = str(outcome.OUT / "checkpoint")
model = outcome.perceptron()
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loading = outcome.ARGUMENTS[0] == "load"
if loading:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

features, targets = outcome.samples().tensors
losses = []
for step in range(SAVED if loading else 0, STEPS):
    if step == SAVED and not loading:
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    own = slice(8 * step + outcome.RANK, 8 * step + 8, outcome.RANKS)
    loss = torch.nn.functional.mse_loss(model(features[own]), targets[own])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    losses.append(mean.item())
outcome.tell(len(losses), losses=losses[-SAVED:], weights=outcome.checksum(model))
dist.destroy_process_group()
