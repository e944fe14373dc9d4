#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ResNets and a ConvNeXt of torchvision as initial weights: features equal those that torchvision computed, and the files come back
under its names. tests/data/make_convs.py made them, so no PyTorch is needed.
"""
import os
import tarfile
import unittest

import h5py
import numpy as np
from PIL import Image

import harness
import torch_weights_test as torch_weights
import vit_weights_test as vits
from torch_weights_test import read_safetensors

CONVS = harness.SOURCE + "/tests/data/convs/"
RECORDED = dict(np.load(CONVS + "features.npz"))
RESNET = 'kind = "resnet", depth = {}, width = {}'
# file: keys of the trunk, tap of the pooled vector
FILES = {"resnet18": (RESNET.format(18, 4), "flatten"), "resnet34": (RESNET.format(34, 2), "flatten"),
         "resnet50": (RESNET.format(50, 2), "flatten"),
         "wide_resnet50": (RESNET.format(50, 2) + ", width_per_group = 128", "flatten"),
         "resnext50": (RESNET.format(50, 2) + ", groups = 4, width_per_group = 32", "flatten"),
         "convnext": ('kind = "convnext", depths = [1, 1, 2, 1], widths = [8, 12, 16, 20]', "pre_logits")}


class ConvWeights(harness.RunTest):
    path, export = vits.VitTest.path, vits.VitTest.export

    def setUp(self):
        super().setUp()
        with tarfile.open(self.data + "/train-000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, pixels in enumerate(vits.RECORDED["images"]):
                Image.fromarray(pixels).save(self.path("x.png"))
                with open(self.path("x.png"), "rb") as f:
                    harness.add_member(tar, f"{i:06}.png", f.read())
                harness.add_member(tar, f"{i:06}.cls", str(i % 3).encode())

    def near(self, got, want, what):
        self.assertEqual(got.shape, want.shape, what)
        self.assertLess(np.abs(got - want).max(), 1e-5 * np.abs(want).max(), what)

    def features(self, source, tap, ranks=0):
        out = self.path("features.h5")
        if os.path.exists(out):
            os.remove(out)
        self.expect(0, ranks=ranks, args=[self.deck(), "--mode", "extract", *harness.sets(
            f"extract.from={source}", f"extract.out={out}", "extract.data=train", f'extract.taps=["{tap}"]')])
        with h5py.File(out) as f:
            return f["features/" + tap][()].reshape(4, -1)

    def test_features_and_back(self):
        for i, (name, (trunk, tap)) in enumerate(FILES.items()):
            with self.subTest(name):
                theirs, file = read_safetensors(f"{CONVS}{name}.safetensors"), f"{CONVS}{name}.safetensors"
                self.good = torch_weights.DECK.format(dir=self.dir, data=self.data, width=8).replace(
                    'kind = "resnet", depth = 18, width = 8', trunk).replace("num_classes = 4", "num_classes = 3").replace(
                    "global_batch = 12", "global_batch = 4")
                features = self.features(file, tap, ranks=2 * (i % 2))
                self.near(features, RECORDED[name + "/features"], name)
                head = "classifier.2" if name == "convnext" else "fc"
                logits = features @ theirs[head + ".weight"].T.astype(np.float32) + theirs[head + ".bias"]
                self.near(logits, RECORDED[name + "/logits"], name)
                # A step with a rate of 0 changes nothing but the running values of norms.
                run, out = self.path("run_" + name), self.path("back_" + name + ".safetensors")
                self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(f"init.from={file}", "init.dont_load=[]",
                                                                             "optimizer.learning_rate=0.0")])
                self.export(run, out, "--names", "torchvision")
                back = read_safetensors(out)
                self.assertEqual(sorted(back), sorted(theirs))
                for key, value in theirs.items():
                    self.assertEqual(back[key].shape, value.shape, key)
                    if "running" not in key and "tracked" not in key:
                        self.assertEqual(back[key].tobytes(), value.astype(np.float32).tobytes(), key)


if __name__ == "__main__":
    unittest.main()
