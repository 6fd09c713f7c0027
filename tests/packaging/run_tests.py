"""scripts/run_tests.sh: what was skipped is listed last, each with its reason; the exit code and the totals are ctest's; a test that
fails once, and then passes three times, is told and forgiven.

    run_tests.py SOURCE_FOLDER SKIPPING_PROGRAM
"""
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))
PROGRAM = sys.argv.pop(1)

UNITTEST = textwrap.dedent("""
    import unittest
    class Pages(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            raise unittest.SkipTest("there's no browser")
        def test_it(self):
            pass
    class Man(unittest.TestCase):
        @unittest.skipUnless(False, "man is not installed")
        def test_described(self):
            "a description"
        def test_inside(self):
            print("output")
            self.skipTest("no mpirun")
        def test_good(self):
            pass
    unittest.main(verbosity=2)
    """)


class RunTests(unittest.TestCase):
    def run_tests(self, tests):
        """`tests`: name -> (command, properties). The exit code, and the lines from ctest's totals on."""
        with tempfile.TemporaryDirectory() as folder:
            lines = []
            for name, (command, properties) in tests.items():
                words = " ".join(f"[==[{word}]==]" for word in command)
                lines.append(f"add_test({name} {words})")
                if properties:
                    lines.append(f"set_tests_properties({name} PROPERTIES {properties})")
            (Path(folder) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
            done = subprocess.run([SOURCE / "scripts/run_tests.sh", folder, "2"], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertIn("% tests passed", done.stdout)
        return done.returncode, done.stdout[done.stdout.index("% tests passed") - 3:]

    def test_lists_what_was_skipped(self):
        code, text = self.run_tests({
            "beds": (["sh", "-c", "echo starting; echo 'two_hosts.sh: network namespaces need root' >&2; exit 77"],
                     "SKIP_RETURN_CODE 77"),
            "silent": (["sh", "-c", "exit 77"], "SKIP_RETURN_CODE 77"),
            "program": ([PROGRAM, "--gtest_brief=1"], ""),
            "script": ([sys.executable, "-c", UNITTEST], ""),
            "good": (["true"], ""),
        })
        self.assertEqual(code, 0, text)
        self.assertTrue(text.startswith("100% tests passed, 0 tests failed out of 5"), text)
        said = text[text.index("skipped, as"):].splitlines()
        self.assertEqual(said[0], "skipped, as this machine lacks what they need: 7")
        self.assertEqual(sorted(said[1:]), sorted([
            "  beds: two_hosts.sh: network namespaces need root",
            "  silent: no reason given",
            "  program: no such thing here (skipping_program.cpp:5)",
            "  program: no other thing here (skipping_program.cpp:8)",
            "  script: there's no browser (setUpClass)",
            "  script: man is not installed (test_described)",
            "  script: no mpirun (test_inside)",
        ]))

    def test_a_failure_is_the_exit_code(self):
        code, text = self.run_tests({"bad": (["sh", "-c", "echo 'assertions: 3'; exit 1"], ""), "good": (["echo", "assertions: 12"], "")})
        self.assertNotEqual(code, 0)
        self.assertIn("50% tests passed, 1 tests failed out of 2", text)
        self.assertIn("assertions of GoogleTest and unittest: 15;", text)
        self.assertIn("skipped: nothing\n", text)
        commands = text[text.index("failed: 1;"):].splitlines()[1:]
        self.assertRegex(commands[0], r"^  bad: \S*sh -c 'echo .*exit 1'$")
        self.assertRegex(commands[1], r"^  or: ctest --test-dir \S+ --output-on-failure -R '\^\(bad\)\$'$")

    def fails_at(self, folder, *runs):
        """A test that fails in these of its runs, counted from 1."""
        count = Path(folder) / f"count-{'-'.join(map(str, runs))}"
        return ["sh", "-c", f"echo >> {count}; case $(wc -l < {count}) in {'|'.join(map(str, runs))}) exit 1;; esac"]

    def test_a_test_that_fails_once_is_told_and_forgiven(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.run_tests({"bad": (self.fails_at(folder, 1), ""), "good": (["true"], "")})
        self.assertEqual(code, 0, text)
        self.assertIn("50% tests passed, 1 tests failed out of 2", text)
        self.assertEqual(text.splitlines()[-1], "unstable: bad failed among the other tests, and passed three times alone")

    def test_a_test_that_fails_again_is_not_forgiven(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.run_tests({"bad": (self.fails_at(folder, 1, 4), ""), "worse": (self.fails_at(folder, 1), "")})
        self.assertEqual(code, 8, text)
        self.assertIn("once more, three times and alone: bad worse\n", text)
        self.assertNotIn("unstable", text)

    def test_more_than_two_failures_are_not_run_again(self):
        code, text = self.run_tests({f"bad{n}": (["false"], "") for n in range(3)})
        self.assertEqual(code, 8, text)
        self.assertNotIn("once more", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
