"""Whole runs from pictures: folders, shards, transforms, going on, damage.

    pictures.py BIN_FOLDER [TestClass[.test] ...]
"""
import io
import json
import subprocess
import tarfile

import numpy
import torch
from PIL import Image
from torch import nn

from harness import environment, overrides, run
from torchscript_models import ScriptTest, experiment, main, save_script

CROP = [{"kind": "random_resized_crop", "size": 16, "min_area": 0.5}, {"kind": "horizontal_flip"},
        {"kind": "color_jitter", "brightness": 0.1}, {"kind": "normalize"}]
MIDDLE = [{"kind": "resize", "size": 18}, {"kind": "center_crop", "size": 16}, {"kind": "normalize"}]


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 3, stride=2), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.conv(x).relu().mean([2, 3]))


def jpeg(label, generator):
    """Red or blue, with noise."""
    pixels = generator.integers(0, 90, (int(generator.integers(20, 40)), int(generator.integers(20, 40)), 3))
    pixels[..., 2 * label] += 120
    file = io.BytesIO()
    Image.fromarray(pixels.astype(numpy.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


class PictureTest(ScriptTest):
    def setUp(self):
        super().setUp()
        generator = numpy.random.default_rng(5)
        for split, count in (("train", 60), ("val", 21)):
            for number in range(count):
                folder = self.folder / split / ("blue" if number % 2 else "red")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:03}.jpg").write_bytes(jpeg(number % 2, generator))
        torch.manual_seed(3)
        save_script(Small(), self.folder / "model.pt")

    def dtrain(self, *words):
        done = subprocess.run([self.build.program("dtrain"), *map(str, words)], env=environment(), cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def pack(self):
        for split in ("train", "val"):
            self.dtrain("data", "pack", split, "-o", "shards", "--name", split)

    def shards(self, **keys):
        return {"format": "shards", "training": {"files": "shards/train-*.tar", "transforms": CROP},
                "validation": {"files": "shards/val-*.tar", "transforms": MIDDLE}, **keys}

    def training(self, data, **more):
        sections = experiment("model.pt", data, batch=12, **{"optimizer": {"kind": "adamw", "lr": 0.02}, **more})
        sections["searcher"].update(metric="accuracy", smaller_is_better=False)
        return sections


class Training(PictureTest):
    def test_learns_from_a_folder_with_any_number_of_workers(self):
        data = {"format": "image_folder", "training": {"folder": "train", "transforms": CROP},
                "validation": {"folder": "val", "transforms": MIDDLE}}
        weights = set()
        for workers in (0, 1, 3):
            result = self.launched(self.training(data | {"workers": workers}, steps=30, slots=2)).expect(0)
            weights.add(result.weights_file.read_bytes())
            validation = result.metrics("validation")[-1]
            self.assertEqual(validation["samples"], 21)
            self.assertGreater(validation["metrics"]["accuracy"], 0.9)
        self.assertEqual(len(weights), 1)

    def test_more_ranks_than_shards(self):
        self.pack()
        self.assertEqual(len(list((self.folder / "shards").glob("train-*.tar"))), 1)
        result = self.launched(self.training(self.shards(workers=1), steps=30, slots=3)).expect(0)
        self.assertGreater(result.metrics("validation")[-1]["metrics"]["accuracy"], 0.9)
        for rank in range(3):  # a third of each batch is read by each
            dump = result.run_dir / "profile" / f"rank-{rank:04}.jsonl"
            records = [json.loads(line) for line in dump.read_text().splitlines()]
            loaded = [record for record in records if record["record"] == "loader"]
            self.assertEqual(len(loaded), 30)
            self.assertGreater(sum(record["bytes"] for record in loaded), 0)

    def test_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(self):
        self.pack()
        whole = self.launched(self.training(self.shards(), steps=13, slots=2)).expect(0)
        part = self.launched(self.training(self.shards(workers=3), steps=7, slots=2)).expect(0)
        command = [self.build.program("dtrain"), "launch", "--continue", str(part.run_dir),
                   *overrides(("searcher.max_length.batches=13", "data.workers=0"))]
        went_on = run(command, part.run_dir).expect(0)
        self.assertEqual(went_on.weights_file.read_bytes(), whole.weights_file.read_bytes())

    def test_mixed_batches(self):
        self.pack()
        data = self.shards(scaled_decoding=True)
        data["training"]["transforms"] = CROP + [{"kind": "mixup", "alpha": 0.4, "classes": 2}, {"kind": "cutmix", "classes": 2}]
        result = self.launched(self.training(data, steps=40, slots=2)).expect(0)
        self.assertGreater(result.metrics("validation")[-1]["metrics"]["accuracy"], 0.8)


class SlowDecoding(PictureTest):
    def test_is_a_finding_that_names_what_to_change(self):
        generator = numpy.random.default_rng(6)
        for number in range(16):
            pixels = generator.integers(0, 255, (900, 900, 3)).astype(numpy.uint8)  # noise takes longest to decode
            folder = self.folder / "huge" / ("blue" if number % 2 else "red")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.jpg", "JPEG", quality=95)
        source = {"folder": "huge", "transforms": [{"kind": "resize", "size": 16, "width": 16}, {"kind": "normalize"}]}
        sections = self.training({"format": "image_folder", "training": source, "workers": 1}, steps=20)
        sections["hyperparameters"]["global_batch_size"] = 4
        sections["searcher"] = {"max_length": {"batches": 20}, "metric": "loss"}
        result = self.launched(sections).expect(0)
        analyzed = run([self.build.program("dtrain"), "analyze", str(result.run_dir), "--json"], result.run_dir).expect(0)
        finding = next(one for one in json.loads(analyzed.output)["findings"] if one["id"] == "loader")
        self.assertEqual(finding["cause"], "slow_loader", finding)
        self.assertRegex(finding["evidence"], r"workers spend \d\S* of their time on a core")
        # Without a free core, by other programs on this machine, the advice is to give it one.
        for key in ("resources.cores_per_slot",) + (("data.workers", "data.scaled_decoding") if "fewer ranks" not in
                                                    finding["advice"] else ()):
            self.assertIn(key, finding["advice"])


class Damage(PictureTest):
    def damage(self):
        """Cuts the picture data of one member short, and keeps the archive whole."""
        self.pack()
        path = next((self.folder / "shards").glob("train-*.tar"))
        with tarfile.open(path) as archive:
            member = [one for one in archive if one.name.endswith(".jpg")][17]
        content = bytearray(path.read_bytes())
        middle = member.offset_data + member.size // 2
        content[middle : member.offset_data + member.size] = b"\xff\xd9" * ((member.size - member.size // 2 + 1) // 2)
        path.write_bytes(content[: path.stat().st_size])
        return path, member

    def whole(self, **keys):
        """Every row of each picture is needed."""
        data = self.shards(**keys)
        data["training"]["transforms"] = [{"kind": "resize", "size": 16, "width": 16}]
        del data["validation"]
        sections = experiment("model.pt", data, steps=5, batch=12)
        sections["searcher"] = {"max_length": {"batches": 5}, "metric": "loss"}
        return sections

    def test_is_an_error_with_shard_offset_and_member(self):
        path, member = self.damage()
        result = self.launched(self.whole()).expect(1)
        self.assertIn(f"{path}, offset {member.offset_data} ({member.name}): damaged", result.output)
        self.assertIn("on_error: skip", result.output)

    def test_may_be_left_out(self):
        self.damage()
        result = self.launched(self.whole(on_error="skip")).expect(0)
        log = (result.run_dir / "logs" / "rank-0000.log").read_text()
        self.assertIn("damaged", log)

    def test_of_a_shard_is_an_error_before_training(self):
        self.pack()
        path = next((self.folder / "shards").glob("train-*.tar"))
        path.write_bytes(path.read_bytes()[:5000])
        result = self.launched(self.whole()).expect(1)
        self.assertIn(f"{path}: offset ", result.output)
        self.assertIn("truncated", result.output)


if __name__ == "__main__":
    main()
