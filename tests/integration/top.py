"""`dtrain top` on real runs: once for scripts, and on a terminal.

    top.py BIN [TestClass[.test] ...]
"""
import json
import os
import re
import signal
import subprocess
import unittest

from harness import BUILD, Workplace, environment, main, wait_until, write_experiment
from terminal import Terminal

VARIABLES = {"TERM": "xterm"}


def start(place, batches, ranks):
    """`dtrain launch` of a small model, as run NNNN under place/runs."""
    file = write_experiment(place.path / f"{batches}.yaml", name="watched", entrypoint=BUILD.program("synthetic"),
                            hyperparameters={"global_batch_size": 64, "depth": 2, "width": 64},
                            data={"samples": 20000}, scheduling_unit=50, resources={"slots_per_trial": ranks},
                            optimizations={"tensor_fusion_threshold": 1, "sharded_optimizer": False},
                            searcher={"max_length": {"batches": batches}})
    return subprocess.Popen([BUILD.program("dtrain"), "launch", str(file)], cwd=place.path, env=environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def top(place, *arguments, code=0):
    done = subprocess.run([BUILD.program("dtrain"), "top", *map(str, arguments)], cwd=place.path,
                          env=environment(**VARIABLES), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def view(place, *arguments):
    return json.loads(top(place, *arguments, "--once", "--json").stdout)


class Watched(unittest.TestCase):
    """A run that goes on until it is stopped."""
    RANKS = 2

    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("top")
        cls.launch = start(cls.place, 10_000_000, cls.RANKS)
        cls.addClassCleanup(cls.stop)
        wait_until(lambda: (cls.place.path / "runs" / "0001-watched" / "events.jsonl").exists(), "the run's start")
        wait_until(lambda: view(cls.place, 1)["batch"] > 200, "the 200th batch")

    @classmethod
    def stop(cls):
        cls.launch.send_signal(signal.SIGINT)
        cls.launch.wait(60)
        cls.place.remove()

    def terminal(self, *arguments, columns=120, rows=24, **variables):
        terminal = Terminal([BUILD.program("dtrain"), "top", *arguments], environment(**{**VARIABLES, **variables}),
                            cwd=self.place.path, columns=columns, rows=rows)
        self.addCleanup(terminal.close)
        return terminal

    def batch_on(self, terminal):
        found = re.search(r"batch ([0-9,]+)/", "\n".join(terminal.screen.lines()))
        return int(found[1].replace(",", "")) if found else 0

    def running(self, *arguments, **options):
        """A terminal on which the first view stands."""
        terminal = self.terminal(*arguments, **options)
        terminal.until(lambda: self.batch_on(terminal) > 0 and terminal.screen.shown == "alternate", "the first view")
        return terminal

    def check_restored(self, terminal):
        self.assertEqual(terminal.screen.shown, "normal")
        self.assertTrue(terminal.screen.cursor and terminal.screen.wraps)
        self.assertEqual(terminal.settings(), terminal.before)


class Once(Watched):
    def test_json_of_a_run_that_goes_on(self):
        first = view(self.place, "watched")
        self.assertEqual((first["state"], first["ended"], first["world_size"]), ("running", False, 2))
        self.assertEqual((first["total_batches"], first["batches_per_epoch"]), (10_000_000, 312))
        self.assertEqual([rank["rank"] for rank in first["ranks"]], [0, 1])
        self.assertGreater(first["left_s"], 0)
        self.assertGreater(first["elapsed_s"], 0)
        self.assertLess(first["quiet_s"], 5)
        self.assertIn("loss", first["training"]["metrics"])
        for rank in first["ranks"]:
            recent = rank["recent"]
            self.assertGreater(recent["steps"], 19)
            self.assertGreater(recent["step_p99_s"], recent["step_p50_s"] * 0.999)
            self.assertAlmostEqual(sum(recent["shares"].values()), 1, places=6)
            self.assertGreater(recent["shares"]["computing"], 0)
            self.assertIsNone(rank["ended"])
        total = sum(rank["recent"]["samples_per_s"] for rank in first["ranks"])
        self.assertAlmostEqual(first["samples_per_s"], total, places=3)
        for rank in first["ranks"]:
            self.assertAlmostEqual(rank["recent"]["samples_per_s"] / rank["recent"]["batches_per_s"], 32, delta=0.5)
            self.assertLess(rank["recent"]["batches_per_s"], 2 / rank["recent"]["step_p50_s"])
        wait_until(lambda: view(self.place, 1)["batch"] > first["batch"], "a later batch")
        wait_until(lambda: view(self.place, 1)["hosts"][0]["cpu_percent"] is not None, "a sample of the host")
        host = view(self.place, 1)["hosts"][0]
        self.assertEqual(len(host["core_percent"]), os.cpu_count())
        self.assertLess(host["free_bytes"], host["total_bytes"])
        wait_until(lambda: view(self.place, 1)["ranks"][0]["resident_bytes"], "a rank's memory")

    def test_the_newest_running_one_is_meant_where_none_is_named(self):
        self.assertEqual(view(self.place)["run_dir"], str(self.place.path / "runs" / "0001-watched"))

    def test_a_pipe_gets_one_view_without_sequences(self):
        for arguments in (["1", "--once"], ["1"]):
            text = top(self.place, *arguments).stdout
            self.assertIn("watched  running for", text)
            self.assertRegex(text, r"batch [0-9,]+/10,000,000")
            self.assertRegex(text, r"\nrank +batch +batch p50")
            self.assertNotIn("\x1b", text)

    def test_bad_input(self):
        self.assertIn("no run 'other'", top(self.place, "other", code=2).stderr)
        top(self.place, "1", "--json", code=2)
        top(self.place, "1", "--interval", "0", code=2)
        empty = Workplace("top-empty")
        self.addCleanup(empty.remove)
        self.assertIn("no run under", top(empty, code=2).stderr)


class OnATerminal(Watched):
    # Ranks that wait for each other yield, for which some kernels (Linux 6.18) take the processor from other sessions;
    # and a terminal is a session.
    RANKS = 1

    def test_it_redraws_in_place_and_q_ends_it(self):
        terminal = self.running("--interval", "0.2")
        self.assertFalse(terminal.screen.cursor)
        for _ in range(2):
            shown = self.batch_on(terminal)
            terminal.until(lambda before=shown: self.batch_on(terminal) > before, "a later view")
        lines = terminal.screen.lines()
        self.assertTrue(lines[0].startswith("watched  running for"), lines)
        self.assertEqual(sum("batch p50" in line for line in lines), 1, lines)
        self.assertEqual(terminal.screen.lines("normal"), [""] * 24, "nothing of it is on the normal screen")
        self.assertGreater(terminal.screen.styles, 0)
        terminal.type("q")
        self.assertEqual(terminal.wait(), 0)
        self.check_restored(terminal)

    def test_ctrl_c_ends_it(self):
        terminal = self.running()
        terminal.type("\x03")
        self.assertEqual(terminal.wait(), 0)
        self.check_restored(terminal)

    def test_it_follows_the_size_of_the_terminal(self):
        terminal = self.running("--interval", "60")  # so only the new size makes it draw
        terminal.read(0.3)
        before = len(terminal.said)
        terminal.resize(30, 5)
        terminal.until(lambda: len(terminal.said) > before, "a view of the new size")
        terminal.read(0.3)
        lines = terminal.screen.lines()
        self.assertEqual(len(lines), 5)
        self.assertTrue(all(len(line) < 30 for line in lines), lines)
        self.assertIn("rank  batch p50", "\n".join(lines))
        terminal.type("q")
        self.assertEqual(terminal.wait(), 0)

    def test_signals_and_crashes_restore_the_terminal(self):
        for number, code in ((signal.SIGTERM, 130), (signal.SIGSEGV, -signal.SIGSEGV)):
            with self.subTest(signal=number):
                terminal = self.running()
                os.kill(terminal.pid, number)
                self.assertEqual(terminal.wait(), code)
                self.check_restored(terminal)

    def test_ctrl_z_gives_the_terminal_back_for_a_while(self):
        terminal = self.running("--interval", "0.2")
        terminal.type("\x1a")
        terminal.until(lambda: os.waitpid(terminal.pid, os.WUNTRACED | os.WNOHANG)[0] == terminal.pid, "its stop")
        self.check_restored(terminal)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.until(lambda: terminal.screen.shown == "alternate", "its screen")
        shown = self.batch_on(terminal)
        terminal.until(lambda: self.batch_on(terminal) > shown, "a later view")
        terminal.type("q")
        self.assertEqual(terminal.wait(), 0)
        self.check_restored(terminal)

    def test_no_color_means_no_colours(self):
        terminal = self.running(NO_COLOR="1")
        self.assertEqual(terminal.screen.styles, 0)
        terminal.type("q")
        self.assertEqual(terminal.wait(), 0)

    def test_a_dumb_terminal_gets_one_view(self):
        terminal = self.terminal("1", TERM="dumb")
        self.assertEqual(terminal.wait(), 0)
        self.assertNotIn(b"\x1b", terminal.said)
        self.assertIn(b"watched  running", terminal.said)


class TheEnd(unittest.TestCase):
    def test_it_ends_with_the_run_and_leaves_the_last_view(self):
        place = Workplace("top-end")
        run = start(place, 5000, 1)
        wait_until(lambda: (place.path / "runs" / "0001-watched" / "events.jsonl").exists(), "the run's start")
        terminal = Terminal([BUILD.program("dtrain"), "top"], environment(**VARIABLES), cwd=place.path, columns=120)
        self.addCleanup(terminal.close)
        terminal.until(lambda: terminal.screen.shown == "alternate", "the first view")
        self.assertEqual(terminal.wait(), 0)
        self.assertEqual(run.wait(60), 0)
        self.assertEqual(terminal.screen.shown, "normal")
        self.assertEqual(terminal.settings(), terminal.before)
        text = "\n".join(terminal.screen.lines())
        self.assertIn("watched  done after", text)
        self.assertIn("batch 5,000/5,000 (100%)", text)
        self.assertEqual(len(re.findall(r"finished$", text, re.MULTILINE)), 1)

        last = view(place, 1)
        self.assertEqual((last["state"], last["ended"], last["batch"], last["left_s"]), ("done", True, 5000, None))
        self.assertEqual([rank["ended"] for rank in last["ranks"]], ["finished"])
        self.assertGreater(last["samples_per_s"], 0)
        self.assertIn("no run under", top(place, code=2).stderr)
        place.remove()


if __name__ == "__main__":
    main("synthetic")
