#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluators and extract read the vector that the head of a self-supervised model reads, if no key names a tap."""
import h5py

import harness
from ssl_harness import ONE, SelfSupervised


class Features(SelfSupervised, harness.RunTest):
    def test_default_tap(self):
        self.make_images()
        self.use("simclr")
        plain = (f'data.plain={{kind="webdataset", path="{self.data}/images.tar", fields={{image="png", label="cls"}}, '
                 f"preprocess='decode | {ONE}'}}")
        near = 'eval.near={kind="knn", data="plain", train_data="plain", k=[3], every_steps=1}'
        few = 'eval.few={kind="fewshot", data="plain", train_data="plain", shots=[2], every_steps=1}'
        args = [self.deck(), "--dir", self.dir, *harness.sets("train.total_steps=1", plain, near, few)]
        self.expect(0, "eval=near", "eval=few", args=args)
        self.expect(0, "extract", args=[*args, "--mode", "extract", "--set", "extract.data=plain"])
        with h5py.File(f"{self.dir}/extract/plain.h5") as f:
            self.assertEqual(list(f["features"]), ["flatten"])
            self.assertEqual(f["features/flatten"].shape, (40, 32))  # a ResNet-18 of width 4


harness.main()
