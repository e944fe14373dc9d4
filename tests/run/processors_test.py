#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One run on two kinds of processors in turn: $OTHER_TRAINER is the command of a program for another one, perhaps under an emulator
(tools/test_arch). Rounding differs between processors, so the results are nearly equal."""
import os
import shlex
import subprocess
import unittest

import numpy

import harness

OTHER = shlex.split(os.environ.get("OTHER_TRAINER", ""))


@unittest.skipUnless(OTHER, "OTHER_TRAINER names no program for another processor (tools/test --arch aarch64)")
class Processors(harness.RunTest):
    def setUp(self):
        super().setUp()
        # A rate that does not depend on the number of steps, which differs here between parts of a run.
        self.good = self.changed(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "constant"'))

    def trained(self, folder, *parts):
        """Trains a run of 12 steps on 2 ranks, each part by a program until a step; returns the losses of all steps."""
        for program, until in parts:
            done = subprocess.run(["mpirun", "-np", "2", *program, self.deck(), "--dir", folder,
                                   *harness.sets(f"train.total_steps={until}", "checkpoint.every_steps=4")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                                  stdin=subprocess.DEVNULL, cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stdout)
        return [row["loss"] for row in self.rows(folder=folder)]

    def test_a_run_goes_on_there_and_back(self):
        here = [harness.TRAINER]
        whole = self.trained(self.folder + "/here", (here, 12))
        turns = self.trained(self.folder + "/turns", (here, 4), (OTHER, 8), (here, 12))
        other = self.trained(self.folder + "/other", (OTHER, 12))
        self.assertEqual(turns[:4], whole[:4])
        for losses in (turns, other):
            self.assertEqual(len(losses), 12)
            numpy.testing.assert_allclose(losses, whole, rtol=1e-4)


if __name__ == "__main__":
    harness.main()
