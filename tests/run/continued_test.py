#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Continued runs: other data, changed decks, another batch, and runs that go back to an earlier checkpoint."""
import os
import signal

import h5py

import harness
from live_harness import LONG, LiveTest


class Continued(LiveTest):
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

    def positions(self):
        """Returns {step: sorted positions} of the log of samples."""
        out = {}
        for name in os.listdir(self.dir + "/logs/samples"):
            with open(f"{self.dir}/logs/samples/{name}") as f:
                for step, position in (line.split("\t")[:2] for line in f if line[0].isdigit()):
                    out.setdefault(int(step), []).append(int(position))
        return {step: sorted(positions) for step, positions in out.items()}

    def test_data_that_begin_anew(self):
        log = ["--set", "log.samples=true", "--set", "eval.val.every_steps=0", "--set", "eval.val.at_end=false"]
        self.expect(0, args=[self.deck(), *log], ranks=2)
        # Other data are then no problem.
        harness.make_shards(self.data, samples=44)
        anew = [self.deck(), *log, "--set", "checkpoint.restart_data=true", "--set"]
        self.expect(2, "checkpoint.restart_data=true", args=[self.deck(), *log, "--set", "train.total_steps=14"])
        self.expect(0, "begin anew after step 12", "train 44 samples", args=[*anew, "train.total_steps=14"], ranks=2)
        self.assertNotIn("level=warning", self.output)
        # A job script that repeats the command goes on in them.
        threads = ["--set", "checkpoint.io_threads=3", "--set"]
        self.expect(0, "reads of at most 1 MiB, by 3 threads",
                    args=[*anew, "train.total_steps=15", *threads, "checkpoint.io_inflight_mb=6", "--set", "log.level=debug"])
        self.assertNotIn("begin anew", self.output)
        self.expect(2, "checkpoint.io_inflight_mb", "5 MiB are too few for io_threads = 3",
                    args=[*anew, "train.total_steps=15", *threads, "checkpoint.io_inflight_mb=5", "--validate"])
        steps = self.positions()
        self.assertEqual([steps[s][0] for s in (1, 12, 13, 14, 15)], [0, 132, 0, 12, 24])
        self.assertEqual([row["examples_seen"] for row in self.rows() if row["step"] in (12, 15)], [144, 180])

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
        self.expect(0, "was already carried out by the attempt", f"step={stopped + 1} ", ranks=2,
                    args=[self.deck(), *back, "--set", f"train.total_steps={stopped + 1}"])
        # With a damaged newest file, the run continues from the one before and does not go back
        # again.
        newest, before = [int(name[:10]) for name in self.checkpoints()[:-3:-1]]
        with open(f"{self.dir}/checkpoints/{newest:010}.h5", "r+b") as f:
            f.truncate(5000)
        self.expect(0, "checkpoint refused", "was already carried out by the attempt", f"step={before + 1} ", ranks=2,
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


harness.main()
