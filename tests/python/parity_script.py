"""The loop of parity_cases.train_plain(), with the three lines."""
import contextlib

import dtrain
import parity_cases as cases
import torch

session = dtrain.init()
case = dict(session.hyperparameters["case"])
model = cases.make_model(case)
optimizer = cases.make_optimizer(case, model)
if case["compile"]:
    model = torch.compile(model, backend=case["compile"])
if case["loads"]:
    weights, state = cases.trained_before(case)
    model.load_state_dict(weights)
    if case["loads"] == "before":
        optimizer.load_state_dict(state)
schedule = cases.make_schedule(case, optimizer)
model, optimizer, loader, *_ = session.wrap(model, optimizer, cases.make_loader(case), *([schedule] if schedule else []),
                                            clip_gradient_norm=case["clip_norm"], clip_gradient_value=case["clip_value"])
if case["loads"] == "after":
    optimizer.load_state_dict(state)
model.train()
for epoch in range(case["epochs"]):
    for index, batch in enumerate(loader):
        last = (index + 1) % case["accumulate"] == 0
        with contextlib.nullcontext() if last else session.no_sync():
            loss = model(*batch) / case["accumulate"]
            loss.backward()
        if not last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if schedule and case["every"] == "step":
            schedule.step()
    if schedule and case["every"] == "epoch":
        schedule.step()
    if case["loads"]:  # also between epochs, where it must change nothing
        state = optimizer.state_dict()
        if session.is_main:
            torch.save(state, session.run_dir / "optimizer.pt")
