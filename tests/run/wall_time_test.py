#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Attempts whose wall time ends before they gain anything must not ask to be requeued, and must
name the time that they need."""
import os
import signal
import subprocess

import harness

# A data set whose evaluation takes long, and a second evaluator, which comes before [eval.val].
MORE = """
[data.many]
kind = "synthetic"
image_size = 16
seq_len = 12
vocab_size = 400
examples = 200000
preprocess = 'keep("image", "labels") | value_range(-1, 1, key="image")'

[eval.first]
kind        = "perplexity"
data        = "train"
every_steps = 3
"""
SLOW = ["--set", "train.micro_batch=1", "--set", "eval.val.data=many"]
IN_VAIN = r"wall time: 0 s left; margin .*; this attempt gained nothing, .*: give the job at least 00:\d\d:\d0 \("


class WallTime(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.path = self.deck(self.good + MORE)

    def start(self, *args, late_s=0):
        """Starts a job of two ranks. With a file `left` it is a SLURM job whose squeue prints the file. The ranks' processes are
        `late_s` old when the program begins."""
        os.makedirs(self.folder + "/bin", exist_ok=True)
        self.write("bin/squeue", f"#!/bin/sh\ncat {self.folder}/left\n")
        os.chmod(self.folder + "/bin/squeue", 0o755)
        scheduler = ["-x", "SLURM_JOB_ID=12"] if os.path.exists(self.folder + "/left") else []
        return subprocess.Popen(["mpirun", "-np", "2", "-x", f"PATH={self.folder}/bin:{os.environ['PATH']}", *scheduler,
                                 "sh", "-c", f'sleep {late_s}; exec "$0" "$@"', harness.TRAINER, self.path, *args],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, text=True)

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w") as f:
            f.write(text)

    def until(self, job, text):
        seen = ""
        for line in job.stdout:
            seen += line
            if text in line:
                return
        self.fail(f"{text} never came:\n{seen}")

    def ended(self, job, code):
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, code, output)
        return output

    def test_no_step_is_no_gain(self):
        self.write("left", "1:00")
        job = self.start(*SLOW, "--set", "eval.val.at_start=true", "--set", "eval.first.at_start=true")
        self.until(job, "eval=first step=0 ")  # the next attempt would repeat it
        self.write("left", "0:00")
        self.assertRegex(self.ended(job, 8), r"stopped  step=0 of 12: " + IN_VAIN)
        with open(self.dir + "/report.txt") as f:
            self.assertRegex(f.read(), r"^rank=0 of 2 host=\S+ step=0 phase=\S+ exit=8: " + IN_VAIN)
        # The time of this attempt ended before the first look at the clock.
        os.remove(self.folder + "/left")
        output = self.ended(self.start("--set", "limits.wall_time=00:00:01", late_s=1.1), 8)
        self.assertIn("the previous attempt failed: ", output)
        self.assertRegex(output, "stopped  .*" + IN_VAIN)
        self.assertIn("margin 0 s (not 120 s: a quarter of the time)", output)

    def test_an_evaluation_that_was_missing_is_a_gain(self):
        args = [*SLOW, "--set", "train.total_steps=3"]
        job = self.start(*args, "--set", "eval.first.data=many")
        self.until(job, "step=3 ")
        job.send_signal(signal.SIGUSR1)
        self.assertIn("eval=first step=3 interrupted", self.ended(job, 75))
        self.write("left", "1:00")
        job = self.start(*args, "--allow-change", "eval")
        self.until(job, "eval=first step=3 ")
        self.write("left", "0:00")
        output = self.ended(job, 75)
        self.assertIn("eval=val step=3 interrupted", output)
        self.assertNotIn("gained nothing", output)


if __name__ == "__main__":
    harness.main()
