#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the runner of recorded cases reports different results: copies of case files with
one change must fail, by name."""
import os
import shutil
import subprocess
import tempfile
import unittest

import h5py

import harness

GOLDEN = os.path.join(os.path.dirname(harness.TRAINER), "tests", "golden")
CASES = os.path.join(harness.SOURCE, "tests", "golden")


class Golden(unittest.TestCase):
    def run_case(self, case, change=None, ranks=2):
        folder = tempfile.mkdtemp(prefix="golden_test_")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        path = shutil.copy(f"{CASES}/{case}.h5", folder)
        if change:
            with h5py.File(path, "r+") as f:
                change(f)
        done = subprocess.run(["mpirun", "-np", str(ranks), GOLDEN, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout

    def refused(self, case, quantity, change):
        code, output = self.run_case(case, change)
        self.assertEqual(code, 1, output)
        beyond = [line for line in output.splitlines() if line.endswith("BEYOND")]
        self.assertTrue(any(quantity in line for line in beyond), output)

    @staticmethod
    def shifted(name, factor, element=None):
        """Adds `factor` tolerances to one element, or to all."""
        def change(f):
            values = f[name][()]
            shift = factor * f[name].attrs["tol"]
            if element is None:
                values = values + shift
            else:
                values.reshape(-1)[element] += shift
            f[name][...] = values
        return change

    def test_unchanged(self):
        for case in ("case_mixed_r050", "case_momentum"):
            self.assertEqual(self.run_case(case)[0], 0)

    def test_models(self):
        kernel = "encoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
        self.refused("case_ar", "forward/logits", self.shifted("forward/logits", 3, element=5))
        self.refused("case_ar", "forward/loss", self.shifted("forward/loss", 3))
        self.refused("case_ar", "grad", self.shifted("grads/" + kernel, 2, element=7))

    def test_training(self):
        kernel = "encoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
        self.refused("case_adam", "parameters", self.shifted("params_final/" + kernel, 2, element=7))
        self.refused("case_adam", "training_loss", self.shifted("steps/training_loss", 2, element=3))
        self.refused("case_adafactor", "parameters", self.shifted("params_final/" + kernel, 1.5))
        with h5py.File(f"{CASES}/case_adafactor.h5") as f:
            v_row = sorted(name for name in f["opt_final/1/0/0/1"] if name)
        self.assertTrue(v_row)
        self.refused("case_adafactor", "v_row", self.shifted(f"opt_final/1/0/0/1/{kernel}", 3))

    def test_probes(self):
        def swapped(f):
            rows = f["wide/seed1/indices"]
            rows[0], rows[1] = rows[1], rows[0]

        def of_accuracy(change):
            def moved(f):
                f["narrow/accuracy"][3, 2, 4] += change
            return moved

        self.assertEqual(self.run_case("fewshot")[0], 0)
        self.refused("fewshot", "wide/seed1/indices", swapped)
        self.refused("fewshot", "narrow/seed2/weights_25shot_l2_16",
                     self.shifted("narrow/seed2/weights_25shot_l2_16", 1.5, element=4))
        self.refused("fewshot", "seed 2 shots 25", of_accuracy(3 / 300))


harness.main()
