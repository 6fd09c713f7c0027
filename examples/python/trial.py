"""Fashion-MNIST as a Trial: the loop, validation, early stopping and checkpoints are dtrain's.

    dtrain launch trial.yaml
"""
import dtrain
import torch
from fashion import Cnn, read
from torch.nn import functional as F
from torch.utils.data import DataLoader


class FashionMnist(dtrain.Trial):
    def __init__(self, context: dtrain.Context) -> None:
        super().__init__(context)
        torch.manual_seed(0)
        self.model = context.wrap_model(Cnn(context.hyperparameters.get("dropout", 0.25)))
        context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=context.hyperparameters["learning_rate"]))
        context.stop_early("accuracy", smaller_is_better=False, patience=2)

    def training_loader(self):
        return DataLoader(read("train", self.context.data["folder"]), self.context.global_batch_size, shuffle=True,
                          drop_last=True)

    def validation_loader(self):
        return DataLoader(read("t10k", self.context.data["folder"]), 500)

    def train_batch(self, batch):
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        images, labels = batch
        scores = self.model(images)
        return {"loss": F.cross_entropy(scores, labels), "accuracy": (scores.argmax(1) == labels).double().mean()}
