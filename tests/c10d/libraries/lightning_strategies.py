"""Lightning's own strategies: lightning_strategies.py LINE OUT ddp|model_parallel."""
import logging
import warnings

import outcome
import torch

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard


class Module(lightning.LightningModule):
    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.net, self.sharded, self.losses, self.validated = outcome.perceptron(), sharded, [], []

    def configure_model(self) -> None:
        if self.sharded and not isinstance(self.net, torch.distributed.fsdp.FSDPModule):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list, _: int) -> None:
        self.log("validated", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.validated.append(self.trainer.callback_metrics["validated"].item() if "validated" in self.trainer.callback_metrics else 0.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


sharded = outcome.ARGUMENTS[0] == "model_parallel"
strategy = (ModelParallelStrategy if sharded else DDPStrategy)(process_group_backend=outcome.backend())
module = Module(sharded)
trainer = lightning.Trainer(accelerator="cpu", devices=outcome.RANKS, strategy=strategy, max_epochs=2, logger=False, enable_progress_bar=False,
                            enable_checkpointing=True, enable_model_summary=False, default_root_dir=str(outcome.OUT), num_sanity_val_steps=0)
loader = torch.utils.data.DataLoader(outcome.samples(), batch_size=8)
trainer.fit(module, loader, loader)
metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
outcome.tell(trainer.global_step, losses=module.losses, validated=module.validated, metrics=metrics, weights=outcome.checksum(module.net))
