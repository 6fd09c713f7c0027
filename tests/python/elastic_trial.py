"""A trial that logs its samples, and waits in chosen batches for a file."""
import os
import time

import dtrain
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 8 * 24 + 5


class Elastic(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        torch.manual_seed(3)
        self.folder = context.hyperparameters["folder"]
        self.hold = context.hyperparameters["hold"]
        self.batches = 0  # a state of its own
        self.model = context.wrap_model(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)))
        context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.003))
        self.data = TensorDataset(torch.randn(SAMPLES, 12), torch.randint(0, 4, (SAMPLES,)))
        self.samples = open(os.path.join(self.folder, f"samples-{os.getpid()}"), "w", buffering=1)

    def training_loader(self):
        return DataLoader(self.data, self.context.global_batch_size, shuffle=True)

    def validation_loader(self):
        return DataLoader(self.data, 30)

    def evaluate_batch(self, batch):
        return {"accuracy": (self.model(batch[0]).argmax(1) == batch[1]).float().mean()}

    def train_batch(self, batch):
        self.batches += 1
        go_on = os.path.join(self.folder, str(self.batches))
        while self.context.rank == 0 and self.batches in self.hold and not os.path.exists(go_on):
            time.sleep(0.005)
        for row in batch[0]:
            self.samples.write(f"{self.batches} {self.context.rank} {float(row[0]).hex()}\n")
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        return {"loss": loss}

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]
