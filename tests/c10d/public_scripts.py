"""Public scripts that nobody here wrote, unchanged: under torchrun over gloo, there over dtrain, and under `dtrain run --as-is`.

    public_scripts.py BUILD/bin FOLDER [--only TEXT] [--way gloo|dtrain|as-is ...]

FOLDER has copies of public repositories, each as OWNER/NAME; those that are missing are left out. The arguments make the scripts small.
Data that they would download lies where they look for it, made here. stand_ins/ seeds them, and writes down the loss of each backward().
Where a script asks for GPUs, CPUs pass for them. Prints a table: what ran, whether losses are equal, steps found, what the report found.
"""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, NamedTuple

import launches

import harness

STAND_INS = launches.HERE / "stand_ins"


class Script(NamedTuple):
    repository: str
    path: str
    arguments: list[str] = []
    gpus: bool = False
    ranks: int = 2
    data: Callable[[Path], None] = lambda folder: None  # into the script's folder


def images(folder: Path) -> None:
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(1)
    for part, count in (("train", 16), ("val", 8)):
        for number in range(count):
            place = folder / "images" / part / f"class{number % 2}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=numpy.uint8)).save(place)


def digits(folder: Path) -> None:
    """In MNIST's own format, for a script that looks in ../data."""
    import numpy

    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(1)
    for part, count in (("train", 512), ("t10k", 128)):
        pixels = draw.integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        labels = draw.integers(0, 10, count, dtype=numpy.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(numpy.array([2051, count, 28, 28], ">i4").tobytes() + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(numpy.array([2049, count], ">i4").tobytes() + labels.tobytes())


def tokens(folder: Path) -> None:
    import numpy

    place = folder / "data" / "tiny"
    place.mkdir(parents=True)
    for name in ("train", "val"):
        numpy.random.default_rng(1).integers(0, 64, 4096, dtype=numpy.uint16).tofile(place / f"{name}.bin")


GLUE = """import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(one == two for one, two in zip(predictions, references)) / len(references)}
"""


def pairs_of_sentences(folder: Path) -> None:
    """A small BERT, its words, pairs of sentences, and a metric, under the names that the scripts give to hubs."""
    import torch
    import transformers

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(59))]
    model = folder / "bert-base-cased"
    model.mkdir()
    (model / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(model / "vocab.txt")).save_pretrained(model)
    config = transformers.BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                     max_position_embeddings=64)
    transformers.BertForSequenceClassification(config).save_pretrained(model)
    data = folder / "nyu-mll" / "glue"
    data.mkdir(parents=True)
    for part, count in (("train", 128), ("validation", 48)):
        lines = [{"sentence1": f"word{number % 59} word{number % 7}", "sentence2": f"word{number % 31}", "label": number % 2, "idx": number}
                 for number in range(count)]
        (data / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (data / "README.md").write_text("---\nconfigs:\n- config_name: mrpc\n  data_files:\n  - split: train\n    path: train.jsonl\n"
                                    "  - split: validation\n    path: validation.jsonl\n---\n")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(GLUE)


IMAGENET = ["-a", "shufflenet_v2_x0_5", "--epochs", "1", "-b", "8", "-j", "0", "--seed", "1"]
EXAMPLES, ACCELERATE = "pytorch/examples", "huggingface/accelerate"
SCRIPTS = [
    Script(EXAMPLES, "distributed/ddp/example.py", gpus=True),
    Script(EXAMPLES, "distributed/ddp-tutorial-series/multigpu_torchrun.py", ["2", "1"], gpus=True),
    Script(EXAMPLES, "distributed/ddp-tutorial-series/multinode.py", ["2", "1"], gpus=True),
    Script(EXAMPLES, "distributed/minGPT-ddp/mingpt/main.py",
           ["data_config.path=data/input.txt", "data_config.truncate=0.001", "data_config.block_size=16", "gpt_config.n_layer=2",
            "gpt_config.n_head=2", "gpt_config.n_embd=32", "trainer_config.max_epochs=1", "trainer_config.batch_size=64",
            "trainer_config.data_loader_workers=0", "trainer_config.use_amp=false"], gpus=True),
    Script(EXAMPLES, "distributed/FSDP2/example.py", gpus=True),
    Script(EXAMPLES, "distributed/tensor_parallelism/tensor_parallel_example.py", gpus=True),
    Script(EXAMPLES, "distributed/tensor_parallelism/sequence_parallel_example.py", gpus=True),
    Script(EXAMPLES, "imagenet/main.py", ["images", *IMAGENET, "--no-accel", "--dist-url", "env://", "--dist-backend", "gloo"], data=images),
    Script(EXAMPLES, "mnist/main.py", ["--no-accel", "--epochs", "1"], ranks=1, data=digits),
    Script("karpathy/nanoGPT", "train.py",
           ["--dataset=tiny", "--compile=False", "--backend=gloo", "--dtype=float32", "--n_layer=2", "--n_head=2", "--n_embd=32",
            "--batch_size=4", "--block_size=32", "--max_iters=8", "--eval_interval=4", "--eval_iters=2", "--gradient_accumulation_steps=4"],
           gpus=True, data=tokens),
    Script(ACCELERATE, "examples/nlp_example.py", ["--cpu"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/gradient_accumulation.py", ["--cpu", "--gradient_accumulation_steps", "2"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/ddp_comm_hook.py", ["--ddp_comm_hook", "bf16"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/local_sgd.py", ["--cpu", "--local_sgd_steps", "2"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/checkpointing.py", ["--cpu", "--checkpointing_steps", "epoch"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/early_stopping.py", ["--cpu"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/by_feature/multi_process_metrics.py", ["--cpu"], data=pairs_of_sentences),
    Script(ACCELERATE, "examples/complete_nlp_example.py", ["--cpu", "--checkpointing_steps", "epoch"], data=pairs_of_sentences),
]
WAYS = ("gloo", "dtrain", "as-is")


class Trial:
    """A script in a copy of its repository, for each way anew."""

    def __init__(self, place: launches.Place, script: Script, source: Path) -> None:
        self.place, self.script, self.source = place, script, source
        self.entry = place.path / "stand-ins"
        information = self.entry / "stand_ins-0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-ins\nVersion: 0\n")
        (information / "entry_points.txt").write_text("[torch.backends]\nstand_ins = stand_ins:install\n")

    def run(self, way: str) -> tuple[str, list[list[float]]]:
        """How it ended, and the losses of each rank."""
        folder = self.place.path / way
        shutil.copytree(self.source, folder / "repository")
        script = folder / "repository" / self.script.path
        self.script.data(script.parent)
        (folder / "losses").mkdir()
        more = {"STAND_IN_LOSSES": str(folder / "losses"), "PYTHONPATH": f"{STAND_INS}:{self.entry}"}
        if self.script.gpus:
            more["STAND_IN_GPUS"] = "1"
        if way == "as-is":
            command = launches.as_is(self.script.ranks, folder / "run", script, *self.script.arguments)
        else:
            more["STAND_IN_BACKEND"] = way
            command = launches.torchrun(self.script.ranks, script, *self.script.arguments)
        code, output = self.place.start(command, cwd=script.parent, **more)
        (folder / "output.txt").write_text(output)
        lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted((folder / "losses").glob("rank-*.jsonl"))]
        backends = {line["backend"] for rank in lines for line in rank}
        if code != 0:
            print(f"{self.script.path}, {way}: {code}\n{output[-3000:]}", file=sys.stderr)
            return f"fails ({code})", []
        wanted = "gloo" if way == "gloo" else "dtrain"
        if self.script.ranks > 1 and backends != {wanted}:
            return f"uses {', '.join(sorted(backends)) or 'no backward()'}", [[line["loss"] for line in rank] for rank in lines]
        return "runs", [[line["loss"] for line in rank] for rank in lines]

    def findings(self) -> str:
        found = subprocess.run([harness.BUILD.program("dtrain"), "analyze", "--json", self.place.path / "as-is" / "run"], text=True,
                               capture_output=True, env=harness.environment())
        if found.returncode not in (0, 1):
            return ""
        return "; ".join(one.get("id", one.get("name", "")) for one in json.loads(found.stdout).get("findings", [])[:3])


def report(script: Script, source: Path, ways: list[str]) -> list[str]:
    """The cells of a line of the table."""
    place = launches.Place("public")
    trial = Trial(place, script, source)
    ended, losses = {}, {}
    for way in ways:
        ended[way], losses[way] = trial.run(way)
    first = losses[ways[0]]
    equal = "yes" if all(losses[way] == first for way in ways) else "no"
    count = str(sum(map(len, first)) // max(1, len(first)))
    summary = launches.recorded(place.path / "as-is" / "run") if "as-is" in ways else {}
    cells = [f"{script.repository} {script.path}", str(script.ranks), *(ended[way] for way in ways),
             f"{equal}, {count} of each rank" if first else "-", str(summary.get("steps", "-")), trial.findings() if summary else "-"]
    if all(word == "runs" for word in ended.values()) and equal == "yes":
        shutil.rmtree(place.path)
    else:
        print(f"what it has left is in {place.path}", file=sys.stderr)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(usage="public_scripts.py BUILD/bin FOLDER [options]")
    parser.add_argument("bin")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of a script's path")
    parser.add_argument("--way", action="append", choices=WAYS)
    options = parser.parse_args()
    harness.BUILD.open(options.bin, "dtrain")
    ways = options.way or list(WAYS)
    print("| " + " | ".join(["script", "ranks", *ways, "losses equal", "steps found", "findings"]) + " |", flush=True)
    print("|" + "---|" * (5 + len(ways)), flush=True)
    well = True
    for script in SCRIPTS:
        source = options.folder / script.repository
        if options.only not in f"{script.repository}/{script.path}":
            continue
        if not (source / script.path).is_file():
            print(f"{script.repository} {script.path} is not in {options.folder}", file=sys.stderr)
            continue
        cells = report(script, source, ways)
        well = well and set(cells[2:2 + len(ways)]) == {"runs"}
        print("| " + " | ".join(cells) + " |", flush=True)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
