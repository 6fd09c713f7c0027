"""FLOPs that dtrain counts are those of torch.utils.flop_counter, on ten models and in a run."""
import json
import subprocess
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

from harness import BUILD, Workplace, check_waterfall, environment, run, write_experiment
from torchscript_models import Mlp, ScriptTest, experiment, main, save_script

aten = torch.ops.aten
# Python's counter knows attention on GPUs alone; its formulas are the same on CPUs.


def raw(formula):
    def same(*args, **kwargs):
        return formula(*args, **kwargs)
    same._get_raw = True  # it takes tensors
    return same


CPU_ATTENTION = {aten._scaled_dot_product_flash_attention_for_cpu: raw(sdpa_flop),
                 aten._scaled_dot_product_flash_attention_for_cpu_backward: raw(sdpa_backward_flop)}


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.a = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.skip(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, explicit: bool):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.explicit = heads, explicit

    def forward(self, x):
        b, t, c = x.size(0), x.size(1), x.size(2)
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.explicit:
            y = torch.softmax(q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Gpt(nn.Module):
    def __init__(self, explicit: bool):
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.n1, self.n2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention = Attention(32, 4, explicit)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, t):
        x = self.tokens(t)
        x = x + self.attention(self.n1(x))
        return self.head(x + self.mlp(self.n2(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.cell(x)[0][:, -1])


class Loss(nn.Module):
    """A model with its input, whose forward() takes nothing, so that C++ needs to know nothing of it."""

    def __init__(self, model, x):
        super().__init__()
        self.model = model
        self.register_buffer("x", x)

    def forward(self):
        return self.model(self.x).float().pow(2).sum()


def models():
    torch.manual_seed(1)
    relu = nn.ReLU()
    images = torch.randn(2, 3, 16, 16)
    return {
        "mlp": (nn.Sequential(nn.Linear(20, 40), relu, nn.Linear(40, 7)), torch.randn(6, 20)),
        "mlp_3d": (nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5)), torch.randn(3, 4, 12)),
        "cnn": (nn.Sequential(nn.Conv2d(3, 8, 3), relu, nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, 2, 1), relu,
                              nn.Flatten(), nn.Linear(16 * 16, 10)), images),
        "conv1d_3d": (nn.Sequential(nn.Conv1d(4, 6, 5, dilation=2), relu, nn.Unflatten(2, (2, 2, 6)),
                                    nn.Conv3d(6, 4, 2, padding=1)), torch.randn(3, 4, 32)),
        "resnet": (nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), relu, Residual(16, 16, 1),
                                 Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
                   images),
        "grouped": (nn.Sequential(nn.Conv2d(3, 12, 3, groups=3), nn.Conv2d(12, 12, 3, padding=1, groups=12),
                                  nn.Conv2d(12, 24, 1)), images),
        "transposed": (nn.Sequential(nn.Conv2d(3, 8, 3, 2), relu, nn.ConvTranspose2d(8, 6, 4, 2, 1), relu,
                                     nn.ConvTranspose2d(6, 4, 3, groups=2, output_padding=0)), images),
        "gpt_fused": (Gpt(False), torch.randint(50, (2, 10))),
        "gpt_explicit": (Gpt(True), torch.randint(50, (2, 10))),
        "gru": (Recurrent(), torch.randn(4, 5, 8)),
        "autoencoder": (nn.Sequential(nn.Linear(30, 16), relu, nn.Linear(16, 4), relu, nn.Linear(4, 16), relu,
                                      nn.Linear(16, 30)), torch.randn(5, 30)),
        "embedding": (nn.Embedding(20, 8), torch.randint(20, (4, 6))),
        "bfloat16": (nn.Sequential(nn.Linear(16, 32), relu, nn.Linear(32, 8)).bfloat16(),
                     torch.randn(4, 16).bfloat16()),
    }


def python_flops(model):
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        model().backward()
    return counter.get_total_flops()


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("flop-counts")
        cls.expected = {}
        for name, (model, x) in models().items():
            whole = Loss(model, x)
            cls.expected[name] = python_flops(whole)
            torch.jit.script(whole).save(str(cls.place.path / f"{name}.pt"))
        done = subprocess.run([BUILD.program("flop_counts"), str(cls.place.path)], env=environment(), text=True,
                              stdout=subprocess.PIPE, check=True, timeout=120)
        cls.counted = json.loads(done.stdout)

    @classmethod
    def tearDownClass(cls):
        cls.place.remove()

    def test_scripted_models_have_the_flops_that_python_counts(self):
        self.assertEqual(sorted(self.counted["script"]), sorted(self.expected))
        for name, passes in self.counted["script"].items():
            with self.subTest(model=name):
                self.assertEqual([one["flops"] for one in passes], [self.expected[name]] * 3)
                self.assertTrue(passes[0]["timed"])
        self.assertEqual(self.expected["embedding"], 0)
        self.assertGreater(self.expected["gpt_fused"], self.expected["gpt_explicit"])  # backward computes scores again

    def test_models_of_cpp_have_them_too(self):
        net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, groups=4), nn.ReLU(),
                            nn.ConvTranspose2d(16, 4, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
        expected = python_flops(Loss(net, torch.randn(2, 3, 12, 12)))
        self.assertEqual(self.counted["eager"]["convolutions"]["flops"], expected)
        linear = self.counted["eager"]["linear"]
        self.assertEqual(linear["flops"], 2 * 2 * 8 * 16 * 24)  # forward, and the weight's gradient
        self.assertEqual(linear["types"], {"float32": linear["flops"]})

    def test_under_autocast_the_type_is_that_of_the_arithmetic(self):
        autocast = self.counted["eager"]["autocast"]
        self.assertEqual(autocast["types"], {"bfloat16": autocast["flops"]})
        # linear forward and its weight's gradient, mm forward and its input's gradient
        self.assertEqual(autocast["flops"], 2 * 2 * 8 * 16 * 24 + 2 * 2 * 8 * 24 * 4)
        bfloat16 = self.counted["script"]["bfloat16"][0]
        self.assertEqual(bfloat16["types"], {"bfloat16": self.expected["bfloat16"]})

    def test_bytes_are_those_of_the_tensors(self):
        moved = self.counted["eager"]["bytes"]["bytes"]
        each = 8 * 16 * 4
        self.assertEqual(moved["aten::relu"], 2 * each)
        self.assertEqual(moved["aten::sum"], each + 4)
        self.assertEqual(moved["aten::threshold_backward"], 2 * each + 4)  # the sum's gradient is one number, expanded
        self.assertFalse({"aten::view", "aten::t", "aten::expand"} & set(moved))
        linear = self.counted["eager"]["linear"]["bytes"]
        self.assertEqual(linear["aten::addmm"], 4 * (24 + 8 * 16 + 16 * 24 + 8 * 24))


class Runs(ScriptTest):
    def counts(self, result, ranks):
        files = sorted(path.name for path in (result.run_dir / "profile").glob("operators-*"))
        self.assertEqual(files, [f"operators-rank-{rank:04}.json" for rank in range(ranks)])
        return [result.json(f"profile/{name}") for name in files]

    def check(self, slots, **more):
        model = save_script(Mlp(), self.folder / "model.pt")
        flops = 2 * (2 * 64 * 16 + 3 * 16 * 10)  # of a sample; the images get no gradient
        sections = experiment(model, self.idx_data(samples=44), steps=20, batch=15, slots=slots, **more)
        result = self.launched(sections).expect(0)
        self.assertEqual(result.json("plan.json")["flops"], {"per_sample": flops, "dtype": "float32", "device": "cpu"})
        for rank, counts in enumerate(self.counts(result, slots)):
            self.assertEqual([counts[key] for key in ("rank", "device", "flops_per_sample", "dtype")],
                             [rank, "cpu", flops, "float32"])
            self.assertEqual(counts["counted_batches"], 5)
            self.assertEqual(sum(row["flops"] for row in counts["operators"]), flops * counts["samples"])
            self.assertTrue(all(row["seconds"] > 0 and row["calls"] > 0 for row in counts["operators"]))
        return result

    def dtrain(self, *words):
        done = subprocess.run([self.build.program("dtrain"), *map(str, words)], env=environment(), text=True,
                              stdout=subprocess.PIPE, check=True, timeout=120)
        return done.stdout

    def test_mfu_follows_from_the_limits_in_the_plan(self):
        result = self.check(2)
        plan_file = result.run_dir / "plan.json"
        plan = json.loads(plan_file.read_text())
        host = result.json("profile/operators-rank-0000.json")["host"]

        plan.pop("limits", None)
        plan_file.write_text(json.dumps(plan))
        summary = json.loads(self.dtrain("summary", result.run_dir, "--json"))
        self.assertIsNone(summary["mfu"])
        flops = plan["flops"]["per_sample"]
        self.assertAlmostEqual(summary["achieved_gflops"], flops * summary["training_samples_per_s"] / 1e9, places=9)
        self.assertAlmostEqual(summary["flops_per_step"], flops * summary["samples"] / summary["steps"], places=3)
        self.assertIn("dtrain doctor --bench", " ".join(self.dtrain("summary", result.run_dir).split()))
        parts = json.loads(self.dtrain("analyze", result.run_dir, "--json"))["waterfall"]["parts"]
        self.assertEqual(parts[0]["name"], "compute")

        plan["limits"] = {host: {"memory_gb_s": 20, "gflops": {"float32": 100, "bfloat16": 300}}}
        plan_file.write_text(json.dumps(plan))
        summary = json.loads(self.dtrain("summary", result.run_dir, "--json"))
        self.assertEqual(summary["limit_gflops"], 200)
        self.assertAlmostEqual(summary["mfu"], summary["achieved_gflops"] / 200, places=12)
        parts = json.loads(self.dtrain("analyze", result.run_dir, "--json"))["waterfall"]["parts"]
        self.assertEqual([part["name"] for part in parts[:3]], ["hardware", "slower_kernels", "slower_compute"])
        self.assertAlmostEqual(sum(part["share"] for part in parts), 1, places=9)
        self.assertGreater(parts[0]["seconds"], 0)
        top = json.loads(self.dtrain("top", result.run_dir, "--once", "--json"))
        self.assertAlmostEqual(top["mfu"], top["achieved_gflops"] / 200, places=9)
        self.dtrain("report", result.run_dir, "-o", self.folder / "report.html")
        check_waterfall(self.folder / "report.html")
        self.assertIn("slower_kernels", (self.folder / "report.html").read_text())

    def test_a_mock_run_that_trains_nothing_has_no_count(self):
        model = save_script(Mlp(), self.folder / "model.pt")
        file = write_experiment(self.folder / "mock.yaml", **experiment(model, self.idx_data(), steps=20))
        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(self.folder / "mock"), "--mock"]
        result = run([*command, "train"], self.folder / "mock").expect(0)
        self.counts(result, 0)
        self.assertNotIn("flops", result.json("plan.json"))
        self.assertIsNone(json.loads(self.dtrain("summary", result.run_dir, "--json"))["flops_per_step"])

    def test_flops_of_a_sample_are_the_same_with_uneven_batches(self):
        for slots in (1, 2):
            with self.subTest(slots=slots):
                self.check(slots)

    def test_under_aggregation_a_batch_is_counted(self):
        self.check(2, optimizations={"aggregation_frequency": 4})


if __name__ == "__main__":
    main("flop_counts")
