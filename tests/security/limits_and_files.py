"""What a user may and others may not: limits that the system sets are named, the files of a run are their owner's, and folders of
other users stop nothing. Real launches of the rank without torch, some of them as other users.

    limits_and_files.py BIN_FOLDER [TestCase ...]
"""
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DEADLINE = 180  # seconds; only against hangs
SECRET = "s3cr3t-of-this-test"
USER, STRANGER = 61_235, 61_236
BIN = None  # set by main

EXPERIMENT = """name: test
entrypoint: {program}
hyperparameters: {{global_batch_size: 8, step_ms: 1{more}}}
resources: {{slots_per_trial: {slots}, slot_type: cpu}}
searcher: {{metric: loss, max_length: {{batches: 6}}}}
max_restarts: 0
"""


class LaunchTest(unittest.TestCase):
    """Launches in a folder of its own, as USER where the test says so."""

    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="security-", dir="/tmp"))
        self.work.chmod(0o777)
        (self.work / "home").mkdir()
        (self.work / "home").chmod(0o777)
        self.addCleanup(shutil.rmtree, self.work, ignore_errors=True)

    def experiment(self, slots=2, more="", keys=""):
        file = self.work / "experiment.yaml"
        program = BIN.parent / "tests" / "rank_program"
        file.write_text(EXPERIMENT.format(program=program, slots=slots, more=more and ", " + more) + keys)
        file.chmod(0o644)
        return file

    def dtrain(self, *words, user=None, umask=0o022, limits=(), program="dtrain", **variables):
        """Returns (exit code, all output)."""
        def prepare():
            os.umask(umask)
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)

        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DTRAIN_", "OMPI_", "SLURM_", "PMIX_", "XDG_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            kept.pop(name, None)
        kept.update(HOME=str(self.work / "home"), XDG_CONFIG_HOME="/nonexistent", DTRAIN_CALIBRATION="false",
                    DTRAIN_STATE_DIR=str(self.work / "home" / "state"), OMP_NUM_THREADS="1", **variables)
        done = subprocess.run([str(BIN / program), *map(str, words)], cwd=self.work, env=kept, preexec_fn=prepare,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE)
        return done.returncode, done.stdout.decode(errors="replace")

    def launch(self, *words, run="run", **options):
        return self.dtrain("launch", self.work / "experiment.yaml", "--run-dir", self.work / run, *words, **options)


@unittest.skipIf(os.geteuid() != 0, "only root can act as two users")
class ForeignFolder(LaunchTest):
    def setUp(self):
        super().setUp()
        self.taken = Path(f"/tmp/dtrain-{USER}")
        self.clear()
        self.addCleanup(self.clear)

    def clear(self):
        for path in [self.taken, *Path("/tmp").glob(self.taken.name + "-*")]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()

    def launch_in_spite_of(self, take):
        self.experiment()
        take(self.taken)
        os.chown(self.taken, STRANGER, STRANGER, follow_symlinks=False)
        code, output = self.launch(user=USER)
        self.assertEqual(code, 0, output)
        (own,) = Path("/tmp").glob(self.taken.name + "-*")
        info = own.lstat()
        self.assertEqual((info.st_uid, stat.S_IMODE(info.st_mode)), (USER, 0o700))

    def test_a_folder(self):
        self.launch_in_spite_of(lambda path: path.mkdir(mode=0o777))

    def test_a_file(self):
        self.launch_in_spite_of(lambda path: path.write_text("no folder"))

    def test_a_link(self):
        self.launch_in_spite_of(lambda path: path.symlink_to("/tmp"))


class Processes(LaunchTest):
    @unittest.skipIf(os.geteuid() != 0, "a limit of processes needs a user of its own")
    def test_what_cannot_start_and_why(self):
        self.addCleanup(shutil.rmtree, f"/tmp/dtrain-{USER}", ignore_errors=True)
        self.experiment()
        refused = 0
        for most in range(1, 30, 2):
            code, output = self.launch(run=f"run-{most}", user=USER, limits=[(resource.RLIMIT_NPROC, most)])
            self.assertNotIn("terminate called", output)
            if code == 0:
                continue
            refused += 1
            self.assertRegex(output, "cannot start|could not be started|no more threads")
            self.assertIn(f"RLIMIT_NPROC lets this user have {most} processes and threads", output)
            self.assertIn("ulimit -u", output)
        self.assertGreater(refused, 3)


class FileSizes(LaunchTest):
    def test_of_a_rank(self):
        self.experiment(slots=1, more="trouble: {batch: 3, kind: long_file}")
        code, output = self.launch(limits=[(resource.RLIMIT_FSIZE, 48 << 20)])
        self.assertEqual(code, 1, output)
        self.assertIn("long.bin: File too large", output)
        self.assertIn("RLIMIT_FSIZE lets a file of this process have 48.0 MiB: raise it (ulimit -f)", output)

    def test_of_the_launcher(self):
        self.experiment(slots=1)
        code, output = self.launch(limits=[(resource.RLIMIT_FSIZE, 512)])
        self.assertNotEqual(code, 0, output)
        self.assertGreater(code, 0, "no signal ends it")
        self.assertIn("RLIMIT_FSIZE", output)


class Memory(LaunchTest):
    MOST = 2 << 30

    def check(self, kind, expected):
        self.experiment(slots=2, more=f"trouble: {{rank: 1, batch: 3, kind: {kind}}}")
        code, output = self.launch(limits=[(resource.RLIMIT_AS, self.MOST)])
        self.assertEqual(code, 1, output)
        self.assertNotIn("terminate called", output + (self.work / "run" / "logs" / "rank-0001.log").read_text())
        cause = next(line for line in output.splitlines() if line.startswith("dtrain: the run failed: "))
        self.assertIn(expected, cause)
        self.assertIn("RLIMIT_AS lets this process have 2.0 GiB of address space, and it has ", cause)
        self.assertIn("ulimit -v", cause)

    def test_of_a_step(self):
        self.check("memory", "out of memory: ")

    def test_of_a_thread(self):
        self.check("memory_of_thread", "a thread of this process ended: out of memory: ")

    def test_of_a_command(self):
        """Whatever it is refused for: no command ends by a signal, or with `terminate called`."""
        self.experiment(slots=1)
        self.assertEqual(self.launch()[0], 0)
        named = 0
        for most in (*range(24, 96, 6), 128, 192):
            for words in (["summary", self.work / "run"], ["launch", self.work / "experiment.yaml", "--dry-run"]):
                code, output = self.dtrain(*words, limits=[(resource.RLIMIT_AS, most << 20)])
                self.assertGreaterEqual(code, 0, output)
                self.assertNotIn("terminate called", output)
                if code != 0 and "loading shared librar" not in output:
                    self.assertRegex(output, "RLIMIT_AS|annot allocate memory")
                    named += 1
        self.assertGreater(named, 0)


class Modes(LaunchTest):
    KEYS = f"environment:\n  environment_variables: {{TOKEN: {SECRET}, COLOUR: red}}\n"
    PRIVATE = ("experiment.yaml", "overrides.json")
    OVERRIDE = f"environment.environment_variables.TOKEN={SECRET}-2"

    def modes(self, run):
        return {str(path.relative_to(run)): stat.S_IMODE(path.lstat().st_mode) for path in sorted(run.rglob("*"))}

    def files_with_the_secret(self, run):
        found = []
        for path in sorted(run.rglob("*")):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                found.append(str(path.relative_to(run)))
        return found

    def check(self, umask, share, private, run):
        self.experiment(keys=self.KEYS + share, more="checkpoint_every: 3")
        code, output = self.launch("--set", self.OVERRIDE, umask=umask, run=run)
        self.assertEqual(code, 0, output)
        self.assertNotIn(SECRET, output)
        folder = self.work / run
        modes = self.modes(folder)
        for name in self.PRIVATE:
            self.assertEqual(oct(modes[name]), oct(private), name)
        self.assertEqual(self.files_with_the_secret(folder), sorted(self.PRIVATE))
        return folder, modes

    def test_private_files_under_any_umask(self):
        for umask in (0o000, 0o022, 0o077):
            self.check(umask, "", 0o600, f"run-{umask:o}")

    def test_a_group_that_shares_reads_all(self):
        for umask in (0o000, 0o022, 0o077):
            folder, modes = self.check(umask, "share_with: group\n", 0o640, f"run-{umask:o}")
            self.assertEqual(stat.S_IMODE(folder.stat().st_mode) & 0o050, 0o050)
            for name, mode in modes.items():
                if name.rpartition("/")[2] not in (".lock", ".owner"):
                    self.assertTrue(mode & 0o040, f"{name}: {mode:o} under umask {umask:o}")

    def test_ranks_get_the_values_and_a_continuation_too(self):
        program = self.work / "program.sh"
        program.write_text(f'#!/bin/sh\nprintf %s "$TOKEN" > {self.work}/token\nexec {BIN.parent}/tests/rank_program "$@"\n')
        program.chmod(0o755)
        file = self.experiment(slots=1, keys=self.KEYS, more="checkpoint_every: 3")
        file.write_text(re.sub("entrypoint: .*", f"entrypoint: {program}", file.read_text()))
        self.assertEqual(self.launch("--set", self.OVERRIDE)[0], 0)
        token = self.work / "token"
        self.assertEqual(token.read_text(), SECRET + "-2")
        plan = json.loads((self.work / "run" / "plan.json").read_text())
        self.assertEqual(plan["overrides"], ["environment.environment_variables.TOKEN=*** (1 in overrides.json)"])
        self.assertEqual(plan["experiment"]["environment"]["environment_variables"], {"TOKEN": "***", "COLOUR": "***"})
        token.unlink()
        file.unlink()  # the run's own copy has what it was launched with
        code, output = self.dtrain("launch", "--continue", self.work / "run", "--set", "searcher.max_length.batches=9")
        self.assertEqual(code, 0, output)
        self.assertEqual(token.read_text(), SECRET + "-2")
        self.assertNotIn(SECRET, output)
        (self.work / "run" / "overrides.json").unlink()
        code, output = self.dtrain("launch", "--continue", self.work / "run", "--set", "searcher.max_length.batches=12")
        self.assertEqual(code, 2, output)
        self.assertIn("overrides.json", output)

    def test_no_command_shows_values(self):
        self.experiment(keys=self.KEYS)
        runs = self.work / "runs"
        for number in (1, 2):
            self.assertEqual(self.launch("--set", f"environment.environment_variables.TOKEN={SECRET}-{number}",
                                         run=f"runs/000{number}-test")[0], 0)
        # As another version wrote it: with values.
        plan_file = runs / "0002-test" / "plan.json"
        plan = json.loads(plan_file.read_text())
        plan["experiment"]["environment"]["environment_variables"] = {"TOKEN": SECRET, "cpu": [f"OTHER={SECRET}"]}
        plan["overrides"] = [f"environment.environment_variables.TOKEN={SECRET}"]
        plan["command"] += ["--set", f"environment.environment_variables.TOKEN={SECRET}"]
        plan_file.write_text(json.dumps(plan))
        for words in (["runs", runs], ["runs", runs, "--json"], ["summary", runs / "0002-test"], ["diff", "1", "2"],
                      ["analyze", runs / "0002-test", "--json"], ["report", runs / "0002-test"], ["report", "1", "2"],
                      ["export", runs / "0002-test", "--format", "csv"], ["export", runs / "0002-test", "--format", "sqlite"],
                      ["task", "list"], ["task", "list", "--json"],
                      ["launch", self.work / "experiment.yaml", "--dry-run", "--json", "--set", self.OVERRIDE]):
            code, output = self.dtrain(*words)
            self.assertEqual(code, 0, f"{words}: {output}")
            self.assertNotIn(SECRET, output, words)
        for path in [*runs.rglob("*"), *self.work.glob("*.html"), *(self.work / "home").rglob("*")]:
            if path.is_file() and path.name not in (*self.PRIVATE, "plan.json"):
                self.assertNotIn(SECRET.encode(), path.read_bytes(), path)

    def test_the_ledger(self):
        self.experiment(slots=1)
        for _ in range(2):
            code, output = self.launch(umask=0o000, run=f"run-{_}")
            self.assertEqual(code, 0, output)
            for path in (self.work / "home" / "state").iterdir():
                self.assertEqual(oct(stat.S_IMODE(path.stat().st_mode) & 0o077), "0o0", path)
                path.chmod(0o666)  # as an earlier version made them; the next launch closes the ledger itself
            (self.work / "home" / "state" / "ledger.lock").chmod(0o600)


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
