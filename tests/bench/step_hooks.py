"""What the records of an unchanged script cost a step: the hooks that find steps, and the record of each.

    step_hooks.py BIN [--json] [--turns N]

A script under `dtrain run --as-is` whose step has next to nothing to compute runs with its hooks and without them, in turns of 200 steps
within one process. `share` is the difference over a step of 2 ms (goal: at most 1%).
"""
import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch

STEPS, STEP_US = 200, 2000


def turn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: torch.utils.data.DataLoader) -> float:
    """Microseconds of a step."""
    began = time.perf_counter()
    for (inputs,) in loader:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) * 1e6 / STEPS


def script(out: str, turns: int) -> None:
    from dtrain.step_hooks import StepHooks
    hooks = next(one for one in gc.get_objects() if isinstance(one, StepHooks))
    thread = hooks._thread
    model = torch.nn.Linear(4, 1)
    parts = (model, torch.optim.SGD(model.parameters(), lr=1e-3),
             torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(STEPS, 4))))
    times: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(turns):
        for which in times:
            hooks._thread = thread if which == "on" else -1
            times[which].append(turn(*parts))
    hooks._thread = thread
    on, off = (statistics.median(times[which]) for which in ("on", "off"))
    Path(out).write_text(json.dumps({"off_us": round(off, 2), "on_us": round(on, 2), "hooks_us": round(on - off, 2),
                                     "share": round((on - off) / STEP_US, 5)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python"), str(Path(__file__).resolve().parents[1] / "integration")]
    import harness
    import package
    build = harness.Build(options.bin, trial="dtrain")
    work = harness.Workplace("step_hooks")
    try:
        folder, out = work.new_run(), work.path / "out.json"
        harness.run([build.program("dtrain"), "run", "--as-is", "--slots", "1", "--run-dir", folder, __file__, "--script", out,
                     str(options.turns)], folder, **package.of(build)).expect(0)
        found = json.loads(out.read_text())
    finally:
        work.remove()
    print(json.dumps(found) if options.json else f"hooks and records take {found['hooks_us']} us a step: {found['share']:.2%} of 2 ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        script(sys.argv[2], int(sys.argv[3]))
    else:
        main()
