#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the disk under run directories, and checks lost data, kept data, and the messages of the
next start."""
import os
import re
import signal
import subprocess

import h5py

import event_files
import harness
import place
from live_harness import LONG, LiveTest


class FullDisk(LiveTest):
    def small_disk(self, kib=2560):
        """Makes a run directory on a file system of a few KiB, and a way to fill it."""
        if place.no_small_disk():
            self.skipTest(place.no_small_disk())
        small = self.folder + "/small"
        os.mkdir(small)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", small], check=True)
        self.addCleanup(subprocess.run, ["umount", small])
        self.dir = small + "/run"
        return small + "/filler"

    def last_row(self):
        """Returns the step of the newest row, while a job writes."""
        with open(self.dir + "/metrics.jsonl", "rb") as f:
            return max(int(step) for step in re.findall(rb'"kind":"train".*?"step":(\d+)|$', f.read()) if step)

    def fill(self, filler, room=0):
        with open(filler, "wb", buffering=0) as f:
            try:
                while True:
                    f.write(b"x" * 4096)
            except OSError:
                f.truncate(f.tell() - room)

    def test_full_disk_under_metrics_and_log(self):
        filler = self.small_disk(65536)  # rows and logs grow with the steps done while this test waits
        args = ["--dir", self.dir, "--set", "checkpoint.every_steps=0", "--set", "eval.val.every_steps=0", "--set", "log.flush_s=0.1",
                "--set", "log.samples=true", "--set", "log.tensorboard=true"]
        job = self.start(*args, *LONG)
        self.until(job, "step=5 ")
        self.fill(filler)
        seen = ""
        for text in ("metrics.jsonl: cannot write: No space left on device; rows are kept in memory",
                     "rank00000.log: cannot write: No space left on device; lines are kept in memory",
                     "rank00000.tsv: cannot write: No space left on device; rows are kept in memory",
                     "tfevents.0000000001: cannot write: No space left on device; rows are kept in memory", "metrics.h5 stays as it was: "):
            if text not in seen:
                seen += self.until(job, text)
        # The old files are whole, and the run trains on.
        with h5py.File(self.dir + "/metrics.h5") as f:
            self.assertEqual(len(f["start/step"]), 1)
        seen += self.until(job, "step=" + str(int(re.findall(r"step=(\d+) loss", seen)[-1]) + 100) + " ")
        before = self.rows()[-1]["step"]
        os.remove(filler)
        while self.last_row() <= before:
            self.until(job, " schedule=")
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        stopped = self.newest()
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, stopped + 1)))
        with h5py.File(self.dir + "/metrics.h5") as f:
            self.assertEqual(list(f["train/step"]), list(range(1, stopped + 1)))
        # No line is lost or cut.
        with open(self.dir + "/logs/rank00000.log") as f:
            steps = [int(step) for step in re.findall(r"^\S+ step=(\d+) loss=", f.read(), re.M)]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertLessEqual(set(map(int, re.findall(r"^step=(\d+) loss=", seen, re.M))), set(steps))
        with open(self.dir + "/logs/samples/from0000000000.rank00000.tsv") as f:
            self.assertEqual(sorted({int(line.split("\t")[0]) for line in f}), list(range(1, stopped + 1)))
        self.assertEqual([step for step, _, _ in event_files.events(self.dir)["train/loss"]], list(range(1, stopped + 1)))
        # A start on a full disk names the file and the remedy, and loses nothing.
        self.fill(filler)
        self.expect(5, "run.dir: ", "/lock: cannot write: No space left on device; make room there", "--dir", ranks=2,
                    args=[self.deck(), *args, "--set", f"train.total_steps={stopped + 1}"])
        os.remove(filler)
        self.expect(0, f"step={stopped + 1} ", ranks=2, args=[self.deck(), *args, "--set", f"train.total_steps={stopped + 1}"])

    def test_full_disk(self):
        filler = self.small_disk()
        big = ["--dir", self.dir, "--set", "checkpoint.keep_last=50", "--set", "checkpoint.every_steps=1"]
        self.expect(5, "was not written", "Older checkpoints are intact", ranks=2,
                    args=[self.deck(), *big, "--set", "train.total_steps=60", "--set", "checkpoint.on_error=stop"])
        kept = self.checkpoints()
        self.assertGreater(len(kept), 1)
        for name in kept:
            self.tensors(int(name[:10]))
        # With room, the same command continues. With "continue" a full disk is only a warning until
        # the last step.
        for name in kept[:-1]:
            os.remove(f"{self.dir}/checkpoints/{name}")
        self.expect(0, "from=checkpoint", ranks=2,
                    args=[self.deck(), *big, "--set", "checkpoint.keep_last=2", "--set", f"train.total_steps={int(kept[-1][:10]) + 5}"])
        # enough for logs and metrics, too little for a checkpoint
        self.fill(filler, room=48 * 1024)
        last = self.newest()
        self.expect(5, "level=warning", "not even one checkpoint fits", "was not written", "could not be written", ranks=2,
                    args=[self.deck(), *big, "--set", f"train.total_steps={last + 3}"])
        self.assertEqual(self.newest(), last)
        with open(self.dir + "/report.txt") as f:
            self.assertIn("the last checkpoint could not be written", f.read())
        os.remove(filler)
        self.expect(0, f"finished step={last + 3}", ranks=2,
                    args=[self.deck(), *big, "--set", "checkpoint.keep_last=2", "--set", f"train.total_steps={last + 3}"])


harness.main()
