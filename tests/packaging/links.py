"""What the documents name is there: files, the targets of links, folders, and the glossary's names in the code.

    links.py SOURCE_FOLDER
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))
# Folders of the repository: a path that begins with one of them is a path of the repository.
ROOTS = "cmake comm configs docs examples packaging python runtime scheduler scripts tests .ci".split()
# What has a README that belongs to docs/architecture.md.
PRODUCT = ("runtime", "comm", "scheduler", "python")
# Files that only exist once somebody has made them, and headers of other projects.
ELSEWHERE = {"reduce_kernel.h", "configs/fashion_cnn.pt", "scripts/gpu_check_results.md"}
PLACEHOLDER = {"NAME", "TARGET", "NNNN"}
SOURCE_FILE = re.compile(r"[\w./-]+\.(?:h|cpp|cmake|py|sh)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)


def files():
    """The repository's files as paths from its root; in an unpacked archive all there are."""
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        return {name for name in listed.stdout.splitlines() if (SOURCE / name).exists()}
    return {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}


FILES = files()
FOLDERS = {str(parent) for name in FILES for parent in Path(name).parents} - {"."}
DOCUMENTS = sorted(SOURCE / name for name in FILES
                   if re.fullmatch(r"[A-Z]+\.md|docs/[\w-]+\.md", name) or Path(name).name == "README.md")
READMES = sorted(name for name in FILES if Path(name).name == "README.md" and name.split("/")[0] in PRODUCT)


def prose(path):
    """The text of a document without its code blocks: what those name belongs to the reader."""
    return CODE_BLOCK.sub("", path.read_text())


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return found


def is_there(name):
    name = name.rstrip("/")
    if name in ELSEWHERE or PLACEHOLDER & set(re.split(r"[/._-]", name)) or name in FILES or name in FOLDERS:
        return True
    if name.split("/")[0] in ROOTS:
        return False
    # Without its folder, as `sharded.h`, or as a program includes it: `dtrain/comm/nccl.h`.
    return any(path.endswith("/" + name) for path in FILES)


class Links(unittest.TestCase):
    def test_files_that_are_named_exist(self):
        for document in DOCUMENTS:
            for words in re.findall(r"`([^`\n]+)`", prose(document)):
                if not re.fullmatch(r"[\w./-]+", words):
                    continue
                if SOURCE_FILE.fullmatch(words) or ("/" in words and words.split("/")[0] in ROOTS):
                    with self.subTest(document=str(document.relative_to(SOURCE)), names=words):
                        self.assertTrue(is_there(words))

    def test_relative_links_lead_somewhere(self):
        for document in DOCUMENTS:
            for link in LINK.findall(prose(document)):
                if "://" in link:
                    continue
                place, _, anchor = link.partition("#")
                with self.subTest(document=str(document.relative_to(SOURCE)), link=link):
                    target = (document.parent / place).resolve() if place else document
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_names_of_the_glossary_are_in_the_code(self):
        """What the glossary calls a thing in code is what the code calls it."""
        rows = re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|[^|]*\|$", (SOURCE / "docs/glossary.md").read_text(), re.MULTILINE)
        names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
        self.assertGreater(len(names), 60)
        code = "\n".join((SOURCE / name).read_text() for name in sorted(FILES)
                         if name.split("/")[0] in PRODUCT and name.endswith((".h", ".cpp", ".py")))
        words = set(re.findall(r"\w+", code))
        for name in sorted(names):
            with self.subTest(name):
                parts = re.findall(r"[A-Za-z]\w+", name.split("(")[0])
                self.assertTrue(is_there(name) or any(name in path for path in FILES) or parts[-1] in words, name)

    def test_every_folder_is_in_the_architecture(self):
        """The tables of folders, in docs/architecture.md and the READMEs beside the code, have one row for every folder of
        sources, and none for one that has gone. A README names the folders below its own."""
        rows = []
        for document in ["docs/architecture.md", *READMES]:
            base = "" if document.startswith("docs/") else str(Path(document).parent) + "/"
            cells = re.findall(r"^\| (\[?`[^|]*) \|", (SOURCE / document).read_text(), re.MULTILINE)
            rows += [base + folder.rstrip("/") for cell in cells for folder in re.findall(r"`([^`]+/)`", cell)]
        sources = {str(Path(name).parent) for name in FILES
                   if Path(name).suffix in (".h", ".cpp") and name.split("/")[0] in PRODUCT}
        # Public headers, and declarations of a library, lie as whoever includes them names them.
        wanted = {folder for folder in sources if not re.search("/(include|declarations)/", folder + "/")}
        self.assertEqual(sorted(wanted - set(rows)), [])
        self.assertEqual(sorted(folder for folder in rows if folder not in FOLDERS), [])
        self.assertEqual(sorted(folder for folder in set(rows) if rows.count(folder) > 1), [])

    def test_every_readme_of_a_folder_is_reached_from_the_architecture(self):
        """By a link of docs/architecture.md, or of a README that is reached so."""
        reached, waiting = set(), [SOURCE / "docs/architecture.md"]
        while waiting:
            document = waiting.pop()
            for link in LINK.findall(prose(document)):
                target = (document.parent / link.partition("#")[0]).resolve()
                if target.name == "README.md" and target.exists() and target not in reached:
                    reached.add(target)
                    waiting.append(target)
        self.assertEqual([name for name in READMES if (SOURCE / name).resolve() not in reached], [])

    def test_the_architecture_is_a_page(self):
        """A newcomer reads it in one go; what else there is to say stands beside the code."""
        self.assertLessEqual(len((SOURCE / "docs/architecture.md").read_text().splitlines()), 120)


if __name__ == "__main__":
    unittest.main(verbosity=2)
