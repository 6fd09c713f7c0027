"""dtrain.data.Loader by itself, in a script with session.wrap(), and in a Trial: the same samples in the same order; batches of a
script's own loader, whatever they are; and what each sample counts.

    loaders.py BIN_FOLDER [Alone|Division|Runs|Batches]
"""
import collections
import itertools
import json
import resource
import types
import unittest
from pathlib import Path

import forked

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


class Drawing(list):
    """Samples with numbers that are drawn for them."""

    def __getitem__(self, index):
        return super().__getitem__(index), torch.rand(()).item(), float(numpy.random.rand())


class Division(unittest.TestCase):
    """Batches become those of ranks, without a run."""

    def setUp(self):
        self.x, self.y = torch.randn(16, 20), torch.arange(16)

    def part(self, batch, count=16, **settings):
        parts = batch_parts.BatchParts(**settings)
        self.assertEqual(parts.count(batch), count)
        return parts.part(batch, slice(4, 12), count)

    def refused(self, batch, *texts, **settings):
        with self.assertRaises(dtrain.DataError) as caught:
            parts = batch_parts.BatchParts(**settings)
            parts.part(batch, slice(4, 12), parts.count(batch))
        for text in (*texts, "dtrain.divisible(", "dtrain.divided("):
            self.assertIn(text, str(caught.exception))

    def epoch(self, loader, rank=0, ranks=1, number=0, skip=0, **more):
        source = sample_division.Source(loader, rank, ranks, 7, whole_batches=True, **more)
        return [(batch, source.count, source.global_samples) for batch in source.epoch(number, skip)]

    def test_arrays_and_lists_are_divided_alike(self):
        x, y = self.x, self.y
        Named = collections.namedtuple("Named", "x y")
        names, boxes = [f"s{one}" for one in range(16)], [{"boxes": torch.full((one + 1, 4), one)} for one in range(16)]
        for batch in ({"x": x, "y": y}, collections.OrderedDict(x=x, y=y), collections.UserDict(x=x, y=y), batches_script.Pair(x, y),
                      Named(x, y), (x, y), {"x": x.numpy(), "y": y.numpy()}, {"x": tuple(x), "y": tuple(y)},
                      {"x": {"inner": (x, x)}, "y": y}, {"y": y, "names": names, "scale": 2.0, "kind": "train", "none": None},
                      {"y": y, "boxes": boxes}, {"y": y, "zero": torch.tensor(3.0)}):
            with self.subTest(batch=type(batch).__name__):
                found = self.part(batch)
                self.assertIs(type(found), type(batch))
                values = found if isinstance(found, dict) else getattr(found, "data", None) or {
                    "y": found.y if hasattr(found, "y") else found[1]}
                self.assertEqual([int(one) for one in values["y"]], list(range(4, 12)))
                for name, wanted in (("names", names[4:12]), ("scale", 2.0), ("kind", "train")):
                    self.assertEqual(values.get(name, wanted), wanted)
                if "boxes" in values:
                    self.assertEqual([int(one["boxes"][0, 0]) for one in values["boxes"]], list(range(4, 12)))
        self.assertEqual(self.part([y, y], lists_are_fields=True)[1].tolist(), list(range(4, 12)))
        self.assertEqual(self.part([{"y": one} for one in y], expected=16)[0]["y"], 4)
        self.assertEqual(self.part(names), names[4:12])

    def test_encodings_of_transformers_are_divided(self):
        class Encoding(collections.UserDict):
            _encodings = None

        batch = Encoding(x=self.x)
        batch._encodings = list(range(16))
        self.assertEqual(self.part(batch)._encodings, list(range(4, 12)))

    def test_what_does_not_say_its_samples_is_refused_by_name(self):
        x, y = self.x, self.y
        self.refused({"x": x, "y": y, "class_weights": torch.ones(4)}, "class_weights is a Tensor of 4", "whole=['class_weights']")
        self.refused((x.t(), y), "0 is a Tensor of 20 x 16, 1 is a Tensor of 16")
        self.refused([x.t(), y], "0 is a Tensor of 20 x 16", expected=16, lists_are_fields=True)
        self.refused({"x": x[:5], "z": torch.zeros(5, 16)}, "batch_size, 16", expected=16)
        self.refused({"x": x}, "seems to have 16 samples, and its batch_size is 8", expected=8)
        self.refused({"x": x, "graph": batches_script.Own(x, y)}, "graph is a Own")
        self.refused({"x": x, "names": ["a", "b"]}, "names is a list of 2")
        self.refused([torch.zeros(3, 5, 5)] * 16, "may have 3 or 16 samples")
        self.refused({"x": (x[:2], x[:2])}, "it may hold samples or fields")
        self.refused({"x": x.to_sparse(), "y": y}, "x is a Tensor of 16 x 20")
        self.refused(torch.nn.utils.rnn.pack_sequence([torch.zeros(3)]), "PackedSequence")
        self.refused({"kind": "train"}, "kind is a str")
        with self.assertRaisesRegex(dtrain.DataError, r"whole=\['w'\]\): a batch has no 'w'; it has x, y"):
            batch_parts.BatchParts(whole=("w",)).count({"x": x, "y": y})

    def test_a_script_says_what_a_batch_is(self):
        x, y = self.x, self.y
        found = self.part({"x": x, "w": torch.ones(4), "of": {"names": ["a"]}}, whole=("w", "of/names"))
        self.assertEqual([found["x"].shape[0], found["w"].shape[0], found["of"]["names"]], [8, 4, ["a"]])
        found = self.part((x.t(), y), samples=lambda batch: len(batch[1]), part=lambda batch, rows: (batch[0][:, rows], batch[1][rows]))
        self.assertTrue(torch.equal(found[0], x[4:12].t()))
        self.refused((x.t(), y), "samples says that it has 16", samples=lambda batch: 16)

    def test_lists_are_read_as_in_the_first_batch(self):
        parts = batch_parts.BatchParts(expected=4)
        pictures = [torch.zeros(3, 5, 5)] * 4
        self.assertEqual(parts.count(pictures), 4)
        self.assertEqual(len(parts.part(pictures[:3], slice(0, 1), parts.count(pictures[:3]))), 1)  # 3 of 3 channels

    def test_indices_are_divided_and_counted(self):
        for ranks, wanted in ((1, [(5, 5)] * 3 + [(1, 1)]), (2, [(2, 5)] * 3), (3, [(1, 5)] * 3)):
            loader = torch.utils.data.DataLoader(range(16), batch_size=5, shuffle=True,
                                                 collate_fn=lambda items: collections.UserString(str(items)))
            parts = [self.epoch(loader, rank, ranks) for rank in range(ranks)]
            self.assertEqual([(count, of_all if ranks > 1 else count) for _, count, of_all in parts[0]], wanted)
            whole = self.epoch(loader)
            for batches in zip(whole, *parts):
                texts = [json.loads(str(batch)) for batch, _, _ in batches]
                self.assertEqual(texts[0], list(itertools.chain(*texts[1:])))

    def test_samplers_are_read_one_batch_at_a_time(self):
        loader = torch.utils.data.DataLoader(range(40), batch_size=4, sampler=batches_script.Endless())
        source = sample_division.Source(loader, 0, 2, 7)
        self.assertIsNone(source.length())
        first = [batch.tolist() for batch in itertools.islice(source.epoch(0, 0), 6)]
        other = [batch.tolist() for batch in itertools.islice(sample_division.Source(loader, 1, 2, 7).epoch(0, 2), 4)]
        whole = [batch.tolist() for batch in itertools.islice(sample_division.Source(loader, 0, 1, 7).epoch(0, 0), 6)]
        self.assertEqual([mine + theirs for mine, theirs in zip(first[2:], other)], whole[2:])
        for settings in ({}, {"num_samples": 50}, {"generator": torch.Generator()}):
            def sampler():
                made = torch.utils.data.RandomSampler(range(20), **settings)
                (made.generator or torch.default_generator).manual_seed(5)
                return made

            self.assertEqual(list(sample_division._Shuffled(sampler())), list(sampler()))
        loader = torch.utils.data.DataLoader(range(10**7), batch_size=64, shuffle=True)
        next(sample_division.Source(torch.utils.data.DataLoader(range(10), batch_size=4, shuffle=True), 0, 2, 7).epoch(0, 0))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        next(sample_division.Source(loader, 0, 2, 7).epoch(0, 0))
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 150_000)  # KiB; a list has 360 MB

    def test_workers_settings_stay_and_a_batch_draws_the_same_in_a_run_that_goes_on(self):
        loader = torch.utils.data.DataLoader(Drawing(range(24)), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True,
                                             collate_fn=list, multiprocessing_context="fork")
        source = sample_division.Source(loader, 0, 2, 7, whole_batches=True)
        twin = source._batches
        self.assertEqual((twin.num_workers, twin.persistent_workers, twin.prefetch_factor, twin.collate_fn),
                         (1, True, loader.prefetch_factor, list))
        first = [list(source.epoch(number, 0)) for number in range(2)]
        self.assertEqual(list(source.epoch(1, 3)), first[1][3:])
        self.assertNotEqual(first[0][0][0][1:], first[1][0][0][1:])
        other = next(sample_division.Source(loader, 1, 2, 7, whole_batches=True).epoch(0, 0))
        self.assertNotEqual(other[0][1:], first[0][0][0][1:])

    def test_a_run_that_goes_on_says_that_workers_seed_themselves(self):
        warned = []
        context = types.SimpleNamespace(_native=types.SimpleNamespace(warn=warned.append))
        loader = torch.utils.data.DataLoader(range(24), batch_size=4, num_workers=1, worker_init_fn=print, multiprocessing_context="fork")
        for skip in (0, 3, 2):
            self.assertEqual(len(self.epoch(loader, skip=skip, context=context)), 6 - skip)
            self.assertEqual(len(warned), {0: 0, 3: 1, 2: 2}[skip])
        self.assertIn("worker_init_fn", warned[0])

    def test_what_every_rank_reads_is_drawn_alike(self):
        def names(rank=0, ranks=1, **more):
            stream = torch.utils.data.DataLoader(batches_script.Stream("texts"), batch_size=None, num_workers=more.pop("workers", 0))
            return [batch["names"] for batch, _, _ in self.epoch(stream, rank, ranks, **more)]

        whole = names(number=1)
        self.assertNotEqual(whole, names())
        self.assertEqual([first + second for first, second in zip(names(0, 2, number=1), names(1, 2, number=1))], whole)
        self.assertEqual(names(number=1, skip=2), whole[2:])
        self.assertEqual(names(number=1, workers=1), names(number=1, workers=1))

    def test_a_rank_draws_its_own_where_it_reads_its_own(self):
        loader = torch.utils.data.DataLoader([0] * 8, batch_size=4, collate_fn=lambda items: numpy.random.rand())
        draws = {rank: [batch for batch, _, _ in self.epoch(loader, rank, 2)] for rank in range(2)}
        self.assertEqual(len({*draws[0], *draws[1]}), 4)
        self.assertEqual([batch for batch, _, _ in self.epoch(loader, 1, 2, skip=1)], draws[1][1:])


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


class Batches(harness.WorkplaceTest):
    """Scripts with batches of any kind: weights and samples are those of one process."""

    def start(self, kind, ranks, other=-1, trial=""):
        folder = self.work.new_run()
        folder.mkdir()
        if kind.startswith("engine "):
            forked.in_a_fork(batches_script.write_arrays, folder, kind)
        experiment = harness.write_experiment(
            folder / "batches.yaml", name="batches", entrypoint=str(HERE / "batches_script.py") + trial,
            hyperparameters={"global_batch_size": batches_script.BATCH, "kind": kind, "folder": str(folder), "other": other},
            reproducibility={"experiment_seed": 11}, resources={"slots_per_trial": ranks}, scheduling_unit=1,
            searcher={"max_length": {"batches": 1000} if kind == "endless" else {"epochs": batches_script.EPOCHS}})
        return forked.run(str(HERE / "batches_script.py") + trial, folder, experiment, ranks), folder

    def check(self, kind, ranks, trial=""):
        """The samples of each batch, and the weights."""
        result, folder = self.start(kind, ranks, trial=trial)
        result.expect(0)
        seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(ranks)]
        batches = [list(itertools.chain(*parts)) for parts in zip(*seen)]
        if kind.startswith("engine "):  # a rank may have none of the last batch of an epoch
            samples = list(range(int(kind.removeprefix("engine "))))
            epoch = [samples[first:first + batches_script.BATCH] for first in range(0, len(samples), batches_script.BATCH)]
            batches = epoch * batches_script.EPOCHS
            self.assertEqual(sorted(one for rank in seen for batch in rank for one in batch),
                             sorted(one for batch in batches for one in batch))
        self.assertEqual([line["samples"] for line in result.metrics("training")], [len(batch) for batch in batches])
        return batches, safetensors.numpy.load_file(result.weights_file)

    def test_every_kind_trains_as_in_one_process(self):
        for kind, ranks in (("subclass", (1, 2, 3)), ("user dict", (2,)), ("object", (1, 2)), ("lists", (2,)), ("time first", (2,)),
                            ("stream of texts", (1, 3)), ("stream of time first", (2,)), ("stream of metadata first", (2,)),
                            ("endless", (2,))):
            with self.subTest(kind=kind):
                found = {count: self.check(kind, count) for count in ranks}
                batches, _ = found[ranks[0]]
                if kind != "endless":
                    per_epoch = len(batches) // batches_script.EPOCHS
                    for epoch in range(batches_script.EPOCHS):
                        self.assertEqual(sorted(itertools.chain(*batches[epoch * per_epoch:(epoch + 1) * per_epoch])), list(range(40)))
                for count, (others, weights) in found.items():
                    self.assertEqual(others, batches, f"{count} ranks")
                    self.compare(weights, kind, batches)

    def compare(self, weights, kind, batches):
        for name, values in forked.in_a_fork(plain_weights, kind, batches).items():
            numpy.testing.assert_allclose(weights[name], values, rtol=0, atol=1e-10, err_msg=kind)

    def test_each_sample_of_a_short_batch_counts_the_same(self):
        # The last batch has 7 samples; 2, and ranks without one; 1.
        for kind, ranks, trial in (("engine 31", 2, ""), ("engine 38", 3, ""), ("engine 38", 3, ":Batches"), ("engine 37", 2, ":Batches")):
            with self.subTest(kind=kind, ranks=ranks, trial=trial):
                batches, weights = self.check(kind, ranks, trial)
                self.assertEqual(len(batches[-1]), int(kind.split()[1]) % batches_script.BATCH)
                self.compare(weights, kind, batches)

    def test_trials_get_batches_of_any_kind(self):
        for kind, ranks in (("data class", 2), ("object", 2), ("lists", 3), ("stream of texts", 3)):
            with self.subTest(kind=kind):
                batches, weights = self.check(kind, ranks, ":Batches")
                self.compare(weights, kind, batches)

    def test_a_split_is_the_same_on_all_ranks_or_an_error(self):
        for way in ("random", "numpy", "torch"):
            batches, _ = self.check(f"split by {way}", 2)
            self.assertEqual(len(set(itertools.chain(*batches[:3]))), 36, way)
        result, _ = self.start("split by random", 2, other=1)
        self.assertEqual(result.code, 1, result.output)
        self.assertRegex(result.output, r"epoch 0 of the loader is not the same on all ranks: a digest of the first batch's indices: \d+ "
                                        r"on rank 0, \d+ on rank 1; make the same data set")

    def test_what_cannot_be_divided_is_refused_on_several_ranks_alone(self):
        result, _ = self.start("stream of object", 1)
        self.assertRegex(result.expect(0).output, r"the metrics count 1 samples for each batch of the training, because a batch of")
        result, _ = self.start("stream of object", 2)
        self.assertEqual(result.code, 1, result.output)
        self.assertIn("it is a Own; say it with dtrain.divisible(", result.output)


def plain_weights(kind, batches):
    """Of one process of PyTorch that has these samples."""
    x, y = batches_script.tensors()
    scale = 0.5 if kind == "subclass" else 1
    _, model = batches_script.train(None, "", [{"x": x[batch] * scale, "y": y[batch]} for batch in batches], epochs=1)
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    forked.use_package()
    import batches_script
    import dtrain
    import numpy
    import safetensors.numpy
    import torch
    from dtrain import batch_parts, sample_division

    unittest.main(verbosity=2)
