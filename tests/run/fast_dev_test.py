#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --fast-dev N: everything runs once, with the numbers of the run, and nothing is left behind."""
import os

import harness


class FastDev(harness.RunTest):
    def names(self):
        """Returns all files and folders of the test, but the data and their indexes."""
        return sorted(os.path.join(place, name) for place, folders, files in os.walk(self.folder)
                      for name in folders + files if not place.startswith(self.data))

    def steps(self, text):
        """Returns the numbers of the lines of steps, without their times."""
        lines = [line.partition(" ms=")[0] for line in text.splitlines() if line.startswith("step=")]
        return {line.split()[0]: line for line in lines}

    def lines(self, start):
        return [line for line in self.output.splitlines() if line.startswith(start)]

    def test_everything_once(self):
        deck = self.deck(self.changed(("every_steps = 6", "every_steps = 6\nat_start = true")))
        self.expect(0, args=[deck], ranks=2)
        steps, before = self.steps(self.output), self.names()
        for ranks, folder in ((2, self.dir), (0, self.folder + "/new/parents/run"), (1, "relative/run/")):
            with self.subTest(folder=folder):
                self.expect(0, args=[deck, "--dir", folder, "--fast-dev", 3, "--set", "checkpoint.resume=never"], ranks=ranks)
                self.assertEqual(self.names(), before)
                self.assertEqual(list(self.steps(self.output)), ["step=1", "step=2", "step=3", "step=4"])
                if ranks == 2:  # the schedule is that of the whole run
                    self.assertEqual(self.steps(self.output), {k: steps[k] for k in self.steps(self.output)})
                self.assertEqual([line.split()[1] for line in self.lines("eval=")], ["step=3"])
                self.assertEqual([line.split()[1] for line in self.lines("checkpoint ")], ["step=3", "step=4"])
                self.assertEqual([line.split()[1] for line in self.lines("restore ")], ["step=3"])
                last = self.output.splitlines()[-1]
                self.assertRegex(last, r"^fast-dev 3 steps, 1 evaluations, a checkpoint, .* was removed$")
        # A run that is shorter than the trial.
        self.expect(0, "restore  step=12 ", args=[deck, "--fast-dev", 50], ranks=2)
        self.assertEqual(self.names(), before)

    def test_errors(self):
        deck = self.deck()
        for words in (["0"], ["-1"], ["two"], ["2", "--mode", "bench"], ["2", "--validate"]):
            self.expect(2, "--fast-dev", args=[deck, "--fast-dev", *words])
        self.expect(2, "unknown", args=[deck, "--fast-dev", "2", "--set", "train.totall=3"])
        before = self.names()
        self.expect(4, args=[deck, "--fast-dev", "2", "--set", f"data.train.path={self.data}/none.tar"], ranks=2)
        self.assertEqual(self.names(), before)
        # The files of a trial that fails are there to look at.
        self.expect(6, "not finite", "the first start ended with exit 6", args=[*self.poisoned("stop"), "--fast-dev", "5"])
        left = [name for name in self.names() if name.startswith(self.dir + ".fast-dev-") and name.endswith("/report.txt")]
        self.assertEqual(len(left), 1)
        self.assertFalse(os.path.exists(self.dir))


class Cleanup(FastDev):
    """--cleanup removes what a finished run wrote, and nothing else."""
    test_everything_once = test_errors = None

    def test_removes_only_what_the_run_wrote(self):
        short = ["--set", "train.total_steps=2", "--set", "schedule.default.warmup_steps=0", "--set", "checkpoint.every_steps=1",
                 "--set", "log.samples=true", "--set", 'checkpoint.best="val/perplexity:min"']
        deck = self.deck()
        before = self.names()
        self.expect(0, args=[deck, *short, "--cleanup"], ranks=2)
        self.assertEqual(self.output.splitlines()[-1], f"cleanup  {self.dir} was removed")
        self.assertEqual(self.names(), before)
        # A run that is stopped, or that fails, keeps its files.
        self.expect(6, args=[*self.poisoned("stop"), "--cleanup"])
        self.assertTrue(os.path.exists(self.dir + "/report.txt"))
        # Files of others stay, also in folders of the run, and these folders stay with them.
        for name in ("notes.txt", "checkpoints/notes.txt", "logs/rank.log", "own/0000000001.h5"):
            os.makedirs(os.path.dirname(f"{self.dir}/{name}"), exist_ok=True)
            with open(f"{self.dir}/{name}", "w") as f:
                f.write("mine")
        self.expect(0, "files that the run did not write stay: checkpoints/notes.txt, logs/rank.log, notes.txt, own",
                    args=[deck, *short, "--cleanup", "--set", "checkpoint.resume=never"])
        self.assertEqual(sorted(os.path.relpath(os.path.join(place, name), self.dir) for place, _, files in os.walk(self.dir)
                                for name in files), ["checkpoints/notes.txt", "lock", "logs/rank.log", "notes.txt", "own/0000000001.h5"])

    def test_refuses_what_is_no_run(self):
        os.makedirs(self.dir)
        with open(self.dir + "/notes.txt", "w") as f:
            f.write("mine")
        deck = self.deck()
        self.expect(2, "--cleanup", "holds files, but no run", args=[deck, "--cleanup"], ranks=2)
        self.assertEqual(os.listdir(self.dir), ["notes.txt"])
        for words in (["--mode", "bench"], ["--validate"], ["--fast-dev", "2"]):
            self.expect(2, "--cleanup", args=[deck, "--cleanup", *words])


harness.main()
