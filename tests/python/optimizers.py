"""Hooks, groups without parameters, a loss that learns, and buffers that are not saved, against plain PyTorch.

    optimizers.py BIN_FOLDER
"""
import sys
import unittest
from pathlib import Path

import forked
import harness
import optimizers_cases as cases
import safetensors.torch
import torch

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "optimizers_script.py")


def plain(kind, file):
    torch.save(cases.train(kind), file)


class Optimizers(harness.WorkplaceTest):
    def train(self, kind, ranks, **sections):
        folder = self.work.new_run()
        folder.mkdir()
        experiment = harness.write_experiment(
            folder / "optimizers.yaml", name="optimizers", entrypoint="optimizers_script.py", scheduling_unit=1,
            hyperparameters={"global_batch_size": 16, "kind": kind}, resources={"slots_per_trial": ranks},
            searcher={"max_length": {"epochs": 2}}, **sections)
        return forked.run(SCRIPT, folder, experiment, ranks).expect(0)

    def test_as_plain_pytorch(self):
        # Of the engine, and one that steps by itself.
        for kind, ranks in (("SGD", 1), ("AdamW", 3), ("NAdam", 2)):
            with self.subTest(kind=kind, ranks=ranks):
                file = self.work.path / f"{kind}.pt"
                forked.in_a_fork(plain, kind, file)
                expected, result = torch.load(file), self.train(kind, ranks)
                seen = torch.load(result.run_dir / "seen.pt")
                self.assertEqual([call[:-1] for call in seen["calls"]], [call[:-1] for call in expected["calls"]])
                for mine, theirs in zip(seen["calls"], expected["calls"]):
                    self.assertAlmostEqual(mine[-1], theirs[-1], places=9, msg=f"the parameter of the loss at {mine}")
                for part in ("weights", "loss"):
                    self.assertEqual(seen[part].keys(), expected[part].keys())
                    for name, value in expected[part].items():
                        torch.testing.assert_close(seen[part][name], value, rtol=1e-9, atol=1e-12, msg=lambda text: f"{name}: {text}")
                self.assertNotEqual(float(seen["loss"]["temperature"]), 1)
                for mine, theirs in zip(seen["bytes"], expected["bytes"]):
                    self.assertLess(mine, 1.2 * theirs, "torch.save() writes more than it is given")
                final = safetensors.torch.load_file(result.weights_file)
                self.assertEqual(final.keys(), expected["weights"].keys())
                for name, value in final.items():
                    torch.testing.assert_close(value, expected["weights"][name], rtol=1e-9, atol=1e-12)
                rates = [line["learning_rate"] for line in result.metrics("training")]
                self.assertEqual(len(rates), len(expected["rates"]))
                for rate, used in zip(rates, expected["rates"]):
                    self.assertAlmostEqual(rate, used, places=9)
                taken = result.run_dir / "checkpoints" / "step-8" / "model.safetensors"
                self.assertEqual(safetensors.torch.load_file(taken).keys(), expected["weights"].keys())

    def test_weights_without_the_buffers_that_are_not_saved(self):
        file = self.work.path / "weights.safetensors"
        safetensors.torch.save_file({name: value.contiguous() for name, value in cases.Net().state_dict().items()}, file)
        result = self.train("SGD", 1, initial_weights=str(file))
        self.assertIn("starting from the weights in", result.output)


if __name__ == "__main__":
    build = harness.Build(sys.argv.pop(1), trial="dtrain")
    forked.use_package(build)
    unittest.main()
