"""Nothing in the Python package turns bytes into code or objects, but at the places below, where the bytes are known.

    unpickle.py
"""
import ast
import hashlib
import hmac
import os
import pickle
import tempfile
import textwrap
import types
import unittest
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).resolve().parents[2] / "python"
DANGEROUS = {("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("cPickle", "loads"), ("dill", "loads"),
             ("cloudpickle", "loads"), ("marshal", "load"), ("marshal", "loads"), ("shelve", "open"), ("torch", "load"),
             ("joblib", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("numpy", "load"), ("np", "load")}
BUILTINS = {"eval", "exec"}
# file: the calls in it, each with where its bytes come from.
ALLOWED = {
    "dtrain/lightning.py": ["pickle.loads"],  # of Strategy.broadcast(): a rank of this run, by a digest over the control plane
}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module, "*") != (None, "*"):
            for name in node.names:
                if (node.module, name.name) in DANGEROUS:
                    yield f"{node.module}.{name.name}"
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in BUILTINS:
            yield function.id
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) \
                and (function.value.id, function.attr) in DANGEROUS:
            yield f"{function.value.id}.{function.attr}"


class Unpickling(unittest.TestCase):
    def test_only_where_the_bytes_are_known(self):
        found = {}
        for path in sorted((SOURCE / "dtrain").rglob("*.py")):
            names = list(calls(ast.parse(path.read_text(), str(path))))
            if names:
                found[str(path.relative_to(SOURCE))] = names
        self.assertEqual(found, ALLOWED)


class Refused(Exception):
    pass


class Leaves:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def broadcast_of_lightning():
    """The function itself, without Lightning and the engine."""
    text = (SOURCE / "dtrain" / "lightning.py").read_text()
    (function,) = [node for node in ast.walk(ast.parse(text))
                   if isinstance(node, ast.FunctionDef) and node.name == "broadcast"]
    names = {"torch": torch, "pickle": pickle, "hashlib": hashlib, "hmac": hmac, "Any": Any, "Error": Refused}
    exec(textwrap.dedent("    " + ast.get_source_segment(text, function)), names)
    return names["broadcast"]


class Broadcast(unittest.TestCase):
    def receive(self, carried, vouched):
        """Rank 1 of 2: MPI brings `carried`, and rank 0 vouches for `vouched`."""
        data = torch.tensor(list(carried), dtype=torch.uint8)
        answers = iter([torch.tensor([len(carried)]), data])
        native = types.SimpleNamespace(gather_text=lambda name, mine: [hashlib.sha256(vouched).hexdigest(), mine])
        context = types.SimpleNamespace(broadcast=lambda tensor, src: next(answers), _native=native)
        strategy = types.SimpleNamespace(world_size=2, global_rank=1, _broadcasts=0,
                                         _session=types.SimpleNamespace(_context=context))
        return broadcast_of_lightning()(strategy, None, 0)

    def test_what_was_sent_arrives(self):
        sent = pickle.dumps({"path": "runs/1", "epoch": 3})
        self.assertEqual(self.receive(sent, sent), {"path": "runs/1", "epoch": 3})

    def test_what_was_changed_on_its_way_is_not_unpickled(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = Path(folder) / "executed"
            evil = pickle.dumps(Leaves(mark))
            with self.assertRaisesRegex(Refused, "not those that were sent"):
                self.receive(evil, pickle.dumps("honest"))
            self.assertFalse(mark.exists())
            self.receive(evil, evil)
            self.assertTrue(mark.exists(), "it would have been executed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
