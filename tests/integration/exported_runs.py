"""Runs of models that torch.export wrote: bits, precisions, GPUs, what a run leaves, errors.

exported_runs.py BIN_FOLDER [TestClass[.test] ...]
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

import exported_backward
from exported_models import LIMIT, relative, save_data, sections_of, train_plain
from exported_zoo import CASES, CLASSES, Case, export
from gpu_cases import gpu_environment
from harness import DEADLINE, SOURCE, environment, launch, write_experiment
from torchscript_models import ScriptTest, experiment, main


class Noisy(nn.Module):
    """Draws random numbers in training, in a way of its own."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        if self.training:
            x = x + torch.rand_like(x)
        return self.fc(x)


class ExportedTest(ScriptTest):
    exported = {}  # to export takes seconds: the program of a case and its file, by the case's title

    def make(self, title="cnn", ranks=2, **options):
        """A file of the case, with its data; returns the case."""
        of_zoo = isinstance(title, str)
        case = CASES[title] if of_zoo else title
        torch.manual_seed(1)
        data, _ = save_data(case, self.folder, ranks)
        file = self.folder / "model.pt2"
        kept = of_zoo and not options
        if kept and title in self.exported:
            self.program, content = self.exported[title]
            file.write_bytes(content)
            return case
        self.program = export(case, case.make(), data, file, **options)
        if kept:
            self.exported[title] = self.program, file.read_bytes()
        return case

    def train(self, case, ranks=2, code=0, sets=(), environment_of_run=None, **more):
        file = write_experiment(self.folder / "experiment.yaml", **sections_of(case, self.folder, ranks, **more))
        return launch(self.build, file, self.work.new_run(), sets, **(environment_of_run or {})).expect(code)

    def dtrain(self, *arguments):
        done = subprocess.run(
            [self.build.program("dtrain"), *map(str, arguments)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        return done.returncode, done.stdout


class Bits(ExportedTest):
    def test_the_same_again_and_sharded(self):
        case = self.make("cnn")
        first = self.train(case).weights_file.read_bytes()
        self.assertEqual(first, self.train(case).weights_file.read_bytes())
        for sharded in (False, True):
            options = {
                "matmul": "default",
                "operators": "default",
                "memory_format": "contiguous",
                "sharded_optimizer": sharded,
            }
            self.assertEqual(
                first, self.train(case, optimizations=options).weights_file.read_bytes(), f"sharded: {sharded}"
            )

    def test_after_an_interruption(self):
        case = self.make("cnn", ranks=1)
        options = {"searcher": {"max_length": {"batches": 40}}, "min_checkpoint_period": {"batches": 5}}
        whole = self.train(case, ranks=1, **options)
        file = write_experiment(self.folder / "broken.yaml", **sections_of(case, self.folder, 1, **options))
        run_dir = self.work.new_run()
        short = [
            self.build.program("dtrain"),
            "launch",
            str(file),
            "--run-dir",
            str(run_dir),
            "--set",
            "searcher.max_length.batches=15",
        ]
        done = subprocess.run(
            short,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        code, said = self.dtrain("launch", "--continue", run_dir, "--set", "searcher.max_length.batches=40")
        self.assertEqual(code, 0, said)
        final = run_dir / "checkpoints" / "final" / "model.safetensors"
        self.assertEqual(whole.weights_file.read_bytes(), final.read_bytes())

    def test_precisions_and_memory_formats(self):
        case = self.make("cnn", ranks=1)

        def losses(**optimizations):
            result = self.train(case, ranks=1, optimizations=optimizations)
            return torch.tensor([line["metrics"]["loss"] for line in result.metrics("training")])

        plain = losses(memory_format="contiguous")
        for precision in ("bf16", "pure_bf16"):
            other = losses(memory_format="contiguous", mixed_precision=precision)
            self.assertFalse(torch.equal(plain, other), precision)
            torch.testing.assert_close(plain, other, rtol=0.03, atol=0)
        torch.testing.assert_close(plain, losses(memory_format="channels_last"), rtol=1e-4, atol=0)

    def test_on_gpus_with_graphs(self):
        case = self.make("cnn", ranks=2)
        options = {"searcher": {"max_length": {"batches": 60}}, "min_validation_period": {"batches": 30}}
        runs = [
            self.train(
                case,
                sets=["resources.slot_type=cuda"],
                environment_of_run=gpu_environment(self.build),
                optimizations={"memory_format": "contiguous", "cuda_graphs": graphs},
                **options,
            )
            for graphs in (True, False)
        ]
        told = runs[0].json("plan.json")["cuda_graphs"]
        self.assertTrue(told["captured"], told)
        # Unlike TorchScript's, these runs differ in their last bits (docs/exporting.md).
        with_graph, without = (safetensors.torch.load_file(str(run.weights_file)) for run in runs)
        torch.testing.assert_close(with_graph, without, rtol=1e-5, atol=1e-6)


OPTIMIZATIONS = {"matmul": "default", "operators": "default", "memory_format": "contiguous"}


class Settings(ExportedTest):
    """Settings of training mean for a file of torch.export what they mean for a model in PyTorch."""

    def compare(self, optimizer, groups, ema=None):
        """Trains the small GPT on 2 ranks, here and in PyTorch; the names and values of both, after the last step."""
        case = self.make("tied_gpt")._replace(eps=1e-3)  # the gradient of a bias of keys is all rounding
        torch.manual_seed(1)
        model = case.make()
        average, plain = None, None

        def after_step(trained):
            nonlocal average, plain
            plain = trained
            average = average or torch.optim.swa_utils.AveragedModel(
                trained, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(ema or 0.5)
            )
            average.update_parameters(trained)

        expected = train_plain(case, model, safetensors.torch.load_file(self.folder / "data.safetensors"), 2,
                               groups, after_step)
        result = self.train(
            case,
            optimizer={"kind": "adamw", "lr": case.lr, "eps": case.eps, "weight_decay": 0.01, **optimizer},
            optimizations={**OPTIMIZATIONS, **({"ema": ema} if ema else {})},
        )
        losses = [line["metrics"]["loss"] for line in result.metrics("training")]
        self.assertLess(max(map(relative, losses, expected)), LIMIT)
        wanted = dict((average.module if ema else plain).named_parameters())
        weights = safetensors.torch.load_file(result.weights_file)
        for name, tensor in wanted.items():
            torch.testing.assert_close(weights[name], tensor.detach(), rtol=1e-4, atol=1e-7, msg=name)
        return result, weights, dict(model.named_parameters())

    def test_an_average_of_the_weights(self):
        result, weights, _ = self.compare({}, None, ema=0.9)
        last = safetensors.torch.load_file(result.weights_file.with_name("model_without_ema.safetensors"))
        self.assertFalse(torch.equal(last["qkv.weight"], weights["qkv.weight"]))
        program = torch.export.load(str(result.weights_file.with_name("model.pt2")))
        self.assertTrue(torch.equal(program.state_dict["qkv.weight"], weights["qkv.weight"]))

    def test_groups_by_patterns_over_names(self):
        def groups(model):
            of_norms = [p for name, p in model.named_parameters() if name.startswith("norm") or name.endswith("bias")]
            others = [p for p in model.parameters() if not any(p is other for other in of_norms)]
            return [{"params": of_norms, "lr": 0.02, "weight_decay": 0.0}, {"params": others}]

        self.compare({"groups": [{"match": "norm*|*bias", "lr": 0.02, "weight_decay": 0}]}, groups)

    def test_a_part_is_trained(self):
        def groups(model):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith("mlp."))
            return model.mlp.parameters()

        result, weights, before = self.compare({"trainable": "mlp.*"}, groups)
        for name, tensor in before.items():
            self.assertEqual(torch.equal(weights[name], tensor), not name.startswith("mlp."), name)
        self.assertTrue(result.weights_file.with_name("model.pt2").is_file())

    def test_gradient_checkpointing(self):
        """Dropout, drop path, regions without autocast, batch norm in modules that are computed again: the same bits."""
        for title, patterns in (("timm_vit", "blocks.*"), ("timm_resnet", "layer*|conv1"), ("llama_like", "norm*|q"),
                                ("bert", "bert.encoder.layer.*.attention|dropout")):
            case = self.make(title)
            weights, counted = [], []
            for checkpointed in ({}, {"gradient_checkpointing": patterns}):
                result = self.train(case, optimizations={**OPTIMIZATIONS, **checkpointed})
                weights.append(result.weights_file.read_bytes())
                rows = result.json("profile/operators-rank-0000.json")["operators"]
                counted.append(sum(row["calls"] for row in rows))
            self.assertEqual(*weights, title)
            self.assertGreater(counted[1], counted[0], f"{title}: nothing was computed again")

    def test_flops_and_operators(self):
        case = self.make("mlp")
        result = self.train(case)
        flops = 2 * (2 * 12 * 32 + 3 * 32 * CLASSES)  # of a sample; the input gets no gradient
        plan = result.json("plan.json")
        self.assertEqual(plan["flops"], {"per_sample": flops, "dtype": "float32", "device": "cpu"})
        counted = result.json("profile/operators-rank-0000.json")
        rows = {row["name"]: row for row in counted["operators"]}
        self.assertEqual(sum(row["flops"] for row in counted["operators"]), flops * counted["samples"])
        for name in ("aten::addmm", "aten::gelu", "aten::bernoulli_", "aten::gelu_backward"):
            self.assertGreater(rows.get(name, {"calls": 0})["calls"], 0, f"{name} is not among {sorted(rows)}")
        plan["limits"] = {counted["host"]: {"memory_gb_s": 20, "gflops": {"float32": 100, "bfloat16": 300}}}
        (result.run_dir / "plan.json").write_text(json.dumps(plan))
        code, said = self.dtrain("summary", result.run_dir, "--json")
        self.assertEqual(code, 0, said)
        summary = json.loads(said)
        self.assertAlmostEqual(summary["mfu"], summary["achieved_gflops"] / 200, places=12)
        code, said = self.dtrain("summary", result.run_dir)
        self.assertEqual(code, 0, said)
        self.assertIn("MFU", said)


class Files(ExportedTest):
    def test_what_a_run_leaves(self):
        case = self.make("tied_gpt", ranks=1)
        result = self.train(case, ranks=1)
        trained = torch.export.load(str(result.weights_file.with_name("model.pt2")))
        weights = safetensors.torch.load_file(result.weights_file)
        self.assertEqual(trained.state_dict.keys(), weights.keys())
        for name, tensor in trained.state_dict.items():
            self.assertTrue(torch.equal(tensor, weights[name]), name)
        self.assertFalse(torch.equal(weights["qkv.weight"], self.program.state_dict["qkv.weight"]))
        case.make().load_state_dict(weights)
        text = torch.randint(0, 97, (3, 12))
        scores = trained.module()(text)["logits"]
        self.assertEqual(scores.shape, (3, 12, 97))
        out = self.folder / "out.pt2"
        code, said = self.dtrain("checkpoint", "export", result.run_dir, "--format", "pt2", "-o", out)
        self.assertEqual(code, 0, said)
        for name, tensor in torch.export.load(str(out)).state_dict.items():
            self.assertTrue(torch.equal(tensor, weights[name]), name)
        code, said = self.dtrain(
            "checkpoint", "export", result.run_dir, "--format", "torchscript", "-o", self.folder / "out.pt"
        )
        self.assertEqual(code, 2, said)
        self.assertIn("use --format pt2", said)

    def test_inspect(self):
        self.make("bert", ranks=1)
        code, said = self.dtrain("model", "inspect", self.folder / "model.pt2", "--json")
        self.assertEqual(code, 0, said)
        told = json.loads(said)
        self.assertEqual([entry["name"] for entry in told["inputs"]], ["attention_mask", "input_ids"])
        self.assertEqual(told["outputs"], ["logits"])
        self.assertEqual(
            {entry["name"]: entry["shape"] for entry in told["parameters"]},
            {name: list(tensor.shape) for name, tensor in self.program.state_dict.items() if tensor.requires_grad},
        )
        self.assertEqual(sorted(told["switched_in_evaluation"]), ["dropout", "scaled_dot_product_attention"])
        self.assertEqual((told["why_no_evaluation"], told["why_no_cuda_graph"]), ("", ""))
        with open("/dev/full", "w") as full:
            result = subprocess.run([str(self.build.program("dtrain")), "model", "inspect", str(self.folder / "model.pt2")],
                                    stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("not everything could be written to standard output", result.stderr)
        code, said = self.dtrain("model", "inspect", self.folder / "data.safetensors")
        self.assertEqual(code, 2, said)
        self.assertIn("is no file of torch.export", said)

    def test_a_pair(self):
        noisy = Case(Noisy, ["numbers"], "class", "cross_entropy", CASES["mlp"].loss_of)
        case = self.make(noisy, ranks=1)
        result = self.train(case, ranks=1, code=1)
        self.assertIn("cannot be used for validation, because it draws random numbers (rand_like)", result.output)
        self.assertIn("model: {train: a.pt2, eval: b.pt2}", result.output)
        torch.manual_seed(2)
        data, held_out = save_data(case, self.folder, 1)
        export(case, case.make(), data, self.folder / "eval.pt2", training=False)
        pair = {"train": str(self.folder / "model.pt2"), "eval": str(self.folder / "eval.pt2")}
        result = self.train(case, ranks=1, model=pair)
        model = case.make().eval()
        model.load_state_dict(safetensors.torch.load_file(result.weights_file))
        with torch.no_grad():
            expected = case.loss_of(model(held_out["numbers"]), held_out["class"]).item()
        self.assertAlmostEqual(result.metrics("validation")[-1]["metrics"]["loss"], expected, places=6)
        self.assertTrue(result.weights_file.with_name("model_eval.pt2").is_file())


class BackwardCode(ExportedTest):
    """What torch.export leaves out is refused, with the line of the model's code."""

    def inspect(self, model, decompose=False, **options):
        torch.manual_seed(1)
        program = torch.export.export(model.train(), (torch.randn(4, exported_backward.WIDTH),),
                                      dynamic_shapes=({0: torch.export.Dim.AUTO},), **options)
        torch.export.save(program.run_decompositions() if decompose else program, str(self.folder / "own.pt2"))
        return self.dtrain("model", "inspect", self.folder / "own.pt2", "--json")

    def line_of(self, comment):
        lines = Path(exported_backward.__file__).read_text().split("\n")
        return next(f"exported_backward.py, line {n + 1})" for n, line in enumerate(lines) if line.endswith(f"# {comment}"))

    def test_is_refused_by_its_line(self):
        for kind, comment, remedy, options in (
            ("Applied", "applied", "x + (f(x) - x).detach()", {}),
            ("Applied", "applied", "x + (f(x) - x).detach()", {"strict": True}),
            ("Named", "by a name", "x + (f(x) - x).detach()", {}),
            ("Helped", "by a helper", "make the module in __init__()", {}),
            ("Reversed", "reversed", "x + (f(x) - x).detach()", {}),
            ("Mirrored", "mirrored", "x + (f(x) - x).detach()", {}),
            ("Reentrant", "reentrant", "use_reentrant=False", {}),
        ):
            with self.subTest(kind, **options):
                code, said = self.inspect(getattr(exported_backward, kind)(), **options)
                self.assertEqual(code, 2, said)
                self.assertIn("lacks backward code of its author", said)
                self.assertIn(self.line_of(comment), said)
                self.assertIn(remedy, said)
        code, said = self.inspect(exported_backward.Hooked())
        self.assertEqual(code, 2, said)
        self.assertIn("the backward hook of the module 'fc'", said)
        code, said = self.inspect(exported_backward.LooksLikeIt(), decompose=True)
        self.assertEqual(code, 2, said)
        self.assertIn("has gone through run_decompositions(), which leaves out detach()", said)

    def test_what_only_looks_like_it_is_not(self):
        code, said = self.inspect(exported_backward.Scaled())
        self.assertEqual(code, 0, said)
        (suspected,) = json.loads(said)["suspected_backward"]
        self.assertIn(self.line_of("like a module of another model"), suspected)
        code, said = self.inspect(exported_backward.LooksLikeIt())
        self.assertEqual(code, 0, said)
        told = json.loads(said)
        self.assertEqual(told["suspected_backward"], [])
        self.assertEqual(told["modules_in_evaluation_mode"], ["still (BatchNorm1d)"])
        self.assertEqual(told["exported_in_evaluation_mode"], [])
        self.assertNotIn("aten.slice.Tensor", told["operators"])


class Targets(ExportedTest):
    def test_types_of_data_and_targets_that_do_not_count(self):
        """F16, BOOL and I16, and targets of -100, as in PyTorch."""
        torch.manual_seed(4)
        model, rows, steps = exported_backward.Masked(), 8, 10
        data = {
            "numbers": torch.randn(rows * steps, exported_backward.WIDTH).half(),
            "mask": torch.rand(rows * steps, exported_backward.WIDTH) < 0.3,
            "class": torch.where(torch.arange(rows * steps) % 5 == 0, -100, torch.arange(rows * steps) % CLASSES).short(),
        }
        safetensors.torch.save_file(data, self.folder / "data.safetensors")
        example = (data["numbers"][:4].float(), data["mask"][:4])
        program = torch.export.export(model, example, dynamic_shapes=({0: torch.export.Dim.AUTO},) * 2)
        torch.export.save(program, str(self.folder / "model.pt2"))
        source = {"file": str(self.folder / "data.safetensors"), "features": "numbers", "target": "class"}
        sections = experiment(
            self.folder / "model.pt2",
            {"format": "safetensors", "shuffle": False, "more_inputs": ["mask"], "training": source, "validation": source},
            steps=steps,
            batch=rows,
            scheduling_unit=1,
            optimizations=OPTIMIZATIONS,
        )
        file = write_experiment(self.folder / "experiment.yaml", **sections)
        result = launch(self.build, file, self.work.new_run()).expect(0)
        optimizer, expected = torch.optim.SGD(model.parameters(), lr=0.05), []
        for step in range(steps):
            part = {name: tensor[step * rows : (step + 1) * rows] for name, tensor in data.items()}
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(part["numbers"].float(), part["mask"]), part["class"].long())
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        losses = [line["metrics"]["loss"] for line in result.metrics("training")]
        self.assertLess(max(map(relative, losses, expected)), LIMIT)
        whole = torch.nn.functional.cross_entropy(model(data["numbers"].float(), data["mask"]), data["class"].long())
        validated = result.metrics("validation")[-1]["metrics"]["loss"]
        self.assertLess(relative(validated, whole.item()), LIMIT, "the mean over the targets that count")
        result = launch(self.build, file, self.work.new_run(), ["resources.slots_per_trial=2"]).expect(1)
        self.assertIn("set ignore_index: -100 in loss", result.output)

    def test_weights_are_kept_where_the_last_validation_fails(self):
        case = self.make("mlp", ranks=1)
        held_out = safetensors.torch.load_file(self.folder / "held_out.safetensors")
        held_out["class"][-1] = 99
        safetensors.torch.save_file(held_out, self.folder / "held_out.safetensors")
        result = self.train(case, ranks=1, code=1, min_validation_period={"batches": 0})
        self.assertIn("the target has class 99", result.output)
        weights = safetensors.torch.load_file(result.weights_file)
        self.assertFalse(torch.equal(weights["0.weight"], self.program.state_dict["0.weight"]))
        trained = torch.export.load(str(result.weights_file.with_name("model.pt2"))).state_dict
        self.assertTrue(torch.equal(weights["0.weight"], trained["0.weight"]))


class Page(ExportedTest):
    def test_a_model_is_trained_from_the_page_alone(self):
        text = (SOURCE / "docs" / "exporting.md").read_text()
        code, sections = (re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1] for language in ("python", "yaml"))
        (self.folder / "export.py").write_text(code)
        (self.folder / "experiment.yaml").write_text(sections)
        subprocess.run([sys.executable, "-B", "export.py"], cwd=self.folder, check=True, timeout=DEADLINE)
        result = launch(self.build, self.folder / "experiment.yaml", self.work.new_run()).expect(0)
        losses = [line["metrics"]["loss"] for line in result.metrics("validation")]
        self.assertLess(losses[-1], 0.9, "chance is 1.39")
        trained = torch.export.load(str(result.weights_file.with_name("model.pt2"))).module()
        self.assertEqual(trained(torch.ones(3, 20)).shape, (3, 4))


class Errors(ExportedTest):
    def fails(self, case, *words, code=1, **more):
        result = self.train(case, ranks=1, code=code, **more)
        for word in words:
            self.assertIn(word, result.output)

    def test_shapes_and_names(self):
        case = self.make("mlp", ranks=1, dynamic=False)
        self.fails(
            case,
            "data.training has batches of 2 samples, which model: ",
            "its input 'input' was exported for batches of 4 samples alone",
            "dynamic_shapes",
            hyperparameters={"global_batch_size": 2},
        )
        # Before the first batch, though only the last one of validation does not fit.
        self.fails(case, "data.validation has a last batch of 2 samples, which model: ", "batches of 4 samples alone")
        case = self.make("tied_gpt", ranks=1)
        self.fails(case._replace(loss="cross_entropy"), "forward() returns 2 tensors (logits, hidden)", "loss.output")
        self.fails(
            case._replace(loss={"kind": "cross_entropy", "output": "scores"}), "loss.output is 'scores'", "logits, hidden"
        )
        self.fails(case, "data.scale has no effect: the model takes its features as whole numbers", sets=["data.scale=1"])
        case = self.make("bert", ranks=1)
        self.fails(
            case._replace(inputs=["input_ids"]), "takes 2 tensors (attention_mask, input_ids), not 1", "data.more_inputs"
        )

    def test_gradient_checkpointing(self):
        def checkpointed(patterns):
            return {"optimizations": {"gradient_checkpointing": patterns}}

        case = self.make("timm_vit", ranks=1)
        self.fails(case, 'gradient_checkpointing: no module with two operators or more matches "block"',
                   "the modules are blocks.0, blocks.0.attn, ", **checkpointed("block"))
        case = self.make("cnn", ranks=1)
        script = torch.jit.script(case.make())
        script.save(str(self.folder / "model.pt"))
        self.fails(case, "gradient_checkpointing is not supported for TorchScript", model=str(self.folder / "model.pt"),
                   **checkpointed("0"))

    def test_files(self):
        case = self.make("mlp", ranks=1)
        whole = (self.folder / "model.pt2").read_bytes()
        (self.folder / "model.pt2").write_bytes(whole[: len(whole) // 2])
        self.fails(case, "model.pt2 is damaged or cut off", "torch.export.save()")
        for content in ("", "no archive"):
            (self.folder / "model.pt2").write_text(content)
            self.fails(case, "model.pt2 is damaged or cut off", "torch.export.save()")
        (self.folder / "model.pt2").unlink()
        self.fails(case, "there is no file", "torch.export.save(", code=2)

    def test_operators(self):
        class Cond(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(12, CLASSES)

            def forward(self, x):
                return torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (self.fc(x),))

        self.fails(
            self.make(Case(Cond, ["numbers"], "class", "cross_entropy", None), ranks=1),
            "higher-order operator cond",
            "torch.where()",
        )


if __name__ == "__main__":
    main()
