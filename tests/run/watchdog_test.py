#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The watchdog: jobs that stand still end with exit 7 and name the rank; others are left alone."""
import glob
import os
import signal
import subprocess
import time
import unittest

import harness
import place
from live_harness import LONG, LiveTest

LIMIT = 5  # seconds
WATCH = ["--set", f"watch.limit_s={LIMIT}"]
PATIENT = ["--set", "watch.limit_s=60"]
# A busy disk may need seconds to sync a checkpoint, which is a hang for such short limits.
NO_SAVES = ["--set", "checkpoint.every_steps=1000000"]


class Watchdog(LiveTest):
    def inject(self, order, **where):
        """The environment in which a rank meets a fault at a call on a file (tests/inject/inject.cpp)."""
        return os.environ | {"LD_PRELOAD": os.environ["INJECT_LIBRARY"], "INJECT_UNDER": self.folder, "INJECT": order} | \
            {f"INJECT_{name}": value for name, value in where.items()}

    def stacks(self, pattern):
        return sorted(glob.glob(f"{self.dir}/logs/stacks/{pattern}"))

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def hangs(self, job, *parts):
        """The job ends with exit 7 in time, and says each of these parts in one line."""
        begin = time.monotonic()
        output = self.ended(job, 7)
        self.assertLess(time.monotonic() - begin, LIMIT + 15, output)
        lines = [line for line in output.splitlines() if "hang: " in line]
        self.assertEqual(len(lines), 1, output)
        report = self.read(f"{self.dir}/report.txt")
        found = "\n".join(lines + [f"{path}:\n{self.read(path)}" for path in self.stacks("*")])
        for part in parts:
            self.assertIn(part, lines[0], found)
            self.assertIn(part, report)
        self.assertIn("exit=7", report)
        self.assertIn("rank=1 of 2 ", report, "the report names the rank to blame")
        return output

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_stopped_rank_is_named(self):
        job = self.start(*LONG, *WATCH, *NO_SAVES)
        self.until(job, "step=4 ")
        os.kill(self.ranks(job)[1], signal.SIGSTOP)
        self.hangs(job, "rank 1 (", "phase ", "is stopped", "rank 0 waits in ")
        self.assertIn("made no progress", self.read(self.stacks("*hang1-rank00000.txt")[0]))
        self.assertIn("T (stopped)", self.read(self.stacks("*hang1-rank00001.txt.silent")[0]))
        # The stacks name functions of the program, those local to a file as well.
        self.assertRegex(self.read(self.stacks("*hang1-rank00000.txt")[0]), r"thread \d+ trainer\n(.*\n)*  .*Trainer")

    def test_a_reader_that_stands_still_is_named(self):
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), *LONG, *WATCH, *NO_SAVES], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True,
                               env=self.inject("1:30:slow=600000", CALL="pread", ENDS=".tar"))
        self.hangs(job, "rank 1 (", ": load a sample", "rank 0 waits in ")

    def test_a_writer_that_stands_still_is_named(self):
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), *LONG, *WATCH], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True,
                               env=self.inject("1:0:slow=600000", CALL="fsync", ENDS=".h5.tmp"))
        self.hangs(job, "rank 1 (", "sync a checkpoint")

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_report_lets_the_job_go_on_and_quit_only_looks(self):
        flight = os.path.join(self.folder, "flight")
        os.mkdir(flight)
        with open(f"{flight}/99999.mine", "w", encoding="utf-8"):
            pass
        job = self.start(*LONG, *WATCH, *NO_SAVES, "--set", "watch.on_hang=report", "--set", f"watch.flight_dir={flight}")
        self.until(job, "step=4 ")
        first, second = self.ranks(job)
        os.kill(first, signal.SIGQUIT)
        self.wait("stacks of both ranks", lambda: len(self.stacks("*quit*-rank0000?.txt")) == 2)
        os.kill(second, signal.SIGSTOP)
        self.wait("the report", lambda: self.stacks("*hang1.txt") and self.read(self.stacks("*hang1.txt")[0]))
        self.assertEqual(sorted(os.path.basename(path) for path in glob.glob(f"{flight}/trainer-flight-*/*")), ["00000", "00001"])
        self.assertTrue(os.path.exists(f"{flight}/99999.mine"), "a file of somebody else")
        os.kill(second, signal.SIGCONT)
        self.assertIn("rank 1 (", self.read(self.stacks("*hang1.txt")[0]))
        self.until(job, "step=")
        os.kill(second, signal.SIGTERM)
        self.ended(job, 75)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_quit_reaches_the_ranks_of_other_nodes_and_alrm_to_mpirun_asks_all(self):
        job = self.start(*LONG, *PATIENT, env={"LD_PRELOAD": harness.preload(os.environ["FAULT_LIBRARY"]), "FAULT_HOSTS": "1"})
        self.until(job, "step=4 ")
        ranks = self.ranks(job)
        os.kill(ranks[1], signal.SIGQUIT)
        self.wait("stacks of both ranks", lambda: len(self.stacks("*quit*-rank0000?.txt")) == 2)
        self.assertIn("host=rank0 ", self.read(self.stacks("*quit*-rank00000.txt")[0]))
        time.sleep(1.1)  # requests are named by seconds
        os.kill(job.pid, signal.SIGALRM)
        self.wait("stacks of both ranks again", lambda: len(self.stacks("*quit*-rank0000?.txt")) == 4)
        os.kill(ranks[0], signal.SIGTERM)
        self.ended(job, 75)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_suspended_job_is_no_hang(self):
        limit = LIMIT + 1
        job = self.start(*LONG, *NO_SAVES, "--set", f"watch.limit_s={limit}")
        self.until(job, "step=4 ")
        ranks = self.ranks(job)
        for which in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                os.kill(rank, which)
            if which == signal.SIGSTOP:
                time.sleep(limit + 2)
        time.sleep(1)
        os.kill(ranks[0], signal.SIGTERM)
        self.assertNotIn("hang: ", self.ended(job, 75))

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_crash_leaves_stacks_and_says_what_it_did(self):
        job = self.start(*LONG, *PATIENT)
        self.until(job, "step=4 ")
        os.kill(self.ranks(job)[1], signal.SIGSEGV)
        self.ended(job, 1)
        self.assertRegex(self.read(f"{self.dir}/report.txt"), r"rank=1 .*signal SIGSEGV, in \w")
        self.assertIn("this rank has crashed", self.read(self.stacks("*crash-rank00001.txt")[0]))


if __name__ == "__main__":
    unittest.main()
