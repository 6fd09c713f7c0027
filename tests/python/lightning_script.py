"""A script of Lightning's, for lightning_strategy.py: its options are in the file options.json, or in its argument.

With "plain" it trains in one process without dtrain. Rank 0 writes weights and metrics to the file "out".
"""
import json
import sys
from pathlib import Path

import lightning
import lightning_modules
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, LearningRateFinder, ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

options = {"model": "mlp", "epochs": 2, "batch": 24, "samples": 240, "trainer": {}, "optimizer": "adamw",
           **json.loads(sys.argv[1] if sys.argv[1:] and sys.argv[1].startswith("{") else
                        Path("options.json").read_text())}


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        if options["model"] == "mlp":
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        else:
            self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                     nn.Linear(128, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")
        self.epoch_ends = 0
        self.lr = 1e-2

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=options.get("on_step", True), on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        self.accuracy(scores, y)
        self.log("val_loss", F.cross_entropy(scores, y), sync_dist=True)
        self.log("val_accuracy", self.accuracy)

    test_step = validation_step

    def on_train_epoch_end(self):
        self.epoch_ends += 1

    def configure_optimizers(self):
        kinds = {"adamw": lambda p: torch.optim.AdamW(p, lr=self.lr), "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
                 "sgd": lambda p: torch.optim.SGD(p, lr=options.get("lr", 0.1), momentum=0.9)}
        optimizer = kinds[options["optimizer"]](self.parameters())
        scheduler = options.get("scheduler")
        if scheduler == "step":
            total = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (total + 1))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        if scheduler == "lambda":
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** epoch)]
        if scheduler == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        return optimizer


def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 1, 8, 8, generator=generator)
    return TensorDataset(images, images.flatten(1)[:, :10].argmax(1))


class Ordered(Classifier):
    """Has its loaders itself, and notes in which order Lightning calls what a module may define."""

    def __init__(self):
        super().__init__()
        self.called = []

    def on_fit_start(self):
        self.called.append("on_fit_start")

    def on_train_start(self):
        self.called.append("on_train_start")

    def on_before_backward(self, loss):
        self.called.append("on_before_backward")

    def on_after_backward(self):
        self.called.append("on_after_backward")

    def train_dataloader(self):
        self.called.append("train_dataloader")
        return DataLoader(data(options["samples"], 2), options["batch"])

    def val_dataloader(self):
        self.called.append("val_dataloader")
        return DataLoader(data(100, 3), 32)


def make_model(name):
    if options.get("hooks"):
        return Ordered(), []
    return (Classifier(), []) if name in ("mlp", "cnn") else lightning_modules.module(name)


def strategy():
    if options.get("plain"):
        return "auto"
    import dtrain.lightning

    return dtrain.lightning.Strategy()


def make_trainer(callbacks, strategy):
    return lightning.Trainer(strategy=strategy, accelerator="cpu", devices=1, max_epochs=options["epochs"],
                             callbacks=callbacks, logger=False, enable_checkpointing=bool(options.get("checkpoints")),
                             enable_progress_bar=False, enable_model_summary=False, **options["trainer"])


def fit_again(before, model, kind):
    """Another training in the same process, of the "same" module, of a "new" one, or of one that is "resumed"."""
    callbacks, checkpoint = [], None
    if kind.startswith("unequal"):
        model, callbacks = lightning_modules.module(kind)
    elif kind != "same":
        model, callbacks = make_model(options["model"])
    if kind == "resumed":
        checkpoint = str(Path(options["out"]).with_name("resumed.ckpt"))
        before.save_checkpoint(checkpoint)
    callbacks.append(LambdaCallback(on_train_batch_start=lambda *_: Path(options["out"]).with_name("again").touch()))
    trainer = make_trainer(callbacks, strategy())
    trainer.fit_loop.max_epochs = options.get("epochs_again", options["epochs"])
    trainer.fit(model, DataLoader(data(options["samples"], 5), options["batch"]), DataLoader(data(100, 3), 32),
                ckpt_path=checkpoint)
    return model, trainer


def main():
    if "seed" in options:
        lightning.seed_everything(options["seed"])
    first = strategy()  # before the module: the seed's random numbers are still the module's
    model, callbacks = make_model(options.get("first", options["model"]))
    if options.get("checkpoints"):
        callbacks.append(ModelCheckpoint(dirpath=options["checkpoints"], monitor="val_loss", save_last=True,
                                         filename="best"))
    if options.get("early_stopping"):
        callbacks.append(EarlyStopping("val_loss", patience=0, min_delta=0.2))
    if options.get("finds_rate"):
        callbacks.append(LearningRateFinder(num_training_steps=15, early_stop_threshold=None))
    trainer = make_trainer(callbacks, first)
    loaders = () if options.get("hooks") else (DataLoader(data(options["samples"], 2), options["batch"]),
                                               DataLoader(data(options.get("validation", 100), 3), 32))
    trainer.fit(model, *loaders, ckpt_path=options.get("resume"))
    for kind in options.get("again", []):
        model, trainer = fit_again(trainer, model, kind)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if options.get("test"):
        trainer.test(model, DataLoader(data(70, 4), 16), ckpt_path="best", verbose=False)
        metrics["test_loss"] = float(trainer.callback_metrics["val_loss"])
    if trainer.is_global_zero:
        torch.save({"weights": model.state_dict(), "metrics": metrics, "steps": trainer.global_step,
                    "epochs": trainer.current_epoch, "epoch_ends": getattr(model, "epoch_ends", None),
                    "world_size": trainer.world_size, "hooks": getattr(model, "called", None),
                    "lr": trainer.optimizers[0].param_groups[0]["lr"]}, Path(options["out"]))


main()
