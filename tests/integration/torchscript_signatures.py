"""TorchScript files with several inputs, outputs or losses, against one process of plain PyTorch on whole batches.

    torchscript_signatures.py BIN_FOLDER

Same initial weights, same batches, 10 optimizer steps, 1, 2 or 3 ranks. Compared is each parameter's relative L2 norm. With
ignored targets the ranks' batches count differently; plain PyTorch takes the mean over them all.
"""
import copy
import sys
from typing import Dict, NamedTuple, Optional, Tuple

import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

import parity_model
from harness import Build, Workplace, launch, write_experiment
from sample_order import epoch_order
from torchscript_models import experiment, random_weights, save_script

STEPS = 10
SAMPLES = 4  # of a rank's batch
MOST_RANKS = 3
SEED = 5
LIMIT = 1e-6
CLASSES = 5
COUNT = STEPS * MOST_RANKS * SAMPLES + 5
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}


class Outputs(NamedTuple):
    logits: torch.Tensor
    aux_logits: Optional[torch.Tensor]


class Auxiliary(nn.Module):
    """GoogLeNet's signature: a named tuple whose auxiliary scores are None in evaluation."""

    def __init__(self):
        super().__init__()
        self.stem, self.out, self.aux = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> Outputs:
        h = self.stem(x).tanh()
        aux: Optional[torch.Tensor] = None
        if self.training:
            aux = self.aux(h)
        return Outputs(self.out(h.relu()), aux)


class Segmentation(nn.Module):
    """FCN's signature: a dict of scores for each pixel."""

    def __init__(self):
        super().__init__()
        self.stem, self.out, self.aux = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, CLASSES, 1), nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        h = self.stem(x).tanh()
        return {"out": self.out(h), "aux": self.aux(h)}


class Masked(nn.Module):
    """DistilBERT's signature: token ids and a mask."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.to(self.out.weight.dtype).unsqueeze(-1)
        return self.out((self.embedding(ids) * weights).sum(1) / weights.sum(1).clamp(min=1.0))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 8), nn.Linear(3, 8)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (self.left(left) * self.right(right)).sum(1)


class Tokens(nn.Module):
    """A masked language model: scores [batch, positions, classes]."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(ids).tanh())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        h, state = self.lstm(x)
        return self.out(h[:, -1]), state


class Linear(nn.Module):
    def __init__(self, outputs: int, log: bool = False):
        super().__init__()
        self.hidden, self.out, self.log = nn.Linear(6, 8), nn.Linear(8, outputs), log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(self.hidden(x).tanh())
        return y.log_softmax(1) if self.log else y


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Dict[str, torch.Tensor]:
        scores = self.inner(x)
        return {"loss": F.cross_entropy(scores, target) + scores.square().mean(), "scores": scores}


def make_data():
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(COUNT, *shape, generator=generator)

    def below(most, *shape):
        return torch.randint(0, most, (COUNT, *shape), generator=generator)

    data = {"x": normal(6), "y": normal(3), "classes": below(CLASSES), "ids": below(11, 7), "mask": below(2, 7),
            "pixels": normal(2, 4, 5), "pixel_classes": below(CLASSES, 4, 5), "tokens": below(CLASSES, 7),
            "sequence": normal(7, 3), "labels": below(2, 4), "pair": below(2).float(), "numbers": normal(4) * 2,
            "probabilities": normal(4).softmax(1)}
    # The share of ignored targets differs from sample to sample; in some samples it is all of them.
    share = torch.rand(COUNT, generator=generator)
    share[::3] = 1
    data["pixel_classes"][torch.rand(COUNT, 4, 5, generator=generator) < share[:, None, None]] = 255
    data["tokens"][torch.rand(COUNT, 7, generator=generator) < share[:, None]] = -100
    return data


def weights():
    return torch.tensor([1.0, 2.5, 0.5, 0.0, 1.5])


def make_cases():
    """Model, loss of the experiment file, inputs, target, numbers of ranks, the loss in PyTorch; which part is trained."""
    ce = F.cross_entropy
    return {
        "named tuple": (Auxiliary(), {"kind": "cross_entropy", "output": "logits", "auxiliary": {"aux_logits": 0.4}}, ["x"],
                        "classes", (1, 3), lambda out, y: ce(out.logits, y) + 0.4 * ce(out.aux_logits, y)),
        "named tuple, main output only": (Auxiliary(), {"kind": "cross_entropy", "output": 0}, ["x"], "classes", (2,),
                                          lambda out, y: ce(out.logits, y)),
        "dict, each pixel": (Segmentation(), {"kind": "cross_entropy", "output": "out", "auxiliary": {"aux": 0.5},
                                              "ignore_index": 255}, ["pixels"], "pixel_classes", (1, 2, 3),
                             lambda out, y: ce(out["out"], y, ignore_index=255) + 0.5 * ce(out["aux"], y, ignore_index=255)),
        "mask": (Masked(), "cross_entropy", ["ids", "mask"], "classes", (1, 3), ce),
        "two towers": (Towers(), "bce_with_logits", ["x", "y"], "pair", (2,), F.binary_cross_entropy_with_logits),
        "ignored tokens": (Tokens(), {"kind": "cross_entropy", "ignore_index": -100, "class_dimension": "last"}, ["ids"],
                           "tokens", (1, 2, 3), lambda out, y: ce(out.flatten(0, 1), y.flatten())),
        "tuple": (Recurrent(), {"kind": "cross_entropy", "output": 0}, ["sequence"], "classes", (2,),
                  lambda out, y: ce(out[0], y)),
        "several labels": (Linear(4), "bce_with_logits", ["x"], "labels", (2,),
                           lambda out, y: F.binary_cross_entropy_with_logits(out, y.float())),
        "class weights": (Linear(CLASSES), {"kind": "cross_entropy", "class_weights": weights().tolist(),
                                            "label_smoothing": 0.1}, ["x"], "classes", (1, 2, 3),
                          lambda out, y: ce(out, y, weight=weights(), label_smoothing=0.1)),
        "smoothing": (Linear(CLASSES), {"kind": "cross_entropy", "label_smoothing": 0.2}, ["x"], "classes", (2,),
                      lambda out, y: ce(out, y, label_smoothing=0.2)),
        "smooth_l1": (Linear(4), {"kind": "smooth_l1", "beta": 0.5}, ["x"], "numbers", (2,),
                      lambda out, y: F.smooth_l1_loss(out, y, beta=0.5)),
        "l1": (Linear(4), "l1", ["x"], "numbers", (2,), F.l1_loss),
        "kl_div": (Linear(4, log=True), "kl_div", ["x"], "probabilities", (2,),
                   lambda out, y: F.kl_div(out, y, reduction="batchmean")),
        "head alone": (Linear(CLASSES), "cross_entropy", ["x"], "classes", (2,), F.cross_entropy, "out.*"),
        "own loss": (OwnLoss(), {"kind": "from_model", "output": "loss"}, ["x"], "classes", (3,), None),
    }


def train_plain(case, data, ranks):
    model, _, inputs, target, _, loss_of, *trained = case
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not trained or name.startswith("out."))
    optimizer = parity_model.make_optimizer(model, SGD)
    order = epoch_order(COUNT, SEED)
    losses = []
    for step in range(STEPS):
        chosen = order[step * ranks * SAMPLES : (step + 1) * ranks * SAMPLES]
        arguments = [data[name][chosen] for name in inputs]
        y = data[target][chosen]
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(*arguments), y) if loss_of else model(*arguments, y)["loss"]
        if loss.isfinite():  # nan: no target of the step counts
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return dict(model.state_dict()), losses


def train_ours(case, build, folder, data, ranks):
    model, loss, inputs, target, _, _, *trained = case
    folder.mkdir()
    save_script(copy.deepcopy(model), folder / "model.pt")
    tensors = {name: data[name].numpy() for name in (*inputs, target)}
    safetensors.numpy.save_file(tensors, folder / "data.safetensors")
    source = {"file": "data.safetensors", "features": inputs[0], "target": target}
    data_section = {"format": "safetensors", "training": source, "validation": source, "more_inputs": inputs[1:]}
    sections = experiment("model.pt", data_section, steps=STEPS, batch=ranks * SAMPLES, slots=ranks, loss=loss,
                          optimizer={**SGD, "trainable": trained[0]} if trained else SGD,
                          reproducibility={"experiment_seed": SEED},
                          optimizations={"matmul": "default", "operators": "default", "memory_format": "contiguous"})
    result = launch(build, write_experiment(folder / "experiment.yaml", **sections), folder / "run").expect(0)
    return parity_model.load(result.weights_file)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build = Build(sys.argv[1], "dtrain-worker")
    workplace = Workplace("torchscript-signatures")
    data = make_data()
    failures = runs = 0
    print(f"relative L2 difference of the worst tensor after {STEPS} steps (files: {workplace.path})")
    for title, case in make_cases().items():
        random_weights(case[0], seed=1)
        before = copy.deepcopy(case[0].state_dict())
        for ranks in case[4]:
            expected, losses = train_plain(case, data, ranks)
            ours = train_ours(case, build, workplace.path / f"{runs}", data, ranks)
            if all(torch.equal(ours[name], tensor) for name, tensor in before.items()):
                raise AssertionError(f"{title}: nothing was trained")
            worst, name = parity_model.worst_difference(ours, expected)
            good = worst <= LIMIT
            failures += not good
            runs += 1
            print(f"{title:30} {ranks} ranks {worst:10.2e}  {name}  loss {losses[-1]:.4f}{'' if good else '   TOO MUCH'}", flush=True)
    if failures:
        sys.exit(f"{failures} of {runs} runs differ too much")
    workplace.remove()


if __name__ == "__main__":
    main()
