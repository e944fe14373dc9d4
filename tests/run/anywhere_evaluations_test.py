#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluators, captions and features at determinism.level "anywhere": each instruction set that this CPU has, and each number of ranks,
must have the digests that tests/recorded/evaluations.txt holds."""
import os
import re
import shutil

import equal_builds
import ssl_harness

import harness
from recorded_bits import Record, digest, jobs

BITS = '\n[determinism]\nlevel = "anywhere"\nslices = 4\n'
RANKS_OF_FEATURES = """
[eval.rank]
kind = "rankme"
data = "plain"
every_steps = 0
[eval.lidar]
kind = "lidar"
data = "views"
views = 3
every_steps = 0
[eval.vectors]
kind = "svm"
data = "plain"
train_data = "plain"
every_steps = 0
[data.views]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png" }}
preprocess = 'decode | random_resized_crop(16) | flip_lr | value_range(-1, 1) | keep("image")'
"""


class AnywhereEvaluations(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.decks = equal_builds.cases(harness, ssl_harness)
        equal_builds.make_data(self.data, harness)

    def digests(self, deck, job, captions):
        program, cpu, ranks = job
        folder = f"{self.folder}/{cpu}{ranks}"
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(f"{folder}/run")
        text = re.sub(r"\n\[determinism\][^\[]*", "\n", deck.format(dir=f"{folder}/run", data=self.data)) + BITS
        self.assertIn("threads = 1", text)
        text = text.replace("threads = 1", f'threads = 1, cpu = "{cpu}"', 1)
        path = self.deck(text, f"{cpu}{ranks}.toml")
        found = equal_builds.outcome(program, ranks, path, f"{folder}/run", f"{self.data}/pictures" if captions else None)
        out = {}
        for name, value in sorted(found.items()):
            kind = "_".join(name.split()[:2] if name.startswith("evaluation") else name.split()[:1])
            # Captions and features name their images by path, and the folder has another name in each run.
            value = (value if isinstance(value, bytes) else str(value).encode()).replace(self.data.encode(), b"DATA")
            out[kind] = digest(out.get(kind, ""), name, value)[:12]
        return out

    def check(self, name, deck, captions=False):
        Record("evaluations.txt").check(self, name, {str(job): self.digests(deck, job, captions) for job in jobs()})

    def test_captions(self):
        for name in ("cappa_deep", "siglip"):
            with self.subTest(name):
                self.check(name, self.decks[name], captions=name == "cappa_deep")

    def test_classes(self):
        for name in ("classifier_vit_map", "classifier_sigmoid", "linear_probe_resnet"):
            with self.subTest(name):
                self.check(name, self.decks[name])

    def test_features(self):
        for name, more in {"simclr_resnet": RANKS_OF_FEATURES, "dino_vit": ""}.items():
            with self.subTest(name):
                self.check(name, self.decks[name] + more)


if __name__ == "__main__":
    harness.main()
