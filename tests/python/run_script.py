"""A script with the three lines, for run_frames.py."""
import dtrain
import torch
from torch.nn import functional as F

session = dtrain.init()
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(60, 8), torch.randint(0, 4, (60,)))
model = torch.nn.Linear(8, 4)
model, optimizer, loader = session.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1),
                                        torch.utils.data.DataLoader(data, batch_size=12))
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        session.log("batch", loss)
        session.log_image("inputs", x)
        session.log_histogram("weight", model.weight)
        optimizer.step()
    session.log_validation({"accuracy": session.mean(0.5 + epoch / 4)})
