#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Masked autoencoders in runs: published weights, exports under timm's names, evaluations, plans, refusals. tests/golden/mae.py made the
weights; ssl_resume_test and ssl_bits compare bits."""
import os
import subprocess
import tarfile

import h5py
import numpy as np
from PIL import Image

import harness
from harness import sets
from torch_weights_test import read_safetensors

WEIGHTS = harness.SOURCE + "/tests/data/vits/mae.pth"
CASE = harness.SOURCE + "/tests/golden/mae/case.h5"
VIT = ('trunk = { kind = "vit", patch = 8, depth = 2, width = 16, mlp = 64, heads = 2, pool = "tok", posemb = "sincos2d_mae", '
       'gelu = "erf" }')
DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 4, global_batch = 4, micro_batch = 2 }}
mesh   = {{ replica = 1, fsdp = -1 }}

[model]
{model}

[optimizer]
kind          = "adamw"
learning_rate = 1e-3

[schedule.default]
kind = "cosine"

[data.train]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(32) | value_range(-1, 1) | keep("image", "label")'

[eval.near]
kind        = "knn"
data        = "train"
train_data  = "train"
k           = [1]
every_steps = 2

[extract]
data = "train"
taps = ["encoded"]

[checkpoint]
every_steps = 4
"""
MAE = f'kind = "mae"\nimage_size = 32\nmask_ratio = 0.7\ndecoder = {{ depth = 1, width = 12, heads = 3 }}\n{VIT}'
CLASSIFIER = f'kind = "classifier"\nimage_size = 32\nnum_classes = 3\n{VIT}'


class Mae(harness.RunTest):
    def setUp(self):
        super().setUp()
        with h5py.File(CASE) as f:
            self.encoded = f["encoded"][()]
            images = f["image"][()]
            self.positions = f["params/encoder/pos_embedding"][()]
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, pixels in enumerate(images):
                Image.fromarray(pixels).save(self.folder + "/x.png")
                with open(self.folder + "/x.png", "rb") as f:
                    harness.add_member(tar, f"{i:06}.png", f.read())
                harness.add_member(tar, f"{i:06}.cls", str(i % 3).encode())
        self.good = self.of(MAE)

    def of(self, model):
        return DECK.format(dir=self.dir, data=self.data, model=model)

    def features(self, *pairs, ranks=0):
        out = self.folder + "/features.h5"
        if os.path.exists(out):
            os.remove(out)
        self.expect(0, args=[self.deck(), "--mode", "extract", *sets(f"extract.out={out}", *pairs)], ranks=ranks)
        with h5py.File(out) as f:
            return f["features/encoded"][()]

    def test_published_weights(self):
        """The encoder fits any ViT with a class token. The decoder is named as unused."""
        computed = 'init.dont_load=["(?!encoder/).*", "encoder/.*pos_embed"]'
        for model in (MAE, CLASSIFIER):
            self.good = self.of(model)
            for given in (computed, "model.trunk.posemb=learn"):
                got = self.features(f"extract.from={WEIGHTS}", given, ranks=2)
                self.assertLess(np.abs(got - self.encoded).max(), 1e-5 * np.abs(self.encoded).max())
        self.expect(5, "only in the file: encoder/model.pos_embed", args=[self.deck(), *sets(f"init.from={WEIGHTS}")])
        self.expect(0, "unused in the file", args=[self.deck(), *sets(f"init.from={WEIGHTS}", computed, "train.total_steps=1")])
        with open(f"{self.dir}/logs/init.txt", encoding="utf-8") as f:
            text = f.read()
        for name in ("mask_token", "decoder_pos_embed", "decoder_blocks.0.attn.qkv.weight", "decoder_pred.bias"):
            self.assertIn(name, text)

    def test_trains_and_exports(self):
        self.expect(0, "k1_top1=", args=[self.deck()], ranks=2)
        rows = self.rows()
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        out = self.folder + "/vit.safetensors"
        done = subprocess.run([harness.SOURCE + "/tools/export", self.dir, out, "--names", "timm"], capture_output=True, text=True,
                              timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("decoder/", done.stdout + done.stderr)
        exported = read_safetensors(out)
        self.assertFalse([name for name in exported if "decoder" in name or "mask" in name])
        np.testing.assert_allclose(exported["pos_embed"][:, 1:], self.positions, atol=1e-6)
        self.assertFalse(exported["pos_embed"][:, 0].any())
        own = self.features(f"extract.from={self.dir}/checkpoints/{4:010}.h5")
        self.good = self.of(CLASSIFIER)
        np.testing.assert_allclose(self.features(f"extract.from={out}", "model.trunk.posemb=learn"), own, atol=1e-6)

    def test_same_bits_on_all_meshes(self):
        """Losses and all tensors, with trained positions too."""
        level = ("determinism.level=mesh", "determinism.slices=4", "eval.near.every_steps=0", "eval.near.at_end=false")
        for posemb in ("sincos2d_mae", "learn"):
            with self.subTest(posemb):
                same = (*level, f"model.trunk.posemb={posemb}")
                found = []
                for name, ranks, settings in (("one", 0, ("train.micro_batch=4",)), ("two", 2, ()),
                                              ("passes", 0, ("train.micro_batch=1", "memory.recompute=block")),
                                              ("four", 4, ("mesh.replica=2", "sharding.parameters=sharded",
                                                           "sharding.optimizer=sharded"))):
                    folder = f"{self.folder}/{posemb}_{name}"
                    self.expect(0, args=[self.deck(), "--dir", folder, *sets(*same, *settings)], ranks=ranks)
                    found.append(([row["loss"] for row in self.rows(folder=folder)], self.tensors(4, folder)))
                for other in found[1:]:
                    self.assertEqual(other[0], found[0][0])
                    self.assertEqual(other[1], found[0][1])

    def test_plans_and_measures(self):
        self.expect(0, "activations", args=[self.deck(), "--mode", "plan", "--ranks", "4"])
        self.expect(0, "examples/s", args=[self.deck(), "--mode", "bench", *sets("bench.steps=2")], ranks=2)

    def test_refusals(self):
        resnet = 'kind = "mae"\nimage_size = 32\ntrunk = { kind = "resnet", depth = 18, width = 4 }\n'
        for settings, fragment in ((["model.mask_ratio=0.99"], "model.mask_ratio=0.99: 0.99 keeps 0 of the 16 patches"),
                                   (["model.mask_ratio=0"], "model.mask_ratio=0: 0 keeps 16 of the 16 patches"),
                                   (["model.mask_ratio=1.5"], "model.mask_ratio"),
                                   (["model.image_size=36"], "36 is not divisible by model.trunk.patch = 8"),
                                   (["model.trunk.pool=gap"], 'pool = "gap" has none; set pool = "tok"'),
                                   (["model.trunk.posemb=rope"], 'take "sincos2d_mae"'),
                                   (["model.trunk.registers=2"], "mae has no registers"),
                                   (["model.trunk.dropout=0.1"], "mae has no dropout"),
                                   (["model.decoder.heads=5"], "width = 12 is not divisible by heads = 5"),
                                   (["model.decoder.width=18", "model.decoder.heads=3"], "need a width divisible by 4; width is 18"),
                                   (["model.mask_rate=0.5"], "mask_ratio")):
            with self.subTest(settings):
                self.expect(2, fragment, args=[self.deck(), "--validate", *sets(*settings)])
        self.expect(2, 'mae masks patches, and kind = "resnet" has none', args=[self.deck(self.of(resnet)), "--validate"])

    def test_deck_of_emoji(self):
        """inputs/emoji_mae.toml runs for a few steps with a few examples."""
        if not os.path.exists(harness.SOURCE + "/data/emoji/val-000.tar"):
            self.skipTest("tools/make_emoji_dataset has not been run")
        self.expect(0, "k20_top1=", args=["inputs/emoji_mae.toml", "--dir", self.dir, *sets(
            "train.total_steps=2", "train.global_batch=8", "train.micro_batch=4", "data.val.limit=40", "data.labelled.limit=200")],
                    ranks=2, cwd=harness.SOURCE)


if __name__ == "__main__":
    harness.main()
