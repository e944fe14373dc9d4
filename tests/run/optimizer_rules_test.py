#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs in which a rule gives some parameters another optimizer: the same bits on every mesh and after a continued run, the state of
each tensor, the log, and a continued run whose rule names another kind. Muon, whose ranks exchange whole matrices, is one of them."""
import os

import harness

MUON = ('[[optimizer.rule]]\nmatch = ".*[Bb]lock_?[0-9]+/.*/kernel"\nkind = "muon"\nscaling = "match_adamw"\nmomentum = 0.9\n'
        'steps = 4\nnesterov = false\nmomentum_type = "bf16"\n')
KERNEL_RULE = '[[optimizer.rule]]\nmatch       = ".*/kernel"\n'
SETTINGS = harness.sets("train.total_steps=6", "train.global_batch=8", "train.micro_batch=2", "checkpoint.every_steps=3",
                        "eval.val.every_steps=0", "eval.val.at_end=false", "determinism.level=mesh", "determinism.slices=4")


class OptimizerRules(harness.RunTest):
    def train(self, name, ranks):
        """Returns the folder of the run, its losses and its last tensors."""
        folder = f"{self.folder}/{name}"
        self.expect(0, "optim    adafactor (adamw on ", ranks=ranks,
                    args=[self.deck(self.changed((KERNEL_RULE, KERNEL_RULE + 'kind = "adamw"\nb1 = 0.8\n')), name + ".toml"),
                          "--dir", folder, *SETTINGS])
        return folder, [row["loss"] for row in self.rows(folder=folder)], self.tensors(6, folder)

    def test_meshes_states_and_continuing(self):
        folder, losses, tensors = self.train("one", 1)
        for ranks in (2, 4):
            self.assertEqual(self.train(f"on{ranks}", ranks)[1:], (losses, tensors), ranks)
        kernels = {name[len("params/"):] for name in tensors if name.startswith("params/") and name.endswith("/kernel")}
        by_adamw = {name[len("optimizer/adamw/mu/"):] for name in tensors if name.startswith("optimizer/adamw/mu/")}
        by_adafactor = [name for name in tensors if name.startswith("optimizer/adafactor/")]
        self.assertTrue(kernels and by_adafactor)
        self.assertEqual(by_adamw, kernels)
        self.assertEqual([name for name in by_adafactor if name.endswith("/kernel")], [])
        # Step 3 is then the newest one.
        for name in ("0000000006.h5", "latest.h5"):
            os.remove(f"{folder}/checkpoints/{name}")
        again, continued, end = self.train("one", 2)
        self.assertIn("step=3", self.output)
        self.assertEqual((again, continued, end), (folder, losses, tensors))
        # State of another optimizer is not taken for this one's.
        os.remove(f"{folder}/checkpoints/0000000006.h5")
        os.remove(f"{folder}/checkpoints/latest.h5")
        other = self.deck(self.changed((KERNEL_RULE, KERNEL_RULE + 'kind = "lion"\n')), "other.toml")
        self.expect(5, "belongs to another model or optimizer", "only in the file: /optimizer/adamw/mu/",
                    args=[other, "--dir", folder, *SETTINGS])

    def test_muon(self):
        deck = self.deck(self.changed((KERNEL_RULE, MUON + KERNEL_RULE)), "muon.toml")

        def train(name, ranks, *pairs):
            folder = f"{self.folder}/{name}"
            self.expect(0, "optim    adafactor (muon on ", ranks=ranks,
                        args=[deck, "--dir", folder, *SETTINGS, *harness.sets("model.keep_ratio=0.5", *pairs)])
            return folder, [row["loss"] for row in self.rows(folder=folder)], self.tensors(6, folder)
        folder, losses, tensors = train("one", 1)
        self.assertEqual(sum(name.startswith("optimizer/muon/momentum/") for name in tensors), 6 + 10)  # of encoder and decoder
        self.assertLess(losses[-1], losses[0])
        for name, ranks, *pairs in (("sharded", 4), ("replicas", 4, "mesh.replica=2", "mesh.fsdp=2"),
                                    ("replicated", 2, "sharding.parameters=replicated", "sharding.optimizer=replicated")):
            self.assertEqual(train(name, ranks, *pairs)[1:], (losses, tensors), name)
        for name in ("0000000006.h5", "latest.h5"):
            os.remove(f"{folder}/checkpoints/{name}")
        self.assertEqual(train("one", 2), (folder, losses, tensors))
        self.assertIn("step=3", self.output)
        self.expect(2, "muon updates matrices, and ", "axis", args=[self.deck(), "--validate", "--set", "optimizer.kind=muon"])


harness.main()
