#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains four small decks for 50 steps at determinism.level "anywhere", with several programs, instruction sets, numbers of ranks and
of passes. All must have the same digests of every step and of all tensors at the end, and exports that are equal byte by byte (checkpoints
hold times, too). It takes long, so no test of the gate runs it.

    TRAINER=build/trainer tests/run/fifty_steps.py 'gcc=build/trainer' 'clang=build/clang/trainer' 'arm auto=qemu-aarch64-static ...'

A program is NAME=COMMAND, or NAME CPU=COMMAND for one value of run.cpu alone. Without a CPU, all that this machine has are run."""
import filecmp
import os
import shlex
import subprocess
import sys
import unittest

import anywhere_test
import ssl_harness

import harness
from recorded_bits import instruction_sets

STEPS = 50
BATCH = 8
programs = []  # (name, command, values of run.cpu)


class FiftySteps(anywhere_test.Anywhere):
    def compare_export(self, deck, run):
        """Exports the weights at the end of a run, and compares the file with that of the deck's first run."""
        first = f"{self.folder}/{deck}.safetensors"
        out = first if not os.path.exists(first) else f"{self.folder}/other.safetensors"
        subprocess.run([harness.SOURCE + "/tools/export", run, out], check=True, stdout=subprocess.DEVNULL, timeout=harness.GUARD)
        if out != first:
            self.assertTrue(filecmp.cmp(first, out, shallow=False), f"{deck}: {run} ends with other weights than the first run")
            os.remove(out)

    def test_all_programs_have_the_same_bits(self):
        for name in ("cappa", "resnet", "simclr", "dino"):
            if name == "resnet":
                model, ops = anywhere_test.CLASSIFIER
                self.good = ssl_harness.DECK.format(dir=self.dir, data=self.data, model=model, ops=ops)
            elif name != "cappa":
                self.use(name)
            made = {}
            for program, command, cpus in programs:
                for cpu in cpus:
                    for ranks in (1, 2, 4):
                        for micro_batch in {2, BATCH // ranks}:
                            found = self.digests(command, cpu, ranks, *harness.sets(
                                f"train.global_batch={BATCH}", f"train.micro_batch={micro_batch}"), steps=STEPS)
                            self.compare_export(name, f"{self.folder}/{cpu}{ranks}")
                            made.setdefault(tuple(found.items()), []).append(f"{program} {cpu}, {ranks} ranks, passes of {micro_batch}")
            print(f"{name}: {sum(map(len, made.values()))} runs, {len(made)} results", flush=True)
            for digests, runs in made.items():
                print(f"    tensors {dict(digests)['end']}: {'; '.join(runs)}", flush=True)
            with self.subTest(name):
                self.assertEqual(len(made), 1)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        title, _, command = argument.partition("=")
        name, _, cpu = title.partition(" ")
        programs.append((name, shlex.split(command), [cpu] if cpu else instruction_sets()))
    if not programs:
        sys.exit(__doc__)
    unittest.main(argv=[sys.argv[0], "FiftySteps.test_all_programs_have_the_same_bits"])
