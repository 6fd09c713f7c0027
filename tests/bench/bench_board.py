"""What `dtrain board` costs: 100 runs of 100,000 points, and TensorBoard's and MLflow's page of the same data beside it.

    bench_board.py BIN [--json] [--quick] [--runs N] [--points N] [--pairs N] [--data FOLDER] [--mlflow FOLDER]
                   [--cases board,step,tensorboard,mlflow]

A point is a line of metrics.jsonl: a loss, an accuracy, the learning rate and the norm of the gradients of a batch. --quick has 2,000 in
each run, and fewer turns of the step. --data keeps the runs that are made up in a folder, for the next time.

board: the command is started without a cache, and then five times with the one that it has left.
  cold_s cold_mb_s   from the command to the list of all runs, and the rate at which metrics.jsonl was read for it
  disk_mb_s          the rate at which a plain loop reads the same files right after that
  first_view_s       with the cache: from the command to all rows of the table in Chromium (goal 0.5); first_list_s: to the list alone
  run_view_s         from a click on a run to its curves in the browser; again_s: the same run, once more
  resident_mb        the most memory of the process through all of that (goal 60); page_mb: while it serves the cached list

tensorboard, mlflow: the same for their servers. TensorBoard reads the files that `dtrain export` writes of the runs; MLflow has them in its
SQLite store, where SQL puts the points. tensorboard_list_s: from the command until all runs are listed, _all_s: until their last
points are there; mlflow_list_s: from the command to its table of runs; _curve_s: one run's loss. _mb: all processes of the server.
MLflow is not in .deps: `pip install --target FOLDER mlflow`, and --mlflow FOLDER. What is missing is named in `left_out`.

step: the median step of a training on one core, in turns of a second with an open board (a client listens to the run's events and asks for
what the page asks for) and with the board stopped: step_ratio and its 95% interval (goal: it ends below 1.01). busy_step: the same with a rank
on each core of this machine, so that the board has none for itself (not with --quick). step_board_cores: the cores that the board kept busy,
its analyses included, while it was open.
"""
import argparse
import contextlib
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
from harness import Build, environment, write_experiment  # noqa: E402

BROWSER = "/usr/bin/chromium"
CHROMIUM = ["--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
PATIENCE = 900  # seconds; against hangs alone
STARTED_S = 1_795_000_000


def utc(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(STARTED_S + seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def wait_until(condition, what, pause=0.05):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen in {PATIENCE} s")
        time.sleep(pause)
    return value


# --- the runs ---

def values_of(run, points):
    """The losses and accuracies of a run, which differ between runs."""
    rng = random.Random(run)
    noise = [rng.gauss(0, 0.05) for _ in range(997)]
    rate = 1 + run % 7
    for point in range(points):
        fall = math.exp(-3 * rate * point / points)
        yield 2.2 * fall + 0.15 + abs(noise[point % 997]), 1 - 0.9 * fall


def write_runs(folder, runs, points):
    """Run folders of docs/profile-format.md without records of ranks. One that is there with as many points is kept."""
    made = folder / f"{runs}x{points}"
    if (made / "complete").is_file():
        return made
    shutil.rmtree(made, ignore_errors=True)
    heads = [f'{{"time":"{utc(0.05 * point)}","kind":"training","batch":{point + 1},"epoch":0,"samples":64,"optimizer_steps":{point + 1},'
             f'"learning_rate":{0.01 * (1 - point / points):.8f},"gradient_norm":{1 + (point * 7919 % 1000) / 1000:.4f},"metrics":'
             for point in range(points)]
    for run in range(runs):
        name = f"sweep-{run % 4}"
        place = made / "runs" / f"{run + 1:04}-{name}"
        place.mkdir(parents=True)
        with open(place / "metrics.jsonl", "w") as file:
            file.writelines(f'{head}{{"loss":{loss:.6f},"accuracy":{accuracy:.6f}}}}}\n'
                            for head, (loss, accuracy) in zip(heads, values_of(run, points)))
        plan = {"name": name, "started_by": "dtrain", "world_size": 1, "experiment": {"name": name, "hyperparameters": {
            "learning_rate": 0.01 * (1 + run % 5), "width": 64 << run % 3}, "searcher": {"metric": "accuracy", "smaller_is_better": False}}}
        (place / "plan.json").write_text(json.dumps(plan))
        end = 0.05 * points
        events = [{"time": utc(0), "event": "run_started", "rank": -1, "pid": 1, "host": "nodea"},
                  {"time": utc(0), "event": "attempt_started", "rank": -1, "attempt": 1},
                  {"time": utc(end), "event": "run_ended", "rank": -1, "pid": 1, "host": "nodea", "state": "done", "exit_code": 0}]
        (place / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (made / "complete").touch()
    return made


# --- processes ---

def family(pid):
    """The process and all that it has started."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    result, todo = [], [pid]
    while todo:
        result.append(todo.pop())
        todo += children.get(result[-1], [])
    return result


def memory_mb(pid, key="VmRSS"):
    with contextlib.suppress(OSError):
        found = re.search(rf"{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def family_mb(pid):
    """Memory that several of them share counts once."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            total += int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text(), re.M)[1])
    return total / 1024


def cpu_s(pid):
    """Of the process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Board:
    def __init__(self, build, place, cache):
        self.began = time.monotonic()
        self.process = subprocess.Popen([build.program("dtrain"), "board", "runs"], cwd=place, text=True, stdout=subprocess.PIPE,
                                        env=environment(XDG_CACHE_HOME=str(cache)))
        self.url = self.process.stdout.readline().split()[1]
        self.port = int(re.search(r":(\d+)/", self.url)[1])
        self.cookie = f"dtrain_board_{self.port}={self.url.split('=')[1]}"

    def get(self, path, stream=False):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        if stream:
            return connection, answer
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text[:200]}")
        return text

    def json(self, path):
        return json.loads(self.get(path))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stdout.close()


@contextlib.contextmanager
def chromium():
    """A browser that is ready; None: it or Playwright is not there."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield None
        return
    if not os.access(BROWSER, os.X_OK):
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=CHROMIUM)
        yield browser
        browser.close()


# --- board ---

def board_case(build, place, runs, result, left_out, turns):
    size = sum(path.stat().st_size for path in place.glob("runs/*/metrics.jsonl"))
    result["metrics_mb"] = size / 1e6
    with tempfile.TemporaryDirectory() as cache, chromium() as browser:
        board = Board(build, place, cache)
        wait_until(lambda: board.json("/api/runs")["reading"] is None, "the list of all runs", pause=0.2)
        result["cold_s"] = time.monotonic() - board.began
        result["cold_mb_s"] = size / 1e6 / result["cold_s"]
        result["cold_resident_mb"] = memory_mb(board.process.pid, "VmHWM")
        began = time.monotonic()
        for path in place.glob("runs/*/metrics.jsonl"):
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
        result["disk_mb_s"] = size / 1e6 / (time.monotonic() - began)
        board.end()
        lists, views = [], []
        if not browser:
            left_out["first_view_s"] = f"{BROWSER} or Playwright is not there"
        for turn in range(turns):
            board = Board(build, place, cache)
            if len(board.json("/api/runs")["runs"]) != runs:
                raise RuntimeError("the cached list has not all runs")
            lists.append(time.monotonic() - board.began)
            result["page_mb"] = memory_mb(board.process.pid)
            board.end()
            if not browser:
                continue
            context = browser.new_context(bypass_csp=True)
            page = context.new_page()
            page.goto("about:blank")
            board = Board(build, place, cache)
            page.goto(board.url, wait_until="commit")
            page.wait_for_function(f"document.querySelectorAll('tbody tr').length === {runs}", polling=10)
            views.append(time.monotonic() - board.began)
            if turn + 1 == turns:
                for key in ("run_view_s", "again_s"):
                    began = time.monotonic()
                    page.evaluate("location.hash = document.querySelector('tbody a').hash")
                    page.wait_for_function("document.querySelectorAll('canvas').length >= 4", polling=10)
                    result[key] = time.monotonic() - began
                    page.evaluate("location.hash = '#/runs'")
                    page.wait_for_function("document.querySelectorAll('tbody a').length > 0", polling=10)
                chosen = [run["id"] for run in board.json("/api/runs")["runs"]][:10]
                began = time.monotonic()
                page.evaluate("ids => { location.hash = '#/compare/' + ids.map(encodeURIComponent).join(','); }", chosen)
                page.wait_for_function("document.querySelectorAll('canvas').length >= 4", polling=10)
                result["ten_runs_s"] = time.monotonic() - began
            result["served_resident_mb"] = max(result.get("served_resident_mb", 0), memory_mb(board.process.pid, "VmHWM"))
            context.close()
            board.end()
        result["first_list_s"] = statistics.median(lists)
        if views:
            result["first_view_s"] = statistics.median(views)
        result["resident_mb"] = max(result["cold_resident_mb"], result.get("served_resident_mb", 0))


# --- the pages of others ---

def fetch(url, body=None):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


def answered(url, body=None):
    try:
        return fetch(url, body)
    except OSError:  # it does not listen yet
        return None


@contextlib.contextmanager
def server(command, **extra):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(**extra), start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tensorboard_case(build, place, runs, points, result, left_out):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        left_out["tensorboard"] = "this Python has no tensorboard"
        return
    for run in sorted(place.glob("runs/*")):
        if not (run / "tensorboard").is_dir():
            subprocess.run([build.program("dtrain"), "export", "--format", "tensorboard", str(run)], check=True, env=environment(),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{(port := free_port())}/data/plugin/scalars"
    began = time.monotonic()
    with server([sys.executable, "-m", "tensorboard.main", "--logdir", str(place / "runs"), "--port", str(port), "--host", "127.0.0.1"]) as process:
        known = wait_until(lambda: (tags := answered(f"{url}/tags")) and len(tags) >= runs and tags, "TensorBoard's list", pause=0.1)
        result["tensorboard_list_s"] = time.monotonic() - began
        for run in known:
            query = urllib.parse.urlencode({"tag": "training/loss", "run": run})
            wait_until(lambda: (values := answered(f"{url}/scalars?{query}")) and values[-1][1] == points, f"the last point of {run}", pause=0.2)
        result["tensorboard_all_s"] = time.monotonic() - began
        result["tensorboard_mb"] = family_mb(process.pid)


def fill_mlflow(store, folder, runs, points):
    """The runs by MLflow's client, their points by SQL: its client needs milliseconds for each."""
    script = ("import sys; from mlflow.tracking import MlflowClient; client = MlflowClient(sys.argv[1]);"
              "made = [client.create_run('0', run_name=f'run-{i}') for i in range(int(sys.argv[2]))];"
              "[client.log_metric(run.info.run_id, 'loss', 0.5, step=0) for run in made]; print(*[run.info.run_id for run in made])")
    ids = subprocess.run([sys.executable, "-c", script, store, str(runs)], check=True, capture_output=True, text=True,
                         env=environment(PYTHONPATH=str(folder))).stdout.split()[-runs:]
    base = sqlite3.connect(store.removeprefix("sqlite:///"))
    with base:
        base.execute("DELETE FROM metrics")
        for number, run in enumerate(ids):
            base.executemany("INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES ('loss', ?, ?, ?, ?, 0)",
                             ((loss, (STARTED_S + point) * 1000, run, point) for point, (loss, _) in enumerate(values_of(number, points))))
        base.execute("UPDATE latest_metrics SET step = ?", (points - 1,))
    base.close()
    return ids


def mlflow_case(folder, runs, points, data, result, left_out):
    if folder is None or not (folder / "mlflow").is_dir():
        left_out["mlflow"] = "it is not installed: pip install --target FOLDER mlflow, and --mlflow FOLDER"
        return
    file = data / f"mlflow-{runs}x{points}.db"
    ids = fill_mlflow(f"sqlite:///{file}", folder, runs, points)
    url = f"http://127.0.0.1:{(port := free_port())}/ajax-api/2.0/mlflow"
    began = time.monotonic()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{file}", "--port", str(port),
               "--host", "127.0.0.1", "--workers", "1"]
    with server(command, PYTHONPATH=str(folder)) as process:
        asked = {"experiment_ids": ["0"], "max_results": runs}
        wait_until(lambda: (found := answered(f"{url}/runs/search", asked)) and len(found.get("runs", [])) == runs, "MLflow's list", pause=0.1)
        result["mlflow_list_s"] = time.monotonic() - began
        began = time.monotonic()
        query = urllib.parse.urlencode({"run_ids": ids[0], "metric_key": "loss", "max_results": 320})
        if len(fetch(f"{url}/metrics/get-history-bulk-interval?{query}")["metrics"]) < 300:
            raise RuntimeError("MLflow has not given the curve")
        result["mlflow_curve_s"] = time.monotonic() - began
        result["mlflow_mb"] = family_mb(process.pid)
    file.unlink()


# --- training beside an open board ---

class Viewer(threading.Thread):
    """Asks for what the page of a run asks for, and when it does."""

    def __init__(self, board, run):
        super().__init__(daemon=True)
        self.board, self.run_name, self.asked = board, run, 0
        self.start()

    def run(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection, answer = self.board.get(f"/api/events?run={self.run_name}", stream=True)
            analysed = -math.inf
            for line in answer:
                if line.strip() != b"event: runs":
                    continue
                for part in ("", "/curves", "/logged"):
                    self.board.get(f"/api/run/{self.run_name}{part}")
                    self.asked += 1
                if time.monotonic() - analysed >= 15:
                    analysed = time.monotonic()
                    self.board.get(f"/api/run/{self.run_name}/analysis")
            connection.close()


def step_case(build, ranks, pairs, turn_s, name, result):
    with tempfile.TemporaryDirectory(prefix="bench-board-") as folder:
        folder = Path(folder)
        experiment = write_experiment(folder / "watched.yaml", name="watched", entrypoint=build.program("synthetic"),
                                      hyperparameters={"global_batch_size": 192 * ranks, "depth": 6, "width": 512}, data={"samples": 20000},
                                      scheduling_unit=20, resources={"slots_per_trial": ranks, "slot_type": "cpu", "cores_per_slot": 1},
                                      searcher={"max_length": {"batches": 10**7}}, min_validation_period={"batches": 0})
        launch = subprocess.Popen([build.program("dtrain"), "launch", str(experiment)], cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        board = None
        try:
            metrics = folder / "runs" / "0001-watched" / "metrics.jsonl"
            wait_until(lambda: metrics.is_file() and metrics.stat().st_size > 2000, "the first batches")
            board = Board(build, folder, folder / "cache")
            viewer = Viewer(board, "0001-watched")
            wait_until(lambda: viewer.asked >= 3, "the open page")
            turns, rng, before = [], random.Random(1), cpu_s(board.process.pid)
            for _ in range(pairs):
                for is_open in rng.sample((True, False), 2):
                    board.process.send_signal(signal.SIGCONT if is_open else signal.SIGSTOP)
                    begin = time.monotonic_ns()
                    time.sleep(turn_s)
                    turns.append((is_open, begin, time.monotonic_ns()))
            board.process.send_signal(signal.SIGCONT)
            result[f"{name}_board_cores"] = (cpu_s(board.process.pid) - before) / (pairs * turn_s)
        finally:
            launch.send_signal(signal.SIGINT)
            launch.wait(60)
            if board:
                board.end()
        steps = []
        with open(folder / "runs" / "0001-watched" / "profile" / "rank-0000.jsonl") as records:
            for line in records:
                if line.startswith('{"record":"step"'):
                    step = json.loads(line)
                    steps.append((step["start_ns"], step["wall_ns"]))
        medians = []
        for is_open, begin, end in turns:
            inside = [wall for start, wall in steps if begin <= start and start + wall <= end]
            if len(inside) < 5:
                raise RuntimeError(f"a turn has {len(inside)} steps in full: they are too long here, or the records are windows by then")
            medians.append((is_open, statistics.median(inside)))
        logs = [math.log(dict(pair)[True] / dict(pair)[False]) for pair in zip(medians[::2], medians[1::2])]
        middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        result[f"{name}_ms"] = statistics.median(value for is_open, value in medians if not is_open) / 1e6
        result[f"{name}_ratio"] = math.exp(middle)
        result[f"{name}_ratio_from"], result[f"{name}_ratio_to"] = math.exp(middle - 2 * error), math.exp(middle + 2 * error)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int, help="of turns of the step (60, with --quick 8)")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--points", type=int)
    parser.add_argument("--cases", default="board,step,tensorboard,mlflow")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--mlflow", type=Path)
    options = parser.parse_args()
    build = Build(options.bin, "synthetic")
    points = options.points or (2_000 if options.quick else 100_000)
    result, left_out = {"runs": options.runs, "points": points}, {}
    with contextlib.ExitStack() as stack:
        disk = os.environ.get("TMPDIR", "/var/tmp")
        folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-board-", dir=disk)))
        place = write_runs(folder, options.runs, points)
        cases = options.cases.split(",")
        if "board" in cases:
            board_case(build, place, options.runs, result, left_out, 3 if options.quick else 5)
        if "step" in cases:
            pairs = options.pairs or (8 if options.quick else 60)
            step_case(build, 1, pairs, 1.0, "step", result)
            if not options.quick:
                step_case(build, os.cpu_count(), pairs, 1.0, "busy_step", result)
        if "tensorboard" in cases:
            tensorboard_case(build, place, options.runs, points, result, left_out)
        if "mlflow" in cases:
            mlflow_case(options.mlflow, options.runs, points, folder, result, left_out)
    result = {key: round(value, 4) if isinstance(value, float) else value for key, value in result.items()} | {"left_out": left_out}
    print(json.dumps(result) if options.json else "\n".join(f"{key:24} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
