"""Whole runs with compressed gradients: near those without, alike on all ranks and in every run, and honest about it.

    compressed_runs.py BIN_FOLDER [TestClass[.test] ...]
"""
import math
import os
import unittest
from unittest import mock

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import parity_model
from ddp_peer import WORLD, run_ddp
from harness import BUILD, Workplace, main, run, write_experiment
from many_runs import run_many

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
# Of the weights after 20 steps, from those without compression; what each sends at most of what it would have.
KINDS = {"fp16": ("fp16", 0.1, 0.5), "bf16": ("bf16", 0.5, 0.5), "int8": ("int8", 0.5, 0.28),
         "powersgd": ({"kind": "powersgd", "rank": 2, "warmup_steps": 5}, 1, 0.15),
         "topk": ({"kind": "topk", "ratio": 0.1}, 1, 0.25)}


def train_ddp(rank, case, path):
    model = parity_model.make_model(case["weights"], case["dtype"])
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = parity_model.make_optimizer(model, case["optimizer"])
    for index in range(case["batches"]["x"].shape[0]):
        parity_model.batch_loss(ddp, case["batches"], index, rank).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        parity_model.save({name: t.detach().clone() for name, t in model.state_dict().items()}, path)


def reference_top_k(case, ratio):
    """Top-k with error feedback in plain PyTorch. What a rank holds back is in the units of what is applied: a step in
    which some ranks (or batches of a window) are missing divides its own gradients by fewer, and what was held back before
    counts once all the same."""
    batches, k, counts = case["batches"], case["k"], case["batches"]["counts"].tolist()
    world = len(counts)
    model = parity_model.make_model(case["weights"], "float32")
    optimizer = parity_model.make_optimizer(model, case["optimizer"])
    parameters = [p for p in model.parameters() if p.requires_grad]
    held = [[torch.zeros(p.numel()) for p in parameters] for _ in range(world)]
    for start in range(0, max(counts), k):
        window = [(i, r) for r in range(world) for i in range(start, min(start + k, counts[r]))]
        gradients = [[None] * len(parameters) for _ in range(world)]
        for rank in range(world):
            model.zero_grad(set_to_none=True)
            for index in (i for i, r in window if r == rank):
                parity_model.batch_loss(model, batches, index, rank).backward()
            gradients[rank] = [None if p.grad is None else p.grad.detach().flatten().clone() for p in parameters]
        for number, p in enumerate(parameters):
            result = torch.zeros(p.numel())
            for rank in range(world):
                if gradients[rank][number] is not None:
                    held[rank][number] += gradients[rank][number] * (world / len(window))
                size = held[rank][number].abs()
                sent = torch.zeros(p.numel(), dtype=torch.bool)
                sent[torch.sort(size, descending=True, stable=True).indices[:math.ceil(ratio * p.numel())]] = True
                result += torch.where(sent, held[rank][number], torch.zeros(())) / world
                held[rank][number][sent] = 0
            used = any(gradients[rank][number] is not None for rank in range(world))
            for rank in range(world):
                held[rank][number] += 0 if used else result
            p.grad = result.view_as(p) if used else None
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class CompressedRuns(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("compressed")
        self.addCleanup(self.work.remove)

    def prepare(self, compression, steps=20, k=1, dtype="float32", counts=None, optimizer=SGD, fusion=64, world=WORLD,
                loss_factor=1, batches=None, **optimizations):
        """The experiment file of a run, and what PyTorch needs for the same."""
        folder = self.work.new_run()
        folder.mkdir()
        case = {"weights": parity_model.initial_weights(dtype), "dtype": dtype, "optimizer": optimizer, "k": k,
                "batches": parity_model.make_batches(dtype, batches or steps * k, world, 8, counts=counts)}
        parity_model.save(case["weights"], folder / "initial.safetensors")
        parity_model.save(case["batches"], folder / "batches.safetensors")
        file = write_experiment(
            folder / "experiment.yaml", name="compressed", entrypoint=BUILD.program("parity_trial"),
            hyperparameters={"global_batch_size": 8 * world, "dtype": dtype, "optimizer": optimizer,
                             "loss_factor": loss_factor},
            resources={"slots_per_trial": world}, data={"file": "batches.safetensors", "dump": "."},
            optimizations={"gradient_compression": compression, "aggregation_frequency": k,
                           "tensor_fusion_threshold": fusion, "matmul": "default", **optimizations},
            searcher={"metric": "loss", "max_length": {"epochs": 1}}, initial_weights="initial.safetensors")
        return file, case

    def run_all(self, wanted):
        """(result, case) of each."""
        prepared = [self.prepare(**options) for options in wanted]
        results = run_many(BUILD, "parity_trial", self.work.path, [file for file, _ in prepared])
        return [(result, case) for result, (_, case) in zip(results, prepared)]

    def weights_of(self, result):
        """The same on all ranks."""
        dumps = sorted(result.expect(0).run_dir.parent.glob("rank-*.safetensors"))
        self.assertEqual(len(dumps), result.json("plan.json")["world_size"])
        every = [parity_model.load(dump) for dump in dumps]
        for other in every[1:]:
            for name, tensor in every[0].items():
                self.assertTrue(torch.equal(tensor, other[name]), f"{name} differs between the ranks")
        return every[0]

    def test_each_kind(self):
        wanted = [{"compression": setting} for setting in (False, *(setting for setting, *_ in KINDS.values()))]
        (plain, _), *runs = self.run_all(wanted)
        exact = self.weights_of(plain)
        repeated = self.run_all(wanted[1:])
        for (kind, (_, limit, part)), (result, case), (other, _) in zip(KINDS.items(), runs, repeated):
            with self.subTest(kind=kind):
                ours = self.weights_of(result)
                difference, worst = parity_model.worst_difference(ours, exact)
                self.assertLess(difference, limit, worst)
                self.assertGreater(difference, 0)
                for name in ("never", "frozen"):
                    self.assertTrue(torch.equal(ours[name], case["weights"][name]), name)
                account = result.json("plan.json")["compression"]
                self.assertEqual(account["kind"], kind)
                self.assertEqual(account["steps"], 20)
                self.assertEqual(account["compressed_steps"], 12 if kind == "powersgd" else 17)
                self.assertLessEqual(account["sent_bytes"], part * account["uncompressed_bytes"])
                self.assertEqual(account["loses"], account["gained_s"] < 0)
                self.assertEqual(account["loses"], "switch it off" in account["text"])
                self.assertIn(account["text"], result.output)  # the log
                summary = run([BUILD.program("dtrain"), "summary", str(result.run_dir)], result.run_dir).expect(0).output
                self.assertIn(account["text"], " ".join(summary.split("\nCommunication\n")[-1].split()))
                again = self.weights_of(other)
                for name, tensor in ours.items():
                    self.assertTrue(torch.equal(tensor, again[name]), f"another run gives another {name}")

    def test_every_plan_gives_the_same_bits(self):
        """All gradients in one bucket, each by itself from the first step on, and each by itself once gaps are measured.
        Three ranks, and windows of batches: what sums are multiplied by is no power of two."""
        plans = ({"tensor_fusion_cycle_time": 0}, {"fusion": 0, "tensor_fusion_cycle_time": 0}, {"tensor_fusion_cycle_time": 1e-6})
        settings = {"none": False, **{kind: setting for kind, (setting, *_) in KINDS.items()}}
        cases = [(kind, world, k) for kind in settings
                 for world, k in (((3, 1), (2, 3)) if kind in ("none", "powersgd") else ((3, 1),))]
        runs = iter(self.run_all([{"compression": settings[kind], "world": world, "k": k, **plan}
                                  for kind, world, k in cases for plan in plans]))
        for kind, world, k in cases:
            (first, case), *others = (next(runs) for _ in plans)
            with self.subTest(kind=kind, world=world, k=k):
                one = self.weights_of(first)
                self.assertFalse(torch.equal(one["fc1.weight"], case["weights"]["fc1.weight"]))
                for plan, (result, _) in zip(plans[1:], others):
                    many = self.weights_of(result)
                    self.assertGreater(len(result.json("plan.json")["fusion"]["buckets"]), 1)
                    for name, tensor in one.items():
                        self.assertTrue(torch.equal(tensor, many[name]), f"{name} has other bits with {plan}")

    def test_tuned_buckets(self):
        """The tuner tries buckets in turns. Weights have the same bits on all ranks, with the buckets that the next run
        remembers, and where the default is one gradient a bucket."""
        cases = [(kind, world) for kind in KINDS for world in (2, 3)]
        plans = ({}, {}, {"fusion": 0})
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.work.path / "cache")):
            runs = iter(self.run_all([{"compression": KINDS[kind][0], "world": world, "steps": 130,
                                       "auto_tune_tensor_fusion": True, **plan}
                                      for kind, world in cases for plan in plans]))
        for kind, world in cases:
            of_case = [next(runs) for _ in plans]
            with self.subTest(kind=kind, world=world):
                first, *others = (self.weights_of(result) for result, _ in of_case)
                by = [result.json("plan.json")["fusion"]["by"] for result, _ in of_case]
                self.assertEqual(by, ["tuned", "remembered", "tuned"])
                for other in others:
                    for name, tensor in first.items():
                        self.assertTrue(torch.equal(tensor, other[name]), f"{name} has other bits")
                warmup = 5 if kind == "powersgd" else 0
                for result, _ in of_case:
                    account = result.json("plan.json")["compression"]
                    self.assertEqual(account["compressed_steps"], 130 - warmup - 3)
                    # Steps of the warm-up count where their buckets are those of the other steps.
                    self.assertIn(account["compared_steps"], (3, 3 + warmup), "the tuning ends before them")

    def test_gradients_too_small_for_float16_train(self):
        """One gradient in a hundred is larger than 4e-8, of which half (two ranks) is zero in float16. Over a hundred steps
        the weights still go where they go without compression; and what waited is counted and told, once. If it were lost,
        89% of the way would be missing (computed with PyTorch's float16); what has not yet added up is 28%."""
        weights = parity_model.initial_weights("float32")
        model = parity_model.make_model(weights, "float32")
        parity_model.batch_loss(model, parity_model.make_batches("float32", 1, WORLD, 8), 0, 0).backward()
        sizes = torch.cat([p.grad.abs().flatten() for p in model.parameters() if p.grad is not None])
        factor = 4e-8 / torch.quantile(sizes[sizes > 0], 0.99).item()
        options = {"steps": 100, "loss_factor": factor, "optimizer": {"kind": "sgd", "lr": 0.02 / factor}}
        (plain, _), (result, _) = self.run_all([{"compression": kind, **options} for kind in (False, "fp16")])
        exact, ours = self.weights_of(plain), self.weights_of(result)
        way = torch.cat([(exact[name] - weights[name]).flatten() for name in exact])
        missed = torch.cat([(exact[name] - ours[name]).flatten() for name in exact])
        share = (missed.norm() / way.norm()).item()
        print(f"of the way that the weights go without compression, fp16 with tiny gradients misses {share:.1%}, limit 40%")
        self.assertLess(share, 0.4)
        account = result.json("plan.json")["compression"]
        self.assertGreater(account["underflowed_values"], 1e5)
        self.assertIn("values were too small for fp16 and waited until they added up", account["text"])
        self.assertEqual(result.output.count("too small for fp16"), 1)

    def test_compared_steps_have_the_buckets_of_all_others(self):
        """No two gradients are ready within a nanosecond: once that is known, after eight steps, each travels alone. What
        compression gains is not to be judged by steps in which all of them waited for the last."""
        (result, _), = self.run_all([{"compression": "int8", "tensor_fusion_cycle_time": 1e-6}])
        result.expect(0)
        self.assertEqual(result.json("plan.json")["fusion"]["by"], "threshold and gaps")
        buckets = len(result.json("plan.json")["fusion"]["buckets"])
        self.assertGreater(buckets, 1)
        self.assertEqual(result.json("plan.json")["compression"]["compared_steps"], 3)
        plain = [line for line in result.lines("profile/rank-0000.jsonl")
                 if line["record"] == "collective" and line["operation"] == "all_reduce" and line["bucket"] >= 0]
        self.assertEqual(len(plain), 3 * buckets)

    def test_windows_ragged_data_and_float64(self):
        ragged, wide = {"k": 3, "counts": [60, 41]}, {"dtype": "float64"}
        runs = self.run_all([{"compression": False, **ragged}, {"compression": "fp16", **ragged}, {"compression": "int8", **ragged},
                             {"compression": False, **wide}, {"compression": "int8", **wide}])
        exact, *others, exact_wide, ours_wide = (self.weights_of(result) for result, _ in runs)
        for kind, ours in zip(("fp16", "int8"), others):
            self.assertLess(parity_model.worst_difference(ours, exact)[0], 0.1, kind)
        self.assertEqual(parity_model.worst_difference(ours_wide, exact_wide)[0], 0)
        self.assertIn("float64", runs[-1][0].output)

    def test_what_was_held_back_counts_once_where_data_ends(self):
        """Ranks whose data ends, and a window with fewer batches at the end: in ten steps, before those that go
        uncompressed."""
        cases = ((1, [9, 4, 6]), (1, [8, 2]), (4, [27, 20]))
        runs = self.run_all([{"compression": {"kind": "topk", "ratio": 0.05}, "batches": max(counts), "k": k, "counts": counts,
                              "world": len(counts), "optimizer": {"kind": "sgd", "lr": 0.1}} for k, counts in cases])
        for (k, counts), (result, case) in zip(cases, runs):
            with self.subTest(k=k, counts=counts):
                difference, worst = parity_model.worst_difference(self.weights_of(result), reference_top_k(case, 0.05))
                self.assertLess(difference, 1e-4, worst)

    def test_fp16_agrees_with_ddps_hook_over_100_steps(self):
        """But for the three steps that go uncompressed to compare with, roundings apart."""
        (result, case), = self.run_all([{"compression": "fp16", "steps": 100, "optimizer": {"kind": "sgd", "lr": 0.02}}])
        ours = self.weights_of(result)
        path = self.work.path / "ddp.safetensors"
        run_ddp(train_ddp, case, path)
        theirs = parity_model.load(path)
        difference, worst = parity_model.worst_difference(ours, theirs)
        print(f"relative L2 difference of the worst parameter after 100 steps: {difference:.1e} ({worst}), limit 2e-3")
        self.assertLess(difference, 2e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
