"""The report in headless Chromium: what it fetches (nothing), says, draws and does.

    report_page.py DTRAIN_PROGRAM
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from playwright.sync_api import sync_playwright

from dumps import write_run

PROGRAM = str(Path(sys.argv.pop(1)).resolve())
SECTIONS = ("verdict", "job", "learning", "checkpoints", "waterfall", "roofline", "timeline", "stragglers", "collectives", "what-if", "system", "framework",
            "operators", "rules", "steps", "gpu-utilization", "balance", "data-loading", "batch-size", "cpu-bottlenecks",
            "io-bottlenecks", "memory", "completeness")
BROWSER = "/usr/bin/chromium"
CHROMIUM = ("--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
# Of a canvas, how many different colours it has.
COLORS = """canvas => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""
BRIGHTNESS = """element => {
  const [r, g, b] = getComputedStyle(element).backgroundColor.match(/\\d+/g).map(Number);
  return (r + g + b) / 3;
}"""


def report_of(folder, **shape):
    run = write_run(folder, **shape)
    done = subprocess.run([PROGRAM, "report", str(run)], capture_output=True, text=True, check=True, timeout=120)
    file = Path(done.stdout.strip())
    assert file == run / "report.html", done.stdout
    return file


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(BROWSER, os.X_OK):
            raise unittest.SkipTest(f"{BROWSER} is not there (Debian: apt install chromium)")
        cls.place = Path(tempfile.mkdtemp(prefix="dtrain-report-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.two_ranks = report_of(cls.place / "two", name="<b>two</b> & more")
        cls.learning = report_of(cls.place / "learning", steps=3000, attempts=5, nan_at=(1710,), name="learning")
        cls.with_gpus = report_of(cls.place / "gpus", ranks=8, hosts=2, gpus=2, steps=200)
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=BROWSER, args=list(CHROMIUM))
        cls.addClassCleanup(cls.browser.close)

    def open(self, file, **options):
        """A page that fails the test for anything it complains about or fetches."""
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        troubles = []
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url}"))
        page.on("request", lambda request: None if request.url == file.as_uri() else troubles.append(f"fetched: {request.url}"))
        page.goto(file.as_uri())
        self.addCleanup(lambda: self.assertEqual(troubles, []))
        return page

    def figures(self, page):
        return page.locator("figure.chart")

    def assert_drawn(self, page, least):
        canvases = page.locator("figure.chart canvas").all()
        self.assertGreaterEqual(len(canvases), least)
        for canvas in canvases:
            colors = canvas.evaluate(COLORS)
            self.assertGreater(colors, 3, canvas.get_attribute("aria-label"))

    def test_all_sections_and_charts_in_light_and_dark(self):
        for file, least in ((self.two_ranks, 20), (self.with_gpus, 24)):
            backgrounds = {}
            for scheme in ("light", "dark"):
                page = self.open(file, color_scheme=scheme)
                self.assertEqual(tuple(page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")), SECTIONS)
                for section in SECTIONS:
                    text = page.locator(f"#{section}").inner_text()
                    self.assertGreater(len(text.splitlines()), 1, section)
                self.assert_drawn(page, least)
                backgrounds[scheme] = page.locator("body").evaluate(BRIGHTNESS)
                self.assertEqual(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), True, "no sideways scrolling")
            self.assertGreater(backgrounds["light"], 200)
            self.assertLess(backgrounds["dark"], 60)

    def points(self, page, chart, names=False):
        """Of the lines that are drawn in a chart: how many points, the first and the last x."""
        return page.evaluate("""id => {
          const {chart} = figures.find((one) => one.element.id === id);
          return chart.data.datasets.filter((set) => !set.band).map(({label, data}) => [label, data.length, data[0].x, data.at(-1).x]);
        }""", chart)

    def test_five_attempts_are_one_curve(self):
        page = self.open(self.learning)
        section = page.locator("#learning")
        self.assertIn("The curves join 5 attempts.", section.inner_text())
        self.assertIn("after batches 600, 1,200, 1,800 and 2,400", section.inner_text())
        titles = section.locator("figcaption strong").all_inner_texts()
        self.assertEqual(titles, ["loss", "accuracy", "learning rate", "gradient norm", "throughput"])
        self.assertEqual(self.points(page, "curve-0"), [["training", 300, 10, 3000], ["validation", 6, 500, 3000]])
        self.assertIn("nan or infinite once, first in batch 1,710", section.locator("#curve-0 figcaption").inner_text())
        begin = page.evaluate("figures.filter((one) => one.base.over).map((one) => one.chart.scales.y.min)")
        self.assertEqual(begin, [0, 0, 0, 0, 0], "no axis goes below zero where no value does")
        page.locator("#curves-over").select_option("time")
        (_, _, first, last), _ = self.points(page, "curve-0")
        self.assertAlmostEqual(first, 5 + 20 / 60, places=3)
        self.assertAlmostEqual(last, 4 * 27 + 25, places=3, msg="without the time between attempts")

    def test_scopes_of_the_trial_are_a_table(self):
        page = self.open(self.two_ranks)
        table = page.locator("#framework table", has_text="Scopes (total")
        rows = table.locator("tbody").evaluate("b => [...b.rows].map((r) => [...r.cells].map((c) => c.textContent))")
        self.assertEqual([row[0].strip() for row in rows], ["augment", "crop"])
        self.assertTrue(rows[1][0].startswith("\u2003"), "indented")
        for row, calls in zip(rows, ("600", "2,400")):
            self.assertEqual((row[5], row[6], row[7]), (calls, "600", "train_batch.forward"))
            self.assertRegex(row[8], r"^rank 1: [\d.]+ m?s$")
        box = table.bounding_box()
        self.assertGreater(box["height"], 40)
        self.assertLessEqual(box["x"] + box["width"], 1280)

    def test_curves_have_switches(self):
        page = self.open(self.learning)
        picture = lambda: page.locator("#curve-0 canvas").evaluate("c => c.toDataURL()")
        y = lambda: page.evaluate("figures.find((one) => one.element.id === 'curve-0').chart.options.scales.y.type")
        sets = lambda: page.evaluate("figures.find((one) => one.element.id === 'curve-0').chart.data.datasets.length")
        before = picture()
        self.assertEqual(sets(), 3, "training, the same smoothed, and validation")
        page.locator("#curves-smoothing").fill("0")
        # Not wait_for_function(): the page's policy refuses a text that is evaluated again and again.
        smoothed = lambda: page.evaluate("document.getElementById('curves-smoothed').value")
        for _ in range(600):
            if smoothed() == "0.00" and sets() == 2:
                break
            page.wait_for_timeout(50)
        self.assertEqual((smoothed(), sets()), ("0.00", 2))
        self.assertNotEqual(picture(), before)
        self.assertEqual(y(), "linear")
        page.locator("#curves-log").check()
        self.assertEqual(y(), "logarithmic")
        key = page.locator("#curve-0 .key", has_text="validation")
        key.click()
        page.locator("#curves-over").select_option("time")
        self.assertEqual(key.get_attribute("aria-pressed"), "false", "what is hidden stays hidden")
        page.locator("#curve-0 canvas").focus()
        page.keyboard.press("ArrowRight")
        self.assertRegex(page.locator(".speech").inner_text(), r"time of training 5.33 s, training: [\d.]+")
        page.keyboard.press("+")
        self.assertTrue(page.locator("#curve-4 button", has_text="Show all").is_visible(), "curves are zoomed together")
        page.locator("#curves-over").select_option("batches")
        self.assertFalse(page.locator("#curve-4 button", has_text="Show all").is_visible())

    def test_values_of_curves_stand_beside_their_batch(self):
        page = self.open(self.learning)
        page.locator("#curve-0 button", has_text="Values").click()
        rows = {row[0]: row[1:] for row in page.locator("#curve-0 tbody").evaluate("b => [...b.rows].map((r) => [...r.cells].map((c) => c.textContent))")}
        self.assertEqual(len(rows), 300)
        self.assertEqual(rows["1,710"], ["-", "-"])
        self.assertEqual([batch for batch, (_, validation) in rows.items() if validation != "-"], ["500", "1,000", "1,500", "2,000", "2,500", "3,000"])

    def test_several_runs_are_laid_over_each_other(self):
        folders = [write_run(self.place / "several" / name, steps=steps, rate=rate, attempts=attempts, name="net")
                   for name, steps, rate, attempts in (("0001-net", 600, 1, 1), ("0002-net", 900, 2, 3), ("0003-net", 300, 0.5, 1))]
        file = self.place / "several" / "all.html"
        subprocess.run([PROGRAM, "report", *map(str, folders), "-o", str(file)], capture_output=True, check=True, timeout=120)
        for scheme in ("light", "dark"):
            page = self.open(file, color_scheme=scheme, viewport={"width": 400 if scheme == "dark" else 1280, "height": 900})
            self.assertEqual(page.eval_on_selector_all("main > section", "all => all.map(one => one.id)"), ["runs", "learning", "differences"])
            self.assert_drawn(page, 7)
            self.assertEqual(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), True, "no sideways scrolling")
        self.assertEqual(page.locator("#learning figcaption strong").all_inner_texts(),
                         ["loss (training)", "loss (validation)", "accuracy (training)", "accuracy (validation)", "learning rate",
                          "gradient norm", "throughput"])
        self.assertEqual(page.locator("#curve-0 .key").all_inner_texts(), ["0001-net", "0002-net", "0003-net"])
        self.assertEqual(self.points(page, "curve-0"), [["0001-net", 60, 10, 600], ["0002-net", 90, 10, 900], ["0003-net", 30, 10, 300]])
        rows = page.locator("#differences tbody tr").evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
        self.assertEqual(rows, [["hyperparameters.learning_rate", "0.01", "0.02", "0.005"]])
        self.assertEqual(page.locator("#runs tbody tr").count(), 3)
        page.locator("#curves-over").select_option("time")
        self.assertEqual([name for name, *_ in self.points(page, "curve-1")], ["0001-net", "0002-net", "0003-net"])

    def test_one_validation_does_not_flatten_all_batches(self):
        page = self.open(self.two_ranks)
        y = page.evaluate("figures.find((one) => one.element.id === 'step-series').chart.scales.y.max")
        self.assertLess(y, 0.2, "a validation takes 0.4 s")
        text = page.locator("#step-series figcaption").inner_text()
        longer, count = map(int, re.search(r"(\d+) of (\d+) durations of all ranks are longer than the axis shows", text).groups())
        self.assertEqual(count, 600)
        steps = [json.loads(line) for rank in (0, 1) for line in (self.two_ranks.parent / "profile" / f"rank-000{rank}.jsonl").read_text().splitlines()]
        self.assertEqual(longer, sum(step["record"] == "step" and step["wall_ns"] / 1e9 > y for step in steps))
        marked = page.evaluate("""() => {
          const {chart, spec} = figures.find((one) => one.element.id === 'step-series');
          return beyondAxis(chart, spec).length;
        }""")
        self.assertEqual(marked, longer, "300 batches of a rank are 300 points")

    def test_what_a_run_brings_along_is_text(self):
        page = self.open(self.two_ranks)
        self.assertEqual(page.locator("h1").inner_text(), "<b>two</b> & more")
        self.assertEqual(page.locator("h1 b").count(), 0)

    def test_reads_without_a_script(self):
        page = self.open(self.two_ranks, java_script_enabled=False)
        self.assertIn("samples/s", page.locator("#verdict").inner_text())
        self.assertFalse(page.locator("canvas").first.is_visible())
        self.assertFalse(page.locator("header .controls").is_visible())
        self.assertGreater(page.locator("#stragglers tbody tr").count(), 1)
        for figure in self.figures(page).all():
            self.assertGreater(len(figure.locator("figcaption").inner_text()), 20)

    def test_what_is_not_there_says_so(self):
        page = self.open(self.two_ranks)
        self.assertIn("No GPU figures.", page.locator("#gpu-utilization").inner_text())
        self.assertIn("No operators.", page.locator("#operators").inner_text())
        self.assertIn("dtrain trace", page.locator("#operators").inner_text())
        gpus = self.open(self.with_gpus)
        self.assertNotIn("No GPU figures.", gpus.locator("#gpu-utilization").inner_text())
        self.assertEqual(gpus.locator("#gpu-series canvas").count(), 1)

    def test_rules_with_what_they_counted(self):
        page = self.open(self.two_ranks)
        rows = {row.locator("th").inner_text(): row.inner_text() for row in page.locator("#rules tbody tr").all()}
        for name in ("StepOutlier", "Dataloader", "LowGPUUtilization", "LoadBalancing", "IOBottleneck", "CPUBottleneck", "BatchSize",
                     "GPUMemoryIncrease", "MaxInitializationTime"):
            self.assertIn(name, rows)
        self.assertIn("not applicable", rows["LowGPUUtilization"])
        self.assertIn("ignored by n outliers", rows["StepOutlier"])
        self.assertIn("The rule StepOutlier:", page.locator("#steps").inner_text())
        self.assertIn("does not apply", page.locator("#gpu-utilization").inner_text())

    def test_tables_sort(self):
        page = self.open(self.with_gpus)
        table = page.locator("#job table")
        head = table.locator("thead th", has_text="computing")
        column = head.evaluate("th => th.cellIndex")
        values = lambda: table.evaluate(f"t => [...t.tBodies[0].rows].map(r => Number(r.cells[{column}].dataset.value))")
        head.locator("button").click()
        self.assertEqual(values(), sorted(values(), reverse=True))
        self.assertEqual(head.get_attribute("aria-sort"), "descending")
        head.locator("button").press("Enter")
        self.assertEqual(values(), sorted(values()))
        self.assertEqual(head.get_attribute("aria-sort"), "ascending")
        self.assertEqual(table.evaluate("t => t.tBodies[0].rows[7].cells[0].textContent"), "rank 1", "the slow one")

    def test_keys_hide_and_show_sets(self):
        page = self.open(self.two_ranks)
        for figure in ("rank-balance", "train-eval", "rank-timeline"):
            key = page.locator(f"#{figure} .key").first
            canvas = page.locator(f"#{figure} canvas")
            before = canvas.evaluate("c => c.toDataURL()")
            key.click()
            self.assertEqual(key.get_attribute("aria-pressed"), "false")
            self.assertNotEqual(canvas.evaluate("c => c.toDataURL()"), before, figure)
            key.click()
            self.assertEqual(key.get_attribute("aria-pressed"), "true")

    def test_values_as_a_table(self):
        page = self.open(self.two_ranks)
        button = page.locator("#rank-balance button", has_text="Values")
        button.click()
        self.assertEqual(page.locator("#rank-balance tbody tr").count(), 2)
        self.assertRegex(page.locator("#rank-balance tbody td").first.inner_text(), r"^[\d.]+ ms$")
        button.click()
        self.assertEqual(page.locator("#rank-balance tbody tr").count(), 0)

    def test_one_rank_is_chosen(self):
        page = self.open(self.with_gpus)
        series = page.locator("#step-series")
        timeline = page.locator("#rank-timeline canvas")
        before = timeline.evaluate("c => c.toDataURL()")
        self.assertFalse(series.locator(".key", has_text="rank 3").is_visible())
        page.locator("#rank").select_option("3")
        self.assertTrue(series.locator(".key", has_text="rank 3").is_visible())
        self.assertNotEqual(timeline.evaluate("c => c.toDataURL()"), before)
        self.assertEqual(page.locator("#job tr.chosen th").inner_text(), "rank 3")
        page.locator("#rank").select_option("")
        self.assertFalse(series.locator(".key", has_text="rank 3").is_visible())
        self.assertEqual(timeline.evaluate("c => c.toDataURL()"), before)

    def test_zoom_by_mouse_and_keyboard(self):
        page = self.open(self.two_ranks)
        canvas = page.locator("#step-series canvas")
        others = page.locator("#cpu-series button", has_text="Show all")
        self.assertFalse(others.is_visible())
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.4, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
        page.mouse.up()
        self.assertTrue(others.is_visible(), "charts over time follow each other")
        others.click()
        self.assertFalse(others.is_visible())
        canvas.focus()
        page.keyboard.press("+")
        self.assertTrue(others.is_visible())
        page.keyboard.press("0")
        self.assertFalse(others.is_visible())
        page.keyboard.press("ArrowRight")
        self.assertRegex(page.locator(".speech").inner_text(), r"rank 0: [\d.]+ ms")
        page.locator("#rank-timeline canvas").focus()
        page.keyboard.press("ArrowRight")
        self.assertRegex(page.locator(".speech").inner_text(), r"rank 0, .* to ")

    def test_theme_by_hand(self):
        page = self.open(self.two_ranks, color_scheme="light")
        canvas = page.locator("#rank-balance canvas")
        light = canvas.evaluate("c => c.toDataURL()")
        button = page.locator("#theme")
        button.click()
        button.click()
        self.assertEqual(button.inner_text(), "Theme: dark")
        self.assertLess(page.locator("body").evaluate(BRIGHTNESS), 60)
        self.assertNotEqual(canvas.evaluate("c => c.toDataURL()"), light, "charts have the theme's colours")
        button.click()
        self.assertEqual(canvas.evaluate("c => c.toDataURL()"), light)

    def test_on_paper_it_is_light(self):
        page = self.open(self.two_ranks, color_scheme="dark")
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.assertGreater(page.locator("body").evaluate(BRIGHTNESS), 200)
        self.assertFalse(page.locator("nav").is_visible())
        self.assert_drawn(page, 20)
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        self.assertLess(page.locator("body").evaluate(BRIGHTNESS), 60)

    def test_each_control_has_a_name(self):
        page = self.open(self.two_ranks)
        nameless = page.eval_on_selector_all(
            "button, a, select, canvas", "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length")
        self.assertEqual(nameless, 0)
        for canvas in page.locator("figure canvas").all():
            self.assertEqual(canvas.get_attribute("role"), "img")
            self.assertGreater(len(canvas.get_attribute("aria-label")), 30)
        levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map(e => Number(e.tagName[1]))")
        self.assertEqual(levels[0], 1)
        self.assertTrue(all(b <= a + 1 for a, b in zip(levels, levels[1:])))

    def test_narrow_screens(self):
        page = self.open(self.two_ranks, viewport={"width": 390, "height": 800})
        self.assertEqual(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), True)

    def test_the_analysis_is_in_it(self):
        html = self.with_gpus.read_text()
        embedded = re.search(r'<script type="application/json" id="analysis">(.*?)</script>', html, re.S).group(1)
        printed = subprocess.run([PROGRAM, "analyze", str(self.with_gpus.parent), "--json"], capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(embedded), json.loads(printed.stdout))
        self.assertIn("Chart.js v3", html)
        self.assertIn("Permission is hereby granted", html)

    def test_64_ranks_stay_small(self):
        file = report_of(self.place / "many", ranks=64, hosts=8, gpus=1, steps=60, validation_ms=0)
        self.assertLess(file.stat().st_size, 3_000_000)
        page = self.open(file)
        self.assert_drawn(page, 20)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
