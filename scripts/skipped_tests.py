"""What of a test run was skipped, with the reasons: whole tests, and cases inside of GoogleTest's and unittest's programs.

    skipped_tests.py JUNIT.xml (as ctest writes it, with the tests' output)
"""
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

# "/path/launch_test.cpp:158: Skipped", and the reason below it.
GOOGLETEST = re.compile(r"^\S*?([^/\s]+:\d+): Skipped\n(.*)$", re.MULTILINE)
# "test_pages (__main__.Pages.test_pages) ... skipped 'man is not installed'", of one case or a class (setUpClass). What a case
# prints and its description come between.
CASE = re.compile(r"^(\w+) \([\w.]+\)")
UNITTEST = re.compile(r"(?:^| \.\.\. )skipped (['\"])(.*)\1$")
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


def main():
    reasons = Counter((test.get("name"), reason) for test in ElementTree.parse(sys.argv[1]).iter("testcase")
                      for reason in skipped_in(test))
    if not reasons:
        print("skipped: nothing")
        return
    print(f"skipped, as this machine lacks what they need: {sum(reasons.values())}")
    for (name, reason), times in reasons.items():
        print(f"  {name}: {reason}" + (f", {times} times" if times > 1 else ""))


main()
