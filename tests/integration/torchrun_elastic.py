"""`torchrun --nnodes 1:2` over two hosts: the second host dies, the run goes on with the ranks of the first one, and with those of
both once it is back. Runs inside `two_hosts.sh with unshaped`; prints the seconds of each change.

    torchrun_elastic.py BIN_FOLDER
"""
import sys
import time

import host_faults
from cluster_bed import BED, HOSTS
from harness import BUILD, Workplace

BATCHES, PAUSE_MS = 12_000, 3
GONE_AFTER = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2"


class Elastic(host_faults.Torchrun):
    def start(self, host):
        # The store of PyTorch's own agents does not let a host come later, with any backend: each round gets one of its own.
        settings = [f"PYTHONPATH={BUILD.bin.parent / 'python'}", "PYTHONDONTWRITEBYTECODE=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "8",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", "nodea:29400", "--rdzv-id", "elastic",
                 "--rdzv-conf", f"is_host={'true' if host == 'a' else 'false'},{GONE_AFTER}",
                 str(host_faults.SCRIPT), str(self.run_dir), str(BATCHES), str(PAUSE_MS)]
        self.background(host, [BED, "run", HOSTS, host, "env", *settings, *words])


def trained(bed):
    return [line for line in host_faults.lines(bed.run_dir / "metrics.jsonl") if line["kind"] == "training"]


def change(bed, what, act):
    """Seconds from the act to the first batch of the attempt that follows it."""
    attempts = len(host_faults.events(bed.run_dir, "attempt_started"))
    began = time.time()
    act()

    def goes_on():
        started = host_faults.events(bed.run_dir, "attempt_started")
        return len(started) > attempts and trained(bed)[-1]["time"] > started[-1]["time"]

    if not host_faults.wait_for(goes_on, 120):
        raise AssertionError(f"{what}: the run does not go on:\n{bed.output('a')[-4000:]}\n{bed.output('b')[-4000:]}")
    print(f"{what}: {time.time() - began:.1f} s to the next batch", flush=True)
    before = len(trained(bed))
    host_faults.wait_for(lambda: len(trained(bed)) > before + 20)


def main():
    BUILD.open(sys.argv[1], "synthetic")
    work = Workplace("torchrun-elastic", on_disk=True)
    bed = Elastic(work)
    try:
        bed.start_all()
        assert host_faults.wait_for(lambda: len(host_faults.events(bed.run_dir, "checkpoint_saved")) >= 2), bed.output("a")
        change(bed, "the second host dies", lambda: host_faults.kill_all("b"))
        change(bed, "the second host is back", lambda: bed.start("b"))
        assert host_faults.wait_for(lambda: host_faults.has_ended(bed)), bed.output("a")[-4000:]
        assert host_faults.events(bed.run_dir, "run_ended")[-1]["state"] == "done", bed.output("a")[-4000:]
        folders = [bed.run_dir / "attempt-1", bed.run_dir / "attempt-2", bed.run_dir]
        sizes = [len(list((folder / "profile").glob("rank-*.jsonl"))) for folder in folders]
        assert sizes == [2, 1, 2], sizes
        batches = [line["batch"] for line in trained(bed)]
        assert batches == sorted(set(batches)) and batches[-1] == BATCHES, "batches are missing, or were counted twice"
        samples = sum(line["samples"] for line in trained(bed))
        assert samples == 8 * BATCHES, f"{samples} samples of {8 * BATCHES}"
    finally:
        bed.end()
        work.remove()


if __name__ == "__main__":
    main()
