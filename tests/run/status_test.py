#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests information about a running job: tools/status on known directories, a rank that hangs,
and the console's eta."""
import datetime
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness
import place

STATUS = os.path.join(harness.SOURCE, "tools", "status")


def seconds_of(text):
    """Parses a duration: 1h6m -> 3960"""
    return sum(int(n) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([dhms])", text))


class Status(harness.RunTest):
    def status(self, *args, code=0):
        done = subprocess.run([STATUS, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def job(self, phase, step, seconds, held=True):
        """Writes the lock of a job that has been in this phase for a time. This process holds
        it, as a running job does."""
        since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds)
        path = self.write("lock", f"node7:123 since 2026-01-02 03:04:05 UTC\n{phase} step={step} since {since:%Y-%m-%dT%H:%M:%S} UTC\n")
        if held:
            file = open(path, "r+b")
            self.addCleanup(file.close)
            fcntl.lockf(file, fcntl.LOCK_EX)

    def train(self, steps, total=1000, ms=4000, every_s=10, pause_s=0):
        """Returns the rows of an attempt. Its first two steps are slow, and every tenth; there
        is a pause before the 20th."""
        rows = []
        for i, step in enumerate(steps):
            took = ms * (10 if i < 2 else 3 if step % 10 == 0 else 0.5 if step % 10 == 1 else 1)
            uptime_s = 100 + 500 * min(i, 2) + every_s * (step - steps[0]) + pause_s * (i >= 20)
            rows.append({"kind": "train", "step": step, "loss": 4.123456789012345, "ms": took, "compute_ms": 0.75 * took,
                         "data_ms": 0.2 * took, "comm_ms": 0.05 * took, "progress": step / total, "core_hours": 1.2344,
                         "uptime_s": uptime_s})
        return rows

    def metrics(self, *rows, age_s=0):
        path = self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (time.time() - age_s,) * 2)

    def start(self, attempt=1, step=0):
        return {"kind": "start", "step": step, "attempt": float(attempt), "time": 1767323045.0, "killed": 0.0}

    def checkpoint(self, name, mib, age_s):
        path = self.write(f"checkpoints/{name}", "x" * int(mib * 2**20))
        os.utime(path, (time.time() - age_s,) * 2)

    def test_every_number(self):
        old = {"kind": "eval", "eval": "val", "step": 500, "perplexity": 9.5, "eval_s": 3.0}
        new = {"kind": "eval", "eval": "val", "step": 600, "perplexity": 2.123456789, "perplexity_per_token": 0.25, "eval_s": 3.0}
        before, newest = self.train(range(1, 501), ms=9), self.train(range(501, 601), pause_s=97)
        self.metrics(self.start(1), *before, self.start(3, 500), old, *newest, new, age_s=95)
        self.job("train", 600, 95)
        self.checkpoint("0000000100.h5", 1, 9000)
        self.checkpoint("0000000500.h5", 2.5, 7290)
        self.checkpoint("best.h5", 1, 0)
        self.checkpoint("0000000600.h5.tmp", 1, 0)
        self.write("logs/warnings.txt", "one\ntwo\n")
        text = self.status(self.dir)
        for line in ("state       running: node7:123 since 2026-01-02 03:04:05 UTC",
                     "doing       training, since 1m; 0000000600.h5 is being written",
                     "attempt     3 since ",
                     ", from step 500",
                     "step        600 of 1,000 (60.0 %)  loss 4.12346",
                     "pace        4000.0 ms/step  of it compute 75 %, waiting for data 20 %, communication 5 %",
                     "eta         1h13m (11000.0 ms per step with evaluations and saves)",  # 97 steps took 11 s each, 400 are left
                     "last row    1m ago  core hours 1.234",
                     "eval        val at step 600: perplexity 2.12346  perplexity_per_token 0.25",
                     "checkpoint  0000000500.h5  2.5 MiB, 2h1m ago; 2 in all",
                     "warnings    2; the last: two"):
            self.assertIn(line, text)
        self.assertNotRegex(text, r"\d\.\d{7,}", "figures have too many digits")
        self.assertNotIn("stalled", text)  # 24 steps of 4 s, but less than 10 with the usual time between them
        # After the last step no time is left.
        self.metrics(self.start(), *self.train(range(991, 1001)))
        self.assertIn("eta         0s (10000.0 ms", self.status(self.dir))

    def test_ended(self):
        self.metrics(self.start(), *self.train(range(1, 10)))
        self.checkpoint("0000000008.h5", 1, 50)
        self.checkpoint("0000000004.h5", 1, 0)
        self.write("lock", "")
        log = "00:00:01 trainer 1.0 started\n00:00:02 done     exit={}\n"
        for code, state in ((0, "finished"), (75, "stopped (exit=75) with a checkpoint at step 8; start the same command to continue"),
                            (8, "stopped (exit=8) with a checkpoint at step 8")):
            self.write("logs/rank00000.log", log.format(code))
            text = self.status(self.dir)
            self.assertIn(f"state       {state}", text)
            self.assertNotIn("eta ", text)
            self.assertTrue(self.status("--state", self.dir).startswith(state))
        # The attempt started after these lines and wrote nothing.
        self.write("logs/rank00000.log", log.format(0) + "00:00:03 trainer 1.0 started\n")
        self.assertIn("ended without a message", self.status("--state", self.dir))
        self.write("report.txt", "exit=4 rank=1 step=7: a broken sample\nmore\n")
        self.assertEqual(self.status("--state", self.dir), "failed: exit=4 rank=1 step=7: a broken sample\n")
        os.remove(self.dir + "/report.txt")
        self.job("save", 8, 100, held=False)
        self.assertRegex(self.status("--state", self.dir), r"not running; its last job \(node7:123 .*, save step=8 .*\) was killed; newest")

    def stalled(self, phase, seconds, age_s, rows):
        self.metrics(self.start(), *rows, age_s=age_s)
        self.job(phase, 50, seconds)
        return "\n".join(line for line in self.status(self.dir).splitlines() if line.startswith("stalled"))

    def test_stalls(self):
        fast = self.train(range(1, 51), ms=7.5, every_s=0.01)
        found = re.match(r"stalled     no step since (\d+) s \(([\d,]+) times the pace\)", self.stalled("train", 3000, 20, fast))
        self.assertTrue(found)
        self.assertIn(int(found[1]), range(20, 26))
        self.assertAlmostEqual(int(found[2].replace(",", "")), int(found[1]) / 0.0075, delta=70)
        self.assertIn("no step since 5m", self.stalled("train", 3000, 301, fast))
        # These are no stalls: other phases, a phase that has just begun, slow steps, rows that are
        # far apart, a short wait.
        for phase in ("evaluate", "save", "rewind", "restore", "stage", "open_data", "start"):
            self.assertEqual(self.stalled(phase, 3000, 3000, fast), "", phase)
        self.assertEqual(self.stalled("train", 2, 3000, fast), "")
        self.assertEqual(self.stalled("train", 3000, 20, self.train(range(1, 51), ms=5000, every_s=5)), "")
        self.assertEqual(self.stalled("train", 3000, 20, self.train(range(1, 50001, 1000), ms=7.5, every_s=0.01)), "")
        self.assertEqual(self.stalled("train", 3000, 3, fast), "")
        # The first step of a run has no earlier pace for comparison.
        self.assertEqual(self.stalled("train", 300, 300, []), "")
        self.assertIn("no step since 50m, and none before", self.stalled("train", 3001, 3001, []))
        # The first step of a later attempt is compared with the steps before.
        self.metrics(self.start(), *fast, self.start(2, 50), age_s=20)
        self.assertIn("no step since 2", self.status(self.dir))

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_stopped_rank(self):
        # The deck has no evaluations and saves, because a rank that stops in one of them is no
        # stalled step. The console is a file, because a full pipe would stop the job as well.
        console = os.path.join(self.folder, "console.txt")
        command = ["mpirun", "-np", "2", harness.TRAINER, self.deck(), "--set", "train.total_steps=1000000", "--set",
                   "eval.val.every_steps=0", "--set", "checkpoint.every_steps=0"]
        with open(console, "w") as out:
            job = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
        self.addCleanup(job.kill)

        def step():
            with open(console) as f:
                return max(map(int, re.findall(r"(?m)^step=(\d+) ", f.read())), default=0)
        self.wait("step 40", lambda: step() >= 40)
        ranks = subprocess.run(["pgrep", "-P", str(job.pid), "-f", "deck.toml"], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(ranks), 2)
        self.assertNotIn("stalled", self.status(self.dir))
        os.kill(int(ranks[1]), signal.SIGSTOP)

        def stalled():
            text = self.status(self.dir)
            return text if "stalled" in text else ""
        text = self.wait("the stall is seen", stalled, pause=0.2)
        self.assertRegex(text, r"(?m)^state       running: ")
        self.assertRegex(text, r"(?m)^stalled     no step since .* \([\d,]+ times the pace\): a rank")
        last = step()
        os.kill(int(ranks[1]), signal.SIGCONT)
        self.wait("the next step", lambda: step() > last)
        self.wait("the stall is over", lambda: "stalled" not in self.status(self.dir), pause=0.2)
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(timeout=harness.GUARD), 75)

    def test_console_eta(self):
        """At every step the eta is (total - step) times the mean of the earlier steps without
        the first two."""
        total, batch, ms = 30, 480, {}
        # long enough to distinguish remaining steps from finished ones
        while sum(ms.values()) < 2000:
            batch *= 2
            shutil.rmtree(self.dir, ignore_errors=True)
            self.expect(0, args=[self.deck(), "--set", f"train.total_steps={total}", "--set", f"train.global_batch={batch}", "--set",
                                 f"train.micro_batch={batch}", "--set", "eval.val.every_steps=0", "--set", "checkpoint.every_steps=0"])
            ms = {row["step"]: row["ms"] for row in self.rows()}
        said = {int(step): seconds_of(eta) for step, eta in re.findall(r"(?m)^step=(\d+) .* eta=(\w+)$", self.output)}
        self.assertEqual(sorted(said), list(range(3, total + 1)))
        for step, seconds in said.items():
            mean = sum(ms[i] for i in range(3, step + 1)) / (step - 2)
            self.assertAlmostEqual(seconds, (total - step) * mean / 1000, delta=0.5 + 1e-6, msg=f"step {step}")
        self.assertEqual(said[total], 0)


harness.main()
