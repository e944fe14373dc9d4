#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of tools/report on made files: warnings, attempts, times, best values."""
import importlib
import os

import numpy as np

import harness


def part(name):
    """Returns a module of the tool, for tests of its functions."""
    harness.loaded("report")
    return importlib.import_module("report_page." + name)


class Parts(harness.RunTest):
    def test_warnings_of_several_steps(self):
        """A warning that came again has the steps of its first and its last time, apart from other warnings."""
        os.makedirs(self.dir + "/logs")
        with open(self.dir + "/logs/warnings.txt", "w") as f:
            f.writelines(f"2026-01-01T00:00:0{i} rank=0 level=warning step={step} {text}\n"
                         for i, (step, text) in enumerate([(4, "slow"), (5, "late"), (9, "slow"), (12, "slow"), (5, "late")]))
            f.write("2026-01-01T00:00:09 at the start\n")
        page, found = part("page"), part("run").warnings_of(self.dir)
        self.assertEqual(found, [["slow", 3, 4, 12], ["late", 2, 5, 5], ["at the start", 1, None, None]])

        class Run:
            warnings = found
        rows = page.warnings([Run], ["one"])
        for text in ("<td>slow</td><td>3</td><td>4 to 12</td>", "<td>late</td><td>2</td><td>5</td>",
                     "<td>at the start</td><td>1</td><td></td>"):
            self.assertIn(text, rows)

    def test_attempts_are_read_from_the_log(self):
        os.makedirs(self.dir + "/logs")
        lines = ["an older line", "trainer 1.0", "mesh     1 x 2", "           and more", "start    step=0 ", "step=1 loss=3",
                 "step=4 loss=2", "error: first: words", "error: second", "done     exit=6", "trainer 1.1",
                 "start    step=4 file=x", "step=5 loss=1",
                 "stopped  step=7 by a signal", "done     exit=75", "trainer 1.2", "start    step=7 ", "finished step=9 in 1 s",
                 "done     exit=0", "trainer 1.3"]
        with open(self.dir + "/logs/rank00000.log", "w") as f:
            f.writelines(f"2026-01-01T00:00:{i:02} {line}\n" for i, line in enumerate(lines))
        attempts = part("run").attempts_of(self.dir)
        self.assertEqual([(a.version, a.seconds(), a.first_step, a.last_step, a.code, a.end()) for a in attempts],
                         [("trainer 1.0", 8, 0, 4, 6, ("failed", "first: words")),
                          ("trainer 1.1", 4, 4, 7, 75, ("stopped", "step=7 by a signal")),
                          ("trainer 1.2", 3, 7, 9, 0, ("finished", "step=9 in 1 s")), ("trainer 1.3", 0, None, None, None, ("", ""))])
        self.assertEqual(attempts[0].lines["mesh"], ["1 x 2", "and more"])

    def test_the_time_of_all_attempts(self):
        """Checkpoints count the time up to them, and the metrics what came after."""
        run = object.__new__(part("run").ReportRun)
        run.metrics = part("run").curves.Run(self.dir)
        run.last_uptime = {1: 500.0, 2: 60.0, 3: 7.0}
        run.saved = {"training_s": 100, "evaluation_s": 20, "checkpoint_s": 5, "setup_s": 10, "redone_s": 0, "attempts": 2,
                     "uptime_s": 50, "step": 1200}
        parts, source = run.times()
        self.assertEqual(parts, [("training", 100), ("evaluation", 20), ("checkpoints", 5), ("start-up", 10),
                                 ("after the newest checkpoint", 17)])
        self.assertIn("the checkpoint of step 1,200", source)
        run.metrics.train = {"ms": np.array([1000, np.nan, 3000.0]), "compute_ms": np.array([700, np.nan, 2300.0]),
                             "data_ms": np.array([100, np.nan, 300.0]), "comm_ms": np.array([0, np.nan, 0.0])}
        self.assertEqual(run.times()[0][:2], [("training: computing", 75), ("training: waiting for data", 10)])
        run.saved, run.last_uptime = {}, {1: 10.0, 2: 2.0}
        run.metrics.evals = {"a": {"eval_s": np.array([1.5, np.nan])}, "b": {"step": np.array([1])}}
        self.assertEqual(run.times()[0], [("training: computing", 3), ("training: waiting for data", 0.4), ("evaluation", 1.5),
                                          ("start-up, saves and the rest", 6.5)])

    def test_the_best_value_of_each_measure(self):
        """The name of a measure says which end is better; if it does not, both ends are shown."""
        values = np.array([2.0, 5.0, 1.0, 3.0])
        best_of = part("page").best_of
        for name in ("loss", "perplexity", "perplexity_per_token", "nats", "top1_error", "mean_rank"):
            self.assertEqual(best_of(name, values), [("", 2)], name)
        for name in ("log_likelihood", "accuracy", "top1", "k20_top5", "mean_ap_precision", "recall_at_5", "map", "bleu4", "rouge_l",
                     "cider_d", "i2t_r1", "i2t_r5", "auc", "score", "10shot"):
            self.assertEqual(best_of(name, values), [("", 1)], name)
        self.assertEqual(best_of("tokens", values), [("lowest ", 2), ("highest ", 1)])
        self.assertEqual(best_of("loss", values[:1]), [])


harness.main()
