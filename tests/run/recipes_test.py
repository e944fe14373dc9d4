#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The decks of published recipes are planned with a stand-in for ImageNet: their lengths in epochs need the size of a data set."""
import glob
import os
import re

import harness

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../inputs")
IMAGES = 4096  # at least a global batch


class Recipes(harness.RunTest):
    def setUp(self):
        super().setUp()
        folder = f"{self.folder}/images/class"
        os.makedirs(folder)
        with open(f"{folder}/0.png", "wb") as f:
            f.write(harness.png(0))
        for i in range(1, IMAGES):
            os.link(f"{folder}/0.png", f"{folder}/{i}.png")

    def test_recipes_have_plans(self):
        decks = sorted(glob.glob(f"{INPUTS}/*_r50.toml") + glob.glob(f"{INPUTS}/*_s16.toml"))
        decks = [deck for deck in decks if not os.path.basename(deck).startswith("bench_")]
        self.assertGreaterEqual(len(decks), 6)
        for deck in decks:
            with self.subTest(os.path.basename(deck)):
                with open(deck, encoding="utf-8") as f:
                    sets = re.findall(r"^\[data\.(\w+)\]", f.read(), re.M)
                paths = [word for name in sets for word in ("--set", f"data.{name}.path={self.folder}/images")]
                self.expect(0, "activations", args=[deck, *paths, "--mode", "plan", "--ranks", "8"])


if __name__ == "__main__":
    harness.main()
