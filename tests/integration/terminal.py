"""A program on a pseudo-terminal, and what stands on its screen. Sequences that the screen does not know fail the test,
so a program may not use others than those that every terminal has."""
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

DEADLINE = 60  # seconds; only against hangs


class Screen:
    """Two grids of characters, the normal one and the alternate one, and a cursor."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.grids = {"normal": self.blank(), "alternate": self.blank()}
        self.shown = "normal"
        self.row = self.column = 0
        self.cursor = self.wraps = True
        self.rest = b""
        self.styles = 0

    def blank(self):
        return [[" "] * self.columns for _ in range(self.rows)]

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        for name, grid in self.grids.items():
            self.grids[name] = [(row + [" "] * columns)[:columns] for row in (grid + self.blank())[:rows]]
        self.row, self.column = min(self.row, rows - 1), min(self.column, columns - 1)

    @property
    def grid(self):
        return self.grids[self.shown]

    def lines(self, which=None):
        return ["".join(row).rstrip() for row in self.grids[which or self.shown]]

    def feed(self, data):
        data = self.rest + data
        self.rest = b""
        end = len(data)
        try:
            decoded = data.decode()
        except UnicodeDecodeError as error:
            end = error.start
            if len(data) - end > 3:
                raise AssertionError(f"no UTF-8: {data[end:end + 8]!r}") from error
            decoded = data[:end].decode()
        half = data[end:]
        at = 0
        while at < len(decoded):
            match = re.match(r"\x1b\[(\??[0-9;]*)([A-Za-z])", decoded[at:])
            if match:
                self.control(match[1], match[2])
                at += match.end()
            elif decoded[at] == "\x1b":
                if len(decoded) - at > 12:
                    raise AssertionError(f"an unknown sequence: {decoded[at:at + 12]!r}")
                self.rest = decoded[at:].encode() + half
                return
            else:
                self.put(decoded[at])
                at += 1
        self.rest = half

    def control(self, numbers, letter):
        if letter in "hl" and numbers in ("?1049", "?25", "?7"):
            on = letter == "h"
            if numbers == "?1049":
                self.shown = "alternate" if on else "normal"
            elif numbers == "?25":
                self.cursor = on
            else:
                self.wraps = on
        elif letter == "H" and numbers == "":
            self.row = self.column = 0
        elif letter == "K" and numbers == "2":
            self.grid[self.row] = [" "] * self.columns
        elif letter == "J" and numbers in ("", "2"):
            first = 0 if numbers else self.row
            for row in range(first, self.rows):
                self.grid[row] = [" "] * self.columns
        elif letter == "m":
            self.styles += 1
        else:
            raise AssertionError(f"an unknown sequence: ESC[{numbers}{letter}")

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            if self.row + 1 < self.rows:
                self.row += 1
            else:
                self.grid.append([" "] * self.columns)
                del self.grid[0]
        elif character < " ":
            raise AssertionError(f"an unknown control character: {character!r}")
        else:
            if self.column >= self.columns:
                if not self.wraps:
                    return
                self.column = 0
                self.put("\n")
            self.grid[self.row][self.column] = character
            self.column += 1


class Terminal:
    """`command` on a terminal of its own."""

    def __init__(self, command, env, cwd=None, columns=80, rows=24):
        self.screen = Screen(columns, rows)
        self.said = b""
        self.status = None
        # Kept open here, so that what the program leaves can be read after its end.
        self.master, self.terminal = pty.openpty()
        self.set_size(columns, rows)
        self.before = termios.tcgetattr(self.terminal)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.terminal, fd)
            os.closerange(3, 256)
            if cwd:
                os.chdir(cwd)
            os.execvpe(command[0], command, env)

    def set_size(self, columns, rows):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        self.read(0)
        self.screen.resize(columns, rows)
        self.set_size(columns, rows)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def settings(self):
        return termios.tcgetattr(self.terminal)

    def read(self, seconds):
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 65536)
            self.said += data
            self.screen.feed(data)
            seconds = 0

    def until(self, condition, what):
        end = time.monotonic() + DEADLINE
        while True:
            self.read(0.05)
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not happen in {DEADLINE} s; the screen:\n"
                                     + "\n".join(self.screen.lines()))

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def wait(self):
        """How it ended, as subprocess says it."""
        self.until(self.ended, "its end")
        self.read(0)
        return os.waitstatus_to_exitcode(self.status)

    def close(self):
        if not self.ended():
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.master)
        os.close(self.terminal)
