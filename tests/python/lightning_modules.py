"""LightningModules of lightning_script.py that do what Lightning's own examples do: several optimizers, manual optimization,
fine-tuning. Their results do not depend on how a batch is divided."""
import lightning
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.nn import functional as F


class Gan(lightning.LightningModule):
    """domain_templates/generative_adversarial_net.py, whose noise here comes from the pictures.

    ``kind``: "toggled" as there; "plain", where a step leaves gradients in the other network that zero_grad() takes away;
    "critic", where the discriminator makes three steps for one of the generator's.
    """

    def __init__(self, kind):
        super().__init__()
        self.automatic_optimization = False
        self.kind = kind
        torch.manual_seed(1)
        self.generator = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 64), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(64, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def on_toggle(self, optimizer, on):
        if self.kind == "toggled":
            (self.toggle_optimizer if on else self.untoggle_optimizer)(optimizer)

    def step_of(self, optimizer, loss):
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch, batch_idx):
        real = batch[0].flatten(1)
        opt_g, opt_d = self.optimizers()
        noise = real[:, :8]
        ones, zeros = torch.ones(len(real), 1).type_as(real), torch.zeros(len(real), 1).type_as(real)
        loss = F.binary_cross_entropy_with_logits
        if self.kind != "critic" or batch_idx % 3 == 2:
            self.on_toggle(opt_g, True)
            self.step_of(opt_g, loss(self.discriminator(self.generator(noise)), ones))
            self.on_toggle(opt_g, False)
        self.on_toggle(opt_d, True)
        d_loss = (loss(self.discriminator(real), ones)
                  + loss(self.discriminator(self.generator(noise).detach()), zeros)) / 2
        self.step_of(opt_d, d_loss)
        self.on_toggle(opt_d, False)
        self.log("d_loss", d_loss, on_step=False, on_epoch=True, sync_dist=True)

    def validation_step(self, batch, batch_idx):
        scores = self.discriminator(batch[0].flatten(1))
        self.log("val_loss", F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)), sync_dist=True)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
        opt_d = torch.optim.SGD(self.discriminator.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01) \
            if self.kind == "critic" else torch.optim.NAdam(self.discriminator.parameters(), lr=2e-3)
        return [opt_g, opt_d], [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (opt_g, opt_d)]


class Accumulates(lightning.LightningModule):
    """One optimizer, of which a step takes three batches of the loader, with its own clipping."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        with optimizer.toggle_model(sync_grad=batch_idx % 3 == 2):
            self.manual_backward(loss / 3)
        if batch_idx % 3 == 2:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
            optimizer.step(closure=lambda: None)
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Unequal(Accumulates):
    """Ends with its parameters frozen; before, one rank calls backward() ``difference`` times more often for a batch."""

    def __init__(self, difference):
        super().__init__()
        self.difference = difference

    def training_step(self, batch, batch_idx):
        if batch_idx == 9:
            self.requires_grad_(False)
            return
        optimizer = self.optimizers()
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        for _ in range(1 + self.difference * (batch_idx == 4 and self.global_rank == 1)):
            self.manual_backward(loss, retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()


class Sums(lightning.LightningModule):
    """Adds two parameters, to which autograd gives the same gradient, and has buffers and parameters of several types."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.first, self.second = nn.Parameter(torch.randn(10)), nn.Parameter(torch.randn(10))
        self.wide = nn.Parameter(torch.randn(10, dtype=torch.float64))
        self.register_buffer("turns", torch.randn(4, dtype=torch.complex64))

    def training_step(self, batch, batch_idx):
        scores = self.net(batch[0]) + (self.first + self.second) + 1e-4 * self.wide.float()
        return F.cross_entropy(scores, batch[1]) + 0.01 * self.second.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class FineTunes(lightning.LightningModule):
    """domain_templates/computer_vision_fine_tuning.py: a callback adds the backbone to the optimizer later."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam([one for one in self.parameters() if one.requires_grad], lr=1e-2)


class Clips(FineTunes):
    """Clips a part of its gradients."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.head.parameters(), 0.02)


class SkipsBackward(FineTunes):
    """Has a backward() of its own, which leaves out every other batch."""

    def backward(self, loss):
        if self.trainer.fit_loop.batch_idx % 2:
            super().backward(loss)


class NeedsClosure(torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure):
        loss = closure()
        super().step()
        return loss


class Closes(FineTunes):
    """Has an optimizer that cannot step without a closure."""

    def configure_optimizers(self):
        return NeedsClosure(self.parameters(), lr=1e-2)


class TakesBatches(FineTunes):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0], 0)


class Steps(FineTunes):
    """Steps after every other batch."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer_closure()
        if batch_idx % 2:
            optimizer.step()

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class Branches(FineTunes):
    """Has a head for every other batch, and an optimizer that the engine does not compute."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(32, 10)

    def training_step(self, batch, batch_idx):
        head = self.other if batch_idx % 2 else self.head
        return F.cross_entropy(head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=1e-2, weight_decay=0.1)


class Seeded(lightning.LightningModule):
    """Its weights are those of seed_everything()."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Skips(FineTunes):
    """Trains on every other batch."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None


def module(name):
    """The module, and the callbacks that it needs."""
    if name.startswith("gan"):
        return Gan(name.partition(" ")[2]), []
    if name.startswith("unequal"):
        return Unequal(int(name.partition(" ")[2])), []
    return {"accumulates": lambda: (Accumulates(), []), "clips": lambda: (Clips(), []), "steps": lambda: (Steps(), []),
            "sums": lambda: (Sums(), []),
            "closes": lambda: (Closes(), []), "takes_batches": lambda: (TakesBatches(), []),
            "branches": lambda: (Branches(), []), "skips": lambda: (Skips(), []),
            "skips_backward": lambda: (SkipsBackward(), []), "seeded": lambda: (Seeded(), []),
            "fine_tunes": lambda: (FineTunes(), [BackboneFinetuning(1, lambda epoch: 1.5)])}[name]()
