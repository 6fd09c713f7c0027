"""What bash and zsh offer after `dtrain`: the shells themselves are asked.

    completion.py DTRAIN_PROGRAM
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from command_tree import tree

PROGRAM = str(Path(sys.argv.pop(1)).resolve())
DEADLINE = 30  # seconds; only against hangs


def script(shell):
    return subprocess.run([PROGRAM, "completion", shell], check=True, capture_output=True, text=True).stdout


class Folder(unittest.TestCase):
    """A current folder with two runs, an experiment file and a folder."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-completion-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("runs/0001-first", "runs/0002-second", "output"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "experiment.yaml").write_text("name: x\n")


class Bash(Folder):
    def complete(self, *words):
        """What bash offers for the last of `words`, which are split as readline splits them."""
        (self.folder / "completion.bash").write_text(script("bash"))
        program = ('source completion.bash; spec=$(complete -p dtrain) || exit 3; function=${spec#*-F }; '
                   'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; '
                   '${function%% *} dtrain "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; '
                   'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-c", program, "bash", "dtrain", *words], cwd=self.folder,
                              check=True, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return sorted(line for line in done.stdout.splitlines() if line)

    def test_everything_in_help_is_offered(self):
        offered = 0
        for path, commands, options in tree(PROGRAM):
            if commands:
                self.assertEqual(self.complete(*path, ""), sorted(commands), path)
            self.assertEqual(self.complete(*path, "-"), sorted(options), path)
            offered += len(commands) + len(options)
        self.assertGreater(offered, 20)

    def test_prefixes(self):
        self.assertEqual(self.complete("lau"), ["launch"])
        self.assertEqual(self.complete("launch", "--dr"), ["--dry-run"])
        self.assertEqual(self.complete("config", "ch"), ["check"])
        self.assertEqual(self.complete("nonsense"), [])

    def test_choices(self):
        self.assertEqual(self.complete("completion", ""), ["bash", "zsh"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])

    def test_files_for_files(self):
        self.assertEqual(self.complete("launch", "exp"), ["experiment.yaml"])
        self.assertIn("experiment.yaml", self.complete("config", "check", ""))
        self.assertEqual(self.complete("launch", "experiment.yaml", ""), [], "it takes one file")
        self.assertEqual(self.complete("config", "check", "a", "b", "exp"), ["experiment.yaml"], "it takes several")

    def test_folders_for_folders(self):
        self.assertEqual(self.complete("launch", "--run-dir", ""), ["output", "runs"])
        self.assertEqual(self.complete("launch", "--run-dir", "=", "ou"), ["output"])
        self.assertEqual(self.complete("launch", "--run-dir=ou"), ["--run-dir=output"], "where = is part of a word")

    def test_run_names_for_runs(self):
        for command in ("summary", "logs"):
            self.assertEqual(self.complete(command, ""), ["0001-first", "0002-second"])
            self.assertEqual(self.complete(command, "0002"), ["0002-second"])
        self.assertEqual(self.complete("logs", "--rank", "1", ""), ["0001-first", "0002-second"], "1 is the rank")

    def test_a_value_is_no_command(self):
        self.assertEqual(self.complete("launch", "--set", "a", "=", "config", "exp"), ["experiment.yaml"])
        self.assertEqual(self.complete("launch", "--set", ""), [], "nothing is known of keys")


@unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
class Zsh(Folder):
    """An interactive zsh on a terminal, with the completion where a package puts it."""

    def setUp(self):
        super().setUp()
        functions = self.folder / "functions"
        functions.mkdir()
        (functions / "_dtrain").write_text(script("zsh"))
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(self.folder)})
        self.addCleanup(self.stop)
        self.tell(f"fpath=({functions} $fpath); autoload -Uz compinit && compinit -u -d {self.folder}/dump; PROMPT=; "
                  "unsetopt zle_bracketed_paste 2>/dev/null; show() { print -r -- \"line<$BUFFER>\"; BUFFER=; }; zle -N show; "
                  "bindkey '^X' show; bindkey '^I' complete-word; print rea''dy\n", r"ready\r?\n")

    def stop(self):
        os.close(self.terminal)  # hangs up
        os.waitpid(self.pid, 0)

    def tell(self, text, pattern):
        os.write(self.terminal, text.encode())
        output, end = "", time.monotonic() + DEADLINE
        while not (found := re.search(pattern, output)):
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                self.fail(f"zsh did not answer in {DEADLINE} s; so far it wrote {output!r}")
            output += os.read(self.terminal, 65536).decode(errors="replace")
        return found

    def complete(self, line):
        return self.tell(line + "\t\x18", r"line<(.*?)>").group(1)

    def test_unique_beginnings_are_completed(self):
        for typed, line in (("dtrain lau", "dtrain launch "),
                            ("dtrain config ch", "dtrain config check "),
                            ("dtrain launch --dry", "dtrain launch --dry-run "),
                            ("dtrain launch --run-d", "dtrain launch --run-dir="),
                            ("dtrain launch --run-dir ou", "dtrain launch --run-dir output/"),
                            ("dtrain launch exp", "dtrain launch experiment.yaml "),
                            ("dtrain completion z", "dtrain completion zsh "),
                            ("dtrain summary 0002", "dtrain summary 0002-second "),
                            ("dtrain logs --rank 1 0001", "dtrain logs --rank 1 0001-first "),
                            ("dtrain nonsen", "dtrain nonsen")):
            self.assertEqual(self.complete(typed), line)

    def test_sourcing_it_works_too(self):
        done = subprocess.run(["zsh", "-f", "-c", "autoload -Uz compinit && compinit -u -D; source functions/_dtrain; "
                               "print $_comps[dtrain]"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((done.stdout.strip(), done.stderr), ("_dtrain", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
