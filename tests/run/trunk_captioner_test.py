#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests a captioner on a ResNet: bits on 1 and 2 ranks, evaluations, captions, features, continuing, weights of torchvision's
names, a ViT in the same place, and refusals."""
import json
import os

import h5py
import numpy as np

import harness
from harness import sets

EMULATED = os.environ.get("TRAINER_ON_EMULATOR", "")
RESNET = 'trunk            = { kind = "resnet", depth = 18, width = 8, layer4_stride = 1, %s }'
BATCH_NORM, GROUP_NORM = "group_examples = 4", 'norm = "group", norm_groups = 4'
CONVNEXT = 'trunk            = { kind = "convnext", depths = [1, 1], widths = [8, 16], drop_path = 0.2 }'
VIT = "trunk            = { kind = \"vit\", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }"
ENCODER = "encoder          = { patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }"
DECODER = "decoder          = { depth = 1, width = 32, mlp = 48, heads = 2 }"
LEVEL = ("determinism.level=mesh", "determinism.slices=4")
MORE = """
[eval.captions]
kind        = "captioning"
data        = "train"
every_steps = 4
attention   = 2
"""


class TrunkCaptioner(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.good = self.with_trunk(RESNET % BATCH_NORM)

    def with_trunk(self, trunk):
        """Returns a deck whose captioner has this trunk, images of 32 pixels, and batches of 16."""
        text = harness.DECK.format(dir=self.dir, data=self.data, tokenizer=harness.TOKENIZER)
        for old, new in ((ENCODER, trunk), ("decoder          = { depth = 1 }", DECODER),
                         ("image_size       = 16", "image_size       = 32"), ("resize(16)", "resize(32)"),
                         ("total_steps = 12, global_batch = 12, micro_batch = 6", "total_steps = 4, global_batch = 16, micro_batch = 16"),
                         ("every_steps = 6", "every_steps = 4")):
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        return text + MORE

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, name, *settings, text=None, ranks=0):
        self.expect(0, args=[self.deck(text), "--dir", self.path(name), *sets(*settings)], ranks=ranks)
        keys = ("loss", "loss_ar", "loss_parallel", "l2_grads", "l2_params")
        return [[row[key] for key in keys] for row in self.rows(folder=self.path(name))]

    def evaluations(self, name):
        with open(self.path(name) + "/eval/captions/0000000004/captions.jsonl") as f:
            lines = [json.loads(line) for line in f]
        return [[row[key] for key in ("loss", "perplexity") if key in row] for row in self.rows("eval", self.path(name))], lines

    def test_same_bits_on_one_and_two_ranks(self):
        """With both norms, sharded or not, in one pass or several, with outputs kept or computed again."""
        for norm in (BATCH_NORM, GROUP_NORM):
            seen = []
            for ranks, *more in ((0, "memory.recompute=block"), (2, "train.micro_batch=4"),
                                 (2, "sharding.parameters=replicated", "sharding.optimizer=replicated")):
                name = f"{norm[:5]}{len(seen)}"
                rows = self.train(name, *LEVEL, *more, text=self.with_trunk(RESNET % norm), ranks=ranks)
                seen.append((rows, self.tensors(4, self.path(name)), self.evaluations(name)))
            self.assertEqual(len(seen[0][0]), 4)
            self.assertEqual("params/trunk/bn1.running_mean" in seen[0][1], norm == BATCH_NORM)
            for outcome in seen[1:]:
                self.assertEqual(outcome[0], seen[0][0], norm)
                self.assertEqual(outcome[1], seen[0][1], norm)
                self.assertEqual(outcome[2], seen[0][2], norm)

    def test_convnext(self):
        seen = []
        for ranks, *more in ((0, "memory.recompute=block"), (2, "train.micro_batch=4")):
            name = f"convnext{len(seen)}"
            rows = self.train(name, *LEVEL, *more, text=self.with_trunk(CONVNEXT), ranks=ranks)
            seen.append((rows, self.tensors(4, self.path(name)), self.evaluations(name)))
        self.assertEqual(seen[1], seen[0])
        self.assertNotIn("params/trunk/classifier.0.weight", seen[0][1])

    def test_learns_and_goes_on(self):
        more = ("train.total_steps=24", "checkpoint.every_steps=12", "eval.captions.every_steps=24", "eval.val.every_steps=24")
        whole = self.train("whole", *LEVEL, *more, ranks=2)
        self.assertLess(whole[-1][0], 0.8 * whole[0][0])
        bf16 = self.train("bf16", *more, "precision.compute=bf16")
        self.assertLess(bf16[-1][0], 0.8 * bf16[0][0])
        # Without its last checkpoint the run goes on from the one before.
        want = self.tensors(24, self.path("whole"))
        os.remove(self.path("whole") + "/checkpoints/0000000024.h5")
        self.expect(0, "step=24 ", args=[self.deck(), "--dir", self.path("whole"), *sets(*LEVEL, *more)])
        self.assertEqual(self.tensors(24, self.path("whole")), want)

    def test_captions_attend_to_the_positions_of_the_map(self):
        self.train("run", ranks=2)
        _, lines = self.evaluations("run")
        self.assertTrue(any(line["tokens"] for line in lines[:2]))
        for line in lines[:2]:
            weights = np.array(line["attention"]).reshape(-1, 2, 2)
            self.assertEqual(len(weights), len(line["tokens"]))
            np.testing.assert_allclose(weights.sum((1, 2)), 1, atol=0.003)

    def test_features_are_those_of_a_resnet(self):
        self.train("run")
        out = self.path("features.h5")
        self.expect(0, args=[self.deck(), "--dir", self.path("run"), "--mode", "extract",
                             *sets("extract.data=train", 'extract.taps=["res5", "flatten"]', f"extract.out={out}")])
        with h5py.File(out) as f:
            maps, vectors = f["features/res5"][()], f["features/flatten"][()]
        self.assertEqual((maps.shape[1:], vectors.shape[1:]), ((2, 2, 64), (64,)))
        np.testing.assert_allclose(maps.mean((1, 2)), vectors, rtol=1e-5, atol=1e-6)

    def test_reads_weights_of_torchvision(self):
        """A captioner begins with the trunk of a classifier that another program has trained, and leaves the rest of it."""
        for name, text, rest in (("resnet", RESNET % BATCH_NORM, "fc.weight"), ("convnext", CONVNEXT, "classifier.0.weight")):
            self.train(name, text=self.with_trunk(text))
            with h5py.File(self.path(name) + "/checkpoints/0000000004.h5") as f:
                trunk = {}
                f["params/trunk"].visititems(lambda key, d, trunk=trunk: trunk.__setitem__(key, d[()]) if isinstance(d, h5py.Dataset)
                                             else None)
            np.savez(self.path("trunk.npz"), **{"module." + key: value for key, value in (trunk | {rest: np.ones(16)}).items()})
            self.train(name + "_again", f"init.from={self.path('trunk.npz')}", "train.total_steps=1", "checkpoint.every_steps=1",
                       text=self.with_trunk(text))
            self.assertIn(f"loaded {len(trunk)} of ", self.output)

    def test_a_vit_in_the_same_place_has_the_same_bits(self):
        """[model.trunk] of kind vit is the encoder of [model.encoder]."""
        want = self.train("encoder", text=self.with_trunk(ENCODER))
        self.assertEqual(self.train("trunk", text=self.with_trunk(VIT)), want)
        self.assertEqual(self.tensors(4, self.path("trunk")), self.tensors(4, self.path("encoder")))

    def test_emulated_gpu(self):
        """A GPU has the CPU's numbers within rounding, in f32 and with the gradient of the tokens in bf16, with and without graphs."""
        few = ("train.total_steps=2", "train.global_batch=4", "train.micro_batch=2", "eval.val.every_steps=0", "eval.val.at_end=false",
               "eval.captions.every_steps=0", "eval.captions.at_end=false", "checkpoint.every_steps=2", "loader.threads=1",
               "schedule.default.warmup_steps=1")
        on_gpu, text = ("run.device=cuda", "run.gemm_search=off", *few), self.with_trunk(RESNET % GROUP_NORM)
        self.addCleanup(setattr, harness, "TRAINER", harness.TRAINER)
        cpu = harness.TRAINER
        for compute, tolerance in (("f32", 2e-4), ("bf16", 0.02)):
            harness.TRAINER = cpu
            want = self.train("cpu" + compute, *few, f"precision.compute={compute}", text=text)
            harness.TRAINER = EMULATED
            got = self.train("gpu" + compute, *on_gpu, f"precision.compute={compute}", text=text)
            for one, other in zip(want, got):
                for i in (0, 3, 4):  # loss_ar and loss_parallel may be of no example
                    self.assertAlmostEqual(one[i], other[i], delta=tolerance * abs(one[i]), msg=f"{compute}, number {i}")
        graphs = self.train("graphs", *on_gpu, "precision.compute=bf16", "run.cuda_graph=on", text=text)
        self.assertEqual(graphs, got)
        self.assertEqual(self.tensors(2, self.path("graphs")), self.tensors(2, self.path("gpubf16")))

    def test_refusals(self):
        both, bare = self.with_trunk(ENCODER + "\n" + RESNET % BATCH_NORM), self.good.replace(DECODER, "decoder          = { depth = 1 }")
        for text, *words in ((both, "model.encoder: model.trunk is the image encoder; leave out one of the two tables"),
                             (bare, "model.decoder.width: missing; beside model.trunk", "model.decoder.mlp", "model.decoder.heads"),
                             (self.with_trunk(VIT.replace("heads = 2", 'heads = 2, pool = "map"')),
                              'model.trunk: pool = "map" makes one vector'),
                             (self.with_trunk(VIT.replace("patch = 8", "patch = 7")), "32 is not divisible by model.trunk.patch = 7"),
                             (self.good.replace('kind = "resnet"', 'kind = "resnett"'), "model.trunk.kind", "resnet"),
                             (self.good.replace(DECODER, DECODER.replace("heads = 2", "heads = 3")),
                              "model.decoder.heads: width = 32 is not divisible by heads = 3")):
            self.expect(2, *words, args=[self.deck(text), "--validate"])


if __name__ == "__main__":
    harness.main()
