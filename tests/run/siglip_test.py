#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""SigLIP in runs: bits on several meshes with passes, evaluations by cosine, continuing, predictions, plans, refusals."""
import os
import shutil
import tarfile

import h5py
import numpy as np

import harness
from harness import sets

CLASSES = ["a red car", "cat", "two cows", "ox"]
SAMPLES = 13
LEVEL = ("determinism.level=mesh", "determinism.slices=4")
MODEL = """kind       = "siglip"
image_size = 16
vocab_size = 400
seq_len    = 12
trunk      = { kind = "vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "map" }
text       = { depth = 1, width = 24, mlp = 40, heads = 2 }
loss       = { temperature_init = 5, bias_init = -2 }
"""
EVALUATORS = """
[eval.classes]
kind        = "scoring"
data        = "pairs"
every_steps = 4
k           = [1, 2]
prompts     = ["{}", "the {}"]
classes     = ["a red car", "cat", "two cows", "ox"]

[eval.pairs]
kind        = "retrieval"
data        = "pairs"
every_steps = 4
k           = [1, 5]
"""


class Siglip(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(f"{self.data}/pairs.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(SAMPLES):
                harness.add_member(tar, f"{i:06}.png", harness.png(100 + i))
                harness.add_member(tar, f"{i:06}.txt", CLASSES[i % 4].encode())
                harness.add_member(tar, f"{i:06}.cls", str(i % 4).encode())
        text = harness.DECK.format(dir=self.dir, data=self.data, tokenizer=harness.TOKENIZER)
        begin, end = text.index("kind             = \"cappa\""), text.index("[optimizer]")
        text = text[:begin] + MODEL + "\n" + text[end:]
        begin, end = text.index("[eval.val]"), text.index("[checkpoint]")
        text = text[:begin] + text[end:]
        old = "total_steps = 12, global_batch = 12, micro_batch = 6"
        self.assertEqual(text.count(old), 1)
        text = text.replace(old, "total_steps = 8, global_batch = 16, micro_batch = 16")
        self.text = text + EVALUATORS + f"""
[data.pairs]
path       = "{self.data}/pairs.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels")
              | keep("image", "labels", "label")'''
"""

    def train(self, name, *settings, ranks=0):
        """Returns losses and norms of all steps, then the values of the evaluations."""
        folder = os.path.join(self.folder, name)
        self.expect(0, args=[self.deck(self.text), "--dir", folder, *sets(*settings)], ranks=ranks)
        keys = ("loss", "l2_grads", "l2_params", "l2_updates")
        values = [{k: v for k, v in row.items() if k.startswith(("top", "i2t", "t2i"))} for row in self.rows("eval", folder)]
        return [[row[key] for key in keys] for row in self.rows(folder=folder)], values

    def test_same_bits_on_all_meshes(self):
        want = self.train("one", *LEVEL)
        self.assertLess(want[0][-1][0], want[0][0][0])
        self.assertEqual(len(want[1]), 4)
        for name, ranks, settings in (("passes", 0, ("train.micro_batch=4", "memory.recompute=block")), ("two", 2, ()),
                                      ("two_passes", 2, ("train.micro_batch=4", "mesh.replica=2", "mesh.fsdp=1"))):
            self.assertEqual(self.train(name, *LEVEL, *settings, ranks=ranks), want, name)
            one, other = self.tensors(8, f"{self.folder}/one"), self.tensors(8, f"{self.folder}/{name}")
            self.assertEqual(one.keys(), other.keys())
            for tensor in one:
                self.assertEqual(one[tensor], other[tensor], tensor)
        for tensor in ("t", "b"):
            self.assertNotEqual(self.tensors(4, f"{self.folder}/one")["params/" + tensor], one["params/" + tensor])

    def test_continues(self):
        """A run that goes on from its middle, on other ranks and in other passes, ends with the bits of a whole one."""
        self.train("whole", *LEVEL)
        shutil.copytree(f"{self.folder}/whole", f"{self.folder}/parts", symlinks=True)
        os.remove(f"{self.folder}/parts/checkpoints/{8:010}.h5")
        self.expect(0, "from=checkpoint", args=[self.deck(self.text), "--dir", f"{self.folder}/parts",
                                                *sets(*LEVEL, "train.micro_batch=4")], ranks=2)
        one, other = self.tensors(8, f"{self.folder}/whole"), self.tensors(8, f"{self.folder}/parts")
        for tensor in one:
            self.assertEqual(one[tensor], other[tensor], tensor)

    def test_predicts_the_classes_that_the_evaluator_counts(self):
        _, values = self.train("run")
        self.expect(0, args=[self.deck(self.text), "--dir", f"{self.folder}/run", "--mode", "predict",
                             *sets("predict.evaluator=classes")])
        found = [os.path.join(folder, name) for folder, _, names in os.walk(f"{self.folder}/run/predict") for name in names]
        with h5py.File(found[0]) as f:
            scores, prediction, unit = f["score"][:], f["prediction"][:], f["score"].attrs["unit"]
        self.assertEqual(unit.decode() if isinstance(unit, bytes) else unit, "1")
        self.assertEqual(scores.shape, (SAMPLES, 4))
        self.assertLessEqual(abs(scores).max(), 1 + 1e-6)
        np.testing.assert_array_equal(prediction, scores.argmax(axis=1))
        share = float(np.mean(prediction == np.arange(SAMPLES) % 4))
        self.assertAlmostEqual([v for v in values if "top1" in v][-1]["top1"], share, places=12)

    def test_plans_and_measures(self):
        self.expect(0, "activations", args=[self.deck(self.text), "--mode", "plan", "--ranks", "4"])
        self.expect(0, "examples/s", args=[self.deck(self.text), "--mode", "bench", *sets("bench.steps=2", "train.micro_batch=4")], ranks=2)

    def test_refusals(self):
        for settings, fragment in ((["eval.pairs.normalize_by_length=true"], "the scores of this model are cosines"),
                                   (["model.dim=24"], "model.image_head = true"),
                                   (["model.text.heads=5"], "width = 24 is not divisible by heads = 5"),
                                   (["model.seq_len=10"], "model.seq_len"),
                                   (["eval.classes.kind=perplexity"], "perplexity")):
            with self.subTest(fragment):
                text = self.text
                if settings[0].endswith("perplexity"):
                    text = text[:text.index("[eval.classes]")] + '[eval.likely]\nkind = "perplexity"\ndata = "pairs"\nevery_steps = 4\n' \
                        + text[text.index("[data.pairs]"):]
                    settings = []
                self.expect(2, fragment, args=[self.deck(text), *sets(*settings)])
        self.expect(0, args=[self.deck(self.text), *sets("model.image_head=true", "model.dim=24", "model.text.pool=map",
                                                         "train.total_steps=2", "schedule.default.warmup_steps=1")])

    def test_deck_of_emoji(self):
        """inputs/emoji_siglip.toml runs for a few steps with a few examples."""
        if not os.path.exists(harness.SOURCE + "/data/emoji/val-000.tar"):
            self.skipTest("tools/make_emoji_dataset has not been run")
        self.expect(0, "i2t_r1=", args=["inputs/emoji_siglip.toml", "--dir", self.dir, "--set", "train.total_steps=2", "--set",
                                        "data.val.limit=9", "--set", "data.val_classes.limit=9", "--set", "train.global_batch=8"],
                    ranks=2, cwd=harness.SOURCE)


if __name__ == "__main__":
    harness.main()
