"""Trains on files that it names relative to its own folder, without an experiment file."""
import dtrain
from torch import nn, optim

session = dtrain.init()
data = session.data_set("npy", features="x.npy", target="y.npy", batch_size=8)
model = nn.Linear(6, 1)
model, optimizer, loader = session.wrap(model, optim.SGD(model.parameters(), lr=0.1), data)
for batch in loader:
    nn.functional.mse_loss(model(batch["features"]), batch["target"]).backward()
    optimizer.step()
