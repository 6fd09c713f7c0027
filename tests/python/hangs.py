"""Scripts whose ranks hang: they are named with their Python stacks, the run goes on with the same bits, and PyTorch's fr_trace reads
what is left of their collectives. Under torchrun nobody watches the ranks but they themselves: one that is stopped is named.

    hangs.py BIN_FOLDER
"""
import signal
import subprocess
import sys
from pathlib import Path

import package

import harness

SCRIPT = Path(__file__).resolve().parent / "hanging_script.py"


def line_of(text):
    (number,) = (number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if line.strip() == text)
    return number


class Hangs(harness.WorkplaceTest):
    def run_script(self, *command):
        folder = self.work.new_run()
        folder.mkdir()
        done = harness.run(["env", f"--chdir={folder}", *map(str, command)], "", **package.of(harness.BUILD))
        (run_dir,) = (folder / "runs").glob("0*")
        return harness.Result(done.code, done.output, run_dir).expect(0)

    def fr_trace(self, records):
        done = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(records), "-p", "rank_"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.DEADLINE, check=True)
        return done.stdout

    def test_ranks_that_hang(self):
        marks = self.work.new_run()
        marks.mkdir()
        sets = harness.overrides(["min_checkpoint_period.batches=4", "scheduling_unit=1", "recovery.hang=1", "max_restarts=2"])
        launched = self.run_script(harness.BUILD.program("dtrain"), "run", *sets, "--slots", 2, SCRIPT, marks, "lock", "sample")
        place = f"{SCRIPT}:{[n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if 'lock.acquire()' in line][-1]}"
        self.assertIn(f"rank 1 is at {place} in take_lock_twice", launched.output)
        self.assertRegex(launched.output, r"attempt 2 failed: rank [01] at batch \d+, in dataloader_next, hangs: it has not got on for")
        hangs = launched.events("rank_hangs")
        self.assertEqual([(event["rank"], event["place"]) for event in hangs][0], (1, f"{place} in take_lock_twice"))
        stacks = launched.run_dir / "attempt-2" / "logs" / f"hang-rank-{hangs[1]['rank']}.txt"
        self.assertIn(f"line {line_of('threading.Event().wait()')} in __getitem__", stacks.read_text())
        self.assertIn("missing ranks: {1}", self.fr_trace(launched.run_dir / "attempt-1" / "logs" / "flight_record"))

        marks = self.work.new_run()
        marks.mkdir()
        stopped = self.run_script(sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", 1,
                                  "--nproc-per-node", 2, SCRIPT, marks, "stop")
        self.assertRegex(stopped.output, r"rank 1 \(pid \d+ on .*\) is stopped \(SIGSTOP\): it has sent nothing for")
        self.assertIn("is stopped (SIGSTOP)", stopped.events("run_ended")[0]["cause"])
        self.assertEqual(len(stopped.events("resumed")), 1, stopped.output)
        self.assertEqual(stopped.weights_file.read_bytes(), launched.weights_file.read_bytes())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    harness.main("dtrain-agent")
