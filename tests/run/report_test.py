#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The end of a job: its report, its mention in the next attempt, and the time and cost that add up over attempts."""
import os
import shutil
import signal
import subprocess
import time
import unittest

import h5py

import harness
import place
from live_harness import LONG, LiveTest

attempts = harness.loaded("attempts.py")


class Report(LiveTest):
    def report(self):
        with open(self.dir + "/report.txt") as f:
            return f.readline()

    def good_copy(self):
        return self.deck(name="same.toml")

    def status(self):
        return subprocess.run([harness.SOURCE + "/tools/status", self.dir], capture_output=True, text=True).stdout

    def test_the_report_is_of_the_last_attempt(self):
        good = [self.deck(), *LONG[:1], "train.total_steps=13"]
        self.expect(6, args=self.poisoned("stop"), ranks=2)
        self.assertRegex(self.report(), r"^rank=0 of 2 host=\S+ step=4 phase=train exit=6: step 4: loss=")
        # Refused before anything runs: by the data at both ranks and at one, by the deck, by the
        # mesh.
        os.rename(self.data + "/train-001.tar", self.data + "/away")
        self.expect(4, args=good, ranks=2)
        self.assertRegex(self.report(), r"^rank=[01] of 2 host=\S+ step=0 phase=\w+ exit=4: .*train-001.tar")  # either rank may be first
        os.rename(self.data + "/away", self.data + "/train-001.tar")
        self.expect(2, args=[*good, "--set", "optimizer.learning_rte=1"], ranks=2)
        self.assertRegex(self.report(), r"^rank=0 of 2 .* exit=2: .*learning_rte")
        self.expect(3, args=good, ranks=5)
        self.assertRegex(self.report(), r"^rank=0 of 5 .* exit=3: .*global_batch")
        one = [harness.TRAINER, self.good_copy(), "--set", 'loader.stage_dir="$STAGE"']
        job = subprocess.run(["mpirun", "-np", "1", "-x", f"STAGE={self.folder}", *one, ":", "-np", "1", *one], capture_output=True,
                             text=True, timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(job.returncode, 2, job.stdout + job.stderr)
        self.assertRegex(self.report(), r"^rank=1 of 2 .* exit=2: .*STAGE")
        # The log reports the failed attempt before; a good run leaves no report.
        self.expect(0, "before   the previous attempt failed: rank=1 of 2 ", "exit=2: ", ranks=2,
                    args=[*good, "--set", "checkpoint.resume=never"])
        self.assertFalse(os.path.exists(self.dir + "/report.txt"))

    def test_a_job_in_the_directory_keeps_its_report(self):
        job = self.start(*LONG)
        self.until(job, "step=3 ")
        self.expect(2, "is in use by another job: ", args=[self.deck()], ranks=2)
        self.assertFalse(os.path.exists(self.dir + "/report.txt"))
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_killed_attempt_is_told_by_the_next(self):
        job = self.start(*LONG)
        self.until(job, "checkpoint step=4")
        os.kill(self.ranks(job)[1], signal.SIGKILL)
        job.communicate(timeout=harness.GUARD)
        self.assertFalse(os.path.exists(self.dir + "/report.txt"))
        self.assertRegex(self.status(), r"state       not running; its last job \(\S+:\d+ since .*\) was killed")
        more = ["--set", f"train.total_steps={self.newest() + 2}"]
        self.expect(0, "level=warning", "ended without a report: it was killed", "from=checkpoint", args=[self.deck(), *more], ranks=2)
        self.assertEqual([row.get("killed") for row in self.rows("start")], [0, 1])
        self.expect(0, "finished", args=[self.deck(), *more], ranks=2)
        self.assertNotIn("ended without a report", self.output)

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "an address sanitizer needs more address space than the rank is left")
    def test_memory_that_one_rank_lacks(self):
        # Out of memory at one rank of two while the data are opened: all ranks end, and the report
        # names the cause.
        os.mkdir(self.folder + "/images")
        with open(self.folder + "/images/a.png", "wb") as f:
            f.write(harness.png(1))
        with open(self.folder + "/big.tsv", "w") as f:
            for _ in range(300):
                f.write("a.png\t" + "word " * 200000 + "\n")
        ops = """decode | resize(16) | value_range(-1, 1) | choice(inkey="captions", outkey="text")
                 | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")"""
        deck = self.deck(self.good + f"""
[data.big]
kind = "folder"
path = "{self.folder}/images"
captions = "{self.folder}/big.tsv"
preprocess = '''{ops}'''
""")
        self.expect(0, args=[deck, "--set", "train.total_steps=1"], ranks=2)  # makes the directory of the report
        one = [harness.TRAINER, deck, "--set", "eval.val.data=big"]
        job = subprocess.run(["mpirun", "-np", "1", *one, ":", "-np", "1", "sh", "-c", f"ulimit -v 500000; exec {' '.join(one)}"],
                             capture_output=True, text=True, timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(job.returncode, 3, job.stdout + job.stderr)
        self.assertIn("out of memory", job.stdout + job.stderr)
        with open(self.dir + "/report.txt") as f:
            lines = f.read().splitlines()
        self.assertIn("out of memory", lines[0])
        # Below it: who, for what, the process and its limit, the node.
        self.assertRegex(lines[1], r"^memory   ran out at rank 1 of 2, phase open_data, step 0, in thread \S.*: ")
        self.assertRegex("\n".join(lines[2:]), r"memory   of the process, MiB: resident [\d.]+ .* of 488.3 that ulimit -v allows")
        self.assertRegex("\n".join(lines[2:]), r"memory   of the node, MiB: \d+ of \d+ are left")

    # ---------------------------------------------------------------- time and cost

    def seconds(self, step):
        """Returns the seconds by category, from a checkpoint."""
        names = ("setup_s", "training_s", "evaluation_s", "checkpoint_s", "redone_s")
        with h5py.File(f"{self.dir}/checkpoints/{step:010}.h5") as f:
            return {name: float(f.attrs[name]) for name in names}, float(f.attrs["uptime_s"])

    def assert_whole_time_is_counted(self, train):
        """train() returns the seconds that a job has counted: all but mpirun's start and end, whose length a job that only reads its
        deck shows. Other programs on the machine disturb a try, but not each of them."""
        seen = []
        for _ in range(10):
            begin = time.monotonic()
            self.expect(0, args=[self.deck(), "--validate"], ranks=2)
            launch = time.monotonic() - begin
            shutil.rmtree(self.dir, ignore_errors=True)
            begin = time.monotonic()
            counted = train()
            wall = time.monotonic() - begin
            self.assertLess(counted, wall)
            seen.append((wall - counted) / launch)
            if seen[-1] < 4:
                return
        self.fail(f"not counted, in launches: {seen}")

    def assert_sum(self, times, seconds):
        """The categories sum to all of the time, without the time of the save itself."""
        self.assertLess(sum(times.values()), seconds + 0.001)
        self.assertGreater(sum(times.values()), 0.9 * seconds)

    def test_times_add_up(self):
        # One attempt; a killed one and the next; one that went back.
        def straight():
            self.expect(0, args=[self.deck()], ranks=2)
            return self.seconds(12)[1]
        self.assert_whole_time_is_counted(straight)
        times, uptime = self.seconds(12)
        self.assert_sum(times, uptime)
        for name in ("setup_s", "training_s", "evaluation_s", "checkpoint_s"):
            self.assertGreater(times[name], 0, name)
        self.assertEqual(times["redone_s"], 0)
        shutil.rmtree(self.dir)
        job = self.start(*LONG, "--set", "checkpoint.every_steps=40")
        self.until(job, "step=110 ")
        job.kill()
        job.communicate()
        self.wait("the end of its ranks", lambda: "running:" not in self.status())
        saved, rows = self.newest(), self.rows()
        self.assertGreater(rows[-1]["step"], saved)
        end = rows[-1]["step"] + 5
        lost = rows[-1]["uptime_s"] - self.seconds(saved)[1]
        killed_s = attempts.starts_of(self.dir)[-1].seconds()
        self.assertGreater(killed_s, rows[-1]["uptime_s"] - 0.05)  # its ranks went on for a while, or wrote that row at their end
        self.expect(0, "redone after restart", args=[self.deck(), "--set", f"train.total_steps={end}"], ranks=2)
        times, uptime = self.seconds(end)
        self.assertAlmostEqual(times["redone_s"], killed_s - rows[-1]["uptime_s"] + lost, delta=0.05)
        self.assert_sum(times, killed_s + uptime)

        def rewound():
            self.expect(0, "went back to step 2", args=self.poisoned("rewind"), ranks=2)
            return sum(self.seconds(8)[0].values())
        self.assert_whole_time_is_counted(rewound)
        self.assertGreater(self.seconds(8)[0]["redone_s"], 0)

    def test_cost_and_time_count_on(self):
        self.expect(0, args=[self.deck()], ranks=2)
        first = self.rows()[-1]["core_hours"]
        # Two steps on one rank: cheaper by the step, but never less in all.
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=14"], ranks=1)
        self.assertGreater(self.rows()[-1]["core_hours"], first)
        # A killed attempt: the time after the checkpoint is accounted for.
        os.remove(self.dir + "/checkpoints/0000000014.h5")
        self.expect(0, "lost     ", "redone after restart", args=[self.deck(), "--set", "train.total_steps=14"], ranks=2)


harness.main()
