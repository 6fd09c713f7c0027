"""A trial that does what its hyperparameter "what" says."""
import sys

import dtrain
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Mistaken(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        self.what = context.hyperparameters["what"]
        self.model = context.wrap_model(nn.LazyLinear(3) if self.what == "lazy" else nn.Linear(6, 3))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        if self.what == "learning loss":
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        context.wrap_optimizer(optimizer)
        self.hooks = {"before": 0, "after": 0}  # how often they were called
        if self.what == "hooks":
            optimizer.register_step_pre_hook(lambda *of: self.note("before", of == (optimizer, (optimizer,), {})))
            optimizer.register_step_post_hook(lambda *of: self.note("after", of == (optimizer, (optimizer,), {})))
        if self.what == "cycled momentum":
            context.wrap_lr_scheduler(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100))
        self.batches = 0

    def note(self, which, is_right):
        self.hooks[which] += is_right

    def training_loader(self):
        data = TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,)))
        return DataLoader(data, 16 if self.what == "batch size" else self.context.global_batch_size)

    def train_batch(self, batch):
        self.batches += 1
        if self.what == "exception" and self.batches == 3 and self.context.rank == 1:
            raise ValueError("the third batch is bad")
        if self.what.startswith("exit ") and self.batches == 3:
            code = self.what.removeprefix("exit ")
            sys.exit(int(code) if code.isdigit() else code)
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        if self.what == "save" and self.batches == 3 and self.context.rank == 1:
            self.context.save_checkpoint()
        return {"loss": loss, **self.hooks}
