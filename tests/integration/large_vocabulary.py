"""Files of models with a large last layer, whose cross entropy is computed in chunks: TorchScript and torch.export.

    large_vocabulary.py BIN_FOLDER [TestClass[.test] ...]

Runs are compared with those of `optimizations.operators: default`, which compute all scores.
"""

import math
import subprocess
from typing import Tuple

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from gpu_cases import gpu_environment
from harness import environment, launch, write_experiment
from torchscript_models import ScriptTest, experiment, main, save_script

CLASSES, WIDTH, LENGTH = 8192, 16, 271
SAMPLES = 8  # of a rank: scores of 71 MB in float32, in two chunks
STEPS = 4
LOSS = {"kind": "cross_entropy", "class_dimension": "last"}


class Language(nn.Module):
    def __init__(self, tied: bool = False):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(self.embedding(ids))))


class WithHidden(Language):
    def forward(self, ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.body(self.embedding(ids)))
        return self.head(hidden), hidden


class Multiplied(Language):
    """The same scores, which are no result of a linear layer."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(self.embedding(ids)))) * 1


class LargeVocabulary(ScriptTest):
    def make_data(self, ranks, samples=SAMPLES, length=LENGTH, ignored=None):
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(0, CLASSES, (STEPS * ranks * samples, length), generator=generator)
        target = (ids * 7 + 3) % CLASSES
        if ignored is not None:
            target[torch.rand(target.shape, generator=generator) < 0.3] = ignored
        self.batch = ranks * samples
        safetensors.torch.save_file({"x": ids, "y": target}, self.folder / "data.safetensors")
        return ids, target

    def make_model(self, kind, model):
        model = model.train()
        self.file = self.folder / ("model.pt2" if kind == "pt2" else "model.pt")
        example = torch.zeros(3, 5, dtype=torch.long)
        if kind == "pt2":
            dynamic = {"ids": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
            torch.export.save(torch.export.export(model, (example,), dynamic_shapes=dynamic), str(self.file))
        else:
            save_script(model, self.file, example if kind == "traced" else None)

    def sections(self, ranks, loss=None, validation=False, optimizations=None, **more):
        source = {"file": str(self.folder / "data.safetensors"), "features": "x", "target": "y"}
        data = {"format": "safetensors", "training": source, **({"validation": source} if validation else {})}
        more = {"scheduling_unit": 1, "reproducibility": {"experiment_seed": 3}, **more}
        return experiment(self.file, data, steps=STEPS, batch=self.batch, slots=ranks, loss={**LOSS, **(loss or {})},
                          optimizer={"kind": "sgd", "lr": 0.5, "momentum": 0.9},
                          optimizations={"matmul": "default", **(optimizations or {})}, **more)

    def train(self, ranks=1, sets=(), extra_environment=None, **more):
        file = write_experiment(self.folder / "experiment.yaml", **self.sections(ranks, **more))
        return launch(self.build, file, self.work.new_run(), sets, **(extra_environment or {})).expect(0)

    def losses(self, result):
        return torch.tensor([line["metrics"]["loss"] for line in result.metrics("training")], dtype=torch.float64)

    def told(self, result):
        return result.json("plan.json")["linear_cross_entropy"]

    def compare(self, ranks, rtol=1e-5, optimizations=None, **more):
        """Runs with and without chunks; returns both."""
        chunks = self.train(ranks, optimizations=optimizations, **more)
        plain = self.train(ranks, optimizations={"operators": "default", **(optimizations or {})}, **more)
        self.assertTrue(self.told(chunks)["used"], self.told(chunks))
        self.assertFalse(self.told(plain)["used"], self.told(plain))
        self.assertIn("operators is default", self.told(plain)["text"])
        expected = self.losses(plain)
        self.assertEqual(len(set(expected.tolist())), len(expected), "nothing is trained")
        torch.testing.assert_close(self.losses(chunks), expected, rtol=rtol, atol=0)
        weights, wanted = (safetensors.torch.load_file(str(run.weights_file)) for run in (chunks, plain))
        self.assertEqual(weights.keys(), wanted.keys())
        for name, tensor in wanted.items():
            difference = ((weights[name] - tensor).norm() / tensor.norm()).item()
            self.assertLess(difference, 10 * rtol, name)  # a bias that begins as 0 is all gradient
        for ours, theirs in zip(chunks.metrics("training"), plain.metrics("training")):
            self.assertEqual(ours["metrics"].keys(), theirs["metrics"].keys())
            self.assertAlmostEqual(ours["metrics"]["accuracy"], theirs["metrics"]["accuracy"], delta=2e-3)
        return chunks, plain


class Files(LargeVocabulary):
    def test_scripted_with_tied_weights(self):
        ids, _ = self.make_data(1)
        self.make_model("script", Language(tied=True))
        result, _ = self.compare(1)
        told = self.told(result)
        self.assertIn(told["layer"], ("embedding.weight", "head.weight"))
        self.assertEqual((told["classes"], told["scores_bytes"]), (CLASSES, SAMPLES * LENGTH * CLASSES * 4))
        script = torch.jit.load(str(result.weights_file.with_name("model.pt")))
        self.assertEqual(script(ids[:2]).shape, (2, LENGTH, CLASSES), "the file has the whole model")

    def test_traced_with_ignored_targets_on_two_ranks(self):
        self.make_data(2, ignored=-100)
        self.make_model("traced", Language())
        self.compare(2, loss={"ignore_index": -100})

    def test_an_element_of_a_tuple(self):
        self.make_data(1)
        self.make_model("script", WithHidden())
        self.compare(1, loss={"output": "0"})

    def test_exported_with_smoothing_on_three_ranks(self):
        ids, _ = self.make_data(3)
        self.make_model("pt2", Language())
        result, _ = self.compare(3, loss={"label_smoothing": 0.1})
        self.assertEqual(self.told(result)["layer"], "head.weight")
        program = torch.export.load(str(result.weights_file.with_name("model.pt2"))).module()
        self.assertEqual(program(ids[:2]).shape, (2, LENGTH, CLASSES), "the file has the whole model")

    def test_exported_with_tied_weights_windows_and_sharded_updates(self):
        self.make_data(2)
        self.make_model("pt2", Language(tied=True))
        self.compare(2, optimizations={"aggregation_frequency": 2, "sharded_optimizer": True})

    def test_bfloat16(self):
        self.make_data(1, samples=2 * SAMPLES)
        self.make_model("pt2", Language())
        self.compare(1, rtol=0.02, optimizations={"mixed_precision": "bf16"})


class Bits(LargeVocabulary):
    def test_the_same_again_sharded_and_after_an_interruption(self):
        self.make_data(2)
        self.make_model("pt2", Language(tied=True))
        first = self.train(2)
        self.assertTrue(self.told(first)["used"])
        weights = first.weights_file.read_bytes()
        self.assertEqual(weights, self.train(2).weights_file.read_bytes())
        sharded = self.train(2, optimizations={"sharded_optimizer": True})
        self.assertEqual(weights, sharded.weights_file.read_bytes())
        short = self.train(2, sets=["searcher.max_length.batches=2"])
        command = [self.build.program("dtrain"), "launch", "--continue", str(short.run_dir), "--set",
                   f"searcher.max_length.batches={STEPS}"]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(weights, short.weights_file.read_bytes())

    def test_modules_that_are_computed_again(self):
        self.make_data(1)
        self.make_model("pt2", Language())
        runs = [self.train(optimizations=more) for more in ({}, {"gradient_checkpointing": "body"})]
        self.assertTrue(all(self.told(run)["used"] for run in runs))
        self.assertEqual(*(run.weights_file.read_bytes() for run in runs))

    def test_small_scores_have_those_of_a_model_without_such_a_layer(self):
        self.make_data(1, length=12)
        runs = []
        for kind in (Language, Multiplied):
            torch.manual_seed(1)
            self.make_model("script", kind())
            runs.append(self.train())
        told = [self.told(run) for run in runs]
        self.assertFalse(told[0]["used"])
        self.assertIn("are computed as a whole: chunks are for scores of 64.0 MiB or more", told[0]["text"])
        self.assertIn("its scores are the result of aten::mul, not of a linear layer", told[1]["text"])
        self.assertEqual(self.losses(runs[0]).tolist(), self.losses(runs[1]).tolist())
        self.assertEqual(runs[0].weights_file.read_bytes(), runs[1].weights_file.read_bytes())

    def test_class_weights_need_the_scores(self):
        self.make_data(1, length=12)
        self.make_model("script", Language())
        result = self.train(loss={"class_weights": [1.0] * CLASSES})
        self.assertEqual(self.told(result), {"used": False, "text": "the loss gets the scores of the model, because "
                                                                    "loss.class_weights are set"})


class Validation(LargeVocabulary):
    def test_metrics_get_their_scores(self):
        ids, target = self.make_data(1)
        for kind, metrics in (("script", ["accuracy", "perplexity", "top_5_accuracy"]), ("pt2", ["accuracy"])):
            self.make_model(kind, Language())
            result = self.train(validation=True, metrics=metrics)
            self.assertTrue(self.told(result)["used"])
            model = Language()
            model.load_state_dict(safetensors.torch.load_file(str(result.weights_file)))
            with torch.no_grad():
                scores, wanted = model(ids).flatten(0, 1), target.flatten()
                loss = F.cross_entropy(scores, wanted).item()
                best = scores.topk(5, 1).indices
            expected = {"loss": loss, "accuracy": (scores.argmax(1) == wanted).double().mean().item()}
            if "perplexity" in metrics:
                expected["perplexity"] = math.exp(loss)
                expected["top_5_accuracy"] = (best == wanted[:, None]).any(1).double().mean().item()
            got = result.metrics("validation")[-1]["metrics"]
            self.assertEqual(got.keys(), expected.keys())
            for name, value in expected.items():
                self.assertAlmostEqual(got[name], value, delta=1e-4 * max(1, abs(value)), msg=f"{kind}: {name}")


class Gpus(LargeVocabulary):
    def test_on_gpus(self):
        self.make_data(2)
        self.make_model("script", Language(tied=True))
        on_cpu = self.train(2, optimizations={"memory_format": "contiguous"})
        for graphs in (False, True):
            result = self.train(2, sets=["resources.slot_type=cuda"], extra_environment=gpu_environment(self.build),
                                optimizations={"memory_format": "contiguous", "cuda_graphs": graphs})
            self.assertTrue(self.told(result)["used"], self.told(result))
            torch.testing.assert_close(self.losses(result), self.losses(on_cpu), rtol=1e-4, atol=0)


if __name__ == "__main__":
    main()
