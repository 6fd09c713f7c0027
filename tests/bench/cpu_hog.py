"""Takes a core now and then: is at it for ON seconds, rests for OFF, until it is told to end (SIGTERM). While it is at
it, it spins for the first SHARE of each PERIOD. Then it writes what it did to FILE: `windows` (begin and end of each
turn, monotonic nanoseconds) and `cpu_s`, the processor time it took.

    cpu_hog.py CORE ON OFF SHARE FILE
"""
import json
import os
import signal
import sys
import time


PERIOD = 0.06  # seconds


def main():
    core, file = int(sys.argv[1]), sys.argv[5]
    on, off, share = map(float, sys.argv[2:5])
    os.sched_setaffinity(0, {core})
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    windows = []
    while not ended:
        begin = time.monotonic_ns()
        while time.monotonic_ns() - begin < on * 1e9 and not ended:
            in_period = (time.monotonic_ns() - begin) / 1e9 % PERIOD
            if in_period > share * PERIOD:
                time.sleep(PERIOD - in_period)
        windows.append([begin, time.monotonic_ns()])
        rest = time.monotonic() + off
        while time.monotonic() < rest and not ended:
            time.sleep(0.01)
    with open(file, "w") as out:
        json.dump({"windows": windows, "cpu_s": time.process_time()}, out)


if __name__ == "__main__":
    main()
