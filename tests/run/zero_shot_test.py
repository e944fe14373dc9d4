#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Zero-shot scoring and retrieval in runs: values of an untrained model, equal values on all meshes, refused data."""
import json
import os
import tarfile

import numpy as np

import harness

CLASSES = ["a red car", "cat", "two cows", "ox", "hens"]
SAMPLES = 17
EVALUATORS = """
[eval.classes]
kind        = "scoring"
data        = "pairs"
every_steps = 0
at_start    = true
k           = [1, 2]
classes     = ["a red car", "cat", "two cows", "ox", "hens"]

[eval.pairs]
kind        = "retrieval"
data        = "pairs"
every_steps = 0
at_start    = true
k           = [1, 5]
"""


class ZeroShot(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(f"{self.data}/pairs.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(SAMPLES):
                harness.add_member(tar, f"{i:06}.png", harness.png(100 + i))
                harness.add_member(tar, f"{i:06}.txt", self.caption(i).encode())
                harness.add_member(tar, f"{i:06}.cls", str(self.label(i)).encode())
        text = self.changed(('kind = "sentencepiece"\n', 'kind = "bytes"\n'),
                            (f'path = "{harness.TOKENIZER}"\n', ""))
        self.text = text + EVALUATORS + f"""
[data.pairs]
path       = "{self.data}/pairs.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels")
              | keep("image", "labels", "label")'''
"""

    @staticmethod
    def label(i):
        return (i * i + 1) % len(CLASSES)

    @staticmethod
    def caption(i):
        return "abcdefghijk"[:1 + 3 * i % 7]

    def values(self, *arguments, ranks=1, folder=None):
        """Returns the values of both evaluators at step 0."""
        folder = folder or self.dir
        self.expect(0, "eval=classes step=0 ", "eval=pairs step=0 ", ranks=ranks,
                    args=[self.deck(self.text), "--dir", folder, *arguments])
        return {name: value for row in self.rows("eval", folder) if row["step"] == 0
                for name, value in row.items() if name.startswith(("top", "i2t", "t2i"))}

    def confusions(self, folder=None):
        """Returns the confusions of step 0, and counts [true, taken for] of them."""
        with open(f"{folder or self.dir}/eval/classes/{0:010}/confusions.json", encoding="utf-8") as f:
            found = json.load(f)
        counts = np.diag([row["correct"] for row in found["classes"]])
        for true, row in enumerate(found["classes"]):
            for taken, images in row["wrong"]:
                counts[true, taken] += images
        return found, counts

    def test_an_untrained_model_prefers_short_captions(self):
        # The head starts at zero, so each token costs ln 400 for every image: the shortest text is
        # the most likely one, and among equal lengths the first.
        classes = sorted(range(len(CLASSES)), key=lambda c: (len(CLASSES[c]), c))
        captions = sorted(range(SAMPLES), key=lambda i: (len(self.caption(i)), i))
        share = lambda ranks, k: sum(rank < k for rank in ranks) / SAMPLES
        of_class = [classes.index(self.label(i)) for i in range(SAMPLES)]
        of_text = [captions.index(i) for i in range(SAMPLES)]
        want = {"top1": share(of_class, 1), "top2": share(of_class, 2), "i2t_r1": 1 / SAMPLES, "i2t_r5": 5 / SAMPLES,
                "t2i_r1": 1 / SAMPLES, "t2i_r5": 5 / SAMPLES}
        self.assertEqual(share(of_text, 5), 5 / SAMPLES)  # each caption has a rank of its own
        self.assertNotEqual(want["top1"], want["top2"])
        self.assertEqual(self.values(), want)
        # All images are taken for the class with the shortest text.
        found, counts = self.confusions()
        taken = np.zeros((len(CLASSES), len(CLASSES)), int)
        np.add.at(taken, ([self.label(i) for i in range(SAMPLES)], classes[0]), 1)
        np.testing.assert_array_equal(counts, taken)
        self.assertEqual([row["name"] for row in found["classes"]], CLASSES)
        self.assertEqual([row["images"] for row in found["classes"]], taken.sum(axis=1).tolist())
        self.assertEqual([row["predicted"] for row in found["classes"]], taken.sum(axis=0).tolist())
        self.assertEqual((found["images"], found["correct"]), (SAMPLES, np.trace(taken)))
        # Without lengths all texts are equally likely, and the first comes first.
        by_length = self.values("--set", "eval.classes.normalize_by_length=true", "--set",
                                "eval.pairs.normalize_by_length=true", folder=f"{self.folder}/by_length")
        first = [self.label(i) for i in range(SAMPLES)]
        self.assertEqual(by_length, want | {"top1": share(first, 1), "top2": share(first, 2)})

    def test_images_without_texts(self):
        # Classes have the ids that another set's tokenize makes, so scores are the same.
        self.text += f'''
[data.images]
path       = "{self.data}/pairs.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image", "label")'
'''
        self.expect(0, args=[self.deck(self.text), "--set", "train.total_steps=3"], ranks=1)
        trained = ["--set", f"init.from={self.dir}", "--set", "train.total_steps=1"]
        want = self.values(*trained, folder=f"{self.folder}/with_texts")
        self.assertEqual(self.values(*trained, "--set", "eval.classes.data=images", "--set", "eval.classes.text_data=pairs",
                                     folder=f"{self.folder}/without"), want)
        self.expect(2, 'data.images', '"labels"', args=[self.deck(self.text), "--set", "eval.classes.data=images"])
        self.expect(2, 'eval.classes.text_data', "no [data.nothing]",
                    args=[self.deck(self.text), "--set", "eval.classes.text_data=nothing"])

    def test_trained_weights_give_equal_values_on_all_meshes(self):
        self.expect(0, args=[self.deck(self.text)], ranks=1)
        trained = ["--set", f"init.from={self.dir}", "--set", "train.total_steps=1"]
        seen, confused = [], []
        for ranks, micro_batch, more in ((1, 6, []), (1, 1, []), (2, 3, []), (3, 4, []), (4, 2, ["--set", "mesh.replica=2"]),
                                         (2, 6, ["--set", 'sharding.parameters="replicated"'])):
            folder = f"{self.folder}/on_{ranks}_{micro_batch}_{len(more)}"
            seen.append(self.values(*trained, "--set", f"train.micro_batch={micro_batch}", *more, ranks=ranks, folder=folder))
            self.assertEqual(seen[-1], seen[0], f"{ranks} ranks, batch {micro_batch}")
            found, counts = self.confusions(folder)
            confused.append(found)
            self.assertEqual(found, confused[0])
            self.assertEqual(np.trace(counts) / counts.sum(), seen[0]["top1"])
            self.assertEqual(counts.sum(axis=1).tolist(), [sum(self.label(i) == c for i in range(SAMPLES)) for c in range(len(CLASSES))])
            self.assertEqual(counts.sum(axis=0).tolist(), [row["predicted"] for row in found["classes"]])
        untrained = self.values(folder=f"{self.folder}/untrained")
        self.assertNotEqual(seen[0], untrained)

    def test_data_without_labels_is_refused_before_the_run(self):
        self.text = self.text.replace('kind        = "scoring"\ndata        = "pairs"', 'kind        = "scoring"\ndata        = "train"')
        self.expect(4, "scoring needs the field label", "[data.train]", args=[self.deck(self.text)])
        self.assertFalse(os.path.exists(self.dir))


harness.main()
