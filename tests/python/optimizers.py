"""Hooks, groups without parameters, a loss that learns, and buffers that are not saved, against plain PyTorch.

    optimizers.py BIN_FOLDER
"""
import functools
from pathlib import Path

import forked
import optimizers_cases as cases
import safetensors.torch
import torch

import harness

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "optimizers_script.py")


def plain(kind, file):
    torch.save(cases.train(kind), file)


def write_weights(file):
    safetensors.torch.save_file({name: value.contiguous() for name, value in cases.Net().state_dict().items()}, file)


def compare(expected, result):
    expected, seen = torch.load(expected), torch.load(result.run_dir / "seen.pt")
    assert [call[:-1] for call in seen["calls"]] == [call[:-1] for call in expected["calls"]], seen["calls"]
    close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)
    # The parameter of the loss before and after each step.
    close([call[-1] for call in seen["calls"]], [call[-1] for call in expected["calls"]])
    close({**seen["weights"], **seen["loss"]}, {**expected["weights"], **expected["loss"]})
    assert seen["loss"]["temperature"] != 1
    for mine, theirs in zip(seen["bytes"], expected["bytes"]):
        assert mine < 1.2 * theirs, f"torch.save() writes more than it is given: {seen['bytes']} and {expected['bytes']} bytes"
    close(safetensors.torch.load_file(result.weights_file), expected["weights"])
    close(safetensors.torch.load_file(result.run_dir / "checkpoints" / "step-8" / "model.safetensors"), expected["weights"])
    close([line["learning_rate"] for line in result.metrics("training")], expected["rates"])


class Optimizers(harness.WorkplaceTest):
    def train(self, kind, ranks, **sections):
        folder = self.work.new_run()
        folder.mkdir()
        experiment = harness.write_experiment(
            folder / "optimizers.yaml", name="optimizers", entrypoint="optimizers_script.py", scheduling_unit=1,
            hyperparameters={"global_batch_size": 16, "kind": kind}, resources={"slots_per_trial": ranks},
            searcher={"max_length": {"epochs": 2}}, optimizations={"memory_format": "channels_last"}, **sections)
        return forked.run(SCRIPT, folder, experiment, ranks).expect(0)

    def test_as_plain_pytorch(self):
        # Of the engine, and one that steps by itself. In channels_last the model computes with copies of weights.
        for kind, ranks in (("SGD", 1), ("AdamW", 3), ("NAdam", 2)):
            with self.subTest(kind=kind, ranks=ranks):
                file = self.work.path / f"{kind}.pt"
                forked.in_a_fork(plain, kind, file)
                forked.in_a_fork(compare, file, self.train(kind, ranks))

    def test_weights_without_the_buffers_that_are_not_saved(self):
        file = self.work.path / "weights.safetensors"
        forked.in_a_fork(write_weights, file)
        result = self.train("SGD", 1, initial_weights=str(file))
        self.assertIn("starting from the weights in", result.output)


if __name__ == "__main__":
    forked.main()
