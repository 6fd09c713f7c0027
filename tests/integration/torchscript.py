"""Whole runs of `model:` experiments: the examples' way through YAML and back into Python, every data format, and what
is said when the model or the data is not what it should be.

    torchscript.py BIN_FOLDER [TestClass[.test] ...]
"""
import gzip
import json
import shutil
import subprocess
import sys
import unittest

import numpy
import safetensors.numpy
import torch
from torch import nn

from harness import DEADLINE, SOURCE, Build, Workplace, environment, launch, overrides, run, write_experiment
from torchscript_models import experiment, save_script, write_idx

BUILD = None  # set by main()
EXAMPLE = SOURCE / "examples" / "torchscript"
CONFIG = SOURCE / "configs" / "torchscript_fashion_mnist.yaml"


class Mlp(nn.Module):
    def __init__(self, inputs=64, outputs=10, hidden=16):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.fc2(self.hidden(x.flatten(1)))


class ScriptTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.work = Workplace(type(self).__name__)
        self.folder = self.work.path
        self.problems_before = self.problems()

    def problems(self):
        return len(self._outcome.result.errors) + len(self._outcome.result.failures)

    def tearDown(self):
        if self.problems() == self.problems_before:
            self.work.remove()
        else:
            print(f"the runs are in {self.work.path}", file=sys.stderr)

    def idx_data(self, samples=48, size=8, classes=10):
        """Images whose class can be learnt: its row is brighter."""
        generator = numpy.random.default_rng(1)
        labels = generator.integers(0, classes, samples)
        images = generator.integers(0, 100, (samples, size, size))
        images[numpy.arange(samples), labels % size] += 100
        write_idx(self.folder / "images", images)
        write_idx(self.folder / "labels", labels)
        return {"format": "idx", "training": {"features": "images", "target": "labels"}}

    def alone(self, sections, sets=(), **extra_environment):
        """One rank, without a launcher."""
        run_dir = self.work.new_run()
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        return run([BUILD.program("dtrain-worker"), str(file), "--run-dir", str(run_dir), *overrides(sets)], run_dir,
                   **extra_environment)

    def launched(self, sections):
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        return launch(BUILD, file, self.work.new_run())


def python(*command):
    done = subprocess.run([sys.executable, "-B", *map(str, command)], env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=DEADLINE, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    return done.stdout


class Way(ScriptTest):
    """make_model.py, YAML, use_weights.py, on small data of Fashion-MNIST's shape."""

    def make_data(self):
        generator = numpy.random.default_rng(3)
        for part, samples in (("train", 640), ("t10k", 333)):
            labels = generator.integers(0, 10, samples)
            images = generator.integers(0, 120, (samples, 28, 28))
            images[numpy.arange(samples), 2 * labels] += 25
            for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
                write_idx(self.folder / "plain", array)
                (self.folder / f"{part}-{name}.gz").write_bytes(gzip.compress((self.folder / "plain").read_bytes()))

    def check(self, *flags):
        model = self.folder / "model.pt"
        python(EXAMPLE / "make_model.py", model, *flags)
        data = {"training": "train", "validation": "t10k"}
        sets = [f"data.{key}.{field}={self.folder}/{part}-{file}.gz" for key, part in data.items()
                for field, file in (("features", "images-idx3-ubyte"), ("target", "labels-idx1-ubyte"))]
        result = launch(BUILD, CONFIG, self.work.new_run(), [f"model={model}", *sets, "searcher.max_length.epochs=4",
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
        self.make_data()
        self.check()

    def test_traced(self):
        self.make_data()
        self.check("--traced")


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


class Errors(ScriptTest):
    def fails(self, model, *parts, code=1, loss="cross_entropy", data=None):
        """A run of this model (a file's name, or a module to script) says all `parts`, once."""
        if isinstance(model, nn.Module):
            save_script(model, self.folder / "model.pt")
            model = "model.pt"
        result = self.alone(experiment(model, data or self.idx_data(), loss=loss)).expect(code)
        for part in parts:
            self.assertIn(part, result.output)
        self.assertFalse(result.weights_file.exists())
        return result

    def test_files_that_are_no_torchscript(self):
        (self.folder / "text.pt").write_text("def forward(x): return x\n")
        (self.folder / "empty.pt").write_bytes(b"")
        torch.save(Mlp().state_dict(), self.folder / "state.pt")
        torch.save({"model": Mlp().state_dict(), "epoch": 3}, self.folder / "checkpoint.pt")
        torch.save(Mlp(), self.folder / "eager.pt")
        torch.save(Mlp().state_dict(), self.folder / "old.pt", _use_new_zipfile_serialization=False)
        save_script(Mlp(), self.folder / "whole.pt")
        (self.folder / "cut.pt").write_bytes((self.folder / "whole.pt").read_bytes()[:2000])
        shutil.make_archive(str(self.folder / "archive"), "zip", EXAMPLE)
        howto = 'torch.jit.script(model).save("model.pt")'
        self.fails("text.pt", "text.pt is no TorchScript file: it is no zip archive", howto)
        self.fails("empty.pt", "empty.pt is no TorchScript file: it is empty", howto)
        self.fails("old.pt", "old.pt is no TorchScript file: it is a Python pickle", howto)
        for name in ("state.pt", "checkpoint.pt"):
            self.fails(name, f"{name} is no TorchScript file: it holds tensors by name", "load_state_dict()", howto)
        self.fails("eager.pt", "eager.pt is no TorchScript file: it holds a pickled Python object (__main__.Mlp)",
                   "torch.load(", howto)
        self.fails("cut.pt", "cut.pt is no TorchScript file: ", "damaged or cut off")
        self.fails("archive.zip", "archive.zip is no TorchScript file: ")

    def test_a_missing_file_starts_nothing(self):
        sections = experiment("nowhere.pt", self.idx_data())
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        said = f"{file}: model: there is no file {self.folder}/nowhere.pt"
        dry = run([BUILD.program("dtrain"), "launch", str(file), "--dry-run"], self.folder).expect(2)
        self.assertIn(said, dry.output)
        for result in (self.alone(sections), self.launched(sections)):
            result.expect(2)
            self.assertIn(said, result.output)
            self.assertIn('torch.jit.script(model).save("nowhere.pt")', result.output)
            self.assertFalse(result.run_dir.exists())
        save_script(Mlp(), self.folder / "nowhere.pt")
        plan = run([BUILD.program("dtrain"), "launch", str(file), "--dry-run", "--json"], self.folder).expect(0)
        self.assertEqual(json.loads(plan.output)["command"][0], BUILD.program("dtrain-worker"))

    def test_the_wrong_program_for_an_experiment(self):
        with_program = {"entrypoint": "synthetic", "hyperparameters": {"global_batch_size": 4},
                        "searcher": {"max_length": {"batches": 1}}}
        result = self.alone(with_program).expect(2)
        self.assertIn("has no `model:`, and dtrain-worker carries out no other experiments", result.output)
        save_script(Mlp(), self.folder / "model.pt")
        file = write_experiment(self.folder / "experiment.yaml", **experiment("model.pt", self.idx_data()))
        result = run([BUILD.program("synthetic"), str(file), "--run-dir", str(self.work.new_run())], self.folder).expect(2)
        self.assertIn("has a `model:`, which only dtrain-worker carries out", result.output)

    def test_launch_says_where_the_worker_comes_from(self):
        save_script(Mlp(), self.folder / "model.pt")
        file = write_experiment(self.folder / "experiment.yaml", **experiment("model.pt", self.idx_data()))
        lonely = self.folder / "bin"
        lonely.mkdir()
        shutil.copy(BUILD.program("dtrain"), lonely)
        result = run([str(lonely / "dtrain"), "launch", str(file), "--dry-run"], self.folder, PATH="/usr/bin:/bin").expect(2)
        self.assertIn(f"carried out by the program dtrain-worker, which is neither in {lonely} nor in PATH", result.output)
        self.assertIn("DTRAIN_TORCH=ON", result.output)

    def test_methods(self):
        class NoForward(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc2 = nn.Linear(4, 4)

            @torch.jit.export
            def embed(self, x):
                return self.fc2(x)

            @torch.jit.export
            def classify(self, x):
                return self.embed(x)

        self.fails(NoForward(), "model.pt has no method forward(); its methods are: ", "embed", "classify")

        class TwoArguments(Mlp):
            def forward(self, x, mask, factor: float = 1.0):
                return self.fc2(self.hidden(x.flatten(1)) * mask) * factor

        self.fails(TwoArguments(), "forward() needs a value for 'mask' besides 'x'", "give 'mask' a default value")

        class TakesList(Mlp):
            def forward(self, images: list[torch.Tensor]):
                return self.fc2(self.hidden(images[0].flatten(1)))

        self.fails(TakesList(), "forward() takes 'images' as List[Tensor], not as a Tensor")

        class NoArgument(Mlp):
            def forward(self):
                return self.fc2.weight

        self.fails(NoArgument(), "forward() takes no argument")

        class Pair(Mlp):
            def forward(self, x):
                h = self.hidden(x.flatten(1))
                return self.fc2(h), h

        self.fails(Pair(), "forward() returns Tuple[Tensor, Tensor], not a Tensor")

        class Sometimes(Mlp):
            def forward(self, x) -> torch.Tensor | None:
                return None if bool(x.sum() > 0) else self.fc2(self.hidden(x.flatten(1)))

        self.fails(Sometimes(), "forward() returned NoneType, not a Tensor")

        class WithDefaults(Mlp):
            def forward(self, x, factor: float = 1.0):
                return self.fc2(self.hidden(x.flatten(1))) * factor

        save_script(WithDefaults(), self.folder / "model.pt")
        self.alone(experiment("model.pt", self.idx_data())).expect(0)

    def test_nothing_to_train(self):
        self.fails(Mlp().requires_grad_(False), "has no parameter that requires a gradient")
        frozen = torch.jit.freeze(torch.jit.script(Mlp().eval()))
        frozen.save(str(self.folder / "frozen.pt"))
        self.fails("frozen.pt", "has no parameters", "torch.jit.freeze()")

        class Cut(Mlp):
            def forward(self, x):
                return self.fc2(self.hidden(x.flatten(1))).detach()

        self.fails(Cut(), "the model's output does not depend on any parameter that requires a gradient")

    def test_another_device(self):
        save_script(Mlp().to("meta"), self.folder / "meta.pt")
        self.fails("meta.pt", "parameter 'hidden.0.weight' is on device meta", 'model.to("cpu")')

    def test_wrong_shapes_name_the_parameter(self):
        features = "the model's forward() failed on features of shape [16, 1, 8, 8] float32, in "
        cause = "mat1 and mat2 shapes cannot be multiplied (16x64 and 63x16)"
        where = "hidden.0 (hidden.0.weight [16, 63], hidden.0.bias [16]): "
        result = self.fails(Mlp(inputs=63), features + where + cause)
        self.assertNotIn("Traceback", result.output)
        torch.jit.trace(Mlp(inputs=63), torch.zeros(2, 63)).save(str(self.folder / "traced.pt"))
        self.fails("traced.pt", features + where + cause)

        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), Mlp(64, 10)])
                self.blocks[1].fc2 = nn.Linear(15, 10)

            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return x

        self.fails(Inner(), features + "blocks.1.fc2 (blocks.1.fc2.weight [10, 15], blocks.1.fc2.bias [10]): ")

        class OwnParameter(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(9))

            def forward(self, x):
                return (x * self.scale).flatten(1)

        self.fails(OwnParameter(), features + "scale [9]: The size of tensor a (8) must match the size of tensor b (9)")

        class Raises(Mlp):
            def forward(self, x):
                if x.size(1) != 3:
                    raise ValueError("colour images only")
                return self.fc2(x)

        self.fails(Raises(), "[16, 1, 8, 8] float32", ": colour images only")

    def test_output_and_target_must_fit(self):
        self.fails(Mlp(outputs=7), "the target has class 9, the model's output 7 classes (0 to 6)")

        class Flat(Mlp):
            def forward(self, x):
                return self.fc2(self.hidden(x.flatten(1))).flatten()

        self.fails(Flat(), "the model's output [160] float32 does not fit the target [16] int64",
                   "cross_entropy needs scores [batch, classes] for targets [batch]")

        class Classes(Mlp):
            def forward(self, x):
                return self.fc2(self.hidden(x.flatten(1))).argmax(1)

        self.fails(Classes(), "the model's output is [16] int64: a loss needs floating-point numbers")
        self.fails(Mlp(), "the model's output [16, 10] float32 does not fit the target [16] int64",
                   "mse needs an output of the target's shape", loss="mse")
        generator = numpy.random.default_rng(5)
        numpy.save(self.folder / "features.npy", generator.standard_normal((48, 64)).astype(numpy.float32))
        numpy.save(self.folder / "target.npy", generator.standard_normal(48).astype(numpy.float32))
        data = {"format": "npy", "training": {"features": "features.npy", "target": "target.npy"}}
        self.fails(Mlp(), "cross_entropy needs whole numbers as targets, these are [16] float32", data=data)


def main():
    global BUILD
    BUILD = Build(sys.argv[1], "dtrain-worker")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, warnings="ignore")  # torch.jit calls itself deprecated


if __name__ == "__main__":
    main()
