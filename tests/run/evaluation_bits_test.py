#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the values of all evaluators over numbers of ranks, batches, levels and sizes of the set, to the last bit."""
import itertools
import json
import tarfile

import harness

SIZES = (1, 2, 3, 5, 7, 40)
CLASSES = ["a cat", "red", "two", "water", "tree"]
EVALUATORS = {
    "beam": 'kind = "captioning"\nmethod = "beam"\nbeams = 3',
    "drawn": 'kind = "captioning"\nmethod = "sample"',
    "likely": 'kind = "perplexity"\nnormalize_by_seqlen = true',
    "pairs": 'kind = "retrieval"\nsubtract_prior = true',
    "probe": 'kind = "fewshot"\ntrain_data = "set40"\nshots = [3]',
    "prior": f'kind = "scoring"\nclasses = {json.dumps(CLASSES)}\nsubtract_prior = true',
    "zero": f'kind = "scoring"\nclasses = {json.dumps(CLASSES)}\nprompts = ["{{}}", "a {{}}"]\nk = [1, 2, 3]',
}
CLASSIFIER = """
[model]
kind        = "classifier"
image_size  = 16
num_classes = 5
trunk       = { kind = "vit", patch = 8, depth = 2, width = 64, mlp = 96, heads = 2, pool = "map" }
"""


class EvaluationBits(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(f"{self.data}/sets.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(max(SIZES)):
                harness.add_member(tar, f"{i:06}.png", harness.png(i))
                harness.add_member(tar, f"{i:06}.txt", f"{CLASSES[i % 5]} {CLASSES[i // 5 % 5]}".encode())
                harness.add_member(tar, f"{i:06}.cls", str(i % 5).encode())
        self.good = self.good[:self.good.index("[eval.val]")]

    def sets(self, fields, ops):
        return "".join(f"""
[data.set{size}]
path       = "{self.data}/sets.tar"
limit      = {size}
fields     = {fields}
preprocess = '''decode | resize(16) | value_range(-1, 1) | {ops}'''
""" for size in SIZES)

    def values(self, deck, ranks, batch, level):
        self.expect(0, ranks=ranks, args=[deck, "--dir", self.dir, "--mode", "eval", "--set", f"evaluate.batch={batch}",
                                          "--set", f'determinism.level="{level}"', "--set", "determinism.slices=4"])
        rows = json.loads(self.output.splitlines()[-1])["evaluations"]
        for row in rows:
            del row["eval_s"]
        return {row["eval"]: row for row in rows}

    def compare(self, deck, count):
        """Trains four steps, so that no weights are zero, and compares."""
        self.expect(0, ranks=2, args=[deck, "--dir", self.dir, "--set", "train.total_steps=4"])
        want = self.values(deck, 1, 32, "run")
        self.assertEqual(len(want), count)
        for ranks, batch, level in itertools.product((1, 2, 3, 4), (1, 4, 32), ("run", "mesh")):
            # Each rank count and batch has one level, in turn.
            if (ranks + batch) % 2 == (level == "mesh"):
                with self.subTest(ranks=ranks, batch=batch, level=level):
                    self.assertEqual(self.values(deck, ranks, batch, level), want)

    def test_captioners(self):
        text = self.good + self.sets('{ image = "png", text = "txt", label = "cls" }',
                                     'tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") '
                                     '| keep("image", "labels", "label")')
        for size, (name, keys) in itertools.product(SIZES, EVALUATORS.items()):
            text += f'[eval.{name}{size}]\ndata = "set{size}"\nevery_steps = 0\nat_end = false\n{keys}\n'
        self.compare(self.deck(text), len(SIZES) * len(EVALUATORS))

    def test_classifiers(self):
        begin, end = self.good.index("[model]"), self.good.index("[optimizer]")
        text = self.good[:begin] + CLASSIFIER + self.good[end:]
        text = text.replace('data = "train"', 'data = "set40"') + self.sets(
            '{ image = "png", label = "cls" }', 'keep("image", "label")')
        for size in SIZES:
            text += (f'[eval.kinds{size}]\nkind = "classification"\ndata = "set{size}"\nevery_steps = 0\nat_end = false\n'
                     "mean_ap = true\nprecision_at = [2]\nrecall_at = [3]\n")
        self.compare(self.deck(text), len(SIZES))


harness.main()
