"""dtrain.1: all of --help is in it, and troff has nothing to complain about.

    man_page.py DTRAIN_PROGRAM
"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from command_tree import tree

PROGRAM = sys.argv.pop(1)
PAGE = subprocess.run([PROGRAM, "man"], check=True, capture_output=True, text=True).stdout


def rendered():
    done = subprocess.run(["groff", "-man", "-Tascii", "-P-c", "-rLL=200n"], input=PAGE, check=True, capture_output=True,
                          text=True)
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)


class ManPage(unittest.TestCase):
    def test_every_command_and_option_is_there(self):
        text = rendered()
        checked = 0
        for path, _, names in tree(PROGRAM):
            if path and not [p for p, below, _ in tree(PROGRAM, *path) if below and p == path]:
                self.assertIn(" ".join(("dtrain", *path)), text)
            for name in names:
                checked += 1
                self.assertRegex(text, rf"(?<![\w-]){re.escape(name)}(?![\w-])", f"dtrain {' '.join(path)}")
        self.assertGreater(checked, 15)
        self.assertEqual(text.count("examples:"), 1, "the program's, not once a command")

    def test_sections(self):
        for section in ("NAME", "SYNOPSIS", "COMMANDS", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"):
            self.assertIn(f"\n.SH {section}\n", PAGE)
        text = rendered()
        for part in ("130", "DTRAIN_LIBTORCH_DIR", "bash|zsh" if "bash|zsh" in text else "bash or zsh"):
            self.assertIn(part, text)

    def test_exit_codes_and_variables_are_those_of_the_documents(self):
        docs, text = Path(__file__).resolve().parents[2] / "docs", rendered()
        codes = re.findall(r"^\| (\d+) \|", (docs / "errors.md").read_text(), re.MULTILINE)
        rows = (docs / "launching.md").read_text().partition("<!-- environment variables ")[2].splitlines()
        variables = [name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])]
        self.assertIn("75", codes)
        self.assertIn("DTRAIN_CLUSTER", variables)
        for tag in codes + variables:
            self.assertRegex(text, rf"(?m)^ {{7}}(.*, )?{tag}([,:].*)?( |$)")

    def test_troff_has_no_warning(self):
        done = subprocess.run(["groff", "-man", "-ww", "-z", "-b"], input=PAGE, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc_has_no_error(self):
        done = subprocess.run(["mandoc", "-Tlint", "-Werror"], input=PAGE, capture_output=True, text=True)
        self.assertEqual(done.stdout, "")

    @unittest.skipUnless(shutil.which("man"), "man is not installed")
    def test_man_shows_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "dtrain.1"
            file.write_text(PAGE)
            done = subprocess.run(["man", "-P", "cat", "--warnings=w", "-l", str(file)], capture_output=True, text=True,
                                  env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("EXIT STATUS", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
