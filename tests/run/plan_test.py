#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares --mode plan with the run itself: checkpoint size, bytes of its tensors and memory,
for five decks."""
import os
import re

import h5py

import harness


class Plan(harness.RunTest):
    def number(self, pattern):
        found = re.search(pattern, self.output)
        self.assertTrue(found, (pattern, self.output))
        return int(found.group(1).replace(",", ""))

    def test_plan_equals_run(self):
        decks = {
            "as it is": [],
            "zero1": ["--set", "sharding.parameters=replicated"],
            "data parallel, adamw": ["--set", "sharding.parameters=replicated", "--set", "sharding.optimizer=replicated",
                                     "--set", "optimizer.kind=adamw"],
            "mesh level, recompute": ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3",
                                      "--set", "memory.recompute=block"],
            "wider": ["--set", "model.encoder.width=96", "--set", "model.decoder.depth=3", "--set", "optimizer.momentum_type=f32"],
        }
        for i, (name, change) in enumerate(decks.items()):
            with self.subTest(name):
                # A plan assumes that every position of a text counts. Padding leaves rows out, so
                # such runs need less.
                args = [self.deck(), *change, "--set", "model.pad_id=399", "--set", "train.total_steps=4", "--dir", f"{self.folder}/run{i}"]
                self.expect(0, args=[*args, "--mode", "plan", "--ranks", 2])
                planned = self.number(r"checkpoint ([\d,]+) bytes")
                tensors = self.number(r"of which ([\d,]+) are tensors")
                memory = self.number(r"activations +([\d,]+) bytes")
                self.expect(0, args=args, ranks=2)
                path = f"{self.folder}/run{i}/checkpoints/0000000004.h5"
                self.assertLess(abs(os.path.getsize(path) - planned), 0.01 * planned)
                total = 0
                with h5py.File(path) as f:
                    def add(_, d):
                        nonlocal total
                        total += d.nbytes if isinstance(d, h5py.Dataset) else 0
                    f["params"].visititems(add)
                    f["optimizer"].visititems(add)
                self.assertEqual(total, tensors)
                peak = self.number(r"activation arena ([\d,]+) bytes")
                self.assertEqual(peak, memory)

    def test_plan_for_what_is_not_here(self):
        # A login node has no GPU, and can still plan for one, with settings that CPUs refuse.
        hidden = ["--mode", "plan", "--set", "run.device=auto"]
        for compute in ("fp16", "tf32"):
            with self.subTest(compute):
                self.expect(0, f"cuda (auto: CPUs have no {compute})", args=[self.deck(), *hidden, "--set", f"precision.compute={compute}"])


harness.main()
