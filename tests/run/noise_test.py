#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Steps with [noise]: passes see weights with noise, which is the same on all meshes and which the weights never have."""
import harness

NOISE = '\n[noise]\nstd = 0.05\nmatch = "encoder/.*kernel"\n'


class Noise(harness.RunTest):
    def train(self, name, text, *settings, ranks=0):
        """Returns the losses of four steps, and the tensors after them."""
        folder = f"{self.folder}/{name}"
        self.expect(0, ranks=ranks, args=[self.deck(text, name + ".toml"), "--dir", folder, *harness.sets(
            "train.total_steps=4", "eval.val.every_steps=0", "eval.val.at_end=false", "train.global_batch=8", "train.micro_batch=0",
            "determinism.level=mesh", "determinism.slices=4", *settings)])
        return [row["loss"] for row in self.rows(folder=folder)], self.tensors(4, folder)

    def test_steps(self):
        still = ["optimizer.learning_rate=0"]
        plain, noisy = self.train("plain", self.good, *still), self.train("noisy", self.good + NOISE, *still)
        # The logits start at zero, so that only later losses depend on the encoder. Their kernel stays, too, at this rate.
        weights = [{name: value for name, value in tensors.items() if name.startswith("params/")} for _, tensors in (plain, noisy)]
        self.assertEqual(weights[0], weights[1])
        one, two = (self.train(f"on{ranks}", self.good + NOISE, ranks=ranks) for ranks in (1, 2))
        self.assertEqual(one, two)
        moved, _ = self.train("moved", self.good)
        self.assertEqual(one[0][:2], moved[:2], "logits of zeros hide the noise")
        self.assertNotEqual(one[0][2:], moved[2:])
        self.expect(2, "noise.match", "matches no trained parameter",
                    args=[self.deck(self.good + NOISE.replace("encoder/", "encodr/")), "--dir", self.folder + "/none"])


harness.main()
