"""Whole runs over documents of tokens: padded, packed, on any number of ranks, going on; the example of docs/data.md.

    documents.py BIN_FOLDER [TestClass[.test] ...]
"""
import re
import subprocess

import numpy
import torch
from torch import nn

from harness import SOURCE, environment, launch, overrides, run
from torchscript_models import ScriptTest, experiment, main, random_weights, save_script

END = 30
LENGTH = 24
IGNORED = {"kind": "cross_entropy", "ignore_index": -100}
PADDED = {"kind": "pad_to_longest", "end_token": END, "multiple_of": 4, "mask": True, "lengths": True}
PACKED = {"kind": "pack_tokens", "end_token": END, "positions": True, "documents": True}


class Bigram(nn.Module):
    """Scores of the next token from the token alone; checks what it is given besides."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(END + 1, END + 1)


class Padded(Bigram):
    def forward(self, x, mask, lengths):
        assert bool((mask.sum(1) == lengths).all()), "mask and lengths differ"
        assert x.size(1) % 4 == 0 and x.size(1) - int(lengths.max()) < 4, "padded to another length"
        assert int((x * (1 - mask)).abs().sum()) == 0, "padding is not 0"
        return self.table(x)


class Packed(Bigram):
    def forward(self, x, positions, documents):
        assert bool((positions[:, 0] == 0).all()), "a row begins within a document"
        same = documents[:, 1:] == documents[:, :-1]
        goes_on = positions[:, 1:] == positions[:, :-1] + 1
        assert bool((goes_on == (same & (documents[:, 1:] >= 0))).all()), "positions and documents differ"
        return self.table(x)


def documents(count, seed):
    """Lengths from 1 to 60, so that some are longer than a sample; each ends with the end token."""
    generator = numpy.random.default_rng(seed)
    return numpy.concatenate([numpy.append(generator.integers(0, END, generator.integers(1, 60)), END) for _ in range(count)])


class DocumentTest(ScriptTest):
    def setUp(self):
        super().setUp()
        for name, count, seed in (("train-0.bin", 50, 1), ("train-1.bin", 37, 2), ("val.bin", 23, 3)):
            documents(count, seed).astype(numpy.uint16).tofile(self.folder / name)

    def sections(self, transform, steps=7, batch=12, slots=1, **keys):
        model = Padded() if transform is PADDED else Packed()
        random_weights(model, 4)
        save_script(model, self.folder / "model.pt")
        data = {"format": "tokens", "sequence_length": LENGTH, "training": {"file": "train-*.bin", "transforms": [transform]},
                "validation": {"file": "val.bin", "transforms": [transform]}, **keys}
        return experiment("model.pt", data, steps=steps, batch=batch, slots=slots, loss=IGNORED,
                          optimizer={"kind": "adamw", "lr": 0.05})

    def go_on(self, result, *sets):
        command = [self.build.program("dtrain"), "launch", "--continue", str(result.run_dir), *overrides(sets)]
        return run(command, result.run_dir).expect(0)


class Runs(DocumentTest):
    def test_going_on_gives_the_same_bits(self):
        for transform in (PADDED, PACKED):
            for slots in (1, 2, 3):
                with self.subTest(transform["kind"], slots=slots):
                    steps = 11 if slots == 2 else 5  # more than an epoch, or within one
                    whole = self.launched(self.sections(transform, steps, slots=slots, workers=2)).expect(0)
                    part = self.launched(self.sections(transform, 3, slots=slots, workers=0)).expect(0)
                    result = self.go_on(part, f"searcher.max_length.batches={steps}", "data.workers=1")
                    self.assertEqual(result.weights_file.read_bytes(), whole.weights_file.read_bytes())
                    self.assertEqual(result.metrics("validation")[-1]["metrics"], whole.metrics("validation")[-1]["metrics"])

    def test_padded_or_packed_on_any_number_of_ranks_a_document_has_the_same_loss(self):
        losses = []
        for transform in (PADDED, PACKED):
            for slots in (1, 2, 3):
                sections = self.sections(transform, steps=2, slots=slots)
                sections["optimizer"]["lr"] = 1e-12
                validation = self.launched(sections).expect(0).metrics("validation")[-1]
                losses.append(validation["metrics"]["loss"])
        # By hand: each token of a document but its first is a target once, whatever its sample is.
        tokens = torch.from_numpy(numpy.fromfile(self.folder / "val.bin", numpy.uint16).astype(numpy.int64))
        model = Padded()
        random_weights(model, 4)
        scores, targets = model.table(tokens[:-1]), tokens[1:]
        within = tokens[:-1] != END
        expected = nn.functional.cross_entropy(scores[within], targets[within]).item()
        for loss in losses:
            self.assertAlmostEqual(loss, expected, places=5)

    def test_a_model_that_does_not_take_them_is_an_error_that_names_them(self):
        class Plain(Bigram):
            def forward(self, x):
                return self.table(x)

        sections = self.sections(PACKED)
        save_script(Plain(), self.folder / "model.pt")
        output = self.launched(sections).expect(1).output
        self.assertIn("'positions'", output)
        self.assertIn("'documents'", output)

    def test_a_wrong_end_token_is_an_error_before_training(self):
        wrong = dict(PACKED, end_token=500)
        output = self.launched(self.sections(wrong)).expect(1).output
        self.assertRegex(output, r"train-0.bin: offset \d+: no document ends before the file does: no token is 500")


class Example(ScriptTest):
    """What docs/data.md shows, as it stands there."""

    def test_trains(self):
        text = (SOURCE / "docs" / "data.md").read_text().split("\n### Documents\n")[1].split("\n### ")[0]
        command, file = re.search(r"^    dtrain (data pack .*)$", text, re.MULTILINE)[1], re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(257, 257)

            def forward(self, x, positions, documents):
                return self.table(x)

        save_script(Model(), self.folder / "model.pt")
        (self.folder / "texts").mkdir()
        for number in range(40):
            (self.folder / "texts" / f"{number}.txt").write_text(f"document {number} has some letters\n" * (1 + number % 5))
        for files, name in (("texts/?.txt", "val.bin"), ("texts/??.txt", "train.bin")):
            packing = re.sub(r"\S+ -o \S+", f"{files} -o {name}", command)
            subprocess.run(f"{self.build.program('dtrain')} {packing}", shell=True, check=True, cwd=self.folder, env=environment())
        (self.folder / "experiment.yaml").write_text(file)
        result = launch(self.build, self.folder / "experiment.yaml", self.work.new_run()).expect(0)
        losses = [line["metrics"]["loss"] for line in result.metrics("validation")]
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    main()
