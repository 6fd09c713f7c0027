"""Several models, losses and optimizer steps in a batch, each against one process of plain PyTorch (models_trial.cpp).

    several_models.py BIN_FOLDER [TestClass[.test] ...]

Same initial weights, same batches, float64, 1, 2 and 3 ranks, replicated and sharded updates. Compared is each
parameter's relative L2 norm.
"""
import os
import pathlib
import shutil

import torch
import torch.nn.functional as F
from torch import nn

import parity_model
from harness import BUILD, WorkplaceTest, launch, main, overrides, run, write_experiment
from optimization_parity import KINDS, schedulers

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BATCHES = 100
SAMPLES = 12  # of all ranks
LIMIT = 1e-10
ADAM = {"kind": "adam", "lr": 2e-3}
WAYS = [(1, False), (2, True), (3, False), (3, True)]


def make_models(twins=False):
    make_discriminator = lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
    generator = make_discriminator() if twins else nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12))
    discriminator = make_discriminator()
    return {"generator": generator.double(), "discriminator": discriminator.double()}


def initial_weights(twins=False, seed=3):
    torch.manual_seed(seed)
    return {f"{model}.{name}": tensor.clone() for model, module in make_models(twins).items()
            for name, tensor in module.state_dict().items()}


def make_batches(batches, ranks, counts=None):
    """The same samples for every number of ranks."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(batches, SAMPLES, 12, generator=generator, dtype=torch.float64) + 0.5
    z = torch.randn(batches, SAMPLES, 8, generator=generator, dtype=torch.float64)
    return {"x": x.reshape(batches, ranks, SAMPLES // ranks, 12), "z": z.reshape(batches, ranks, SAMPLES // ranks, 8),
            "counts": torch.tensor(counts or [batches] * ranks)}


def loss_of(scores, target):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


class Plain:
    """One process of PyTorch that does what hyperparameters say."""

    def __init__(self, settings, weights):
        self.settings = settings
        self.models = make_models(settings["recipe"] == "twins")
        for name, module in self.models.items():
            module.load_state_dict({key.split(".", 1)[1]: value for key, value in weights.items()
                                    if key.startswith(name + ".")})
        self.optimizers = {name: self.make_optimizer(name) for name in self.models if name in settings}
        self.schedules = {name: self.make_schedule(name) for name in self.optimizers if "schedule" in settings[name]}
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(settings.get("ema", 0))
        self.averages = {name: torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=average)
                         for name, module in self.models.items()}

    def make_optimizer(self, name):
        settings = dict(self.settings[name])
        kind = KINDS[settings.pop("kind")]
        settings.pop("schedule", None)
        groups = []
        parameters = dict(self.models[name].named_parameters())
        for group in settings.pop("groups", []):
            suffix = group["match"].lstrip("*")
            mine = [key for key in parameters if key.endswith(suffix)]
            groups.append({"params": [parameters.pop(key) for key in mine], **{k: v for k, v in group.items() if k != "match"}})
        return kind([{"params": list(parameters.values())}, *groups], **settings)

    def make_schedule(self, name):
        make, arguments = schedulers(*self.settings[name]["schedule"])
        return make(self.optimizers[name], *arguments)

    def step(self, name):
        own = [group for group in self.optimizers[name].param_groups if "max_gradient_norm" in group]
        for group in own:
            nn.utils.clip_grad_norm_(group["params"], group["max_gradient_norm"])
        if self.settings.get("clip"):
            clipped = {id(p) for group in own for p in group["params"]}
            others = [p for p in self.models[name].parameters() if id(p) not in clipped]
            nn.utils.clip_grad_norm_(others, self.settings["clip"])
        self.optimizers[name].step()
        self.averages[name].update_parameters(self.models[name])
        for module in self.models.values():
            module.zero_grad(set_to_none=True)

    def end_batch(self):
        for schedule in self.schedules.values():
            schedule.step()

    def alternate(self, number, x, z):
        generator, score = self.models["generator"], self.models["discriminator"]
        fake = generator(z)
        (loss_of(score(x), 1) + loss_of(score(fake.detach()), 0)).backward()
        self.step("discriminator")
        loss_of(score(fake), 1).backward()
        self.step("generator")
        self.end_batch()

    def joint(self, number, x, z):
        """A window of several batches; the gradients of one model are kept from those of the other."""
        generator, score = self.models["generator"], self.models["discriminator"]
        k = self.settings.get("k", 1)
        fake = generator(z)
        first = (loss_of(score(x), 1) + loss_of(score(fake.detach()), 0)) / k
        second = loss_of(score(fake), 1) / k
        first.backward(inputs=list(score.parameters()), retain_graph=True)
        second.backward(inputs=list(generator.parameters()))
        if number % k == 0:
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.end_batch()

    def twins(self, number, x, z):
        k = self.settings.get("k", 1)
        for name, target in (("generator", 0), ("discriminator", 1)):
            (loss_of(self.models[name](x), target) / k).backward()
        if number % k == 0:
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    def critic(self, number, x, z):
        generator, score = self.models["generator"], self.models["discriminator"]
        fake = generator(z)
        between = ((x + fake.detach()) / 2).requires_grad_()
        slope = torch.autograd.grad(score(between).sum(), between, create_graph=True)[0]
        penalty = (slope.norm(2, 1) - 1).pow(2).mean()
        (score(fake.detach()).mean() - score(x).mean() + 10 * penalty).backward()
        self.step("discriminator")
        if number % self.settings["period"] == 0:
            (-score(fake).mean()).backward()
            self.step("generator")
        self.end_batch()

    def one(self, number, x, z):
        score = self.models["discriminator"]
        frozen = self.settings.get("freezes") and (number <= 30 or number > 60)
        for parameter in score[0].parameters():
            parameter.requires_grad_(not frozen)
        scores = score(x)
        k = self.settings.get("k", 1)
        ((loss_of(scores, 1) + (scores - 0.5).abs().mean()) / k).backward()
        if number % k == 0:
            self.step("discriminator")
            self.end_batch()

    def train(self, batches):
        recipe = {"gan": self.alternate, "joint": self.joint, "wgan": self.critic, "one": self.one,
                  "twins": self.twins}[self.settings["recipe"]]
        counts = batches["counts"].tolist()
        for index in range(batches["x"].shape[0]):
            there = [rank for rank, count in enumerate(counts) if index < count]
            x = torch.cat([batches["x"][index, rank] for rank in there])
            z = torch.cat([batches["z"][index, rank] for rank in there])
            recipe(index + 1, x, z)
        return self.state_of(self.models), self.state_of({name: average.module for name, average in self.averages.items()})

    def state_of(self, models):
        one = self.settings["recipe"] == "one"
        return {name if one else f"{model}.{name}": tensor.detach().clone() for model, module in models.items()
                if not one or model == "discriminator" for name, tensor in module.state_dict().items()}


class ModelsTest(WorkplaceTest):
    def experiment(self, settings, ranks, sharded=False, batches=BATCHES, counts=None, optimizations=(), **sections):
        folder = self.work.new_run()
        folder.mkdir()
        weights = initial_weights(settings["recipe"] == "twins")
        data = make_batches(batches, ranks, counts)
        if settings["recipe"] == "one":
            initial = {name.removeprefix("discriminator."): tensor for name, tensor in weights.items() if name[0] == "d"}
        else:
            initial = weights
        parity_model.save(initial, folder / "initial.safetensors")
        parity_model.save(data, folder / "batches.safetensors")
        hyperparameters = {key: value for key, value in settings.items() if key not in ("ema", "k")}
        sections.setdefault("searcher", {"max_length": {"epochs": 1}})
        sections.setdefault("data", {"file": "batches.safetensors"})
        file = write_experiment(
            folder / "experiment.yaml", name="models", entrypoint=BUILD.program("models_trial"),
            hyperparameters={"global_batch_size": SAMPLES, **hyperparameters}, resources={"slots_per_trial": ranks},
            optimizations={"aggregation_frequency": settings.get("k", 1), "sharded_optimizer": sharded,
                           "operators": "default", "memory_format": "contiguous", "ema": settings.get("ema", 0),
                           **dict(optimizations)},
            initial_weights="initial.safetensors", **sections)
        return file, folder, weights, data

    def launch(self, settings, ranks, code=0, **more):
        file, folder, _, _ = self.experiment(settings, ranks, **more)
        return launch(BUILD, file, folder / "run").expect(code)

    def compare(self, settings, ways=tuple(WAYS), counts=None, mpi=False, limit=LIMIT, **more):
        """In each way; prints the worst difference."""
        worst = 0.0
        for ranks, sharded in ways:
            with self.subTest(ranks=ranks, sharded=sharded):
                file, folder, weights, data = self.experiment(settings, ranks, sharded, counts=counts, **more)
                command = [BUILD.program("dtrain"), "launch", str(file), "--run-dir", str(folder / "run")]
                if mpi:
                    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
                    command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
                               BUILD.program("models_trial"), str(file), "--run-dir", str(folder / "run")]
                result = run(command, folder / "run").expect(0)
                expected, averages = Plain(settings, weights).train(data)
                got = parity_model.load(result.weights_file)
                if "ema" in settings:
                    expected, averages = averages, expected
                    without = parity_model.load(result.weights_file.with_name("model_without_ema.safetensors"))
                    worst = max(worst, parity_model.worst_difference(without, averages)[0])
                difference, name = parity_model.worst_difference(got, expected)
                worst = max(worst, difference)
                self.assertLess(difference, limit, name)
        print(f"{self.id().split('.')[-1]}: worst relative difference {worst:.2e}", flush=True)


GAN = {"recipe": "gan", "generator": {**ADAM, "schedule": ["exponential", 0.98]},
       "discriminator": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01,
                         "groups": [{"match": "*.bias", "weight_decay": 0.0}]}}


class Recipes(ModelsTest):
    def test_a_gan_that_steps_its_models_in_turn(self):
        self.compare(GAN)

    def test_a_gan_over_a_backend_without_common_memory(self):
        if not shutil.which("mpirun"):
            self.skipTest("there is no mpirun")
        self.compare(GAN, ways=[(3, True)], mpi=True, communication={"backend": "mpi"})

    def test_groups_of_a_model_that_are_clipped_by_themselves(self):
        limited = {"kind": "sgd", "lr": 0.05, "groups": [{"match": "*.bias", "max_gradient_norm": 0.05}]}
        self.compare({**GAN, "discriminator": limited, "clip": 0.2}, ways=[(1, False), (2, True), (3, False)])

    def test_a_gan_whose_ranks_have_other_numbers_of_batches(self):
        self.compare(GAN, ways=[(2, False)], counts=[100, 80])
        self.compare(GAN, ways=[(3, True)], counts=[90, 100, 0])

    def test_both_models_step_after_four_batches(self):
        self.compare({"recipe": "joint", "k": 4, "generator": ADAM, "discriminator": ADAM})

    def test_both_models_step_at_the_end_of_the_batch(self):
        for generator_first in (False, True):
            self.compare({"recipe": "joint", "generator_first": generator_first, "generator": ADAM, "discriminator": ADAM},
                         ways=[(1, False), (2, False), (3, True)])

    def test_two_models_of_the_same_form(self):
        """Their gradients have the same sizes: none is taken for the other's."""
        for k in (1, 2):
            self.compare({"recipe": "twins", "k": k, "generator": ADAM, "discriminator": {"kind": "sgd", "lr": 0.05}},
                         ways=[(1, False), (2, True), (3, False)])

    def test_a_critic_with_gradient_penalty_and_optimizers_of_two_kinds(self):
        self.compare({"recipe": "wgan", "period": 3, "clip": 0.5, "ema": 0.9,
                      "generator": {"kind": "sgd", "lr": 0.02, "momentum": 0.9},
                      "discriminator": {"kind": "rmsprop", "lr": 1e-3}})

    def test_two_losses_in_two_calls(self):
        self.compare({"recipe": "one", "k": 2, "discriminator": ADAM})

    def test_a_layer_that_is_frozen_in_some_batches(self):
        self.compare({"recipe": "one", "freezes": True, "discriminator": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}})

    def test_a_compressor_sends_all_buckets(self):
        """No exact parity: it must train all the same, and the same on all ranks."""
        result = self.launch(GAN, 2, optimizations={"gradient_compression": {"kind": "topk", "ratio": 0.5}})
        expected, _ = Plain(GAN, initial_weights()).train(make_batches(BATCHES, 2))
        difference, name = parity_model.worst_difference(parity_model.load(result.weights_file), expected)
        self.assertLess(difference, 0.02, name)

    def test_local_steps_of_one_rank_are_those_of_plain_training(self):
        self.compare(GAN, ways=[(1, False)], optimizations={"local_sgd": {"inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}},
                     limit=1e-9)


class Resuming(ModelsTest):
    def test_a_run_that_goes_on_has_the_bits_of_one_that_does_not_stop(self):
        settings = {"recipe": "wgan", "period": 7, "ema": 0.9, "generator": GAN["generator"],
                    "discriminator": {"kind": "rmsprop", "lr": 1e-3}}
        for ranks, sharded in ((1, False), (2, True), (3, False)):
            with self.subTest(ranks=ranks, sharded=sharded):
                whole = self.launch(settings, ranks, sharded=sharded, searcher={"max_length": {"batches": 24}})
                # The generator has not stepped by the first stop.
                cut = self.launch(settings, ranks, sharded=sharded, searcher={"max_length": {"batches": 5}})
                for length in (11, 24):
                    command = [BUILD.program("dtrain"), "launch", "--continue", str(cut.run_dir),
                               *overrides([f"searcher.max_length.batches={length}"])]
                    cut = run(command, cut.run_dir).expect(0)
                expected, got = parity_model.load(whole.weights_file), parity_model.load(cut.weights_file)
                for name, tensor in expected.items():
                    self.assertTrue(torch.equal(tensor, got[name]), name)


class Example(ModelsTest):
    def test_the_generator_of_the_example_comes_closer_to_the_images(self):
        """Of a few hundred batches: the mean pixel of what it makes, which begins at mid-grey, is that of the images."""
        for ranks in (1, 3):
            with self.subTest(ranks):
                folder = self.work.new_run()
                settings = ["searcher.max_length.epochs=null", "searcher.max_length.batches=300", f"resources.slots_per_trial={ranks}",
                            "min_validation_period.epochs=null", "min_validation_period.batches=0", "hyperparameters.learning_rate=0.001",
                            "optimizations.ema=0"]
                result = launch(BUILD, SOURCE / "examples" / "gan" / "gan.yaml", folder, settings).expect(0)
                header, pixels = (folder / "checkpoints" / "final" / "samples.pgm").read_bytes().split(b"255\n", 1)
                self.assertEqual(header, b"P5 224 224 ")
                self.assertEqual(len(pixels), 224 * 224)
                self.assertLess(abs(sum(pixels) / len(pixels) - 73), 25)
                names = parity_model.load(result.weights_file)
                self.assertIn("generator.0.weight", names)
                self.assertIn("discriminator.0.weight", names)
                from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
                events = EventAccumulator(str(folder / "tensorboard" / "metrics"), size_guidance={"images": 0}).Reload()
                self.assertEqual([(e.step, e.width, e.height) for e in events.Images("generated")],
                                 [(batch, 112, 112) for batch in (1, 101, 201)])


class Mistakes(ModelsTest):
    def check(self, message, ranks=1, settings=GAN, **more):
        result = self.launch({**settings, **more.pop("hyperparameters", {})}, ranks, code=1, batches=8, **more)
        self.assertIn(message, result.output)

    def test_calls_that_do_not_fit_are_named(self):
        one = {"recipe": "one", "discriminator": ADAM}
        self.check("context.step() was called by a trial with one model", settings=one, hyperparameters={"fault": "step"})
        self.check("pass .more_follows = true", settings=one, hyperparameters={"fault": "twice"})
        self.check("context.backward() has not been called since the last step", hyperparameters={"fault": "step_first"})
        self.check("context.backward() was called for the model 'critic'", hyperparameters={"fault": "unknown"})
        joint = {**GAN, "recipe": "joint"}
        self.check("modified by an inplace operation", settings=joint, hyperparameters={"fault": "old_graph"})
        self.check("the model 'discriminator' has no optimizer", hyperparameters={"fault": "no_optimizer"})
        self.check("context.step() needs optimizations.aggregation_frequency: 1, and it is 2",
                   optimizations={"aggregation_frequency": 2})

    def test_ranks_that_step_other_models_are_named(self):
        """In the first batches, in which ranks compare what they do."""
        result = self.launch({**GAN, "fault": "other_model", "fault_batch": 2}, 2, code=1, batches=8)
        self.assertRegex(result.output, "another rank takes an optimizer step of '(generator', and this rank one of 'discriminator|"
                                        "discriminator', and this rank one of 'generator)' alone")  # either rank may be first
        self.check("another rank takes an optimizer step of 'generator', and this rank has ended its batch", ranks=2,
                   hyperparameters={"fault": "step_missing", "fault_batch": 1})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
