#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/report on real runs: its numbers are those of the run's files, and a real browser draws it without an error."""
import base64
import html
import io
import json
import os
import re
import shutil
import subprocess
import unittest

import h5py
import numpy as np
from PIL import Image

import harness

REPORT = os.path.join(harness.SOURCE, "tools", "report")
BROWSER = shutil.which("chromium")
NASTY = "</script><script>alert(1)</script> & \"quotes\""

# Measures the page from inside a frame and reports to the page around it.
PROBE = """<script>addEventListener("load", () => {
  const all = (which) => [...document.querySelectorAll(which)], lines = all(".panel > svg > path.line");
  const figure = document.querySelector("figure[data-panel]"), tip = document.getElementById("tip");
  const box = figure && figure.querySelector(":scope > svg").getBoundingClientRect();
  if (figure) figure.querySelector(":scope > svg").dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + box.width * 371 / 380, clientY: box.top + 50}));
  const room = document.documentElement.clientWidth;  // without the scroll bar, which phones lay over the page
  const wide = all("main *").filter((e) => !e.closest(".scroll > *, svg") &&
    e.getBoundingClientRect().right > room + 1).map((e) => e.outerHTML.slice(0, 80));
  parent.postMessage({width: innerWidth, overflow: document.documentElement.scrollWidth - room, wide, tip: tip.innerText,
    hidden: tip.hidden, ready: document.documentElement.dataset.ready, lines: lines.length,
    drawn: lines.filter((path) => path.getTotalLength() > 0).length,
    smallest: Math.min(...all("main td, main li, main p").map((e) => parseFloat(getComputedStyle(e).fontSize)))}, "*");
});</script>"""
AROUND = """<!DOCTYPE html><title>frame</title><link rel="icon" href="data:,"><pre></pre><script>
addEventListener("message", (event) => document.querySelector("pre").textContent = JSON.stringify(event.data));</script>
<iframe src="probe.html" style="border:0;width:%dpx;height:900px"></iframe>"""


class ReportPage(harness.RunTest):
    def report(self, *args, code=0):
        """Runs the tool; returns the text of the page, or its messages if it fails."""
        done = subprocess.run(["/usr/bin/python3", REPORT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder, env={**os.environ, "TRAINER": harness.TRAINER})
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        if code:
            return done.stdout
        with open(os.path.join(self.folder, done.stdout.strip()), encoding="utf-8") as f:
            page = f.read()
        self.assertLess(len(page.encode()), 3 << 20)
        self.check_self_contained(page)
        return page

    def check_self_contained(self, page):
        self.assertEqual(re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page), [])
        self.assertEqual(re.findall(r"@import|url\((?!data:)", page), [])
        self.assertEqual(page.count("<script"), 2)

    def stopped_and_continued(self):
        """Makes a run of three attempts: the first ends at step 5, a spent budget ends the second, the third finishes at step 12."""
        command = [self.deck(), "--set", "run.notes=" + json.dumps(NASTY)]
        self.expect(0, args=[*command, "--set", "train.total_steps=5"])
        self.expect(8, args=[*command, "--set", "limits.core_hours=1e-9"])
        self.expect(0, args=command, ranks=2)

    def panels(self, page):
        """Returns the curves of the page: {panel: {curve: (steps, values)}}."""
        text = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page, re.S)[1]
        return {panel["t"]: {curve["n"]: (curve["x"], curve["y"]) for curve in panel["c"]} for panel in json.loads(text)}

    def cells(self, page, section):
        """Returns the rows of all tables of a section, as texts."""
        body = re.search(rf'<section id="{section}">(.*?)</section>', page, re.S)[1]
        text = lambda cell: html.unescape(re.sub(r"<[^>]+>", " ", cell)).strip()
        return [[text(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S)]
                for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]

    # ---------------------------------------------------------------- numbers

    def test_numbers_are_those_of_the_files(self):
        self.stopped_and_continued()
        page = self.report(self.dir)
        rows, panels = self.rows(), self.panels(page)
        self.assertEqual(len(rows), 12)
        for panel, curve, column in (("training loss", "total", "loss"), ("training loss", "parallel", "loss_parallel"),
                                     ("gradient norm", "l2_grads", "l2_grads"), ("speed", "examples_s", "examples_s"),
                                     ("time of a step", "computing", "compute_ms"), ("norm of the updates", "l2_updates", "l2_updates")):
            steps, values = panels[panel][curve]
            known = [row for row in rows if row.get(column) is not None]
            self.assertEqual(steps, [row["step"] for row in known])
            np.testing.assert_allclose(values, [row[column] for row in known], rtol=1e-6)
        evaluations = self.rows("eval")
        steps, values = panels["validation: perplexity per token"]["val"]
        self.assertEqual(steps, [row["step"] for row in evaluations])
        np.testing.assert_allclose(values, [row["perplexity_per_token"] for row in evaluations], rtol=1e-6)
        row, = (r for r in self.cells(page, "evaluators") if r[1] == "perplexity_per_token")
        last, best = evaluations[-1], min(evaluations, key=lambda e: e["perplexity_per_token"])
        self.assertEqual(row[0], "val")
        self.assertEqual(row[2], "nats/token")
        for cell, wanted in ((row[4], last), (row[5], best)):
            self.assertEqual(cell.split(), [f"{wanted['perplexity_per_token']:.4g}", "step", str(wanted["step"])])
        # The notes contain tags, which must arrive as text.
        self.assertNotIn("<script>alert", page)
        self.assertIn(["notes", NASTY], self.cells(page, "overview"))
        self.assertIn(["steps", "12 of 12"], self.cells(page, "overview"))

    def test_time_attempts_and_mesh(self):
        self.stopped_and_continued()
        page = self.report(self.dir)
        bar = re.search(r'<section id="time">(.*?)</section>', page, re.S)[1]
        seconds = {name: float(value) for name, value in re.findall(r"<span>([^<]+)</span> <b data-seconds=\"([\d.]+)\">", bar)}
        with h5py.File(f"{self.dir}/checkpoints/0000000012.h5") as f:
            saved = {name: float(f.attrs[name]) for name in ("training_s", "evaluation_s", "setup_s", "checkpoint_s")}
        training = sum(value for name, value in seconds.items() if name.startswith("training: "))
        self.assertAlmostEqual(training, saved["training_s"], delta=0.01)
        self.assertAlmostEqual(seconds["evaluation"], saved["evaluation_s"], delta=0.001)
        self.assertAlmostEqual(seconds["start-up"], saved["setup_s"], delta=0.001)
        rows = self.rows()
        data = sum(row["data_ms"] for row in rows) / sum(row["ms"] for row in rows)
        self.assertAlmostEqual(seconds["training: waiting for data"], saved["training_s"] * data, delta=0.002)
        widths = [float(w) for w in re.findall(r'<rect class="f\d" x="[\d.]+" y="0" width="([\d.]+)"', bar)]
        self.assertAlmostEqual(sum(widths), 1000, delta=0.1)
        first, second, third = (row for row in self.cells(page, "attempts") if row[0] in ("1", "2", "3"))
        self.assertEqual(first[3:8], ["1", "0", "5", "finished", "0"])
        self.assertEqual(second[3:8], ["1", "5", "5", "stopped", "8"])
        self.assertIn("core_hours", second[8])
        self.assertEqual(third[3:8], ["2", "5", "12", "finished", "0"])
        self.assertIn("2 ranks on 1 node = replica 1 x fsdp 2 · parameters=sharded", page)
        self.assertIn('<div class="mesh" style="grid-template-columns:repeat(2,2.2em)"><i>0</i><i>1</i></div>', page)
        self.assertIn("No warnings.", page)
        # A killed attempt after the checkpoint: its time is there, and it has no end.
        with open(f"{self.dir}/logs/rank00000.log", "a") as f:
            f.write("2026-01-01T00:00:00.000 trainer 0.1.0  git=0\n2026-01-01T00:00:05.000 step=13 loss=1\n")
        with open(f"{self.dir}/metrics.jsonl", "a") as f:
            f.write(json.dumps({"kind": "start", "step": 12, "attempt": 4.0, "killed": 0.0}) + "\n")
            f.write(json.dumps({"kind": "train", "step": 13, "loss": 1.0, "ms": 5.0, "uptime_s": 123.5}) + "\n")
        page = self.report(self.dir)
        self.assertIn('<span>after the newest checkpoint</span> <b data-seconds="123.5', page)
        fourth, = (row for row in self.cells(page, "attempts") if row[0] == "4")
        self.assertEqual(fourth[2:7], ["5 s", "", "", "13", "killed"])

    def test_deck_beside_its_defaults(self):
        self.expect(0, args=[self.deck()])
        page = self.report(self.dir)
        few, every = re.search(r'<section id="deck">(.*?)<details>(.*?)</details>', page, re.S).groups()
        row = lambda key, value, kind, default: (
            f'<tr><th class="{kind if kind != "default" else ""}">{re.escape(key)}</th>'
            f'<td class="value {kind}">{re.escape(html.escape(value))}</td><td class="default">{default}</td>')
        self.assertRegex(few, row("model.image_size", "16", "changed", "224"))
        self.assertRegex(few, row("optimizer.learning_rate", "0.01", "needed", "no default"))
        self.assertRegex(few, row("optimizer.rule[0].match", '".*/kernel"', "needed", "no default"))
        self.assertRegex(few, row("schedule.default.warmup_steps", "2", "changed", "unset"))
        self.assertNotIn(">run.seed<", few)
        self.assertRegex(every, row("run.seed", "0", "default", "0"))
        self.assertRegex(every, row("optimizer.eps", "1e-30", "default", "1e-30"))
        self.assertRegex(every, row("optimizer.momentum", "0.9", "default", "0.9"))
        self.assertNotIn("not known to this trainer", page)
        # Every key that is highlighted has another value than the program prints as its default.
        changed = re.findall(r'<th class="changed">([^<]+)</th><td class="value changed">([^<]*)</td><td class="default">([^<]*)</td>', few)
        self.assertGreater(len(changed), 10)
        for key, value, default in changed:
            self.assertNotEqual(value, default, key)

    def test_several_runs(self):
        self.expect(0, args=[self.deck()])
        other = f"{self.folder}/other"
        self.expect(0, args=[self.deck(), "--dir", other, "--set", "run.seed=5", "--set", "train.total_steps=7"])
        page = self.report(self.dir, other, "--out", "both.html")
        panels = self.panels(page)
        for name, folder in (("run", self.dir), ("other", other)):
            steps, values = panels["training loss: total"][name]
            rows = self.rows(folder=folder)
            self.assertEqual(steps, [row["step"] for row in rows])
            np.testing.assert_allclose(values, [row["loss"] for row in rows], rtol=1e-6)
        self.assertIn('<th class="changed differ">run.seed</th><td class="value default">0</td><td class="value changed">5</td>', page)
        self.assertIn(["steps", "12 of 12", "7 of 7"], self.cells(page, "overview"))
        self.assertEqual(len(re.findall('<svg class="bar"', page)), 2)

    def test_warnings_and_a_failure(self):
        self.expect(0, args=self.poisoned("skip"))
        page = self.report(self.dir)
        row, = (r for r in self.cells(page, "warnings") if "step 4" in r[0])
        self.assertEqual(row[1:], ["1", "4"])
        self.assertEqual(self.panels(page)["steps without an update"]["skipped_updates"][1][-1], 1)
        shutil.rmtree(self.dir)
        self.expect(6, args=self.poisoned("stop"))
        page = self.report(self.dir)
        self.assertRegex(page, r'<p class="alarm">failed: rank=0 of 1 host=\S+ step=4 phase=train exit=6')
        self.assertEqual(self.cells(page, "attempts")[-1][6:8], ["failed", "6"])

    def test_many_rows_are_thinned(self):
        """Shows rows of the run, never means of several, and keeps the page small."""
        os.mkdir(self.dir)
        values = np.random.default_rng(1).normal(size=50_000)
        with open(f"{self.dir}/metrics.jsonl", "w") as f:
            for i, value in enumerate(values):
                f.write(json.dumps({"kind": "train", "step": i + 1, "loss": value, "loss_ar": value, "l2_grads": 1 + i}) + "\n")
        page = self.report(self.dir)
        steps, shown = self.panels(page)["training loss"]["total"]
        self.assertEqual((steps[0], steps[-1]), (1, 50_000))
        self.assertLessEqual(len(steps), 2000)
        np.testing.assert_allclose(shown, values[np.array(steps) - 1], rtol=1e-6)
        self.assertIn("At most 2,000 rows of a curve", page)

    def test_folders_that_are_no_runs(self):
        self.assertIn("is no run directory", self.report(self.data, code=2))
        self.assertIn("is no run directory", self.report("nowhere", code=2))

    # ---------------------------------------------------------------- files of evaluators

    def with_captions(self):
        """Makes a run, and the files of evaluators for it. Sample 3 is image 6, because the shards hold every other image."""
        self.expect(0, args=[self.deck()])
        with open(f"{self.folder}/own.png", "wb") as f:
            f.write(harness.png(77, 40))
        maps = [[[0, 0], [0, 1]], [[1, 1], [1, 1]]]
        rows = [{"eval": "val", "step": 6, "image": 0, "caption": "an old caption", "references": ["x"]},
                {"eval": "val", "step": 12, "image": 3, "caption": "a red <b>house</b>", "references": ["a red house", "the house"],
                 "cider": 1.25, "words": ["red", "house"], "attention": maps},
                {"eval": "val", "step": 12, "image": f"{self.folder}/own.png", "caption": "", "references": []},
                {"eval": "val", "step": 12, "image": "gone.png", "caption": "two birds", "references": 5, "words": [1],
                 "attention": [["x"]]}]
        with open(f"{self.dir}/captions.jsonl", "w") as f:
            f.write("".join(json.dumps(row) + "\n" for row in rows) + '{"caption": "cut')
        with open(f"{self.dir}/confusions.json", "w") as f:
            json.dump({"eval": "zero_shot", "classes": ["cat", "dog", "cow"], "counts": [[5, 2, 0], [1, 6, 0], [0, 0, 3]]}, f)

    def pictures(self, text):
        """Returns the pictures in the page's text, as arrays."""
        found = re.findall(r"url\(data:image/\w+;base64,([^)]+)\)", text)
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]

    def test_captions_attention_confusions(self):
        self.with_captions()
        page = self.report(self.dir)
        shots = re.findall(r'<article class="shot".*?</article>', page, re.S)
        self.assertEqual(len(shots), 3)
        self.assertNotIn("an old caption", page)
        first, second, third = shots
        self.assertIn('<p class="said">a red &lt;b&gt;house&lt;/b&gt;</p><ul class="truth"><li>a red house</li><li>the house</li></ul>',
                      first)
        self.assertIn("cider 1.25", first)
        image, red, house = self.pictures(first)
        wanted = np.asarray(Image.open(io.BytesIO(harness.png(6))).resize((16, 16), Image.BILINEAR), float)
        self.assertEqual(image.shape, (16, 16, 3))
        self.assertLess(np.abs(image - wanted).mean(), 3)
        other = np.asarray(Image.open(io.BytesIO(harness.png(3))).resize((16, 16)), float)
        self.assertGreater(np.abs(image - other).mean(), 20)
        # A patch is clear if the word attends to it, and dark if not.
        self.assertEqual(red[..., 1].tolist(), [[217, 217], [217, 0]])
        self.assertEqual(house[..., 1].tolist(), [[0, 0], [0, 0]])
        np.testing.assert_array_equal(self.pictures(second)[0], np.asarray(Image.open(io.BytesIO(harness.png(77, 40)))))
        self.assertEqual(self.pictures(third), [])
        self.assertIn("14 of 17 right (82.4 %)", page)
        self.assertIn(["cat", "dog", "2 of 7"], self.cells(page, "confusions"))
        self.assertIn("<title>cat taken for dog: 2 of 7</title>", page)
        # A run without these files has no such sections.
        for name in ("captions.jsonl", "confusions.json"):
            os.remove(f"{self.dir}/{name}")
        page = self.report(self.dir)
        self.assertNotIn('id="captions"', page)
        self.assertNotIn('id="confusions"', page)

    # ---------------------------------------------------------------- in a browser

    def browse(self, *args, where):
        """Opens a page; returns its document and the messages in the browser's console."""
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.folder}/profile",
                   "--enable-logging=stderr", "--virtual-time-budget=10000"]
        done = subprocess.run([BROWSER, *options, *args, f"file://{self.folder}/{where}"], capture_output=True, text=True,
                              timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def measured(self, page, width):
        """Opens the page in a frame of this width; returns what the probe has measured."""
        with open(f"{self.folder}/probe.html", "w", encoding="utf-8") as f:
            f.write(page.replace("</body>", PROBE + "</body>"))
        with open(f"{self.folder}/frame.html", "w", encoding="utf-8") as f:
            f.write(AROUND % width)
        document, messages = self.browse("--window-size=1500,1000", "--dump-dom", where="frame.html")
        self.assertEqual(messages, [])
        return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", document, re.S)[1]))

    @unittest.skipUnless(BROWSER, "no chromium here")
    def test_in_a_browser(self):
        self.stopped_and_continued()
        other = f"{self.folder}/other"
        self.expect(0, args=[self.deck(), "--dir", other, "--set", "run.seed=5"])
        with open(f"{self.folder}/bad.html", "w") as f:
            f.write("<!DOCTYPE html><script>undefined.x</script>")
        self.assertEqual(len(self.browse("--dump-dom", where="bad.html")[1]), 1)     # errors are seen
        loss = self.rows()[-1]["loss"]
        for runs in ([self.dir], [self.dir, other]):
            page = self.report(*runs, "--out", "page.html")
            panels = self.panels(page)
            for width in (390, 820, 1400):
                with self.subTest(runs=len(runs), width=width):
                    found = self.measured(page, width)
                    self.assertEqual(found["width"], width)
                    self.assertEqual((found["overflow"], found["wide"]), (0, []))
                    self.assertEqual(found["ready"], str(len(panels)))
                    self.assertEqual(found["lines"], sum(len(curves) for curves in panels.values()))
                    self.assertEqual(found["drawn"], found["lines"])
                    self.assertGreaterEqual(found["smallest"], 12)
                    # The pointer is at the right end of the first panel, so the last row is shown.
                    self.assertFalse(found["hidden"])
                    self.assertRegex(found["tip"], rf"^step 12\s+{'total' if len(runs) == 1 else 'run'} {loss:.5g}")
                    picture = f"{self.folder}/{width}.png"
                    _, messages = self.browse(f"--window-size={width},1600", f"--screenshot={picture}", where="page.html")
                    self.assertEqual(messages, [])
                    with Image.open(picture) as image:
                        self.assertGreater(len(image.convert("RGB").getcolors(1 << 24)), 20)


harness.main()
