#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files of a run are removed or changed, between two jobs or under a running one."""
import os
import shutil
import signal
import subprocess
import unittest

import h5py

import harness
import place
from live_harness import LiveTest

LONG = ["--set", "train.total_steps=1000000"]
QUICK = ["--set", "log.flush_s=0.2", "--set", "eval.val.every_steps=0", "--set", "eval.val.at_end=false"]


class Files(LiveTest):
    def both(self):
        """Returns the training steps, which both files of the metrics must hold."""
        steps = [row["step"] for row in self.rows()]
        with h5py.File(self.dir + "/metrics.h5") as f:
            self.assertEqual(list(f["train/step"]), steps)
        return steps

    def check_whole(self, last):
        """Checks that the run has a valid checkpoint of step `last` and all its rows, and
        continues from there."""
        self.assertEqual(self.newest(), last)
        self.assertEqual(self.both(), list(range(1, last + 1)))
        self.expect(0, "from=checkpoint", f"step={last + 1} ", ranks=2,
                    args=[self.deck(), *QUICK, "--set", f"train.total_steps={last + 1}"])
        self.assertEqual(self.both(), list(range(1, last + 2)))

    # ---------------------------------------------------------------- between two jobs

    def test_metrics_removed_between_two_jobs(self):
        jsonl, h5 = self.dir + "/metrics.jsonl", self.dir + "/metrics.h5"
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=6"])
        os.remove(jsonl)
        self.expect(0, "metrics.jsonl lacked rows that metrics.h5 has; they were added: eval/val 1 (steps 6 to 6), start 1",
                    args=[self.deck(), "--set", "train.total_steps=7"])
        self.assertEqual(self.both(), list(range(1, 8)))
        os.remove(h5)
        with open(jsonl) as f:
            lines = f.read().splitlines()
        lines[3] = "garbage"
        with open(jsonl, "w") as f:
            f.write("\n".join(lines) + "\n")
        self.expect(0, "metrics.h5 is made again from the 10 rows",
                    "metrics.jsonl: no valid row in line 4; moved to metrics.abandoned.jsonl",
                    args=[self.deck(), "--set", "train.total_steps=8"])
        self.assertEqual(self.both(), [1, 2, 4, 5, 6, 7, 8])
        with open(self.dir + "/metrics.abandoned.jsonl") as f:
            self.assertEqual(f.read(), "garbage\n")
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=9"])
        self.assertNotIn("row in line", self.output)

    # ---------------------------------------------------------------- under a running job

    def test_checkpoints_removed_under_a_job(self):
        job = self.start(*LONG, *QUICK, "--set", "checkpoint.every_steps=30")
        self.until(job, "checkpoint step=30 ")
        os.rename(self.dir + "/checkpoints", self.folder + "/away")
        self.until(job, "run/checkpoints was removed while this job writes to it: made again")
        self.until(job, "checkpoint step=")
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        self.check_whole(self.newest())

    def test_checkpoints_removed_before_the_only_save(self):
        job = self.start(*LONG, *QUICK, "--set", "checkpoint.every_steps=0")
        self.until(job, "step=3 ")
        os.rmdir(self.dir + "/checkpoints")
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        self.check_whole(self.newest())

    def test_a_folder_that_cannot_be_made_again(self):
        job = self.start(*LONG, *QUICK, "--set", "checkpoint.every_steps=0")
        self.until(job, "step=3 ")
        os.rmdir(self.dir + "/checkpoints")
        open(self.dir + "/checkpoints", "w").close()
        job.send_signal(signal.SIGUSR1)
        output = self.ended(job, 5)
        self.assertRegex(output, r"the last checkpoint could not be written: checkpoint of step \d+ was not written: ")
        self.assertIn("checkpoints: cannot create the directory: File exists. Older checkpoints", output)
        self.assertNotIn("Older checkpoints are intact", output)
        self.assertNotIn("make room", output)

    def test_the_whole_directory_removed_under_a_job(self):
        job = self.start(*LONG, *QUICK, "--set", "checkpoint.every_steps=30", "--set", "log.samples=true")
        self.until(job, "checkpoint step=30 ")
        os.rename(self.dir, self.folder + "/away")
        shutil.rmtree(self.folder + "/away")
        self.until(job, "was removed or renamed while this job writes to it. It was made again, and its lock taken")
        self.until(job, "metrics.jsonl was removed while this job writes it: made again with all its rows")
        self.until(job, "checkpoint step=")
        self.expect(2, "is in use by another job: ", args=[self.deck()])  # this job still holds the lock
        self.assertIn("running: ", subprocess.run([harness.SOURCE + "/tools/status", self.dir], capture_output=True, text=True).stdout)
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        for name in ("deck.resolved.toml", "logs/rank00000.log", "logs/rank00001.log", "logs/warnings.txt"):
            self.assertTrue(os.path.getsize(f"{self.dir}/{name}"), name)
        self.assertEqual(len(os.listdir(self.dir + "/logs/samples")), 2)
        with open(self.dir + "/lock") as f:
            self.assertEqual(f.read(), "")
        self.check_whole(self.newest())

    def test_the_lock_removed_under_a_job(self):
        job = self.start(*LONG, *QUICK)
        self.until(job, "step=3 ")
        os.remove(self.dir + "/lock")
        self.until(job, "run/lock was removed or replaced while this job holds it; it was taken again")
        self.expect(2, "is in use by another job: ", args=[self.deck()])
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        self.check_whole(self.newest())

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_another_job_takes_the_directory(self):
        """The second job starts after the directory was removed and before the first one looks. The first one ends, and leaves the
        files of the second alone."""
        first = self.start(*LONG, *QUICK, ranks=1)
        self.until(first, "step=3 ")
        rank, = self.ranks(first, 1)
        os.kill(rank, signal.SIGSTOP)
        os.rename(self.dir, self.folder + "/away")
        second = self.start(*LONG, *QUICK, "--set", "run.notes=second", ranks=1)
        self.until(second, "step=3 ")
        os.kill(rank, signal.SIGCONT)
        output = self.ended(first, 5)
        self.assertIn("and another job has used it since: ", output)
        self.assertIsNone(second.poll())
        second.send_signal(signal.SIGUSR1)
        output = self.ended(second, 75)
        self.assertNotIn("level=warning", output)
        self.assertEqual(sorted(os.listdir(self.dir)), ["attempts.jsonl", "checkpoints", "deck.resolved.toml", "lock", "logs",
                                                        "metrics.h5", "metrics.jsonl"])
        with open(self.dir + "/logs/rank00000.log") as f:
            self.assertEqual(f.read().count("trainer "), 1)
        self.check_whole(self.newest())

    # ---------------------------------------------------------------- saves by time

    def test_saves_by_time(self):
        begin = self.good.index("[checkpoint]")
        self.good = self.good[:begin]
        job = self.start(*LONG, *QUICK, "--set", "checkpoint.every_s=1")
        seen = self.until(job, "checkpoint step=")
        self.assertRegex(seen, r"disk     checkpoint .* MiB every 1 s; keeps")
        self.until(job, "checkpoint step=")  # a second save follows
        job.kill()
        job.communicate()
        for _ in range(600):  # its ranks end a moment later
            if self.run_trainer(self.deck(), *QUICK, "--set", f"train.total_steps={self.newest() + 1}", ranks=2) == 0:
                break
        self.assertIn("from=checkpoint", self.output)
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertRegex(f.read(), r"(?m)^every_s *= *900\b")  # the default of a deck without periods
        shutil.rmtree(self.dir)
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=3", "--set", "checkpoint.every_steps=4"])
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertRegex(f.read(), r"(?m)^every_s *= *0\b")
        self.assertNotIn(" every ", self.output.split("disk     ")[1].split("\n")[0])


harness.main()
