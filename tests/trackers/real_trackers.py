"""`dtrain follow` with the tools themselves: a run whose processes are killed, and whose connection is cut, is one run there, with each
point once, as the tool's own library reads it.

    real_trackers.py BIN [NAMES OF TESTS]     Mlflow, Trackio, Wandb

Its Python has the three tools (scripts/ecosystem.sh BIN trackers). The dice are seeded, and the seed is printed.
"""
import contextlib
import json
import math
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import Build, environment, write_experiment  # noqa: E402
from watched_launch import Launch  # noqa: E402

KILLS, EVERY = 20, 1.2  # seconds between kills
BATCHES = int(os.environ.get("BATCHES", "4000"))  # last at least as long as the kills, on a fast machine
PATIENCE = 300  # seconds, against hangs alone
SEED = int(os.environ.get("SEED", "7"))
BUILD = Build()


class Proxy:
    """A way to a port that can be cut: connections that are open are reset, and no others are taken until mend()."""

    def __init__(self, port):
        self.target, self.listener, self.open, self.cuts = port, None, set(), 0
        self.port = self.free_port()
        self.mend()

    @staticmethod
    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def mend(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def cut(self):
        """Waits for a connection that carries something, to cut it in the middle."""
        last = time.monotonic() + PATIENCE
        while not self.open and time.monotonic() < last:
            time.sleep(0.001)
        self.cuts += bool(self.open)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for end in list(self.open):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server is killed
                near.close()
                continue
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near, far):
        self.open |= {near, far}
        data = b"some"
        with near, far, contextlib.suppress(OSError, ValueError):
            while data:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(65536)
                    (far if end is near else near).sendall(data)
        self.open -= {near, far}


class Server:
    """A tool's server, which can be killed and started again on the same port with the same files."""

    def __init__(self, command, variables, log):
        self.command, self.variables, self.log = command, variables, log
        self.port = Proxy.free_port()
        self.start()

    def start(self):
        command = [word.replace("PORT", str(self.port)) for word in self.command]
        self.process = subprocess.Popen(command, env=self.variables, stdout=open(self.log, "a"), stderr=subprocess.STDOUT,
                                        start_new_session=True)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
                return
            time.sleep(0.2)
        raise AssertionError(f"the server does not answer:\n{Path(self.log).read_text()[-2000:]}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def is_follower(pid):
    with contextlib.suppress(OSError):
        return b"/dtrain/follow\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def points_of(run):
    """{series: {step: value}} of the run's own file, without what depends on time."""
    found = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        kind = "train" if line["kind"] == "training" else "validation"
        values = {f"{kind}/{name}": value for name, value in line["metrics"].items()}
        values |= {f"train/{key}": line[key] for key in ("learning_rate", "gradient_norm", "epoch") if kind == "train" and key in line}
        for series, value in values.items():
            found.setdefault(series, {})[line["batch"]] = float(value)
    return found


class OfTool(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="dtrain-trackers-"))
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.server = self.proxy = None
        self.dice = random.Random(SEED)

    def serve(self, *command, **variables):
        self.server = Server(command, {**os.environ, **variables}, self.place / "server.log")
        self.addCleanup(self.server.kill)
        self.proxy = Proxy(self.server.port)
        return f"http://127.0.0.1:{self.proxy.port}"

    @staticmethod
    def victims(launch, of_follower):
        """Followers, or ranks: as soon as there are some. None: the run has ended."""
        while not launch.has_ended():
            found = [pid for pid, name in sorted(launch.processes().items())
                     if (is_follower(pid) if of_follower else name == "kills_trial")]
            if found:
                return found
            time.sleep(0.05)
        return []

    def disturbed_run(self, tool, address, **variables):
        """A run that trains for as long as it takes; a follower that was killed is started again by hand."""
        folder = self.place / "run"
        folder.mkdir()
        file = write_experiment(
            folder / "experiment.yaml", name="kills", entrypoint=BUILD.program("kills_trial"),
            hyperparameters={"global_batch_size": 32, "folder": str(folder)}, resources={"slots_per_trial": 2, "slot_type": "cpu"},
            searcher={"max_length": {"batches": BATCHES}}, min_validation_period={"batches": 150}, scheduling_unit=20,
            min_checkpoint_period={"batches": 50}, max_restarts=1000, communication={"timeout": 20},
            tracking=[{tool: address} if address else tool])
        variables = {"VIRTUAL_ENV": sys.prefix, **variables}
        os.environ.update(variables)
        self.addCleanup(lambda: [os.environ.pop(name, None) for name in variables])
        launch = Launch(BUILD, folder, file)
        follow = [BUILD.program("dtrain"), "follow", str(folder / "run"), "--to", tool, *(["--url", address] if address else [])]
        by_hand, killed = [], []
        events = folder / "run" / "events.jsonl"
        end = time.monotonic() + PATIENCE
        while not (events.exists() and "rank_running" in events.read_text()) and time.monotonic() < end and not launch.has_ended():
            time.sleep(0.1)
        for number in range(KILLS):
            time.sleep(EVERY)
            if launch.has_ended():
                break
            of_follower = number % 3 == 1
            victims = self.victims(launch, of_follower)
            if not victims:
                break
            pid = self.dice.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append("follower" if of_follower else "rank")
            if of_follower:
                by_hand.append(subprocess.Popen(follow, env={**environment(**variables), "DTRAIN_STATE_DIR": launch.state},
                                                stdout=open(self.place / "follow.log", "a"), stderr=subprocess.STDOUT))
            if self.server and number == 6:
                self.proxy.cut()
                threading.Timer(3, self.proxy.mend).start()
            if self.server and number == 13:
                self.server.kill()
                threading.Timer(3, self.server.start).start()
        launch.wait()
        for process in by_hand:
            process.wait(PATIENCE)
        done = subprocess.run(follow, env=environment(**variables), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{tool} has all of it (done)", done.stdout)
        print(f"seed {SEED}: {killed.count('rank')} kills of ranks, {killed.count('follower')} of the follower, "
              f"{self.proxy.cuts + 1 if self.proxy else 0} cuts of {tool}", flush=True)
        self.assertEqual(len(killed), KILLS, "the run was over too soon")
        if self.server:
            self.assertEqual(self.proxy.cuts, 1, "no connection was open when it was cut")
        return folder / "run"

    def check(self, run, found):
        """`found`: {series: [(step, value)]}."""
        for series, points in points_of(run).items():
            steps = [step for step, _ in found[series]]
            self.assertEqual(len(steps), len(set(steps)), f"{series} has steps twice")
            self.assertEqual(sorted(steps), sorted(points), series)
            for step, value in found[series]:
                self.assertTrue(value == points[step] or (math.isnan(value) and math.isnan(points[step])), f"{series} {step}: {value}")
        for series, points in found.items():
            steps = [step for step, _ in points]
            self.assertEqual(len(steps), len(set(steps)), f"{series} has steps twice")
        self.assertGreater(sum(map(len, found.values())), 150)
        self.assertIn("system/cpu_utilization_percentage", found)
        print(f"{sum(map(len, found.values())):,} points of {len(found)} series, each once", flush=True)


class Mlflow(OfTool):
    def test_each_point_once(self):
        from mlflow.tracking import MlflowClient

        database = f"sqlite:///{self.place}/mlflow.db"
        address = self.serve(str(Path(sys.executable).parent / "mlflow"), "server", "--backend-store-uri", database, "--port", "PORT",
                             "--workers", "1", "--default-artifact-root", str(self.place / "artifacts"))
        run = self.disturbed_run("mlflow", address)
        client = MlflowClient(f"http://127.0.0.1:{self.server.port}")
        runs = client.search_runs([client.get_experiment_by_name("kills").experiment_id])
        self.assertEqual(len(runs), 1)
        self.assertEqual(runs[0].info.status, "FINISHED")
        self.assertEqual(runs[0].data.params["global_batch_size"], "32")
        self.check(run, {key: [(metric.step, metric.value) for metric in client.get_metric_history(runs[0].info.run_id, key)]
                         for key in runs[0].data.metrics})


class Trackio(OfTool):
    def test_each_point_once(self):
        folder = str(self.place / "trackio")
        os.environ["TRACKIO_DIR"] = folder  # before the first import
        serve = "import trackio; trackio.show(open_browser=False, block_thread=True, server_port=PORT)"
        address = self.serve(sys.executable, "-c", serve, TRACKIO_DIR=folder, TRACKIO_WRITE_TOKEN="token-of-the-test")
        run = self.disturbed_run("trackio", address, TRACKIO_WRITE_TOKEN="token-of-the-test")
        for file in run.rglob("*"):
            if file.is_file():
                self.assertNotIn(b"token-of-the-test", file.read_bytes(), file)
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        runs = list(trackio.Api().runs("kills"))
        self.assertEqual(len(runs), 1)
        self.assertEqual(runs[0].config["dtrain"]["dtrain.state"], "done")
        found = {}
        for row in SQLiteStorage.get_logs("kills", runs[0].name, run_id=runs[0].id):
            for series, value in row.items():
                if series not in ("step", "timestamp"):
                    found.setdefault(series, []).append((row["step"], float(value)))
        for row in SQLiteStorage.get_system_logs("kills", runs[0].name, run_id=runs[0].id):
            for series, value in row.items():
                if series != "timestamp":
                    found.setdefault(series, []).append((row["timestamp"], value))
        self.check(run, found)


class Wandb(OfTool):
    def test_each_point_once(self):
        """Offline: what its files hold, by its own format of records. Each start of the follower has a file of its own."""
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "dtrain" / "follow"))
        from to_wandb import records_of
        from wandb.proto.wandb_internal_pb2 import Record

        run = self.disturbed_run("wandb", "", WANDB_MODE="offline", WANDB_DIR=str(self.place))
        files = sorted(self.place.glob("wandb/offline-run-*/run-*.wandb"))
        self.assertGreater(len(files), 1)
        self.assertEqual(len({file.name for file in files}), 1, "one run")
        found, rows, exits = {}, [], []
        for file in files:
            for data in records_of(file):
                record = Record()
                record.ParseFromString(data)
                kind = record.WhichOneof("record_type")
                if kind == "exit":
                    exits.append(record.exit.exit_code)
                if kind != "history":
                    continue
                row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append(int(row["_step"]))
                step = float(row["batch"] if "batch" in row else row["system/seconds"])
                for series, value in row.items():
                    if "/" in series and series != "system/seconds":
                        found.setdefault(series, []).append((step, float(value.strip('"'))))
        self.assertEqual(rows, sorted(set(rows)), "W&B's own steps ascend, over all files")
        self.assertEqual(exits[-1], 0)
        self.check(run, found)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD.open(sys.argv.pop(1), "kills_trial")
    unittest.main(verbosity=2)
