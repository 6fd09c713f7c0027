"""`dtrain evaluate`: of each checkpoint the metrics have the bits of the run's own validation; other ranks, data and weights;
and what is refused. `dtrain predict`: on 1, 2 and 3 ranks the same bytes, in the order of the data, which are what PyTorch computes.
TorchScript, torch.export, a trial in C++, a trial in Python.

    evaluate.py BIN_FOLDER [TestClass[.test] ...]
"""
import hashlib
import io
import json
import os
import subprocess

import numpy
import package
import safetensors.torch
import torch

import harness
from exported_models import save_data, sections_of
from exported_zoo import CASES, export, make_data
from torchscript_models import Net, ScriptTest, experiment, main, random_weights, save_script

STEPS = 12
KEPT = {"checkpoint_storage": {"save_trial_latest": 9}, "min_validation_period": {"batches": 4},
        "min_checkpoint_period": {"batches": 4}}
TRIAL = """
import torch
import dtrain


class Trial(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(256, 8, generator=generator)
        self.data = torch.utils.data.TensorDataset(images, (images.sum(1) > 0).long())
        self.model = context.wrap_model(torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 2)))
        context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-2))

    def training_loader(self):
        return torch.utils.data.DataLoader(self.data, self.context.global_batch_size, shuffle=True, drop_last=True)

    def validation_loader(self):
        collate = (lambda rows: {"images": torch.stack([row[0] for row in rows])}) if self.context.hyperparameters.get("named") else None
        return torch.utils.data.DataLoader(torch.utils.data.Subset(self.data, range(77)), 10, collate_fn=collate)

    def train_batch(self, batch):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        outputs = self.model(batch[0])
        return {"loss": torch.nn.functional.cross_entropy(outputs, batch[1]),
                "accuracy": (outputs.argmax(1) == batch[1]).float().mean()}
"""


def read_idx(path):
    """A file of torchscript_models.write_idx()."""
    content = path.read_bytes()
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


class EvaluateTest(ScriptTest):
    def evaluate(self, *words, code=0):
        return self.call("evaluate", *words, code=code)

    def call(self, command, *words, code=0):
        done = subprocess.run([self.build.program("dtrain"), command, *map(str, words)], cwd=self.folder,
                              env=harness.environment(**package.of(self.build)), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    def check_full_disk(self, command, *words):
        """An answer that cannot be written is a failure."""
        with open("/dev/full", "w") as full:
            done = subprocess.run([self.build.program("dtrain"), command, *map(str, words)], cwd=self.folder,
                                  env=harness.environment(**package.of(self.build)), stdin=subprocess.DEVNULL, stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not everything could be written to standard output", done.stderr)

    def predict(self, run, ranks, file="out.npy", *words):
        """The file's bytes; it is removed."""
        said = self.call("predict", run, "--slots", ranks, "--out", self.folder / file, "--json", *words)
        content = (self.folder / file).read_bytes()
        self.assertEqual([path.name for path in self.folder.glob("out.*")], [file])
        (self.folder / file).unlink()
        return said, content

    def check_predictions(self, run, wanted=None):
        """On 1, 2 and 3 ranks, whose shares of the data are unlike. `wanted`: what PyTorch computes."""
        contents = [self.predict(run, ranks)[1] for ranks in (1, 2, 3)]
        self.assertEqual(len({hashlib.sha256(content).hexdigest() for content in contents}), 1)
        found = numpy.load(io.BytesIO(contents[0]))
        self.assertEqual(len(found) % 2, 1)
        if wanted is not None:
            self.assertEqual(found.shape, tuple(wanted.shape))
            numpy.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=2e-6)
        return found

    def check_beside(self, blocking, sections, **more):
        """The same run with validations beside the training: the same metrics, and the same weights."""
        beside = self.train({**sections, "validation": {"beside": True}, **more})
        self.check_same(blocking, beside)
        return beside

    def check_same(self, blocking, beside):
        def lines(run):
            of_run = [{name: value for name, value in line.items() if name != "time"} for line in run.lines("metrics.jsonl")]
            return sorted(of_run, key=lambda line: (line["kind"], line["batch"]))

        self.assertEqual(lines(beside), lines(blocking))
        self.assertEqual(beside.weights_file.read_bytes(), blocking.weights_file.read_bytes())
        validated = [line["batch"] for line in beside.metrics("validation")]
        self.assertEqual(validated, sorted(validated))
        values = {line["batch"]: line["metrics"]["loss"] for line in beside.metrics("validation")}
        checkpoints = {of["step"]: of["metric_value"] for of in self.call("checkpoint", "list", beside.run_dir, "--json")}
        # The checkpoint of an end within a window is taken before the last validation.
        known = {step: value for step, value in checkpoints.items() if value is not None}
        self.assertEqual(known, {step: values[step] for step in known})
        self.assertLessEqual(set(checkpoints) - set(known), {max(values)})
        best = min(values, key=lambda batch: (values[batch], batch))
        self.assertIn(best, checkpoints)

    def train(self, sections):
        file = harness.write_experiment(self.folder / "experiment.yaml", **sections)
        return harness.launch(self.build, file, self.work.new_run(), **package.of(self.build)).expect(0)

    def contents(self, folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def check_bits(self, result):
        """Every checkpoint of the run."""
        before = self.contents(result.run_dir)
        own = {line["batch"]: line for line in result.metrics("validation")}
        steps = sorted(int(path.name.removeprefix("step-")) for path in (result.run_dir / "checkpoints").glob("step-*"))
        self.assertEqual(steps, [4, 8, 12])
        for step in steps:
            found = self.evaluate(result.run_dir, step, "--json")
            self.assertEqual(found["metrics"], own[step]["metrics"])
            self.assertEqual((found["batch"], found["samples"], found["ranks"]), (step, own[step]["samples"], 2))
        self.assertEqual(self.contents(result.run_dir), before)  # nothing of the run has changed, nothing is left in it
        return own


class Files(EvaluateTest):
    def setUp(self):
        super().setUp()
        self.data = self.idx_data(samples=191)
        self.data["validation"] = {"features": "images", "target": "labels"}
        save_script(random_weights(Net(), seed=1), self.folder / "net.pt")

    def test_averaged_weights_other_ranks_files_and_mistakes(self):
        result = self.train(experiment("net.pt", self.data, STEPS, slots=2, optimizer={"kind": "adamw", "lr": 0.01},
                                       optimizations={"ema": 0.9}, **KEPT))
        own = self.check_bits(result)
        step = result.run_dir / "checkpoints" / "step-8"
        text = self.evaluate(step)  # a checkpoint's folder
        self.assertIn("averaged (optimizations.ema: 0.9)", text)
        self.assertIn("191 samples on 2 ranks", text)
        alone = self.evaluate(result.run_dir, "latest", "--slots", 1, "--json")
        self.assertEqual((alone["batch"], alone["ranks"]), (STEPS, 1))
        self.assertAlmostEqual(alone["metrics"]["loss"], own[STEPS]["metrics"]["loss"], places=6)
        # The weights as files: the averages, which the run has validated, and the others.
        final = self.evaluate(result.weights_file, "--json")
        self.assertIsNone(final["batch"])
        self.assertAlmostEqual(final["metrics"]["loss"], own[STEPS]["metrics"]["loss"], places=6)
        moved = self.folder / "moved.safetensors"
        os.link(result.weights_file.with_name("model_without_ema.safetensors"), moved)
        self.assertIn("name the experiment file with --experiment", self.evaluate(moved, code=2))
        last = self.evaluate(moved, "--experiment", self.folder / "experiment.yaml", "--json")
        self.assertNotAlmostEqual(last["metrics"]["loss"], own[STEPS]["metrics"]["loss"], places=6)
        # Other data.
        half = self.folder / "half"
        half.mkdir()
        previous, self.folder = self.folder, half
        self.idx_data(samples=50)
        self.folder = previous
        other = self.evaluate(result.run_dir, "--json", "--data", "validation={features: half/images, target: half/labels}")
        self.assertEqual(other["samples"], 50)
        model = Net()
        model.load_state_dict(safetensors.torch.load_file(result.weights_file), strict=False)
        model.eval()
        images = read_idx(self.folder / "images").float()[:, None] / 255
        with torch.no_grad():
            wanted = model(images)
        self.check_predictions(result.run_dir, wanted)
        said, content = self.predict(result.run_dir, 2, "out.safetensors")
        self.assertEqual((said["shape"], said["samples"], said["ranks"]), ([191, 10], 191, 2))
        outputs = safetensors.torch.load(content)["outputs"]
        torch.testing.assert_close(outputs, wanted, rtol=2e-5, atol=2e-6)
        lines = [json.loads(line) for line in self.predict(result.run_dir, 2, "out.jsonl")[1].splitlines()]
        self.assertEqual([line["index"] for line in lines], list(range(191)))
        self.assertEqual(torch.tensor([line["output"] for line in lines]).tolist(), outputs.tolist())
        # Batches of another size, more of them than samples of the data for each rank.
        contents = {self.predict(result.run_dir, ranks, "out.npy", "--batch-size", 100)[1] for ranks in (1, 3)}
        self.assertEqual(len(contents), 1)
        numpy.testing.assert_allclose(numpy.load(io.BytesIO(contents.pop())), wanted.numpy(), rtol=2e-5, atol=2e-6)
        self.assertIn("--batch-size", self.call("predict", result.run_dir, "--out", "x.npy", "--batch-size", 0, code=2))
        self.assertIn("in .npy, .safetensors or .jsonl", self.call("predict", result.run_dir, "--out", "x.csv", code=2))
        self.assertIn("--force", self.call("predict", result.run_dir, "--out", moved, code=2))
        for words, said in (((result.run_dir, 5), "there is no checkpoint of step 5"), ((self.folder / "nothing",), "nothing"),
                            ((result.run_dir, "--data", "validation=null"), "there is no validation data"),
                            ((result.run_dir, "--set", "initial_weights.strict=false"), "has no effect"),
                            ((result.run_dir, "--set", "optimizer.kind=adamx"), "adamx")):
            self.assertIn(said, self.evaluate(*words, code=1 if "null" in str(words[-1]) else 2))


class Exported(EvaluateTest):
    def test_predictions(self):
        case = CASES["cnn"]
        torch.manual_seed(1)
        data, _ = save_data(case, self.folder, 2)
        held_out = make_data(case, 2 * case.samples + 1, seed=9)
        safetensors.torch.save_file(held_out, self.folder / "held_out.safetensors")
        export(case, case.make(), data, self.folder / "model.pt2")
        result = self.train(sections_of(case, self.folder, 2, **KEPT))
        self.check_predictions(result.run_dir)


class Trials(EvaluateTest):
    def test_python(self):
        (self.folder / "trial.py").write_text(TRIAL)
        sections = {"name": "trial", "entrypoint": "trial.py:Trial", "hyperparameters": {"global_batch_size": 16},
                    "resources": {"slots_per_trial": 2}, "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}, **KEPT}
        result = self.train(sections)
        self.check_bits(result)
        self.check_beside(result, sections)
        data = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))[:77]
        weights = safetensors.torch.load_file(result.weights_file)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.ReLU(),
                                    torch.nn.Linear(16, 2))
        model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            self.check_predictions(result.run_dir, model.eval()(data))
        said = self.call("predict", result.run_dir, "--out", "out.npy", "--set", "hyperparameters.named=true", code=1)
        self.assertIn("no predict_batch()", said)
        self.assertEqual(list(self.folder.glob("out.npy*")), [])

    def test_cpp(self):
        sections = {"name": "synthetic", "entrypoint": self.build.program("synthetic"), "data": {"samples": 500},
                    "hyperparameters": {"global_batch_size": 32, "width": 32}, "resources": {"slots_per_trial": 2},
                    "searcher": {"metric": "loss", "max_length": {"batches": STEPS}}, **KEPT}
        result = self.train(sections)
        self.check_bits(result)
        self.check_full_disk("evaluate", result.run_dir)
        sections["data"]["samples"] = 510  # of which a tenth is validated
        self.check_predictions(self.train(sections).run_dir)

    def test_a_script_is_refused(self):
        (self.folder / "train.py").write_text("import dtrain\n")
        (self.folder / "weights.safetensors").write_bytes(b"")
        file = harness.write_experiment(self.folder / "script.yaml", name="script", entrypoint="train.py",
                                        hyperparameters={"global_batch_size": 2}, searcher={"max_length": {"batches": 1}})
        said = self.evaluate("weights.safetensors", "--experiment", file, code=2)
        self.assertIn("a script has a loop of its own", said)


if __name__ == "__main__":
    main("synthetic")
