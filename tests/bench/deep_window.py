"""What a deep window costs: steps of a 25M-parameter MLP on two ranks, traced and not, in turns of one run.

    deep_window.py BIN [--json] [--seconds 45]

A signal asks for a window of ten steps again and again; after the traces are written as many steps go untraced. Steps while
a trace is being written count as neither. The pause is what passes between the last traced step and the next one, beyond
what passes between two untraced steps: libtorch's profiler is stopped there.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import Build, environment, wait_until, write_experiment  # noqa: E402


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def events(run_dir, name):
    return [line for line in lines(run_dir / "events.jsonl") if line["event"] == name]


def run(build, scratch, seconds):
    run_dir = scratch / "run"
    file = write_experiment(scratch / "e.yaml", name="deep-window", entrypoint=build.program("synthetic"),
                            hyperparameters={"global_batch_size": 64, "features": 2048, "width": 2048, "depth": 6,
                                             "classes": 2048},
                            resources={"slots_per_trial": 2}, searcher={"max_length": {"batches": 10**6}},
                            optimizations={"sharded_optimizer": False}, scheduling_unit=20, data={"samples": 2000})
    process = subprocess.Popen([build.program("dtrain"), "launch", file, "--run-dir", run_dir], env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    metrics = run_dir / "metrics.jsonl"

    def batches():
        return max((line["batch"] for line in lines(metrics)), default=0) if metrics.is_file() else 0

    try:
        wait_until(lambda: batches() >= 20 or process.poll() is not None, "the first metrics")
        rank_0 = next(event["pid"] for event in events(run_dir, "rank_started") if event["rank"] == 0)
        end = time.monotonic() + seconds
        windows = 0
        while time.monotonic() < end:
            os.kill(rank_0, signal.SIGUSR2)
            windows += 1
            wait_until(lambda: len(events(run_dir, "trace_written")) == 2 * windows or process.poll() is not None,
                       "the traces")
            before = batches()
            wait_until(lambda: batches() > before or process.poll() is not None, "untraced steps")
    finally:
        process.terminate()
        process.wait()
    return run_dir


def measure(run_dir):
    windows = [(event["first_batch"], event["last_batch"]) for event in events(run_dir, "trace_scheduled")]
    result = {"windows": len(windows)}
    bytes_, operators = [], []
    for event in events(run_dir, "trace_written"):
        bytes_.append(event["bytes"])
        operators.append(event["operators"])
    off, on, pauses, gaps = [], [], [], []
    for rank in range(2):
        dump = lines(run_dir / "profile" / f"rank-{rank:04}.jsonl")
        wall_offset = dump[0]["clock"]["offset_ns"]
        steps = {line["batch"]: line for line in dump if line["record"] == "step"}
        written = sorted(event["time"] for event in events(run_dir, "trace_written"))
        written_ns = [int((time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone) * 1e9)
                      + int(text[20:26]) * 1000 - wall_offset for text in written]
        last_written = [max(written_ns[2 * i:2 * i + 2]) for i in range(len(windows))]
        for batch, step in steps.items():
            following = steps.get(batch + 1)
            gap = following["start_ns"] - step["start_ns"] - step["wall_ns"] if following else None
            window = next((i for i, (first, last) in enumerate(windows) if first <= batch <= last), None)
            if window is not None:
                if batch > windows[window][0]:  # the first one sets the profiler's buffers up
                    on.append(step["wall_ns"])
                if batch == windows[window][1] and gap is not None:
                    pauses.append(gap)
                continue
            busy = any(steps[last]["start_ns"] <= step["start_ns"] <= end for (_, last), end in zip(windows, last_written)
                       if last in steps)
            if batch > 20 and not busy:
                off.append(step["wall_ns"])
                if gap is not None:
                    gaps.append(gap)
    result.update(off_ms=statistics.median(off) / 1e6, on_ms=statistics.median(on) / 1e6, off_steps=len(off),
                  on_steps=len(on), pause_ms=(statistics.median(pauses) - statistics.median(gaps)) / 1e6,
                  trace_bytes=int(statistics.median(bytes_)), operators_a_step=statistics.median(operators) / 9)
    result["overhead"] = result["on_ms"] / result["off_ms"] - 1
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=45)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtrain-deep-window-") as scratch:
        result = measure(run(Build(arguments.bin, "synthetic"), Path(scratch), arguments.seconds))
    if arguments.json:
        print(json.dumps({key: round(value, 4) for key, value in result.items()}))
        return
    print(f"a step of the 25M MLP: {result['off_ms']:.1f} ms, traced {result['on_ms']:.1f} ms ({result['overhead']:+.1%}; "
          f"{result['off_steps']} and {result['on_steps']} steps); closing a window: {result['pause_ms']:.1f} ms; "
          f"{result['trace_bytes'] / 1e3:.0f} KB for ten steps of {result['operators_a_step']:.0f} operators")


if __name__ == "__main__":
    main()
