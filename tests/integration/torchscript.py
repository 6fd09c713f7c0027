"""Whole runs of `model:` experiments: the examples' way through YAML and back into Python, and every data format.

    torchscript.py BIN_FOLDER [TestClass[.test] ...]
"""

import numpy
import safetensors.numpy
import torch
from torch import nn

from harness import SOURCE, launch, python
from torchscript_models import Mlp, ScriptTest, experiment, main, save_script, write_fashion_like

EXAMPLE = SOURCE / "examples" / "torchscript"
CONFIG = SOURCE / "configs" / "torchscript_fashion_mnist.yaml"


class Way(ScriptTest):
    """make_model.py, YAML, use_weights.py, on small data of Fashion-MNIST's shape."""

    def check(self, *flags):
        model = self.folder / "model.pt"
        python(EXAMPLE / "make_model.py", model, *flags)
        data = {"training": "train", "validation": "t10k"}
        sets = [f"data.{key}.{field}={self.folder}/{part}-{file}.gz" for key, part in data.items()
                for field, file in (("features", "images-idx3-ubyte"), ("target", "labels-idx1-ubyte"))]
        result = launch(self.build, CONFIG, self.work.new_run(), [f"model={model}", *sets, "searcher.max_length.epochs=4",
                                                              "hyperparameters.global_batch_size=32"]).expect(0)
        validation = result.metrics("validation")[-1]
        self.assertEqual(validation["samples"], 333)
        right = validation["metrics"]["accuracy"] * 333
        self.assertAlmostEqual(right, round(right), delta=1e-6)
        self.assertGreater(right, 100, "it has learnt nothing")
        self.assertLess(right, 333, "too easy to tell one model from another")
        said = python(EXAMPLE / "use_weights.py", result.run_dir, "--data", self.folder)
        for name in ("model.safetensors", "model.pt"):
            self.assertRegex(said, rf"{name} +accuracy 0\.\d+  \({round(right)} of 333\)")
        final = result.run_dir / "checkpoints" / "final"
        self.assertEqual([event["path"] for event in result.events("weights_written")],
                         [str(final / "model.safetensors"), str(final / "model.pt")])
        self.assertEqual(sorted(path.name for path in final.iterdir()), ["model.pt", "model.safetensors"])
        # Not every parameter's file holds all parameters.
        self.assertLess((final / "model.pt").stat().st_size, 1.2 * (final / "model.safetensors").stat().st_size + 20_000)

    def test_scripted(self):
        write_fashion_like(self.folder)
        self.check()

    def test_traced(self):
        write_fashion_like(self.folder)
        self.check("--traced")


class Chain(nn.Module):
    """Buffers that are used before forward() assigns them, and one that is handed on to another."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.fc2 = nn.Linear(8, 3)
        self.register_buffer("now", torch.ones(8))
        self.register_buffer("before", torch.zeros(8))

    def forward(self, x):
        h = self.fc1(x) * self.now + self.before
        if self.training:
            self.before = self.now
            self.now = 0.5 * self.now + 0.5 + h.detach().mean(0)
        return self.fc2(h)


class Buffers(ScriptTest):
    def test_assigned_in_forward(self):
        features = torch.randn(48, 6)
        target = (features[:, 0] > 0).long() + (features[:, 1] > 0)
        numpy.save(self.folder / "features.npy", features.numpy())
        numpy.save(self.folder / "target.npy", target.numpy())
        model = Chain()
        save_script(model, self.folder / "model.pt")
        data = {"format": "npy", "training": {"features": "features.npy", "target": "target.npy"}}
        sections = experiment("model.pt", data, steps=6, batch=48, optimizer={"kind": "sgd", "lr": 0.5})
        sections["searcher"].pop("metric")
        result = self.launched(sections).expect(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(6):  # each step takes the whole data set
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), target).backward()
            optimizer.step()
        trained = safetensors.numpy.load_file(result.weights_file)
        for name, wanted in model.state_dict().items():
            numpy.testing.assert_allclose(trained[name], wanted.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
        self.assertGreater(numpy.abs(trained["now"] - trained["before"]).max(), 1e-3)


class Normalising(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 49, 10)
        self.layer_norm = nn.LayerNorm(10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.batch_norm(self.conv(x))), 4)
        return self.layer_norm(self.out(x.flatten(1)))


class MixedPrecision(ScriptTest):
    """Layers that normalise stay in float32, told by the classes of the script; files are float32."""

    def test_every_precision_trains(self):
        write_fashion_like(self.folder)
        model = save_script(Normalising(), self.folder / "model.pt")
        data = {"training": "train", "validation": "t10k"}
        sets = [f"data.{key}.{field}={self.folder}/{part}-{file}.gz" for key, part in data.items()
                for field, file in (("features", "images-idx3-ubyte"), ("target", "labels-idx1-ubyte"))]
        losses = {}
        for precision in ("none", "bf16", "pure_bf16"):
            result = launch(self.build, CONFIG, self.work.new_run(), [
                f"model={model}", *sets, "searcher.max_length.batches=30", "hyperparameters.global_batch_size=32",
                f"optimizations.mixed_precision={precision}"]).expect(0)
            losses[precision] = result.metrics("validation")[-1]["metrics"]["loss"]
            final = torch.jit.load(str(result.run_dir / "checkpoints" / "final" / "model.pt"))
            self.assertEqual({value.dtype for value in final.parameters()}, {torch.float32})
        self.assertEqual(len(set(losses.values())), 3, losses)
        self.assertLess(max(losses.values()) - min(losses.values()), 0.2, losses)


class Formats(ScriptTest):
    """Each trains, and what the run reports is what Python computes from the same file and the final weights."""

    def check(self, data, model, expected_loss, loss="cross_entropy", samples=48, **more):
        """`expected_loss` computes it from the trained model."""
        save_script(model, self.folder / "model.pt")
        data["validation"] = data["training"]
        sections = experiment("model.pt", data, steps=30, slots=2, loss=loss, perform_initial_validation=True,
                              optimizer={"kind": "adam", "lr": 0.01}, **more)
        result = self.launched(sections).expect(0)
        first, last = result.metrics("validation")
        self.assertEqual([first["samples"], last["samples"]], [samples, samples])
        self.assertLess(last["metrics"]["loss"], 0.9 * first["metrics"]["loss"])
        self.assertEqual("accuracy" in last["metrics"], loss == "cross_entropy")
        trained = torch.jit.load(str(result.weights_file.with_name("model.pt")))
        with torch.no_grad():
            self.assertAlmostEqual(last["metrics"]["loss"], expected_loss(trained).item(), delta=1e-5)
        return result

    def arrays(self):
        generator = numpy.random.default_rng(4)
        features = generator.standard_normal((48, 6)).astype(numpy.float32)
        return features, (features[:, 0] > 0).astype(numpy.int64) + (features[:, 1] > 0)

    def test_idx_with_a_scale(self):
        data = {**self.idx_data(), "scale": 0.02}
        images = numpy.frombuffer((self.folder / "images").read_bytes()[16:], numpy.uint8).reshape(48, 1, 8, 8)
        labels = torch.from_numpy(numpy.frombuffer((self.folder / "labels").read_bytes()[8:], numpy.uint8).copy()).long()
        self.check(data, Mlp(), lambda m: nn.functional.cross_entropy(m(torch.from_numpy(images.copy()).float() * 0.02), labels))

    def test_npy(self):
        features, target = self.arrays()
        numpy.save(self.folder / "features.npy", features)
        numpy.save(self.folder / "target.npy", target)
        data = {"format": "npy", "training": {"features": "features.npy", "target": "target.npy"}}
        self.check(data, Mlp(6, 3),
                   lambda m: nn.functional.cross_entropy(m(torch.from_numpy(features)), torch.from_numpy(target)))

    def test_safetensors_regression_in_double(self):
        features, _ = self.arrays()
        target = features @ numpy.arange(6, dtype=numpy.float32) + 3  # [48], the model's output is [48, 1]
        safetensors.numpy.save_file({"inputs": features, "outputs": target}, self.folder / "data.safetensors")
        data = {"format": "safetensors",
                "training": {"file": "data.safetensors", "features": "inputs", "target": "outputs"}}
        wanted = torch.from_numpy(target).double().unsqueeze(1)
        result = self.check(data, Mlp(6, 1).double(),
                            lambda m: nn.functional.mse_loss(m(torch.from_numpy(features).double()), wanted), loss="mse")
        self.assertEqual(safetensors.numpy.load_file(result.weights_file)["fc2.weight"].dtype, numpy.float64)

    def test_tokens(self):
        class Bigram(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(20, 12)
                self.out = nn.Linear(12, 20)

            def forward(self, tokens):
                return self.out(self.embedding(tokens))

        tokens = numpy.arange(48 * 5 + 1) * 7 % 20
        tokens.astype(numpy.uint16).tofile(self.folder / "tokens.bin")
        data = {"format": "tokens", "token_type": "uint16", "sequence_length": 5, "training": {"file": "tokens.bin"}}
        all_tokens = torch.from_numpy(tokens.astype(numpy.int64))
        self.check(data, Bigram(), lambda m: nn.functional.cross_entropy(m(all_tokens[:-1].unsqueeze(0))[0], all_tokens[1:]))


class Uneven(ScriptTest):
    """An epoch ends with a short batch: each of its samples counts as in one process, also where ranks have none of it."""

    BATCH, EPOCHS = 12, 2

    def plain(self, model, features, target, kind, window):
        """One process. The loss of the last batch."""
        optimizer = {"sgd": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, lr=0.02)}[kind](
            model.parameters())
        batches = [part for _ in range(self.EPOCHS) for part in zip(features.split(self.BATCH), target.split(self.BATCH))]
        for number, (x, y) in enumerate(batches, 1):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / window).backward()
            if number % window == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss.item(), len(batches)

    def check(self, samples, slots, kind, window=1):
        generator = numpy.random.default_rng(4)
        features = generator.standard_normal((samples, 6)).astype(numpy.float32)
        target = (features[:, 0] > 0).astype(numpy.int64) + (features[:, 1] > 0)
        numpy.save(self.folder / "features.npy", features)
        numpy.save(self.folder / "target.npy", target)
        model = Mlp(6, 3).double()
        save_script(model, self.folder / "model.pt")
        data = {"format": "npy", "training": {"features": "features.npy", "target": "target.npy"}, "shuffle": False, "drop_last": False}
        optimizer = {"kind": kind, **({"lr": 0.3, "momentum": 0.9} if kind == "sgd" else {"lr": 0.02})}
        loss, batches = self.plain(model, torch.from_numpy(features).double(), torch.from_numpy(target), kind, window)
        sections = experiment("model.pt", data, steps=batches, batch=self.BATCH, slots=slots, optimizer=optimizer, scheduling_unit=1,
                              optimizations={"aggregation_frequency": window})
        result = self.launched(sections).expect(0)
        trained = safetensors.numpy.load_file(result.weights_file)
        for name, wanted in model.state_dict().items():
            numpy.testing.assert_allclose(trained[name], wanted.numpy(), rtol=0, atol=1e-10, err_msg=name)
        last = result.metrics("training")[-1]
        self.assertEqual(last["samples"], (samples - 1) % self.BATCH + 1)
        self.assertAlmostEqual(last["metrics"]["loss"], loss, delta=1e-8)

    def test_parts_of_4_and_3(self):
        self.check(67, 2, "adam")

    def test_parts_of_3_2_and_2(self):
        self.check(67, 3, "sgd")

    def test_a_rank_without_a_sample(self):
        self.check(62, 3, "adam")

    def test_a_rank_without_a_sample_where_two_batches_are_a_step(self):
        self.check(61, 2, "sgd", window=2)


if __name__ == "__main__":
    main()
