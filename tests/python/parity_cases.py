"""Models, data, optimizers and schedules for parity.py, and training them in plain PyTorch.

A case is a dict, which travels as a hyperparameter: see DEFAULTS. "loads": the optimizer's state of an earlier training
is loaded "before" the schedule is made and the optimizer is wrapped, or "after".
"""
import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

STEPS = 20  # of most cases
BATCH = 7  # of all ranks: no number of ranks but 1 divides it
DEFAULTS = {"model": "mlp", "optimizer": ["SGD", {"lr": 0.05}], "groups": False, "schedule": None, "every": "step",
            "accumulate": 1, "loads": None, "clip_norm": None, "clip_value": None, "limit": None, "dtype": "float64",
            "steps": STEPS, "epochs": 2, "shuffle": False, "compile": None, "extra": 0}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))

    def forward(self, images, tokens, labels):
        return F.cross_entropy(self.layers(images.flatten(1)), labels)


class Cnn(nn.Module):
    """Group normalization: the statistics of batch normalization are those of a rank's part."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3),
                                      nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Linear(128, 5)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, images, tokens, labels):
        return F.cross_entropy(self.head(self.features(images).flatten(1)) * self.frozen, labels)


class Attention(nn.Module):
    """The operators that dtrain computes itself on CPUs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.projection = nn.Linear(16, 48)
        self.head = nn.Linear(16, 5)

    def forward(self, images, tokens, labels):
        query, key, value = self.projection(self.embedding(tokens)).unflatten(-1, (2, 24)).transpose(1, 2).chunk(3, -1)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(F.gelu(x, approximate="tanh").mean(1)), labels)


class OfImages(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, tokens, labels):
        return F.cross_entropy(self.model(images), labels)


class FixedNorms(OfImages):
    """Batch normalization keeps its statistics, as in fine-tuning."""

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class Language(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, tokens, labels):
        return self.model(input_ids=tokens, labels=tokens).loss


class Classifier(Language):
    def forward(self, images, tokens, labels):
        return self.model(input_ids=tokens, labels=labels).loss


class SequenceToSequence(Language):
    def forward(self, images, tokens, labels):
        return self.model(input_ids=tokens, labels=tokens.flip(1)).loss


def of_torchvision():
    from torchvision import models
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    from torchvision.models.resnet import BasicBlock, ResNet
    from torchvision.models.swin_transformer import SwinTransformer
    from torchvision.models.vision_transformer import VisionTransformer

    group_norm = functools.partial(nn.GroupNorm, 1)
    return {
        "resnet": OfImages(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5, norm_layer=group_norm)),
        "resnet_fixed": FixedNorms(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)),
        "squeezenet": OfImages(models.squeezenet1_1(num_classes=5, dropout=0)),
        "convnext": OfImages(ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=5)),
        "vit": OfImages(VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)),
        "swin": OfImages(SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], stochastic_depth_prob=0, num_classes=5)),
        "mobilenet": OfImages(models.mobilenet_v3_small(num_classes=5, dropout=0, norm_layer=group_norm)),
    }


def of_transformers():
    import transformers as hf

    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return {
        "gpt2": Language(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))),
        "bert": Classifier(hf.BertForSequenceClassification(hf.BertConfig(**small, num_labels=5))),
        "distilbert": Classifier(hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(vocab_size=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=5))),
        "llama": Language(hf.LlamaForCausalLM(hf.LlamaConfig(**small, num_key_value_heads=1))),
        "t5": SequenceToSequence(hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
                        pad_token_id=0))),
    }


def import_libraries():
    """What a process that is forked need not import."""
    import torchvision.models  # noqa: F401
    from transformers import (BertForSequenceClassification, DistilBertForSequenceClassification,  # noqa: F401
                              GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration)


class Together(nn.Module):
    """Twelve models at once. None has an effect on another; a parameter's name says whose it is."""

    def __init__(self):
        super().__init__()
        self.models = nn.ModuleDict({**of_torchvision(), **of_transformers()})
        if len(self.models) != 12:
            raise AssertionError(f"{len(self.models)} models")

    def forward(self, *batch):
        return sum(model(*batch) for model in self.models.values())


MODELS = {"mlp": Mlp, "cnn": Cnn, "attention": Attention, "libraries": Together}


def make_model(case):
    torch.manual_seed(1)
    # In double precision, a process's own path of erfinv, which trunc_normal_ uses, makes no difference that shows.
    torch.set_default_dtype(getattr(torch, case["dtype"]))
    model = MODELS[case["model"]]()
    torch.set_default_dtype(torch.float32)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.to(getattr(torch, case["dtype"]))


def make_optimizer(case, model):
    kind, settings = case["optimizer"]
    settings = {name: torch.tensor(value["tensor"]) if isinstance(value, dict) else value
                for name, value in settings.items()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    if case["groups"]:
        lr = float(settings["lr"])
        parameters = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.05},
                      {"params": [p for p in parameters if p.dim() == 1], "lr": lr / 3, "weight_decay": 0.0}]
        if case["limit"]:
            parameters[1]["max_gradient_norm"] = case["limit"]
    return getattr(torch.optim, kind)(parameters, **settings)


def make_schedule(case, optimizer):
    steps = case["steps"] // case["accumulate"] if case["every"] == "step" else case["epochs"]
    makers = {
        None: lambda: None,
        "step": lambda: lr_scheduler.StepLR(optimizer, max(1, steps // 4), gamma=0.5),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, steps),
        "one_cycle": lambda: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps + 1, cycle_momentum=False),
        "lambda": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "warm_up": lambda: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=max(1, steps // 4)),
                        lr_scheduler.CosineAnnealingLR(optimizer, steps)], milestones=[max(1, steps // 4)]),
    }
    return makers[case["schedule"]]()


def make_loader(case, drop_last=False):
    """`epochs` of them have "steps" batches. The last batch of each is smaller, where nothing is accumulated. `extra` samples
    come after them: a batch with fewer samples than ranks, which is left out."""
    batches = case["steps"] // case["epochs"]
    samples = BATCH * batches - (2 if case["accumulate"] == 1 and not case["extra"] else 0) + case["extra"]
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(samples, 3, 32, 32, generator=generator, dtype=torch.float64)
    tokens = torch.randint(1, 64, (samples, 8), generator=generator)
    labels = torch.randint(0, 5, (samples,), generator=generator)
    return DataLoader(TensorDataset(images.to(getattr(torch, case["dtype"])), tokens, labels), BATCH, drop_last=drop_last)


def trained_before(case):
    """The weights and the optimizer's state of an earlier training, which had learning rates of its own."""
    model = make_model(case)
    optimizer = make_optimizer(case, model)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.7
    for images, tokens, labels in list(make_loader(case))[:4]:
        optimizer.zero_grad()
        model(-images, tokens, labels).backward()
        optimizer.step()
    return model.state_dict(), optimizer.state_dict()


def initial_weights(case):
    model = make_model(case)
    if case["loads"]:
        model.load_state_dict(trained_before(case)[0])
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train_plain(case):
    """The weights after training in one process, and the optimizer's state."""
    model = make_model(case)
    optimizer = make_optimizer(case, model)
    if case["loads"]:
        weights, state = trained_before(case)
        model.load_state_dict(weights)
    if case["loads"] == "before":
        optimizer.load_state_dict(state)
    schedule = make_schedule(case, optimizer)
    if case["loads"] == "after":
        optimizer.load_state_dict(state)
    loader = make_loader(case, drop_last=case["extra"] > 0)
    model.train()
    for epoch in range(case["epochs"]):
        for index, batch in enumerate(loader):
            loss = model(*batch) / case["accumulate"]
            loss.backward()
            if (index + 1) % case["accumulate"]:
                continue
            if case["limit"]:
                nn.utils.clip_grad_norm_(optimizer.param_groups[1]["params"], case["limit"])
            if case["clip_norm"]:
                of = optimizer.param_groups[0]["params"] if case["limit"] else model.parameters()
                nn.utils.clip_grad_norm_(of, case["clip_norm"])
            if case["clip_value"]:
                nn.utils.clip_grad_value_(model.parameters(), case["clip_value"])
            optimizer.step()
            optimizer.zero_grad()
            if schedule and case["every"] == "step":
                schedule.step()
        if schedule and case["every"] == "epoch":
            schedule.step()
    return {name: p.detach() for name, p in model.named_parameters()}, optimizer.state_dict()
