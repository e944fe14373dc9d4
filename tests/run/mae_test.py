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
from torch_weights_test import read_safetensors, save_safetensors

WEIGHTS = harness.SOURCE + "/tests/data/vits/mae.pth"
TRANSFORMERS = harness.SOURCE + "/tests/data/vits/transformers_mae_whole.safetensors"
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
        """The encoder fits any ViT with a class token. By default the decoder stays unused."""
        for model in (MAE, CLASSIFIER):
            self.good = self.of(model)
            for posemb in ("sincos2d_mae", "learn"):
                got = self.features(f"extract.from={WEIGHTS}", f"model.trunk.posemb={posemb}", ranks=2)
                self.assertLess(np.abs(got - self.encoded).max(), 1e-5 * np.abs(self.encoded).max())
        self.expect(0, "unused in the file", args=[self.deck(), *sets(f"init.from={WEIGHTS}", "train.total_steps=1")])
        with open(f"{self.dir}/logs/init.txt", encoding="utf-8") as f:
            text = f.read()
        for name in ("mask_token", "decoder_pos_embed", "decoder_blocks.0.attn.qkv.weight", "decoder_pred.bias"):
            self.assertIn(name, text)
        self.expect(5, "only in the file: encoder/model.pos_embed", args=[self.deck(), "--dir", self.folder + "/other", *sets(
            f"init.from={WEIGHTS}", "model.trunk.posemb=sincos2d")])

    def loaded(self, file, folder, *pairs):
        """Returns the weights of a run that began with a file and learned nothing."""
        self.expect(0, "missing 0", args=[self.deck(), "--dir", folder, *sets(
            f"init.from={file}", "init.dont_load=[]", "optimizer.learning_rate=0", "train.total_steps=1", *pairs)], ranks=2)
        with h5py.File(f"{folder}/checkpoints/{1:010}.h5") as f:
            found = {}
            f["params"].visititems(lambda name, data: found.update({name: data[()]}) if isinstance(data, h5py.Dataset) else None)
        return found

    def export(self, folder, out, names):
        done = subprocess.run([harness.SOURCE + "/tools/export", folder, out, "--names", names], capture_output=True, text=True,
                              timeout=harness.GUARD, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_published_decoder(self):
        """With dont_load = [] every weight is the published one. The export hands them back under the published names."""
        own = self.loaded(WEIGHTS, self.folder + "/a")
        with h5py.File(CASE) as f:
            for name, values in own.items():
                self.assertEqual(values.tobytes(), f["params/" + name][()].tobytes(), name)
            decoder_positions = f["params/decoder/pos_embedding"][()]
        theirs = self.loaded(TRANSFORMERS, self.folder + "/transformers")
        self.assertEqual({name: values.tobytes() for name, values in theirs.items()},
                         {name: values.tobytes() for name, values in own.items()})
        out = self.folder + "/mae.safetensors"
        code, said = self.export(self.folder + "/a", out, "mae")
        self.assertEqual(code, 0, said)
        self.assertIn("models_mae.MaskedAutoencoderViT(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, "
                      "decoder_embed_dim=12, decoder_depth=1, decoder_num_heads=3, mlp_ratio=4.0, norm_pix_loss=True", said)
        exported = read_safetensors(out)
        layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        pairs = ["patch_embed.proj", "norm", "decoder_embed", "decoder_norm", "decoder_pred",
                 *(f"{block}.{layer}" for block in ("blocks.0", "blocks.1", "decoder_blocks.0") for layer in layers)]
        self.assertEqual(set(exported), {"cls_token", "pos_embed", "mask_token", "decoder_pos_embed",
                                         *(f"{pair}.{kind}" for pair in pairs for kind in ("weight", "bias"))})
        self.assertEqual(exported["decoder_blocks.0.attn.qkv.weight"].shape, (36, 12))
        np.testing.assert_allclose(exported["decoder_pos_embed"][:, 1:], decoder_positions, atol=1e-6)
        self.assertFalse(exported["decoder_pos_embed"][:, 0].any())
        again = self.loaded(out, self.folder + "/b")
        self.assertEqual({name: values.tobytes() for name, values in again.items()},
                         {name: values.tobytes() for name, values in own.items()})
        for name, told in (("decoder_pos_embed", "only in the file: decoder/decoder_pos_embed"),
                           ("decoder_blocks.0.attn.qkv.bias_mask", "only in the file: decoder/decoder_blocks.0.attn.qkv.bias_mask")):
            save_safetensors({**exported, name: np.ones((1, 17, 12), np.float32)}, self.folder + "/other.safetensors")
            self.expect(5, told, args=[self.deck(), "--dir", self.folder + "/c", *sets(
                f"init.from={self.folder}/other.safetensors", "init.dont_load=[]")])
        self.expect(5, "the file has [", args=[self.deck(), "--dir", self.folder + "/c", *sets(
            f"init.from={out}", "init.dont_load=[]", "model.decoder.mlp=40")])
        self.expect(0, "kind = \"mae\"", "depth = 1\nwidth = 12\n", args=[WEIGHTS, "--mode", "weights"])

    def test_refused_exports(self):
        for i, (deck, told) in enumerate(((self.good.replace("heads = 3", "heads = 3, mlp = 40"), "equal ratios of widths"),
                                          (self.of(CLASSIFIER), "holds no masked autoencoder"))):
            folder = f"{self.folder}/{i}"
            self.expect(0, args=[self.deck(deck), "--dir", folder, *sets("train.total_steps=1")])
            code, said = self.export(folder, folder + ".safetensors", "mae")
            self.assertEqual(code, 2, said)
            self.assertIn(told, said)

    def test_trains_and_exports(self):
        self.expect(0, "k1_top1=", args=[self.deck()], ranks=2)
        rows = self.rows()
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        out = self.folder + "/vit.safetensors"
        code, said = self.export(self.dir, out, "timm")
        self.assertEqual(code, 0, said)
        self.assertIn("decoder/", said)
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
