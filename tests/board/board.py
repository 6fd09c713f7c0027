"""`dtrain board`: what the server answers to whom, and its page in headless Chromium.

    board.py BIN [Server|Page[.test] ...]
"""
import http.client
import json
import os
import re
import signal
import struct
import subprocess
import sys
import unittest
import urllib.parse
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parent / "analysis")]

from dumps import write_run
from harness import BUILD, Workplace, environment, main, wait_until, write_experiment

BROWSER = "/usr/bin/chromium"
CHROMIUM = ("--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
MUCH = 100_000  # milliseconds that a page may take on a loaded machine
HOSTILE = "<script>document.title = 'taken'</script>\x1b[31m"


def grey_png(value, side=8):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([value] * side) for _ in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def write_events(run, number, *events):
    """An event file of the run, by TensorBoard's own library. Of each event: step, name, and a PNG file, a histogram's values, or a number."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
    folder = run / "tensorboard" / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"events.out.tfevents.{number:010}.run", "ab") as file:
        writer = RecordWriter(file)
        for step, name, content in events:
            event = Event(wall_time=1e9, step=step)
            if content is None:
                event.session_log.status = SessionLog.START
            elif isinstance(content, bytes):
                image = Summary.Image(height=8, width=8, colorspace=1, encoded_image_string=content)
                event.summary.value.append(Summary.Value(tag=name, image=image))
            elif isinstance(content, list):
                bins = HistogramProto(min=min(content), max=max(content), num=len(content), sum=sum(content), sum_squares=0,
                                      bucket_limit=sorted(content), bucket=[1] * len(content))
                event.summary.value.append(Summary.Value(tag=name, histo=bins))
            else:
                event.summary.value.append(Summary.Value(tag=name, simple_value=content))
            writer.write(event.SerializeToString())
        return file.name


class Board:
    """A board of the runs in place/runs."""

    def __init__(self, place, *options):
        self.process = subprocess.Popen([BUILD.program("dtrain"), "board", *options], cwd=place.path, text=True, stdout=subprocess.PIPE,
                                        env=environment(XDG_CACHE_HOME=str(place.path / "cache")))
        self.url = re.fullmatch(r"board\s+(\S+)\n", self.process.stdout.readline())[1]
        self.port, self.token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32})", self.url).groups()
        self.cookie = f"dtrain_board_{self.port}={self.token}"

    def ask(self, path, method="GET", cookie=None, host=None, origin=None, body=None):
        """Status, headers, text."""
        connection = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
        if cookie is None or cookie:
            connection.putheader("Cookie", cookie or self.cookie)
        if origin:
            connection.putheader("Origin", origin)
        if method == "POST":
            connection.putheader("Content-Length", str(len(body or "")))
        connection.endheaders((body or "").encode() if method == "POST" else None)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_picture = answer.getheader("Content-Type") == "image/png"
        return answer.status, dict(answer.getheaders()), content if is_picture else content.decode()

    def json(self, path):
        status, _, text = self.ask(path)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def post(self, path, **options):
        return self.ask(path, "POST", origin=f"http://127.0.0.1:{self.port}", **options)

    def logged(self, run, part, name, step):
        return self.ask(f"/api/run/{run}/{part}?" + urllib.parse.urlencode({"name": name, "step": step}))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def clear(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("board")
        cls.addClassCleanup(cls.place.remove)
        cls.runs = cls.place.path / "runs"
        write_run(cls.runs / "0001-first", name="first", steps=600, attempts=2)
        write_run(cls.runs / "0002-second", name="second", rate=2.0, steps=300, nan_at=(120,))
        write_run(cls.runs / "0003-hostile", name=HOSTILE, steps=100)
        (cls.runs / "0001-first" / "logs").mkdir()
        (cls.runs / "0001-first" / "logs" / "rank-0000.log").write_text(
            "".join(f"line {number}\n" for number in range(3000)) + HOSTILE + "\nno end yet")

    def board(self, *options):
        board = Board(self.place, *options)
        self.addCleanup(board.clear)
        return board

    def start_run(self, batches=10_000_000):
        """A run that trains until it is stopped; its name is the next one in runs."""
        file = write_experiment(self.place.path / "watched.yaml", name="watched", entrypoint=BUILD.program("synthetic"),
                                hyperparameters={"global_batch_size": 64, "depth": 2, "width": 64}, data={"samples": 20000},
                                scheduling_unit=50, resources={"slots_per_trial": 1}, searcher={"max_length": {"batches": batches}})
        launch = subprocess.Popen([BUILD.program("dtrain"), "launch", str(file)], cwd=self.place.path, env=environment(),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def stop():
            launch.send_signal(signal.SIGINT)
            launch.wait(60)
        self.addCleanup(stop)
        return launch


def rows(board):
    return {run["id"]: run for run in board.json("/api/runs")["runs"]}


class Server(Case):
    def test_only_the_token_opens_it(self):
        board = self.board()
        for path in ("/", "/api/runs", "/board.js", "/api/run/0001-first", "/api/events"):
            self.assertEqual(board.ask(path, cookie="")[0], 401, path)
            self.assertEqual(board.ask(path, cookie=f"dtrain_board_{board.port}={'0' * 32}")[0], 401, path)
            self.assertEqual(board.ask(path, host="evil.example")[0], 421, path)
        status, headers, _ = board.ask(f"/?token={board.token}", cookie="")
        self.assertEqual((status, headers["Location"]), (303, "/"))
        for word in (board.cookie, "HttpOnly", "SameSite=Strict"):
            self.assertIn(word, headers["Set-Cookie"])
        status, headers, text = board.ask("/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn(board.token, text)
        self.assertEqual(board.end(), 0)

    def test_control_is_given_to_its_own_page_alone(self):
        board = self.board()
        self.assertEqual(board.post("/api/task/1/kill")[0], 403)  # it only shows
        self.assertEqual(board.post("/api/run/0001-first/launch", body='{"set":[]}')[0], 403)
        board.end()
        board = self.board("--control")
        for origin in (None, "null", "http://evil.example", f"http://127.0.0.1:{int(board.port) + 1}"):
            self.assertEqual(board.ask("/api/task/1/kill", "POST", origin=origin)[0], 403, origin)
        self.assertEqual(board.post("/api/task/1/kill", cookie="dtrain=1")[0], 401)
        self.assertEqual(board.post("/api/task/123456/kill")[0], 404)
        self.assertEqual(board.post("/api/task/x/kill")[0], 404)
        self.assertEqual(board.ask("/api/task/1/kill", "DELETE")[0], 405)
        self.assertEqual(board.ask("/api/run/0001-first/launch", "POST", origin="http://evil.example", body="{}")[0], 403)
        self.assertEqual(board.post("/api/task/1/kill", body="x" * 100_000)[0], 413)

    def test_a_task_is_paused_activated_and_stopped(self):
        board = self.board("--control")
        launch = self.start_run()
        wait_until(lambda: any(run.get("now", {}).get("batch", 0) > 0 for run in rows(board).values()), "the first batches")
        task = next(task for task in board.json("/api/queue")["tasks"] if not task["ended"])
        number = task["id"]

        def state():
            return next(task["state"] for task in board.json("/api/queue")["tasks"] if task["id"] == number)
        self.assertIn("saves, gives up its slots", board.post(f"/api/task/{number}/pause")[2])
        wait_until(lambda: state() == "paused", "the pause")
        self.assertIn("waits in the queue again", board.post(f"/api/task/{number}/activate")[2])
        wait_until(lambda: state() == "running", "its going on")
        self.assertEqual(board.post(f"/api/task/{number}/explode")[0], 404)
        self.assertIn("stops after its current step", board.post(f"/api/task/{number}/kill")[2])
        launch.wait(60)
        self.assertEqual(state(), "interrupted")

    def test_what_it_says_of_runs_is_what_the_commands_say(self):
        board = self.board()
        wait_until(lambda: board.json("/api/runs")["reading"] is None, "all runs")
        found = rows(board)
        self.assertEqual({"0001-first", "0002-second", "0003-hostile"} - set(found), set())
        lines = subprocess.run([BUILD.program("dtrain"), "runs", "--csv"], cwd=self.place.path, text=True, capture_output=True, check=True,
                               env=environment()).stdout
        self.assertIn("0001-first", lines)
        first = found["0001-first"]
        self.assertEqual((first["name"], first["attempts"], first["number"]), ("first", 2, 1))
        self.assertIn(f",{first['best_metric']['value']:.4g}"[:6], lines)
        curves = board.json("/api/run/0002-second/curves")
        loss = next(curve for curve in curves["curves"] if (curve["kind"], curve["name"]) == ("training", "loss"))
        self.assertEqual(len(loss["batches"]), len(loss["mean"]))
        self.assertLessEqual(len(loss["batches"]), 400)
        self.assertEqual(loss["non_finite"], 1)
        analysis = board.json("/api/run/0001-first/analysis")
        direct = subprocess.run([BUILD.program("dtrain"), "analyze", "--json", str(self.runs / "0001-first")], text=True, check=True,
                                capture_output=True, env=environment()).stdout
        self.assertEqual(analysis, json.loads(direct))
        about = board.json("/api/run/0001-first")
        self.assertEqual([attempt["attempt"] for attempt in about["attempts"]], [1, 2])
        self.assertEqual(board.ask("/api/run/0009-none")[0], 404)
        self.assertEqual(board.ask("/api/run/..%2f..%2fetc")[0], 404)

    def test_logs_are_read_on(self):
        board = self.board()
        end = board.json("/api/run/0001-first/log?rank=0")
        self.assertEqual(end["lines"][-2], "line 2999")
        self.assertNotIn("\x1b", end["lines"][-1])
        self.assertEqual(end["size"] - end["next"], len("no end yet"))
        begin = board.json("/api/run/0001-first/log?rank=0&from=0")
        self.assertEqual(begin["lines"][:2], ["line 0", "line 1"])
        self.assertEqual(board.json(f"/api/run/0001-first/log?rank=0&from={end['next']}")["lines"], [])
        with open(self.runs / "0001-first" / "logs" / "rank-0000.log", "a") as log:
            log.write("; here it is\n")
        self.assertEqual(board.json(f"/api/run/0001-first/log?rank=0&from={end['next']}")["lines"], ["no end yet; here it is"])
        self.assertEqual(board.ask("/api/run/0001-first/log?rank=7")[0], 404)

    def test_pictures_and_histograms_are_those_that_count(self):
        board = self.board()
        run = self.runs / "0005-logs"
        write_run(run, name="logs", steps=60)
        before = [(step, "loss", 0.5) for step in range(1, 2000)]
        write_events(run, 1, *before, (10, "samples", grey_png(10)), (20, "samples", grey_png(20)), (30, "samples", grey_png(30)),
                     (10, "weights", [-1.0, 0.5, 3.0]), (40, "weights", [0.0]), (30, HOSTILE, grey_png(1)))
        file = write_events(run, 2, (30, "", None), (30, "samples", grey_png(31)), (40, "samples", b"no picture"))
        wait_until(lambda: "0005-logs" in rows(board), "the run")

        def steps():
            return {(value["kind"], value["name"]): value["steps"] for value in board.json("/api/run/0005-logs/logged")["values"]}
        self.assertEqual(steps(), {("picture", "samples"): [10, 20, 30, 40], ("histogram", "weights"): [10]})
        for step, value in ((10, 10), (20, 20), (30, 31)):  # the second file went on from batch 30
            status, headers, picture = board.logged("0005-logs", "picture", "samples", step)
            self.assertEqual((status, headers["Content-Type"], picture), (200, "image/png", grey_png(value)))
        histogram = json.loads(board.logged("0005-logs", "histogram", "weights", 10)[2])
        self.assertEqual([histogram[key] for key in ("least", "greatest", "count", "limits", "counts")],
                         [-1, 3, 3, [-1, 0.5, 3], [1, 1, 1]])
        self.assertIn("is no PNG file", board.logged("0005-logs", "picture", "samples", 40)[2])
        for part, name, step in (("picture", "samples", 11), ("picture", "weights", 10), ("histogram", "samples", 10), ("picture", "none", 1)):
            self.assertEqual(board.logged("0005-logs", part, name, step)[0], 404)
        whole = Path(write_events(run, 3, (50, HOSTILE, grey_png(50)))).read_bytes()
        Path(file).with_name("events.out.tfevents.0000000003.run").unlink()
        with open(file, "ab") as events:  # an event comes in two parts
            events.write(whole[:len(whole) // 2])
            events.flush()
            self.assertNotIn(("picture", HOSTILE), steps())
            events.write(whole[len(whole) // 2:])
            events.flush()
            self.assertEqual(steps()["picture", HOSTILE], [50])
            events.write(b"\xff" * 1000)
        write_events(run, 4, (60, "samples", grey_png(60)))
        self.assertEqual(steps()["picture", "samples"][-1], 60)
        many = [(100 + number, "many", grey_png(number % 256)) for number in range(2500)]
        write_events(run, 5, *many)
        found = steps()["picture", "many"]
        self.assertLessEqual(len(found), 1000)
        self.assertEqual(found[-1], 2599)
        self.assertEqual(board.json("/api/run/0001-first/logged"), {"values": []})
        subprocess.run(["rm", "-r", str(run)], check=True)

    def test_a_run_is_launched_again_and_continued(self):
        board = self.board("--control")
        before = set(rows(board))
        self.assertEqual(self.start_run(batches=40).wait(120), 0)
        wait_until(lambda: set(rows(board)) - before, "the run")
        run = max(set(rows(board)) - before)
        path = f"/api/run/{run}"

        def post(action, *settings):
            status, _, text = board.post(f"{path}/{action}", body=json.dumps({"set": settings}))
            self.assertEqual(status, 200, text)
            return json.loads(text)
        for settings in (["no key"], ["=1"], [7], ["hyperparameters.width=64", "resources.slots=1"]):
            answer = post("launch", *settings)
            self.assertFalse(answer["launched"], answer)
        self.assertIn("resources.slots", answer["text"])
        self.assertIn("length", post("continue")["text"])  # it is complete
        answer = post("launch", "hyperparameters.width=32")
        self.assertTrue(answer["launched"], answer)
        wait_until(lambda: set(rows(board)) - before - {run}, "the new run")
        new = (set(rows(board)) - before - {run}).pop()
        self.end_of(board, new)
        plan = json.loads((self.runs / new / "plan.json").read_text())
        self.assertEqual(plan["experiment"]["hyperparameters"]["width"], 32)
        self.assertEqual(plan["experiment"]["searcher"]["max_length"], {"batches": 40})
        answer = post("continue", "searcher.max_length.batches=80", "resources.slots_per_trial=2")
        self.assertTrue(answer["launched"], answer)
        wait_until(lambda: json.loads((self.runs / run / "plan.json").read_text())["world_size"] == 2, "the continuation")
        self.end_of(board, run, batches=80)
        self.assertEqual(set(rows(board)) - before, {run, new})  # it went on in its own folder

    def end_of(self, board, run, batches=40):
        def is_done(row):
            return row.get("state") == "done" and row["batches"] == batches
        wait_until(lambda: is_done(rows(board)[run]), "the end of the run")
        # Its launcher writes the report after that.
        wait_until(lambda: not [task for task in board.json("/api/queue")["tasks"] if not task["ended"]], "the end of its task")

    def test_what_was_read_is_kept(self):
        board = self.board()
        wait_until(lambda: board.json("/api/runs")["reading"] is None, "all runs")
        before = rows(board)
        board.end()
        kept = list((self.place.path / "cache" / "dtrain" / "board").glob("*.json"))
        self.assertEqual(len(kept), 1)
        self.assertEqual(kept[0].stat().st_mode & 0o777, 0o600)
        board = self.board()
        self.assertEqual(rows(board), before)  # at once
        board.end()
        kept[0].write_text("{damaged")
        board = self.board()
        wait_until(lambda: board.json("/api/runs")["reading"] is None, "all runs, once more")
        self.assertEqual(set(rows(board)), set(before))

    def test_runs_come_and_go(self):
        board = self.board()
        folder = self.runs / "0004-late"
        write_run(folder, name="late", steps=60)
        wait_until(lambda: rows(board).get("0004-late", {}).get("batches"), "the new run")
        subprocess.run(["rm", "-r", str(folder)], check=True)
        wait_until(lambda: "0004-late" not in rows(board), "its end")

    def test_wrong_calls_are_told(self):
        def said(*arguments):
            done = subprocess.run([BUILD.program("dtrain"), "board", *arguments], cwd=self.place.path, text=True, capture_output=True,
                                  env=environment(), timeout=60)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr
        self.assertIn("there is no folder", said("nowhere"))
        self.assertIn("is no URL", said("--base-url", "here"))
        board = self.board()
        self.assertIn(f"cannot listen on 127.0.0.1:{board.port}", said("--port", board.port))
        with open("/dev/full", "w") as full:
            done = subprocess.run([BUILD.program("dtrain"), "board"], cwd=self.place.path, text=True, stdout=full, stderr=subprocess.PIPE,
                                  env=environment(), timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the board's address could not be written", done.stderr)


@unittest.skipUnless(os.access(BROWSER, os.X_OK), f"{BROWSER} is not there (Debian: apt install chromium)")
class Page(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from playwright.sync_api import sync_playwright
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=BROWSER, args=list(CHROMIUM))
        cls.addClassCleanup(cls.browser.close)

    def open(self, board, view="", width=1280, **options):
        """A page that fails the test for anything it complains about or fetches elsewhere."""
        context = self.browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(MUCH)
        self.addCleanup(context.close)
        page = context.new_page()
        troubles = []
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        own = f"http://127.0.0.1:{board.port}/"
        page.on("request", lambda request: None if request.url.startswith((own, "data:")) else troubles.append(f"fetched: {request.url}"))
        self.addCleanup(lambda: self.assertEqual(troubles, []))
        page.goto(board.url)
        self.assertEqual(page.url, own)  # the token is gone
        if view:
            page.evaluate("view => { location.hash = view; }", view)
        return page

    def test_the_table_sorts_searches_and_groups(self):
        page = self.open(self.board())
        table = page.locator("tbody tr")
        table.nth(2).wait_for()
        page.locator("td .state").nth(2).wait_for()
        page.get_by_role("button", name="run", exact=True).click()
        first = page.locator("tbody a").first
        self.assertEqual(first.inner_text(), "1")
        page.get_by_role("button", name="run", exact=True).click()
        self.assertNotEqual(first.inner_text(), "1")
        page.get_by_label("Search runs").fill("second")
        self.assertEqual(table.count(), 1)
        page.get_by_label("Search runs").fill("learning_rate=0.02")
        self.assertEqual(table.count(), 1)
        page.get_by_label("Search runs").fill("")
        page.get_by_label("Group by experiment").check()
        self.assertGreaterEqual(page.locator("tr.group").count(), 3)

    def test_texts_of_runs_are_shown_and_do_nothing(self):
        page = self.open(self.board(), "#/run/0003-hostile")
        page.get_by_text("<script>document.title").first.wait_for()
        self.assertNotIn("taken", page.title())
        page = self.open(self.board(), "#/run/0001-first")
        page.locator(".log", has_text="<script>").wait_for()
        self.assertNotIn("\x1b", page.locator(".log").inner_text())
        self.assertNotIn("taken", page.title())

    def test_a_run_has_all_its_parts_at_both_widths_and_in_both_themes(self):
        board = self.board()
        for width, scheme in ((1280, "light"), (400, "dark")):
            page = self.open(board, "#/run/0001-first", width=width, color_scheme=scheme)
            page.locator(".finding").first.wait_for()
            page.locator("canvas").nth(2).wait_for()
            for heading in ("In its last seconds", "Curves", "Where the time goes, and what to change", "Attempts and checkpoints", "Logs"):
                self.assertEqual(page.get_by_role("heading", name=heading, exact=True).count(), 1, heading)
            self.assertTrue(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling")
            colours = page.locator("canvas").first.evaluate("""canvas => {
              const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
              return new Set(new Uint32Array(data.buffer)).size;
            }""")
            self.assertGreater(colours, 3)
            self.audit(page)
            page.get_by_label("Search the log").fill("line 2998")
            self.assertEqual(page.locator(".log mark").count(), 1)

    def test_the_runs_fit_the_page(self):
        board = self.board()
        wait_until(lambda: board.json("/api/runs")["reading"] is None, "all runs")
        for width, scheme in ((1280, "dark"), (400, "light")):
            page = self.open(board, width=width, color_scheme=scheme)
            page.locator("td .state").nth(2).wait_for()
            room, needed = page.locator(".scroll").evaluate("place => [place.clientWidth, place.scrollWidth]")
            self.assertLessEqual(needed, room, f"a page of {width} pixels")
            self.assertTrue(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
            self.audit(page)

    def test_pictures_are_turned_over_by_keyboard(self):
        run = self.runs / "0006-pictures"
        write_run(run, name="pictures", steps=60)
        write_events(run, 1, *((step, "samples", grey_png(step)) for step in (10, 20, 30)), (10, "weights", [-1.0, 0.5, 3.0]))
        board = self.board()
        wait_until(lambda: "0006-pictures" in rows(board), "the run")
        page = self.open(board, "#/run/0006-pictures", width=400)
        page.get_by_role("img", name="samples, batch 30").wait_for()
        self.assertEqual(page.get_by_role("img", name="samples").evaluate("picture => picture.naturalWidth"), 8)
        page.get_by_role("img", name="Histogram of weights, from -1 to 3").wait_for()
        self.assertEqual(page.locator(".histogram rect").count(), 40)
        slider = page.get_by_label("Batch of samples")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.get_by_role("img", name="samples, batch 20").wait_for()
        page.keyboard.press("End")
        page.get_by_role("img", name="samples, batch 30").wait_for()
        self.audit(page)

    def test_a_launch_that_is_refused_says_why(self):
        page = self.open(self.board("--control"), "#/run/0001-first")
        button = page.get_by_role("button", name="Launch a new run")
        button.wait_for()
        page.get_by_label("Changed keys").fill("no key")
        button.focus()
        page.keyboard.press("Enter")
        page.get_by_text("'no key' changes no key").wait_for()
        self.audit(page)

    def audit(self, page):
        """What a screen reader needs: names of controls and pictures, headings in their order, one place for each id."""
        problems = page.evaluate("""async () => {
          await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));  // what observes sizes has done so
          const problems = [], shown = (element) => element.checkVisibility();
          const name = (element) => element.getAttribute('aria-label') ||
            [...(element.labels || [])].map((label) => label.textContent).join(' ') || element.textContent;
          for (const element of document.querySelectorAll('button, input, select, textarea, a[href]')) {
            if (shown(element) && !name(element).trim()) problems.push(`no name: ${element.outerHTML.slice(0, 100)}`);
          }
          for (const element of document.querySelectorAll('img:not([alt]), [role=img]:not([aria-label]), [role=group]:not([aria-label])')) {
            problems.push(`no text: ${element.outerHTML.slice(0, 100)}`);
          }
          let level = 0;
          for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
            if (!shown(heading)) continue;
            const next = Number(heading.tagName[1]);
            if (next > level + 1) problems.push(`${heading.tagName} '${heading.textContent}' follows H${level}`);
            level = next;
          }
          const ids = [...document.querySelectorAll('[id]')].map(({id}) => id);
          if (new Set(ids).size !== ids.length) problems.push('an id is there twice');
          for (const place of document.querySelectorAll('.scroll')) {
            if (!shown(place) || place.scrollWidth <= place.clientWidth || place.tabIndex >= 0) continue;
            problems.push(`not scrolled by keyboard: ${place.getAttribute('aria-label')}`);
          }
          return problems;
        }""")
        self.assertEqual(problems, [])

    def test_runs_side_by_side(self):
        board = self.board()
        page = self.open(board)
        for run in ("0001-first", "0002-second"):
            page.get_by_label(f"Compare run {run}").check()
        page.get_by_role("button", name="Compare 2 runs").click()
        page.locator("canvas").first.wait_for()
        self.assertEqual(page.locator(".keys li").count(), 2)
        page.get_by_role("cell", name="hyperparameters.learning_rate").wait_for()
        self.audit(page)
        count = page.evaluate("[...repainters].length")
        self.assertEqual(count, 1)

    def test_a_run_is_followed_while_it_trains_and_after_it_was_killed(self):
        launch = self.start_run()
        board = self.board()
        wait_until(lambda: any(run.get("name") == "watched" for run in rows(board).values()), "the run")
        run = max(run for run, row in rows(board).items() if row.get("name") == "watched")
        page = self.open(board, f"#/run/{run}")
        page.locator(".state.running").first.wait_for()
        batches = page.locator(".facts dd").first

        def batch():
            return int(re.match(r"[\d,]+", batches.inner_text().strip())[0].replace(",", ""))
        wait_until(lambda: batch() > 0, "a batch on the page")
        before = batch()
        wait_until(lambda: batch() > before, "the next batches on the page")
        page.locator(".shares i").first.wait_for()
        for table, most in ((0, 0), (1, 1)):  # this host may have no GPU
            cells = page.locator("section", has_text="where its time goes").locator("tbody").nth(table).locator("tr").first.locator("td")
            self.assertLessEqual(cells.all_inner_texts().count("-"), most, cells.all_inner_texts())
        pid = json.loads((self.runs / run / "events.jsonl").read_text().splitlines()[0]).get("pid")
        self.assertTrue(pid)
        launch.send_signal(signal.SIGINT)
        launch.wait(60)
        page.locator(".state.interrupted").first.wait_for()

    def test_the_queue_by_keyboard(self):
        launch = self.start_run()
        board = self.board("--control")
        page = self.open(board, "#/queue")
        button = page.get_by_role("button", name=re.compile("Stop task"))
        button.wait_for()
        wait_until(lambda: any(run.get("now", {}).get("batch", 0) > 0 for run in rows(board).values()), "the first batches")
        page.on("dialog", lambda dialog: dialog.accept())
        button.focus()
        page.keyboard.press("Enter")
        page.get_by_text("stops after its current step").first.wait_for()
        launch.wait(60)
        page.locator(".state.interrupted").first.wait_for()


if __name__ == "__main__":
    main("synthetic")
