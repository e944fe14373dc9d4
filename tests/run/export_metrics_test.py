#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/export_metrics on a real run and on files of older runs: every number arrives with every digit."""
import csv
import json
import os
import subprocess
import unittest

import numpy as np

import harness

EXPORT = os.path.join(harness.SOURCE, "tools", "export_metrics")
WITH_PYARROW = os.environ.get("PYARROW_PYTHON", "")


class ExportMetrics(harness.RunTest):
    def export(self, *args, code=0, python="/usr/bin/python3"):
        done = subprocess.run([python, EXPORT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout.strip()

    def read_csv(self, name):
        """Returns {column: texts}."""
        with open(f"{self.folder}/{name}", encoding="utf-8", newline="") as f:
            head, *rows = csv.reader(f)
        return dict(zip(head, zip(*rows)))

    def test_csv(self):
        self.expect(0, args=[self.deck()])
        rows, evals = self.rows(), self.rows("eval")
        for _ in ("metrics.h5", "metrics.jsonl"):
            self.assertEqual(self.export("run", "--csv"), "run/metrics.csv")
            table = self.read_csv("run/metrics.csv")
            steps = sorted({row["step"] for row in rows + evals})
            self.assertEqual(list(map(int, table["step"])), steps)
            for name in ("loss", "l2_grads", "ms", "data_mean_ms", "uptime_s"):
                want = {row["step"]: row[name] for row in rows if name in row}
                got = {step: float(text) for step, text in zip(steps, table.get(f"train/{name}", [""] * len(steps))) if text}
                self.assertEqual(got, want, name)
            want = {row["step"]: row["perplexity"] for row in evals}
            self.assertEqual({step: float(text) for step, text in zip(steps, table["eval/val/perplexity"]) if text}, want)
            if os.path.exists(f"{self.dir}/metrics.h5"):
                os.remove(f"{self.dir}/metrics.h5")     # the second time the numbers come from metrics.jsonl
        self.assertEqual(self.export("run", "--csv", "--group", "val", "-o", "val.csv"), "val.csv")
        table = self.read_csv("val.csv")
        self.assertEqual(list(table)[0], "step")
        self.assertEqual(list(map(float, table["perplexity"])), [row["perplexity"] for row in evals])
        self.export("run", "--csv", "--group", "train")
        self.assertEqual(list(map(float, self.read_csv("run/metrics.train.csv")["loss"])), [row["loss"] for row in rows])

    def test_npz(self):
        self.expect(0, args=[self.deck()])
        self.export("run", "--npz")
        with np.load(f"{self.dir}/metrics.npz") as arrays:
            self.assertEqual(arrays["train/step"].tolist(), [row["step"] for row in self.rows()])
            self.assertEqual(arrays["train/loss"].tolist(), [row["loss"] for row in self.rows()])
            self.assertEqual(arrays["eval/val/step"].tolist(), [row["step"] for row in self.rows("eval")])
        self.export("run", "--npz", "--group", "val")
        with np.load(f"{self.dir}/metrics.val.npz") as arrays:
            self.assertEqual(arrays["perplexity"].tolist(), [row["perplexity"] for row in self.rows("eval")])

    def test_rows_of_older_and_broken_runs(self):
        """Columns may be missing, numbers may be texts, an interrupted run has steps twice, and a line may be cut."""
        os.mkdir(self.dir)
        rows = [{"kind": "start", "step": 0}, {"kind": "train", "step": 1, "loss": 2.5}, {"kind": "train", "step": 2, "loss": 9.5},
                {"kind": "train", "step": 2, "loss": "inf", "ms": 7}, {"kind": "train", "step": 3, "loss": "nan", "ms": 0.1}]
        with open(f"{self.dir}/metrics.jsonl", "w", encoding="utf-8") as f:
            f.write("".join(json.dumps(row) + "\n" for row in rows) + '{"kind":"tra')
        self.export("run", "--csv")
        self.assertEqual(self.read_csv("run/metrics.csv"),
                         {"step": ("1", "2", "3"), "train/loss": ("2.5", "inf", ""), "train/ms": ("", "7.0", "0.1")})

    def test_refusals(self):
        self.assertIn("is not a folder", self.export("nowhere", "--csv", code=2))
        self.assertIn("one of the arguments --csv --npz --parquet is required", self.export("run", code=2))
        os.mkdir(self.dir)
        with open(f"{self.dir}/metrics.jsonl", "w", encoding="utf-8") as f:
            f.write('{"kind":"train","step":1,"loss":2.5}\n')
        self.assertIn("no rows of 'val'; it has train", self.export("run", "--csv", "--group", "val", code=2))
        # pyarrow is not one of the packages that the tools need.
        self.assertRegex(self.export("run", "--parquet", code=2), r"needs the PyPI package pyarrow(.*\n)+.*/pip install pyarrow h5py")
        self.assertEqual(os.listdir(self.dir), ["metrics.jsonl"])

    @unittest.skipUnless(WITH_PYARROW, "no PYARROW_PYTHON names a Python with pyarrow")
    def test_parquet(self):
        self.expect(0, args=[self.deck()])
        self.export("run", "--parquet", python=WITH_PYARROW)
        code = ("import json; from pyarrow import parquet; table = parquet.read_table('run/metrics.parquet').to_pydict(); "
                "print(json.dumps([table['step'], table['train/loss'], table['eval/val/perplexity']]))")
        done = subprocess.run([WITH_PYARROW, "-c", code], capture_output=True, text=True, timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        steps, loss, perplexity = json.loads(done.stdout)
        rows, evals = {row["step"]: row for row in self.rows()}, {row["step"]: row for row in self.rows("eval")}
        self.assertEqual(steps, sorted({*rows, *evals}))
        self.assertEqual(loss, [rows[step]["loss"] if step in rows else None for step in steps])
        self.assertEqual(perplexity, [evals[step]["perplexity"] if step in evals else None for step in steps])


harness.main()
