"""Writes the folder of a run that never was, in the format of docs/profile-format.md: some ranks on some hosts, with GPUs or
without, one rank slower than the others, outliers, a validation now and then, several attempts. The same arguments give the same
files."""
import json
import math
import random
from datetime import datetime, timedelta
from pathlib import Path

MS = 1_000_000
PERIOD = 500 * MS
START = 1_000_000 * MS
UNITS = {"net_throughput_sent": "bytes/s", "net_throughput_recv": "bytes/s", "disk_iops": "requests/s",
         "disk_throughput_read": "bytes/s", "disk_throughput_write": "bytes/s", "free_memory": "bytes",
         "cpu_util_simple": "percent", "io_wait": "percent", "cpu_util_per_core": "percent", "gpu_util": "percent",
         "gpu_free_memory": "bytes", "gpu_temperature": "celsius", "gpu_foreign_processes": "processes"}
PHASES = ("dataloader_next", "to_device", "train_batch", "train_batch.forward", "train_batch.backward",
          "allreduce_wait", "optimizer_step", "step_lr_schedulers", "from_device", "reduce_metrics", "callbacks",
          "checkpoint", "validation", "other")


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def phases_of(rng, batch, steps, slower, outlier, validation_ms):
    """Milliseconds of a step before the ranks wait for each other."""
    forward = rng.gauss(8, 0.3) * slower
    backward = rng.gauss(15, 0.5) * slower
    times = dict.fromkeys(PHASES, 0.0)
    times.update({"dataloader_next": max(0.05, rng.gauss(1.0, 0.4)) + (outlier if outlier else 0), "to_device": 0.2,
                  "train_batch.forward": forward, "train_batch.backward": backward, "optimizer_step": rng.gauss(3, 0.1),
                  "step_lr_schedulers": 0.01, "callbacks": 0.02, "other": 0.3})
    times["train_batch"] = forward + backward + 0.2
    if batch % 50 == 0 or batch == steps:
        times.update({"from_device": 0.1, "reduce_metrics": 0.6})
    if validation_ms and batch % (steps // 3) == 0:
        times["validation"] = validation_ms
    return times


def rank_steps(ranks, steps, rng, slow_rank, validation_ms):
    """For each batch the phases of all ranks; the quicker ones wait for the last."""
    outliers = {batch: rng.uniform(80, 200) for batch in rng.sample(range(5, steps), max(2, steps // 80))}
    for batch in range(1, steps + 1):
        late = rng.randrange(ranks)
        rows = [phases_of(rng, batch, steps, 1.25 if rank == slow_rank else 1.0,
                          outliers.get(batch) if rank == late else None, validation_ms) for rank in range(ranks)]
        busy = [sum(v for k, v in row.items() if "." not in k) for row in rows]
        for row, own in zip(rows, busy):
            row["allreduce_wait"] = 2.0 + max(busy) - own if ranks > 1 else 0.0
        yield batch, rows


def write_rank(folder, rank, ranks, host, rows, begin):
    header = {"record": "header", "schema": 1, "kind": "rank", "rank": rank, "world_size": ranks, "host": host,
              "agent": host, "pid": 100 + rank, "start_ns": START,
              "clock": {"monotonic_ns": START, "wall_ns": 1_795_000_000_000_000_000, "offset_ns": 0, "error_ns": 50},
              "versions": {"dtrain": "0.1.0"}}
    lines = [header, {"record": "part", "part": "initialization", "batch": 0, "start_ns": START, "end_ns": begin,
                      "duration_ns": begin - START}]
    now = begin
    for batch, row in rows:
        times = {name: int(row[name] * MS) for name in PHASES}
        wall = sum(v for k, v in times.items() if "." not in k)
        lines.append({"record": "loader", "batch": batch, "time_ns": now + times["dataloader_next"],
                      "queue_depth": batch % 3, "workers": 2, "fetch_ns": 3 * MS + batch % 7 * MS, "pinned": False})
        if ranks > 1:
            exposed = times["allreduce_wait"] // 2
            for bucket in range(2):
                started = now + times["dataloader_next"] + times["train_batch"] // (2 - bucket)
                took = exposed + (6 - 4 * bucket) * MS
                lines.append({"record": "collective", "batch": batch, "sequence": 2 * batch + bucket,
                              "operation": "all_reduce", "bucket": bucket, "bytes": 8_000_000 >> bucket,
                              "world_size": ranks, "enqueued_ns": started, "started_ns": started, "ended_ns": started + took,
                              "exposed_ns": exposed, "bus_bandwidth": round((8_000_000 >> bucket) / took * 1e9)})
        lines.append({"record": "scope", "batch": batch, "scope": "augment/crop", "calls": 4, "wall_ns": times["train_batch"] // 20,
                      "phases": {"train_batch": times["train_batch"] // 20, "train_batch.forward": times["train_batch"] // 20}})
        lines.append({"record": "scope", "batch": batch, "scope": "augment", "calls": 1, "wall_ns": times["train_batch"] // 10,
                      "phases": {"train_batch": times["train_batch"] // 10, "train_batch.forward": times["train_batch"] // 10}})
        lines.append({"record": "step", "batch": batch, "epoch": 0, "start_ns": now, "wall_ns": wall, "samples": 32,
                      "exchanged": ranks > 1, "phases": times})
        if batch % 20 == 0:
            lines.append({"record": "memory", "time_ns": now + wall, "batch": batch, "resident_memory": 400_000_000 + 20_000 * batch,
                          "peak_memory": 420_000_000 + 20_000 * batch, "anonymous_memory": 300_000_000 + 20_000 * batch})
        now += wall
    lines.append({"record": "part", "part": "loop", "batch": len(rows), "start_ns": begin, "end_ns": now, "duration_ns": now - begin})
    lines.append({"record": "part", "part": "finalization", "batch": len(rows), "start_ns": now, "end_ns": now + 40 * MS,
                  "duration_ns": 40 * MS})
    lines.append({"record": "end", "time_ns": now + 45 * MS, "how": "finished", "records": len(lines), "dropped": 0, "lost": 0})
    write_lines(folder / "profile" / f"rank-{rank:04d}.jsonl", lines)
    return now


def write_agent(folder, host, ranks, gpus, end, rng):
    lines = [{"record": "header", "schema": 1, "kind": "agent", "host": host, "agent": host, "pid": 50, "ranks": ranks,
              "sample_period_ns": PERIOD, "units": UNITS, "clock": {"monotonic_ns": START, "wall_ns": 1_795_000_000_000_000_000,
                                                                    "offset_ns": 0, "error_ns": 50}}]
    for index in range(gpus):
        lines.append({"record": "gpu", "index": index, "uuid": f"GPU-{host}-{index}", "name": "Imaginary 80GB",
                      "total_memory": 80 << 30})
    for number, time in enumerate(range(START + PERIOD, end + PERIOD, PERIOD)):
        busy = rng.uniform(80, 99)
        sample = {"record": "system", "time_ns": time, "interval_ns": PERIOD, "net_throughput_sent": rng.randrange(1, 40_000_000),
                  "net_throughput_recv": rng.randrange(1, 40_000_000), "disk_iops": rng.uniform(0, 300),
                  "disk_throughput_read": rng.randrange(0, 90_000_000), "disk_throughput_write": rng.randrange(0, 9_000_000),
                  "free_memory": 20_000_000_000 - 10_000_000 * number, "cpu_util_simple": round(busy, 2),
                  "io_wait": round(rng.uniform(0, 5), 2), "cpu_util_per_core": [round(min(100, busy + rng.uniform(-9, 9)), 1) for _ in range(8)],
                  "processes": [{"rank": rank, "pid": 100 + rank, "resident_memory": 400_000_000, "cpu_util": round(busy, 1),
                                 "cpu_wait": round(rng.uniform(0, 4), 1)} for rank in ranks]}
        if gpus:
            sample["gpus"] = [{"index": index, "gpu_util": round(min(100, max(0, rng.gauss(78 - 15 * index, 9)))),
                               "gpu_free_memory": (30 << 30) - index * (5 << 30), "gpu_temperature": 60 + index,
                               "gpu_foreign_processes": 0} for index in range(gpus)]
        lines.append(sample)
    lines.append({"record": "end", "time_ns": end, "how": "all ranks ended", "samples": len(lines) - 2, "lost": 0, "cpu_ns": MS})
    write_lines(folder / "profile" / f"agent-{host}.jsonl", lines)


def utc(seconds):
    return (datetime(2026, 11, 21, 8, 33, 36) + timedelta(seconds=seconds)).isoformat(timespec="microseconds") + "Z"


def write_learning(folder, *, steps, attempts, samples, rate, seed, nan_at=(), failed=False):
    """metrics.jsonl with a line every ten batches, and events.jsonl with attempts of 20 s of work and 5 s of start; each went on
    from the middle between its last lines, after 100 s."""
    rng = random.Random(seed)
    events, metrics = [], []
    now = 0.0
    length = steps // attempts // 10 * 10
    for attempt in range(attempts):
        first = attempt * length
        last = steps if attempt + 1 == attempts else first + length
        start = {"time": utc(now), "rank": -1, "event": "attempt_started", "attempt": attempt + 1}
        if attempt:
            start |= {"step": first, "resume_from": f"/checkpoints/step-{first}"}
        else:
            events.append({"time": utc(now), "event": "run_started", "rank": -1, "pid": 1, "host": "nodea"})
        events.append(start)
        for batch in range(first + 10, last + 1, 10):
            time = now + 5 + 20 * (batch - first) / (last - first)
            done = batch / steps
            loss = "nan" if batch in nan_at else 2.2 * math.exp(-3 * done * rate) + 0.15 + abs(rng.gauss(0, 0.06))
            metrics.append({"time": utc(time), "kind": "training", "batch": batch, "epoch": 0, "samples": 10 * samples,
                            "optimizer_steps": batch, "learning_rate": round(0.01 * rate * (1 + math.cos(math.pi * done)) / 2, 8),
                            "gradient_norm": 3 * math.exp(-done) + abs(rng.gauss(0, 0.3)), "metrics": {"loss": loss, "accuracy": 1 - 0.9 * math.exp(-4 * done * rate)}})
            if batch % (steps // 6 // 10 * 10) == 0 or batch == steps:
                metrics.append({"time": utc(time + 0.05), "kind": "validation", "batch": batch, "epoch": 0, "samples": 1000,
                                "metrics": {"accuracy": 0.95 - 0.85 * math.exp(-4 * done * rate), "loss": 2.2 * math.exp(-3 * done * rate) + 0.25}})
        now += 27
        if attempt + 1 < attempts:
            events.append({"time": utc(now), "rank": -1, "event": "attempt_failed", "attempt": attempt + 1, "cause": "rank 1 was killed by signal 9", "restart": attempt + 1})
            now += 100
    state = {"state": "failed", "exit_code": 1, "cause": "rank 1 was killed by signal 9"} if failed else {"state": "done", "exit_code": 0}
    events.append({"time": utc(now), "event": "run_ended", "rank": -1, "pid": 1, "host": "nodea", **state})
    write_lines(folder / "events.jsonl", events)
    write_lines(folder / "metrics.jsonl", metrics)


def write_run(folder, *, ranks=2, steps=300, hosts=1, gpus=0, name="imaginary", slow_rank=1, validation_ms=400, seed=7, attempts=1,
              rate=1.0, nan_at=(), failed=False):
    folder = Path(folder)
    (folder / "profile").mkdir(parents=True)
    rng = random.Random(seed)
    host_of = [f"node{'abcdefgh'[rank * hosts // ranks]}" for rank in range(ranks)]
    batches = list(rank_steps(ranks, steps, rng, slow_rank, validation_ms))
    begin = START + 700 * MS
    end = begin
    for rank in range(ranks):
        end = max(end, write_rank(folder, rank, ranks, host_of[rank], [(batch, rows[rank]) for batch, rows in batches], begin))
    for host in sorted(set(host_of)):
        write_agent(folder, host, [rank for rank in range(ranks) if host_of[rank] == host], gpus, end, rng)
    plan = {"name": name, "started_by": "dtrain", "world_size": ranks, "global_batch_size": 32 * ranks,
            "effective_batch_size": 32 * ranks, "batch_per_rank": [32] * ranks,
            "placement": [{"rank": rank, "host": host_of[rank], "cpus": []} for rank in range(ranks)],
            "versions": {"libtorch": "2.11.0", "dtrain": "0.1.0"},
            "experiment": {"name": name, "hyperparameters": {"learning_rate": 0.01 * rate},
                           "searcher": {"metric": "accuracy", "smaller_is_better": False}},
            "model": {"parameters": 3_000_000, "bytes": 12_000_000, "tensors": 8}}
    (folder / "plan.json").write_text(json.dumps(plan))
    write_learning(folder, steps=steps, attempts=attempts, samples=32 * ranks, rate=rate, seed=seed, nan_at=nan_at, failed=failed)
    return folder
