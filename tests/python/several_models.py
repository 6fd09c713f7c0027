"""A GAN in Python against the same in one process of plain PyTorch.

    several_models.py BIN_FOLDER
"""
from pathlib import Path

import forked
import harness
import parity_model

HERE = Path(__file__).resolve().parent


def plain(path):
    import gan_trial

    parity_model.save(gan_trial.train_plain(), path)


class SeveralModels(harness.WorkplaceTest):
    def test_a_gan(self):
        expected_file = self.work.path / "plain.safetensors"
        forked.in_a_fork(plain, expected_file)
        expected = parity_model.load(expected_file)
        for ranks, sharded in ((1, False), (2, True), (3, False)):
            with self.subTest(ranks=ranks):
                folder = self.work.new_run()
                folder.mkdir()
                experiment = harness.write_experiment(
                    folder / "gan.yaml", name="gan", entrypoint="gan_trial.py:Gan",
                    hyperparameters={"global_batch_size": 12}, resources={"slots_per_trial": ranks}, searcher={"max_length": {"epochs": 1}},
                    optimizations={"sharded_optimizer": sharded})
                result = forked.run(str(HERE / "gan_trial.py:Gan"), folder, experiment, ranks).expect(0)
                difference, name = forked.in_a_fork(parity_model.worst_difference, parity_model.load(result.weights_file),
                                                    expected)
                self.assertLess(difference, 1e-9, name)
                from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
                folder = result.run_dir / "tensorboard" / "metrics"
                events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
                self.assertEqual([e.step for e in events.Images("generated")], list(range(1, 21)))


if __name__ == "__main__":
    forked.main()
