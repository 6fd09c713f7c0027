"""Sharded gradients (ZeRO-2): the memory that gradients take between steps, and the same bits as with whole gradients.

    sharded_gradients.py BIN_FOLDER [TestClass[.test] ...]

gradients_trial measures the resident part of its gradients' memory by mincore(). OneHost: one host, over shared memory and
over MPI. TwoHosts: four ranks on two hosts; runs inside `two_hosts.sh with RATE` and needs root.
"""
import os
import shutil
import unittest

from harness import BUILD, SOURCE, WorkplaceTest, launch, main, run, write_experiment

BED = str(SOURCE / "tests" / "harness" / "two_hosts.sh")
HOSTS = os.environ.get("TWO_HOSTS", "")
WIDTH, DEPTH = 517, 4  # 4.4 MB of gradients
BUCKETS = 3


def experiment(path, ranks, hyperparameters=(), optimizations=(), batches=12, **sections):
    return write_experiment(
        path, name="gradients", entrypoint=BUILD.program("gradients_trial"),
        hyperparameters={"global_batch_size": 5 * ranks, "width": WIDTH, "depth": DEPTH, **dict(hyperparameters)},
        resources={"slots_per_trial": ranks}, searcher={"max_length": {"batches": batches}}, scheduling_unit=1,
        optimizations={"sharded_optimizer": True, "tensor_fusion_threshold": 2, "tensor_fusion_cycle_time": 0,
                       **dict(optimizations)}, **sections)


def mpirun(ranks, run_dir, *arguments):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return run(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
                BUILD.program("gradients_trial"), *map(str, arguments)], run_dir)


class GradientsTest(WorkplaceTest):
    def folder(self, name):
        folder = self.work.path / name
        folder.mkdir()
        return folder

    def train(self, name, start, ranks, sharded, **more):
        """`start`: what runs an experiment file."""
        folder = self.folder(f"{name}-{ranks}-{str(sharded).lower()}")
        optimizations = {"sharded_gradients": sharded, **more.pop("optimizations", {})}
        return start(ranks, experiment(folder / "experiment.yaml", ranks, optimizations=optimizations, **more),
                     folder / "run").expect(0)

    def check_same(self, one, other):
        for name in ("model.safetensors", "model_without_ema.safetensors"):
            files = [result.weights_file.with_name(name) for result in (one, other)]
            if name == "model.safetensors" or files[0].exists():
                self.assertEqual(files[0].read_bytes(), files[1].read_bytes(), name)

    def check_memory(self, result, ranks, sharded, pages=4):
        """At most so many partial pages a bucket stay besides a rank's own part."""
        last = result.metrics("training")[-1]["metrics"]
        plan = result.json("plan.json")["strategy"]["gradients"]
        self.assertEqual(plan["sharded"], sharded)
        self.assertGreaterEqual(last["resident"] + 4096, plan["kept_bytes"])
        if not sharded:
            self.assertEqual(plan["kept_bytes"], plan["bytes"])
            self.assertGreaterEqual(last["resident"], last["bytes"])
            return
        part = plan["bytes"] / ranks
        rounding = pages * 4096 * (BUCKETS + 1) if ranks > 1 else 2 * 4096
        self.assertLessEqual(last["resident"], part + rounding)
        self.assertLessEqual(plan["kept_bytes"], part + rounding)
        print(f"{self.id().split('.')[-1]}: {ranks} ranks, {last['resident'] / last['bytes']:.3f} of the gradients' "
              f"{last['bytes'] / 2**20:.1f} MiB are resident between steps", flush=True)

    def compare(self, name, start, ranks, **more):
        whole, sharded = (self.train(name, start, ranks, sharded, **dict(more)) for sharded in (False, True))
        self.check_same(whole, sharded)
        self.check_memory(whole, ranks, False)
        self.check_memory(sharded, ranks, True)
        return sharded


def launched(_ranks, file, run_dir):
    return launch(BUILD, file, run_dir)


def over_mpi(ranks, file, run_dir):
    return mpirun(ranks, run_dir, file, "--run-dir", run_dir)


ALL = {"hyperparameters": {"side": True, "clip": 0.1}, "optimizations": {"ema": 0.9}}


class OneHost(GradientsTest):
    def test_over_shared_memory(self):
        for ranks in (2, 3):
            self.compare("shm", launched, ranks)

    def test_one_rank(self):
        whole, sharded = (self.train("one", launched, 1, sharded) for sharded in (False, True))
        self.check_same(whole, sharded)
        said = sharded.output + (sharded.run_dir / "logs" / "rank-0000.log").read_text()
        self.assertIn("optimizations.sharded_gradients: true has no effect with one rank", said)

    def test_it_also_shards_the_updates(self):
        result = self.train("auto", launched, 2, True, optimizations={"sharded_optimizer": "auto"})
        self.assertEqual(result.json("plan.json")["strategy"]["strategy"], "sharded")
        self.assertRegex(result.output + (result.run_dir / "logs" / "rank-0000.log").read_text(),
                         r"between steps a rank keeps [0-9.]+ MiB of its [0-9.]+ MiB of gradients")


@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
class Mpi(GradientsTest):
    MPI = {"communication": {"backend": "mpi"}}

    def test_over_mpi(self):
        for ranks in (2, 3, 4):
            self.compare("mpi", over_mpi, ranks, **self.MPI)

    def test_unused_parameters_clipping_and_an_average(self):
        self.compare("all", over_mpi, 3, **ALL, **self.MPI)

    def test_aggregation(self):
        more = {"optimizations": {"aggregation_frequency": 3}, "batches": 14}
        whole, sharded = (self.train("window", over_mpi, 2, sharded, **{**more, **self.MPI}) for sharded in (False, True))
        self.check_same(whole, sharded)  # the last batch opens a window: its gradients are whole

    def test_bf16(self):
        self.compare("bf16", over_mpi, 2, optimizations={"mixed_precision": "pure_bf16"}, **self.MPI)

    def test_going_on(self):
        for name, more in (("whole", {}), ("window", {"optimizations": {"aggregation_frequency": 4}})):
            whole = self.train(f"{name}-all", over_mpi, 2, True, **{**more, **self.MPI})
            short = self.train(name, over_mpi, 2, True, batches=6, **{**more, **self.MPI})
            longer = mpirun(2, short.run_dir, "--continue", short.run_dir, "--set", "searcher.max_length.batches=12")
            self.check_same(whole, longer.expect(0))

    def test_auto_takes_turns(self):
        result = self.train("auto", over_mpi, 2, "auto", batches=60, optimizations={"sharded_optimizer": True},
                            **self.MPI)
        gradients = result.json("plan.json")["strategy"]["gradients"]
        self.assertGreater(gradients["whole_ms"], 0)
        self.assertEqual(gradients["sharded"], gradients["sharded_ms"] <= 1.01 * gradients["whole_ms"])
        self.check_memory(result, 2, gradients["sharded"])
        whole = self.train("auto", over_mpi, 2, False, batches=60, **self.MPI)
        self.check_same(whole, result)


@unittest.skipUnless(HOSTS, "runs inside tests/harness/two_hosts.sh with RATE")
class TwoHosts(GradientsTest):
    ON_DISK = True

    @staticmethod
    def start(a, b):
        def start(ranks, file, run_dir):
            return run([BED, "mpirun", HOSTS, "--host", f"nodea:{a},nodeb:{b}", "-np", str(ranks), "-x",
                        "OMP_NUM_THREADS", BUILD.program("gradients_trial"), str(file), "--run-dir", str(run_dir)], run_dir)
        return start

    def test_two_ranks_a_host(self):
        result = self.compare("hierarchical", self.start(2, 2), 4)
        self.assertEqual(result.json("plan.json")["communication"], {"backend": "hierarchical", "hosts": 2})

    def test_over_mpi_alone(self):
        self.compare("mpi", self.start(2, 2), 4, communication={"backend": "mpi"})

    def test_two_ranks_and_one_with_all_there_is(self):
        self.compare("uneven", self.start(2, 1), 3, **ALL)


if __name__ == "__main__":
    main("gradients_trial")
