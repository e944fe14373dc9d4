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

    def test_levels_of_components(self):
        few = [self.deck(), "--set", "train.total_steps=6", "--set", "log.console_every_steps=100"]
        self.expect(0, "eval=val step=6", "checkpoint step=4", args=[*few, "--set", "log.console_first_steps=2"])
        self.assertEqual(list(self.losses_on_console()), [1, 2, 6])
        self.assertNotIn("level=", self.output)
        rows = [row["loss"] for row in self.rows()]
        again = [*few, "--set", "checkpoint.resume=never", "--set"]
        self.expect(0, "level=debug component=checkpoint step=", "save of step 4: phase 1 of 4 done", "level=trace component=train step=3 ",
                    "level=debug component=data step=1 batch 0: ",
                    args=[*again, 'log.levels={checkpoint="debug", eval="warning", train="trace", data="debug"}'])
        self.assertEqual([row["loss"] for row in self.rows()], rows, "the same bits")
        self.assertNotIn("eval=val", self.output)
        for component in ("run", "eval"):
            self.assertNotIn(f"component={component} ", self.output)
        self.expect(0, "component=run step=0 phase train", args=[*again, "log.level=debug"])
        self.expect(0, "done     exit=0", args=[*again, "log.level=warning"])
        for line in ("step=", "eval=", "checkpoint step="):
            self.assertFalse([text for text in self.output.splitlines() if text.startswith(line)], line)
        self.expect(2, "log.levels", '"chekpoint" is not a component', "checkpoint", args=[*again, 'log.levels={chekpoint="debug"}'])
        self.expect(2, "log.levels", '"loud" is not a level', "trace", args=[*again, 'log.levels={eval="loud"}'])

    def published(self, *args):
        done = subprocess.run([PUBLISHED, *args], capture_output=True, text=True, timeout=harness.GUARD)
        self.output = done.stdout + done.stderr
        return done.returncode

    def test_published_names(self):
        self.expect(0, args=[self.deck(), "--set", "profile.peak_tflops=0.01"])
        trained, evaluated = self.rows(), self.rows("eval")
        for row in trained:  # a share of the peak, which is work over time
            self.assertAlmostEqual(row["mfu"] * row["ms"], trained[0]["mfu"] * trained[0]["ms"], delta=1e-6 * row["mfu"] * row["ms"])
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
            # One thread of one rank is one device.
            self.assertEqual((theirs["img/sec/core"], theirs["core_hours_cpu"]), (row["examples_s"], row["core_hours"]))
            self.assertEqual(theirs["y/hostmem/total"], theirs["y/hostmem/used"] + theirs["y/hostmem/available"])
            self.assertGreater(theirs["y/hostmem/used"], row["host_mib"] * 2**20)
        for row in evaluated:
            self.assertEqual(steps[row["step"]]["val/perplexity"], row["perplexity"])
            self.assertEqual(steps[row["step"]]["z/secs/eval/val"], row["eval_s"])
        once = {"num_params", "z/secs/init", "z/secs/update0"}
        self.assertEqual([step for step in steps if once & steps[step].keys()], [1])
        with open(f"{self.dir}/logs/parameters.txt") as f:
            self.assertEqual(f"Total: {steps[1]['num_params']:,.0f}", f.read().splitlines()[-1])
        self.assertEqual(steps[1]["z/secs/update0"], trained[0]["ms"] / 1e3)
        self.assertGreater(steps[1]["z/secs/init"], 0)
        last = steps[12]
        self.assertEqual((last["z/probe_10shot-seed-0"], last["zero/prec@1"], last["zero/prec@5"]), (0.25, 0.5, 0.75))
        self.assertEqual(self.published(self.dir, "--every", "5", "-o", f"{self.folder}/few.txt"), 0, self.output)
        with open(f"{self.folder}/few.txt") as f:
            trained = [row["step"] for row in map(json.loads, f) if "training_loss" in row]
        self.assertEqual(trained, [1, 5, 10, 12])
        # The next attempt has its own first step, and its row is the first one that is due.
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=16", "--set", "log.metrics_every_steps=7"])
        self.assertEqual([row["step"] for row in self.rows()], [*range(1, 13), 14, 16])
        self.assertEqual(self.published(self.dir), 0, self.output)
        with open(path) as f:
            starts = {row["step"]: row["z/secs/update0"] for row in map(json.loads, f) if "z/secs/update0" in row}
        self.assertEqual(list(starts), [1, 14])
        self.assertEqual(starts[14], next(row["first_step_s"] for row in self.rows() if row["step"] == 14))
        for folder, part in ((f"{self.folder}/none", "/none is not a run directory (there is no such folder)"),
                             (self.folder, "is not a run directory (it has no metrics.jsonl)")):
            self.assertEqual(self.published(folder), 2)
            self.assertIn(part, self.output)
        with open(f"{self.folder}/metrics.jsonl", "w") as f:
            f.write('{"kind": "start"}\n')
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
