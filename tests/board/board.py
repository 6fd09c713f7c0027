"""`dtrain board`: what the server answers to whom, and its page in headless Chromium.

    board.py BIN [Server|Page[.test] ...]
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parent / "analysis")]

from dumps import write_run
from harness import BUILD, Workplace, environment, main, wait_until, write_experiment

BROWSER = "/usr/bin/chromium"
CHROMIUM = ("--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
HOSTILE = "<script>document.title = 'taken'</script>\x1b[31m"


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
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def json(self, path):
        status, _, text = self.ask(path)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def post(self, path, **options):
        return self.ask(path, "POST", origin=f"http://127.0.0.1:{self.port}", **options)

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
        board.end()
        board = self.board("--control")
        for origin in (None, "null", "http://evil.example", f"http://127.0.0.1:{int(board.port) + 1}"):
            self.assertEqual(board.ask("/api/task/1/kill", "POST", origin=origin)[0], 403, origin)
        self.assertEqual(board.post("/api/task/1/kill", cookie="dtrain=1")[0], 401)
        self.assertEqual(board.post("/api/task/123456/kill")[0], 404)
        self.assertEqual(board.post("/api/task/x/kill")[0], 404)
        self.assertEqual(board.ask("/api/task/1/kill", "DELETE")[0], 405)
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
        context.set_default_timeout(100_000)  # a loaded machine takes its time
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
            page.get_by_label("Search the log").fill("line 2998")
            self.assertEqual(page.locator(".log mark").count(), 1)

    def test_runs_side_by_side(self):
        board = self.board()
        page = self.open(board)
        for run in ("0001-first", "0002-second"):
            page.get_by_label(f"Compare run {run}").check()
        page.get_by_role("button", name="Compare 2 runs").click()
        page.locator("canvas").first.wait_for()
        self.assertEqual(page.locator(".keys li").count(), 2)
        page.get_by_role("cell", name="hyperparameters.learning_rate").wait_for()
        count = page.evaluate("[...repainters].length")
        self.assertEqual(count, 1)

    def test_a_run_is_followed_while_it_trains_and_after_it_was_killed(self):
        launch = self.start_run()
        board = self.board()
        wait_until(lambda: any(run["name"] == "watched" for run in rows(board).values()), "the run")
        run = max(run for run, row in rows(board).items() if row["name"] == "watched")
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
