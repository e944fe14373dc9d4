#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests numbers of a run that are shown in another form than in its files: medians on the console, and the names and the
format of the published code."""
import json
import re
import statistics
import subprocess

import harness

PUBLISHED = harness.SOURCE + "/tools/published_metrics"


class Console(harness.RunTest):
    def losses_on_console(self):
        return {int(step): float(loss) for step, loss in re.findall(r"step=(\d+) loss=([\d.]+)", self.output)}

    def test_medians(self):
        self.expect(0, args=[self.deck()])
        raw, rows = self.losses_on_console(), [row["loss"] for row in self.rows()]
        self.assertEqual(len(raw), 12)
        for window in (3, 4, 100):
            folder = f"{self.folder}/{window}"
            self.expect(0, args=[self.deck(), "--dir", folder, "--set", f"log.console_window={window}"])
            self.assertEqual([row["loss"] for row in self.rows(folder=folder)], rows)
            shown = self.losses_on_console()
            self.assertEqual(shown.keys(), raw.keys())
            for step, loss in shown.items():
                self.assertAlmostEqual(loss, statistics.median(rows[max(0, step - window):step]), delta=6e-4, msg=(window, step))
            self.assertNotEqual(shown, raw)
        self.expect(2, "log.console_window", args=[self.deck(), "--validate", "--set", "log.console_window=0"])

    def published(self, *args):
        done = subprocess.run([PUBLISHED, *args], capture_output=True, text=True, timeout=harness.GUARD)
        self.output = done.stdout + done.stderr
        return done.returncode

    def test_published_names(self):
        self.expect(0, args=[self.deck()])
        trained, evaluated = self.rows(), self.rows("eval")
        with open(f"{self.dir}/metrics.jsonl", "a") as f:
            for row in ({"kind": "eval", "step": 12, "eval": "probe", "10shot_seed0": 0.25, "10shot": 0.2, "eval_s": 1.5},
                        {"kind": "eval", "step": 12, "eval": "zero", "top1": 0.5, "top5": 0.75}):
                f.write(json.dumps(row) + "\n")
            f.write('{"kind":"train","step":13,"lo')  # a job that was killed
        self.assertEqual(self.published(self.dir), 0, self.output)
        path = f"{self.dir}/big_vision_metrics.txt"
        self.assertEqual(self.output.strip(), path)
        with open(path) as f:
            steps = {row["step"]: row for row in map(json.loads, f)}
        self.assertEqual(sorted(steps), list(range(1, 13)))
        for row in trained:
            theirs = steps[row["step"]]
            for name, ours in {"training_loss": "loss", "l2_grads": "l2_grads", "l2_params": "l2_params", "l2_updates": "l2_updates",
                               "global_schedule": "schedule", "uptime": "uptime_s", "examples_seen": "examples_seen",
                               "progress": "progress", "epoch": "epoch", "core_hours": "core_hours"}.items():
                self.assertEqual(theirs[name], row[ours], name)
            self.assertFalse({"loss", "ms", "schedule", "mfu", "kind"} & theirs.keys())
        for row in evaluated:
            self.assertEqual(steps[row["step"]]["val/perplexity"], row["perplexity"])
            self.assertEqual(steps[row["step"]]["z/secs/eval/val"], row["eval_s"])
        last = steps[12]
        self.assertEqual((last["z/probe_10shot-seed-0"], last["zero/prec@1"], last["zero/prec@5"]), (0.25, 0.5, 0.75))
        self.assertEqual(self.published(self.dir, "--every", "5", "-o", f"{self.folder}/few.txt"), 0, self.output)
        with open(f"{self.folder}/few.txt") as f:
            trained = [row["step"] for row in map(json.loads, f) if "training_loss" in row]
        self.assertEqual(trained, [1, 5, 10, 12])
        self.assertEqual(self.published(self.folder), 2)
        self.assertIn("no row", self.output)

    def test_choices_by_published_names(self):
        """checkpoint.best and early_stop accept the published name of a metric."""
        classes = self.good.replace("[eval.val]", '[eval.zero]\nkind = "scoring"\ndata = "train"\nclasses = ["a"]\n\n[eval.val]')
        deck = self.deck(classes)
        self.expect(2, '[eval.val] yields no "top1"', args=[deck, "--validate", "--set", "checkpoint.best=val/prec@1:max"])
        self.expect(2, '[eval.zero] yields no "top7"', args=[deck, "--validate", "--set", "early_stop.metric=zero/prec@7:max"])


if __name__ == "__main__":
    harness.main()
