"""A pair of TorchScript files, one to train and one to validate with, against plain PyTorch in one process.

    torchscript_pair.py BIN_FOLDER [TestClass[.test] ...]

The model returns other things in training than otherwise, which a trace cannot carry. Its two files have different
weights at first: what is validated must be those of the file that is trained, and batch norm's statistics, too.
"""
import copy

import numpy
import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

from harness import run
from sample_order import epoch_order
from torchscript_models import ScriptTest, experiment, main, save_script

STEPS = 20
PERIOD = 5  # batches between validations
SAMPLES = 4  # of a rank's batch
MOST_RANKS = 3
SEED = 5
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
LOSS = {"kind": "cross_entropy", "output": 0, "auxiliary": {"1": 0.5}}
PAIR = {"train": "train.pt", "eval": "eval.pt"}


class TwoModes(nn.Module):
    """A tuple in training, and scores of another scale otherwise. Without `auxiliary` it can only be evaluated."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 16, bias=False)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 3)
        self.auxiliary = nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(self.fc1(x)).relu()
        if self.training:
            return self.out(h), self.auxiliary(h)
        return 1.5 * self.out(h)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(F.dropout(x, 0.5, self.training))


class Counting(nn.Module):
    """Counts what it has evaluated, in a buffer that forward() assigns."""

    def __init__(self, evaluates):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(1))
        self.evaluates = evaluates

    def forward(self, x):
        if self.evaluates:
            self.seen = self.seen + x.size(0)
        return self.fc(x)


def make_data():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(STEPS * MOST_RANKS * SAMPLES + 5, 6, generator=generator, dtype=torch.float64)
    return features, (features[:, 0] > 0).long() + (features[:, 1] > 0)


def train_plain(model, features, target, ranks, ema):
    """The losses of the validations, and the model that was validated last."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD["lr"], momentum=SGD["momentum"])
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(ema))
    used = averaged.module if ema else model
    losses = []

    def validate():
        used.eval()
        with torch.no_grad():
            losses.append(F.cross_entropy(used(features), target).item())
        model.train()

    validate()
    order = torch.tensor(epoch_order(len(target), SEED))
    batches = order[: STEPS * ranks * SAMPLES].reshape(STEPS, ranks, SAMPLES)
    for step, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        statistics = None  # of batch norm: those of rank 0 count
        for rows in batch:
            scores, auxiliary = model(features[rows])
            loss = F.cross_entropy(scores, target[rows]) + 0.5 * F.cross_entropy(auxiliary, target[rows])
            (loss / ranks).backward()
            statistics = statistics or {name: buffer.clone() for name, buffer in model.named_buffers()}
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(statistics[name])
        optimizer.step()
        averaged.update_parameters(model)
        if step % PERIOD == 0:
            validate()
    return losses, used


class PairTest(ScriptTest):
    def setUp(self):
        super().setUp()
        self.features, self.target = make_data()
        numpy.save(self.folder / "features.npy", self.features.numpy())
        numpy.save(self.folder / "target.npy", self.target.numpy())

    def sections(self, ranks=1, **more):
        files = {"features": "features.npy", "target": "target.npy"}
        sections = experiment("", {"format": "npy", "training": files, "validation": files}, steps=STEPS,
                              batch=ranks * SAMPLES, slots=ranks, optimizer=SGD, perform_initial_validation=True,
                              min_validation_period={"batches": PERIOD}, reproducibility={"experiment_seed": SEED}, **more)
        return {**sections, "model": PAIR}

    def save_pair(self, dtype):
        """The model that is trained."""
        model = TwoModes().to(dtype)
        example = self.features[:SAMPLES].to(dtype)
        save_script(copy.deepcopy(model).train(), self.folder / "train.pt", example)
        other = TwoModes().to(dtype)
        del other.auxiliary
        save_script(other.eval(), self.folder / "eval.pt", example)
        return model

    def check_files(self, result, dtype):
        """Both hold the final weights; returns the loss of the one that evaluates."""
        weights = safetensors.numpy.load_file(result.weights_file)
        final = result.weights_file.parent
        self.assertEqual([event["path"] for event in result.events("weights_written")][-2:],
                         [str(final / "model.pt"), str(final / "model_eval.pt")])
        trained, evaluated = (torch.jit.load(str(final / name)) for name in ("model.pt", "model_eval.pt"))
        for script in (trained, evaluated):
            self.assertFalse(script.training)
            for name, value in script.state_dict().items():
                numpy.testing.assert_array_equal(value.numpy(), weights[name], err_msg=name)
        self.assertIn("auxiliary.weight", trained.state_dict())
        self.assertNotIn("auxiliary.weight", evaluated.state_dict())
        with torch.no_grad():
            return F.cross_entropy(evaluated(self.features.to(dtype)), self.target).item()


class Parity(PairTest):
    def check(self, ranks, ema=0.0, **optimizations):
        model = self.save_pair(torch.float64)
        expected, plain = train_plain(model, self.features, self.target, ranks, ema)
        optimizations = {"matmul": "default", "operators": "default", "memory_format": "contiguous", "ema": ema, **optimizations}
        result = self.launched(self.sections(ranks, loss=LOSS, optimizations=optimizations)).expect(0)
        losses = [line["metrics"]["loss"] for line in result.metrics("validation")]
        numpy.testing.assert_allclose(losses, expected, rtol=1e-9)
        self.assertLess(losses[-1], 0.9 * losses[0], "it has learnt nothing")
        weights = safetensors.numpy.load_file(result.weights_file)
        for name, wanted in plain.state_dict().items():
            numpy.testing.assert_allclose(weights[name], wanted.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)
        self.assertAlmostEqual(self.check_files(result, torch.float64), losses[-1], delta=1e-9)

    def test_one_rank(self):
        self.check(1)

    def test_two_ranks(self):
        self.check(2)

    def test_three_ranks_with_sharded_updates(self):
        self.check(3, sharded_optimizer=True)

    def test_an_average_of_the_weights(self):
        self.check(2, ema=0.9)


class Precision(PairTest):
    def test_narrow_weights_are_shared_too(self):
        for precision in ("bf16", "pure_bf16"):
            self.save_pair(torch.float32)
            result = self.launched(self.sections(2, loss=LOSS, optimizations={"mixed_precision": precision})).expect(0)
            losses = [line["metrics"]["loss"] for line in result.metrics("validation")]
            self.assertLess(losses[-1], 0.9 * losses[0], precision)
            self.assertAlmostEqual(self.check_files(result, torch.float32), losses[-1], delta=0.03, msg=precision)


class Export(PairTest):
    def test_a_checkpoint_becomes_two_files(self):
        self.save_pair(torch.float32)
        result = self.launched(self.sections(loss=LOSS)).expect(0)
        out, eval_out = self.folder / "exported.pt", self.folder / "exported_eval.pt"
        command = [self.build.program("dtrain"), "checkpoint", "export", str(result.run_dir), "--format", "torchscript",
                   "--output", str(out)]
        run(command, self.folder).expect(0)
        for exported, name in ((out, "model.pt"), (eval_out, "model_eval.pt")):
            state, wanted = (torch.jit.load(str(path)).state_dict() for path in (exported, result.weights_file.with_name(name)))
            self.assertEqual(list(state), list(wanted))
            for tensor in wanted:
                self.assertTrue(torch.equal(state[tensor], wanted[tensor]), f"{name}: {tensor}")
        out.unlink()
        self.assertIn(f"{eval_out} exists", run(command, self.folder).expect(2).output)


class Modes(PairTest):
    """What a pair of traces does that one trace cannot: dropout in training alone."""

    def train(self, eval_mode, **more):
        example = self.features[:SAMPLES].float()
        save_script(Dropping().train(), self.folder / "train.pt", example)
        save_script(Dropping().train(not eval_mode), self.folder / "eval.pt", example)
        return self.launched({**self.sections(), **more}).expect(0)

    def test_dropout_is_off_in_validation(self):
        result = self.train(eval_mode=True)
        self.assertNotIn("in training mode", result.output)
        evaluated = torch.jit.load(str(result.weights_file.with_name("model_eval.pt")))
        loss = F.cross_entropy(evaluated(self.features.float()), self.target).item()
        self.assertAlmostEqual(result.metrics("validation")[-1]["metrics"]["loss"], loss, delta=1e-5)
        alone = self.train(eval_mode=True, model="train.pt")
        self.assertEqual(alone.output.count("does dropout in training mode during validation too"), 1, alone.output)
        self.assertNotAlmostEqual(alone.metrics("validation")[-1]["metrics"]["loss"], loss, delta=1e-3)
        self.assertFalse(alone.weights_file.with_name("model_eval.pt").exists())

    def test_a_buffer_that_validation_assigns_is_that_of_both(self):
        for name, evaluates in (("train.pt", False), ("eval.pt", True)):
            save_script(Counting(evaluates), self.folder / name)
        result = self.launched(self.sections()).expect(0)
        validations = STEPS // PERIOD + 1  # the last one, too, comes before the weights are written
        for file in (result.weights_file, result.weights_file.with_name("model_eval.pt")):
            state = torch.jit.load(str(file)).state_dict() if file.suffix == ".pt" else safetensors.numpy.load_file(file)
            self.assertEqual(float(state["seen"]), validations * len(self.target), file)

    def test_a_file_for_validation_that_was_traced_in_training_mode(self):
        said = f"model: {self.folder}/eval.pt does dropout in training mode during validation too"
        self.assertEqual(self.train(eval_mode=False).output.count(said), 1)


if __name__ == "__main__":
    main()
