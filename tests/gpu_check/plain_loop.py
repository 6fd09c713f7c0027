"""The loop of python_loop.py, which knows nothing of dtrain."""
from models import batch_loss
from parity import SAMPLES, make_data
from torch.utils.data import DataLoader, TensorDataset


def make_loader(case, ranks):
    return DataLoader(TensorDataset(*make_data(case, ranks)), batch_size=ranks * SAMPLES, drop_last=True)


def train(model, optimizer, loader, device, loss_of=batch_loss):
    for features, target in loader:
        loss = loss_of(model, features.to(device, non_blocking=True), target.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
