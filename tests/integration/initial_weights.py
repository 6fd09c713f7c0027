"""Where a training may start: a checkpoint, a run (its newest or best checkpoint), files of other programs. And the way
of a checkpoint into TorchScript. Each case goes through the experiment file, on real files.

    initial_weights.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import subprocess

import safetensors.torch
import torch

from harness import DEADLINE, environment
from torchscript_models import Net, ScriptTest, experiment, main, random_weights, save_script

NOTHING = {"kind": "sgd", "lr": 1e-30}  # changes no float32


class Starting(ScriptTest):
    def setUp(self):
        super().setUp()
        self.data = self.idx_data() | {"validation": {"features": "images", "target": "labels"}}
        self.model = random_weights(Net(), seed=1)
        save_script(self.model, self.folder / "net.pt")

    def train(self, **more):
        optimizer = more.pop("optimizer", {"kind": "adamw", "lr": 0.01})
        return self.alone(experiment("net.pt", self.data, more.pop("steps", 6), optimizer=optimizer, **more))

    def start_from(self, weights, **more):
        """A run that begins with these weights and leaves parameters as they are."""
        return self.train(steps=1, optimizer=NOTHING, initial_weights=weights, **more)

    def parameters(self, file):
        buffers = {name for name, _ in self.model.named_buffers()}
        return {name: tensor for name, tensor in safetensors.torch.load_file(file).items() if name not in buffers}

    def check_starts(self, weights, expected, **more):
        result = self.start_from(weights, **more).expect(0)
        final = self.parameters(result.weights_file)
        expected = self.parameters(expected)
        for name, tensor in final.items():
            self.assertTrue(torch.equal(tensor, expected.get(name, expected.get("tied_a.weight"))), name)
        return result

    def test_from_a_checkpoint_and_from_a_run(self):
        kept = {"checkpoint_storage": {"save_trial_latest": 5, "save_trial_best": 5}, "min_validation_period": {"batches": 2},
                "checkpoint_policy": "all", "searcher": {"metric": "loss", "smaller_is_better": False, "max_length": {"batches": 6}}}
        first = self.train(**kept).expect(0)
        storage = first.run_dir / "checkpoints"
        newest = storage / "step-6"
        steps = sorted(path.name for path in storage.glob("step-*"))
        self.assertIn("step-6", steps)
        self.assertGreater(len(steps), 1)
        self.check_starts(str(newest), newest / "model.safetensors")
        result = self.check_starts(str(first.run_dir), newest / "model.safetensors")
        self.assertIn(f"starting from the weights in {newest}", result.output)
        # The loss falls, and here larger is better: the first one is the best.
        entries = {step: json.loads((storage / step / "manifest.json").read_text())["about"]["metric_value"] for step in steps}
        best = max((step for step in steps if entries[step] is not None), key=entries.get)
        self.assertNotEqual(best, "step-6")
        self.check_starts({"file": str(first.run_dir), "checkpoint": "best"}, storage / best / "model.safetensors")
        # One byte of the newest is wrong.
        file = newest / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        older = storage / sorted(steps, key=lambda step: int(step[5:]))[-2]
        result = self.check_starts(str(first.run_dir), older / "model.safetensors")
        self.assertIn("passed over step-6: model.safetensors", result.output)
        refused = self.start_from(str(newest)).expect(1)
        self.assertIn(f"initial_weights: {newest} cannot be used", refused.output)

    def test_from_files_of_other_programs(self):
        other = {f"module.{name}": tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
                 for name, tensor in random_weights(Net(), seed=7).state_dict().items() if name != "tied_b.weight"}
        safetensors.torch.save_file(other, self.folder / "other.safetensors")
        expected = {name.removeprefix("module."): tensor.float() if tensor.is_floating_point() else tensor
                    for name, tensor in other.items()}
        safetensors.torch.save_file(expected, self.folder / "expected.safetensors")
        refused = self.start_from("other.safetensors").expect(1)
        self.assertIn("strip_prefix: 'module.'", refused.output)
        self.assertIn("'tied_a.weight' (tied: 'tied_b.weight') is not in the file", refused.output)
        weights = {"file": "other.safetensors", "strip_prefix": "module."}
        refused = self.start_from(weights).expect(1)
        self.assertIn("is bfloat16 in the file and float32 in the model", refused.output)
        self.check_starts({**weights, "convert_types": True}, self.folder / "expected.safetensors")
        # A head of another size is left out.
        expected["out.weight"] = torch.zeros(3, 32)
        safetensors.torch.save_file(expected, self.folder / "head.safetensors")
        result = self.start_from({"file": "head.safetensors", "strict": False}).expect(0)
        self.assertIn("'out.weight' is [3, 32] in the file and [10, 32] in the model", result.output)
        final = self.parameters(result.weights_file)
        self.assertTrue(torch.equal(final["out.weight"], self.model.state_dict()["out.weight"]))
        self.assertTrue(torch.equal(final["fc1.weight"], expected["fc1.weight"]))


class Export(ScriptTest):
    def export(self, *arguments):
        done = subprocess.run([self.build.program("dtrain"), "checkpoint", "export", *map(str, arguments)], env=environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE, check=False)
        return done.returncode, done.stdout

    def test_torchscript(self):
        save_script(random_weights(Net(), seed=1), self.folder / "net.pt")
        result = self.alone(experiment("net.pt", self.idx_data(), 4, optimizer={"kind": "adamw", "lr": 0.01})).expect(0)
        out = self.folder / "out.pt"
        code, said = self.export(result.run_dir, "--format", "torchscript", "--output", out)
        self.assertEqual(code, 0, said)
        self.assertIn(f"{out}: {self.folder / 'net.pt'} with the weights of", said)
        exported, final = torch.jit.load(str(out)), torch.jit.load(str(result.run_dir / "checkpoints" / "final" / "model.pt"))
        self.assertFalse(exported.training)
        expected = final.state_dict()
        self.assertEqual(exported.state_dict().keys(), expected.keys())
        for name, tensor in exported.state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        images = torch.rand(3, 1, 8, 8)
        self.assertTrue(torch.equal(exported(images), final(images)))
        # Another model under the same name is not filled with these weights.
        save_script(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), self.folder / "net.pt")
        code, said = self.export(result.run_dir, "--format", "torchscript", "--output", out)
        self.assertEqual(code, 2, said)
        self.assertIn(f"{out} exists", said)
        again = (result.run_dir, "--format", "torchscript", "--output", out, "--force")
        code, said = self.export(*again)
        self.assertEqual(code, 2, said)
        self.assertIn("name the one that was trained with --model FILE", said)
        (self.folder / "net.pt").unlink()
        code, said = self.export(*again)
        self.assertEqual(code, 2, said)
        self.assertIn("is no longer there", said)
        self.assertIn("name it with --model FILE", said)
        save_script(random_weights(Net(), seed=2), self.folder / "moved.pt")
        code, said = self.export(*again, "--model", self.folder / "moved.pt")
        self.assertEqual(code, 0, said)
        for name, tensor in torch.jit.load(str(out)).state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)


if __name__ == "__main__":
    main()
