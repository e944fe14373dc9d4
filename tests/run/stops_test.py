#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stops and continued runs: signals at any moment, wall time, files, budget, early stop, values that are not finite, changed
decks, going back, and the report of the end of a job."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import h5py
import numpy as np

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

    def test_a_closed_terminal_saves(self):
        # HUP, by the deck's defaults: to the trainer without mpirun, and to one rank of two.
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.dir, ignore_errors=True)
                command = ["mpirun", "-np", str(ranks)] if ranks else []
                job = subprocess.Popen([*command, harness.TRAINER, self.deck(), *LONG], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, cwd=self.folder, text=True)
                self.until(job, "step=3 ")
                pids = subprocess.run(["pgrep", "-P", str(job.pid), "-f", "deck.toml"], capture_output=True, text=True).stdout.split()
                os.kill(int(pids[-1]) if ranks else job.pid, signal.SIGHUP)
                output = self.ended(job, 75)
                self.assertRegex(output, r"stopped  step=\d+ of 100000: signal HUP at rank \d")
                self.assertEqual(self.newest(), int(re.search(r"stopped  step=(\d+)", output).group(1)))

    def test_ignored_signals_stay_ignored(self):
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
        early = ["--set", "early_stop.metric=val/perplexity:min", "--set", "early_stop.patience_evals=2", "--set",
                 "early_stop.min_change=1000", "--set", "eval.val.every_steps=2", "--set", "checkpoint.best=val/perplexity:min",
                 "--set", "checkpoint.every_steps=50000"]
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
        self.expect(0, "eval=last step=6 ", "finished step=6", ranks=2, args=[self.deck(text), *LONG, *early])
        self.deck()
        for bad, words in (("val/perplexit:min", ["perplexity"]), ("vall/perplexity:min", ["[eval.vall]", "val"]),
                           ("val/perplexity", ["EVAL/METRIC"])):
            self.expect(2, "checkpoint.best", *words, args=[self.deck(), "--set", f"checkpoint.best={bad}", "--validate"])

    # ---------------------------------------------------------------- not finite

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

    def test_nonfinite_rewind_stays_in_this_past(self):
        self.expect(0, args=[self.deck()], ranks=2)
        # The new run has saved nothing yet; the files there belong to the abandoned run.
        self.expect(6, "there is no checkpoint to go back to", ranks=2,
                    args=[self.deck(), "--set", "checkpoint.resume=never", "--set", "optimizer.learning_rate=1e38", "--set",
                          "guard.nonfinite=rewind", "--set", "checkpoint.every_steps=10"])
        self.assertEqual(self.newest(), 12)

    def test_nonfinite_evaluation_keeps_the_save_under_way(self):
        self.expect(6, "evaluator val: ", "not finite at step 5", "guard.nonfinite is about training", ranks=2,
                    args=[*self.poisoned("skip"), "--set", "eval.val.data=poisoned", "--set", "eval.val.every_steps=5", "--set",
                          "eval.val.at_end=true", "--set", "checkpoint.every_steps=4"])
        self.assertEqual(self.newest(), 4)

    # ---------------------------------------------------------------- other decks, other pasts

    def test_other_data(self):
        self.expect(0, args=[self.deck()], ranks=2)
        harness.make_shards(self.data, samples=44)
        more = ["--set", "train.total_steps=14"]
        self.expect(2, "the checkpoint was trained on train 40 samples (", "the deck's data are train 44 samples (",
                    "--allow-change train.data", args=[self.deck(), *more], ranks=2)
        self.expect(0, "step=13 ", "level=warning", args=[self.deck(), *more, "--allow-change", "train.data"], ranks=2)
        self.expect(0, "step=15 ", args=[self.deck(), "--set", "train.total_steps=15"], ranks=2)
        # An equal number of samples at other places.
        first, second = (f"{self.data}/train-{s:03}.tar" for s in range(2))
        os.rename(first, first + ".old"), os.rename(second, first), os.rename(first + ".old", second)
        self.expect(2, "train 44 samples (", "--allow-change train.data", args=[self.deck(), "--set", "train.total_steps=16"], ranks=2)

    def test_changed_decks(self):
        self.expect(0, args=[self.deck()], ranks=2)
        more = ["--set", "train.total_steps=14"]
        self.expect(2, "optimizer.learning_rate: the checkpoint has 0.01, the deck 0.02", "--allow-change", ranks=2,
                    args=[self.deck(), *more, "--set", "optimizer.learning_rate=0.02"])
        self.assertEqual(self.output.count("the checkpoint has 0.01"), 1)
        self.expect(2, "run.seed", "train.shuffle", args=[self.deck(), *more, "--set", "run.seed=1", "--set", "train.shuffle=none"])
        self.assertEqual(self.newest(), 12)
        self.expect(0, "changed  optimizer.learning_rate: 0.01 -> 0.02 (--allow-change)", ranks=2,
                    args=[self.deck(), *more, "--set", "optimizer.learning_rate=0.02", "--allow-change", "optimizer"])
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertIn("0.02", f.read())

    def test_what_can_never_change(self):
        # With a computed position table other image sizes have the same shapes, and only the key
        # differs.
        sincos = ["--set", "model.posemb=sincos2d", "--set", "train.total_steps=4"]
        self.expect(0, args=[self.deck(), *sincos])
        larger = self.changed(("image_size       = 16", "image_size       = 32"), ("resize(16)", "resize(32)"))
        self.expect(2, "model.image_size: the checkpoint has 16, the deck 32", "can never change", "another run.dir",
                    args=[self.deck(larger), *sincos, "--allow-change", "model"])

    def test_going_back_leaves_the_other_past(self):
        every = ["--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=9"]
        self.expect(0, args=[self.deck(), *every], ranks=2)
        old = self.tensors(6)
        self.expect(0, "step=5 ", args=[self.deck(), *every, "--set", 'checkpoint.resume="4"', "--set", "checkpoint.every_steps=3",
                                        "--set", "train.total_steps=7"], ranks=2)
        self.assertEqual(self.checkpoints(), ["0000000002.h5", "0000000004.h5", "0000000006.h5", "0000000007.h5"])
        kept = sorted(os.listdir(self.dir + "/checkpoints/abandoned"))
        self.assertEqual(kept, ["0000000006.h5", "0000000008.h5", "0000000010.h5", "0000000012.h5"])
        os.rename(self.dir + "/checkpoints/abandoned/0000000006.h5", self.dir + "/checkpoints/0000000006.h5")
        self.assertEqual(self.tensors(6), old)
        self.expect(0, "from=random_init", ranks=2,
                    args=[self.deck(), *every, "--set", "checkpoint.resume=never", "--set", "run.seed=9", "--set",
                          "train.total_steps=4"])
        self.assertEqual(self.checkpoints(), ["0000000002.h5", "0000000004.h5"])
        # The second abandoned past is beside the first.
        kept = sorted(os.listdir(self.dir + "/checkpoints/abandoned"))
        self.assertEqual(len(kept), 3 + 4)
        self.assertIn("0000000006.h5", kept)

    def test_going_back_is_done_once(self):
        self.expect(0, args=[self.deck()], ranks=2)
        back = [*LONG, "--set", 'checkpoint.resume="4"']
        job = self.start(*back)
        self.until(job, "step=30 ")
        job.send_signal(signal.SIGUSR1)
        self.ended(job, 75)
        stopped = self.newest()
        # A job script that repeats the command continues from there.
        self.expect(0, "was carried out by the attempt", f"step={stopped + 1} ", ranks=2,
                    args=[self.deck(), *back, "--set", f"train.total_steps={stopped + 1}"])
        # With a damaged newest file, the run continues from the one before and does not go back
        # again.
        newest, before = [int(name[:10]) for name in self.checkpoints()[:-3:-1]]
        with open(f"{self.dir}/checkpoints/{newest:010}.h5", "r+b") as f:
            f.truncate(5000)
        self.expect(0, "checkpoint refused", "was carried out by the attempt", f"step={before + 1} ", ranks=2,
                    args=[self.deck(), *back, "--set", f"train.total_steps={newest}"])

    def test_best_is_of_this_past(self):
        best = ["--set", "checkpoint.best=val/perplexity:min", "--set", "eval.val.every_steps=2", "--set", "checkpoint.every_steps=2",
                "--set", "checkpoint.keep_last=9"]
        self.expect(0, "at step 12 -> ", args=[self.deck(), *best], ranks=2)
        # Nothing is learned any more: the best is the one at which the run began again.
        self.expect(0, "at step 4 -> ", ranks=2, args=[self.deck(), *best, "--set", 'checkpoint.resume="4"', "--set",
                                                       "optimizer.learning_rate=0", "--allow-change", "optimizer"])
        with h5py.File(self.dir + "/checkpoints/best.h5") as f:
            self.assertEqual(f.attrs["step"], 4)

    def test_another_batch_goes_on_in_the_stream(self):
        log = ["--set", "log.samples=true", "--set", "eval.val.every_steps=0", "--set", "eval.val.at_end=false"]
        self.expect(0, args=[self.deck(), *log], ranks=2)
        self.expect(0, ranks=2, args=[self.deck(), *log, "--set", "train.global_batch=24", "--set", "train.total_steps=15",
                                      "--allow-change", "train.global_batch"])
        rows = {row["step"]: row["examples_seen"] for row in self.rows()}
        self.assertEqual([rows[s] for s in (12, 13, 15)], [144, 168, 216])
        positions = []
        for name in os.listdir(self.dir + "/logs/samples"):
            with open(f"{self.dir}/logs/samples/{name}") as f:
                positions += [int(line.split("\t")[1]) for line in f if line[0].isdigit()]
        self.assertEqual(sorted(positions), list(range(216)))

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
        one = [harness.TRAINER, deck, "--set", "eval.val.data=big"]
        job = subprocess.run(["mpirun", "-np", "1", *one, ":", "-np", "1", "sh", "-c", f"ulimit -v 500000; exec {' '.join(one)}"],
                             capture_output=True, text=True, timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(job.returncode, 3, job.stdout + job.stderr)
        self.assertIn("out of memory", job.stdout + job.stderr)

    def test_cost_and_time_count_on(self):
        self.expect(0, args=[self.deck()], ranks=2)
        first = self.rows()[-1]["core_hours"]
        # Two steps on one rank: cheaper by the step, but never less in all.
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=14"], ranks=1)
        self.assertGreater(self.rows()[-1]["core_hours"], first)
        # A killed attempt: the time after the checkpoint is accounted for.
        os.remove(self.dir + "/checkpoints/0000000014.h5")
        self.expect(0, "lost     ", "redone after restart", args=[self.deck(), "--set", "train.total_steps=14"], ranks=2)

    # ---------------------------------------------------------------- the report

    def report(self):
        with open(self.dir + "/report.txt") as f:
            return f.readline()

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
        self.expect(0, "before   the attempt before failed: rank=1 of 2 ", "exit=2: ", ranks=2,
                    args=[*good, "--set", "checkpoint.resume=never"])
        self.assertFalse(os.path.exists(self.dir + "/report.txt"))

    def good_copy(self):
        return self.deck(name="same.toml")

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

    def status(self):
        return subprocess.run([harness.SOURCE + "/tools/status", self.dir], capture_output=True, text=True).stdout

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
        self.expect(0, "redone after restart", args=[self.deck(), "--set", f"train.total_steps={end}"], ranks=2)
        times, uptime = self.seconds(end)
        self.assertAlmostEqual(times["redone_s"], lost, delta=0.01)
        self.assert_sum(times, rows[-1]["uptime_s"] + uptime)

        def rewound():
            self.expect(0, "went back to step 2", args=self.poisoned("rewind"), ranks=2)
            return sum(self.seconds(8)[0].values())
        self.assert_whole_time_is_counted(rewound)
        self.assertGreater(self.seconds(8)[0]["redone_s"], 0)


harness.main()
