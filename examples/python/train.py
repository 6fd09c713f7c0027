"""Fashion-MNIST with a loop of its own: an ordinary PyTorch script, made data-parallel by the lines marked with "dtrain".

    dtrain launch train.yaml
    dtrain run --slots 2 train.py
    torchrun --nproc-per-node 2 train.py
    python train.py
"""
import dtrain  # dtrain
import torch
from fashion import Cnn, read
from torch.nn import functional as F
from torch.utils.data import DataLoader

EPOCHS = 2

session = dtrain.init()  # dtrain
torch.manual_seed(0)
model = Cnn()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(read("train"), batch_size=128, shuffle=True, drop_last=True)
held_out = read("t10k")
model, optimizer, loader = session.wrap(model, optimizer, loader)  # dtrain

for epoch in range(EPOCHS):
    model.train()
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(session.device)), labels.to(session.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    # Each rank validates on every world_size-th image; the mean weighs them by their numbers.
    model.eval()
    images, labels = held_out[session.rank::session.world_size]
    with torch.no_grad():
        scores = torch.cat([model(part.to(session.device)).cpu() for part in images.split(500)])
    right = (scores.argmax(1) == labels).double().mean()
    accuracy = session.mean(right, weight=len(labels))
    session.log_validation({"accuracy": accuracy})
    if session.is_main:
        print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}")
