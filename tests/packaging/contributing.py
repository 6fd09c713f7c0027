"""Every file and folder that CONTRIBUTING.md names is there, and every list names the files it is about.

    contributing.py SOURCE_FOLDER
"""
import re
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))
FIRST = {path.name for path in SOURCE.iterdir()}


class Contributing(unittest.TestCase):
    def test_names_what_is_there(self):
        text = (SOURCE / "CONTRIBUTING.md").read_text()
        named = [word for word in re.findall(r"`([\w./-]+)`", text) if "/" in word and word.split("/")[0] in FIRST]
        self.assertGreater(len(named), 60)
        self.assertEqual([path for path in named if "NAME" not in path and not (SOURCE / path).exists()], [])
        # Of what is to be made, there is one with another name.
        made = [path for path in named if "NAME" in path]
        self.assertEqual([path for path in made if not any(SOURCE.glob(path.rstrip("/").replace("NAME", "*")))], [])

    def test_names_files_beside_those(self):
        """`optimizations.h` and the like, which stand without their folder."""
        text = (SOURCE / "CONTRIBUTING.md").read_text()
        short = set(re.findall(r"`([a-z_]+\.(?:h|cpp))`", text))
        known = {path.name for path in SOURCE.glob("runtime/config/**/*")}
        self.assertEqual(short - known, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
