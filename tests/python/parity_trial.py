"""parity_cases.train_plain() as a Trial."""
import dtrain
import parity_cases as cases
import torch


class Parity(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        self.case = case = dict(context.hyperparameters["case"])
        model = cases.make_model(case).train()
        self.model = context.wrap_model(model)
        optimizer = cases.make_optimizer(case, self.model)
        schedule = cases.make_schedule(case, optimizer)
        context.wrap_optimizer(optimizer)
        if schedule:
            context.wrap_lr_scheduler(schedule, every=case["every"])
        if case["clip_norm"]:
            context.clip_gradient_norm(case["clip_norm"])
        if case["clip_value"]:
            context.clip_gradient_value(case["clip_value"])

    def training_loader(self):
        return cases.make_loader(self.case)

    def train_batch(self, batch):
        loss = self.model(*batch)
        self.context.backward(loss)
        return {"loss": loss}
