"""A launch whose processes can be named, for tests that kill some of them."""
import atexit
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from harness import environment, left_in_shared_memory

PATIENCE = 300  # seconds, against hangs alone


class Launch:
    """A launch whose processes are known by their environment."""

    def __init__(self, build, folder, file):
        self.folder, self.file = folder, file
        self.state = str(folder / "state")
        self.shared = set(os.listdir("/dev/shm"))
        (folder / "private").mkdir(mode=0o700)
        command = [build.program("dtrain"), "launch", str(file), "--run-dir", str(folder / "run")]
        self.log = folder / "log"
        atexit.register(self.end)
        self.process = subprocess.Popen(
            command, env=environment(DTRAIN_STATE_DIR=self.state, XDG_RUNTIME_DIR=str(folder / "private")),
            stdin=subprocess.DEVNULL, stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def processes(self):
        """The pids of the run, without the launcher's, and the name of each."""
        mark = f"DTRAIN_STATE_DIR={self.state}".encode()
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == self.process.pid:
                continue
            try:
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found[int(entry)] = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def end(self):
        """Nothing of a run that hangs stays."""
        for pid in [self.process.pid, *self.processes()] if not self.has_ended() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def has_ended(self):
        return self.process.poll() is not None

    def wait(self):
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise AssertionError(f"exit code {code}; the launch said:\n{self.log.read_text()[-4000:]}")

    def what_it_leaves(self):
        """Processes, shared memory and sockets; some time is given to those that are ending."""
        end = time.monotonic() + 15
        while True:
            left = [f"process {pid} ({name})" for pid, name in self.processes().items()]
            left += [f"/dev/shm/{name}" for name in left_in_shared_memory(self.shared, self.folder / "run")]
            left += [str(path) for path in (self.folder / "private").rglob("*") if not path.is_dir()]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.2)
