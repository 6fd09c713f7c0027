"""Whole runs with compressed gradients: near those without, alike on all ranks and in every run, and honest about it.

    compressed_runs.py BIN_FOLDER [TestClass[.test] ...]
"""
import sys
import unittest

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import parity_model
from ddp_peer import WORLD, run_ddp
from harness import Build, Workplace, launch, write_experiment

BUILD = None  # set by main()
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


class CompressedRuns(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("compressed")
        self.addCleanup(self.work.remove)

    def train(self, compression, steps=20, k=1, dtype="float32", counts=None, optimizer=SGD, fusion=64,
              **optimizations):
        folder = self.work.new_run()
        folder.mkdir()
        case = {"weights": parity_model.initial_weights(dtype), "dtype": dtype, "optimizer": optimizer,
                "batches": parity_model.make_batches(dtype, steps * k, WORLD, 8, counts=counts)}
        parity_model.save(case["weights"], folder / "initial.safetensors")
        parity_model.save(case["batches"], folder / "batches.safetensors")
        file = write_experiment(
            folder / "experiment.yaml", name="compressed", entrypoint=BUILD.program("parity_trial"),
            hyperparameters={"global_batch_size": 8 * WORLD, "dtype": dtype, "optimizer": optimizer},
            resources={"slots_per_trial": WORLD}, data={"file": "batches.safetensors", "dump": "."},
            optimizations={"gradient_compression": compression, "aggregation_frequency": k,
                           "tensor_fusion_threshold": fusion, **optimizations},
            searcher={"metric": "loss", "max_length": {"epochs": 1}}, initial_weights="initial.safetensors")
        result = launch(BUILD, file, folder / "run").expect(0)
        every = [parity_model.load(folder / f"rank-{rank}.safetensors") for rank in range(WORLD)]
        for name, tensor in every[0].items():
            self.assertTrue(torch.equal(tensor, every[1][name]), f"{name} differs between the ranks")
        return every[0], result, case

    def test_each_kind(self):
        exact, _, _ = self.train(False)
        for kind, (setting, limit, part) in KINDS.items():
            with self.subTest(kind=kind):
                ours, result, case = self.train(setting)
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
                summary = " ".join(result.output.split("\nCommunication\n")[-1].split())
                self.assertIn(account["text"], summary)
                again, _, _ = self.train(setting, fusion=64)
                for name, tensor in ours.items():
                    self.assertTrue(torch.equal(tensor, again[name]), f"another run gives another {name}")

    def test_buckets_do_not_matter_to_error_feedback(self):
        """Every gradient by itself or all in one bucket: the same to the last bit, but where several share a matrix."""
        for setting in ("int8", {"kind": "topk", "ratio": 0.1}, {"kind": "powersgd", "rank": 2, "warmup_steps": 2}):
            with self.subTest(setting=setting):
                one, _, _ = self.train(setting)
                many, _, _ = self.train(setting, fusion=0)
                self.assertLess(parity_model.worst_difference(one, many)[0], 1e-5)

    def test_compared_steps_have_the_buckets_of_all_others(self):
        """No two gradients are ready within a nanosecond: once that is known, after eight steps, each travels alone. What
        compression gains is not to be judged by steps in which all of them waited for the last."""
        _, result, _ = self.train("int8", tensor_fusion_cycle_time=1e-6)
        self.assertEqual(result.json("plan.json")["fusion"]["by"], "threshold and gaps")
        buckets = len(result.json("plan.json")["fusion"]["buckets"])
        self.assertGreater(buckets, 1)
        self.assertEqual(result.json("plan.json")["compression"]["compared_steps"], 3)
        plain = [line for line in result.lines("profile/rank-0000.jsonl")
                 if line["record"] == "collective" and line["operation"] == "all_reduce" and line["bucket"] >= 0]
        self.assertEqual(len(plain), 3 * buckets)

    def test_windows_ragged_data_and_float64(self):
        for setting in ("fp16", "int8"):
            exact, _, _ = self.train(False, k=3, counts=[60, 41])
            ours, _, _ = self.train(setting, k=3, counts=[60, 41])
            self.assertLess(parity_model.worst_difference(ours, exact)[0], 0.1)
        exact, _, _ = self.train(False, dtype="float64")
        ours, result, _ = self.train("int8", dtype="float64")
        self.assertEqual(parity_model.worst_difference(ours, exact)[0], 0)
        self.assertIn("float64", result.output)

    def test_fp16_agrees_with_ddps_hook_over_100_steps(self):
        """But for the three steps that go uncompressed to compare with, roundings apart."""
        ours, _, case = self.train("fp16", steps=100, optimizer={"kind": "sgd", "lr": 0.02})
        path = self.work.path / "ddp.safetensors"
        run_ddp(train_ddp, case, path)
        theirs = parity_model.load(path)
        difference, worst = parity_model.worst_difference(ours, theirs)
        print(f"relative L2 difference of the worst parameter after 100 steps: {difference:.1e} ({worst}), limit 2e-3")
        self.assertLess(difference, 2e-3)


def main():
    global BUILD
    BUILD = Build(sys.argv.pop(1))
    torch.set_num_threads(1)
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
