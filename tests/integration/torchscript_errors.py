"""What is said when a TorchScript model or its data is not what it should be.

    torchscript_errors.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import shutil
from zipfile import ZIP_DEFLATED, ZipFile

import numpy
import torch
from torch import nn

from harness import SOURCE, run, write_experiment
from torchscript_models import Mlp, ScriptTest, experiment, main, save_script


class Errors(ScriptTest):
    def fails(self, model, *parts, code=1, loss="cross_entropy", data=None, **more):
        """A run of this model (a file's name, or a module to script) says all `parts`, once."""
        if isinstance(model, nn.Module):
            save_script(model, self.folder / "model.pt")
            model = "model.pt"
        result = self.alone(experiment(model, data or self.idx_data(), loss=loss, **more)).expect(code)
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
        shutil.make_archive(str(self.folder / "archive"), "zip", SOURCE / "examples" / "torchscript")
        howto = 'torch.jit.script(model).save("model.pt")'
        self.fails("text.pt", "text.pt is no TorchScript file: it is no zip archive", howto)
        self.fails("empty.pt", "empty.pt is no TorchScript file: it is empty", howto)
        self.fails("old.pt", "old.pt is no TorchScript file: it is a Python pickle", howto)
        for name in ("state.pt", "checkpoint.pt"):
            self.fails(name, f"{name} is no TorchScript file: it holds tensors by name", "load_state_dict()", howto)
        self.fails("eager.pt", "eager.pt is no TorchScript file: it holds a pickled Python object (torchscript_models.Mlp)",
                   "torch.load(", howto)
        self.fails("cut.pt", "cut.pt is no TorchScript file: ", "damaged or cut off")
        # libtorch's message begins with an empty line here.
        with ZipFile(self.folder / "whole.pt") as whole, ZipFile(self.folder / "unknown.pt", "w") as unknown:
            for name in whole.namelist():
                code = whole.read(name)
                unknown.writestr(name, code.replace(b"torch.relu(", b"torch.reluu(") if name.endswith(".py") else code)
        self.fails("unknown.pt", "unknown.pt is no TorchScript file: Unknown builtin op: aten::reluu")
        self.fails("archive.zip", "archive.zip is no TorchScript file: ")

    def test_code_that_reads_or_writes_files_is_refused(self):
        written = self.folder / "written"
        save_script(Mlp(), self.folder / "whole.pt")
        for name, line, operator in (("save", f'_ = torch.save(x, "{written}")', "save"),
                                     ("ops", f'_ = ops.aten.save(x, "{written}")', "save"),
                                     ("alias", f't = torch\n    _ = t.save(x, "{written}")', "save"),
                                     ("from_file", '_ = torch.from_file("/etc/hostname", False, 1)', "from_file")):
            with ZipFile(self.folder / "whole.pt") as whole, ZipFile(self.folder / f"{name}.pt", "w") as changed:
                for record in whole.namelist():
                    code = whole.read(record)
                    begin = b"x: Tensor) -> Tensor:\n"
                    if record.endswith(".py") and begin in code:
                        code = code.replace(begin, begin + f"    {line}\n".encode())
                    changed.writestr(record, code)
            self.fails(f"{name}.pt", f"{name}.pt has code with the operator aten::{operator}, which reads or writes files")
        self.assertFalse(written.exists())

    def test_an_archive_that_unpacks_to_3_gb_is_refused(self):
        save_script(Mlp(), self.folder / "whole.pt")
        with ZipFile(self.folder / "whole.pt") as whole, ZipFile(self.folder / "bomb.pt", "w", ZIP_DEFLATED) as bomb:
            names = whole.namelist()
            for name in names:
                if "/data/" not in name:
                    bomb.writestr(name, whole.read(name))
            with bomb.open(next(name for name in names if "/data/" in name), "w", force_zip64=True) as weights:
                for _ in range(3 << 6):
                    weights.write(bytes(16 << 20))
        self.fails("bomb.pt", "bomb.pt is no TorchScript file: it unpacks to 3.0 GiB, much more than its size")

    def test_a_missing_file_starts_nothing(self):
        sections = experiment("nowhere.pt", self.idx_data())
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        said = f"{file}: model: there is no file {self.folder}/nowhere.pt"
        dry = run([self.build.program("dtrain"), "launch", str(file), "--dry-run"], self.folder).expect(2)
        self.assertIn(said, dry.output)
        for result in (self.alone(sections), self.launched(sections)):
            result.expect(2)
            self.assertIn(said, result.output)
            self.assertIn('torch.jit.script(model).save("nowhere.pt")', result.output)
            self.assertFalse(result.run_dir.exists())
        save_script(Mlp(), self.folder / "nowhere.pt")
        plan = run([self.build.program("dtrain"), "launch", str(file), "--dry-run", "--json"], self.folder).expect(0)
        self.assertEqual(json.loads(plan.output)["command"][0], self.build.program("dtrain-worker"))

    def test_the_wrong_program_for_an_experiment(self):
        with_program = {"entrypoint": "synthetic", "hyperparameters": {"global_batch_size": 4},
                        "searcher": {"max_length": {"batches": 1}}}
        result = self.alone(with_program).expect(2)
        self.assertIn("has no `model:`, and dtrain-worker carries out no other experiments", result.output)
        save_script(Mlp(), self.folder / "model.pt")
        file = write_experiment(self.folder / "experiment.yaml", **experiment("model.pt", self.idx_data()))
        result = run([self.build.program("synthetic"), str(file), "--run-dir", str(self.work.new_run())], self.folder).expect(2)
        self.assertIn("has a `model:`, which only dtrain-worker carries out", result.output)

    def test_launch_says_where_the_worker_comes_from(self):
        save_script(Mlp(), self.folder / "model.pt")
        file = write_experiment(self.folder / "experiment.yaml", **experiment("model.pt", self.idx_data()))
        lonely = self.folder / "bin"
        lonely.mkdir()
        shutil.copy(self.build.program("dtrain"), lonely)
        result = run([str(lonely / "dtrain"), "launch", str(file), "--dry-run"], self.folder, PATH="/usr/bin:/bin").expect(2)
        self.assertIn(f"carried out by the program dtrain-worker, which is neither in {lonely} nor in PATH", result.output)
        self.assertIn("cmake --build build/release --target dtrain-worker", result.output)

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

        self.fails(Pair(), "forward() returns Tuple[Tensor, Tensor], not a Tensor", "loss.output")
        self.fails(Pair(), "loss.output is 'logits', but the model's forward() returns Tuple[Tensor, Tensor]",
                   "its outputs are: 0 to 1", loss={"kind": "cross_entropy", "output": "logits"})
        self.fails(Pair(), "loss.auxiliary.2 is '2', but the model's forward() returns Tuple[Tensor, Tensor]",
                   loss={"kind": "cross_entropy", "output": 0, "auxiliary": {"2": 0.5}})
        self.fails(Mlp(), "loss.output is '0', but the model's forward() returns one Tensor", "remove loss.output",
                   loss={"kind": "cross_entropy", "output": 0})

        class Dict(Mlp):
            def forward(self, x) -> dict[str, torch.Tensor]:
                return {"out": self.fc2(self.hidden(x.flatten(1))), "hidden": x}

        self.fails(Dict(), "loss.output is 'logits', but the model's forward() returns a dict without it",
                   "its outputs are: out, hidden", loss={"kind": "cross_entropy", "output": "logits"})
        self.fails(Dict(), "forward() returns Dict[str, Tensor], not a Tensor", "loss.output")
        self.fails(Mlp(), "forward() takes 1 arguments, not 2", "it is called with the features and the target",
                   loss="from_model")

        class NoLoss(Mlp):
            def forward(self, x, target):
                return self.fc2(self.hidden(x.flatten(1)))

        self.fails(NoLoss(), "the model's output [16, 10] float32 is no loss: it is not one number", loss="from_model")

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

        self.fails(Mlp(), 'optimizer.trainable: no parameter that requires a gradient matches "head.*"',
                   "the first parameter is 'hidden.0.weight'", optimizer={"kind": "sgd", "lr": 0.1, "trainable": "head.*"})

        class Cut(Mlp):
            def forward(self, x):
                return self.fc2(self.hidden(x.flatten(1))).detach()

        self.fails(Cut(), "the model's output does not depend on any parameter that requires a gradient")

    def fails_in_pair(self, evaluated, *parts, code=1):
        """A pair whose file for validation is this says all `parts`; None: the file is as it is."""
        save_script(Mlp(), self.folder / "train.pt")
        if evaluated is not None:
            save_script(evaluated, self.folder / "eval.pt")
        sections = {**experiment("", self.idx_data()), "model": {"train": "train.pt", "eval": "eval.pt"}}
        result = self.alone(sections).expect(code)
        for part in parts:
            self.assertIn(part, result.output)

    def test_pairs_that_do_not_fit(self):
        same = "save both files from the same model in Python, once in each mode"
        train = f"{self.folder}/train.pt"
        self.fails_in_pair(Mlp(hidden=8), f"eval.pt: parameter 'hidden.0.weight' is [8, 64] float32, in {train} it is "
                           "[16, 64] float32", same)
        self.fails_in_pair(Mlp().double(), f"eval.pt: parameter 'hidden.0.weight' is [16, 64] float64, in {train} it is "
                           "[16, 64] float32", same)
        more = Mlp()
        more.fc3 = nn.Linear(10, 10)
        self.fails_in_pair(more, f"eval.pt has a parameter 'fc3.weight', which {train} does not have", same)
        counting = Mlp()
        counting.register_buffer("seen", torch.zeros(3))
        self.fails_in_pair(counting, f"eval.pt has a buffer 'seen', which {train} does not have", same)
        torch.jit.freeze(torch.jit.script(Mlp().eval())).save(str(self.folder / "eval.pt"))
        self.fails_in_pair(None, f"eval.pt has none of the parameters that are trained in {train}", "torch.jit.freeze()")
        torch.save(Mlp().state_dict(), self.folder / "eval.pt")
        self.fails_in_pair(None, "eval.pt is no TorchScript file: it holds tensors by name")

        class TwoInputs(Mlp):
            def forward(self, x, mask):
                return self.fc2(self.hidden(x.flatten(1)) * mask)

        self.fails_in_pair(TwoInputs(), "eval.pt: forward() needs a value for 'mask' besides 'x'")
        (self.folder / "eval.pt").unlink()
        self.fails_in_pair(None, f": model.eval: there is no file {self.folder}/eval.pt", code=2)
        (self.folder / "train.pt").unlink()
        check = run([self.build.program("dtrain"), "config", "check", str(self.folder / "experiment.yaml")], self.folder)
        for key in ("train", "eval"):
            self.assertIn(f": model.{key}: there is no file {self.folder}/{key}.pt", check.expect(2).output)

    def test_another_device(self):
        save_script(Mlp().to("meta"), self.folder / "meta.pt")
        self.fails("meta.pt", "parameter 'hidden.0.weight' is on device meta", 'model.to("cpu")')

    def test_wrong_shapes_name_the_parameter(self):
        features = "the model's forward() failed on features of shape [16, 1, 8, 8] float32, in "
        cause = "mat1 and mat2 shapes cannot be multiplied (16x64 and 63x16)"
        where = "hidden.0 (hidden.0.weight [16, 63], hidden.0.bias [16]): "
        result = self.fails(Mlp(inputs=63), features + where, cause)
        self.assertNotIn("Traceback", result.output)
        torch.jit.trace(Mlp(inputs=63), torch.zeros(2, 63)).save(str(self.folder / "traced.pt"))
        self.fails("traced.pt", features + where, cause)

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
        self.fails(Mlp(), "loss.class_weights has 2 numbers, the model's output 10 classes",
                   loss={"kind": "cross_entropy", "class_weights": [1, 2]})
        self.fails(Mlp(), "ignore_index and class_weights are not supported with optimizations.gradient_compression",
                   loss={"kind": "cross_entropy", "ignore_index": 0}, optimizations={"gradient_compression": "fp16"})
        self.fails(Mlp(outputs=1), "the target has the label 9", loss="bce_with_logits")

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


if __name__ == "__main__":
    main()
