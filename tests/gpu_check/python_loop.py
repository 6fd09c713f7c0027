"""What python_training.py and bench.py train in Python on dtrain's engine: a loop of its own in three lines, and a Trial."""
import dtrain
import torch
from models import batch_loss, make_optimizer
from parity import initial_model
from plain_loop import make_loader, train
from workloads import Workload, batch_loss_of


class Loop(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        self.case = dict(context.hyperparameters["case"])
        self.model = context.wrap_model(initial_model(self.case))
        context.wrap_optimizer(make_optimizer(self.model, self.case["optimizer"]))

    def training_loader(self):
        return make_loader(self.case, self.context.world_size)

    def train_batch(self, batch):
        loss = batch_loss(self.model, *batch)
        self.context.backward(loss)
        return {"loss": loss}


def check_loop(session, case):
    model = initial_model(case).to(session.device)
    optimizer = make_optimizer(model, case["optimizer"])
    run = torch.compile(model) if case["compile"] else model
    run, optimizer, loader = session.wrap(run, optimizer, make_loader(case, session.world_size))
    train(run, optimizer, loader, session.device)
    if session.is_main:
        torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, session.run_dir / "weights.pt")


def bench_loop(session, name, tiny, batch, steps, compile):
    workload = Workload(name, tiny, batch)
    model = workload.model().to(session.device)
    optimizer = make_optimizer(model, workload.optimizer)
    features, target = workload.data()
    if session.device.type == "cuda":
        features, target = features.pin_memory(), target.pin_memory()
    whole = batch * session.world_size
    chunks = list(zip(features.split(whole), target.split(whole)))
    run = torch.compile(model) if compile else model
    run, optimizer, loader = session.wrap(run, optimizer, [chunks[step % len(chunks)] for step in range(steps)])
    train(run, optimizer, loader, session.device, batch_loss_of)


if __name__ == "__main__":
    session = dtrain.init()
    settings = dict(session.hyperparameters)
    del settings["global_batch_size"]
    if "case" in settings:
        check_loop(session, dict(settings["case"]))
    else:
        bench_loop(session, **settings)
