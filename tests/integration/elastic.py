"""Runs that change their number of slots while they train (`dtrain task resize`).

    elastic.py BIN_FOLDER [--long] [Virtual|Schedules|Plain|Windows|Refusals|Queue[.test]]

The trial waits in chosen batches until it is told to go on, so the orders arrive in mid-epoch. It logs its samples: each batch must
have those of a run that nothing disturbs, once. Virtual: with virtual ranks, weights, checkpoints and metrics have the bits of that
run; Schedules: also after a random series of changes and kills, whose seed it prints (DTRAIN_ELASTIC_SEED; --long: 20 series). Plain:
without them a plain model is within 1e-6 of it, 40 batches later; what dropout and batch norm make different is printed. Windows: the
change waits for the end of a window of aggregation_frequency. Refusals: what cannot be resized goes on undisturbed. Queue: an elastic
task gives slots to a task of higher priority and takes them back; where the key is refused. --long: all changes with all models, of
which one has dropout and batch norm.
"""
import json
import os
import random
import signal
import subprocess

from harness import BUILD, DEADLINE, Result, WorkplaceTest, environment, main, run, wait_until, write_experiment
from virtual_ranks import ADAMW, LONG, SGD, differences, left

HOLD = 13  # in the second epoch: an epoch has 9 batches
BATCHES = HOLD + 1 + 40
CHANGES = ((2, 1), (2, 3), (4, 3))
MODELS = {"plain": {"model": "plain", "optimizer": ADAMW}, "cnn": {"model": "cnn", "optimizer": SGD}}


def sections(slots, model, folder, hold=(), virtual=0, batches=BATCHES, **more):
    return {"name": "elastic", "entrypoint": more.pop("entrypoint", BUILD.program("virtual_trial")),
            "hyperparameters": {"global_batch_size": 24, "ragged": True, **MODELS[model], "hold": list(hold), "folder": str(folder),
                                **more.pop("hyperparameters", {})},
            "data": more.pop("data", {"samples": 8 * 24 + 5}),
            "resources": {"slots_per_trial": slots, "slot_type": "cpu", **more.pop("resources", {})},
            "searcher": {"max_length": {"batches": batches}, "metric": "accuracy", "smaller_is_better": False},
            "min_validation_period": {"batches": 5}, "scheduling_unit": 3, "recovery": {"hang": "off"},
            "reproducibility": {"experiment_seed": 5, **({"virtual_ranks": virtual} if virtual else {})}, **more}


def logged_samples(folder):
    """Of each batch its samples, in the order of the ranks."""
    batches = {}
    for file in folder.glob("samples-*"):
        for line in file.read_text().splitlines():
            batch, rank, value = line.split()
            batches.setdefault(int(batch), []).append((int(rank), value))
    return {batch: [value for _, value in sorted(samples, key=lambda sample: sample[0])] for batch, samples in batches.items()}


class Launched:
    """A launch that goes on beside the test."""

    def __init__(self, work, name, extra=None, options=(), **content):
        self.folder = work.path / name
        self.folder.mkdir()
        self.extra = extra or {}
        self.run_dir = self.folder / "run"
        self.log = self.folder / "output"
        file = write_experiment(self.folder / "experiment.yaml", **sections(folder=self.folder, **content))
        with self.log.open("w") as output:
            command = [BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(self.run_dir), *map(str, options)]
            self.process = subprocess.Popen(command, env=environment(**self.extra), stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=output)

    def task(self, *words, code=0):
        return run([BUILD.program("dtrain"), "task", *map(str, words)], self.folder, **self.extra).expect(code).output

    def id(self):
        wait_until(lambda: self.events("submitted"), f"the submission of {self.folder}")
        return self.events("submitted")[0]["task"]

    def events(self, name):
        file = self.run_dir / "events.jsonl"
        lines = file.read_text().splitlines(True) if file.is_file() else []
        return [event for line in lines if line.endswith("\n") and (event := json.loads(line))["event"] == name]

    def wait_for_batch(self, batch):
        """Rank 0 is about to wait in that batch."""
        wait_until(lambda: self.process.poll() is not None or batch - 1 in logged_samples(self.folder), f"batch {batch - 1}")
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended with {self.process.poll()}:\n{self.log.read_text()}")

    def let_go(self, batch):
        (self.folder / str(batch)).touch()

    def resize(self, batch, slots):
        """Orders the number of slots while rank 0 waits in that batch."""
        self.wait_for_batch(batch)
        said = self.task("resize", self.id(), "--slots", slots)
        self.let_go(batch)
        return said

    def end(self, code=0):
        return Result(self.process.wait(DEADLINE), self.log.read_text(), self.run_dir).expect(code)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Elastic(WorkplaceTest):
    EXTRA = {}

    def start(self, name, **content):
        launched = Launched(self.work, name, self.EXTRA, **content)
        self.addCleanup(launched.kill)
        return launched

    def undisturbed(self, name, **content):
        launched = self.start(name, **content)
        launched.end()
        return launched

    def check_samples(self, changed, whole):
        self.assertEqual(logged_samples(changed.folder), logged_samples(whole.folder))

    def check_change(self, changed, result, before, after, batch=HOLD):
        """What the run says of it; it stops at that batch or the next."""
        event = changed.events("resized")[-1]
        self.assertEqual((event["from"], event["to"], event["why"]), (before, after, "dtrain task resize"))
        self.assertIn(event["step"], (batch, batch + 1))
        self.assertIn(f"the run goes on with {after} slot{'s' if after > 1 else ''} instead of {before}, from batch "
                      f"{event['step'] + 1} (", result.output)
        self.assertEqual(json.loads((changed.run_dir / "plan.json").read_text())["world_size"], after)


class Virtual(Elastic):
    def test_keeps_the_bits(self):
        for model in MODELS if LONG else ("cnn",):
            with self.subTest(model=model):
                whole = self.undisturbed(f"whole-{model}", slots=2, model=model, virtual=4)
                changed = self.start(f"changed-{model}", slots=2, model=model, virtual=4, hold=(7, HOLD, 22))
                sizes = (2, 1, 4, 3)
                for batch, before, after in zip((7, HOLD, 22), sizes, sizes[1:]):
                    self.assertIn("saves after its current step and goes on with", changed.resize(batch, after))
                result = changed.end()
                self.check_change(changed, result, 4, 3, 22)
                self.check_samples(changed, whole)
                self.assertEqual(differences(left(whole.run_dir), left(changed.run_dir)), [])


class Schedules(Elastic):
    VIRTUAL = 8

    def test_changes_and_kills_leave_the_bits(self):
        whole = self.undisturbed("whole", slots=2, model="cnn", virtual=self.VIRTUAL)
        first = int(os.environ.get("DTRAIN_ELASTIC_SEED", "1"))
        for seed in range(first, first + (20 if LONG else 1)):
            with self.subTest(seed=seed):
                dice = random.Random(seed)
                places = [batch + dice.randint(0, 4) for batch in dice.sample(range(3, BATCHES - 8, 8), 4)]
                slots = dice.randint(1, self.VIRTUAL)
                changed = self.start(f"changed-{seed}", slots=slots, model="cnn", virtual=self.VIRTUAL, hold=places,
                                     min_checkpoint_period={"batches": 4}, max_restarts=10)
                changes, said = [], [f"{slots} slots"]
                for batch in sorted(places):
                    to = dice.randint(1, self.VIRTUAL)
                    if to == slots or dice.random() < 0.3:
                        changed.wait_for_batch(batch)
                        os.kill(dice.choice(changed.events("rank_started")[-slots:])["pid"], signal.SIGKILL)
                        changed.let_go(batch)
                        said.append(f"a kill in batch {batch}")
                        continue
                    changed.resize(batch, to)
                    changes.append((slots, to))
                    said.append(f"{to} from batch {batch}")
                    slots = to
                changed.end()
                print(f"seed {seed}: {', '.join(said)}", flush=True)
                self.assertEqual([(event["from"], event["to"]) for event in changed.events("resized")], changes)
                # Batches that a kill undid are logged again.
                samples, expected = logged_samples(changed.folder), logged_samples(whole.folder)
                self.assertEqual({batch: set(values) for batch, values in samples.items()},
                                 {batch: set(values) for batch, values in expected.items()})
                self.assertEqual(differences(left(whole.run_dir), left(changed.run_dir)), [])


class Plain(Elastic):
    def check(self, model, whole, before, after):
        import parity_model
        changed = self.start(f"{model}-{before}-{after}", slots=before, model=model, hold=(HOLD,))
        changed.resize(HOLD, after)
        result = changed.end()
        self.check_change(changed, result, before, after)
        self.check_samples(changed, whole)
        self.assertRegex(result.output, r"a rank has \d+ samples of each batch instead of \d+")
        files = [parity_model.load(one.run_dir / "checkpoints/final/model.safetensors") for one in (changed, whole)]
        difference, worst = parity_model.worst_difference(*files)
        print(f"{model} from {before} to {after} slots: {worst} differs by {difference:.1e} after "
              f"{BATCHES - changed.events('resized')[0]['step']} batches", flush=True)
        self.assertLess(difference, 1e-6 if model == "plain" else 1)

    def test_has_the_same_samples_and_differs_by_rounding(self):
        for model in MODELS if LONG else ("plain",):
            for before in (2, 4) if LONG else (2,):
                whole = self.undisturbed(f"whole-{model}-{before}", slots=before, model=model)
                for _, after in (change for change in CHANGES if change[0] == before):
                    with self.subTest(model=model, before=before, after=after):
                        self.check(model, whole, before, after)


class Windows(Elastic):
    def test_the_change_waits_for_the_end_of_a_window(self):
        import parity_model
        window = {"optimizations": {"aggregation_frequency": 4}}
        whole = self.undisturbed("whole", slots=2, model="plain", batches=40, **window)
        changed = self.start("changed", slots=2, model="plain", batches=40, hold=(HOLD,), **window)
        changed.resize(HOLD, 3)
        changed.end()
        self.assertEqual(changed.events("resized")[0]["step"], 16)
        self.check_samples(changed, whole)
        files = [parity_model.load(one.run_dir / "checkpoints/final/model.safetensors") for one in (changed, whole)]
        self.assertLess(parity_model.worst_difference(*files)[0], 1e-6)

    def test_a_batch_that_is_rounded_is_told_with_its_first_sample(self):
        changed = self.start("rounded", slots=2, model="plain", batches=30, hold=(HOLD,))
        changed.resize(HOLD, 5)
        result = changed.end()
        event = changed.events("resized")[0]
        self.assertEqual((event["effective_batch_size_before"], event["effective_batch_size"]), (24, 20))
        first = (event["step"] - 9) * 24 + 1  # an epoch has 9 batches
        self.assertEqual((event["epoch"], event["sample"]), (1, first - 1))
        self.assertIn(f"from batch {event['step'] + 1} (sample {first} of epoch 2) on, where a batch has 20 samples instead of 24",
                      result.output)
        samples, step = logged_samples(changed.folder), event["step"]
        self.assertEqual({len(samples[batch]) for batch in range(10, step + 1)}, {24})
        self.assertEqual({len(samples[batch]) for batch in range(step + 1, step + 3)}, {20})
        # The second epoch has the samples of the first one, each once.
        epoch = [value for batch in range(1, 10) for value in samples[batch]]
        later = [value for batch in range(10, 25) for value in samples[batch]]
        self.assertEqual(sorted(later[:len(epoch)]), sorted(epoch))


class Refusals(Elastic):
    def test_what_cannot_be_resized_goes_on_undisturbed(self):
        launched = self.start("refused", slots=2, model="cnn", virtual=4, batches=20, hold=(HOLD,))
        launched.wait_for_batch(HOLD)
        number = launched.id()
        for slots, why in ((5, "virtual_ranks"), (30, "global_batch_size: must be at least resources.slots_per_trial")):
            said = launched.task("resize", number, "--slots", slots, code=2)
            self.assertIn(f"task {number} keeps 2 slots: ", said)
            self.assertIn(why, said)
        self.assertIn(f"task {number} has 2 slots", launched.task("resize", number, "--slots", 2))
        shown = json.loads(launched.task("show", number, "--json"))
        self.assertEqual((shown["state"], shown["slots"], shown["resize"]), ("running", 2, None))
        self.assertIn("hyperparameters.global_batch_size", shown["resize_refused"])
        self.assertIn("refused     another number of slots: ", launched.task("show", number))
        launched.let_go(HOLD)
        result = launched.end()
        self.assertEqual(len(launched.events("attempt_started")), 1)
        self.assertEqual([event["to"] for event in launched.events("resize_refused")], [5, 30])
        self.assertIn("dtrain task resize to 5 slots is refused, and the run keeps 2 slots: ", result.output)
        said = launched.task("resize", number, "--slots", 3)
        self.assertIn("has already ended: done", said)
        self.assertIn("--continue", said)

    def test_what_is_paused_or_waits_is_placed_with_the_new_number(self):
        launched = self.start("paused", slots=2, model="plain", batches=24, hold=(HOLD,))
        launched.wait_for_batch(HOLD)
        number = launched.id()
        launched.task("pause", number)
        wait_until(lambda: launched.events("yields"), "the order to yield")
        launched.let_go(HOLD)
        wait_until(lambda: json.loads(launched.task("show", number, "--json"))["state"] == "paused", "the pause")
        self.assertIn(f"task {number} waits for 1 slot", launched.task("resize", number, "--slots", 1))
        self.assertEqual(json.loads(launched.task("show", number, "--json"))["slots"], 1)
        launched.task("activate", number)
        self.check_change(launched, launched.end(), 2, 1)

    def test_a_number_with_which_the_ranks_fail_is_given_up(self):
        whole = self.undisturbed("whole", slots=2, model="cnn", batches=24)
        changed = self.start("changed", slots=2, model="cnn", batches=24, hold=(HOLD,), hyperparameters={"most_ranks": 2})
        changed.resize(HOLD, 3)
        result = changed.end()
        self.assertIn("dtrain task resize to 3 slots has failed, and the run goes on with 2 slots: ", result.output)
        self.assertEqual(changed.events("resize_refused")[0]["from"], 2)
        self.check_samples(changed, whole)
        self.assertEqual(differences(left(whole.run_dir), left(changed.run_dir)), [])


class Queue(Elastic):
    """Four slots for all launches."""

    def setUp(self):
        super().setUp()
        self.cluster = self.work.path / "cluster.yaml"
        self.cluster.write_text("agents: [{id: here, host: localhost, slots: 4, slot_type: cpu}]\n"
                                "scheduler: {preemption: true, grow_after: 0.2}\n")

    def queue(self, name, **content):
        return self.start(name, options=("--cluster", self.cluster), **content)

    def shown(self, launched):
        return json.loads(launched.task("show", launched.id(), "--json"))

    def test_three_of_four_slots_go_to_a_task_of_higher_priority_and_come_back(self):
        whole = self.undisturbed("whole", slots=2, model="cnn", virtual=4)
        low = self.queue("low", slots=4, model="cnn", virtual=4, hold=(7, HOLD, 22), resources={"elastic": {"min": 1}, "priority": 60})
        low.wait_for_batch(7)
        self.assertEqual((self.shown(low)["slots"], self.shown(low)["elastic"]), (4, {"min": 1, "max": 4}))
        high = self.queue("high", slots=3, model="plain", batches=20, hold=(HOLD,), resources={"priority": 10})
        wait_until(lambda: "shrinking for task" in low.log.read_text(), "the order to shrink")
        self.assertIn("saves and makes room", high.log.read_text())
        low.let_go(7)
        high.wait_for_batch(HOLD)
        low.wait_for_batch(HOLD)
        claims = [self.shown(task)["claim"][0]["slots"] for task in (low, high)]
        self.assertEqual([len(slots) for slots in claims], [1, 3])
        self.assertEqual(sorted(claims[0] + claims[1]), [0, 1, 2, 3])
        self.assertIn("1 of 1..4 slots", low.task("show", low.id()))
        high.let_go(HOLD)
        high.end()
        wait_until(lambda: "growing to 4 slots" in low.log.read_text(), "the order to grow")
        low.let_go(HOLD)
        low.wait_for_batch(22)
        self.assertEqual(self.shown(low)["slots"], 4)
        low.let_go(22)
        result = low.end()
        self.assertEqual([(event["from"], event["to"]) for event in low.events("resized")], [(4, 1), (1, 4)])
        self.assertIn(f"shrinking for task {high.id()} (elastic): the run goes on with 1 slot instead of 4, from batch ", result.output)
        self.assertIn("growing: the run goes on with 4 slots instead of 1, from batch ", result.output)
        self.check_samples(low, whole)
        self.assertEqual(differences(left(whole.run_dir), left(low.run_dir)), [])

    def test_starts_with_the_slots_that_are_free(self):
        first = self.queue("first", slots=3, model="plain", batches=20, hold=(HOLD,))
        first.wait_for_batch(HOLD)
        second = self.queue("second", slots=4, model="plain", batches=20, resources={"elastic": {"min": 1}})
        second.end()
        self.assertEqual(self.shown(second)["slots"], 1)
        self.assertEqual(json.loads((second.run_dir / "plan.json").read_text())["world_size"], 1)
        self.assertEqual(second.events("resized"), [])
        first.let_go(HOLD)
        first.end()

    def test_is_refused_where_nothing_changes_the_number(self):
        folder = self.work.path / "refused"
        folder.mkdir()
        file = write_experiment(folder / "experiment.yaml", **sections(folder=folder, slots=2, model="plain",
                                                                       resources={"elastic": {"min": 1}}))
        pods = {"PET_NNODES": "1:2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1",
                "PET_MASTER_PORT": "29400"}
        launch, program = [BUILD.program("dtrain"), "launch", file], [BUILD.program("virtual_trial"), file]
        for command, variables, why in ((launch, {}, "has no effect with resources.cores_per_slot: auto"),
                                        (launch, pods, "PET_NNODES=1:2 says already how many hosts may train"), (program, {}, "is for `dtrain launch`")):
            with self.subTest(why=why):
                result = run([*map(str, command)], folder, **variables).expect(2)
                self.assertRegex(result.output, f"{file}:[0-9]+: resources.elastic: {why}")


if __name__ == "__main__":
    main("virtual_trial")
