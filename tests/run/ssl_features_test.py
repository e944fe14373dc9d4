#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluators and extract read the vector that the head of a self-supervised model reads, if no key names a tap; predictions come from
a chosen probe. RankMe and LiDAR give the same bits on any number of ranks."""
import json

import h5py

import harness
from ssl_harness import COPIES, ONE, SelfSupervised


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

    def test_ranks_of_features(self):
        self.make_images()
        self.use("simclr")
        data = f'kind="webdataset", path="{self.data}/images.tar", fields={{image="png"}}'
        common = harness.sets("train.total_steps=4", f"""data.plain={{{data}, preprocess='decode | {ONE.replace(', "label"', "")}'}}""",
                              f"""data.views={{{data}, preprocess='decode | {COPIES.replace("copies(2) | ", "")}'}}""",
                              'eval.rank={kind="rankme", data="plain", tap="res4", every_steps=4}')
        lidar = 'eval.lidar={kind="lidar", data="views", views=3, delta=1e-3, every_steps=4}'
        args = [self.deck(), "--dir", self.dir, *common]
        self.expect(0, "eval=rank", "eval=lidar", args=[*args, "--set", lidar], ranks=2)
        want = {row["eval"]: row for row in self.rows("eval") if row["step"] == 4}
        for name, value in (("rank", "rankme"), ("lidar", "lidar")):
            self.assertTrue(1 < want[name][value] < 40, want)
        for ranks in (1, 2, 3, 4):
            self.expect(0, ranks=ranks, args=[*args, *harness.sets(lidar, f"evaluate.batch={ranks}"), "--mode", "eval"])
            rows = json.loads(self.output.splitlines()[-1])["evaluations"]
            self.assertEqual({row["eval"]: (row.get("rankme"), row.get("lidar")) for row in rows},
                             {name: (row.get("rankme"), row.get("lidar")) for name, row in want.items()}, ranks)
        self.expect(4, "eval.lidar: [data.plain]: the 3 views of each image have equal features",
                    args=[*args, *harness.sets(lidar.replace('"views"', '"plain"')), "--mode", "eval"], ranks=2)

    def test_predictions_of_a_probe(self):
        self.make_images()
        self.use("linear_probe")
        rank = 'eval.rank={kind="classification", data="train", probe="PROBE", k=[1], every_steps=4}'
        args = [self.deck(), "--dir", self.dir]
        self.expect(0, args=[*args, *harness.sets("train.total_steps=4", rank.replace("PROBE", "flatten"))])
        top1 = self.rows("eval")[-1]["top1"]
        predict = [*args, "--mode", "predict", *harness.sets("predict.evaluator=rank")]
        for probe in ("flatten", "res4"):
            out = f"{self.folder}/{probe}.h5"
            self.expect(0, args=[*predict, *harness.sets(rank.replace("PROBE", probe), f"predict.out={out}")], ranks=2)
            with h5py.File(out) as f:
                self.assertEqual(f["logit"].shape, (40, 5))
                right = (f["prediction"][:] == f["label"][:]).mean()
                self.assertEqual((f["logit"][:].argmax(axis=1) != f["prediction"][:]).sum(), 0)
                if probe == "flatten":
                    self.assertAlmostEqual(right, top1)
        self.expect(2, 'eval.rank', 'there is no "res9"', "the model has the probes res4, flatten",
                    args=[*predict, *harness.sets(rank.replace("PROBE", "res9"))])


harness.main()
