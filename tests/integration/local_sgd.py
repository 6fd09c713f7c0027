"""Local steps with an outer optimizer (DiLoCo): whole runs against the same computed with PyTorch in one process.

    local_sgd.py BIN_FOLDER [TestClass[.test] ...]
"""
import unittest

import torch

import parity_model
from harness import BUILD, Workplace, interrupt_training, main, write_experiment
from many_runs import run_many

SGD = {"kind": "sgd", "lr": 0.05}
MOMENTUM = {"kind": "sgd", "lr": 0.02, "momentum": 0.9}
ADAMW = {"kind": "adamw", "lr": 1e-3}


def reference(case):
    """Each rank's model trained by itself, and torch.optim.SGD as the outer optimizer. `meet` are the rounds after which
    the ranks meet; a rank that made no step since the last time is not counted."""
    weights, batches, world = case["weights"], case["batches"], case["world"]
    models = [parity_model.make_model(weights, "float32") for _ in range(world)]
    inner = [parity_model.make_optimizer(m, case["optimizer"]) for m in models]
    names = [n for n, p in models[0].named_parameters() if p.requires_grad]
    outer = {n: p.detach().clone().requires_grad_() for n, p in models[0].named_parameters() if p.requires_grad}
    step = torch.optim.SGD(outer.values(), lr=case["outer_lr"], momentum=case["outer_momentum"],
                           nesterov=case["outer_momentum"] > 0)
    counts, k = batches["counts"].tolist(), case["k"]
    took_part = set()
    for index in range(max(counts)):
        for rank in range(world):
            if index < counts[rank]:
                took_part.add(rank)
                parity_model.batch_loss(models[rank], batches, index, rank).backward()
            if (index + 1) % k == 0 or index + 1 == max(counts):
                own = max(0, min(index + 1, counts[rank]) - index // case["k"] * case["k"])
                for p in models[rank].parameters():
                    if p.grad is not None:
                        p.grad /= max(1, own)
                inner[rank].step()
                inner[rank].zero_grad(set_to_none=True)
        if index + 1 in case["meet"] or index + 1 == max(counts):
            parameters = [dict(m.named_parameters()) for m in models]
            for name in names:
                differences = [outer[name].detach() - parameters[r][name].detach() for r in sorted(took_part)]
                outer[name].grad = sum(differences) / len(differences)
            step.step()
            with torch.no_grad():
                for p in parameters:
                    for name in names:
                        p[name].copy_(outer[name])
            # Batches of a window that is still open go into a later step: whoever had one takes part in the next meeting.
            window_start = (index + 1) // k * k
            took_part = {rank for rank in range(world) if window_start < min(index + 1, counts[rank])}
    return {name: tensor.detach().clone() for name, tensor in models[0].state_dict().items()}


class LocalSteps(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("local-sgd")
        self.addCleanup(self.work.remove)

    def experiment(self, case, folder, **more):
        folder.mkdir()
        parity_model.save(case["weights"], folder / "initial.safetensors")
        parity_model.save(case["batches"], folder / "batches.safetensors")
        local = {"inner_steps": case["inner_steps"], "outer_lr": case["outer_lr"],
                 "outer_momentum": case["outer_momentum"], "compression": case.get("compression", False)}
        sections = {"searcher": {"metric": "loss", "max_length": {"epochs": 1}}, **more}
        return write_experiment(
            folder / "experiment.yaml", name="local", entrypoint=BUILD.program("parity_trial"),
            hyperparameters={"global_batch_size": 8 * case["world"], "dtype": "float32", "optimizer": case["optimizer"]},
            resources={"slots_per_trial": case["world"]}, data={"file": "batches.safetensors", "dump": "."},
            optimizations={"aggregation_frequency": case["k"], "local_sgd": local,
                           "tensor_fusion_threshold": case.get("fusion", 64), "matmul": "default", "operators": "default", "memory_format": "contiguous"},
            initial_weights="initial.safetensors", **sections)

    def weights_of(self, case, folder):
        every = [parity_model.load(folder / f"rank-{rank}.safetensors") for rank in range(case["world"])]
        for rank, other in enumerate(every):
            for name, tensor in every[0].items():
                self.assertTrue(torch.equal(tensor, other[name]), f"{name} differs between rank 0 and rank {rank}")
        return every[0]

    def train(self, cases, **more):
        """(weights, result) of each case, all with these sections of the experiment file."""
        files = [self.experiment(case, self.work.new_run(), **more) for case in cases]
        results = run_many(BUILD, "parity_trial", self.work.path, files)
        return [(self.weights_of(case, result.expect(0).run_dir.parent), result) for case, result in zip(cases, results)]

    def case(self, steps=14, counts=None, world=2, **changes):
        case = {"inner_steps": 4, "outer_lr": 0.7, "outer_momentum": 0.9, "optimizer": SGD, "world": world, "k": 1,
                "dtype": "float32",
                "weights": parity_model.initial_weights("float32"),
                "batches": parity_model.make_batches("float32", steps, world, 8, counts=counts), **changes}
        rounds = case["inner_steps"] * case["k"]
        case.setdefault("meet", range(rounds, 10_000, rounds))
        return case

    def check(self, cases, limit=2e-5, **more):
        runs = self.train(cases, **more)
        for case, (ours, _) in zip(cases, runs):
            with self.subTest(**{key: value for key, value in case.items() if key not in ("weights", "batches")}):
                difference, worst = parity_model.worst_difference(ours, reference(case))
                self.assertLessEqual(difference, limit, worst)
        return [result for _, result in runs]

    def test_one_step_without_momentum_is_plain_sgd(self):
        case = self.case(inner_steps=1, outer_lr=1, outer_momentum=0)
        (ours, _), = self.train([case])
        plain = parity_model.train_rounds(case, [[(i, 0), (i, 1)] for i in range(14)])
        self.assertLessEqual(parity_model.worst_difference(ours, plain)[0], 1e-5)
        for name in ("never", "frozen", "offset"):
            self.assertTrue(torch.equal(ours[name], case["weights"][name]), name)

    def test_agrees_with_pytorch(self):
        """The last window is cut short by the end of the training (14 = 3 x 4 + 2)."""
        every = ({}, {"optimizer": ADAMW}, {"optimizer": MOMENTUM, "inner_steps": 7}, {"outer_momentum": 0, "outer_lr": 1},
                 {"k": 2, "inner_steps": 3}, {"world": 3}, {"world": 3, "optimizer": ADAMW, "k": 2, "inner_steps": 3})
        for result in self.check([self.case(**changes) for changes in every]):
            self.assertIn("local_sgd", result.json("plan.json"))

    def test_ranks_whose_data_ends_early(self):
        self.check([self.case(counts=[14, 9]), self.case(counts=[3, 14, 8], world=3, optimizer=MOMENTUM),
                    self.case(counts=[14, 5], k=2, inner_steps=2)])

    def test_ranks_meet_before_they_validate(self):
        """There is no validation data, so nothing is validated; but the ranks have met where they would have."""
        case = self.case()
        case["meet"] = [4, 6, 10, 12]  # a meeting every 6 rounds for the validation, and one 4 rounds after each
        self.check([case], min_validation_period={"batches": 6})

    def test_ranks_meet_within_a_window_and_one_has_no_more_data(self):
        """The second rank's last batch is in the window that is open when they meet, so it steps once more after that."""
        case = self.case(counts=[14, 5], k=2, inner_steps=3, optimizer=MOMENTUM)
        case["meet"] = [5, 10]
        self.check([case], min_validation_period={"batches": 5})

    def test_compressed_meetings(self):
        """With three ranks, all of which have the same weights at the end (weights_of), whatever travels together."""
        exact = reference(self.case(steps=24, inner_steps=3, world=3))
        compressions = ("fp16", "bf16", "int8", {"kind": "powersgd", "rank": 4, "warmup_steps": 1}, {"kind": "topk", "ratio": 0.1})
        runs = iter(self.train([self.case(steps=24, inner_steps=3, world=3, compression=compression, fusion=fusion)
                                for compression in compressions for fusion in (64, 0)]))
        for compression, (ours, result), (apart, _) in zip(compressions, runs, runs):
            with self.subTest(compression=compression):
                for name, tensor in ours.items():
                    self.assertTrue(torch.equal(tensor, apart[name]), f"{name} has other bits where each travels alone")
                difference, worst = parity_model.worst_difference(ours, exact)
                self.assertLess(difference, 1 if isinstance(compression, dict) else 0.1, worst)
                self.assertGreater(difference, 0)
                account = result.json("plan.json")["compression"]
                self.assertLess(account["sent_bytes"], 0.55 * account["uncompressed_bytes"])
                self.assertIn("compression of the meetings", result.output)

    def test_a_stop_in_the_middle_leaves_all_ranks_alike(self):
        case = self.case(steps=4000, inner_steps=500)
        folder = self.work.path / "stopped"
        file = self.experiment(case, folder, searcher={"metric": "loss", "max_length": {"epochs": 500}},
                               scheduling_unit=5)
        run_dir = folder / "run"
        interrupt_training([BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(run_dir)], run_dir,
                           batches=4)
        self.weights_of(case, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
