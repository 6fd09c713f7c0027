"""What computing the last layer in chunks saves a `model:` experiment: a GPT of 50,257 tokens from a file of torch.export and
from TorchScript, one rank.

    large_vocabulary.py BIN [--json] [--runs 3] [--batches 8] [--precision O0|bf16] [--files pt2,pt]

The same model twice, in turns: as it is, and with two views of its scores, after which the last operation is no linear layer, so
that the loss gets all scores. Both have dtrain's own kernel of cross entropy. A run's step is the median of its batches.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu_check"))
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from harness import Build, environment, launch, write_experiment  # noqa: E402
from models import Gpt  # noqa: E402

TOKENS, LENGTH, SAMPLES = 50257, 256, 8
SIZES = {"tokens": TOKENS, "length": LENGTH, "layers": 4, "heads": 4, "width": 256}


class ScoresViewed(Gpt):
    def forward(self, tokens):
        return super().forward(tokens).unsqueeze(0).squeeze(0)


class ScriptedScoresViewed(torch.nn.Module):
    """torch.jit.script knows no super()."""

    def __init__(self, model: Gpt):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).unsqueeze(0).squeeze(0)


def save(kind, in_chunks, file):
    torch.manual_seed(1)
    if kind == "pt":
        model = Gpt(**SIZES)
        return torch.jit.script(model if in_chunks else ScriptedScoresViewed(model)).save(str(file))
    model = (Gpt if in_chunks else ScoresViewed)(**SIZES)
    shapes = {"tokens": {0: torch.export.Dim.AUTO}}
    program = torch.export.export(model, (torch.zeros(2, LENGTH, dtype=torch.long),), dynamic_shapes=shapes)
    torch.export.save(program, str(file))


def train(build, folder, name, file, arguments):
    source = {"file": str(folder / "data.safetensors"), "features": "tokens", "target": "next"}
    experiment = write_experiment(
        folder / f"{name}.yaml", name="vocabulary", model=str(file), data={"format": "safetensors", "training": source},
        loss={"kind": "cross_entropy", "class_dimension": "last"}, optimizer={"kind": "adamw", "lr": 1e-4},
        hyperparameters={"global_batch_size": SAMPLES}, resources={"slots_per_trial": 1},
        searcher={"metric": "loss", "max_length": {"batches": arguments.batches}}, checkpoint_policy="none",
        optimizations={"mixed_precision": arguments.precision, "memory_format": "contiguous"})
    result = launch(build, experiment, folder / name, deadline=1200).expect(0)
    said = subprocess.run([build.program("dtrain"), "summary", str(result.run_dir), "--json"], env=environment(),
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    summary = json.loads(said)
    return {"ms": 1e3 * summary["step_p50_s"], "peak_mb": summary["ranks"][0]["peak_resident_bytes"] / 1e6,
            "used": result.json("plan.json")["linear_cross_entropy"]["used"]}


def measure(build, folder, arguments):
    tokens = torch.randint(0, TOKENS, (64, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    data = {"tokens": tokens[:, :-1].contiguous(), "next": tokens[:, 1:].contiguous()}
    safetensors.torch.save_file(data, folder / "data.safetensors")
    result = {"tokens": TOKENS, "rows": SAMPLES * LENGTH, "width": SIZES["width"], "precision": arguments.precision}
    for kind in arguments.files.split(","):
        runs = {True: [], False: []}
        for in_chunks in runs:
            save(kind, in_chunks, folder / f"{in_chunks}.{kind}")
        for number in range(arguments.runs):
            for in_chunks, of_kind in runs.items():
                one = train(build, folder, f"{kind}-{in_chunks}-{number}", folder / f"{in_chunks}.{kind}", arguments)
                if one["used"] != in_chunks:
                    sys.exit(f"{kind}: the scores were {'not ' if in_chunks else ''}computed in chunks")
                of_kind.append(one)
        median = {(name, key): statistics.median(one[key] for one in runs[in_chunks])
                  for name, in_chunks in (("chunks", True), ("whole", False)) for key in ("ms", "peak_mb")}
        result.update({f"{kind}_{name}_{key}": value for (name, key), value in median.items()})
        result[f"{kind}_ratio"] = median["whole", "ms"] / median["chunks", "ms"]
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--precision", choices=("O0", "bf16"), default="O0")
    parser.add_argument("--files", default="pt2,pt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtrain-large-vocabulary-") as scratch:
        result = measure(Build(arguments.bin, "dtrain-worker"), Path(scratch), arguments)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
