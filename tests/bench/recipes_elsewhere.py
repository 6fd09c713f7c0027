"""Which of fifteen training recipes Lightning and Accelerate compute right on two ranks when they are written as their
documents show, without further care. docs/recipes.md has the table; optimization_parity.py and several_models.py compute the
same recipes with dtrain.

    recipes_elsewhere.py [RECIPE ...]      prints a line for each recipe and framework, as JSON

Needs lightning and accelerate besides the peers: pip install --target FOLDER lightning accelerate, then PYTHONPATH=FOLDER.
Reference: one process of plain PyTorch with the whole batch, the same weights, float64, 40 batches. "right": the relative
L2 difference of all parameters is at most 1e-6.
"""
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCHES, SAMPLES, RANKS = 40, 12, 2
LIMIT = 1e-6
IGNORED = -100


def data(seed=1):
    """x [n, 12], y [n] of 5 classes, tokens [n, 8] of which the first ranks ignore more, labels [n, 5] of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    n = BATCHES * SAMPLES
    x = torch.randn(n, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (n,), generator=generator)
    tokens = torch.randint(0, 5, (n, 8), generator=generator)
    # Samples of even number go to rank 0 with both samplers, or alternate batches do.
    share = torch.where(torch.arange(n) % 3 == 0, 0.8, 0.1)
    tokens[torch.rand(n, 8, generator=generator) < share[:, None]] = IGNORED
    tokens[:, 0] = y
    many = (torch.rand(n, 5, generator=generator) < 0.4).double()
    return x, y, tokens, many


class Net(nn.Module):
    def __init__(self, outputs=5, tied=False, branch=False):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.middle = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16)
        self.extra = nn.Linear(16, 16) if branch else None
        self.out = nn.Linear(16, outputs)
        if tied:
            self.again.weight = self.middle.weight

    def forward(self, x):
        h = self.again(self.middle(self.norm(self.first(x)).tanh()).tanh()).tanh()
        if self.extra is not None and (x[:, 0] > 1.4).any():
            h = h + (x[:, :1] > 1.4) * self.extra(h)
        return self.out(h)


def classify(model, batch, number):
    return F.cross_entropy(model(batch[0]), batch[1])


def per_token(model, batch, number):
    scores = model(batch[0]).view(-1, 8, 5).transpose(1, 2)
    return F.cross_entropy(scores, batch[2], ignore_index=IGNORED)


def per_pixel(model, batch, number):
    return F.cross_entropy(model(batch[0]).view(-1, 8, 5).transpose(1, 2), batch[1][:, None].expand(-1, 8))


def penalised(model, batch, number):
    x = batch[0].clone().requires_grad_()
    scores = model(x)
    slope = torch.autograd.grad(scores.sum(), x, create_graph=True)[0]
    return F.cross_entropy(scores, batch[1]) + 0.1 * slope.square().sum(1).mean()


def freezing(model, batch, number):
    inner = getattr(model, "module", model)
    for parameter in inner.first.parameters():
        parameter.requires_grad_(15 < number <= 30)
    return classify(model, batch, number)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def grouped(model):
    rest = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.AdamW([{"params": rest}, {"params": [p for name, p in model.named_parameters() if name.endswith("bias")],
                                                 "weight_decay": 0.0, "lr": 5e-3}], lr=2e-3)


RECIPES = {
    "parameter groups": {"optimizer": grouped},
    "another optimizer (RAdam)": {"optimizer": lambda m: torch.optim.RAdam(m.parameters(), lr=2e-3)},
    "one-cycle, 4 batches a step": {"optimizer": sgd, "k": 4, "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, 0.05, BATCHES // 4, cycle_momentum=False)},
    "uneven tokens": {"loss": per_token, "outputs": 40},
    "average of the weights (EMA)": {"ema": 0.9},
    "clipping by value": {"optimizer": sgd, "clip_value": 0.01},
    "freeze and unfreeze": {"optimizer": sgd, "loss": freezing},
    "two losses": {"optimizer": sgd, "two": True},
    "GAN": {"gan": True},
    "parameters that some batches do not use": {"branch": True},
    "reduce on plateau": {"optimizer": sgd, "plateau": True},
    "gradient penalty": {"loss": penalised},
    "per-pixel targets": {"loss": per_pixel, "outputs": 40},
    "multi-label targets": {"loss": lambda m, b, n: F.binary_cross_entropy_with_logits(m(b[0]), b[3])},
    "tied weights": {"tied": True},
}


def make_model(recipe):
    torch.manual_seed(0)
    if recipe.get("gan"):
        return nn.ModuleDict({"generator": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12)),
                              "discriminator": nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))}).double()
    return Net(recipe.get("outputs", 5), recipe.get("tied", False), recipe.get("branch", False)).double()


def make_plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.02, threshold_mode="abs")


def judged(scores, target):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def noise_of(batch):
    return batch[0][:, :8]


def validation_loss(model, rows):
    with torch.no_grad():
        return F.cross_entropy(model(rows[0]), rows[1])



def reference(recipe):
    model = make_model(recipe)
    rows = data()
    loss_of = recipe.get("loss", classify)
    k = recipe.get("k", 1)
    batches = [tuple(t[i * SAMPLES:(i + 1) * SAMPLES] for t in rows) for i in range(BATCHES)]
    if recipe.get("gan"):
        generator, score = model["generator"], model["discriminator"]
        of = {name: torch.optim.Adam(model[name].parameters(), lr=2e-3) for name in model}
        for batch in batches:
            fake = generator(noise_of(batch))
            (judged(score(batch[0]), 1) + judged(score(fake.detach()), 0)).backward()
            of["discriminator"].step()
            model.zero_grad()
            judged(score(fake), 1).backward()
            of["generator"].step()
            model.zero_grad()
        return model.state_dict()
    optimizer = recipe.get("optimizer", adamw)(model)
    schedule = recipe["schedule"](optimizer) if "schedule" in recipe else None
    plateau = make_plateau(optimizer) if recipe.get("plateau") else None
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(recipe["ema"])) if "ema" in recipe else None
    for start in range(0, BATCHES, k):
        window = batches[start:start + k]
        tokens = sum((b[2] != IGNORED).sum() for b in window)
        for offset, batch in enumerate(window):
            number = start + offset + 1
            if loss_of is per_token:
                scores = model(batch[0]).view(-1, 8, 5).transpose(1, 2)
                (F.cross_entropy(scores, batch[2], ignore_index=IGNORED, reduction="sum") / tokens).backward()
            else:
                loss = loss_of(model, batch, number) / k
                if recipe.get("two"):
                    loss = loss + model(batch[0]).abs().mean()
                loss.backward()
        if "clip_value" in recipe:
            nn.utils.clip_grad_value_(model.parameters(), recipe["clip_value"])
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
        if average:
            average.update_parameters(model)
        if plateau and (start + 1) % 5 == 0:
            plateau.step(validation_loss(model, rows))
    return (average.module if average else model).state_dict()


def with_lightning(recipe):
    import lightning
    from lightning.pytorch.callbacks import EMAWeightAveraging

    loss_of = recipe.get("loss", classify)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model(recipe)
            self.automatic_optimization = not (recipe.get("gan") or recipe.get("two"))

        def training_step(self, batch, index):
            if recipe.get("gan"):
                generator, score = self.model["generator"], self.model["discriminator"]
                of_generator, of_discriminator = self.optimizers()
                fake = generator(noise_of(batch))
                self.toggle_optimizer(of_discriminator)
                self.manual_backward(judged(score(batch[0]), 1) + judged(score(fake.detach()), 0))
                of_discriminator.step()
                of_discriminator.zero_grad()
                self.untoggle_optimizer(of_discriminator)
                self.toggle_optimizer(of_generator)
                self.manual_backward(judged(score(generator(noise_of(batch))), 1))
                of_generator.step()
                of_generator.zero_grad()
                self.untoggle_optimizer(of_generator)
                return None
            if recipe.get("two"):
                optimizer = self.optimizers()
                self.manual_backward(loss_of(self.model, batch, index + 1))
                self.manual_backward(self.model(batch[0]).abs().mean())
                optimizer.step()
                optimizer.zero_grad()
                return None
            return loss_of(self.model, batch, index + 1)

        def validation_step(self, batch, index):
            self.log("loss", F.cross_entropy(self.model(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self):
            if recipe.get("gan"):
                return [torch.optim.Adam(self.model[name].parameters(), lr=2e-3) for name in ("generator", "discriminator")]
            optimizer = recipe.get("optimizer", adamw)(self.model)
            if "schedule" in recipe:
                return [optimizer], [{"scheduler": recipe["schedule"](optimizer), "interval": "step"}]
            if recipe.get("plateau"):
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make_plateau(optimizer), "monitor": "loss",
                                                                 "interval": "step", "frequency": 5}}
            return optimizer

    rows = TensorDataset(*data())
    module = Module()
    callbacks = [EMAWeightAveraging(decay=recipe["ema"])] if "ema" in recipe else []
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks, precision="64-true",
        accumulate_grad_batches=recipe.get("k", 1), gradient_clip_val=recipe.get("clip_value"),
        gradient_clip_algorithm="value" if "clip_value" in recipe else None, num_sanity_val_steps=0, use_distributed_sampler=False,
        val_check_interval=5 if recipe.get("plateau") else None, limit_val_batches=None if recipe.get("plateau") else 0)
    # The trainer's own sampler shuffles, which the reference cannot repeat.
    sampler = lambda: DistributedSampler(rows, RANKS, int(os.environ["RANK"]), shuffle=False)
    loader = lambda: DataLoader(rows, batch_size=SAMPLES // RANKS, sampler=sampler())
    trainer.fit(module, loader(), loader() if recipe.get("plateau") else None)
    return {name.removeprefix("model."): value for name, value in module.state_dict().items()}


def with_accelerate(recipe):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=recipe.get("k", 1))
    loss_of = recipe.get("loss", classify)
    loader = accelerator.prepare(DataLoader(TensorDataset(*data()), batch_size=SAMPLES // RANKS))
    if recipe.get("gan"):
        models = make_model(recipe)
        optimizers = {name: torch.optim.Adam(models[name].parameters(), lr=2e-3) for name in models}
        generator, score, of_generator, of_discriminator = accelerator.prepare(
            models["generator"], models["discriminator"], optimizers["generator"], optimizers["discriminator"])
        for batch in loader:
            fake = generator(noise_of(batch))
            of_discriminator.zero_grad()
            accelerator.backward(judged(score(batch[0]), 1) + judged(score(fake.detach()), 0))
            of_discriminator.step()
            of_generator.zero_grad()
            accelerator.backward(judged(score(fake), 1))
            of_generator.step()
        return models.state_dict()
    plain = make_model(recipe)
    model, optimizer = accelerator.prepare(plain, recipe.get("optimizer", adamw)(plain))
    schedule = accelerator.prepare(recipe["schedule"](optimizer)) if "schedule" in recipe else None
    plateau = accelerator.prepare(make_plateau(optimizer)) if recipe.get("plateau") else None
    average = torch.optim.swa_utils.AveragedModel(
        plain, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(recipe["ema"])) if "ema" in recipe else None
    check = accelerator.prepare(DataLoader(TensorDataset(*data()), batch_size=SAMPLES // RANKS))
    for index, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = loss_of(model, batch, index + 1)
            accelerator.backward(loss)
            if recipe.get("two"):
                accelerator.backward(model(batch[0]).abs().mean())
            if "clip_value" in recipe:
                accelerator.clip_grad_value_(model.parameters(), recipe["clip_value"])
            optimizer.step()
            if schedule:
                schedule.step()
            optimizer.zero_grad()
        if average:
            average.update_parameters(plain)
        if plateau and (index + 1) % 5 == 0:
            losses = [validation_loss(model, b) for b in check]
            plateau.step(accelerator.reduce(torch.stack(losses).mean(), "mean"))
    return (average.module if average else plain).state_dict()


FRAMEWORKS = {"lightning": with_lightning, "accelerate": with_accelerate}


def worst_difference(got, expected):
    worst = 0.0
    for name, tensor in expected.items():
        norm = tensor.double().norm().item()
        worst = max(worst, (got[name].double() - tensor.double()).norm().item() / (norm or 1))
    return worst


def work(framework, name, out):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    state = FRAMEWORKS[framework](RECIPES[name])
    torch.save(state, pathlib.Path(out) / f"{os.environ.get('RANK', '0')}.pt")


def main():
    if sys.argv[1:2] == ["--work"]:
        return work(*sys.argv[2:])
    torch.set_num_threads(1)
    for name, recipe in RECIPES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        expected = reference(recipe)
        for framework in FRAMEWORKS:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
                           __file__, "--work", framework, name, folder]
                line = {"recipe": name, "framework": framework}
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=180,
                                          env={**os.environ, "OMP_NUM_THREADS": "1"})
                    if done.returncode:
                        errors = [l for l in done.stderr.splitlines() if "Error" in l and "ChildFailedError" not in l]
                        line["error"] = (errors or done.stderr.splitlines() or ["no output"])[0].split("]:", 1)[-1].strip()[:200]
                    else:
                        line["difference"] = worst_difference(torch.load(f"{folder}/0.pt"), expected)
                        line["right"] = line["difference"] <= LIMIT
                except subprocess.TimeoutExpired:
                    line["error"] = "did not end in 180 s"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
