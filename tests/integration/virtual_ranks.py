"""Virtual ranks: any number of ranks gives the same bits.

    virtual_ranks.py BIN_FOLDER [--long] [Bits|Schedules|Files|Hosts|Mistakes[.test]]

Bits: the same training of 4 and of 6 logical ranks on 1, 2, 3, 4 (and 6) ranks; compared are SHA-256 of the final weights,
of the shared files of the last checkpoint, of the state of each logical rank there, and the metrics. Runs that are
interrupted inside an epoch and inside a window go on with another number of ranks; other runs exchange over TCP and MPI. Hosts:
the same over two hosts, in the bed of tests/harness/two_hosts.sh. Files: a `model:` experiment, on any number of ranks and
against plain PyTorch. Mistakes: what a trial can do wrong is caught, and what is not supported is refused at its line. --long:
200 batches (DTRAIN_VIRTUAL_BATCHES), all numbers of ranks up to 8, all optimizers, and chains of continuations with random numbers of
ranks (DTRAIN_VIRTUAL_SEED seeds them); Schedules: runs that grow, shrink, stop and are killed in mid-epoch, at random.
"""
import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import unittest

import many_runs
from harness import BUILD, SOURCE, WorkplaceTest, environment, launch, main, run, write_experiment

BED, HOSTS = str(SOURCE / "tests" / "harness" / "two_hosts.sh"), os.environ.get("TWO_HOSTS", "")
LONG = "--long" in sys.argv
if LONG:
    sys.argv.remove("--long")

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True}
ADAMW = {"kind": "adamw", "lr": 3e-3}
CNN = {"model": "cnn", "optimizer": SGD, "ragged": True}
MLP = {"model": "mlp", "optimizer": ADAMW, "ragged": True}
LAMB = {"kind": "lamb", "lr": 3e-3}
MUON = {"kind": "muon", "lr": 3e-3, "adamw_lr": 3e-3}
POWERSGD = {"kind": "powersgd", "rank": 2, "warmup_steps": 2}
BATCHES = int(os.environ.get("DTRAIN_VIRTUAL_BATCHES", "200")) if LONG else 14


def sections(ranks, virtual, hyperparameters, batches=BATCHES, optimizations=None, reproducibility=None, **more):
    """An epoch has 9 batches, and its last one 5 samples: fewer than some numbers of logical ranks."""
    return {"name": "virtual", "entrypoint": BUILD.program("virtual_trial"),
            "hyperparameters": {"global_batch_size": 24, **hyperparameters}, "data": {"samples": 8 * 24 + 5},
            "resources": {"slots_per_trial": ranks, "slot_type": "cpu"},
            "searcher": {"max_length": {"batches": batches}, "metric": "accuracy", "smaller_is_better": False},
            "min_validation_period": {"batches": 5}, "scheduling_unit": 3, "optimizations": optimizations or {},
            "reproducibility": {"virtual_ranks": virtual, "experiment_seed": 5, **(reproducibility or {})}, **more}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def logical_state(checkpoint):
    """Of the files of all ranks: the bytes of each tensor, and each value, of a logical rank."""
    state = {}
    for file in sorted(checkpoint.glob("rank-*.safetensors")):
        content = file.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        for name, entry in json.loads(content[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            if name == "values":
                values = json.loads(content[begin:end])
                state.update({path: value for path, value in values.items() if path.startswith("logical/")})
            elif name.startswith("logical/"):
                state[name] = digest(content[begin:end])
    return state


def left(folder):
    """All that must not depend on the number of ranks."""
    storage = folder / "checkpoints"
    last = max(storage.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"weights": digest((storage / "final" / "model.safetensors").read_bytes()), "last": last.name,
            "model": digest((last / "model.safetensors").read_bytes()),
            "optimizer": digest((last / "optimizer.safetensors").read_bytes()), **logical_state(last),
            "metrics": [{key: value for key, value in line.items() if key != "time"} for line in lines]}


def differences(one, other):
    found = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    if "metrics" in found:
        pair = next((pair for pair in zip(one["metrics"], other["metrics"]) if pair[0] != pair[1]), "their numbers")
        found.append(f"metrics: {pair}")
    return found


class Runs(WorkplaceTest):
    """Runs whose ranks are processes for all runs with as many ranks."""

    def train(self, cases):
        """`cases`: name -> (ranks, sections)."""
        files = []
        for name, (_, content) in cases.items():
            (self.work.path / name).mkdir()
            files.append(write_experiment(self.work.path / name / "experiment.yaml", **content))
        return dict(zip(cases, many_runs.run_many(BUILD, "virtual_trial", self.work.path, files)))

    def go_on(self, chains):
        """`chains`: of each run, after its start, [(ranks, settings)]."""
        for step in range(max(map(len, chains.values()))):
            by_ranks = {}
            for folder, chain in chains.items():
                if step < len(chain):
                    by_ranks.setdefault(chain[step][0], []).append((folder, chain[step][1]))
            for ranks, mine in by_ranks.items():
                plan = []
                for (folder, settings), port in zip(mine, many_runs.free_ports(len(mine))):
                    words = [f"{key}={value}" for key, value in {**settings, "resources.slots_per_trial": ranks}.items()]
                    plan.append({"arguments": ["--continue", str(folder), *(word for one in words for word in ("--set", one))],
                                 "environment": {"MASTER_PORT": str(port)}})
                lines = many_runs.run_plans(BUILD, "virtual_trial", self.work.path, f"step-{step}-{ranks}", [plan] * ranks)
                for (folder, _), of_ranks in zip(mine, zip(*lines)):
                    result = many_runs.result_of(folder, of_ranks)
                    self.assertIn(result.code, (0, 75), result.output)


def pause(batch, window):
    """The settings with which a run pauses: by a signal after an optimizer step, or by its length inside a window."""
    if batch % window:
        return {"searcher.max_length.batches": batch, "hyperparameters.stop_at": 0}
    return {"searcher.max_length.batches": BATCHES, "hyperparameters.stop_at": batch}


class Bits(Runs):
    CASES = {"cnn": (4, CNN, {}), "mlp": (6, {**MLP, "clip": 0.3}, {"aggregation_frequency": 2}),
             "bf16": (5, {**CNN, "optimizer": LAMB, "global_batch_size": 25}, {"mixed_precision": "bf16", "ema": 0.9}),
             "powersgd": (6, {**MLP, "clip": 0.3}, {"gradient_compression": POWERSGD, "aggregation_frequency": 2})}
    if LONG:
        CASES = {**CASES, "cnn-adamw": (8, {**CNN, "optimizer": ADAMW, "clip": 1.0}, {}),
                 "cnn-windows": (6, CNN, {"aggregation_frequency": 3, "average_aggregated_gradients": False}),
                 "mlp-sgd": (5, {**MLP, "optimizer": SGD, "global_batch_size": 30}, {}), "mlp-8": (8, MLP, {"aggregation_frequency": 4}),
                 "muon": (7, {**MLP, "optimizer": MUON, "global_batch_size": 28}, {"mixed_precision": "bf16"}),
                 **{f"cnn-{codec}": (8, CNN, {"gradient_compression": codec}) for codec in ("fp16", "bf16", "int8")},
                 "mlp-topk": (6, MLP, {"gradient_compression": {"kind": "topk", "ratio": 0.1}, "aggregation_frequency": 3}),
                 "mlp-powersgd": (8, MLP, {"gradient_compression": POWERSGD})}

    def numbers(self, virtual):
        return range(1, virtual + 1) if LONG else (1, 2, 3, 4)

    def test_are_the_same_on_any_number_of_ranks(self):
        cases = {f"{name}-{ranks}": (ranks, sections(ranks, virtual, hyperparameters, optimizations=optimizations))
                 for name, (virtual, hyperparameters, optimizations) in self.CASES.items()
                 for ranks in self.numbers(virtual)}
        # Interrupted in mid-epoch, and of the MLP inside a window of two batches: on 2, then 3, then 1 rank.
        dice = random.Random(int(os.environ.get("DTRAIN_VIRTUAL_SEED", "1")))
        chains = {}
        for name, (virtual, hyperparameters, optimizations) in self.CASES.items():
            window = optimizations.get("aggregation_frequency", 1)
            # A window may put off a stop, which must not pass the next one.
            places = range(6, BATCHES - 5, 6)
            steps = [step + dice.randint(0, 1) for step in sorted(dice.sample(places, min(6, len(places))))] if LONG else [5, 11]
            numbers = [2, *(dice.randint(1, virtual) for _ in steps[1:]), dice.randint(1, virtual)] if LONG else [2, 3, 1]
            pauses = [pause(step, window) for step in steps]
            start = sections(2, virtual, hyperparameters, pauses[0]["searcher.max_length.batches"], optimizations)
            start["hyperparameters"]["stop_at"] = pauses[0]["hyperparameters.stop_at"]
            cases[f"{name}-chain"] = (2, start)
            end = {"searcher.max_length.batches": BATCHES, "hyperparameters.stop_at": 0}
            chains[self.work.path / f"{name}-chain" / "run"] = list(zip(numbers[1:], [*pauses[1:], end]))
        for name, result in self.train(cases).items():
            self.assertIn(result.code, (0, 75) if name.endswith("chain") else (0,), f"{name}: {result.output}")
        self.go_on(chains)
        for name, (virtual, *_) in self.CASES.items():
            whole = left(self.work.path / f"{name}-1" / "run")
            self.assertEqual(len({path.split("/")[1] for path in whole if path.startswith("logical/")}), virtual)
            self.assertGreater(len(whole["metrics"]), 4)
            for other in [*(f"{name}-{ranks}" for ranks in self.numbers(virtual)), f"{name}-chain"]:
                self.assertEqual(differences(whole, left(self.work.path / other / "run")), [], other)
            print(f"{name}: {virtual} logical ranks on {[*self.numbers(virtual)]} ranks and in a chain: weights {whole['weights']}")
        self.predict_alike([(self.work.path / f"cnn-{ranks}" / "run", slots) for ranks, slots in ((1, 1), (1, 4), (3, 3))])

    def predict_alike(self, cases):
        """The batch norms' statistics are those of logical rank 0."""
        rows = set()
        for folder, slots in cases:
            out = folder.parent / f"rows-{slots}.npy"
            run([BUILD.program("dtrain"), "predict", str(folder), "--slots", str(slots), "--out", str(out)], folder).expect(0)
            rows.add(digest(out.read_bytes()))
        self.assertEqual(len(rows), 1, cases)

    def test_are_the_same_with_each_optimizer_and_over_each_transport(self):
        kinds = {"muon": MUON, "lamb": LAMB}
        if LONG:
            kinds.update({kind: {"kind": kind, "lr": 1e-3} for kind in ("adam", "radam", "rmsprop", "adagrad", "lion")})
        cases = {f"{name}-{ranks}": (ranks, sections(ranks, 4, {**MLP, "optimizer": optimizer}))
                 for name, optimizer in kinds.items() for ranks in (1, 3)}
        cases["sharded-3"] = (3, {**cases["lamb-3"][1], "optimizations": {"sharded_optimizer": True}})
        cases["tcp-3"] = (3, {**cases["muon-3"][1], "communication": {"backend": "tcp"}})
        for name, result in self.train(cases).items():
            result.expect(0)
        for name in kinds:
            self.assertEqual(differences(*(left(self.work.path / f"{name}-{ranks}" / "run") for ranks in (1, 3))), [], name)
        self.assertEqual(json.loads((self.work.path / "sharded-3" / "run" / "plan.json").read_text())["strategy"]["strategy"], "sharded")
        lamb, sharded = (left(self.work.path / name / "run") for name in ("lamb-1", "sharded-3"))
        self.assertEqual(differences(lamb, sharded), [], "with sharded updates")
        whole = left(self.work.path / "muon-1" / "run")
        self.assertEqual(differences(whole, left(self.work.path / "tcp-3" / "run")), [], "over TCP")
        if not shutil.which("mpirun"):
            return
        folder = self.work.path / "mpi-3"
        folder.mkdir()
        file = write_experiment(folder / "experiment.yaml", **{**cases["muon-3"][1], "communication": {"backend": "mpi"}})
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        run(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", "3", BUILD.program("virtual_trial"), str(file),
             "--run-dir", str(folder / "run")], folder / "run").expect(0)
        self.assertEqual(json.loads((folder / "run" / "plan.json").read_text())["communication"]["backend"], "mpi")
        self.assertEqual(differences(whole, left(folder / "run")), [], "over MPI")


@unittest.skipIf(not LONG, "only with --long")
class Schedules(Runs):
    CASES = {"cnn": (8, {**CNN, "clip": 1.0}, {"ema": 0.9}), "windows": (6, MLP, {"aggregation_frequency": 3}),
             "powersgd": (6, MLP, {"gradient_compression": POWERSGD}),
             "int8": (8, CNN, {"gradient_compression": "int8", "aggregation_frequency": 2})}

    def test_of_random_numbers_of_ranks_stops_and_kills_leave_the_bits(self):
        first = int(os.environ.get("DTRAIN_VIRTUAL_SEED", "1"))
        content = {name: sections(1, virtual, {**hyperparameters, "stop_at": 0, "kill_at": 0, "killed": 0}, optimizations=optimizations,
                                  min_checkpoint_period={"batches": 4})
                   for name, (virtual, hyperparameters, optimizations) in self.CASES.items()}
        for name, result in self.train({name: (1, one) for name, one in content.items()}).items():
            result.expect(0)
        whole = {name: left(self.work.path / name / "run") for name in self.CASES}
        for seed in range(first, first + 20):
            dice = random.Random(seed)
            name = dice.choice([*self.CASES])
            virtual = self.CASES[name][0]
            folder = self.work.path / f"schedule-{seed}"
            folder.mkdir()
            file = write_experiment(folder / "experiment.yaml", **content[name])
            said = []
            # Each logical rank has a part of these. A window may put off a stop, which must not pass the next batch or the end.
            whole_batches = [batch for batch in range(2, BATCHES - 5) if batch % 9]
            drawn = sorted(dice.sample(whole_batches, dice.randint(2, 5)))
            spread = [batch for batch, before in zip(drawn, [0, *drawn]) if batch - before > 3 or before == 0]
            for batch in [*spread, 0]:
                ranks, way = dice.randint(1, virtual), dice.choice(("stop_at", "kill_at")) if batch else "to the end"
                settings = {"resources.slots_per_trial": ranks, "hyperparameters.stop_at": 0, "hyperparameters.kill_at": 0,
                            "hyperparameters.killed": dice.randrange(virtual), **({f"hyperparameters.{way}": batch} if batch else {})}
                # A run that dies before its first checkpoint has nothing to go on from: it begins anew.
                begins = not [*(folder / "run" / "checkpoints").glob("step-*")]
                if begins:
                    shutil.rmtree(folder / "run", ignore_errors=True)
                start = [str(file), "--run-dir", str(folder / "run")] if begins else ["--continue", str(folder / "run")]
                words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
                self.go(folder, f"{seed}-{batch}", ranks, start + words, dies=way == "kill_at")
                said.append(f"{ranks} ranks {way.removesuffix('_at')} {batch or ''}".strip())
            self.assertEqual(differences(whole[name], left(folder / "run")), [], f"{name}, seed {seed}: {said}")
            print(f"{name}, seed {seed}: {', '.join(said)}")
            shutil.rmtree(folder)

    def go(self, folder, name, ranks, arguments, dies):
        plan = [{"arguments": arguments, "environment": {"MASTER_PORT": str(many_runs.free_ports(1)[0])}}]
        try:
            lines = many_runs.run_plans(BUILD, "virtual_trial", folder, name, [plan] * ranks)
        except AssertionError as error:
            if not dies or "-9" not in str(error).split("\n")[0]:
                raise
            return
        self.assertFalse(dies, f"{name}: nothing was killed")
        result = many_runs.result_of(folder / "run", [of_rank[0] for of_rank in lines])
        self.assertIn(result.code, (0, 75), result.output)


@unittest.skipIf(not HOSTS, "there are no two hosts: two_hosts.sh with unshaped PYTHON virtual_ranks.py BIN_FOLDER Hosts")
class Hosts(WorkplaceTest):
    ON_DISK = True  # each host has a /dev/shm of its own

    def test_give_the_bits_of_one(self):
        folders = {}
        for name, ranks, hosts, backend in (("alone", 1, "nodea:1", "auto"), ("three", 3, "nodea:2,nodeb:1", "auto"),
                                            ("tcp", 4, "nodea:2,nodeb:2", "tcp"), ("mpi", 2, "nodea:1,nodeb:1", "mpi")):
            folders[name] = self.work.path / name / "run"
            folders[name].parent.mkdir()
            file = write_experiment(folders[name].parent / "experiment.yaml",
                                    **sections(ranks, 4, {**MLP, "clip": 0.3}, communication={"backend": backend}))
            run([BED, "mpirun", HOSTS, "--host", hosts, "-np", str(ranks), "-x", "OMP_NUM_THREADS", "-x",
                 "DTRAIN_NETWORK_INTERFACE=10.71.1.0/24", BUILD.program("virtual_trial"), str(file), "--run-dir", str(folders[name])],
                folders[name]).expect(0)
            plan = json.loads((folders[name] / "plan.json").read_text())
            print(f"{name}: {ranks} ranks, {plan.get('communication')}")
            self.assertEqual(differences(left(folders["alone"]), left(folders[name])), [], name)


class Files(WorkplaceTest):
    """`model:` experiments, in the order of the data, so that plain PyTorch has the same batches."""

    BATCHES, BATCH, FEATURES = 100, 24, 20

    def test_are_plain_pytorch_on_any_number_of_ranks(self):
        import numpy
        import safetensors.torch
        import torch
        torch.set_num_threads(1)
        torch.manual_seed(1)
        features, classes = torch.randn(self.BATCHES * self.BATCH, self.FEATURES), torch.randint(0, 7, (self.BATCHES * self.BATCH,))
        numpy.save(self.work.path / "x.npy", features.numpy())
        numpy.save(self.work.path / "y.npy", classes.numpy())
        model = torch.nn.Sequential(torch.nn.Linear(self.FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 7))
        shapes = ({0: torch.export.Dim.AUTO},)
        torch.export.save(torch.export.export(model, (features[:6],), dynamic_shapes=shapes), str(self.work.path / "model.pt2"))
        source = {"features": "x.npy", "target": "y.npy"}
        left_of = {}
        for ranks in (1, 2, 3, 4) if LONG else (1, 3):
            folder = self.work.path / f"file-{ranks}"
            file = write_experiment(
                self.work.path / f"file-{ranks}.yaml", name="file", model="model.pt2", loss="cross_entropy",
                data={"format": "npy", "training": source, "validation": source, "shuffle": False},
                optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9}, hyperparameters={"global_batch_size": self.BATCH},
                resources={"slots_per_trial": ranks, "slot_type": "cpu"}, searcher={"max_length": {"batches": self.BATCHES}},
                min_validation_period={"batches": self.BATCHES // 2}, reproducibility={"virtual_ranks": 4})
            launch(BUILD, file, folder).expect(0)
            left_of[ranks] = left(folder)
            predict = [BUILD.program("dtrain"), "predict", str(folder), "--slots", str(5 - ranks), "--out", str(folder / "rows.npy")]
            run(predict, folder).expect(0)
            left_of[ranks]["rows"] = digest((folder / "rows.npy").read_bytes())
            self.assertEqual(differences(left_of[1], left_of[ranks]), [], ranks)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for x, y in zip(features.split(self.BATCH), classes.split(self.BATCH)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        trained = safetensors.torch.load_file(self.work.path / "file-1" / "checkpoints" / "final" / "model.safetensors")
        worst = max(((trained[name] - value).abs().max() / value.abs().max()).item() for name, value in model.state_dict().items())
        print(f"after {self.BATCHES} steps {worst:.1e} from plain PyTorch")
        self.assertLess(worst, 1e-6)
        model.load_state_dict(trained)
        rows = torch.tensor(numpy.load(self.work.path / "file-1" / "rows.npy"))
        self.assertLess((rows - model(features)).abs().max().item(), 1e-5)


class Mistakes(Runs):
    def test_are_caught(self):
        # What dtrain cannot see shows as other bits; what it can see is an error.
        cases = {f"unseeded-{ranks}": (ranks, sections(ranks, 4, {**MLP, "fault": "unseeded"}, 4)) for ranks in (1, 2)}
        refused = {"threads": "the trial computes with 3 threads", "state": "save_state()", "callback": "callbacks are",
                   "weight": r"backward\(loss, weight\)", "collective": r"context.all_reduce\(\)"}
        cases.update({fault: (2, sections(2, 4, {**MLP, "fault": fault}, 4)) for fault in refused})
        # On rank 1 of 2, and the last of 4 logical ranks.
        cases["nan"] = (2, sections(2, 4, {**MLP, "fault": "nan"}, 4, on_non_finite="warn"))
        cases["nan-stops"] = (2, sections(2, 4, {**MLP, "fault": "nan"}, 4, on_non_finite="stop"))
        refused["nan-stops"] = r"the loss is nan in batch \d+ on logical rank 3"
        cases["threads-1"] = (1, sections(1, 4, CNN, 4))
        results = self.train(cases)
        for name, text in refused.items():
            self.assertNotEqual(results[name].code, 0, name)
            self.assertRegex(results[name].output, text)
        self.assertRegex(results["nan"].output, r"the loss is nan in batch \d+ on rank 3")
        one, two = (left(self.work.path / f"unseeded-{ranks}" / "run") for ranks in (1, 2))
        self.assertNotEqual(one["weights"], two["weights"])
        self.refuse_continuations(self.work.path / "threads-1" / "run")

    def refuse_continuations(self, folder):
        for key, value in (("virtual_ranks", 8), ("virtual_ranks", 0), ("virtual_rank_threads", 2)):
            result = run([BUILD.program("dtrain"), "launch", "--continue", str(folder), "--set", "searcher.max_length.batches=8",
                          "--set", f"reproducibility.{key}={value}"], folder)
            self.assertEqual(result.code, 2, result.output)
            self.assertIn(f"reproducibility.{key}: ", result.output)
            self.assertIn("initial_weights", result.output)

    def test_unsupported_keys_are_refused_at_their_lines(self):
        refused = {"optimizations.sharded_gradients": True,
                   "optimizations.local_sgd": {"inner_steps": 2}, "optimizations.mixed_precision": "fp16",
                   "optimizations.auto_tune_tensor_fusion": True, "optimizations.tensor_fusion_threshold": 1,
                   "optimizations.average_training_metrics": False, "resources.slot_type": "cuda",
                   "resources.slots_per_trial": "auto", "recovery.interval": 5,
                   "reproducibility.virtual_ranks": 7}
        for key, value in refused.items():
            content = sections(2, 4, MLP)
            section, name = key.split(".")
            content.setdefault(section, {})[name] = value
            file = write_experiment(self.work.path / "wrong.yaml", **content)
            line = 1 + next(i for i, text in enumerate(file.read_text().splitlines()) if f'"{name}": ' in text)
            result = subprocess.run([BUILD.program("dtrain"), "config", "check", str(file)], capture_output=True, text=True,
                                    env=environment(), check=False)
            self.assertEqual(result.returncode, 2, key)
            self.assertRegex(result.stderr, rf"wrong\.yaml:{line}: {re.escape(key)}: ")
        file = write_experiment(self.work.path / "right.yaml", **sections(3, 4, MLP))
        plan = subprocess.run([BUILD.program("dtrain"), "launch", "--dry-run", str(file)], capture_output=True, text=True,
                              env=environment(), check=False)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("4 virtual ranks on 3 slots, 1 thread each", plan.stdout)


if __name__ == "__main__":
    main("virtual_trial")
