"""What the benches on GPUs train, by dtrain and by PyTorch: GPT-2 124M on random tokens, ResNet-50 on random images."""
import torch

from files import write_safetensors, write_tokens
from models import Gpt, ResNet, batch_loss

TINY_GPT = {"tokens": 64, "length": 16, "layers": 1, "heads": 2, "width": 16}


def batch_loss_of(model, features, target):
    """Of a batch of Workload.data()."""
    return batch_loss(model, features / 255 if features.dtype == torch.uint8 else features, target)


class Workload:
    def __init__(self, name, tiny, batch):
        self.name, self.tiny = name, tiny
        self.optimizer = {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01} if name == "gpt2" else \
            {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
        self.batch = batch or (2 if tiny else 8 if name == "gpt2" else 64)  # of a rank
        self.length = TINY_GPT["length"] if tiny else 1024
        self.samples = 4 * self.batch if tiny else 256

    def model(self):
        torch.manual_seed(1)
        if self.name == "gpt2":
            model = Gpt(**(TINY_GPT if self.tiny else {}))
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.02)
            return model
        return ResNet((1, 1), 4, 10) if self.tiny else ResNet()

    def data(self):
        """Features and target, as dtrain's loader hands them to the model but for the type of images (uint8)."""
        generator = torch.Generator().manual_seed(3)
        if self.name == "gpt2":
            tokens = torch.randint(0, TINY_GPT["tokens"] if self.tiny else 50257, (self.samples * self.length + 1,),
                                   generator=generator)
            return tokens[:-1].view(-1, self.length), tokens[1:].view(-1, self.length)
        side = 32 if self.tiny else 224
        images = torch.randint(0, 256, (self.samples, 3, side, side), generator=generator, dtype=torch.uint8)
        return images, torch.randint(0, 10 if self.tiny else 1000, (self.samples,), generator=generator)

    def example(self):
        """Features as the model takes them."""
        features = self.data()[0][:2]
        return features / 255 if features.dtype == torch.uint8 else features

    def write(self, folder):
        """The data's files; the `data` section about them."""
        features, target = self.data()
        if self.name == "gpt2":
            write_tokens(torch.cat([features.flatten(), target.flatten()[-1:]]), folder / "tokens")
            return {"format": "tokens", "token_type": "int32", "sequence_length": self.length,
                    "training": {"file": "tokens"}}
        write_safetensors({"features": features, "target": target}, folder / "data.safetensors")
        return {"format": "safetensors", "training": {"file": "data.safetensors"}}
