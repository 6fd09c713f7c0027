"""The JSON Schemas that `dtrain config schema` prints accept and refuse what the readers accept and refuse.

    schema_test.py DTRAIN [TestClass[.test] ...]

Editors check files with the schemas, dtrain with its readers: where the two differ, an editor lies. A real validator
judges whole files, and every value that the schemas mention (and what lies just beyond, and values of other types) in
every place; each verdict is compared with that of `dtrain config check`.
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import jsonschema
import yaml

from schema_walk import at, declared, put, values_to_try, walk
from wrong_cases import wrong_cases

SOURCE = Path(__file__).resolve().parents[2]
HERE = SOURCE / "tests" / "config"
DTRAIN = None  # set by main()

# Wrong files (wrong_cases.py) that a schema finds nothing wrong with, and why it cannot.
NOT_EXPRESSIBLE = {
    "wrong/syntax: keys given twice": "a validator sees the last of equal keys alone; editors report them themselves",
    "wrong/resources: a batch smaller than the slots": "compares two values",
    "wrong/resources: fewer slots than one trial": "compares two values",
    "wrong/resources: elastic slots without the number asked for": "compares two values",
    "wrong/resources: an elastic maximum below the minimum": "compares two values",
    "wrong/resources: elastic slots of which there are too many": "compares two values",
    "wrong/syntax: keys given twice inside values of the trial": "as above",
    "wrong/syntax: a merge key": "any key may stand there",
    "wrong/values: values that YAML 1.1 reads in another way": "a validator sees values as one version of YAML reads them",
    "wrong/syntax: several documents": "a validator is given one document at a time",
    "wrong/syntax: an alias": "a validator sees what the alias stands for",
    "wrong/program: an entrypoint with an open quote": "quotes inside of text",
    "wrong/checkpoints: a storage path outside of the host path": "compares two values",
    "wrong/transforms: transforms in an order that makes no sense": "compares several items",
    "wrong/transforms: padding that the loss counts": "compares two values",
    "wrong/transforms: inputs that validation does not give": "compares two values",
    "wrong_cluster/agents: the same id twice": "compares values of several items",
    "wrong_cluster/launcher: an option with an open quote": "quotes inside of text",
}
# Those that no YAML reader can make a value of: nothing is left to validate.
NOT_YAML = {f"wrong/syntax: {title}" for title in (
    "broken indentation", "a bracket that is not closed", "a tab in the indentation", "text that is not UTF-8", "a tag",
    "a list as a key", "a control character")}


class CoreSchemaLoader(yaml.SafeLoader):
    """Plain scalars as YAML 1.2 reads them, and editors with it: `yes` and `1_000` are text, `1e-3` is a number."""
    yaml_implicit_resolvers = {}


for tag, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
         list("-+.0123456789"))):
    CoreSchemaLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(
    node.value, {"0o": 8, "0x": 16}.get(node.value[:2], 10)))


def schema(kind):
    result = subprocess.run([DTRAIN, "config", "schema", kind], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def accepted(kind, files):
    """Those of the files that `dtrain config check` accepts, and all that it says of the others."""
    ok, said = set(), ""
    for start in range(0, len(files), 2000):
        part = [str(file) for file in files[start:start + 2000]]
        commands = [[*part]] if kind == "experiment" else [["--cluster", file] for file in part]
        for command in commands:
            result = subprocess.run([DTRAIN, "config", "check", "--file-only", *command], capture_output=True, text=True, check=False)
            lines = [line.split(": ok: ")[0] for line in result.stdout.splitlines()]
            assert result.returncode == (0 if len(lines) == (len(part) if kind == "experiment" else 1) else 2), result
            ok.update(lines)
            said += result.stderr
    return ok, said


def accepted_documents(kind, documents):
    """The same of documents: the numbers of those accepted. A file's name is its number. The files are in memory, few at a
    time: ext4 takes a millisecond for a file that is made soon after others were removed."""
    ok, said = set(), ""
    for start in range(0, len(documents), 2000):
        with tempfile.TemporaryDirectory(prefix="schema-", dir="/dev/shm") as folder:
            files = {}
            for number, document in enumerate(documents[start:start + 2000], start):
                file = Path(folder) / f"{number:05}.yaml"
                file.write_text(json.dumps(document))  # JSON is YAML
                files[str(file)] = number
            ok_here, said_here = accepted(kind, list(files))
        ok.update(files[file] for file in ok_here)
        said += said_here
    return ok, said


def validator_of(root):
    """A validator that remembers its verdict on each value of a property: most documents differ in one place alone."""
    verdicts = {}

    def properties(validator, parts, instance, _schema):
        if not isinstance(instance, dict):
            return
        for name, part in parts.items():
            if name not in instance:
                continue
            key = (id(part), json.dumps(instance[name]))
            if key not in verdicts:
                verdicts[key] = next(validator.descend(instance[name], part), None) is None
            if not verdicts[key]:
                yield jsonschema.ValidationError(name)

    return jsonschema.validators.extend(jsonschema.Draft7Validator, {"properties": properties})(root)


PROGRAM = {"entrypoint": "trial", "hyperparameters": {"global_batch_size": 1000000}, "searcher": {"max_length": {"epochs": 1}}}


def model(loss, optimizer, **data):
    base = {key: value for key, value in PROGRAM.items() if key != "entrypoint"}
    return base | {"model": "net.pt", "loss": loss, "optimizer": optimizer, "data": data}


def optimizing(**optimizations):
    return PROGRAM | {"optimizations": optimizations}


FILES = {"features": "a", "target": "b"}


def scheduled(schedule, optimizer):
    """A schedule of all parameters, and of a group of them."""
    groups = [{"match": "a", "lr": 0.1, "lr_schedule": schedule}]
    return model("mse", optimizer | {"lr_schedule": schedule, "groups": groups}, format="npy", training=FILES)


def transformed(transform):
    """A data set of pictures with this transform, the last of two."""
    source = {"files": "a-*.tar", "transforms": [{"kind": "center_crop", "size": 8}, transform]}
    return model("cross_entropy", {"kind": "sgd", "lr": 0.1}, format="shards", training=source, validation=source)


def documents(transform):
    """Documents of tokens with this transform."""
    source = {"file": "a", "transforms": [transform]}
    return model("from_model", {"kind": "sgd", "lr": 0.1}, format="tokens", sequence_length=8, training=source, validation=source)


SCRIPT = PROGRAM | {"entrypoint": "train.py"}  # for what goes with scripts alone
BASES = {
    "experiment": {
        "program": PROGRAM,
        "unchanged script": {"entrypoint": "train.py", "as_is": "exchange", "hyperparameters": {"global_batch_size": 1000000}},
        "elastic": PROGRAM | {"resources": {"elastic": {}}},
        "virtual ranks": PROGRAM | {"reproducibility": {"virtual_ranks": 4}},
        "early stopping": PROGRAM | {"min_validation_period": {"batches": 10},
                                     "early_stopping": {"metric": "loss", "patience": 1}},
        "constant": PROGRAM | {"hyperparameters": {"global_batch_size": {"type": "const", "val": 1000000}}},
        "idx": model("mse", {"kind": "sgd", "lr": 0.1, "momentum": 0.5}, format="idx", training=FILES, validation=FILES),
        "loss": model({"kind": "cross_entropy", "ignore_index": 3, "class_weights": [1, 2], "auxiliary": {"aux": 0.5}},
                      {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES),
        "smooth": model({"kind": "smooth_l1", "beta": 1}, {"kind": "sgd", "lr": 0.1}, format="safetensors",
                        training={"file": "a"}, more_inputs=["mask"]),
        "metrics": model({"kind": "cross_entropy"}, {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES)
                   | {"metrics": ["accuracy", "top_5_accuracy", "perplexity", "f1", "iou", "auc"]},
        "label metrics": model("bce_with_logits", {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES)
                         | {"metrics": ["f1", "auc"]},
        "ctc": model({"kind": "ctc", "blank": 2}, {"kind": "sgd", "lr": 0.1}, format="safetensors",
                     training={"file": "a"}, more_inputs=["input_lengths"]),
        "kl_div": model({"kind": "kl_div", "log_target": True}, {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES),
        "pair": model("mse", {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES)
                | {"model": {"train": "a.pt", "eval": "b.pt"}},
        "npy": model("cross_entropy", {"kind": "sgd", "lr": 0.1}, format="npy", training=FILES),
        "safetensors": model("mse", {"kind": "adam", "lr": 0.1}, format="safetensors", training={"file": "a"},
                             validation={"file": "b"}),
        "tokens": model({"kind": "cross_entropy", "ignore_index": -100}, {"kind": "adamw", "lr": 0.1}, format="tokens", training={"file": "a"},
                        validation={"file": "b"}, sequence_length=8),
        "image_folder": model("cross_entropy", {"kind": "sgd", "lr": 0.1}, format="image_folder",
                              training={"folder": "a", "transforms": [{"kind": "center_crop", "size": 8}]},
                              validation={"folder": "b", "transforms": [{"kind": "center_crop", "size": 8}]}),
        **{kind: transformed({"kind": kind, **settings}) for kind, settings in (
            ("resize", {"size": 8, "width": 9}), ("random_resized_crop", {"size": 8, "max_area": 0.9}), ("random_crop", {"size": 8}),
            ("horizontal_flip", {}), ("color_jitter", {}), ("normalize", {}), ("mixup", {"classes": 3}))},
        **{kind: documents({"kind": kind, "end_token": 256}) for kind in ("pad_to_longest", "pack_tokens")},
        "step": scheduled({"kind": "step", "step_size": 5}, {"kind": "sgd", "lr": 0.1}),
        "cosine": scheduled({"kind": "cosine", "total_steps": 5}, {"kind": "sgd", "lr": 0.1}),
        "multi_step": scheduled({"kind": "multi_step", "unit": "epochs", "milestones": [3, 5]}, {"kind": "rmsprop", "lr": 0.1}),
        "exponential": scheduled({"kind": "exponential"}, {"kind": "adagrad", "lr": 0.1}),
        "linear": scheduled({"kind": "linear", "total_steps": 5}, {"kind": "lion", "lr": 0.1}),
        "polynomial": scheduled({"kind": "polynomial", "total_steps": 5}, {"kind": "radam", "lr": 0.1}),
        "one_cycle": scheduled({"kind": "one_cycle", "total_steps": 5}, {"kind": "sgd", "lr": 0.1}),
        "muon": model("mse", {"kind": "muon", "lr": 0.1, "groups": [{"match": "a"}]}, format="npy", training=FILES)
                | {"optimizations": {"sharded_optimizer": "auto"}},
        "lamb": model("mse", {"kind": "lamb", "lr": 0.1}, format="npy", training=FILES)
                | {"optimizations": {"sharded_optimizer": True, "sharded_gradients": True}},
        "plateau": model("mse", {"kind": "sgd", "lr": 0.1, "reduce_on_plateau": {"factor": 0.5}}, format="npy",
                         training=FILES, validation=FILES)
                   | {"searcher": {"max_length": {"epochs": 1}, "metric": "loss"}, "min_validation_period": {"epochs": 1}},
        "powersgd": optimizing(gradient_compression={"kind": "powersgd"}),
        "topk": optimizing(gradient_compression={"kind": "topk"}),
        "on GPUs": PROGRAM | {"resources": {"slot_type": "cuda"}, "optimizations": {"local_sgd": {"inner_steps": 2}}},
        "powersgd on GPUs": optimizing(gradient_compression="powersgd") | {"resources": {"slot_type": "cuda"}},
        "weights": PROGRAM | {"initial_weights": {"file": "a.safetensors"}},
        "training state": PROGRAM | {"initial_weights": {"file": "runs/1", "training_state": True}},
        "shared_fs": PROGRAM | {"checkpoint_storage": {"type": "shared_fs", "host_path": "/mnt"}},
        "directory": PROGRAM | {"checkpoint_storage": {"type": "directory", "container_path": "/mnt"}},
        "traced": PROGRAM | {"profiling": {"trace": {"begin_on_batch": 1, "end_after_batch": 1000000000000000}}},
        "prometheus": PROGRAM | {"profiling": {"prometheus": {"port": 9400}}},
        "profiled": PROGRAM | {"profiling": {"enabled": True}},
        "local": optimizing(local_sgd={"inner_steps": 2, "compression": {"kind": "powersgd"}}),
        "local topk": optimizing(local_sgd={"inner_steps": 2, "compression": {"kind": "topk"}}),
    },
    "cluster": {
        "local": {"agents": [{"id": "a", "slots": 1}], "launcher": {"type": "local"}},
        "mpi": {"agents": [{"id": "a", "slots": 1}], "launcher": {"type": "mpi"}},
    },
}
# Beside what the schemas themselves mention.
MORE_VALUES = {
    ("hyperparameters", "lr"): [0.1, "text", [1], {"type": "const", "val": 1}, {"type": "int"}, {"type": "const"},
                                {"type": "const", "val": 1, "x": 2}, {"type": "relu"}, {"nested": {"a": 1}}],
    ("hyperparameters", "global_batch_size"): [{"type": "const", "val": 0}, {"type": "int", "minval": 1}],
    ("data", "anything"): [1, "x", [1], {"a": None}],
    ("optimizer", "betas"): [[0, 0], [0.9, 1], [-0.1, 0.9], [0.9], [0.9, 0.9, 0.9], ["0.9", 0.9]],
    ("metrics",): [["f1"], ["f1", "f1"], ["top_2_accuracy"], ["top_1_accuracy"], ["top_02_accuracy"], ["top_1000000_accuracy"],
                   ["perplexity"], ["Accuracy"], [1], [["f1"]], ["auc", "x"]],
    ("labels",): [[1, True], [[1]], [None]],
    ("entrypoint",): [["", "a"], ["a", ""], ["a", 1], [["a"]], "  "],
    ("environment", "environment_variables"): [{"DTRAIN_X": 1}, {"A": []}, {"A": None}, ["A"], ["A="], ["1A=2"], [1]],
    ("checkpoint_storage", "storage_path"): ["a/b", "a/../b", "..", "../a", "a/..", "a..b", "/mnt/a"],
    ("checkpoint_storage", "type"): ["s3", "gcs", "azure", "hdfs", "nfs"],
    ("initial_weights",): ["a.pt", "a.safetensors", "runs/0001-v1.2", {"file": "a", "rename": {"a": 1}, "strict": False},
                           {"file": "a.pth"}, {"file": ""}, {"rename": {"a": "b"}}, {"file": "a", "rename": {"a": []}}],
    ("task_container_defaults", "dtrain_network_interface"): [
        "10.0.0.0/32", "10.0.0.0/33", "10.0.0/8", "256.0.0.0/8", "::/0", "fd00::/129", "a/8", "/8", "eth 0", "..",
        "a23456789012345", "a234567890123456"],
    ("agents", 0, "id"): [".a", "a.b", "a/b", "a" * 64, "a" * 65],
    ("agents", 0, "host"): ["-a", "a b", "a,b", "10.0.0.1", "::1"],
    ("launcher", "options"): ["", "  ", [[1]]],
}


class Schemas(unittest.TestCase):
    def test_are_valid_schemas(self):
        for kind in BASES:
            jsonschema.Draft7Validator.check_schema(schema(kind))

    def test_every_key_is_explained_and_its_default_and_examples_are_valid(self):
        for kind in BASES:
            root = schema(kind)
            for path, parts in walk(root).items():
                self.assertTrue(any("description" in part or "title" in part for part in parts) or
                                path[-1] in ("type", "val", 0), path)
                for value in declared(parts):
                    with self.subTest(kind=kind, path=path, value=value):
                        bases = [put(base, path, value) for base in (*BASES[kind].values(), SCRIPT)]
                        self.assertTrue(any(jsonschema.Draft7Validator(root).is_valid(base) for base in bases))


class Files(unittest.TestCase):
    """configs/, and the files of tests/config."""

    def verdicts(self, kind, files):
        validator = jsonschema.Draft7Validator(schema(kind))
        by_reader, _ = accepted(kind, files)
        for file in files:
            try:
                documents = list(yaml.load_all(file.read_bytes(), CoreSchemaLoader))
                by_schema = all(validator.is_valid(document) for document in documents[:1] or [None])
            except (yaml.YAMLError, TypeError):
                by_schema = None
            yield file, str(file) in by_reader, by_schema

    def check_good(self, kind, files):
        self.assertTrue(files)
        for file, by_reader, by_schema in self.verdicts(kind, files):
            with self.subTest(file.name):
                self.assertEqual((by_reader, by_schema), (True, True))

    def check_wrong(self, kind, folder, at_least):
        with tempfile.TemporaryDirectory(prefix="dtrain-wrong-") as temporary:
            names = {}
            for number, (topic, title, content) in enumerate(wrong_cases(folder)):
                file = Path(temporary) / f"{number:05}.yaml"
                file.write_bytes(content)
                names[file] = f"{folder}/{topic}: {title}"
            self.assertGreaterEqual(len(names), at_least)
            for file, by_reader, by_schema in self.verdicts(kind, list(names)):
                name = names[file]
                with self.subTest(name):
                    expected = None if name in NOT_YAML else name in NOT_EXPRESSIBLE
                    self.assertEqual((by_reader, by_schema), (False, expected))

    def test_good_experiments_are_accepted(self):
        files = sorted((SOURCE / "configs").glob("*.yaml"))
        self.check_good("experiment", [file for file in files if "cluster" not in file.name])

    def test_good_clusters_are_accepted(self):
        self.check_good("cluster", sorted((HERE / "good_cluster").glob("*.yaml")) +
                        sorted((SOURCE / "configs").glob("*cluster*.yaml")))

    def test_wrong_experiments_are_refused(self):
        self.check_wrong("experiment", "wrong", 75)

    def test_wrong_clusters_are_refused(self):
        self.check_wrong("cluster", "wrong_cluster", 19)


class Drift(unittest.TestCase):
    """Every key of the schema is one of the reader, and the other way about, with the same values."""

    def test_bases_are_accepted(self):
        for kind, bases in BASES.items():
            ok, said = accepted_documents(kind, list(bases.values()))
            self.assertEqual(ok, set(range(len(bases))), said)

    def test_reader_and_schema_give_the_same_verdict_on_every_value(self):
        for kind, bases in BASES.items():
            root = schema(kind)
            paths = walk(root)
            cases = []
            for name, base in bases.items():
                for path in {**paths, **{path: [] for path in MORE_VALUES}}:
                    # Elsewhere the bases of an experiment are all the same.
                    special = (("hyperparameters",) if name == "constant" else
                               ("reproducibility", "resources", "communication", "recovery", "optimizations")
                               if name == "virtual ranks" else ("resources",) if name == "elastic" else ("optimizations",)
                               if "optimizations" in base else ("checkpoint_storage",) if "checkpoint_storage" in base
                               else ("initial_weights",) if "initial_weights" in base
                               else ("data",) if base.get("data", {}).get("format") == "shards" or name in ("pad_to_longest", "pack_tokens")
                               else ("optimizer",) if "lr_schedule" in base.get("optimizer", {})
                               else ("entrypoint", "model", "loss", "metrics", "optimizer", "data", "hyperparameters"))
                    if kind == "experiment" and name != "program" and path[0] not in special:
                        continue
                    if put(base, path, 0) is None:
                        continue
                    for value in values_to_try(paths.get(path, [])) + MORE_VALUES.get(path, []):
                        cases.append((name, path, value, put(base, path, value)))
            if kind == "cluster":
                cases = [case for case in cases if case[1][0] in ("agents", "launcher", "scheduler") or case[0] == "mpi"]
            ok, _ = accepted_documents(kind, [case[-1] for case in cases])
            validator = validator_of(root)
            both = {True: 0, False: 0}
            for number, (name, path, value, document) in enumerate(cases):
                if path[-1] == "virtual_ranks" and isinstance(value, int) and value > 0:
                    continue  # compares values: it is at least the slots, and divides the batch
                if name == "virtual ranks" and path[-1] in ("slots_per_trial", "min", "max") and isinstance(value, int) and value > 4:
                    continue
                if path[-1] in ("mask", "lengths", "positions", "documents") and value is True:
                    continue  # compares two values: forward() gets the same in training and in validation
                by_schema = validator.is_valid(document)
                both[by_schema] += 1
                with self.subTest(kind=kind, base=name, path=path, value=value):
                    self.assertEqual(number in ok, by_schema, "reader, schema")
            print(f"{kind}: {both[True]} files accepted and {both[False]} refused by both")
            self.assertGreater(min(both.values()), 100)

    def test_reader_and_schema_know_the_same_keys(self):
        unknown = "zzzzzzzzzzzzzzzz"
        for kind, bases in BASES.items():
            paths = walk(schema(kind))
            cases = [(path, put(base, (*path, unknown), 1)) for path in [(), *paths] for base in bases.values()]
            cases = [(path, document) for path, document in cases if document is not None]
            _, said = accepted_documents(kind, [document for _, document in cases])
            found = {}
            for number, known in re.findall(rf"^\S+?(\d+)\.yaml:.*{unknown}: unknown key; known here: (.*)$", said, re.MULTILINE):
                found.setdefault(cases[int(number)][0], set()).update(known.split(", "))
            expected = {}
            for path in paths:
                if path[0] == "hyperparameters" or path[-1] == 0:
                    continue
                expected.setdefault(path[:-1], set()).add(path[-1])
            expected[()] = set(schema(kind)["properties"])
            self.assertEqual(found, expected)

    def test_defaults_are_those_in_effect(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(PROGRAM | {"entrypoint": "/bin/true"}, file)
            file.flush()
            result = subprocess.run([DTRAIN, "launch", file.name, "--dry-run", "--json"], capture_output=True, text=True, check=True)
        experiment = json.loads(result.stdout)["experiment"]
        compared = 0
        for path, parts in walk(schema("experiment")).items():
            defaults = [part["default"] for part in parts if "default" in part]
            shown = at(experiment, path)
            if defaults and shown is not None:
                self.assertEqual(shown[0], defaults[0], path)
                compared += 1
        self.assertGreaterEqual(compared, 15)


class Documentation(unittest.TestCase):
    """The tables of docs/ name every key of the schema and no other."""

    # Explained as a whole; the keys inside have no row of their own.
    ONE_ROW = {("searcher", "max_length"), ("min_validation_period",), ("min_checkpoint_period",), ("launcher", "type"),
               ("hyperparameters", "global_batch_size"), ("data", "validation"),
               ("optimizations", "local_sgd", "compression"), ("optimizer", "groups", 0, "lr_schedule")}

    def documented(self, name):
        keys, in_table = set(), False
        for line in (SOURCE / "docs" / name).read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if line.startswith("|"):
                in_table = in_table or cells[1] == "key"
                if in_table:
                    keys.update(re.findall(r"`([^`]+)`", cells[1]))
            else:
                in_table = False
        return keys

    def check(self, kind, name, free):
        paths = walk(schema(kind))
        sections = {path[:length] for path in paths for length in range(1, len(path))}
        expected = set()
        for path in paths:
            inside = any(path[:length] in self.ONE_ROW for length in range(1, len(path)))
            if not inside and (path not in sections or path in self.ONE_ROW):
                expected.add(".".join(str(key) for key in path if key != 0))
        names = {".".join(str(key) for key in section if key != 0) for section in sections}
        documented = self.documented(name)
        self.assertEqual(expected - documented, set(), "in the schema alone")
        self.assertEqual(documented - expected - names - free, set(), "in the documentation alone")

    def test_experiment_md_has_every_key_and_no_other(self):
        self.check("experiment", "experiment.md", {"hyperparameters.*", "profiling.rules.*"})

    def test_cluster_md_has_every_key_and_no_other(self):
        self.check("cluster", "cluster.md", set())


class Advice(unittest.TestCase):
    """What the analysis tells users to set, can be set: its sentences name no key that is missing, or refused."""

    # Of prose: names of phases and functions, of files, and of what JSON calls things.
    PHASES = set(re.findall(r'"([a-z_.]+)"', (SOURCE / "runtime" / "profile" / "records.cpp").read_text()))

    def setUp(self):
        self.keys, self.documents = {}, {}
        for kind, bases in BASES.items():
            for path, parts in walk(schema(kind)).items():
                if path[-1] != 0:  # an item has no name of its own
                    self.keys[".".join(str(key) for key in path if key != 0)] = (kind, path, parts, bases)

    def settable(self, name):
        """Whether the reader takes a value other than the default."""
        kind, path, parts, bases = self.keys[name]
        defaults = [part["default"] for part in parts if "default" in part]
        values = [value for value in values_to_try(parts) + [{"batches": 7}] if value not in defaults]
        documents = []
        # First those that have the section.
        for base in sorted(bases.values(), key=lambda base: at(base, path[:-1]) is None):
            here = [value for value in at(base, path) or [] if value not in defaults]
            documents += [document for document in (put(base, path, value) for value in here + values) if document]
        return any(accepted_documents(kind, documents[start:start + 40])[0] for start in range(0, len(documents), 40))

    def sentences(self):
        """(where, text): literals of the analysis that are prose, adjacent ones joined."""
        for file in sorted((SOURCE / "runtime" / "analysis").rglob("*.cpp")):
            if file.parts[-2] in ("trace", "export", "live"):
                continue
            for literals in re.findall(r'((?:"(?:[^"\\\n]|\\.)*"\s*)+)', file.read_text()):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', literals))
                if text.count(" ") >= 3 and not text.lstrip().startswith(("<", "#include")):
                    yield file.name, text

    def code_of_documents(self):
        """(where, text): what stands in backticks in documents, but for the reference of the files themselves."""
        for file in sorted((SOURCE / "docs").glob("*.md")):
            if file.name not in ("experiment.md", "cluster.md"):
                yield from ((file.name, code) for code in re.findall(r"`([a-z][^`\n]*)`", file.read_text()))

    def check(self, texts, at_least):
        leaves, sections = {}, set()
        for name in self.keys:
            leaves.setdefault(name.rsplit(".", 1)[-1], []).append(name)
            sections.update(name.split(".")[:-1][:1])
        sections -= {"data", "hyperparameters"}  # free for the trial
        named = {}
        for where, text in texts:
            for token in re.findall(r"(?<![\w./:])[a-z]\w*(?:\.\w+)*(?![\w(.*<])", text):
                if token in self.PHASES or token.endswith((".safetensors", ".json", ".pt", ".pt2")):  # files of a checkpoint
                    continue
                if "." in token and token.split(".")[0] in sections:
                    named.setdefault(token, ([token], f"{where}: {text}"))
                elif "_" in token and token in leaves:
                    named.setdefault(token, (leaves[token], f"{where}: {text}"))
        self.assertEqual(set(at_least) - set(named), set())
        for token, (names, where) in named.items():
            with self.subTest(token):
                self.assertTrue(all(name in self.keys for name in names), where)
                self.assertTrue(any(self.settable(name) for name in names), where)

    def test_of_the_analysis_names_keys_that_can_be_set(self):
        self.check(self.sentences(), ["optimizations.aggregation_frequency", "scheduling_unit", "min_validation_period"])

    def test_of_the_documents_names_keys_that_can_be_set(self):
        self.check(self.code_of_documents(), ["resources.priority", "max_restarts"])

    def test_tells_what_is_refused(self):
        self.assertFalse(self.settable("searcher.name"))
        self.assertTrue(self.settable("profiling.sync_timings"))
        self.assertTrue(self.settable("scheduling_unit"))


if __name__ == "__main__":
    DTRAIN = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
