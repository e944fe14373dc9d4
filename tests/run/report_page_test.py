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
import signal
import subprocess
import tarfile
import unittest

import h5py
import numpy as np
from PIL import Image

import browser_harness
import harness
from browser_harness import BROWSER, WIDTHS

REPORT = os.path.join(harness.SOURCE, "tools", "report")
EVALUATORS = """
[eval.captions]
kind        = "captioning"
data        = "pairs"
every_steps = 6
images      = 6
attention   = 4

[eval.zero_shot]
kind        = "scoring"
data        = "pairs"
every_steps = 6
classes     = ["a red <b>house</b>", "bird", "cat & dog"]
k           = [1]
"""
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
  const shown = (e) => e.getBoundingClientRect().width > 8 && e.getBoundingClientRect().height > 8;
  const words = all(".attention li"), thumb = words.length && words[0].closest(".shot").querySelector(".thumb");
  const veil = () => thumb.style.getPropertyValue("--veil").slice(0, 9), looks = [];
  if (thumb) {
    const point = (kind) => words[1].dispatchEvent(new PointerEvent(kind));
    const steps = [() => point("pointerenter"), () => point("pointerleave"), () => words[0].focus(), () => words[0].blur()];
    for (const step of steps) { step(); looks.push(veil()); }
  }
  parent.postMessage({looks, images: all(".thumb").filter((e) => shown(e) && getComputedStyle(e).backgroundImage.includes("data:")).length,
    words: words.filter((e) => shown(e.querySelector("i")) && e.tabIndex === 0).length,
    cells: all(".matrix rect").filter((e) => shown(e) && getComputedStyle(e).fill !== "none").length,
    width: innerWidth, overflow: document.documentElement.scrollWidth - room, wide, tip: tip.innerText,
    hidden: tip.hidden, ready: document.documentElement.dataset.ready, lines: lines.length,
    drawn: lines.filter((path) => path.getTotalLength() > 0).length,
    smallest: Math.min(...all("main td, main li, main p").map((e) => parseFloat(getComputedStyle(e).fontSize)))}, "*");
});</script>"""
# Opens the last details and moves in the first load; says in the third what is so, which is the last.
RELOADS = """<pre id="seen"></pre><script>addEventListener("load", () => {
  const loads = Number(sessionStorage.getItem("loads")) + 1, all = [...document.querySelectorAll("details")];
  const box = document.querySelector("#deck .scroll");
  sessionStorage.setItem("loads", loads);
  if (loads === 3) for (let timer = 0; timer < 1000; ++timer) clearTimeout(timer);
  if (loads === 1) {
    all.at(-1).open = true;
    box.scrollLeft = 30;
    scrollTo(0, 900);
  }
  document.getElementById("seen").textContent =
    JSON.stringify([loads, all.filter((one) => one.open).length, all.length, scrollY, box.scrollLeft]);
});</script>"""


class ReportPage(browser_harness.BrowserTest):
    def report(self, *args, code=0, out=""):
        """Runs the tool; returns the text of the page (`out`: if the tool does not say its name alone), or its messages if it fails."""
        done = subprocess.run(["/usr/bin/python3", REPORT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder, env={**os.environ, "TRAINER": harness.TRAINER})
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        if code:
            return done.stdout
        with open(os.path.join(self.folder, out or done.stdout.strip()), encoding="utf-8") as f:
            page = f.read()
        self.assertLess(len(page.encode()), 3 << 20)
        self.check_self_contained(page)
        return page

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
        self.assertRegex(few, row("optimizer.rule[0].match", '".*/kernel"', "changed", "&quot;&quot;"))
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
        # Of each run one bar of the job time, and one of its only start.
        self.assertEqual(len(re.findall('<svg class="bar"', page)), 4)

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
        self.assertIn("is not a run directory", self.report(self.data, code=2))
        self.assertIn("is not a run directory", self.report("nowhere", code=2))

    # ---------------------------------------------------------------- files of evaluators

    def with_evaluators(self):
        """Makes a run with captions and zero-shot classes of 17 images, at steps 6 and 12; returns the folders of step 12."""
        with tarfile.open(f"{self.data}/pairs.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(17):
                harness.add_member(tar, f"{i:06}.png", harness.png(i, 16))
                harness.add_member(tar, f"{i:06}.txt", f"a red <b>house</b> {i}".encode())
                harness.add_member(tar, f"{i:06}.cls", str(i * i % 3).encode())
        text = self.good.replace("max_len=12", "max_len=24").replace("seq_len          = 12", "seq_len          = 24") + f"""
[data.pairs]
path       = "{self.data}/pairs.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=24, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels", "label")'''
""" + EVALUATORS
        self.expect(0, f"next     tools/report {self.dir}\n", args=[self.deck(text)], ranks=2)
        return f"{self.dir}/eval/captions/0000000012", f"{self.dir}/eval/zero_shot/0000000012"

    def lines(self, path):
        with open(path, encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def pictures(self, text):
        """Returns the pictures in the page's text, as arrays."""
        found = re.findall(r"url\(data:image/\w+;base64,([^)]+)\)", text)
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]

    def test_captions(self):
        captions, _ = self.with_evaluators()
        rows, images = self.lines(f"{captions}/captions.jsonl"), np.load(f"{captions}/images.npy")
        before = self.lines(f"{self.dir}/eval/captions/0000000006/captions.jsonl")
        self.assertEqual(images.shape, (6, 16, 16, 3))
        for i, image in enumerate(images):
            np.testing.assert_array_equal(image, np.asarray(Image.open(io.BytesIO(harness.png(i, 16)))))
        page = self.report(self.dir)
        shots = re.findall(r'<article class="shot".*?</article>', page, re.S)
        self.assertEqual(len(shots), 6)
        for shot, row, image, old in zip(shots, rows, images, before):
            np.testing.assert_array_equal(self.pictures(shot)[0], image)
            self.assertIn(f'<p class="said">{html.escape(row["caption"]) or "<em>empty</em>"}</p><ul class="truth">'
                          f'<li>a red &lt;b&gt;house&lt;/b&gt; {row["position"]}</li></ul>', shot)
            self.assertIn(f'<span title="{html.escape(row["key"])}">pairs.tar:{row["position"]:06}</span> · '
                          f'{row["log_likelihood"]:.4g}\u00a0nats', shot)
            self.assertEqual("cut at the largest length" in shot, not row["ended"])
            self.assertIn(f'<tr><td>6</td><td>{html.escape(old["caption"]) or "<em>empty</em>"}</td></tr>', shot)
        table = re.search(r'<summary>11 of the other 11 captions</summary>(.*?)</table>', page, re.S)[1]
        self.assertEqual(table.count("<tr><td>"), 11)
        self.assertIn(html.escape(rows[-1]["key"]), table)
        # An earlier step on demand.
        page = self.report(self.dir, "--step", "11")
        self.assertIn("17 images at step 6:", page)
        self.assertIn("images at step 6 are taken", page)
        self.assertNotIn("at earlier steps", page)
        shutil.rmtree(f"{self.dir}/eval")
        page = self.report(self.dir)
        self.assertNotIn('id="captions"', page)
        self.assertNotIn('id="confusions"', page)

    def test_attention(self):
        captions, _ = self.with_evaluators()
        made = {"tokens": ["a", " r", "ed", " <b>"],
                "attention": [[[0, 0], [0, 1]], [[1, 1], [1, 1]], [[1, 1], [1, 0]], [[0.25, 0], [0, 0]]]}
        rows = self.lines(f"{captions}/captions.jsonl")
        rows[0].update(made)
        rows[1].update({"tokens": ["x", "y"], "attention": made["attention"][:2]})
        own = rows[2]   # as the evaluator wrote it
        rows[3].update({"tokens": ["a", " b"], "attention": [[[1, 2], [3]], [[1]]], "references": ["a line\u2028and another"]})
        with open(f"{captions}/captions.jsonl", "w", encoding="utf-8") as f:
            f.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        shots = re.findall(r'<article class="shot".*?</article>', self.report(self.dir), re.S)
        self.assertIn("<li>a line\u2028and another</li>", shots[3])
        words = lambda shot: [html.unescape(word) for word in re.findall(r"</i><span>(.*?)</span></li>", shot)]
        # A token without a blank in front joins its word, whose map is the mean. Where the word attends, the image is clear;
        # elsewhere it is dark.
        self.assertEqual(words(shots[0]), ["a", "red", "<b>"])
        first, second, third = [map_[..., 1].tolist() for map_ in self.pictures(shots[0])[1:]]
        self.assertEqual(first, [[217, 217], [217, 0]])
        self.assertEqual(second, [[0, 0], [0, 108]])
        self.assertEqual(third, [[0, 217], [217, 217]])
        self.assertIn('title="red: most at row 1 of 2, column 1 of 2"', shots[0])
        self.assertEqual(words(shots[1]), ["xy"])
        self.assertEqual(words(shots[2]), own["caption"].split())
        self.assertEqual(np.shape(own["attention"]), (len(own["tokens"]), 2, 2))
        # The brightest patch of a word is the one where the mean over its tokens is largest.
        begins = [0] + [i for i, token in enumerate(own["tokens"]) if i and token.startswith(" ")]
        for begin, end, map_ in zip(begins, [*begins[1:], None], self.pictures(shots[2])[1:]):
            mean = np.mean(own["attention"][begin:end], axis=0)
            np.testing.assert_allclose(map_[..., 1], 255 * 0.85 * (1 - mean / mean.max()), atol=0.51)
        # Matrices of different sizes are no maps, and other captions have none.
        self.assertEqual(words(shots[3]), [])
        self.assertEqual(words(shots[4]), [])

    def test_confusions(self):
        _, zero_shot = self.with_evaluators()
        with open(f"{zero_shot}/confusions.json", encoding="utf-8") as f:
            found = json.load(f)
        accuracy = [row["top1"] for row in self.rows("eval") if row["eval"] == "zero_shot"][-1]
        self.assertEqual(found["correct"] / found["images"], accuracy)
        classes = found["classes"]
        self.assertEqual([c["name"] for c in classes], ["a red <b>house</b>", "bird", "cat & dog"])
        self.assertEqual([c["images"] for c in classes], [sum(i * i % 3 == k for i in range(17)) for k in range(3)])
        counts = np.diag([c["correct"] for c in classes])
        for true, row in enumerate(classes):
            for taken, images in row["wrong"]:
                counts[true, taken] += images
        self.assertEqual(counts.sum(axis=1).tolist(), [c["images"] for c in classes])
        self.assertEqual(counts.sum(axis=0).tolist(), [c["predicted"] for c in classes])
        page = self.report(self.dir)
        self.assertIn(f"{found['correct']} of 17 images at step 12 are taken for their class: {100 * accuracy:.1f} %", page)
        cells = self.cells(page, "confusions")
        for true, taken in zip(*np.nonzero(counts)):
            label = f"{classes[true]['name']} taken for {classes[taken]['name']}: {counts[true, taken]} of {classes[true]['images']}"
            self.assertIn(f"<title>{html.escape(label)}</title>", page)
            if true != taken:
                self.assertIn([classes[true]["name"], classes[taken]["name"], f"{counts[true, taken]} of {classes[true]['images']}"], cells)
        for row in classes:
            if row["images"]:
                line, = (c for c in cells if c[0] == row["name"] and len(c) == 6)
                self.assertEqual(line[1:5], [str(row["images"]), str(row["correct"]),
                                             f"{100 * row['correct'] / row['images']:.0f} %", str(row["predicted"])])
        # A thousand classes keep the page small, and are drawn as tables alone.
        many = {"images": 50_000, "correct": 0, "classes": [
            {"name": f"class number {i}", "images": 50, "correct": 0, "predicted": 50,
             "wrong": [[(i + j) % 1000, 5] for j in range(1, 11)]} for i in range(1000)]}
        with open(f"{zero_shot}/confusions.json", "w", encoding="utf-8") as f:
            json.dump(many, f)
        page = self.report(self.dir)
        self.assertLess(len(page.encode()), 1 << 20)
        self.assertNotIn('<svg class="matrix"', page)
        self.assertIn("200 of 1,000 classes, the worst first", page)

    # ---------------------------------------------------------------- in a browser

    @unittest.skipUnless(BROWSER, "no chromium here")
    def test_in_a_browser(self):
        _, zero_shot = self.with_evaluators()
        with open(f"{zero_shot}/confusions.json", encoding="utf-8") as f:
            cells = sum(len(row["wrong"]) + (row["correct"] > 0) for row in json.load(f)["classes"])
        other = f"{self.folder}/other"
        self.expect(0, args=[self.deck(), "--dir", other, "--set", "run.seed=5"])
        with open(f"{self.folder}/bad.html", "w") as f:
            f.write("<!DOCTYPE html><script>undefined.x</script>")
        self.assertEqual(len(self.browse("--dump-dom", where="bad.html")[1]), 1)     # errors are seen
        loss = self.rows()[-1]["loss"]
        for runs in ([self.dir], [self.dir, other]):
            page = self.report(*runs, "--out", "page.html")
            panels = self.panels(page)
            measured, pictures = self.measured(page, PROBE)
            self.assertEqual(sorted(measured), sorted(WIDTHS))
            for width, found in measured.items():
                with self.subTest(runs=len(runs), width=width):
                    self.assertEqual((found["overflow"], found["wide"]), (0, []))
                    self.assertEqual(found["ready"], str(len(panels)))
                    self.assertEqual(found["lines"], sum(len(curves) for curves in panels.values()))
                    self.assertEqual(found["drawn"], found["lines"])
                    self.assertGreaterEqual(found["smallest"], 12)
                    self.assertEqual((found["images"], found["cells"]), (6, cells))
                    self.assertEqual(found["words"], page.count('<li tabindex="0"'))
                    self.assertGreater(found["words"], 3)
                    self.assertEqual(found["looks"], ["url(data:", "", "url(data:", ""])
                    # The pointer is at the right end of the first panel, so the last row is shown.
                    self.assertFalse(found["hidden"])
                    tip = re.match(rf"step 12\s+{'total' if len(runs) == 1 else 'run'} ([\d.]+)", found["tip"])
                    self.assertTrue(tip, found["tip"])
                    self.assertAlmostEqual(float(tip[1]), loss, delta=1e-5 * loss)
                    self.assertGreater(len(pictures[width].getcolors(1 << 24)), 20)
            self.assertEqual(self.browse("--dump-dom", where="page.html")[1], [])   # without a frame around it

    # ---------------------------------------------------------------- a running job

    def test_a_running_job_is_followed(self):
        """The page is made again while the job goes on, and a last time after its end."""
        job = subprocess.Popen([harness.TRAINER, self.deck(), "--set", "train.total_steps=100000"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, cwd=self.folder)
        self.addCleanup(job.kill)
        self.wait("rows", lambda: os.path.exists(f"{self.dir}/metrics.jsonl") and len(self.rows()) > 3)
        tool = subprocess.Popen(["/usr/bin/python3", REPORT, self.dir, "--follow", "--every", "0.2"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env={**os.environ, "TRAINER": harness.TRAINER})
        self.addCleanup(tool.kill)
        said = [tool.stdout.readline() for _ in range(3)]
        steps = [int(re.search(r"report\.html: step ([\d,]+) \(running\)$", line)[1].replace(",", "")) for line in said]
        self.assertTrue(0 < steps[0] < steps[1] < steps[2], said)
        self.assertIn('<html lang="en" data-every="0.2">', self.written())
        job.send_signal(signal.SIGUSR1)
        rest = tool.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(tool.returncode, 0, rest)
        self.assertRegex(rest, rf"step {self.rows()[-1]['step']:,} \(stopped\)\n$")
        page = self.written()
        self.assertIn('<html lang="en">', page)
        self.assertEqual(max(self.panels(page)["training loss"]["total"][0]), self.rows()[-1]["step"])
        # The job has ended: the page is made once.
        self.assertIn('<html lang="en">', self.report(self.dir, "--follow", out="run/report.html"))

    def written(self):
        with open(f"{self.dir}/report.html", encoding="utf-8") as f:
            return f.read()

    @unittest.skipUnless(BROWSER, "no chromium here")
    def test_a_renewed_page_keeps_its_place(self):
        """A page of a running job loads itself again; what is open stays open, and the reader stays where he is."""
        self.expect(0, args=[self.deck()])
        page = self.report(self.dir).replace('<html lang="en">', '<html lang="en" data-every="0.5">')
        with open(f"{self.folder}/page.html", "w", encoding="utf-8") as f:
            f.write(page.replace("</head>", "<style>#deck .scroll {width: 300px}</style></head>").replace("</body>", RELOADS + "</body>"))
        document, messages = self.browse("--window-size=800,600", "--dump-dom", where="page.html")
        self.assertEqual(messages, [])
        loads, opened, of, down, across = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', document)[1])
        self.assertEqual((loads, opened, down, across), (3, 1, 900, 30))
        self.assertGreater(of, 0)


harness.main()
