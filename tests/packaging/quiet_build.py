"""scripts/quiet_build.sh and scripts/progress.sh: a line that moves on a terminal, the exit code of what was run, warnings only
where they are asked for.

    quiet_build.py SOURCE_FOLDER
"""
import os
import pty
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()

# Steps with the names that CMake gives them; `said` is what the "compiler" prints.
BUILD = """
rule cxx
  command = sleep $seconds; echo '$said'; touch $out; exit $code
  description = Building CXX object $out
build a.o: cxx
  seconds = 0
  said = /src/a.cpp:3:4: warning: unused variable
  code = 0
build b.o: cxx a.o
  seconds = {seconds}
  said = /src/b.cpp:7:1: {said}
  code = {code}
build b: phony b.o
default b
"""


class QuietBuild(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = Path(self.folder.name) / "build/small"
        self.build.mkdir(parents=True)

    def run_build(self, *options, code=0, said="note: fine", seconds=0):
        (self.build / "build.ninja").write_text(BUILD.format(code=code, said=said, seconds=seconds))
        done = subprocess.run([SOURCE / "scripts/quiet_build.sh", *options, "small", "2", "b"], cwd=self.folder.name,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.returncode, done.stdout

    def test_warnings_are_shown_or_left_in_the_log(self):
        code, text = self.run_build("--no-warnings")
        self.assertEqual(code, 0, text)
        self.assertNotIn("warning", text)
        self.assertIn("unused variable", (self.build.parent / "small.build.log").read_text())
        (self.build / "a.o").unlink()
        code, text = self.run_build()
        self.assertIn("/src/a.cpp:3:4: warning: unused variable", text)
        self.assertEqual(self.run_build(), (0, ""), "nothing to do, nothing to say")

    def test_a_failure_is_the_exit_code_with_the_words_of_the_compiler(self):
        code, text = self.run_build("--no-warnings", code=1, said="error: no such thing")
        self.assertNotEqual(code, 0)
        self.assertIn("/src/b.cpp:7:1: error: no such thing", text)
        self.assertIn("build/small.build.log", text)

    def test_the_line_moves_on_a_terminal(self):
        (self.build / "build.ninja").write_text(BUILD.format(code=0, said="note: fine", seconds=3))
        shown = b""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder.name)
            os.execv(SOURCE / "scripts/quiet_build.sh", ["quiet_build.sh", "small", "2", "b"])
        try:
            while chunk := os.read(terminal, 4096):
                shown += chunk
        except OSError:  # the end of a terminal
            pass
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, shown)
        self.assertIn(b"\r\x1b[Kbuilding: step 2 of 2", shown)

    def test_progress_has_the_exit_code_of_the_command(self):
        script = f'. {SOURCE}/scripts/progress.sh; show() {{ echo here; }}; with_progress show sh -c "exit 3"'
        self.assertEqual(subprocess.run(["bash", "-c", script], timeout=30).returncode, 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
