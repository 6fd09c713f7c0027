"""Seconds from the loss of a host until nothing of the run is left on either; the goal is 10 s. Runs inside
`two_hosts.sh with RATE`.

    host_loss.py BIN_FOLDER [--json]
"""
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from cluster_bed import BED, ENDLESS, HOSTS, ClusterTest, on_host, seconds_until_all_gone  # noqa: E402
from harness import BUILD  # noqa: E402

ROUNDS = 3


class Bench(ClusterTest):
    def runTest(self):
        pass

    def lose(self, how, mend):
        self.setUp()
        running = self.start(self.cluster(), self.experiment(), ENDLESS).reached(20)
        begin = time.monotonic()
        how()
        code = running.process.wait()
        seconds = seconds_until_all_gone(begin)
        mend()
        if code != 1 or "host nodeb is lost" not in running.output():
            raise SystemExit(f"exit code {code}:\n{running.output()}")
        self.tearDown()
        return seconds


def main():
    BUILD.open(sys.argv[1], "dtrain-agent")
    bench = Bench()
    ways = {
        "daemon_and_ranks_killed_s": (lambda: on_host("b", "pkill", "-KILL", "orted|rank_program"), lambda: None),
        "interface_down_s": (lambda: on_host("b", "ip", "link", "set", "link0", "down"),
                             lambda: on_host("b", "ip", "link", "set", "link0", "up")),
        "link_cut_s": (lambda: subprocess.run([BED, "cut", HOSTS], check=True),
                       lambda: subprocess.run([BED, "mend", HOSTS], check=True)),
    }
    result = {name: round(statistics.median(bench.lose(*way) for _ in range(ROUNDS)), 2) for name, way in ways.items()}
    result["slowest_s"] = max(result.values())
    if "--json" in sys.argv:
        print(json.dumps(result))
    else:
        for name, seconds in result.items():
            print(f"{name:28} {seconds:6.2f}")


if __name__ == "__main__":
    main()
