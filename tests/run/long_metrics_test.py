#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the tools on long metrics: they say what they would say of all rows, and neither bytes that are read nor memory grow with the
rows. Limits of the tools are lowered, so that a few thousand rows are long. Nothing here depends on a clock."""
import contextlib
import importlib
import os
import re
import sys
import tempfile
import tracemalloc
import unittest
import unittest.mock

import numpy as np

import harness

sys.path.insert(0, os.path.join(harness.SOURCE, "tests", "bench"))
import long_metrics

SHORT, LONG, BEHIND = 4000, 16000, 1700
LIMITS = {"metric_lines": {"LONG": 1 << 20, "WINDOW": 1 << 12, "BLOCK": 1 << 20}, "long_runs": {"TAIL": 1 << 17, "PIECE": 1024},
          "thinning": {"LONG": 1000, "STRETCHES": 64, "PIECE": 1024}}


def bytes_read(work):
    """Returns the bytes that all reads of this process returned meanwhile, and what `work` returns."""
    def count():
        with open("/proc/self/io", encoding="ascii") as file:
            return int(re.search(r"rchar: (\d+)", file.read())[1])
    before = count()
    found = work()
    return count() - before, found


class LongMetrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.status, cls.curves = harness.loaded("status"), harness.loaded("curves.py")
        harness.loaded("report")
        # The tools import these, so their limits are those of the modules that Python knows.
        cls.modules = {name: importlib.import_module(name) for name in ("metric_lines", "long_runs", "thinning", "run_dir", "curves",
                                                                        "report_page.run")}
        cls.curves = cls.modules["curves"]
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        for rows in (SHORT, LONG):
            long_metrics.make(f"{cls.folder}/{rows}", rows, behind=BEHIND)

    def run_of(self, rows):
        return f"{self.folder}/{rows}"

    def lowered(self):
        """Makes a few thousand rows long until the end of the test."""
        stack = self.enterContext(contextlib.ExitStack())
        for name, limits in LIMITS.items():
            for limit, value in limits.items():
                stack.enter_context(unittest.mock.patch.object(self.modules[name], limit, value))

    def test_status_reads_both_ends(self):
        whole = self.status.Attempt(self.run_of(LONG))
        self.lowered()
        read = {}
        for rows in (SHORT, LONG):
            read[rows], attempt = bytes_read(lambda run=self.run_of(rows): self.status.Attempt(run))
        for name in ("start", "before", "train", "evals"):
            self.assertEqual(getattr(attempt, name), getattr(whole, name), name)
        self.assertEqual(attempt.windows.newest, whole.windows.newest)
        self.assertEqual(attempt.seconds_per_step(), whole.seconds_per_step())
        size = os.path.getsize(f"{self.run_of(LONG)}/metrics.jsonl")
        self.assertGreater(size, 12 << 20)
        # The rows that metrics.h5 lacks are read, and pieces of the rest.
        self.assertLess(read[LONG], BEHIND * size / LONG + (1 << 19))
        self.assertLess(read[LONG] - read[SHORT], 1 << 17)

    def test_status_without_h5(self):
        whole = self.status.Attempt(self.run_of(LONG))
        os.mkdir(f"{self.folder}/bare")
        os.link(f"{self.run_of(LONG)}/metrics.jsonl", f"{self.folder}/bare/metrics.jsonl")
        self.lowered()
        attempt = self.status.Attempt(f"{self.folder}/bare")
        for name in ("start", "before", "train", "evals"):
            self.assertEqual(getattr(attempt, name), getattr(whole, name), name)
        thin, all_rows = self.curves.read_run(f"{self.folder}/bare"), self.curves.read_run(self.run_of(LONG), whole=True)
        self.compare(thin, all_rows)

    def test_status_of_a_run_that_went_back(self):
        """metrics.h5 still has rows that the newest attempt has left behind."""
        run = f"{self.folder}/back"
        os.mkdir(run)
        os.link(f"{self.run_of(LONG)}/metrics.h5", f"{run}/metrics.h5")
        with open(f"{self.run_of(LONG)}/metrics.jsonl", encoding="utf-8") as file, open(f"{run}/metrics.jsonl", "w",
                                                                                          encoding="utf-8") as cut:
            for line in file:
                if '"step":12001,' in line:
                    break
                cut.write(line)
            cut.write('{"kind":"start","step":12000,"attempt":4.0,"time":1.8e9,"killed":1.0}\n{"kind":"train","step":12001,"loss":0.5}\n')
        whole = self.status.Attempt(run)
        self.lowered()
        attempt = self.status.Attempt(run)
        for name in ("start", "before", "train", "evals"):
            self.assertEqual(getattr(attempt, name), getattr(whole, name), name)

    def test_places_of_steps(self):
        lines, path = self.modules["metric_lines"], f"{self.run_of(SHORT)}/metrics.jsonl"
        self.lowered()
        with open(path, "rb") as file:
            text = file.read()
        for step in (-1, 0, 1, 9, 100, 1599, 1600, 1601, 3999, 4000, 9999):
            at = lines.place_after(path, step)
            self.assertTrue(at == 0 or text[at - 1:at] == b"\n")
            before, after = ([row["step"] for row in map(lines.row_of, part.splitlines()) if row["kind"] == "train"]
                             for part in (text[:at], text[at:]))
            self.assertEqual((before, after), (list(range(1, min(step, SHORT) + 1)), list(range(max(step, 0) + 1, SHORT + 1))), step)

    def compare(self, thin, whole):
        """Checks what a thin table keeps of all rows."""
        thinning = self.modules["thinning"]
        self.assertIsInstance(thin.train, thinning.Table)
        self.assertLessEqual(len(thin.train["step"]), 2 * thinning.STRETCHES + 1)
        self.assertEqual(set(thin.train), set(whole.train))
        for name, column in whole.train.items():
            if name == "step":
                continue
            step, value = self.curves.measured(whole.train, name)
            at, points = self.curves.measured(thin.train, name)
            self.assertTrue((np.diff(at) > 0).all())
            np.testing.assert_array_equal(points, value[np.searchsorted(step, at)], name)
            self.assertEqual((points.min(), points.max(), points[0], points[-1]), (value.min(), value.max(), value[0], value[-1]), name)
            self.assertEqual(self.curves.count(thin.train, name), len(value))
            self.assertAlmostEqual(self.curves.total(thin.train, name) / max(1, np.nansum(column)), np.nansum(column) > 0, places=9)
            sample = self.curves.sample(thin.train, name)
            self.assertTrue(np.isin(sample, value).all())
            self.assertGreaterEqual(len(sample), min(len(value), 64))
        self.assertEqual({name: len(table["step"]) for name, table in thin.evals.items()}, {"val": LONG // 100})

    def test_thin_tables(self):
        whole = self.curves.read_run(self.run_of(LONG), whole=True)
        self.lowered()
        self.compare(self.curves.read_run(self.run_of(LONG)), whole)
        with unittest.mock.patch.object(self.modules["thinning"], "STRETCHES", 1024):   # a window has 33 stretches
            thin = self.curves.read_run(self.run_of(LONG)).train
        step, loss = self.curves.measured(whole.train, "loss")
        for how, full in (("mean", self.curves.running_mean), ("median", self.curves.running_median)):
            x, y = thin.smooth("loss", how)
            true = np.interp(x, *full(step, loss))
            spread = (loss - np.interp(step, *full(step, loss))).std()
            self.assertLess(np.abs(y - true)[3:-3].max(), (0.1 if how == "mean" else 0.5) * spread, how)

    def test_a_late_column_and_gaps(self):
        """A column may begin late, stop, and have values that are not finite."""
        thinning = self.modules["thinning"]
        self.lowered()
        table, value = thinning.Table(0), np.linspace(-1, 1, 5000)
        value[100:900], value[950], value[2000] = np.nan, np.inf, 77
        for first in range(0, 5000, 700):
            part = {"step": np.arange(first, min(5000, first + 700)), "a": value[first:first + 700]}
            if 2000 < first < 4000:
                part["late"] = part["step"] + 0.5
            table.add(part)
        table.add({"step": np.arange(4000, 4500), "a": np.zeros(500)})     # steps that it has already
        table.finish()
        finite = np.isfinite(value)
        self.assertEqual((table.rows, table.columns["a"].count.sum()), (5000, finite.sum()))
        at, points = table.columns["a"].points()
        np.testing.assert_array_equal(points, value[at])
        self.assertEqual((points[0], points[-1], points.max()), (-1, 1, 77))
        at, points = table.columns["late"].points()
        np.testing.assert_array_equal(points, at + 0.5)
        self.assertEqual((at[0], at[-1]), (2100, 4199))

    def test_report_reads_columns_once(self):
        run = self.modules["report_page.run"]
        whole = run.ReportRun(self.run_of(LONG))
        self.lowered()
        read, peak = {}, {}
        for rows in (SHORT, LONG):
            tracemalloc.start()
            read[rows], found = bytes_read(lambda folder=self.run_of(rows): run.ReportRun(folder))
            peak[rows] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        self.assertEqual((found.windows.count, found.windows.slow, found.last_uptime), (whole.windows.count, whole.windows.slow,
                                                                                        whole.last_uptime))
        self.assertEqual((found.starts, found.step()), (whole.starts, whole.step()))
        # metrics.h5 once, some of its columns twice, and the rows that it lacks twice.
        size = os.path.getsize(f"{self.run_of(LONG)}/metrics.h5")
        newer = BEHIND * os.path.getsize(f"{self.run_of(LONG)}/metrics.jsonl") / LONG
        self.assertLess(read[LONG], 1.35 * size + 2 * newer + (1 << 20))
        self.assertLess(peak[LONG], 1.25 * peak[SHORT])


harness.main()
