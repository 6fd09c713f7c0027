"""Metrics of `model:` experiments, and the loss ctc, against what Python computes of the same weights over all samples at once.

    torchscript_metrics.py BIN_FOLDER [TestClass[.test] ...]

Validation has a number of samples that the ranks cannot divide evenly, and where targets are ignored, some batches have none that
counts.
"""
import math

import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

from sample_order import epoch_order
from torchscript_models import ScriptTest, experiment, main, random_weights, save_script

SAMPLES = 23
CLASSES = 5


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(ids).tanh())


class Pixels(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(2, outputs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class Vector(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.out = nn.Linear(6, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


class Speech(nn.Module):
    """Log-probabilities [samples, steps, classes]; what lies behind a sample's last step is not looked at."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        inside = (torch.arange(x.shape[1]).unsqueeze(0) < steps.unsqueeze(1)).unsqueeze(2)
        return self.out(torch.where(inside, x, torch.zeros_like(x))).log_softmax(2)


def of_classes(scores, target):
    """Scores [targets, classes] of the targets that count."""
    guess = scores.argmax(1)
    f1, iou = [], []
    for number in range(scores.shape[1]):
        right = ((guess == number) & (target == number)).sum().item()
        either = ((guess == number) | (target == number)).sum().item()
        if either:
            iou.append(right / either)
            f1.append(2 * right / (either + right))
    best = scores.topk(2, 1).indices
    return {"accuracy": (guess == target).double().mean().item(), "f1": sum(f1) / len(f1), "iou": sum(iou) / len(iou),
            "top_2_accuracy": (best == target[:, None]).any(1).double().mean().item(),
            "perplexity": math.exp(F.cross_entropy(scores.double(), target).item())}


def area(scores, positive):
    pairs = [(p > n) + (p == n) / 2 for p in scores[positive].tolist() for n in scores[~positive].tolist()]
    return sum(pairs) / len(pairs)


class ValidationTest(ScriptTest):
    def validate(self, model, loss, metrics, tensors, ranks, more=(), code=0):
        """The metrics of one validation by the weights after one step, and these weights' model; or what an error says."""
        folder = self.work.new_run()
        folder.mkdir()
        save_script(random_weights(model, seed=1), folder / "model.pt")
        safetensors.numpy.save_file({name: tensor.numpy() for name, tensor in tensors.items()}, folder / "data.safetensors")
        source = {"file": str(folder / "data.safetensors"), "features": "x", "target": "y"}
        data = {"format": "safetensors", "training": source, "validation": source, "more_inputs": list(more)}
        sections = experiment(folder / "model.pt", data, steps=1, batch=4 * ranks, slots=ranks, loss=loss,
                              reproducibility={"experiment_seed": 3}, **({"metrics": metrics} if metrics is not None else {}))
        result = self.launched(sections).expect(code)
        if code:
            return result.output
        line = result.metrics("validation")[-1]
        self.assertEqual(line["samples"], SAMPLES)
        return line["metrics"], torch.jit.load(str(result.weights_file.with_name("model.pt"))).eval(), result

    def compare(self, got, expected):
        self.assertEqual(set(got), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(got[name], value, delta=1e-6 * max(1, abs(value)), msg=name)


class Metrics(ValidationTest):
    def test_tokens_that_count(self):
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(0, 11, (SAMPLES, 7), generator=generator)
        target = torch.randint(0, CLASSES - 1, (SAMPLES, 7), generator=generator)  # one class is nowhere
        share = torch.rand(SAMPLES, generator=generator)
        share[::3] = 1
        target[torch.rand(SAMPLES, 7, generator=generator) < share[:, None]] = -100
        loss = {"kind": "cross_entropy", "ignore_index": -100, "class_dimension": "last"}
        names = ["f1", "iou", "accuracy", "top_2_accuracy", "perplexity"]
        counted = target != -100
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                got, model, result = self.validate(Tokens(), loss, names, {"x": ids, "y": target}, ranks)
                with torch.no_grad():
                    scores = model(ids)[counted]
                    expected = of_classes(scores, target[counted])
                    expected["loss"] = F.cross_entropy(scores, target[counted]).item()
                self.compare(got, expected)
                training = result.metrics("training")[-1]["metrics"]
                order = epoch_order(SAMPLES, 3)[: 4 * ranks]
                before = random_weights(Tokens(), seed=1)
                whole = F.cross_entropy(before(ids[order]).flatten(0, 1), target[order].flatten())
                self.assertEqual(set(training), {"loss", "accuracy"})
                self.assertAlmostEqual(training["loss"], whole.item(), delta=1e-6)

    def test_pixels_and_class_weights(self):
        generator = torch.Generator().manual_seed(4)
        x = torch.randn(SAMPLES, 2, 4, 5, generator=generator)
        target = torch.randint(0, CLASSES, (SAMPLES, 4, 5), generator=generator)
        weights = [1.0, 2.5, 0.0, 0.5, 1.0]
        loss = {"kind": "cross_entropy", "class_weights": weights}
        for ranks in (1, 3):
            got, model, _ = self.validate(Pixels(CLASSES), loss, ["iou", "perplexity"], {"x": x, "y": target}, ranks)
            with torch.no_grad():
                scores = model(x).permute(0, 2, 3, 1).flatten(0, 2)
            expected = of_classes(scores, target.flatten())
            whole = F.cross_entropy(scores, target.flatten(), weight=torch.tensor(weights)).item()
            self.compare(got, {"loss": whole, "iou": expected["iou"], "perplexity": expected["perplexity"]})

    def test_labels(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(SAMPLES, 6, generator=generator)
        target = torch.randint(0, 2, (SAMPLES, 3), generator=generator)
        for ranks in (2, 3):
            got, model, _ = self.validate(Vector(3), "bce_with_logits", ["f1", "iou", "accuracy"], {"x": x, "y": target}, ranks)
            with torch.no_grad():
                scores = model(x)
            each = [of_classes(torch.stack([-scores[:, i], scores[:, i]], 1), target[:, i]) for i in range(3)]
            guess, actual = scores > 0, target > 0
            right, either = (guess & actual).sum(0).double(), (guess | actual).sum(0).double()
            self.compare(got, {"loss": F.binary_cross_entropy_with_logits(scores, target.float()).item(),
                               "accuracy": sum(one["accuracy"] for one in each) / 3,
                               "iou": (right / either).mean().item(), "f1": (2 * right / (right + either)).mean().item()})

    def test_area_under_the_curve(self):
        generator = torch.Generator().manual_seed(6)
        x = torch.randn(SAMPLES, 6, generator=generator)
        target = torch.randint(0, 2, (SAMPLES,), generator=generator)
        for ranks in (1, 3):
            got, model, _ = self.validate(Vector(2), "cross_entropy", ["auc"], {"x": x, "y": target}, ranks)
            with torch.no_grad():
                scores = model(x)
            self.compare(got, {"loss": F.cross_entropy(scores, target).item(),
                               "auc": area((scores[:, 1] - scores[:, 0]), target == 1)})
            got, model, _ = self.validate(Vector(1), "bce_with_logits", ["auc"], {"x": x, "y": target}, ranks)
            with torch.no_grad():
                scores = model(x)[:, 0]
            self.compare(got, {"loss": F.binary_cross_entropy_with_logits(scores, target.float()).item(),
                               "auc": area(scores, target == 1)})

    def test_a_metric_that_does_not_fit_the_output_starts_no_training(self):
        x, target = torch.randn(SAMPLES, 6), torch.randint(0, CLASSES, (SAMPLES,))
        for metric, said in (("top_7_accuracy", "metrics: top_7_accuracy needs at least 7 classes, the model's output has 5 classes"),
                             ("auc", "metrics: auc needs two classes, or one label, the model's output has 5 classes")):
            self.assertIn(said, self.validate(Vector(CLASSES), "cross_entropy", [metric], {"x": x, "y": target}, 2, code=1))


class Ctc(ValidationTest):
    def tensors(self):
        generator = torch.Generator().manual_seed(7)
        steps = torch.randint(8, 13, (SAMPLES,), generator=generator)
        letters = torch.randint(0, 5, (SAMPLES,), generator=generator)
        target = torch.randint(0, CLASSES - 1, (SAMPLES, 4), generator=generator)
        target[torch.arange(4)[None] >= letters[:, None]] = -7  # is not looked at
        return {"x": torch.randn(SAMPLES, 12, 6, generator=generator), "y": target, "frames": steps, "letters": letters}

    def loss_of(self, model, tensors, rows):
        outputs = model(tensors["x"][rows], tensors["frames"][rows])
        return F.ctc_loss(outputs.transpose(0, 1), tensors["y"][rows].clamp(min=0), tensors["frames"][rows],
                          tensors["letters"][rows], blank=CLASSES - 1)

    def test_ctc(self):
        tensors = self.tensors()
        loss = {"kind": "ctc", "input_lengths": "frames", "target_lengths": "letters", "blank": CLASSES - 1, "batch_first": True}
        for ranks in (1, 2, 3):
            with self.subTest(ranks):
                got, model, result = self.validate(Speech(), loss, None, tensors, ranks, more=["frames"])
                with torch.no_grad():
                    self.compare(got, {"loss": self.loss_of(model, tensors, torch.arange(SAMPLES)).item()})
                before = random_weights(Speech(), seed=1)
                self.loss_of(before, tensors, torch.tensor(epoch_order(SAMPLES, 3)[: 4 * ranks])).backward()
                with torch.no_grad():
                    for name, parameter in before.named_parameters():
                        expected = parameter - 0.05 * parameter.grad
                        self.assertLess((model.state_dict()[name] - expected).norm() / expected.norm(), 1e-6, name)

    def test_mistakes_are_named(self):
        loss = {"kind": "ctc", "input_lengths": "frames", "target_lengths": "letters", "blank": CLASSES - 1, "batch_first": True}
        tensors = self.tensors()
        for change, said in (({"frames": tensors["frames"] + 5}, "but the model's output has 12 time steps"),
                             ({"letters": torch.full_like(tensors["letters"], 5)}, "but the target has 4 labels"),
                             ({"y": tensors["y"].clamp(min=0) + 1}, "the target has class 4, which is the blank of loss ctc"),
                             ({"letters": tensors["y"]}, "loss ctc: the lengths 'letters' are [4, 4] int64")):
            self.assertIn(said, self.validate(Speech(), loss, None, {**tensors, **change}, 1, more=["frames"], code=1))
        self.assertIn("'letter'", self.validate(Speech(), {**loss, "target_lengths": "letter"}, None, tensors, 1, more=["frames"],
                                                code=1))
        self.assertIn("loss.blank is 5, the model's output has 5 classes",
                      self.validate(Speech(), {**loss, "blank": 5}, None, tensors, 1, more=["frames"], code=1))


if __name__ == "__main__":
    main()
