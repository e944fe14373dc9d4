#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the decks that go on from released weights: a run's encoder goes through a folder for timm into each of them, and nearest
neighbours count the same at step 0 as with the run itself."""
import os
import shutil
import subprocess
import unittest

import harness
from harness import sets

FEW = ["data.val.limit=40", "data.labelled.limit=60", "train.total_steps=2", "train.global_batch=8", "train.micro_batch=4",
       "schedule.default.warmup_fraction=0.0"]
WORSE = "features are then worse"
KNN = '{ kind = "knn", data = "val_classes", train_data = "train_classes", tap = "pre_logits", k = [10], every_steps = 0 }'


@unittest.skipIf(not os.path.exists(harness.SOURCE + "/data/emoji/val-000.tar"), "tools/make_emoji_dataset has not been run")
class ContinueDecks(harness.RunTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def knn(self, run, step):
        rows = [row for row in self.rows("eval", run) if row.get("eval") == "knn" and row["step"] == step]
        self.assertEqual(len(rows), 1, run)
        numbers = {key: value for key, value in rows[0].items() if "top" in key}
        self.assertEqual(len(numbers), 2, rows[0])
        return numbers

    def run_deck(self, name, *pairs, mentions=()):
        self.expect(0, *mentions, ranks=2, cwd=harness.SOURCE, args=[f"inputs/{name}.toml", "--dir", self.path(name), *sets(*pairs)])

    def released(self):
        """Makes a folder for timm from a run of emoji.toml. Returns the file of its weights, and what its neighbours count."""
        few = ["data.val_classes.limit=40", "data.train_classes.limit=60", "train.total_steps=1", "train.global_batch=8",
               "train.micro_batch=4", "schedule.default.warmup_fraction=0.0", f"eval.knn={KNN}", "determinism.level=run"]
        self.run_deck("emoji", *few, "eval.captions.at_end=false", "eval.zero_shot.at_end=false", "data.val.limit=4")
        want = self.knn(self.path("emoji"), 1)
        self.assertGreater(max(want.values()), 0)
        done = subprocess.run([harness.SOURCE + "/tools/export", self.path("emoji"), self.path("vit"), "--as", "timm"],
                              capture_output=True, text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.path("vit") + "/model.safetensors", want

    def test_all(self):
        file, want = self.released()
        for name in ("continue_dino", "continue_simclr", "finetune", "continue_cappa"):
            with self.subTest(name):
                more = ["data.captions.limit=8"] if name == "continue_cappa" else []
                self.run_deck(name, f"init.from={file}", *FEW, *more, mentions=["names of timm"])
                self.assertNotIn(WORSE, self.output)
                self.assertEqual(self.knn(self.path(name), 0), want)

    def test_a_wrong_scale(self):
        """With the mean and the deviation of bytes for values of 0 to 1, a warning says so, and neighbours are worse at step 0."""
        file, _ = self.released()
        many = [f"init.from={file}", *FEW, "data.val.limit=402", "data.labelled.limit=600"]
        self.run_deck("continue_dino", *many)
        self.assertNotIn(WORSE, self.output)
        want = self.knn(self.path("continue_dino"), 0)
        shutil.rmtree(self.path("continue_dino"))
        wrong = "decode | resize(64) | normalize(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]) | keep(\"image\", \"label\")"
        self.run_deck("continue_dino", *many, f"data.labelled.preprocess={wrong}",
                      mentions=[WORSE, "data.labelled: mean 128", "data.val: mean"])
        got = self.knn(self.path("continue_dino"), 0)
        for key, value in want.items():
            self.assertLess(got[key], value, key)


if __name__ == "__main__":
    harness.main()
