"""Steps as CUDA graphs on fake GPUs: the same bits as steps without them, one launch a step, and the cause where there are none.

    gpu_graphs.py BIN_FOLDER [TestClass[.test] ...]
"""
import gzip
import os
import unittest
from unittest import mock

import torch

import parity_model
import gpu_faults
from gpu_cases import gpu_environment, run_cases
from harness import BUILD, Workplace, launch, main
from sample_order import epoch_order
from torchscript_models import Net, experiment as script_experiment, save_script, write_experiment, write_fashion_like

RATE = 2**-8  # a graph reads it as a float32
SGD = {"kind": "sgd", "lr": 8 * RATE, "momentum": 0.9}
ADAM = {"kind": "adam", "lr": RATE, "weight_decay": 1e-3}
ADAMW = {"kind": "adamw", "lr": RATE}
LAMB = {"kind": "lamb", "lr": RATE, "weight_decay": 1e-2}
EPOCH, EPOCHS = 40, 2  # batches of each rank; the last one of an epoch is smaller
COUNTED = {"count_from": 50, "count_to": 75}
LAUNCHES = COUNTED["count_to"] - COUNTED["count_from"]
BATCHES = 90  # of a scripted model


def case(model, optimizer, graphs, batches=None, host="nothing", precision=None, **hyperparameters):
    optimizations = {"cuda_graphs": graphs}
    for key in ("average_aggregated_gradients", "sharded_optimizer", "aggregation_frequency", "gradient_compression", "local_sgd",
                "auto_tune_tensor_fusion"):
        if key in hyperparameters:
            optimizations[key] = hyperparameters.pop(key)
    if precision:
        optimizations["mixed_precision"] = precision
    return {"model": model, "optimizer": optimizer, "batches": batches or [EPOCH] * 4, "optimizations": optimizations,
            "length": {"epochs": hyperparameters.pop("epochs", EPOCHS)}, "hyperparameters": {"host": host, **COUNTED, **hyperparameters},
            "sections": {"scheduling_unit": 20, "min_validation_period": {"batches": 45}, "communication": {"timeout": 60}}}


def title(model, optimizer, options):
    return " ".join([model, optimizer["kind"], *(f"{key}={value}" for key, value in options.items())])


# Each with a graph and without.
CASES = {
    1: [("gpt", ADAM, {}), ("cnn", SGD, {"clip": 0.3, "average_aggregated_gradients": False}), ("mlp", LAMB, {})],
    2: [("mlp", SGD, {"sharded_optimizer": False, "halve_rate_after": 7}),
        ("cnn", ADAMW, {"sharded_optimizer": True, "clip": 0.3, "delay_queries": 3}),
        ("gpt", ADAMW, {"sharded_optimizer": False, "own_state": True}),
        ("gpt", SGD, {"sharded_optimizer": True, "precision": "bf16"}),
        ("cnn", SGD, {"sharded_optimizer": True, "precision": "pure_bf16"}),
        ("cnn", ADAM, {"sharded_optimizer": True, "precision": "fp16", "clip": 0.3}),
        ("mlp", SGD, {"sharded_optimizer": False, "precision": "fp16"}),
        ("mlp", ADAM, {"sharded_optimizer": "auto", "batches": [EPOCH, 31, EPOCH, EPOCH]}),
        ("cnn", LAMB, {"sharded_optimizer": False}),
        ("gpt", LAMB, {"sharded_optimizer": True, "clip": 0.3})],
    3: [("cnn", ADAM, {"sharded_optimizer": True}),
        ("gpt", SGD, {"sharded_optimizer": False, "clip": 0.3})],
}
# What keeps steps from being captured: the words for it, and what differs from a step that can be.
CAUSES = [
    ("captur", {"host": "item"}),
    ("'samples' as a number of the host", {"host": "metric"}),
    ("draws random numbers on the host", {"host": "random"}),
    ("replaces one of its buffers", {"host": "buffer"}),
    ("rank 0: ", {"host": "item", "host_rank": 0}),
    ("rank 1: CUDA out of memory", {"host": "memory", "host_rank": 1}),
    ("dtrain::checkpoint()", {"model": "gpt", "checkpointed": "cuda"}),
    ("aggregation_frequency is 2", {"aggregation_frequency": 2}),
    ("gradient_compression", {"gradient_compression": "fp16"}),
    ("local_sgd", {"local_sgd": {"inner_steps": 5}}),
]


class GraphTest(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("gpu-graphs")
        self.addCleanup(self.work.remove)

    def check_equal(self, one, other):
        weights, expected = (parity_model.load(result.weights_file) for result in (one, other))
        self.assertEqual(weights.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(weights[name], tensor), name)
        for kind in ("training", "validation"):
            lines = [[{key: value for key, value in line.items() if key != "time"} for line in result.metrics(kind)]
                     for result in (one, other)]
            self.assertEqual(*lines)
        losses = {line["metrics"]["loss"] for line in one.metrics("validation")}
        self.assertGreater(len(losses), 1, "nothing has been trained")


class Parity(GraphTest):
    def compare(self, ranks):
        cases = [case(model, optimizer, graphs, **options)
                 for model, optimizer, options in CASES[ranks] for graphs in (True, False)]
        runs = [run for run, in run_cases(BUILD, self.work.path, ranks, cases, slot_types=("cuda",))]
        for (model, optimizer, options), graph, plain in zip(CASES[ranks], runs[::2], runs[1::2]):
            with self.subTest(title(model, optimizer, options), ranks=ranks):
                graph.result.expect(0), plain.result.expect(0)
                self.assertEqual(graph.reports + plain.reports, [])
                plan = graph.result.json("plan.json")
                self.assertTrue(plan["cuda_graphs"]["captured"], plan["cuda_graphs"])
                self.assertNotIn("cuda_graphs", plain.result.json("plan.json"))
                self.check_equal(graph.result, plain.result)
                self.check_counts(options, plan["cuda_graphs"]["batch"], graph.counts, plain.counts)
                if model == "gpt":  # most of whose memory is activations
                    self.check_memory(graph.counts, plain.counts)

    def check_counts(self, options, first, graph, plain):
        uneven = "batches" in options
        for rank, (counts, without) in enumerate(zip(graph, plain)):
            if not counts:  # its data ends before
                continue
            self.assertEqual(without["graph_launches"], 0)
            self.assertEqual(counts["host_syncs"], 0)
            self.assertEqual(counts["pageable_copies"], 0)
            if uneven:
                self.assertGreater(counts["graph_launches"], 0)
                continue
            self.assertLess(first, COUNTED["count_from"])
            self.assertEqual(counts["graph_launches"], LAUNCHES)
            self.assertEqual(counts["nccl_operations"], 0, "operations outside of the graph")
            # The loss, read and added up, and with clipping the norm; all else is in the graph.
            self.assertLessEqual(counts["kernels"], 2 * LAUNCHES, "kernels outside of the graph")
            self.assertLessEqual(counts["copies_to_device"], 3 * LAUNCHES)  # the batch, the learning rate

    def check_memory(self, graph, plain):
        """Activations lie in the graph's memory, and what steps without it had for them has gone back to the GPU. Later ones
        have some of their own: validations, smaller batches."""
        for counts, without in zip(graph, plain):
            activations = without["reserved_bytes"] - without["allocated_bytes"]
            self.assertLess(counts["reserved_bytes"], without["reserved_bytes"] + activations / 2)

    def test_one_rank(self):
        self.compare(1)

    def test_two_ranks(self):
        self.compare(2)

    def test_three_ranks(self):
        self.compare(3)

    def test_norms_of_parameters_in_parts(self):
        """The ranks' buckets end within parameters, so LAMB's norms are sums over ranks, which a graph contains."""
        cases = [case("gpt", LAMB, True, sharded_optimizer=sharded, dtype="float64") for sharded in (True, False)]
        (sharded,), (replicated,) = run_cases(BUILD, self.work.path, 3, cases, slot_types=("cuda",))
        for run in (sharded, replicated):
            run.result.expect(0)
            self.assertEqual(run.reports, [])
            self.assertTrue(run.result.json("plan.json")["cuda_graphs"]["captured"])
        difference, worst = parity_model.worst_difference(*(parity_model.load(run.result.weights_file)
                                                            for run in (sharded, replicated)))
        self.assertLessEqual(difference, 1e-11, worst)


class Tuned(GraphTest):
    def tune(self, ranks, cases):
        """Each case twice: the second run remembers the buckets of the first."""
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.work.path / "cache")):
            runs = [run for run, in run_cases(BUILD, self.work.path, ranks, [one for one in cases for _ in range(2)],
                                              slot_types=("cuda",))]
        for tuned, remembered in zip(runs[::2], runs[1::2]):
            for run, by in ((tuned, "tuned"), (remembered, "remembered")):
                run.result.expect(0)
                self.assertEqual(run.reports, [])
                self.assertEqual(run.result.json("plan.json")["fusion"]["by"], by)
            for counts in tuned.counts:  # of batches in which buckets take turns
                self.assertEqual(counts["host_syncs"], 0)
                self.assertEqual(counts["pageable_copies"], 0)
                self.assertEqual(counts["graph_launches"], 0)
        return runs

    def test_a_step_is_captured_when_its_buckets_are_final(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                tuned, remembered = self.tune(ranks, [case("gpt", ADAMW, True, batches=[110] * 4, epochs=1, sharded_optimizer=False,
                                                           auto_tune_tensor_fusion=True)])
                (report,) = tuned.result.events("fusion_tuned")
                self.assertLessEqual(report["steps"], 100)
                plans = [run.result.json("plan.json")["cuda_graphs"] for run in (tuned, remembered)]
                self.assertTrue(all(plan["captured"] for plan in plans), plans)
                self.assertGreater(plans[0]["batch"], report["steps"])
                if ranks == 2:  # more are added in an order that depends on the buckets
                    self.check_equal(tuned.result, remembered.result)

    def test_sharded_updates_are_refused(self):
        """On a GPU a rank keeps its part of the optimizer's state alone, and parts depend on the buckets."""
        (run,), = run_cases(BUILD, self.work.path, 2, [case("mlp", SGD, False, sharded_optimizer=True, auto_tune_tensor_fusion=True)],
                            slot_types=("cuda",))
        self.assertEqual(run.result.code, 1)
        self.assertIn("auto_tune_tensor_fusion is not supported yet with sharded_optimizer: true on GPUs", run.result.output)

    def test_with_compression(self):
        cases = [case("cnn", SGD, False, batches=[130] * 4, epochs=1, gradient_compression=kind, auto_tune_tensor_fusion=True)
                 for kind in ("bf16", {"kind": "topk", "ratio": 0.1})]
        runs = self.tune(2, cases)
        for tuned, remembered in zip(runs[::2], runs[1::2]):
            self.check_equal(tuned.result, remembered.result)
            self.assertEqual(tuned.result.json("plan.json")["compression"]["compared_steps"], 3)


class Causes(GraphTest):
    def test_what_a_graph_would_not_repeat_is_named_and_changes_nothing(self):
        cases = [case(graphs=graphs, **{"model": "cnn", "optimizer": SGD, **options})
                 for _, options in CAUSES for graphs in (True, False)]
        runs = [run for run, in run_cases(BUILD, self.work.path, 2, cases, slot_types=("cuda",))]
        for (cause, options), graph, plain in zip(CAUSES, runs[::2], runs[1::2]):
            with self.subTest(cause):
                graph.result.expect(0), plain.result.expect(0)
                self.assertEqual(graph.reports + plain.reports, [])
                told = graph.result.json("plan.json")["cuda_graphs"]
                self.assertFalse(told["captured"])
                self.assertIn(cause, told["text"])
                self.assertIn("steps do not run as a CUDA graph", graph.result.output)
                self.assertEqual([counts["graph_launches"] for counts in graph.counts], [0, 0])
                self.check_equal(graph.result, plain.result)


class Scripted(GraphTest):
    """`model:` files have graphs by default."""

    def setUp(self):
        super().setUp()
        write_fashion_like(self.work.path)

    def train(self, model, code=0, **optimizations):
        files = {part: {"features": f"{self.work.path}/{name}-images-idx3-ubyte.gz",
                        "target": f"{self.work.path}/{name}-labels-idx1-ubyte.gz"}
                 for part, name in (("training", "train"), ("validation", "t10k"))}
        file = write_experiment(self.work.path / "experiment.yaml", **script_experiment(
            model, {"format": "idx", **files}, steps=BATCHES, batch=32, slots=2, optimizer=ADAMW,
            min_validation_period={"batches": 50}, optimizations={"memory_format": "contiguous", **optimizations}))
        return launch(BUILD, file, self.work.new_run(), ["resources.slot_type=cuda"], **gpu_environment(BUILD)).expect(code)

    def test_a_model_file(self):
        torch.manual_seed(0)
        model = save_script(WithDropout(), self.work.path / "model.pt")
        graph, plain = self.train(model), self.train(model, cuda_graphs=False)
        self.assertTrue(graph.json("plan.json")["cuda_graphs"]["captured"], graph.json("plan.json")["cuda_graphs"])
        self.assertIn("steps run as one CUDA graph from batch", graph.output)
        self.check_equal(graph, plain)

    def test_a_model_that_counts_its_steps(self):
        torch.manual_seed(0)
        told = self.train(save_script(Counting(), self.work.path / "model.pt")).json("plan.json")["cuda_graphs"]
        self.assertFalse(told["captured"])
        self.assertIn("changes its attribute 'steps'", told["text"])

    def test_what_a_script_keeps_that_training_does_not_know(self):
        torch.manual_seed(0)
        told = self.train(save_script(Remembering(), self.work.path / "model.pt")).json("plan.json")["cuda_graphs"]
        self.assertIn("changes its attribute 'mean'", told["text"])

    def test_a_capture_that_fails_leaves_the_buffers_of_a_script(self):
        torch.manual_seed(0)
        model = save_script(Waiting(), self.work.path / "model.pt")
        graph, plain = self.train(model), self.train(model, cuda_graphs=False)
        self.assertIn("captur", graph.json("plan.json")["cuda_graphs"]["text"])
        self.check_equal(graph, plain)

    def test_a_target_that_cannot_be_is_still_found(self):
        """In a batch that a launch of the graph would train with, which looks at no target."""
        torch.manual_seed(0)
        model = save_script(WithDropout(), self.work.path / "model.pt")
        write_fashion_like(self.work.path, training_samples=32 * BATCHES)
        labels = self.work.path / "train-labels-idx1-ubyte.gz"
        content = bytearray(gzip.decompress(labels.read_bytes()))
        in_last_batch = epoch_order(32 * BATCHES)[-1]
        content[len(content) - 32 * BATCHES + in_last_batch] = 11
        labels.write_bytes(gzip.compress(content))
        result = self.train(model, code=1)
        self.assertTrue(result.json("plan.json")["cuda_graphs"]["captured"])
        self.assertRegex(result.output, f"at batch {BATCHES}: the target has class 11")


class WithDropout(Net):
    def __init__(self):
        super().__init__(width=16)
        self.fc1 = torch.nn.Linear(4 * 28 * 28, 16)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, images):
        h = self.drop(self.fc1(self.body(images).flatten(1)).relu()) * self.frozen
        if self.training:
            self.seen = self.seen * 0.9 + h.detach().mean(0) * 0.1
        return self.out(self.tied_b(self.tied_a(h).relu()).relu())


class Remembering(WithDropout):
    mean: torch.Tensor

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(1)

    def forward(self, images):
        h = self.fc1(self.body(images).flatten(1)).relu()
        self.mean = h.detach().mean()
        return self.out(h)


class Waiting(WithDropout):
    """Assigns a buffer, and then waits for the GPU."""

    def forward(self, images):
        h = self.fc1(self.body(images).flatten(1)).relu()
        if self.training:
            self.seen = self.seen * 0.9 + h.detach().mean(0) * 0.1
        scale = 1.0 if float(h.sum().item()) > -1.0 else 2.0
        return self.out(h * scale * self.frozen)


class Counting(WithDropout):
    steps: int

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, images):
        self.steps = self.steps + 1
        h = self.fc1(self.body(images).flatten(1)).relu()
        return self.out(h) if self.steps % 2 == 0 else self.out(self.drop(h))


class Faults(gpu_faults.FaultTest):
    """In steps that are launches of a graph."""

    def training(self, **fault):
        one = case("mlp", SGD, True, sharded_optimizer=False, fault={"rank": 1, "batch": 60, **fault}, batches=[1_000_000] * 4)
        return {**one, "length": {"batches": 1_000_000}, "sections": {"communication": {"timeout": 5}}}

    def test_a_rank_is_killed(self):
        result = self.launched(2, self.training(kind="kill"))
        self.check_failure(result, 1, r"was killed by signal 9 \(SIGKILL\)", "rank 0")

    def test_a_rank_stops(self):
        result = self.launched(2, self.training(kind="stop"))
        self.check_failure(result, 0, rf"{gpu_faults.TIMED_OUT}.*missing: rank 1 (has not entered it|is not waiting for it \(stopped)", "")

    def test_an_operation_of_a_graph_never_ends(self):
        result = self.launched(2, self.training(kind="nccl_hang"))
        self.assertRegex(result.output, r"a replayed step, 1 operation: all_reduce.*timed out after 5\.\d* s")
        self.check_nothing_left()


if __name__ == "__main__":
    # torch.jit calls itself deprecated.
    main("gpu_trial", warnings="ignore")
