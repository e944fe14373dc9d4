#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/plot_metrics on real runs: one, several, an interrupted one, and folders without a
run."""
import contextlib
import io
import json
import os
import shutil
import subprocess
import unittest.mock

import numpy as np
from PIL import Image

import harness

PLOT = os.path.join(harness.SOURCE, "tools", "plot_metrics")


class Plot(harness.RunTest):
    def plot(self, *args):
        done = subprocess.run(["/usr/bin/python3", PLOT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder)
        self.output = done.stdout
        return done.returncode

    def picture(self, path):
        with Image.open(path) as image:
            image.load()
            self.assertEqual(image.format, "PNG")
            self.assertFalse({"Title", "Software", "Source"} & set(image.info), image.info)
            self.assertGreater(min(image.size), 300)
            # The picture must not be blank: it has a background and several colours.
            self.assertGreater(len(image.convert("RGB").getcolors(1 << 24)), 20)
            return image.size

    def test_curves(self):
        self.expect(0, args=[self.deck()])
        self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/second", "--set", "run.seed=5"])
        self.assertEqual(self.plot(self.dir), 0, self.output)
        self.assertEqual(self.output.strip(), f"{self.dir}/metrics.png")
        one = self.picture(f"{self.dir}/metrics.png")
        self.assertEqual(self.plot(self.dir, f"{self.folder}/second", "-o", "both.png", "--line", "chance=4.4"), 0, self.output)
        self.picture(f"{self.folder}/both.png")
        # The title is the run's name, not its folder, so a copy elsewhere gives the same picture.
        shutil.copytree(self.dir, f"{self.folder}/elsewhere/deep/run")
        self.assertEqual(self.plot(f"{self.folder}/elsewhere/deep/run"), 0, self.output)
        with open(f"{self.dir}/metrics.png", "rb") as a, open(f"{self.folder}/elsewhere/deep/run/metrics.png", "rb") as b:
            self.assertEqual(a.read(), b.read())

        # The tool must work without metrics.h5 (a job that was killed early), and with half a last
        # line.
        os.remove(f"{self.dir}/metrics.h5")
        with open(f"{self.dir}/metrics.jsonl", "a") as f:
            f.write('{"kind":"train","step":13,"lo')
        self.assertEqual(self.plot(self.dir, "-o", "jsonl.png"), 0, self.output)
        self.assertEqual(self.picture(f"{self.folder}/jsonl.png"), one)

    def axes_of(self, runs, name):
        """Returns the axes of a panel and the panel, drawn for runs {folder: rows of training};
        every 100th row is an evaluation."""
        tool = harness.loaded("plot_metrics")
        read = []
        for run, rows in runs.items():
            os.makedirs(f"{self.folder}/{run}", exist_ok=True)
            with open(f"{self.folder}/{run}/metrics.jsonl", "w") as f:
                for row in rows:
                    f.write(json.dumps({"kind": "train", **row}) + "\n")
                    if row["step"] % 100 == 0:
                        evaluation = {"eval": "val", "step": row["step"], "perplexity_per_token": row["loss"]}
                        f.write(json.dumps({"kind": "eval", **evaluation}) + "\n")
            read.append(tool.read_run(f"{self.folder}/{run}"))
        panels = tool.panels_of(read, {"chance": 4.5})
        panel, = (p for p in panels if p.title == name)
        axes = tool.plt.figure().add_subplot()
        self.addCleanup(tool.plt.close, "all")
        tool.draw(axes, panel, read)
        return axes, [p.title for p in panels]

    def test_smoothing(self):
        """Smooths a step function in 600 rows: means cover 1/60 of them, medians 1/30, and both
        keep its place."""
        rows = [{"step": i + 1, "loss": float(i >= 300), "examples_s": 100.0 + 100 * (i >= 300)} for i in range(600)]
        for i in (7, 100, 450):
            rows[i]["examples_s"] = 5000.0  # outliers
        axes, _ = self.axes_of({"run": rows}, "training loss")
        pale, strong = axes.lines
        np.testing.assert_array_equal(pale.get_ydata(), [row["loss"] for row in rows])
        x, y = strong.get_data()
        np.testing.assert_array_equal(x, range(1, 601))
        np.testing.assert_allclose(y[:295], 0, atol=1e-9)
        np.testing.assert_allclose(y[305:], 1, atol=1e-9)
        between = y[(y > 1e-9) & (y < 1 - 1e-9)]
        np.testing.assert_allclose(between, np.arange(1, 10) / 10, atol=1e-9)  # windows of 10 rows
        self.assertLessEqual(abs(np.interp(0.5, y[290:310], x[290:310]) - 300.5), 1)
        axes, _ = self.axes_of({"run": rows}, "speed")
        x, y = axes.lines[-1].get_data()
        np.testing.assert_array_equal(y[:295], 100)
        np.testing.assert_array_equal(y[305:], 200)
        self.assertLess(axes.get_ylim()[1], 300)    # outliers do not set the scale
        self.assertEqual(axes.get_ylim()[0], 0)
        self.assertEqual(axes.get_legend().get_texts()[0].get_text(), "examples_s  (last median 200)")
        # A median covers 20 rows, so nine slow rows in a row do not show, and eleven do.
        for slow, least in ((9, 100), (11, 50)):
            rows = [{"step": i + 1, "loss": 1.0, "examples_s": 50.0 if 300 <= i < 300 + slow else 100.0} for i in range(600)]
            axes, _ = self.axes_of({"run": rows}, "speed")
            self.assertEqual(axes.lines[-1].get_ydata().min(), least)
        # Few rows are drawn as they are, each with its marker.
        axes, _ = self.axes_of({"run": rows[:30]}, "training loss")
        self.assertEqual([len(line.get_xdata()) for line in axes.lines], [30])
        self.assertEqual(axes.lines[0].get_marker(), "o")
        # Means of noise must equal a plain loop, also at the ends.
        value = np.random.default_rng(3).normal(size=190)
        got = harness.loaded("curves.py").running_mean(np.arange(190), value)[1]
        want = [np.mean(value[max(0, i - 1):i + 2]) for i in range(190)]
        np.testing.assert_allclose(got, want, atol=1e-12)

    def test_reading(self):
        """A repeated step counts once, with its last values. A cut line loses only its row. Both
        files hold the same curves."""
        tool = harness.loaded("plot_metrics")
        lines = [{"kind": "start", "step": 0}, *({"kind": "train", "step": s, "loss": float(s)} for s in (1, 2, 3)),
                 {"kind": "start", "step": 1}, {"kind": "train", "step": 2, "loss": 20.0, "extra": 5},
                 {"kind": "eval", "eval": "e", "step": 2, "x": 1.5}]
        os.mkdir(f"{self.folder}/cut")
        with open(f"{self.folder}/cut/metrics.jsonl", "w") as f:
            f.write("\n".join(map(json.dumps, lines[:2])) + "\n{\"kind\":\n" + "\n".join(map(json.dumps, lines[2:])) + '\n{"kind":"tr')
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            run = tool.read_run(f"{self.folder}/cut")
        self.assertIn("1 of 9 lines, the first is line 3", errors.getvalue())
        np.testing.assert_array_equal(run.train["step"], [1, 2, 3])
        np.testing.assert_array_equal(run.train["loss"], [1, 20, 3])
        np.testing.assert_array_equal(run.train["extra"], [np.nan, 5, np.nan])
        np.testing.assert_array_equal(run.evals["e"]["x"], [1.5])
        self.expect(0, args=[self.deck()])
        from_hdf5 = tool.read_run(self.dir)
        os.remove(f"{self.dir}/metrics.h5")
        from_jsonl = tool.read_run(self.dir)
        rows = self.rows()
        for run in (from_hdf5, from_jsonl):
            for name in ("step", "loss", "l2_grads", "examples_s"):
                np.testing.assert_allclose(run.train[name], [row[name] for row in rows], rtol=1e-12)
            self.assertEqual(list(run.evals["val"]["step"]), [6, 12])

    def test_several_runs(self):
        """Several runs have a panel for each quantity, a colour and a marker for each run, and
        the last values of each."""
        def rows(shift):
            return [{"step": i + 1, "loss": 5 - i / 200 + shift, "loss_ar": 4.0, "loss_parallel": 3.0, "l2_grads": 1.0,
                     "examples_s": 100 + shift} for i in range(600)]
        runs = {"a": rows(0), "b": rows(1), "c": rows(2)}
        axes, titles = self.axes_of(runs, "training loss: total")
        self.assertEqual(titles, ["training loss: total", "training loss: autoregressive", "training loss: parallel",
                                  "validation: perplexity per token", "gradient norm", "speed"])
        self.assertEqual(len(axes.lines), 3)
        self.assertEqual(len({line.get_color() for line in axes.lines}), 3)
        self.assertEqual(len({line.get_marker() for line in axes.lines}), 3)
        for shift, line in enumerate(axes.lines):
            self.assertAlmostEqual(line.get_ydata()[300], 5 - 1.5 + shift, delta=0.02)
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()], ["last 2.005", "last 3.005", "last 4.005"])
        axes, _ = self.axes_of(runs, "validation: perplexity per token")
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()],
                         ["last 2.005", "last 3.005", "last 4.005", "chance (4.5)"])
        self.assertEqual(list(axes.lines[-1].get_ydata()), [4.5, 4.5])
        axes, titles = self.axes_of({"a": rows(0)}, "training loss")
        self.assertEqual(titles, ["training loss", "validation: perplexity per token", "gradient norm", "speed"])
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()],
                         ["total  (last 2.005)", "autoregressive  (last 4)", "parallel  (last 3)"])

    def test_no_place_is_empty(self):
        tool = harness.loaded("plot_metrics")
        for count in range(1, 30):
            rows = tool.rows_of(count)
            self.assertEqual(sum(rows), count)
            self.assertLessEqual(max(rows), 3)
            self.assertLessEqual(max(rows) - min(rows), 1)
        with unittest.mock.patch.object(tool.plt.Figure, "savefig", autospec=True) as save:
            save.side_effect = lambda figure, path, **_: drawn.append(figure) or open(path, "w").close()
            drawn = []
            row = [{"step": i + 1, "loss": 1.0, "l2_grads": 1.0, "schedule": 1.0, "examples_s": 1.0} for i in range(100)]
            self.axes_of({"run": row}, "speed")
            run = tool.read_run(f"{self.folder}/run")
            tool.picture([run], tool.panels_of([run], {}), f"{self.folder}/five.png")
        figure, = drawn
        figure.canvas.draw()
        boxes = [axes.get_position() for axes in figure.axes]
        self.assertEqual(len(boxes), 5)
        # The last row of two panels is as wide as the first row of three.
        self.assertAlmostEqual(max(b.x1 for b in boxes[3:]), max(b.x1 for b in boxes[:3]), delta=0.02)
        self.assertGreater(boxes[3].width, 1.3 * boxes[0].width)

    def test_folders_that_are_no_runs(self):
        self.assertEqual(self.plot(self.data), 2, self.output)
        self.assertIn("is it a run directory", self.output)
        self.assertEqual(self.plot("nowhere"), 2, self.output)
        self.assertIn("nowhere is not a folder", self.output)
        self.assertNotIn("Traceback", self.output)


harness.main()
