#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The decks of published recipes are planned with a stand-in for ImageNet: their lengths in epochs need the size of a data set.
CapPa's deck takes a step."""
import glob
import json
import math
import os
import re
import shutil
import unittest

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


class CapPa(harness.RunTest):
    """inputs/cappa_b16.toml with one picture for each of its data sets, and a batch of one."""
    PROBES = ("pets", "caltech", "cars", "cifar100", "dtd", "uc_merced")

    def file(self, name, content):
        path = f"{self.folder}/data/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as f:
            f.write(content)

    def make_data(self):
        for split, table in (("train2014", "captions_train2014"), ("val2014", "captions_karpathy_val")):
            self.file(f"coco/{split}/a.png", harness.png(1))
            self.file(f"coco/annotations/{table}.json", json.dumps(
                {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "a red house"}]}))
        self.file("imagenet/val/n01/a.png", harness.png(2))
        self.file("imagenet/class_names.txt", "cat\n")
        for name in self.PROBES:
            for split in [""] if name == "uc_merced" else ["train/", "test/"]:
                self.file(f"{name}/{split}one/a.png", harness.png(3))
        self.file("uc_merced/one/b.png", harness.png(4))
        os.makedirs(self.folder + "/data/vocabs")
        shutil.copy(harness.TOKENIZER, self.folder + "/data/vocabs/cc_en.32000.model")

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "a step of 191 million parameters takes minutes then")
    def test_a_step_of_the_published_deck(self):
        self.make_data()
        with open(f"{INPUTS}/cappa_b16.toml", encoding="utf-8") as f:
            deck = self.deck(f.read().replace('"/data/', f'"{self.folder}/data/'))
        self.expect(0, "191,669,504 parameters", "checkpoint step=1 ", args=[
            deck, "--dir", self.dir, "--mesh-selector", "small", *harness.sets(
                "train.global_batch=1", "train.total_steps=1", "schedule.default.warmup_steps=0", "loader.threads=1",
                "data.uc_merced_train.limit=1", "data.uc_merced_test.skip=1")])
        # Logits start at zero: no token is likelier than another.
        self.assertEqual([row["step"] for row in self.rows()], [1])
        self.assertAlmostEqual(self.rows()[0]["loss_per_token"], math.log(32000), delta=1e-5)
        with open(f"{self.dir}/deck.resolved.toml") as f:
            self.assertRegex(f.read(), r"first_step += true")
        shots = {row["eval"]: [name for name in row if name.endswith("shot")] for row in self.rows("eval")}
        self.assertEqual(sorted(shots), sorted([*self.PROBES, "imagenet", "val_coco"]))
        for name in self.PROBES:
            self.assertEqual(shots[name], ["1shot", "5shot", "10shot", "25shot"])


if __name__ == "__main__":
    harness.main()
