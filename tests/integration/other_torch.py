"""What moves between the builds for two versions of PyTorch: exported models, checkpoints of models and of scripts.

    other_torch.py BIN_FOLDER OTHER_BIN_FOLDER OTHER_PYTHON [TestClass[.test] ...]

Another version's kernels may round in another way: nothing here has equal bits, and a run that goes on says so.
"""
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from exported_models import save_data, sections_of
from exported_zoo import CASES
from harness import Build, launch, overrides, run, write_experiment
from torchscript_models import ScriptTest, main

HERE = Path(__file__).resolve().parent
LIMIT = 1e-3  # of the relative L2 norm of all weights, after steps that began with equal ones
EXPORT = """
import sys
import safetensors.torch
import torch
from exported_zoo import CASES, export
title, data, file = sys.argv[1:]
torch.manual_seed(1)
export(CASES[title], CASES[title].make(), safetensors.torch.load_file(data), file)
"""


class Side:
    """A build, and the Python with its version of PyTorch."""

    def __init__(self, bin_folder, python):
        self.build, self.python = Build(bin_folder, "dtrain-worker"), str(python)

    def environment(self):
        return {"PYTHONPATH": f"{self.build.bin.parent / 'python'}:{HERE.parent / 'python'}", "DTRAIN_PYTHON": self.python}

    def launch(self, file, run_dir, *sets):
        return launch(self.build, file, run_dir, sets, **self.environment()).expect(0)

    def go_on(self, run_dir, *sets):
        command = [self.build.program("dtrain"), "launch", "--continue", str(run_dir), *overrides(sets)]
        return run(command, run_dir, **self.environment()).expect(0)


def version_of(result):
    return result.json("plan.json")["versions"]["libtorch"]


def flat_weights(result):
    return torch.cat([tensor.double().flatten() for _, tensor in sorted(load_file(result.weights_file).items())])


class OtherTorch(ScriptTest):
    sides = ()  # of the two builds

    def assert_close(self, results):
        first = flat_weights(results[0])
        for result in results[1:]:
            self.assertLess(((flat_weights(result) - first).norm() / first.norm()).item(), LIMIT, result.run_dir)

    def take_turns(self, file, keys):
        """A run whose parts are trained by one build and the other; the run without a break."""
        whole = self.sides[0].launch(file, self.work.new_run(), *keys[-1:])
        run_dir = self.work.new_run()
        parts = [self.sides[0].launch(file, run_dir, keys[0])]
        versions = [version_of(parts[0])]
        for number, key in enumerate(keys[1:], 1):
            parts.append(self.sides[number % 2].go_on(run_dir, key))
            versions.append(version_of(parts[-1]))
            self.assertNotEqual(versions[-1], versions[-2], "both builds have the same libtorch")
            said = (f'libtorch was "{versions[-2]}" when the checkpoint was taken and is "{versions[-1]}" now: weights may differ from '
                    "those of a run without a break")
            self.assertEqual(parts[-1].output.count(said), 1, parts[-1].output)
        self.assertEqual(len(parts[-1].events("resumed")), len(keys) - 1)
        self.assert_close([whole, parts[-1]])


class Exported(OtherTorch):
    def export(self, title, side, file):
        data = self.folder / "data.safetensors"
        subprocess.run([side.python, "-B", "-c", EXPORT, title, str(data), str(file)], cwd=HERE, check=True)

    def test_each_file_trains_with_each_build(self):
        case = CASES["cnn"]
        save_data(case, self.folder, 2)
        results = []
        for exporter, side in enumerate(self.sides):
            self.export("cnn", side, self.folder / f"{exporter}.pt2")
            for trainer in self.sides:
                file = write_experiment(self.folder / "experiment.yaml",
                                        **sections_of(case, self.folder, 2, model=str(self.folder / f"{exporter}.pt2")))
                results.append(trainer.launch(file, self.work.new_run()))
        self.assertEqual(len({version_of(result) for result in results}), 2)
        self.assert_close(results)

    def test_a_run_goes_on_with_the_other_build(self):
        case = CASES["cnn"]
        save_data(case, self.folder, 2)
        self.export("cnn", self.sides[0], self.folder / "model.pt2")
        file = write_experiment(self.folder / "experiment.yaml", **sections_of(case, self.folder, 2))
        self.take_turns(file, [f"searcher.max_length.batches={batches}" for batches in (6, 12, 18)])


class Scripts(OtherTorch):
    """The first optimizer is an update of dtrain's, the second one steps by itself."""

    def test_a_script_goes_on_with_the_other_build(self):
        for optimizer in ("AdamW", "NAdam"):
            with self.subTest(optimizer=optimizer):
                file = write_experiment(
                    self.folder / "experiment.yaml", name="script", entrypoint=str(HERE.parent / "python" / "resume_script.py"),
                    hyperparameters={"global_batch_size": 8, "optimizer": optimizer, "slow": "", "accumulates": False,
                                     "convolves": False},
                    resources={"slots_per_trial": 2}, searcher={"max_length": {"epochs": 5}})
                self.take_turns(file, [f"searcher.max_length.epochs={epochs}" for epochs in (1, 2, 3)])


if __name__ == "__main__":
    OtherTorch.sides = (Side(sys.argv[1], sys.executable), Side(sys.argv.pop(2), sys.argv.pop(2)))
    main()
