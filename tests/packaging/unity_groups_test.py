"""Files that are compiled together may use the same names in their anonymous namespaces: cmake/unity_groups.py keeps them apart.

    unity_groups_test.py SOURCE_FOLDER COMPILER
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, COMPILER = Path(sys.argv.pop(1)), sys.argv.pop(1)
sys.path.insert(0, str(SOURCE / "cmake"))
from unity_groups import groups_of, names_of  # noqa: E402

# Of each file what it declares for itself, and what it gives others.
FILES = {
    "a.cpp": "namespace {\n\nconstexpr int kSize = 1;\n\nstruct Part {\n  int size = kSize;\n};\n\nint sum(int x) {\n"
             "  return Part().size + x;\n}\n\n}  // namespace\n\nint a() {\n  return sum(1);\n}\n",
    "b.cpp": "namespace {\n\nint sum(int x) {\n  return x;\n}\n\n}  // namespace\n\nint b() {\n  return sum(2);\n}\n",
    "c.cpp": "#include <vector>\nnamespace {\n\nstd::vector<int> kSize{1, 2};\n\n}  // namespace\n\nint c() {\n"
             "  return kSize[0];\n}\n",
    "d.cpp": "namespace inside {\nnamespace {\n\ntemplate <typename T>\nclass Part {};\n\n}  // namespace\n}  // namespace inside\n\n"
             "static int other() {\n  return 3;\n}\n\nint d() {\n  return other();\n}\n",
    "e.cpp": "int e() {\n  return 5;\n}\n",
    "f.cpp": "namespace {\n\nusing Number = int;\n\n}  // namespace\n\nNumber f() {\n  return 6;\n}\n",
    "g.cpp": "namespace {\n\nusing Number = long;\n\n}  // namespace\n\nNumber g() {\n  return 7;\n}\n",
    "h.cpp": "namespace {\n\nusing Number = int;\n\n}  // namespace\n\nNumber h() {\n  return 8;\n}\n",
}


class Groups(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in FILES.items():
            (self.folder / name).write_text(text)

    def groups(self, size):
        sources = [str(self.folder / name) for name in FILES]
        return {Path(source).name: group for source, group in groups_of(sources, size)}

    def test_the_names_that_a_file_declares_for_itself(self):
        names = {name: set(names_of(self.folder / name)) for name in FILES}
        self.assertEqual(names, {"a.cpp": {"kSize", "Part", "sum"}, "b.cpp": {"sum"}, "c.cpp": {"kSize"},
                                 "d.cpp": {"Part", "other"}, "e.cpp": set(), "f.cpp": {"Number"}, "g.cpp": {"Number"},
                                 "h.cpp": {"Number"}})

    def test_files_that_share_a_name_are_compiled_apart_but_for_equal_aliases(self):
        self.assertEqual(self.groups(16), {"a.cpp": 0, "b.cpp": 1, "c.cpp": 1, "d.cpp": 1, "e.cpp": 0, "f.cpp": 0, "g.cpp": 1, "h.cpp": 0})

    def test_no_compilation_has_more_files_than_it_may(self):
        groups = list(self.groups(2).values())
        self.assertTrue(all(groups.count(group) <= 2 for group in groups))

    def test_the_compiler_takes_the_groups(self):
        groups = self.groups(16)
        for group in set(groups.values()):
            text = "".join(f'#include "{self.folder}/{name}"\n' for name in groups if groups[name] == group)
            (self.folder / "unity.cpp").write_text(text)
            subprocess.run([COMPILER, "-std=c++20", "-fsyntax-only", self.folder / "unity.cpp"], check=True)

    def test_the_projects_own_files_have_names(self):
        names = names_of(SOURCE / "runtime/train/loop/rank_training.cpp")
        self.assertIn("keep_freed_memory", names)
        self.assertIn("kComparedOperations", names)


unittest.main(verbosity=2)
