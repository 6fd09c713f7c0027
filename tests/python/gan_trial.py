"""A GAN in Python: two models, an optimizer each, two optimizer steps in a batch. For several_models.py, which trains the
same in plain PyTorch."""
import dtrain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH = 12  # of all ranks
BATCHES = 20
NOISE = 6


def make_models():
    torch.manual_seed(3)
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 8))
    return generator.double(), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def make_optimizers(generator, discriminator):
    biases = [p for p in discriminator.parameters() if p.dim() == 1]
    weights = [p for p in discriminator.parameters() if p.dim() > 1]
    return (torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
            torch.optim.AdamW([{"params": weights},
                               {"params": biases, "weight_decay": 0.0, "max_gradient_norm": 0.05}], lr=1e-3))


def make_loader():
    generator = torch.Generator().manual_seed(4)
    real = torch.randn(BATCH * BATCHES, 8, generator=generator, dtype=torch.float64) + 0.5
    noise = torch.randn(BATCH * BATCHES, NOISE, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(real, noise), BATCH)


def loss_of(scores, target):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def train_plain():
    models = make_models()
    generator, discriminator = models
    optimizers = make_optimizers(*models)
    for real, noise in make_loader():
        fake = generator(noise)
        optimizers[1].zero_grad()
        (loss_of(discriminator(real), 1) + loss_of(discriminator(fake.detach()), 0)).backward()
        nn.utils.clip_grad_norm_(optimizers[1].param_groups[1]["params"], 0.05)
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss_of(discriminator(fake), 1).backward()
        optimizers[0].step()
    return {f"{name}.{key}": tensor for name, model in zip(("generator", "discriminator"), models)
            for key, tensor in model.state_dict().items()}


class Gan(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        generator, discriminator = make_models()
        self.generator = context.wrap_model(generator, "generator")
        self.discriminator = context.wrap_model(discriminator, "discriminator")
        for optimizer, name in zip(make_optimizers(generator, discriminator), ("generator", "discriminator")):
            context.wrap_optimizer(optimizer, name)

    def training_loader(self):
        return make_loader()

    def train_batch(self, batch):
        real, noise = batch
        fake = self.generator(noise)
        judged = loss_of(self.discriminator(real), 1) + loss_of(self.discriminator(fake.detach()), 0)
        self.context.backward(judged, models=["discriminator"])
        self.context.step()
        fools = loss_of(self.discriminator(fake), 1)
        self.context.backward(fools, models=["generator"])
        self.context.log_image("generated", fake.view(-1, 1, 2, 4))
        return {"loss": judged, "generator_loss": fools}
