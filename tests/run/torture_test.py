#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Hurts running jobs: kills them at every file-system call of their saves, kills them and asks
them to stop at random moments, and injects errors at every kind of call. CTest runs a sample;
TORTURE=all (tools/torture) runs everything in an hour."""
import concurrent.futures
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np

import harness
import hurt_harness
import place
import processes

ALL = os.environ.get("TORTURE") == "all"
SEED = int(os.environ.get("TORTURE_SEED", "1"))


def sample(everything, count):
    """Returns a whole list, or `count` of its elements by chance, with the first and the last."""
    everything = list(everything)
    if ALL or len(everything) <= count:
        return everything
    inner = random.Random(SEED).sample(everything[1:-1], count - 2)
    return [everything[0], *sorted(inner), everything[-1]]


def children_of(pid):
    """Returns the ranks of a job that mpirun started, in the order in which they started."""
    return processes.children(pid, "deck.toml")


class Torture(hurt_harness.HurtTest):
    # Every run of a kind must end with these bits, however often it was hurt.
    def reference(self, *args, ranks=2):
        folder = self.folder + "/straight"
        self.expect(0, "done     exit=0", args=[self.deck(), "--dir", folder, *args], ranks=ranks)
        return folder

    def check_outcome(self, reference, step):
        got, want = self.tensors(step), self.tensors(step, reference)
        self.assertEqual(sorted(got), sorted(want))
        for name in want:
            self.assertEqual(got[name], want[name], name)
        for kind, values in (("train", ("loss", "l2_grads")), ("eval", ("perplexity",))):
            rows, expected = self.rows(kind), self.rows(kind, reference)
            self.assertEqual([r["step"] for r in rows], [r["step"] for r in expected], kind)  # once each, in order
            for row, other in zip(rows, expected):
                for value in values:
                    self.assertEqual(row[value], other[value], (kind, row["step"], value))

    # ---------------------------------------------------------------- killed at a call

    def test_killed_at_each_call(self):
        self.killed_at_each_call(8, 0.9)

    def test_killed_at_each_call_of_mpio(self):
        if harness.hdf5_kind() != "parallel":
            self.skipTest("HDF5 is serial")
        self.killed_at_each_call(4, 0.5, "--set", "checkpoint.driver=mpio")

    def killed_at_each_call(self, count, share, *more):
        # Plain SGD saves only parameters, so there are few tensors and few calls.
        short = [*more, "--set", "train.total_steps=4", "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=1", "--set",
                 "eval.val.every_steps=3", "--set", "optimizer.kind=sgd"]
        reference = self.reference(*short)
        under = self.dir + "/checkpoints"
        code, calls = self.hurt("", under, *short)
        self.assertEqual(code, 0, self.output)
        self.check_outcome(reference, 4)
        cases = [(rank, action, i) for rank in (0, 1) for action in ("kill", "killall") for i in range(len(calls[rank]))]
        killed = continued = 0
        for rank, action, i in sample(cases, count):
            with self.subTest(rank=rank, action=action, call=i, what=calls[rank][i]):
                shutil.rmtree(self.dir)
                code, made = self.hurt(f"{rank}:{i}:{action}", under, *short)
                if code == 0:  # the number of calls of a run varies a little, because some of them poll
                    self.assertLessEqual(len(made[rank]), i)
                    continue
                killed += 1
                committed = [path for call, path in made[0][: -1 if rank == 0 else None] if call == "rename" and path.endswith(".h5")]
                self.expect(0, "done     exit=0", args=[self.deck(), *short], ranks=2)
                if committed:
                    self.assertIn("from=checkpoint", self.output)
                    continued += 1
                self.check_outcome(reference, 4)
                self.assertEqual(glob.glob(under + "/*.tmp"), [])
        self.assertGreater(killed, share * len(sample(cases, count)))
        self.assertGreater(continued, 0)
        print(f"killed at {killed} of {len(cases)} calls, {continued} of them after the first commit", flush=True)

    # ---------------------------------------------------------------- calls that move less than they were asked to

    def test_short_calls(self):
        """Short calls, from the first one on and from the middle, leave the bits of checkpoints
        and rows unchanged. Reading by short calls gives the same bits."""
        args = ["--set", "train.total_steps=4", "--set", "checkpoint.every_steps=2", "--set", "eval.val.every_steps=3"]
        reference = self.reference(*args)
        for rank, order, more in ((0, "0:short=5001+", []), (1, "7:short=999+", ["--set", "checkpoint.async=false"])):
            with self.subTest(rank=rank):
                shutil.rmtree(self.dir, ignore_errors=True)
                code, calls = self.hurt(f"{rank}:{order}", self.dir, *args, *more, ends="")
                self.assertEqual(code, 0, self.output)
                self.assertGreater(sum(call.startswith("pwrite") for call, _ in calls[rank]), 20)
                self.check_outcome(reference, 4)
        # Rank 1 reads the checkpoint, and its data, in pieces.
        with open(self.dir + "/metrics.jsonl") as f:
            rows = f.read()
        code, calls = self.hurt("1:0:short=777+", self.folder, *args)
        self.assertEqual(code, 0, self.output)
        self.assertIn("from=checkpoint", self.output)
        self.assertGreater(sum(call.startswith("pread") for call, _ in calls[1]), 20)
        with open(self.dir + "/metrics.jsonl") as f:
            self.assertTrue(f.read().startswith(rows))
        code, _ = self.hurt("0:0:short=777+", self.dir + "/metrics", *args, "--set", "train.total_steps=5")  # rank 0 reads them
        self.assertEqual(code, 0, self.output)
        self.assertEqual([row["step"] for row in self.rows()], [1, 2, 3, 4, 5])
        self.assertNotIn("level=warning", self.output)

    # ---------------------------------------------------------------- killed by chance

    def test_killed_at_random(self):
        chance = random.Random(SEED)
        args = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3", "--set",
                "train.total_steps=40", "--set", "eval.val.every_steps=5", "--set", "checkpoint.every_steps=3"]
        begin = time.monotonic()
        reference = self.reference(*args, ranks=1)
        whole_s = time.monotonic() - begin
        wanted, kills, runs = 200 if ALL else 6, 0, 0
        while kills < wanted:
            shutil.rmtree(self.dir, ignore_errors=True)
            longest = 1.5 * whole_s
            while True:
                ranks = chance.choice((1, 2, 4))
                job = subprocess.Popen(["mpirun", "-np", str(ranks), harness.TRAINER, self.deck(), *args], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, cwd=self.folder, text=True)
                moment = chance.uniform(0, longest)
                try:
                    job.wait(timeout=moment)
                except subprocess.TimeoutExpired:
                    pids = children_of(job.pid)
                    whom = chance.choice(("one", "all", "mpirun"))
                    victims = [job.pid] if whom == "mpirun" or not pids else pids if whom == "all" else [chance.choice(pids)]
                    for victim in victims:
                        try:
                            os.kill(victim, signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                output = self.output_of(job)
                self.wait_for_the_lock()
                if job.returncode == 0:
                    break
                kills += 1
                longest *= 1.2  # allows a machine that has become busier to end the run
                self.assertNotIn("level=error", output)
                self.assertLess(kills, 2 * wanted + 50)
            runs += 1
            self.check_outcome(reference, 40)
        print(f"{kills} kills over {runs} runs", flush=True)

    def output_of(self, job):
        """Returns a job's output after its end. Open MPI's launcher may wait forever, in PMIx_server_finalize, after a rank was killed
        while it connected: without living ranks the launcher is killed."""
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            output = reader.submit(job.communicate)
            alone = 0  # times that the launcher was found without ranks
            end = time.monotonic() + harness.GUARD
            while not output.done():
                living = [pid for pid in children_of(job.pid) if not processes.ended(pid)]
                if time.monotonic() > end:
                    job.kill()
                    self.fail(f"ranks live long after one of them, or their mpirun, was killed: {living}")
                alone = 0 if living else alone + 1
                if alone == 600:
                    print("mpirun waits for ranks that have ended", flush=True)
                    job.kill()
                time.sleep(0.05)
            return output.result()[0]

    def wait_for_the_lock(self):
        """Waits for ranks that lost their mpirun; they end a moment later."""
        self.wait("the end of ranks without mpirun", lambda: not processes.with_word(self.folder + "/deck.toml"))

    # ---------------------------------------------------------------- asked to stop

    def test_signals_at_random(self):
        chance = random.Random(SEED)
        args = ["--set", "train.total_steps=1000000", "--set", "eval.val.every_steps=7", "--set", "checkpoint.every_steps=5"]
        slowest, last = 0, 0
        for n in range(100 if ALL else 6):
            job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), *args], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, cwd=self.folder, text=True)
            while [processes.catches(p, signal.SIGUSR1) for p in children_of(job.pid)] != [True, True]:
                self.assertIsNone(job.poll())
                time.sleep(0.002)
            if n % 3:  # waits however long the start takes
                self.wait("training", lambda: self.phase().startswith("train ") or job.poll() is not None)
            time.sleep(chance.uniform(0, 0.6))
            to, number = (job.pid, signal.SIGUSR1) if n % 2 else (chance.choice(children_of(job.pid)),
                                                                 chance.choice((signal.SIGUSR1, signal.SIGTERM)))
            begin = time.monotonic()
            os.kill(to, number)
            output = job.communicate(timeout=harness.GUARD)[0]
            slowest = max(slowest, time.monotonic() - begin)
            with self.subTest(n=n, number=number):
                self.assertEqual(job.returncode, 75, output)
                # Before the restore the job has nothing to save.
                early = "stopped  before the first step (" in output
                stopped = last if early else int(re.search(r"stopped  step=(\d+)", output).group(1))
                if not stopped and early:
                    continue
                self.assertEqual(int(self.checkpoints()[-1][:10]), stopped)
                self.assertGreaterEqual(stopped, last)
                if not early:
                    self.assertEqual([r["step"] for r in self.rows()], list(range(1, stopped + 1)))
                last = stopped
        self.expect(0, f"step={last + 1} ", args=[self.deck(), *args, "--set", f"train.total_steps={last + 1}"], ranks=2)
        self.assertGreater(last, 0)
        print(f"slowest stop {slowest:.2f} s, {last} steps", flush=True)

    def test_asked_to_stop_while_starting(self):
        """Copying data, walking through shards and reading a checkpoint take many calls each.
        They are slow here, and after the request only a few more are made."""
        harness.make_shards(self.data, shards=20)
        self.good = self.changed(("train-{000..001}", "train-{000..019}"))
        args = ["--set", "train.total_steps=8", "--set", f'loader.stage_dir="{self.folder}/local"', "--set", "loader.threads=1"]
        self.expect(0, args=[self.deck(), *args, "--set", "train.total_steps=4"], ranks=2)
        again = {"stage": lambda: shutil.rmtree(self.folder + "/local"),
                 "open_data": lambda: [os.remove(f) for f in glob.glob(self.data + "/*.index")], "restore": lambda: None}

        def called(slow):
            return sum(len(self.calls(rank)) for rank in (0, 1) if slow in (rank, -1))
        # -1: both ranks, because they share the walk
        for phase, slow, ends, milliseconds, ask, code in (
                ("stage", 0, ".tar", 700, lambda job: job.send_signal(signal.SIGUSR1), 75),
                ("open_data", -1, ".tar", 500, lambda job: os.kill(children_of(job.pid)[0], signal.SIGTERM), 75),
                ("restore", 1, "0000000004.h5", 2500, lambda job: open(self.dir + "/stop", "w").close(), 8)):
            with self.subTest(phase=phase):
                again[phase]()
                job = self.start_hurt(f"{slow}:0:slow={milliseconds}+", self.folder, *args, ends=ends,
                                      call="preadv" if phase == "restore" else "pread")
                self.wait(phase, lambda: self.phase().startswith(f"{phase} ") and called(slow) or job.poll() is not None)
                self.assertIsNone(job.poll())
                made = called(slow)
                ask(job)
                self.check_stopped_while(phase, job, code)
                self.assertLess(called(slow) - made, 5)
        # The job's time ends while it reads. A busy machine gets more time, until the job reaches
        # that point.
        wall_s = 4
        while True:
            job = self.start_hurt(f"1:0:slow={1000 * wall_s}+", self.folder, *args, *harness.wall_time(wall_s), "--set",
                                  f"limits.margin_s={wall_s // 4}", call="preadv", ends="0000000004.h5")
            self.wait("restore", lambda: self.phase().startswith("restore ") or job.poll() is not None)
            if job.poll() is None:
                break
            wall_s *= 2
            self.assertLess(wall_s, harness.GUARD, job.communicate()[0])
        self.check_stopped_while("restore", job, 8, gained_nothing=True)
        self.expect(0, "from=checkpoint", "step=5 ", args=[self.deck(), *args], ranks=2)
        self.assertNotIn("ended without a report", self.output)

    def check_stopped_while(self, phase, job, code, gained_nothing=False):
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, code, output)
        self.assertIn(f"stopped  before the first step ({phase}): ", output)
        self.assertFalse(os.path.exists(self.dir + "/stop"))
        self.assertEqual(os.path.exists(self.dir + "/report.txt"), gained_nothing)

    # ---------------------------------------------------------------- errors

    # Each row injects errors at the n-th call of a name on paths with this end. The run begins from
    # a checkpoint of step 4, with evaluations at 6 and 8 and a checkpoint every 2 steps. A row has
    # the expected exit code and a regular expression for the cause. The cause is in the report's
    # first line, and for exit 0, or if the lock cannot be taken, in the output. "0" is for calls
    # that only rank 0 makes.
    MEMORY = r"out of memory|std::bad_alloc"
    ERRORS = [
        ("open", "train-000.tar", 1, "errno=13", 4, r"train-000.tar': Permission denied"),
        # the index is made again
        ("open", "train-001.tar.index", 0, "errno=5", 0, r"done     exit=0"),
        ("pread", "train-001.tar.index", 0, "errno=5", 0, r"done     exit=0"),
        ("pread", "train-000.tar", 5, "errno=5", 4, r"data.train: .*train-000.tar:0000.*Input/output error"),
        ("pread", "train-001.tar", 9, "errno=116+", 4, r"data.train: .*train-001.tar:0000.*Stale file handle"),
        ("pread", "train-001.tar", 9, "nomem", 3, MEMORY),
        ("pread", "train-001.tar", 9, "signal=11", 1, r"signal SIGSEGV"),
        ("pread", "train-001.tar", 9, "overflow", 1, r"signal SIGSEGV"),
        ("pwrite", "run/lock", 1, "overflow", 1, r"signal SIGSEGV", "0"),  # the main thread
        ("preadv", "0000000004.h5", 0, "overflow", 1, r"signal SIGSEGV"),
        ("pread", "train-000.tar", 20, "signal=6", 1, r"signal SIGABRT"),
        ("pread", "train-000.tar", 45, "errno=5", 4, r"data.train: .*train-000.tar:0000.*Input/output error"),
        ("open", "0000000004.h5", 0, "errno=13+", 0, r"checkpoint refused: .*0000000004.h5: cannot open"),
        ("preadv", "0000000004.h5", 0, "errno=5+", 0, r"checkpoint refused: .*0000000004.h5"),
        ("preadv", "0000000004.h5", 0, "nomem", 3, MEMORY),
        ("preadv", "0000000004.h5", 0, "signal=7", 1, r"signal SIGBUS"),
        ("open", "0000000006.h5.tmp", 0, "errno=24", 5, r"checkpoint of step 6 was not written: rank {rank}: .*Too many open files"),
        ("pwritev", "0000000006.h5.tmp", 1, "errno=28+", 5, r"checkpoint of step 6 .* rank {rank}: .*cannot write: No space left"),
        ("pwritev", "0000000006.h5.tmp", 3, "errno=122+", 5, r"checkpoint of step 6 .* rank {rank}: .*Disk quota exceeded"),
        ("pwritev", "0000000006.h5.tmp", 3, "nomem", 3, r"checkpoint of step 6 .* rank {rank}: out of memory"),
        ("pwritev", "0000000006.h5.tmp", 3, "signal=8", 1, r"signal SIGFPE"),
        ("fsync", "0000000006.h5.tmp", 0, "errno=5", 5, r"checkpoint of step 6 .* rank {rank}: .*cannot sync: Input/output error"),
        # Rank 0's second sync comes before the file gets its name, and the folder's sync after it.
        ("fsync", "0000000006.h5.tmp", 1, "errno=5", 5, r"checkpoint of step 6 .* rank 0: .*6.h5.tmp: cannot sync: Input/output", "0"),
        ("fsync", "run/checkpoints", 0, "errno=5", 5, r"checkpoint of step 6 .* rank 0: .*checkpoints: cannot sync: Input/output", "0"),
        ("fsync", "metrics.jsonl", 1, "errno=5", 0, r"level=warning.*metrics.jsonl: cannot sync: Input/output error", "0"),
        ("close", "0000000006.h5.tmp", 0, "signal=4", 1, r"signal SIGILL"),
        ("pread", "0000000006.h5.tmp", 3, "errno=5", 5, r"checkpoint of step 6 .* rank {rank}: .*cannot read: Input/output error"),
        ("pread", "0000000006.h5.tmp", 0, "garble", 5, r"checkpoint of step 6 .* rank {rank}: .*reads back differently"),
        ("pread", "0000000006.h5.tmp", 7, "garble", 5, r"checkpoint of step 6 .* rank {rank}: .*reads back differently"),
        ("pread", "0000000006.h5.tmp", 3, "nomem", 3, r"checkpoint of step 6 .* rank {rank}: out of memory"),
        ("pread", "0000000006.h5.tmp", 3, "signal=6", 1, r"signal SIGABRT"),
        ("open", "0000000008.h5.tmp", 0, "errno=13", 5, r"checkpoint of step 8 .* rank {rank}: .*Permission denied"),
        ("pwritev", "0000000008.h5.tmp", 2, "errno=5", 5, r"checkpoint of step 8 .* rank {rank}: .*Input/output error"),
        ("pwritev", "0000000008.h5.tmp", 2, "nomem", 3, r"checkpoint of step 8 .* rank {rank}: out of memory"),
        ("pwritev", "0000000008.h5.tmp", 2, "signal=7", 1, r"signal SIGBUS"),
        ("fsync", "0000000008.h5.tmp", 0, "errno=5", 5, r"checkpoint of step 8 .* rank {rank}: .*Input/output error"),
        ("fsync", "0000000008.h5.tmp", 0, "signal=11", 1, r"signal SIGSEGV"),
        ("fsync", "0000000008.h5.tmp", 1, "errno=28", 5, r"checkpoint of step 8 .* rank 0: .*No space left", "0"),
        ("fsync", "0000000008.h5.tmp", 1, "signal=11", 1, r"signal SIGSEGV", "0"),
        ("pread", "0000000008.h5.tmp", 0, "errno=5", 5, r"checkpoint of step 8 .* rank {rank}: .*Input/output error"),
        ("rename", "0000000006.h5", 0, "errno=28", 5, r"checkpoint of step 6 .* rank 0: .*No space left", "0"),
        ("create", "0000000006.h5.tmp", 0, "errno=30", 5, r"checkpoint of step 6 .* rank 0: .*Read-only file system", "0"),
        ("create", "run/lock", 0, "errno=13", 2, r"run.dir: .*run/lock: cannot open: Permission denied; choose another --dir", "0"),
        ("pwrite", "run/lock", 0, "errno=28", 5, r"run.dir: .*run/lock: cannot write: No space left on device; make room there", "0"),
        ("create", "metrics.jsonl", 0, "errno=13", 5, r"metrics.jsonl: cannot open: Permission denied", "0"),
        ("write", "metrics.jsonl", 3, "errno=28+", 0, r"level=warning.*metrics.jsonl: cannot write: No space left", "0"),
        ("write", "metrics.jsonl", 3, "nomem", 3, MEMORY, "0"),
        ("pwrite", "metrics.h5.tmp", 0, "errno=5+", 0, r"level=warning.*metrics.h5.tmp: cannot write: Input/output error", "0"),
        ("rename", "metrics.h5", 0, "errno=28+", 0, r"level=warning.*metrics.h5.*No space left", "0"),
        ("create", "deck.resolved.toml.tmp", 0, "errno=28", 0, r"level=warning.*deck.resolved.toml.tmp: cannot open: No space left", "0"),
    ]

    def test_disk_error_is_no_bad_sample(self):
        """A disk failure must not replace a sample by another: the run ends and reports the failure."""
        with h5py.File(self.data + "/a.h5", "w") as f:
            f["pixels"] = np.random.default_rng(1).integers(0, 255, (40, 20, 20, 3), dtype=np.uint8)
            f["texts"] = ["a red house"] * 40
        data = f"""[data.train]
kind = "hdf5"
path = "{self.data}/a.h5"
fields = {{ image = "pixels", text = "texts" }}
preprocess = '''resize(16) | value_range(-1, 1) | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels")
                  | keep("image", "labels")'''
"""
        self.good = re.sub(r"\[data\.train\].*?(?=\n\[eval)", lambda _: data, self.good, flags=re.S)
        args = ["--set", "loader.on_bad_sample=substitute", "--set", "loader.max_bad_sample_fraction=0.5", "--set", "loader.prefetch=1"]
        code, calls = self.hurt("0:1000000:kill", self.data + "/a.h5", *args, ranks=1)
        self.assertEqual(code, 0, self.output)
        reads = [n for n, call in enumerate(calls[0]) if call[0].startswith("pread")]
        shutil.rmtree(self.dir)
        code, _ = self.hurt(f"0:{reads[-5]}:errno=5", self.data + "/a.h5", *args, ranks=1)
        self.assertEqual(code, 4, self.output)
        self.assertRegex(self.output, "data.train: .*a.h5:.*Input/output error")
        self.assertFalse(os.path.exists(self.dir + "/logs/bad_samples.txt"))

    def test_errors(self):
        args = ["--set", "train.total_steps=8", "--set", "checkpoint.every_steps=2", "--set", "checkpoint.on_error=stop"]
        self.expect(0, args=[self.deck(), *args, "--set", "train.total_steps=4"], ranks=2)
        begun = self.folder + "/begun"
        shutil.copytree(self.dir, begun)
        cases = [(rank, *error) for error in self.ERRORS for rank in ((0,) if error[-1] == "0" else (0, 1))]
        for rank, call, ends, n, action, code, cause, *_ in sample(cases, 10):
            with self.subTest(rank=rank, call=call, ends=ends, n=n, action=action):
                shutil.rmtree(self.dir)
                shutil.copytree(begun, self.dir)
                got, calls = self.hurt(f"{rank}:{n}:{action}", self.folder, *args, call=call, ends=ends)
                self.assertGreater(len(calls[rank]), n, "the run made no such call")
                self.assertEqual(got, code, self.output)
                cause = cause.replace("{rank}", str(rank))
                report = self.dir + "/report.txt"
                if code == 0 or cause.startswith("run.dir: "):
                    self.assertFalse(os.path.exists(report))
                    self.assertRegex(self.output, cause)
                else:
                    with open(report) as f:
                        self.assertRegex(f.readline(), rf"^rank={rank} of 2 host=\S+ step=\d+ phase=\w+ exit={code}: .*({cause})")
        print(f"{len(sample(cases, 10))} errors of {len(cases)}", flush=True)


place.skip(place.no_processes())
harness.main()
