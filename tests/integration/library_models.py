"""Models of torchvision and transformers as TorchScript files, each trained by `model:` and by plain PyTorch, whose losses agree.

    library_models.py BIN_FOLDER [WORD ...]      the models whose names have one of these words; default: all

Small sizes, random weights, no dropout; 12 steps on the same batches, 1 and 2 ranks (and 3). PyTorch trains the Python module, rank by
rank: batch norm normalises the samples of one rank. Where targets are ignored, the loss is the mean over those of all ranks that count.
The models of transformers are traced, because torch.jit.script() does not take them; the others are scripted.
"""
import copy
import sys
import time
import warnings
from typing import Callable, NamedTuple, Optional, Tuple

import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import GoogLeNet, ResNet
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.resnet import BasicBlock
from torchvision.models.segmentation.fcn import FCN, FCNHead
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForSequenceClassification
from transformers import logging as transformers_logging

from harness import Build, Workplace, launch, write_experiment
from sample_order import epoch_order
from torchscript_models import experiment, save_script

STEPS = 12
SEED = 5
LIMIT = 1e-6
CLASSES = 5
WORDS = 97  # of the vocabulary
LENGTH = 12  # of a text
IGNORED_PIXEL = 255
IGNORED_WORD = -100

SIDE = 48  # pixels of a picture

transformers_logging.set_verbosity_error()
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
warnings.filterwarnings("ignore", message="'aux_classifier' was found in ScriptModule constants")


class TwoTowers(nn.Module):
    """Pictures and texts: the logit of each pair."""

    def __init__(self):
        super().__init__()
        self.picture = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=16)
        self.text = nn.EmbeddingBag(WORDS, 16, mode="mean")

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return (self.picture(picture) * self.text(text)).sum(1)


class Lstm(nn.Module):
    """The scores, and the state that goes on to the next piece of text."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.out = nn.Linear(24, CLASSES)

    def forward(self, text: torch.Tensor) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        h, state = self.lstm(self.embedding(text))
        return self.out(h[:, -1]), state


def fcn(with_auxiliary):
    """torchvision's FCN with a smaller backbone."""
    backbone = ResNet(BasicBlock, [1, 1, 1, 1])
    layers = {"layer4": "out", **({"layer3": "aux"} if with_auxiliary else {})}
    heads = [FCNHead(512, CLASSES), FCNHead(256, CLASSES) if with_auxiliary else None]
    for head in heads:
        if head is not None:
            head[3].p = 0.0  # dropout
    return FCN(IntermediateLayerGetter(backbone, layers), *heads)


def distilbert():
    return DistilBertForSequenceClassification(DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=LENGTH, n_layers=2, n_heads=4, dim=32, hidden_dim=64, dropout=0.0,
        attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=CLASSES, torchscript=True))


def bert():
    return BertForMaskedLM(BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, torchscript=True))


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: list  # names in the data
    target: str
    loss: object  # of the experiment file
    loss_of: Callable  # the same in PyTorch, from output and target
    samples: int  # of a rank's batch
    lr: float = 0.01
    ranks: tuple = (1, 2)
    ignored: Optional[int] = None
    traced: bool = False


def cases():
    ce, bce = F.cross_entropy, F.binary_cross_entropy_with_logits

    def pixels(out, y):
        return ce(out, y, ignore_index=IGNORED_PIXEL)

    per_pixel = {"kind": "cross_entropy", "output": "out", "ignore_index": IGNORED_PIXEL}
    return {
        "GoogLeNet": Case(
            lambda: GoogLeNet(CLASSES, init_weights=True, dropout=0.0, dropout_aux=0.0), ["pictures"], "class",
            {"kind": "cross_entropy", "output": "logits", "auxiliary": {"aux_logits2": 0.3, "aux_logits1": 0.3}},
            lambda out, y: ce(out.logits, y) + 0.3 * ce(out.aux_logits2, y) + 0.3 * ce(out.aux_logits1, y), samples=2),
        "GoogLeNet without auxiliary outputs": Case(
            lambda: GoogLeNet(CLASSES, aux_logits=False, init_weights=True, dropout=0.0), ["pictures"], "class",
            {"kind": "cross_entropy", "output": "logits"}, ce, samples=2),
        "FCN": Case(lambda: fcn(True), ["pictures"], "pixel_classes", {**per_pixel, "auxiliary": {"aux": 0.5}},
                    lambda out, y: pixels(out["out"], y) + 0.5 * pixels(out["aux"], y), samples=2, lr=0.002, ignored=IGNORED_PIXEL),
        "FCN without auxiliary output": Case(lambda: fcn(False), ["pictures"], "pixel_classes", per_pixel,
                                             lambda out, y: pixels(out["out"], y), samples=2, lr=0.002,
                                             ignored=IGNORED_PIXEL),
        "ResNet, several labels": Case(lambda: ResNet(BasicBlock, [2, 2, 2, 2], num_classes=4), ["small_pictures"], "labels",
                                       "bce_with_logits", lambda out, y: bce(out, y.float()), samples=4),
        "two towers": Case(TwoTowers, ["small_pictures", "text"], "pair", "bce_with_logits",
                           lambda out, y: bce(out, y.float()), samples=4),
        "DistilBERT": Case(distilbert, ["text", "mask"], "class", {"kind": "cross_entropy", "output": 0},
                           lambda out, y: ce(out[0], y), samples=4, lr=0.05, traced=True),
        "BERT, masked language model": Case(
            bert, ["text", "mask"], "words", {"kind": "cross_entropy", "output": 0, "class_dimension": "last",
                                              "ignore_index": IGNORED_WORD},
            lambda out, y: ce(out[0].flatten(0, 1), y.flatten()), samples=4, lr=0.05, ignored=IGNORED_WORD, traced=True),
        "LSTM": Case(Lstm, ["text"], "class", {"kind": "cross_entropy", "output": 0}, lambda out, y: ce(out[0], y), samples=4,
                     lr=0.05, ranks=(1, 2, 3)),
    }


def make_data(case):
    """Of the fields that the case uses, enough for all its ranks."""
    count = STEPS * max(case.ranks) * case.samples + 3
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(count, *shape, generator=generator)

    def below(most, *shape):
        return torch.randint(0, most, (count, *shape), generator=generator)

    lengths = 3 + below(LENGTH - 2)
    makers = {"pictures": lambda: normal(3, SIDE, SIDE), "small_pictures": lambda: normal(3, 32, 32), "text": lambda: below(WORDS, LENGTH),
              "mask": lambda: (torch.arange(LENGTH) < lengths[:, None]).long(), "class": lambda: below(CLASSES),
              "labels": lambda: below(2, 4), "pair": lambda: below(2), "words": lambda: below(WORDS, LENGTH),
              "pixel_classes": lambda: below(CLASSES, SIDE, SIDE)}
    data = {name: makers[name]() for name in (*case.inputs, case.target)}
    if case.ignored is not None:  # another share of each sample
        target = data[case.target]
        share = torch.rand(count, generator=generator).reshape(-1, *[1] * (target.dim() - 1))
        target[torch.rand(target.shape, generator=generator) < share] = case.ignored
    return data


def train_plain(case, model, data, ranks):
    """The loss of each step."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9)
    order = torch.tensor(epoch_order(len(data[case.target]), SEED))
    losses = []
    for batch in order[: STEPS * ranks * case.samples].reshape(STEPS, ranks, case.samples):
        targets = [data[case.target][rows] for rows in batch]
        counts = [1 if case.ignored is None else (y != case.ignored).sum().item() for y in targets]
        optimizer.zero_grad()
        whole = 0.0
        for rows, y, count in zip(batch, targets, counts):
            loss = case.loss_of(model(*[data[name][rows] for name in case.inputs]), y)
            (loss * count).backward()
            whole += loss.item() * count / sum(counts)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / sum(counts))
        losses.append(whole)
        optimizer.step()
    return losses


def train_ours(case, build, folder, data, ranks):
    safetensors_file = folder / "data.safetensors"
    if not safetensors_file.exists():
        safetensors.numpy.save_file({name: tensor.numpy() for name, tensor in data.items()}, safetensors_file)
    source = {"file": str(safetensors_file), "features": case.inputs[0], "target": case.target}
    sections = experiment(folder / "model.pt", {"format": "safetensors", "training": source, "more_inputs": case.inputs[1:]},
                          steps=STEPS, batch=ranks * case.samples, slots=ranks, loss=case.loss,
                          optimizer={"kind": "sgd", "lr": case.lr, "momentum": 0.9},
                          reproducibility={"experiment_seed": SEED}, scheduling_unit=1,
                          optimizations={"matmul": "default", "operators": "default", "memory_format": "contiguous"})
    sections["searcher"].pop("metric")
    result = launch(build, write_experiment(folder / f"{ranks}.yaml", **sections), folder / f"run-{ranks}").expect(0)
    return [line["metrics"]["loss"] for line in result.metrics("training")]


def main():
    torch.set_num_threads(1)
    build = Build(sys.argv[1], "dtrain-worker")
    workplace = Workplace("library-models")
    chosen = {title: case for title, case in cases().items() if not sys.argv[2:] or any(word in title for word in sys.argv[2:])}
    failures = runs = 0
    print(f"largest relative difference of a loss in {STEPS} steps (files: {workplace.path})")
    for number, (title, case) in enumerate(chosen.items()):
        begun = time.monotonic()
        torch.manual_seed(number)
        model = case.make()
        data = make_data(case)
        folder = workplace.path / str(number)
        folder.mkdir()
        example = tuple(data[name][: case.samples] for name in case.inputs) if case.traced else None
        save_script(copy.deepcopy(model), folder / "model.pt", example)
        for ranks in case.ranks:
            expected = train_plain(case, model, data, ranks)
            ours = train_ours(case, build, folder, data, ranks)
            assert len(ours) == STEPS, f"{title}: {len(ours)} losses"
            assert len(set(expected)) > STEPS / 2, f"{title}: the loss does not change: {expected}"
            worst, step = max((abs(got - loss) / abs(loss), step) for step, (got, loss) in enumerate(zip(ours, expected)))
            good = worst <= LIMIT
            failures += not good
            runs += 1
            print(f"{title:36} {ranks} ranks {worst:10.2e} at step {step + 1:2}, loss {expected[0]:.4f} to {expected[-1]:.4f}"
                  f"{'' if good else '   TOO MUCH'}", flush=True)
        print(f"{title:36} {'traced' if case.traced else 'scripted'}, {time.monotonic() - begun:.1f} s", flush=True)
    if failures:
        sys.exit(f"{failures} of {runs} runs differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
