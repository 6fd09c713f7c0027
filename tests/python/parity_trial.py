"""parity_cases.train_plain() as a Trial."""
import dtrain
import parity_cases as cases
import torch


class KeepsState(dtrain.Callback):
    """Writes the optimizer's state after each epoch."""

    def __init__(self, trial):
        self.trial = trial

    def on_epoch_end(self, batch, epoch):
        state = self.trial.optimizer.state_dict()
        if self.trial.context.is_main:
            torch.save(state, self.trial.context.run_dir / "optimizer.pt")


class Parity(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        self.case = case = dict(context.hyperparameters["case"])
        model = cases.make_model(case).train()
        self.model = context.wrap_model(torch.compile(model, backend=case["compile"]) if case["compile"] else model)
        self.optimizer = optimizer = cases.make_optimizer(case, self.model)
        if case["loads"]:
            weights, state = cases.trained_before(case)
            model.load_state_dict(weights)
            if case["loads"] == "before":
                optimizer.load_state_dict(state)
        schedule = cases.make_schedule(case, optimizer)
        context.wrap_optimizer(optimizer)
        if case["loads"]:
            if case["loads"] == "after":
                optimizer.load_state_dict(state)
            context.add_callback(KeepsState(self))
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
