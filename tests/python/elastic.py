"""A trial in Python whose number of slots changes while it trains (`dtrain task resize`): the samples are those of a run that
nothing disturbs, and the weights differ from its weights by rounding.

    elastic.py BIN_FOLDER
"""
import importlib.util
from pathlib import Path

import package

import harness
import parity_model

HERE = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("runs", HERE.parent / "integration" / "elastic.py")
runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runs)


class PythonTrial(runs.Elastic):
    def setUp(self):
        super().setUp()
        self.EXTRA = package.of(harness.BUILD)

    def test_has_the_same_samples_and_differs_by_rounding(self):
        common = {"slots": 2, "model": "plain", "entrypoint": f"{HERE / 'elastic_trial.py'}:Elastic", "data": {}}
        whole = self.undisturbed("whole", **common)
        changed = self.start("changed", hold=(runs.HOLD,), **common)
        changed.resize(runs.HOLD, 3)
        self.check_change(changed, changed.end(), 2, 3)
        self.check_samples(changed, whole)
        files = [parity_model.load(one.run_dir / "checkpoints/final/model.safetensors") for one in (changed, whole)]
        difference, worst = parity_model.worst_difference(*files)
        print(f"Python from 2 to 3 slots: {worst} differs by {difference:.1e}", flush=True)
        self.assertLess(difference, 1e-6)


if __name__ == "__main__":
    harness.main()
