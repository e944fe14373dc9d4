#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests repeated losses that are not finite, or finite and absurd: stop, skip and rewind, how often
a run continues, and its last messages."""
import shutil
import subprocess

import numpy as np

import harness
from live_harness import LiveTest


class Guard(LiveTest):
    def test_nonfinite_stop(self):
        self.expect(6, "step 4: loss=", "not finite", "guard.nonfinite", args=self.poisoned("stop"), ranks=2)
        self.assertEqual(self.output.count("not finite; nothing was updated"), 1)  # rank 0 logs it once
        self.assertEqual(self.newest(), 2)
        with open(self.dir + "/report.txt") as f:
            first = f.readline()
        self.assertRegex(first, r"^rank=0 of 2 host=\S+ step=4 phase=train exit=6: step 4: loss=")

    def test_nonfinite_skip(self):
        self.expect(0, "step 4: loss=", "skipped", "guard    1 steps without an update", args=self.poisoned("skip"), ranks=2)
        rows = self.rows()
        self.assertEqual([row["step"] for row in rows if row["skipped"]], [4])
        self.assertEqual(len(rows), 8)
        shutil.rmtree(self.dir)
        # Every step meets it: the limit.
        self.expect(6, "3 times in a row (guard.max_skips)", ranks=2,
                    args=self.poisoned("skip", "--set", "optimizer.learning_rate=1e-2", "--set", "guard.max_skips=2", "--set",
                                       "train.global_batch=60", "--set", "train.micro_batch=30"))

    def test_nonfinite_rewind(self):
        self.expect(0, "went back to step 2; 24 examples are left out", args=self.poisoned("rewind"), ranks=2)
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 9)))
        self.assertTrue(all(np.isfinite(float(row["loss"])) for row in self.rows()))

    def test_examples_left_out_shorten_a_run_until_its_input_ends(self):
        until = ["--set", "train.total_steps=input"]
        self.expect(0, "length   5 steps", "24 examples are left out", "input    its end was reached: 60 examples\n", "done     exit=0",
                    args=self.poisoned("rewind", *until), ranks=2)
        self.assertEqual([row["step"] for row in self.rows()], [1, 2, 3])
        # The last batch is left out: the run ends where it went back to, and evaluates there.
        ends = [*until, "--dir", self.folder + "/ends", "--set", "eval.val.at_end=true"]
        self.expect(0, "12 examples are left out", "eval=val step=4", args=self.poisoned("rewind", *ends, bad=(59,)), ranks=2)
        self.assertEqual(self.output.count("eval=val"), 1)

    def test_nonfinite_rewind_stays_in_this_past(self):
        self.expect(0, args=[self.deck()], ranks=2)
        # The new run has saved nothing yet; the files there belong to the abandoned run.
        self.expect(6, "there is no checkpoint to go back to", ranks=2,
                    args=[self.deck(), "--set", "checkpoint.resume=never", "--set", "optimizer.learning_rate=1e38", "--set",
                          "guard.nonfinite=rewind", "--set", "checkpoint.every_steps=10"])
        self.assertEqual(self.newest(), 12)

    def test_nonfinite_evaluation_keeps_the_save_under_way(self):
        self.expect(6, "evaluator val: ", "not finite at step 5", "guard.nonfinite applies to training", ranks=2,
                    args=[*self.poisoned("skip"), "--set", "eval.val.data=poisoned", "--set", "eval.val.every_steps=5", "--set",
                          "eval.val.at_end=true", "--set", "checkpoint.every_steps=4"])
        self.assertEqual(self.newest(), 4)

    def test_a_loss_far_above_a_uniform_guess_is_said(self):
        # The loss stays finite, so no guard stops the run, but every update is thousands of times
        # too large.
        wild = ["--set", "optimizer.learning_rate=1e4", "--set", "eval.val.at_end=false", "--set", "eval.val.every_steps=0"]
        self.expect(0, "the run has diverged: its last loss, ", "is far above 5.99146, the loss of a uniform guess",
                    "optimizer.learning_rate", "warnings 1 in", "done     exit=0", ranks=2, args=[self.deck(), *wild])
        self.assertEqual(self.output.count("the run has diverged"), 1)
        self.assertGreater(self.rows()[-1]["loss"], 12)
        status = subprocess.run([harness.SOURCE + "/tools/status", self.dir], capture_output=True, text=True).stdout
        self.assertRegex(status, r"warnings    1; the last: .*the run has diverged")
        # A run that stops early logs this as well; a run that learns does not.
        shutil.rmtree(self.dir)
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), *wild, "--set", "train.total_steps=50000"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        for line in job.stdout:
            if "step=20 " in line:
                open(self.dir + "/stop", "w").close()
                break
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, 8, output)
        self.assertIn("the run has diverged", output)
        shutil.rmtree(self.dir)
        self.expect(0, args=[self.deck()], ranks=2)
        self.assertNotIn("diverged", self.output)

    def test_nonfinite_rewind_ends(self):
        # Batches 3, 5, 7, ... (from 0) are bad. Each rewind goes back to step 2 and leaves two
        # batches out, so step 3 is good and step 4 is bad every time. A good step that is only
        # repeated does not reset the count.
        bad = [12 * batch for batch in range(3, 40, 2)]
        self.expect(6, "step 4: loss=", "3 times in a row (guard.max_skips)", ranks=2,
                    args=self.poisoned("rewind", "--set", "guard.max_skips=2", examples=480, bad=bad))
        self.assertEqual(self.output.count("went back to step 2; 24 examples are left out"), 2)
        self.assertEqual([row["step"] for row in self.rows()], [1, 2, 3])

    def test_nonfinite_rewinds_apart_are_not_in_a_row(self):
        # Steps 4 and, after one rewind, 7 are bad. Good steps between them reset the count, so a
        # limit of 1 suffices.
        self.expect(0, "went back to step 2; 24 examples", "went back to step 6; 12 examples", ranks=2,
                    args=self.poisoned("rewind", "--set", "guard.max_skips=1", examples=480, bad=(12 * 3, 12 * 8)))
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 9)))

    def test_nonfinite_skips_apart_are_not_in_a_row(self):
        for bad, code, words in (((3, 5), 0, "guard    2 steps without an update"), ((3, 4), 6, "2 times in a row (guard.max_skips)")):
            with self.subTest(bad=bad):
                self.expect(code, words, ranks=2, args=self.poisoned("skip", "--set", "guard.max_skips=1", examples=480,
                                                                     bad=[12 * (step - 1) for step in bad]))
                shutil.rmtree(self.dir)


harness.main()
