#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stops: signals at any moment, wall time, files, free space, budget, early stop."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import h5py

import harness
import place
from live_harness import LONG, LiveTest


class Stops(LiveTest):
    # ---------------------------------------------------------------- signals

    def test_signals_within_products(self):
        # A storm of signals from the measurement of products, which follows this line, to the end.
        # oneDNN's AVX2 products keep data below the stack pointer.
        for isa in ("AVX2", "ALL"):
            with self.subTest(isa=isa):
                shutil.rmtree(self.dir, ignore_errors=True)
                sent = 0
                while sent <= 20:  # fewer are no storm: on a busy machine the job may end before this test has its turn
                    job = subprocess.Popen([harness.TRAINER, self.deck(), *LONG], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           cwd=self.folder, text=True, env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa})
                    self.until(job, "optim ")
                    sent = 0
                    while job.poll() is None and sent < 100000:
                        job.send_signal(signal.SIGUSR1)
                        sent += 1
                        time.sleep(0.0001)
                    self.ended(job, 75)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_one_rank_is_enough_and_any_moment_will_do(self):
        # TERM to a single rank, not to mpirun: during the set-up, in training, and in a long
        # evaluation.
        slow = ["--set", "eval.val.every_steps=3", "--set", "train.micro_batch=1", "--set", "eval.val.data=many"]
        text = self.with_many()
        for moment, extra in (("lock taken", []), ("step=4 ", []), ("step=3 ", slow)):
            with self.subTest(moment=moment, extra=bool(extra)):
                shutil.rmtree(self.dir, ignore_errors=True)
                deck = self.deck(text)
                job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, deck, *LONG, *extra], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, cwd=self.folder, text=True)
                self.until(job, moment)
                if extra:
                    self.wait("the evaluation", lambda: self.phase() == "evaluate step=3")
                os.kill(self.ranks(job)[1], signal.SIGTERM)
                output = self.ended(job, 75)
                self.assertIn("stopped  ", output)
                self.assertIn("signal TERM at rank 1", output)
                if extra:
                    self.assertIn("eval=val step=3 interrupted", output)
                    self.assertEqual(self.newest(), 3)
                    # Made up for before the next step.
                    self.expect(0, "eval=val step=3 perplexity", "step=4 ", ranks=2, args=[
                        deck, "--set", "train.total_steps=4", *extra, "--set", "eval.val.data=train", "--allow-change", "eval"])
                    self.assertEqual([row["step"] for row in self.rows("eval")], [3, 4])

    def with_many(self):
        """Returns the good deck with a data set whose evaluation takes long."""
        return self.good + """
[data.many]
kind = "synthetic"
image_size = 16
seq_len = 12
vocab_size = 400
examples = 200000
preprocess = 'keep("image", "labels") | value_range(-1, 1, key="image")'
"""

    def test_the_last_evaluation_is_never_left_out(self):
        deck = self.deck(self.with_many())
        slow = ["--set", "eval.val.data=many", "--set", "eval.val.every_steps=0", "--set", "train.micro_batch=1", "--set",
                "train.total_steps=3"]
        for _ in range(2):  # cut off at the end, and again when it is made up for
            job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, deck, *slow], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, cwd=self.folder, text=True)
            self.wait("the last evaluation", lambda: self.phase() == "evaluate step=3")
            job.send_signal(signal.SIGUSR1)
            self.assertIn("eval=val step=3 interrupted", self.ended(job, 75))
        self.expect(0, "eval=val step=3 perplexity", "finished step=3", ranks=2,
                    args=[deck, *slow, "--set", "eval.val.data=train", "--allow-change", "eval"])

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_closed_terminal_saves(self):
        # HUP, by the deck's defaults: to the trainer without mpirun, and to one rank of two.
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.dir, ignore_errors=True)
                command = ["mpirun", "-np", str(ranks)] if ranks else []
                job = subprocess.Popen([*command, harness.TRAINER, self.deck(), *LONG], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, cwd=self.folder, text=True)
                self.until(job, "step=3 ")
                os.kill(self.ranks(job)[-1] if ranks else job.pid, signal.SIGHUP)
                output = self.ended(job, 75)
                self.assertRegex(output, r"stopped  step=\d+ of 100000: signal HUP at rank \d")
                self.assertEqual(self.newest(), int(re.search(r"stopped  step=(\d+)", output).group(1)))

    def test_ignored_signals_stay_ignored(self):
        if "libucs.so" in subprocess.run(["ldd", harness.TRAINER], capture_output=True, text=True, check=True).stdout:
            self.skipTest("UCX, a library of this MPI, takes HUP before the program begins")
        job = subprocess.Popen(["nohup", harness.TRAINER, self.deck(), *LONG], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, cwd=self.folder, text=True)
        self.until(job, "step=3 ")
        job.send_signal(signal.SIGHUP)
        trained = re.findall(r"step=(\d+) loss", self.until(job, "step=100 "))
        self.assertEqual(trained, [str(step) for step in range(4, 101)])
        job.send_signal(signal.SIGTERM)
        self.ended(job, 75)

    # ---------------------------------------------------------------- limits

    def until_the_wall_time(self, wall_s, margin_s):
        """Runs a job of `wall_s` seconds, twice as many if a busy machine does fewer than two steps in them. Returns its limit in
        seconds, and the seconds that were left when it stopped, by its own report."""
        while True:
            code = self.run_trainer(self.deck(), *LONG, *harness.wall_time(wall_s), "--set", f"limits.margin_s={margin_s}", "--set",
                                    "log.console_every_steps=1000", ranks=2)
            if os.path.exists(self.dir + "/metrics.jsonl") and len(self.rows()) > 1:
                break
            shutil.rmtree(self.dir, ignore_errors=True)
            wall_s *= 2
            self.assertLess(wall_s, harness.GUARD, self.output)
        self.assertEqual(code, 75, self.output)
        said = r"stopped  step=\d+.*wall time: (\d+) s left; margin (\d+) s(?: \(not .*?\))? \+ step ([\d.]+) s \+ save ([\d.]+) s"
        self.assertRegex(self.output, said)
        left, kept, step, save = map(float, re.search(said, self.output).groups())
        rows = self.rows()
        # Neither too early nor too late: the job looks at its own clock after each row, and
        # continued after the last but one.
        self.assertLess(left, kept + step + save + 1.2)
        self.assertLess(rows[-2]["uptime_s"], wall_s - kept + 0.5)
        self.assertLess(rows[-1]["uptime_s"], wall_s - left + 0.5)
        self.assertEqual(self.newest(), rows[-1]["step"])  # the last finished step is saved
        return wall_s, kept

    def test_wall_time(self):
        _, kept = self.until_the_wall_time(16, 2)
        self.assertEqual(kept, 2)
        self.assertIn("limits   wall time", self.output)
        self.assertNotIn("limits.margin_s", self.output)
        last = self.newest()
        self.expect(0, f"step={last + 1} ", ranks=2, args=[self.deck(), "--set", f"train.total_steps={last + 1}"])

    def test_a_margin_that_is_cut_is_told(self):
        wall_s, kept = self.until_the_wall_time(8, 120)
        said = r"limits.margin_s = 120 is more than a quarter of the (\d+) s that this job has: only (\d+) s are kept"
        self.assertRegex(self.output, said)
        self.assertIn(f"margin {kept:.0f} s (not 120 s: a quarter of the time)", self.output)
        has, told = map(int, re.search(said, self.output).groups())
        self.assertLessEqual(has, wall_s)
        self.assertEqual(told, kept)
        self.assertLess(abs(told - has / 4), 1)

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w") as f:
            f.write(text)

    def test_limits_that_the_scheduler_changes(self):
        # An squeue that tells of little time, and later of more.
        tools = self.folder + "/bin"
        os.mkdir(tools)
        self.write("bin/squeue", f"#!/bin/sh\necho called >> {self.folder}/calls\ncat {self.folder}/left\n")
        os.chmod(tools + "/squeue", 0o755)
        self.write("left", "1:00\n")
        job = subprocess.Popen(["mpirun", "-np", "2", "-x", f"PATH={tools}:{os.environ['PATH']}", "-x", "SLURM_JOB_ID=12",
                                harness.TRAINER, self.deck(), *LONG, "--set", "limits.margin_s=6"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        self.assertRegex(self.until(job, "limits   wall time: "), r"limits   wall time: \d+s left \(slurm\)")

        def calls():
            with open(self.folder + "/calls") as f:
                return len(f.readlines())
        self.write("left", "2:00:00\n")
        before = calls()
        self.until(job, "(slurm has changed the limit)")
        self.assertLessEqual(calls(), before + 2)  # one may have been under way
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)

    def test_files(self):
        job = self.start(*LONG, "--set", "checkpoint.every_steps=50000")
        self.until(job, "step=5 ")
        open(self.dir + "/save", "w").close()
        self.until(job, "checkpoint step=")
        self.assertFalse(os.path.exists(self.dir + "/save"))
        for _ in range(50):  # more rows than any save takes
            self.until(job, " schedule=")
        self.assertEqual(len(self.checkpoints()), 1)  # once
        open(self.dir + "/stop", "w").close()
        output = self.ended(job, 8)
        self.assertIn("stopped  ", output)
        self.assertFalse(os.path.exists(self.dir + "/stop"))
        stopped = self.newest()
        self.expect(0, f"step={stopped + 1} ", ranks=2, args=[self.deck(), "--set", f"train.total_steps={stopped + 1}"])

    def test_a_stop_file_stops_nothing_later(self):
        self.expect(0, args=[self.deck()], ranks=2)
        open(self.dir + "/stop", "w").close()
        self.expect(0, "finished", args=[self.deck()], ranks=2)
        self.expect(0, "step=14 ", args=[self.deck(), "--set", "train.total_steps=14"], ranks=2)

    def test_free_space(self):
        self.expect(5, "was not written", "limits.min_free_gb", ranks=2,
                    args=[self.deck(), "--set", "limits.min_free_gb=1000000", "--set", "checkpoint.on_error=stop"])
        self.assertEqual(self.checkpoints(), [])

    def test_budget(self):
        self.expect(8, "budget", ranks=2, args=[self.deck(), *LONG, "--set", "limits.core_hours=0.001"])
        stopped = self.newest()
        self.expect(8, "raise limits.core_hours", ranks=2, args=[self.deck(), *LONG, "--set", "limits.core_hours=0.001"])
        self.assertEqual(self.newest(), stopped)

    def test_early_stop_and_best(self):
        # The evaluation at the start counts for neither: the first one after it is the first best one.
        early = ["--set", "early_stop.metric=val/perplexity:min", "--set", "early_stop.patience_evals=2", "--set",
                 "early_stop.min_change=1000", "--set", "eval.val.every_steps=2", "--set", "checkpoint.best=val/perplexity:min",
                 "--set", "checkpoint.every_steps=50000", "--set", "eval.val.at_start=true"]
        self.expect(0, "early_stop: val/perplexity has not improved", "finished step=6", "best.h5", ranks=2,
                    args=[self.deck(), *LONG, *early])
        rows = {row["step"]: row["perplexity"] for row in self.rows("eval")}
        best = min(rows, key=rows.get)
        with h5py.File(self.dir + "/checkpoints/best.h5") as f:
            self.assertEqual(f.attrs["step"], best)
        self.expect(0, "finished step=6", ranks=2, args=[self.deck(), *LONG, *early])
        self.assertNotIn("loss_ar=", self.output)
        status = subprocess.run([harness.SOURCE + "/tools/status", self.dir], capture_output=True, text=True).stdout
        self.assertIn("state       finished", status)
        # Evaluators of the end have their turn at this end, too.
        shutil.rmtree(self.dir)
        text = self.good + '\n[eval.last]\nkind = "perplexity"\ndata = "train"\nevery_steps = 0\n'
        self.expect(0, "eval=val step=0 ", "eval=last step=6 ", "finished step=6", ranks=2,
                    args=[self.deck(text), *LONG, *early, "--set", "checkpoint.best=val/perplexity:max"])
        rows = {row["step"]: row["perplexity"] for row in self.rows("eval") if row["eval"] == "val"}
        self.assertEqual(max(rows, key=rows.get), 0)
        del rows[0]
        with h5py.File(self.dir + "/checkpoints/best.h5") as f:
            self.assertEqual(f.attrs["step"], max(rows, key=rows.get))
        shutil.rmtree(self.dir)
        later = ["--set", "early_stop.not_before_fraction=0.000095"]  # of 100,000 steps: step 9.5
        self.expect(0, "eval=last step=10 ", "finished step=10", ranks=2, args=[self.deck(text), *LONG, *early, *later])
        self.deck()
        for bad, words in (("val/perplexit:min", ["perplexity"]), ("vall/perplexity:min", ["[eval.vall]", "val"]),
                           ("val/perplexity", ["EVAL/METRIC"])):
            self.expect(2, "checkpoint.best", *words, args=[self.deck(), "--set", f"checkpoint.best={bad}", "--validate"])


harness.main()
