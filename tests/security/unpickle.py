"""Nothing in the Python package turns bytes into code or objects, but at the places below, where the bytes are known.

    unpickle.py
"""
import ast
import unittest
from pathlib import Path

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

    def test_lightning_checks_the_digest_first(self):
        tree = ast.parse((SOURCE / "dtrain" / "lightning.py").read_text())
        (broadcast,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "broadcast"]
        lines = {}
        for node in ast.walk(broadcast):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                lines[node.func.attr] = node.lineno
        self.assertLess(lines["gather_text"], lines["compare_digest"])
        self.assertLess(lines["compare_digest"], lines["loads"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
