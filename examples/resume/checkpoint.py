"""A dtrain checkpoint as PyTorch has it, and the way back: weights, buffers, and the state of torch.optim.AdamW or Adam.

docs/checkpoints.md describes the files. Checkpoints of `model:` runs and of programs look the same.
"""
import json
import os
import shutil
import time
from pathlib import Path

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from crc32c import crc32c

PIECE = 4 << 20  # bytes that a checksum is for
MOMENTS = ("exp_avg", "exp_avg_sq")


def _read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}


def _numbers(folder):
    return json.loads((folder / "state.json").read_text())


def load(folder, model, optimizer=None):
    """Puts a checkpoint into a model and an optimizer (Adam or AdamW). Returns the number of batches done."""
    folder = Path(folder)
    weights, metadata = _read(folder / "model.safetensors")
    for key, name in metadata.items():
        if key.startswith("tied."):  # another name of the same parameter
            weights[key.removeprefix("tied.")] = weights[name]
    model.load_state_dict(weights)
    numbers = _numbers(folder)
    if optimizer is not None:
        moments, _ = _read(folder / "optimizer.safetensors")
        for name, parameter in model.named_parameters():
            updates = numbers.get(f"step/optimizer/updates/{name}", 0)
            if updates == 0:
                continue  # frozen, or no batch has used it
            optimizer.state[parameter] = {"step": torch.tensor(float(updates)),
                                          **{moment: moments[f"{moment}/{name}"].to(parameter.device) for moment in MOMENTS}}
    return numbers["batches"]


def save(folder, template, model, optimizer, batches, epoch, epoch_batches):
    """Writes a checkpoint from which dtrain goes on.

    `template` is a checkpoint of the run, the one that load() has read: what Python does not have is taken from there.
    `batches` are done in all, `epoch_batches` of them in epoch number `epoch`, from 0. The folder's name is step-BATCHES.
    """
    folder, template = Path(folder), Path(template)
    if folder.name != f"step-{batches}":
        raise ValueError(f"the checkpoint of batch {batches} must be called step-{batches}, not {folder.name}")
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.copytree(template, partial)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    more = batches - _numbers(template)["batches"]

    weights, metadata = _read(template / "model.safetensors")
    save_file({name: state[name].clone() for name in weights}, partial / "model.safetensors", metadata)

    moments, _ = _read(template / "optimizer.safetensors")
    updates = {}
    for path in moments:
        moment, name = path.split("/", 1)
        known = optimizer.state.get(parameters[name])
        if known:
            moments[path] = known[moment].detach().cpu().contiguous().clone()
            updates[name] = int(known["step"])
    save_file(moments, partial / "optimizer.safetensors")

    steps = max(updates.values(), default=0) - max((number for key, number in _numbers(template).items()
                                                    if key.startswith("step/optimizer/updates/")), default=0)

    def changed(numbers):
        numbers.update({"batches": batches, "epoch": epoch, "epoch_batches": epoch_batches})
        numbers.pop("data/position", None)  # the loader's own; without it, it goes on behind epoch_batches
        numbers["step/optimizer/steps"] += steps  # the learning rate's position
        numbers["step/window/rounds_begun"] += more
        numbers.update({f"step/optimizer/updates/{name}": count for name, count in updates.items()})
        return numbers

    for path in sorted(partial.glob("rank-*.safetensors")):
        own, _ = _read(path)
        own["values"] = torch.from_numpy(numpy.frombuffer(
            json.dumps(changed(json.loads(bytes(own["values"].numpy())))).encode(), numpy.uint8).copy())
        for name in own:
            of_model = name.removeprefix("step/model/buffers/")
            if of_model != name and of_model in state:  # not where persistent=False
                own[name] = state[of_model].clone()
        save_file(own, path)
    (partial / "state.json").write_text(json.dumps(changed(_numbers(template))))

    manifest = json.loads((template / "manifest.json").read_text())
    manifest["about"].update({"step": batches, "epoch": epoch, "reason": "python", "metric": "", "metric_value": None,
                              "time": time.time()})
    _write_manifest(partial, manifest)
    os.sync()
    partial.rename(folder)


def _write_manifest(folder, manifest):
    files = []
    for entry in manifest["files"]:
        content = (folder / entry["name"]).read_bytes()
        checksums = [f"{crc32c(content[start : start + PIECE]):08x}" for start in range(0, len(content), PIECE)]
        files.append({"name": entry["name"], "bytes": len(content), "checksums": checksums})
    head = {key: manifest[key] for key in ("format", "version", "about", "checksum", "piece_bytes")}
    # Its last line holds the checksum of all before that line's own line break.
    text = json.dumps({**head, "files": files}, separators=(",", ":"))[:-1] + ","
    checksum = f"{crc32c(text.encode()):08x}"
    (folder / "manifest.json").write_text(f'{text}\n"manifest_checksum":"{checksum}"}}\n')
