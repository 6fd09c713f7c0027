"""Scripts with the three lines, and Trials, against the same training in one process of plain PyTorch.

    parity.py BIN_FOLDER [Models|Optimizers|States|Schedules|Steps|Variants]

Same initial weights, same global batches, 20 steps, or 8 of the largest model. No number of ranks but 1 divides the batch of 7,
and the last batch of an epoch is smaller: ranks have parts of unlike sizes. Compared is how far each parameter has moved from
its initial value: the relative L2 norm of the difference. In float32 it is relative to the parameter where that is larger.
"""
from pathlib import Path

import forked
import harness
import numpy
import safetensors.numpy
import torch
import parity_cases as cases

import parity_model

HERE = Path(__file__).resolve().parent
TOLERANCE = {"float64": 1e-9, "float32": 1e-6}
SCRIPT, TRIAL = str(HERE / "parity_script.py"), str(HERE / "parity_trial.py:Parity")


def experiment(case, path, ranks, **sections):
    optimizations = {"aggregation_frequency": 1, **sections.pop("optimizations", {})}
    return harness.write_experiment(
        path, name="parity", entrypoint="parity_script.py", hyperparameters={"global_batch_size": cases.BATCH, "case": case},
        resources={"slots_per_trial": ranks}, searcher={"max_length": {"epochs": case["epochs"]}},
        optimizations=optimizations, **sections)


def plain(case, path):
    initial = cases.initial_weights(case)
    weights, state = cases.train_plain(case)
    parity_model.save({f"before/{name}": value for name, value in initial.items()} |
                      {f"after/{name}": value for name, value in weights.items()}, path)
    torch.save(state, path.with_suffix(".pt"))


class ParityTest(harness.WorkplaceTest):
    def compare(self, ways, tolerance=None, **changes):
        """`ways`: pairs of SCRIPT or TRIAL and a number of ranks."""
        case = {**cases.DEFAULTS, **changes}
        place = self.work.new_run()
        place.mkdir()
        forked.in_a_fork(plain, case, place / "plain.safetensors")
        expected = safetensors.numpy.load_file(place / "plain.safetensors")
        names = [name.removeprefix("after/") for name in expected if name.startswith("after/")]
        for way, ranks in ways:
            with self.subTest(way=Path(way).name, ranks=ranks, **changes):
                folder = self.work.new_run()
                folder.mkdir()
                # A Trial accumulates by the experiment's key.
                extra = {"aggregation_frequency": case["accumulate"]} if way == TRIAL else {}
                result = forked.run(way, folder, experiment(case, folder / "parity.yaml", ranks, optimizations=extra), ranks)
                result.expect(0)
                worst = self.worst(expected, safetensors.numpy.load_file(result.weights_file), names, case["dtype"])
                self.assertLess(worst[0], tolerance or TOLERANCE[case["dtype"]], worst[1])
                if case["loads"]:
                    forked.in_a_fork(self.check_state, place / "plain.pt", result.run_dir / "optimizer.pt")

    @staticmethod
    def worst(expected, actual, names, dtype):
        """The largest distance, and whose it is."""
        def norm(array):
            return float(numpy.sqrt(numpy.square(array).sum()))

        result = (0.0, "")
        moved = 0
        for name in names:
            before, after = expected[f"before/{name}"].astype("float64"), expected[f"after/{name}"].astype("float64")
            way = norm(after - before)
            moved += way > 0
            if name not in actual:  # tied to one that is there
                continue
            off = norm(actual[name].astype("float64") - after)
            if off:
                # A bias before a softmax has a gradient of rounding alone.
                scale = max(way, norm(after) if dtype == "float32" else 0, 1e-8)
                result = max(result, (off / scale, name))
        if moved < len(names) / 2:
            raise AssertionError(f"only {moved} of {len(names)} parameters have moved")
        return result

    @staticmethod
    def check_state(expected, actual):
        """An optimizer's state_dict() is PyTorch's."""
        expected, actual = torch.load(expected), torch.load(actual)
        if actual["param_groups"] != expected["param_groups"]:
            raise AssertionError(f"{actual['param_groups']} is not {expected['param_groups']}")
        if not expected["state"] or actual["state"].keys() != expected["state"].keys():
            raise AssertionError(f"state of {actual['state'].keys()}, expected {expected['state'].keys()}")
        for parameter, values in expected["state"].items():
            mine = actual["state"][parameter]
            if mine.keys() != values.keys():
                raise AssertionError(f"parameter {parameter} has {mine.keys()}, expected {values.keys()}")
            for name, value in values.items():
                what = f"{name} of parameter {parameter}"
                torch.testing.assert_close(mine[name], value, rtol=1e-9, atol=1e-15, msg=lambda text: f"{what}: {text}")


class Models(ParityTest):
    def test_mlp_and_cnn(self):
        everywhere = [(way, ranks) for way in (SCRIPT, TRIAL) for ranks in (1, 2, 3)]
        self.compare(everywhere, model="mlp")
        self.compare(everywhere, model="cnn", optimizer=["AdamW", {"lr": 1e-3, "weight_decay": 0.01}])

    def test_compiled_models(self):
        torch._dynamo.lookup_backend("aot_eager")  # imported once
        # The compiler's own graph of gradients, without its C++ code, which takes half a minute to build.
        self.compare([(SCRIPT, 2), (TRIAL, 3)], model="cnn", compile="aot_eager", optimizer=["AdamW", {"lr": 1e-3}])
        self.compare([(SCRIPT, 2)], model="mlp", compile="aot_eager")
        self.compare([(SCRIPT, 2)], model="attention", compile="aot_eager", dtype="float32")

    def test_twelve_models_of_libraries(self):
        # Some of them normalize in float32, whatever the type of their weights.
        cases.import_libraries()
        self.compare([(SCRIPT, 1), (SCRIPT, 2), (TRIAL, 3)], model="libraries", tolerance=1e-6, steps=8,
                     optimizer=["SGD", {"lr": 0.01, "momentum": 0.9}])


class Optimizers(ParityTest):
    def every(self, settings):
        for optimizer in settings:
            self.compare([(SCRIPT, 2), (TRIAL, 3)], optimizer=optimizer)

    def test_those_that_the_engine_computes(self):
        self.every([
            ["SGD", {"lr": 0.05}], ["SGD", {"lr": 0.05, "momentum": 0.9}],
            ["SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}],
            ["SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}],
            ["Adam", {"lr": 1e-3}], ["Adam", {"lr": 1e-3, "weight_decay": 0.1, "foreach": False}],
            ["Adam", {"lr": 1e-3, "betas": [0.8, 0.95]}],
            ["AdamW", {"lr": 1e-3, "weight_decay": 0.1}], ["AdamW", {"lr": 1e-3, "eps": 1e-4}],
            ["RAdam", {"lr": 1e-3}], ["RMSprop", {"lr": 1e-3}],
            ["RMSprop", {"lr": 1e-3, "centered": True, "momentum": 0.5, "weight_decay": 0.01}],
            ["Adagrad", {"lr": 1e-2, "lr_decay": 0.1}],
        ])
        # PyTorch computes with the rate as it is: a tensor of float32.
        self.compare([(SCRIPT, 2), (TRIAL, 3)], optimizer=["Adam", {"lr": {"tensor": 1e-3}}], tolerance=1e-6)

    def test_those_that_step_by_themselves(self):
        self.every([
            ["Adam", {"lr": 1e-3, "amsgrad": True}], ["NAdam", {"lr": 1e-3}], ["Adadelta", {"lr": 0.5}],
            ["Adamax", {"lr": 1e-3}], ["SGD", {"lr": 0.05, "momentum": 0.9, "maximize": True}],
            ["RAdam", {"lr": 1e-3, "decoupled_weight_decay": True, "weight_decay": 0.1}], ["Rprop", {"lr": 1e-3}],
        ])

    def test_parameter_groups(self):
        for optimizer in (["SGD", {"lr": 0.05, "momentum": 0.9}], ["AdamW", {"lr": 1e-3}], ["NAdam", {"lr": 1e-3}]):
            self.compare([(SCRIPT, 2), (TRIAL, 3)], optimizer=optimizer, groups=True)


class States(ParityTest):
    """state_dict() is that of torch.optim, and load_state_dict() goes on from one."""

    def test_loaded_states(self):
        ways = [(SCRIPT, 2), (TRIAL, 2)]
        for index, optimizer in enumerate((
                ["SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}], ["Adam", {"lr": 1e-3}],
                ["AdamW", {"lr": 1e-3, "weight_decay": 0.1}], ["RAdam", {"lr": 1e-3}],
                ["RMSprop", {"lr": 1e-3, "centered": True, "momentum": 0.5}], ["Adagrad", {"lr": 1e-2, "lr_decay": 0.1}],
                ["NAdam", {"lr": 1e-3}], ["Adam", {"lr": 1e-3, "amsgrad": True}])):
            # Each of them by one of the two, and before and after it is wrapped.
            self.compare([ways[index % 2]], optimizer=optimizer, loads="before")
            self.compare([ways[(index + 1) % 2]], optimizer=optimizer, loads="after")

    def test_schedules_go_on_from_a_loaded_learning_rate(self):
        for loads in ("before", "after"):
            for optimizer in (["AdamW", {"lr": 1e-3}], ["NAdam", {"lr": 1e-3}]):
                self.compare([(SCRIPT, 2), (TRIAL, 2)], optimizer=optimizer, schedule="cosine", loads=loads)

    def test_of_parameter_groups_and_unused_parameters(self):
        for loads, way in (("before", TRIAL), ("after", SCRIPT)):
            self.compare([(way, 3)], model="cnn", optimizer=["AdamW", {"lr": 1e-3}], groups=True, loads=loads)


class Schedules(ParityTest):
    def test_by_step(self):
        for index, schedule in enumerate(("step", "cosine", "one_cycle", "lambda", "warm_up")):
            self.compare([(SCRIPT, 2 + index % 2), (TRIAL, 3 - index % 2)], schedule=schedule, groups=index == 1,
                         optimizer=["SGD", {"lr": 0.05, "momentum": 0.9}])

    def test_by_epoch(self):
        for index, schedule in enumerate(("step", "cosine", "one_cycle", "lambda", "warm_up")):
            self.compare([(SCRIPT, 2 + index % 2), (TRIAL, 3 - index % 2)], schedule=schedule, every="epoch", epochs=5,
                         optimizer=["AdamW", {"lr": 1e-3}])

    def test_of_an_optimizer_that_steps_by_itself(self):
        self.compare([(SCRIPT, 2), (TRIAL, 2)], schedule="warm_up", optimizer=["NAdam", {"lr": 1e-3}])


class Steps(ParityTest):
    def test_accumulation(self):
        for changes in ({}, {"optimizer": ["AdamW", {"lr": 1e-3}], "schedule": "cosine"},
                        {"optimizer": ["NAdam", {"lr": 1e-3}], "clip_norm": 0.1}):
            self.compare([(SCRIPT, 1), (SCRIPT, 2), (TRIAL, 3)], accumulate=2, **changes)

    def test_a_last_batch_with_fewer_samples_than_ranks(self):
        self.compare([(SCRIPT, 3), (TRIAL, 3)], extra=2, epochs=2, schedule="cosine")

    def test_clipping(self):
        self.compare([(SCRIPT, 1), (SCRIPT, 3), (TRIAL, 2)], clip_norm=0.1)
        self.compare([(SCRIPT, 2), (TRIAL, 2)], clip_value=0.01)
        self.compare([(SCRIPT, 2), (TRIAL, 3)], groups=True, limit=0.02, clip_norm=0.1)

    def test_float32(self):
        self.compare([(SCRIPT, 1), (SCRIPT, 2), (TRIAL, 3)], dtype="float32", optimizer=["SGD", {"lr": 0.05, "momentum": 0.9}])
        self.compare([(SCRIPT, 2)], dtype="float32", model="cnn", optimizer=["AdamW", {"lr": 1e-3}])


class Variants(ParityTest):
    def test_mixed_precision(self):
        case = {**cases.DEFAULTS, "dtype": "float32", "optimizer": ["Adam", {"lr": 3e-3}], "epochs": 10}
        for way in (SCRIPT, TRIAL):
            with self.subTest(way=Path(way).name):
                folder = self.work.new_run()
                folder.mkdir()
                written = experiment(case, folder / "parity.yaml", 2, optimizations={"mixed_precision": "bf16"},
                                     scheduling_unit=1)
                losses = [line["metrics"]["loss"] for line in forked.run(way, folder, written, 2).expect(0).metrics("training")]
                self.assertEqual(len(losses), cases.STEPS)
                self.assertLess(sum(losses[-2:]), 0.6 * sum(losses[:2]))


if __name__ == "__main__":
    forked.main()
