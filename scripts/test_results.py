"""What to know of a test run: its time, the assertions that it executed, the tests that took longest, what was skipped, with the
reasons (whole tests, and cases inside of GoogleTest's and unittest's programs), and what failed, with the command that runs it alone.

    test_results.py BUILD_FOLDER WALL_SECONDS (of which tests.xml is read, as ctest writes it, with the tests' output)
"""
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

# "/path/launch_test.cpp:158: Skipped", and the reason below it.
GOOGLETEST = re.compile(r"^\S*?([^/\s]+:\d+): Skipped\n(.*)$", re.MULTILINE)
# "test_pages (__main__.Pages.test_pages) ... skipped 'man is not installed'", of one case or a class (setUpClass). What a case
# prints and its description come between.
CASE = re.compile(r"^(\w+) \([\w.]+\)")
UNITTEST = re.compile(r"(?:^| \.\.\. )skipped (['\"])(.*)\1$")
# As tests/harness/assertion_count.cpp and tests/harness/counting print it.
ASSERTIONS = re.compile(r"^assertions: (\d+)$", re.MULTILINE)
# What a terminal does with colours; XML cannot hold the escape character, so it may be gone.
COLOUR = re.compile("\x1b?\\[[0-9;]*m")


def skipped_in(test):
    """The reasons: of the whole test, or of some of its cases."""
    output = COLOUR.sub("", test.findtext("system-out") or "")
    if test.find("skipped") is not None:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        yield lines[-1] if lines else "no reason given"
        return
    for place, reason in GOOGLETEST.findall(output):
        yield f"{reason.strip() or 'no reason given'} ({place})"
    case = ""
    for line in output.splitlines():
        started = CASE.match(line)
        case = started.group(1) if started else case
        if skipped := UNITTEST.search(line):
            yield skipped.group(2) + (f" ({case})" if case else "")


def print_times(tests, wall_seconds):
    """The wall time of the run, and the ten tests that took longest."""
    times = sorted(((float(test.get("time") or 0), test.get("name")) for test in tests), reverse=True)
    total = sum(seconds for seconds, _ in times)
    print(f"tests: {len(times)} programs in {wall_seconds // 60} min {wall_seconds % 60} s ({total:.0f} s one after another)")
    assertions = sum(int(count) for test in tests for count in ASSERTIONS.findall(test.findtext("system-out") or ""))
    print(f"assertions of GoogleTest and unittest: {assertions}; other tests compare by themselves")
    print("the slowest:")
    for seconds, name in times[:10]:
        print(f"  {seconds:6.1f} s  {name}")


def print_skipped(tests):
    reasons = Counter((test.get("name"), reason) for test in tests for reason in skipped_in(test))
    if not reasons:
        print("skipped: nothing")
        return
    print(f"skipped, as this machine lacks what they need: {sum(reasons.values())}")
    for (name, reason), times in reasons.items():
        print(f"  {name}: {reason}" + (f", {times} times" if times > 1 else ""))


def print_failed(tests, build):
    """Each with its command, of which a part may be run alone: a class of unittest's as one more argument, a case of GoogleTest's
    by --gtest_filter."""
    failed = [test.get("name") for test in tests if test.find("failure") is not None]
    if not failed:
        return
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
    commands = {test["name"]: test.get("command", []) for test in json.loads(listed)["tests"]}
    print(f"failed: {len(failed)}; each alone, with all that it says:")
    for name in failed:
        print(f"  {name}: {shlex.join(commands.get(name, []))}")
    print(f"  or: ctest --test-dir {build} --output-on-failure -R '^({'|'.join(failed)})$'")


def main():
    build = sys.argv[1]
    tests = list(ElementTree.parse(f"{build}/tests.xml").iter("testcase"))
    print_times(tests, int(sys.argv[2]))
    print_skipped(tests)
    print_failed(tests, build)


main()
