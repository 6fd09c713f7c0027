"""Fashion-MNIST over two hosts with `dtrain launch` and launcher: mpi, against ranks of one host. Runs inside
`two_hosts.sh with 1gbit,100mbit`: of the two links the first is the faster one.

    cluster_training.py BIN_FOLDER
"""
import sys

import parity_model
from cluster_bed import BED, HOSTS, ClusterTest, on_host, profiles
from ddp_parity import SGD, experiment
from harness import SOURCE, launch, main, overrides, run

FASHION = SOURCE / "configs" / "fashion_mnist.yaml"
FOUR = ["resources.slots_per_trial=4", "hyperparameters.global_batch_size=256", "communication.timeout=120"]
LONG = 600  # seconds, only against hangs: an epoch of four ranks on two busy cores
SHORT = [*FOUR, "searcher.max_length.batches=20", "min_validation_period.batches=20"]


class FashionMnist(ClusterTest):
    """Sums are rounded in another order than on one host: a host's ranks first."""

    def over_hosts(self, file, sets=(), network="auto", **more):
        result = self.launch(self.cluster(network=network), file, sets, **more).expect(0)
        self.assertEqual(result.json("plan.json")["communication"], {"backend": "hierarchical", "hosts": 2})
        return result

    def check_close(self, ours, theirs, limit):
        weights = [parity_model.load(one.weights_file) for one in (ours, theirs)]
        difference, name = parity_model.worst_difference(*weights)
        print(f"  {self._testMethodName}: {difference:.1e} ({name}), limit {limit}", flush=True)
        self.assertLess(difference, limit)

    def test_20_steps_as_on_one_host(self):
        here = launch(self.build, FASHION, self.work.new_run(), SHORT).expect(0)
        self.check_close(self.over_hosts(FASHION, SHORT), here, 1e-5)
        plain = [BED, "mpirun", HOSTS, "--host", "nodea:2,nodeb:2", "-np", "4", "-x",
                 "DTRAIN_NETWORK_INTERFACE=10.71.1.0/24", self.build.program("fashion_mnist"), str(FASHION),
                 *overrides(SHORT)]
        run_dir = self.work.new_run()
        self.check_close(run([*plain, "--run-dir", str(run_dir)], run_dir).expect(0), here, 1e-5)

    def test_20_steps_in_double_precision(self):
        case = {"k": 1, "dtype": "float64", "clip": 0, "average": True, "fusion": 64, "optimizer": SGD}
        parity_model.save(parity_model.initial_weights("float64"), self.work.path / "initial.safetensors")
        batches = parity_model.make_batches("float64", 20, 4, 4)
        parity_model.save(batches, self.work.path / "batches.safetensors")
        file = experiment(case, self.build, self.work.path / "parity.yaml", "batches.safetensors", 4)
        here = launch(self.build, file, self.work.new_run()).expect(0)
        self.check_close(self.over_hosts(file), here, 1e-12)

    def test_the_accuracy_at_the_end_and_all_that_was_recorded(self):
        # At the file's own learning rate the end of the first epoch is so unsteady that another order of summing changes
        # the accuracy by up to half a point.
        sets = [*FOUR, "searcher.max_length.epochs=1", "hyperparameters.learning_rate=0.0005"]
        here = launch(self.build, FASHION, self.work.new_run(), sets, deadline=LONG).expect(0)
        result = self.over_hosts(FASHION, sets, deadline=LONG)
        accuracy = [one.metrics("validation")[-1]["metrics"]["accuracy"] for one in (here, result)]
        print(f"  accuracy on one host {accuracy[0]:.4f}, on two {accuracy[1]:.4f}", flush=True)
        self.assertLess(abs(accuracy[0] - accuracy[1]), 0.005)
        network = result.json("plan.json")["network"]
        self.assertIn("10.71.1.", str(network))
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertTrue(profiles(4) <= files, files)
        for agent in ("node-1", "node-2"):
            samples = [line for line in result.lines(f"profile/agent-{agent}.jsonl") if line["record"] == "system"]
            self.assertGreater(len(samples), 2)

    def test_hosts_that_do_not_share_the_runs_folder(self):
        shared = self.work.path / "runs"
        shared.mkdir()
        on_host("b", "mount", "-t", "tmpfs", "tmpfs", str(shared))
        try:
            result = self.over_hosts(FASHION, SHORT, run_dir=shared / "run")
        finally:
            on_host("b", "umount", str(shared))
        for rank in range(4):
            steps = [line for line in result.lines(f"profile/rank-000{rank}.jsonl") if line["record"] == "step"]
            self.assertEqual(len(steps), 20)
        self.assertIn("Host nodeb", result.output)


if __name__ == "__main__":
    if not HOSTS:
        sys.exit("cluster_training.py runs inside tests/harness/two_hosts.sh with 1gbit,100mbit")
    main()
