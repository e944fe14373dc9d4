#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Twelve faults of the campaign (faults.py): the job names the rank and the place of each in time."""
import shutil
import tempfile
import unittest

import faults
import harness
import place

TITLES = ("hang Iallgather, rank 1 of 2", "hang Barrier, rank 2 of 4", "hang Allreduce, rank 1 of 2", "skip Iallreduce, rank 1 of 3",
          "half Iallgather, rank 2 of 3", "decoder hangs, rank 1 of 2", "writer hangs, rank 1 of 3", "evaluation hangs, rank 0 of 2",
          "restore hangs, rank 1 of 3", "killed, rank 1 of 2", "slowed by 300 ms a step, rank 1 of 2", "disk full, rank 1 of 2")


class Faults(unittest.TestCase):
    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_each_fault_is_named(self):
        # Machines that run other tests as well are slow. The campaign by hand holds the times.
        self.addCleanup(setattr, faults, "GRACE", faults.GRACE)
        faults.GRACE = harness.GUARD
        folder = tempfile.mkdtemp(prefix="trainer_test_")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        chosen = [fault for fault in faults.table() if fault.title() in TITLES]
        self.assertEqual(len(chosen), len(TITLES))
        for fault in faults.campaign(chosen, 3, folder):
            with self.subTest(fault.title()):
                self.assertEqual(fault.wrong, "", fault.line)

    def test_the_judge_sees_what_is_wrong(self):
        def judged(line, code=7, at=3.5):
            fault = faults.Fault("stopped", 2, 1, ("error: hang: ", "is stopped"))
            faults.judge(fault, [(at, line)], code, 0.1, tempfile.gettempdir())
            return fault.wrong
        self.assertEqual(judged("error: hang: rank 1 (n, phase train) is stopped"), "no stacks")
        self.assertIn("not named", judged("error: hang: rank 0 (n, phase train) is stopped"))
        self.assertEqual(faults.blamed("error: rank 0: MPI_Test: truncated; rank 2 (n, phase train, step 5) has left call 7"), 2)
        self.assertEqual(faults.blamed("error: hang: rank 1 (n, phase train, step 5) is stopped; rank 0 waits in max of world"), 1)
        self.assertEqual(faults.blamed("error: step 5 (train): the disk is full"), None)
        self.assertIn("late", judged("error: hang: rank 1 (n, phase train) is stopped", at=9.0))
        self.assertIn("exit 1", judged("error: hang: rank 1 (n, phase train) is stopped", code=1))
        self.assertEqual(len(faults.table()), 60)


if __name__ == "__main__":
    unittest.main()
