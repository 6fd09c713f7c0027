"""dtrain.data.Loader by itself, in a script with session.wrap(), and in a Trial: the same samples in the same order.

    loaders.py BIN_FOLDER [Alone|Runs]
"""
import json
import sys
import unittest
from pathlib import Path

import forked
import package

import harness

HERE = Path(__file__).resolve().parent
SAMPLES, GLOBAL_BATCH, EPOCHS = 90, 8, 2
# The order of 10 samples with seed 7, epochs 0 and 1: the same numbers are in tests/data/epoch_order_test.cpp.
ORDER_OF_TEN = [[4, 9, 6, 8, 1, 2, 5, 0, 3, 7], [5, 2, 6, 8, 3, 4, 0, 9, 1, 7]]


def write_arrays(folder, samples=SAMPLES):
    """x.npy has the number of the sample in each of its elements."""
    numbers = numpy.arange(samples)
    numpy.save(folder / "x.npy", numpy.repeat(numbers[:, None], 12, 1).astype("float32"))
    numpy.save(folder / "y.npy", numbers.astype("int64"))


class Alone(harness.WorkplaceTest):
    def setUp(self):
        super().setUp()
        self.folder = self.work.new_run()
        self.folder.mkdir()
        write_arrays(self.folder)

    def loader(self, **settings):
        given = {"format": "npy", "features": self.folder / "x.npy", "target": self.folder / "y.npy", "batch_size": GLOBAL_BATCH}
        return dtrain.data.Loader(**{**given, **settings})

    def test_an_epoch_is_an_iteration_over_tensors(self):
        loader = self.loader(shuffle=False, drop_last=False)
        batches = list(loader)
        self.assertEqual(len(batches), len(loader))
        self.assertEqual(loader.samples, SAMPLES)
        self.assertEqual([batch["target"].shape[0] for batch in batches], [8] * 11 + [2])
        targets = torch.cat([batch["target"] for batch in batches])
        self.assertTrue(torch.equal(targets, torch.arange(SAMPLES)))
        features = torch.cat([batch["features"] for batch in batches])
        self.assertTrue(torch.equal(features, targets[:, None].expand(-1, 12).to(torch.float32)))

    def test_the_order_is_that_of_the_engine(self):
        write_arrays(self.folder, 10)
        loader = self.loader(batch_size=2, seed=7)
        for epoch in ORDER_OF_TEN:
            self.assertEqual(torch.cat([batch["target"] for batch in loader]).tolist(), epoch)

    def test_batches_are_the_same_with_any_number_of_workers_and_divided_among_ranks(self):
        whole = [batch["target"].tolist() for batch in self.loader(workers=0, seed=3)]
        for workers in (1, 3, "auto"):
            self.assertEqual([batch["target"].tolist() for batch in self.loader(workers=workers, seed=3)], whole)
        ranks = [self.loader(seed=3, rank=rank, world_size=2) for rank in range(2)]
        parts = [first["target"].tolist() + second["target"].tolist() for first, second in zip(*ranks)]
        self.assertEqual(parts, whole)

    def test_batches_stay_when_the_loader_goes_on(self):
        loader = self.loader()
        kept = [(batch["target"], batch["target"].clone()) for batch in loader]
        list(loader)
        del loader
        for tensor, copy in kept:
            self.assertTrue(torch.equal(tensor, copy))
            tensor.add_(1)  # its memory is the batch's own

    def test_a_state_goes_on_with_other_ranks_and_nothing_is_lost(self):
        straight = self.loader(seed=5)
        wanted = [n for _ in range(3) for batch in straight for n in batch["target"].tolist()]
        for stop in (0, 1, 5, 11, 12, 21):
            seen, first = [], self.loader(seed=5)
            taken = 0
            while taken < stop:
                for batch in first:
                    seen += batch["target"].tolist()
                    taken += 1
                    if taken == stop:
                        break
            state = first.state_dict()
            self.assertLess(len(json.dumps(state)), 1024)
            second = [self.loader(seed=5, rank=rank, world_size=4) for rank in range(4)]
            for loader in second:
                loader.load_state_dict(json.loads(json.dumps(state)))
            while second[0].epoch < 3:
                for parts in zip(*second):
                    for part in parts:
                        seen += part["target"].tolist()
            self.assertEqual(seen, wanted, f"stopped after {stop} batches")

    def test_documents_of_tokens_are_padded_and_packed(self):
        file = self.folder / "tokens.bin"
        numpy.array([1, 2, 3, 9, 4, 9, 5, 6, 9], dtype="uint16").tofile(file)
        tokens = {"format": "tokens", "file": file, "sequence_length": 7, "shuffle": False, "drop_last": False}
        padded = dtrain.data.Loader(**tokens, batch_size=2, transforms=[{"kind": "pad_to_longest", "end_token": 9, "mask": True}])
        first, last = padded
        self.assertEqual(first["features"].tolist(), [[1, 2, 3], [4, 0, 0]])
        self.assertEqual(first["target"].tolist(), [[2, 3, 9], [9, -100, -100]])
        self.assertEqual(first["mask"].tolist(), [[1, 1, 1], [1, 0, 0]])
        self.assertEqual(last["features"].tolist(), [[5, 6]])
        (packed,) = dtrain.data.Loader(**tokens, batch_size=2, transforms=[
            {"kind": "pack_tokens", "end_token": 9, "positions": True, "documents": True}])
        self.assertEqual(packed["features"].tolist(), [[1, 2, 3, 9, 4, 0, 0], [5, 6, 0, 0, 0, 0, 0]])
        self.assertEqual(packed["positions"].tolist(), [[0, 1, 2, 3, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]])
        self.assertEqual(packed["documents"].tolist(), [[0, 0, 0, 0, 1, -1, -1], [0, 0, -1, -1, -1, -1, -1]])

    def test_a_state_of_other_data_or_another_seed_is_refused(self):
        loader = self.loader(seed=5)
        next(iter(loader))
        with self.assertRaisesRegex(dtrain.DataError, "the samples had the order of 90 samples.*seed 5.*seed 6"):
            self.loader(seed=6).load_state_dict(loader.state_dict())

    def test_wrong_keys_are_named(self):
        for settings, text in (({"transforms": [{"kind": "normalize"}]}, "transforms: has no effect with format npy"),
                               ({"workres": 2}, "workres: unknown key; did you mean 'workers'"),
                               ({"workers": -3}, "workers: must be"),
                               ({"format": "nyp"}, "format: must be"),
                               ({"target": None}, "training.target: required key is missing"),
                               ({"batch_size": 9, "world_size": 2}, "batch_size is 9, which does not divide among 2 ranks"),
                               ({"features": "nowhere.npy"}, "nowhere.npy: cannot be opened")):
            with self.subTest(settings=settings):
                with self.assertRaisesRegex(dtrain.Error, text):
                    iter(self.loader(**settings)).__next__()

    def test_pictures_are_transformed_as_torchvision_does(self):
        from PIL import Image
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.transforms import v2

        numbers = numpy.random.default_rng(1)
        for name in ("cat/a.png", "cat/b.png", "dog/a.png"):
            path = self.folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(numbers.integers(0, 256, (40, 60, 3), dtype="uint8")).save(path)
        loader = dtrain.data.Loader("image_folder", folder=self.folder / "photos", batch_size=3, shuffle=False,
                                    transforms=[{"kind": "resize", "size": 32}, {"kind": "center_crop", "size": 24}])
        batch = next(iter(loader))
        self.assertEqual(batch["label"].tolist(), [0, 0, 1])
        same = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(24)])
        wanted = torch.stack([same(decode_image(str(self.folder / "photos" / name), ImageReadMode.RGB))
                              for name in ("cat/a.png", "cat/b.png", "dog/a.png")])
        self.assertEqual(batch["image"].dtype, torch.uint8)
        self.assertLessEqual((batch["image"].int() - wanted.int()).abs().max().item(), 1)

    def test_a_damaged_sample_is_an_error_or_replaced_with_a_warning(self):
        from PIL import Image

        for name in ("cat/a.jpg", "cat/b.jpg", "dog/a.jpg"):
            path = self.folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (10, 20, 30)).save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:len(whole) // 2])
        settings = {"format": "image_folder", "folder": self.folder / "photos", "batch_size": 3, "shuffle": False,
                    "transforms": [{"kind": "center_crop", "size": 24}]}
        with self.assertRaisesRegex(dtrain.DataError, r"sample 2.*dog/a.jpg.*truncated"):
            next(iter(dtrain.data.Loader(**settings)))
        loader = dtrain.data.Loader(**settings, on_error="skip")
        with self.assertWarnsRegex(UserWarning, r"a damaged sample was replaced: sample 2.*dog/a.jpg"):
            batch = next(iter(loader))
        self.assertEqual(batch["label"].tolist(), [0, 0, 0])  # that of the first sample, which follows the last one
        self.assertEqual(loader.skipped, 1)


class Runs(harness.WorkplaceTest):
    """Two ranks each write which samples they trained on; together they are those of a loader by itself."""

    def seen(self, entrypoint, **hyperparameters):
        folder = self.work.new_run()
        folder.mkdir()
        write_arrays(folder)
        experiment = harness.write_experiment(
            folder / "loaders.yaml", name="loaders", entrypoint=str(HERE / entrypoint),
            hyperparameters={"global_batch_size": GLOBAL_BATCH, "data": str(folder), "epochs": EPOCHS, **hyperparameters},
            reproducibility={"experiment_seed": 11}, resources={"slots_per_trial": 2},
            searcher={"max_length": {"epochs": EPOCHS}})
        result = forked.run(str(HERE / entrypoint), folder, experiment, 2)
        return result, folder

    def check(self, entrypoint):
        result, folder = self.seen(entrypoint)
        result.expect(0)
        ranks = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]
        alone = dtrain.data.Loader("npy", features=folder / "x.npy", target=folder / "y.npy", batch_size=GLOBAL_BATCH, seed=11)
        wanted = [batch["target"].tolist() for _ in range(EPOCHS) for batch in alone]
        self.assertEqual([first + second for first, second in zip(*ranks)], wanted)

    def test_a_script(self):
        self.check("loaders_script.py")

    def test_a_trial(self):
        self.check("loaders_trial.py:Seen")

    def test_what_is_the_runs_cannot_be_given(self):
        result, _ = self.seen("loaders_script.py", seed=4)
        self.assertEqual(result.code, 1, result.output)
        self.assertIn("Loader(seed=4) has no effect in a run", result.output)


if __name__ == "__main__":
    build = harness.Build(sys.argv.pop(1), trial="dtrain")
    forked.use_package(build)
    import dtrain
    import numpy
    import torch

    unittest.main(verbosity=2)
