#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ViTs of timm, transformers and torchvision as initial weights: features equal those that the library computed, on any ranks, and
what does not fit is refused. tests/data/make_vits.py made the files.

timm is optional: TORCH_PYTHON names a Python that has it, if this one has not.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import unittest

import h5py
import numpy as np
from PIL import Image

import harness
from torch_weights_test import read_safetensors, save_pth, save_safetensors

VITS = harness.SOURCE + "/tests/data/vits/"
TOOL = harness.SOURCE + "/tools/export"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
RECORDED = dict(np.load(VITS + "features.npz"))
CLIP = {"pre_norm": "true", "norm_epsilon": 1e-5}
DINOV2 = {"layer_scale": 1}
DINOV3 = {"layer_scale": 1, "posemb": "rope", "norm_epsilon": 1e-5}
# file: keys of the trunk that differ from the deck's
FILES = {
    "timm.safetensors": {}, "transformers.bin": {"norm_epsilon": 1e-12}, "torchvision.pth": {},
    "timm_dinov2.safetensors": DINOV2, "timm_dinov2_reg.safetensors": {"layer_scale": 1e-5, "registers": 3},
    "transformers_dinov2.safetensors": DINOV2, "transformers_dinov2_reg.safetensors": {**DINOV2, "registers": 3},
    "timm_clip.safetensors": {**CLIP, "gelu": "quick"}, "transformers_clip.safetensors": {**CLIP, "gelu": "quick"},
    "open_clip.safetensors": {**CLIP, "layer_scale": 1}, "timm_siglip.safetensors": {"pool": "map", "gelu": "tanh"},
    "transformers_siglip.safetensors": {"pool": "map", "gelu": "tanh"},
    "timm_dinov2_giant.safetensors": {**DINOV2, "swiglu": "true", "mlp": 40},
    "transformers_dinov2_giant.safetensors": {**DINOV2, "swiglu": "true", "mlp": 48},
    "timm_dinov3.safetensors": {**DINOV3, "registers": 4}, "timm_dinov3_plus.safetensors": {**DINOV3, "registers": 4, "swiglu": "true"},
    "transformers_dinov3.safetensors": {**DINOV3, "registers": 2, "swiglu": "true"},
    "timm_deit3.safetensors": {"layer_scale": 1e-6}, "timm_siglip_gap.safetensors": {"pool": "gap"},
    "timm_medium_gap.safetensors": {"pool": "gap", "layer_scale": 1e-6},
    "transformers_mae.safetensors": {"norm_epsilon": 1e-12}, "transformers_msn.safetensors": {},
    "transformers_ijepa.safetensors": {"pool": "gap", "norm_epsilon": 1e-12},
    "transformers_siglip2.safetensors": {"pool": "map", "gelu": "tanh"},
    "open_clip_quick.safetensors": {**CLIP, "gelu": "quick"}}


def pairs_of(keys):
    return [f"model.trunk.{key}={value}" for key, value in keys.items()]


DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 1, global_batch = 4 }}
mesh   = {{ replica = 1, fsdp = -1 }}

[model]
kind        = "classifier"
image_size  = 32
num_classes = 3

[model.trunk]
kind         = "vit"
patch        = 8
depth        = 2
width        = 16
mlp          = 64
heads        = 2
pool         = "tok"
gelu         = "erf"
norm_epsilon = 1e-6

[optimizer]
kind          = "adamw"
learning_rate = 0.0

[schedule.default]
kind = "cosine"

[data.train]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(32) | value_range(-1, 1) | keep("image", "label")'

[extract]
data = "train"
taps = ["pre_logits", "encoded"]

[checkpoint]
every_steps = 1
"""


# Opens a folder, and writes the tokens and the prepared form of an image whose size needs no resize.
WITH_TIMM = """
import sys, numpy, torch, timm
from PIL import Image
folder, pixels, out = sys.argv[1:]
model = timm.create_model('local-dir:' + folder, pretrained=True).eval()
images = torch.from_numpy(numpy.load(pixels)['images'])
prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
x = torch.stack([prepare(Image.fromarray(i.numpy())) for i in images])
with torch.no_grad():
    numpy.savez(out, x=x.numpy(), tokens=model.forward_features(x).numpy(), logits=model(x).numpy())
"""
WITH_TRANSFORMERS = """
import sys, numpy, torch, transformers
from PIL import Image
folder, pixels, out = sys.argv[1:]
model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
prepare = transformers.AutoImageProcessor.from_pretrained(folder)
x = prepare([Image.fromarray(i) for i in numpy.load(pixels)['images']], return_tensors='pt')['pixel_values']
with torch.no_grad():
    numpy.savez(out, x=x.numpy(), tokens=model.vit(x).last_hidden_state.numpy(), logits=model(x).logits.numpy())
"""


def lacks(modules):
    done = subprocess.run([PYTHON, "-c", f"import {modules}"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{PYTHON}: {done.stderr.strip().splitlines()[-1]}"


NO_TIMM, NO_TRANSFORMERS = lacks("timm, safetensors.torch"), lacks("torch, transformers, safetensors.torch")


class VitTest(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, pixels in enumerate(RECORDED["images"]):
                Image.fromarray(pixels).save(self.path("x.png"))
                with open(self.path("x.png"), "rb") as f:
                    harness.add_member(tar, f"{i:06}.png", f.read())
                harness.add_member(tar, f"{i:06}.cls", str(i % 3).encode())
        self.good = DECK.format(dir=self.dir, data=self.data)

    def path(self, name):
        return os.path.join(self.folder, name)

    def features(self, source, *pairs, ranks=0, mentions=()):
        out = self.path("features.h5")
        if os.path.exists(out):
            os.remove(out)
        self.expect(0, *mentions, ranks=ranks,
                    args=[self.deck(), "--mode", "extract", *harness.sets(f"extract.from={source}", f"extract.out={out}", *pairs)])
        with h5py.File(out) as f:
            return {tap: f[f"features/{tap}"][()] for tap in f["features"]}

    def same_features(self, got, library):
        for tap in ("pre_logits", "encoded"):
            want = RECORDED[f"{library}/{tap}"]
            self.assertEqual(got[tap].shape, (4, *want.shape[1:]))
            self.assertLess(np.abs(got[tap][:2] - want).max(), 1e-5 * np.abs(want).max(), (library, tap))

    def weights(self, path, *fragments, code=0, more=()):
        """Returns the deck that --mode weights prints, as a dictionary."""
        self.expect(code, *fragments, args=[path, "--mode", "weights", *more])
        return tomllib.loads(self.output.partition("\n\n")[2]) if code == 0 else {}

    def export(self, *args, code=0):
        done = subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def opened(self, library, code, folder):
        out = self.path(library + ".npz")
        done = subprocess.run([PYTHON, "-c", code, folder, VITS + "features.npz", out], capture_output=True, text=True, check=False,
                              timeout=harness.GUARD)
        self.assertEqual(done.returncode, 0, done.stderr)
        return np.load(out), done.stderr


class VitWeights(VitTest):
    def test_features_of_libraries(self):
        for i, (name, keys) in enumerate(FILES.items()):
            with self.subTest(name):
                self.same_features(self.features(VITS + name, *pairs_of(keys), ranks=2 * (i % 2)), name.split(".")[0])
                self.assertNotIn("GELU", self.output)

    def test_weights_are_found_below_prefixes(self):
        tensors = read_safetensors(VITS + "timm.safetensors")
        other = {name: value + 1 for name, value in tensors.items()}
        below = lambda prefix, all_of: {prefix + name: value for name, value in all_of.items()}
        np.savez(self.path("mae.npz"), **below("module.", tensors), **{"module.decoder_blocks.0.attn.qkv.weight": np.zeros((6, 2), "f4")})
        save_safetensors({**below("student.backbone.", other), **below("teacher.backbone.", tensors)}, self.path("dino.safetensors"))
        save_pth({"state_dict": {**below("module.base_encoder.", other), **below("module.momentum_encoder.", tensors)}},
                 self.path("moco.pth"))
        for name in ("mae.npz", "dino.safetensors"):
            self.same_features(self.features(self.path(name)), "timm")
        self.expect(5, "holds several ViTs", 'init.map = { encoder = "state_dict.module.base_encoder" }',
                    args=[self.deck(), "--mode", "extract", *harness.sets(f"extract.from={self.path('moco.pth')}")])
        self.same_features(self.features(self.path("moco.pth"), 'init.map={ encoder = "state_dict.module.momentum_encoder" }'), "timm")

    def test_families_by_key(self):
        tensors = read_safetensors(VITS + "timm.safetensors")
        hugging = read_safetensors(VITS + "transformers_dinov2.safetensors")
        save_safetensors({**tensors, **{"other." + name: value for name, value in hugging.items()}}, self.path("two.safetensors"))
        self.same_features(self.features(self.path("two.safetensors"), "init.family=timm",
                                         mentions=["unused in the file", "; names of timm"]), "timm")
        self.same_features(self.features(self.path("two.safetensors"), "init.family=transformers", *pairs_of(DINOV2),
                                         mentions=["; names of transformers below other."]), "transformers_dinov2")
        self.expect(5, 'init.family = "open_clip"', "holds no ViT with such names",
                    args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors", "init.family=open_clip")])
        self.expect(5, "missing in the file", args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors", "init.family=own")])
        self.expect(2, "init.family", 'is "lightly"', "it may be auto, own, timm",
                    args=[self.deck(), "--validate", *harness.sets("init.family=lightly")])

    def test_decks_for_files(self):
        """The tool prints the keys that fit each file, and takes from config.json the facts that no tensor shows."""
        told = {"erf": "gelu", "quick": "quick_gelu", "tanh": "gelu_pytorch_tanh"}
        for name, keys in FILES.items():
            folder = self.path("folder_" + name)
            os.makedirs(folder)
            shutil.copy(VITS + name, folder)
            with open(folder + "/config.json", "w", encoding="utf-8") as f:
                json.dump({"num_attention_heads": 2, "image_size": 32, "hidden_act": told[keys.get("gelu", "erf")],
                           "layer_norm_eps": keys.get("norm_epsilon", 1e-6)}, f)
            deck = self.weights(f"{folder}/{name}", "trunk    a ViT of depth 2, width 16, mlp", "beside   config.json")
            want = {"kind": "vit", "patch": 8, "depth": 2, "width": 16, "mlp": 64, "heads": 2, "pool": "tok", "gelu": "erf",
                    "norm_epsilon": 1e-6, **keys}
            want.update({"layer_scale": 1} if "layer_scale" in keys else {})
            want = {key: value == "true" or value for key, value in want.items() if key != "gelu" or "swiglu" not in keys}
            decoder = {"decoder": {"depth": 1, "width": 4, "heads": 1}} if name == "transformers_mae.safetensors" else {}
            self.assertEqual(deck["model"], {"image_size": 32, "trunk": want, **decoder}, name)
        deck = self.weights(VITS + "timm_clip.safetensors", "family   timm", 'or "erf"', "one for each 64")
        self.assertEqual(deck["model"]["trunk"]["gelu"], "quick")
        self.assertIn("| clip_value_range |", deck["data"]["train"]["preprocess"])
        self.assertIn("resize(32, method=\"bicubic\", antialias=True) | value_range(-1, 1)",
                      self.weights(VITS + "timm_siglip.safetensors")["data"]["train"]["preprocess"])

    def test_preprocessing_beside_weights(self):
        shutil.copy(VITS + "timm.safetensors", self.path("model.safetensors"))
        def told(name, values):
            for other in ("config.json", "preprocessor_config.json", "open_clip_config.json"):
                if os.path.exists(self.path(other)):
                    os.remove(self.path(other))
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.write(values if isinstance(values, str) else json.dumps(values))
            return self.weights(self.path("model.safetensors"), "family   timm")["data"]["train"]["preprocess"]
        crop = "resize_small(40, method=\"bilinear\", antialias=True) | central_crop(32) | value_range(-1, 1)"
        half = [0.5] * 3
        self.assertIn(crop, told("config.json", {"pretrained_cfg": {
            "mean": half, "std": half, "interpolation": "bilinear", "crop_pct": 0.8, "input_size": [3, 32, 32]}}))
        self.assertIn(crop, told("preprocessor_config.json", {
            "image_mean": half, "image_std": half, "resample": 2, "size": {"shortest_edge": 40}, "do_center_crop": True,
            "crop_size": {"height": 32, "width": 32}}))
        self.assertIn("normalize(mean=[0.1, 0.2, 0.3], std=[0.5, 0.5, 0.5])", told("open_clip_config.json", {
            "model_cfg": {"vision_cfg": {"image_size": 32}}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": half}}))
        for broken in ("{", "[1]", '{"pretrained_cfg": {"mean": [1, "a", null], "std": 3, "crop_pct": -1}, "num_attention_heads": 1e99}'):
            self.assertIn("| vgg_value_range |", told("config.json", broken))

    def test_images_of_another_scale(self):
        """A warning says so if the deck scales images in another way than the files beside the weights say."""
        file = self.path("model.safetensors")
        shutil.copy(VITS + "timm.safetensors", file)
        with open(self.path("preprocessor_config.json"), "w", encoding="utf-8") as f:
            json.dump({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, f)
        words = "preprocessor_config.json beside"
        self.expect(0, args=[self.deck(), *harness.sets(f"init.from={file}")])
        self.assertNotIn(words, self.output)
        other = 'data.train.preprocess=\'decode | resize(32) | vgg_value_range | keep("image", "label")\''
        far = ["0.5 0.5 0.5", "data.train: mean 0.485 0.456 0.406, deviation 0.229 0.224 0.225", "--mode weights"]
        self.expect(0, words, *far, ranks=2, args=[self.deck(), "--dir", self.path("far"), *harness.sets(f"init.from={file}", other)])
        self.assertEqual(self.output.count(words), 1)
        self.features(file, other, mentions=[words, *far])

    def test_files_without_a_vit(self):
        np.savez(self.path("other.npz"), **{"layer.weight": np.zeros((2, 3), "f4")})
        self.expect(0, "family   not known", "layer.weight <f4[2, 3]", args=[self.path("other.npz"), "--mode", "weights"])
        self.expect(5, "there is no such file", args=[self.path("none.npz"), "--mode", "weights"])
        self.expect(2, "--mode weights reads no deck", args=[self.path("other.npz"), "--mode", "weights", "--validate"])
        self.expect(2, "deck", args=["--mode", "weights"])
        self.expect(0, args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors")])
        own = self.weights(self.dir, "family   this program or big_vision, below params/encoder/")
        self.assertEqual(own["model"]["trunk"]["heads"], 2)

    def test_training_begins_with_them(self):
        """The head joins with dont_load = []; without it the head keeps its zeros. Positions of another image size are resampled."""
        tensors = read_safetensors(VITS + "timm.safetensors")
        self.expect(0, "loaded 38 of 40 tensors", "skipped   head/kernel [16, 3]", ranks=2,
                    args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors")])
        self.expect(0, "loaded 40 of 40 tensors", ranks=2,
                    args=[self.deck(), "--dir", self.path("all"), *harness.sets(f"init.from={VITS}timm.safetensors", "init.dont_load=[]")])
        with open(self.path("all") + "/logs/init.txt", encoding="utf-8") as f:
            self.assertIn("encoder/embedding/kernel from patch_embed.proj.weight F32[8, 8, 3, 16]", f.read())
        with h5py.File(self.path("all") + "/checkpoints/0000000001.h5") as f:
            self.assertEqual(f["params/head/kernel"][()].tobytes(), np.ascontiguousarray(tensors["head.weight"].T).tobytes())
            np.testing.assert_array_equal(f["params/encoder/cls"][0, 0], tensors["cls_token"][0, 0] + tensors["pos_embed"][0, 0])
        self.expect(0, "(1 resampled)", args=[self.deck(), "--dir", self.path("large"), *harness.sets(
            f"init.from={VITS}timm.safetensors", "model.image_size=48",
            "data.train.preprocess='decode | resize(48) | value_range(-1, 1) | keep(\"image\", \"label\")'")])

    def test_what_does_not_fit(self):
        tensors = read_safetensors(VITS + "timm.safetensors")
        refused = lambda code, source, *fragments, pairs=(): self.expect(code, *fragments, args=[
            self.deck(), "--mode", "extract", *harness.sets(f"extract.from={source}", *pairs)])
        refused(2, VITS + "timm.safetensors", "the file holds a ViT of depth 2, width 16, mlp 64, heads 2, patch 8", "depth 3",
                pairs=["model.trunk.depth=3"])
        refused(2, VITS + "timm_dinov2_reg.safetensors", "patch 8, registers 3, with layer scale, this model has",
                "model.trunk.registers = 0")
        refused(2, VITS + "timm_dinov2.safetensors", "model.trunk.layer_scale = 0: the file holds")
        refused(2, VITS + "timm.safetensors", "model.trunk.layer_scale: the file holds", "patch 8, this model has",
                pairs=["model.trunk.layer_scale=1"])
        refused(2, VITS + "timm.safetensors", "registers", 'need pool = "tok"', pairs=["model.trunk.registers=2", "model.trunk.pool=gap"])
        refused(2, VITS + "timm_clip.safetensors", "model.trunk.pre_norm = 0: the file holds", "with a norm in front")
        refused(5, VITS + "timm_siglip.safetensors", "only in the file: encoder/MAPHead_0/probe from attn_pool.latent",
                pairs=["model.trunk.pool=gap", "model.trunk.gelu=tanh"])
        self.features(VITS + "timm_siglip.safetensors", "model.trunk.pool=gap", "model.trunk.gelu=quick",
                      'init.dont_load=["encoder/MAPHead_0/.*", "head/.*"]',
                      mentions=["which computes GELU by tanh", 'gelu = "tanh" or "erf"'])
        for name, kind in (("fc_norm.weight", "f4"), ("attn_pool.probe", "f4"), ("blocks.0.steps", "i8"), ("dist_token", "f4")):
            save_safetensors({**tensors, name: np.zeros((1, 4, 16), kind)}, self.path("more.safetensors"))
            refused(5, self.path("more.safetensors"), f"only in the file: encoder/{name}")
        for shape in ((1, 2, 1), (1, 0, 16), (17, 8), (1, 17, 8)):  # nothing beyond such a table is read
            save_safetensors({**tensors, "pos_embed": np.zeros(shape, np.float32)}, self.path("short.safetensors"))
            refused(5, self.path("short.safetensors"), "encoder/pos_embed")
        save_safetensors({**tensors, "blocks.0.attn.qkv.weight": np.zeros((48, 16), np.int64)}, self.path("whole.safetensors"))
        refused(5, self.path("whole.safetensors"),
                "missing in the file: encoder/Transformer/encoderblock_0/MultiHeadDotProductAttention_0/")
        hugging = {"encoder.layer.0.attention.attention.query.weight": np.zeros((16, 16), np.float32),
                   "encoder.layer.0.attention.attention.query.bias": np.zeros((), np.float32)}
        save_safetensors(hugging, self.path("scalar.safetensors"))
        refused(5, self.path("scalar.safetensors"), "only in the file: encoder/encoder.layer.0.attention.attention.query.bias")
        save_safetensors({**tensors, **{"vit." + name: value for name, value in hugging.items()}}, self.path("two.safetensors"))
        refused(5, self.path("two.safetensors"), "holds ViTs with the names of timm and of transformers", 'init.map = { encoder = "vit" }')
        self.features(VITS + "timm.safetensors", "model.trunk.pool=gap", mentions=["holds a class token, and this model has none"])
        save_safetensors({name: value for name, value in tensors.items() if name != "blocks.1.norm2.bias"}, self.path("less.safetensors"))
        refused(5, self.path("less.safetensors"), "missing in the file: encoder/Transformer/encoderblock_1/LayerNorm_1/bias")
        self.features(VITS + "timm.safetensors", "model.trunk.gelu=tanh",
                      mentions=["with the names of timm, which computes GELU exactly", 'gelu = "erf"'])
        self.assertGreater(np.abs(self.features(VITS + "timm.safetensors", "model.trunk.gelu=tanh")["encoded"][:2] -
                                  RECORDED["timm/encoded"]).max(), 1e-4)

    def test_export_and_back(self):
        tensors = read_safetensors(VITS + "timm.safetensors")
        self.expect(0, args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors", "init.dont_load=[]")])
        said = self.export(self.dir, self.path("back.safetensors"), "--names", "timm")
        self.assertIn("VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, mlp_ratio=4.0, num_classes=3)",
                      said)
        back = read_safetensors(self.path("back.safetensors"))
        self.assertEqual(sorted(back), sorted(tensors))
        for name, value in tensors.items():
            if name in ("cls_token", "pos_embed"):
                continue
            self.assertEqual(back[name].shape, value.shape, name)
            self.assertEqual(back[name].tobytes(), value.tobytes(), name)
        first = lambda t: t["cls_token"][0, 0] + t["pos_embed"][0, 0]
        np.testing.assert_array_equal(first(back), first(tensors))
        self.same_features(self.features(self.path("back.safetensors")), "timm")
        self.export(self.dir, self.path("back.npz"), "--names", "timm")
        self.same_features(self.features(self.path("back.npz")), "timm")
        self.assertIn("holds no ResNet", self.export(self.dir, self.path("x.npz"), "--names", "torchvision", code=2))

    @unittest.skipIf(NO_TIMM, NO_TIMM)
    def test_with_timm(self):
        """timm loads the export with the call that the tool prints, and computes the features again."""
        for pool, *pairs in (("tok",), ("gap", "model.trunk.gelu=tanh", "model.trunk.norm_epsilon=0.01", "model.trunk.mlp=36"),
                             ("tok", "model.trunk.layer_scale=0.5", "model.trunk.registers=2"),
                             ("map", "model.trunk.gelu=quick")):
            extra = harness.sets(*pairs)
            folder, out = self.path(f"{pool}{len(pairs)}"), self.path(f"{pool}{len(pairs)}.safetensors")
            self.expect(0, args=[self.deck(), "--dir", folder, "--set", f"model.trunk.pool={pool}", *extra])
            call = self.export(folder, out, "--names", "timm").split("model: ")[1].splitlines()[0]
            code = (f"import sys, functools, numpy, torch, timm, safetensors.torch as s; m = {call}.eval(); "
                    "m.load_state_dict(s.load_file(sys.argv[1]), strict=True); "
                    "x = torch.from_numpy(numpy.load(sys.argv[2])['images']).permute(0, 3, 1, 2).float() / 127.5 - 1; "
                    "f = m.forward_features(x).detach(); numpy.savez(sys.argv[3], encoded=f, "
                    "pre_logits=m.forward_head(f, pre_logits=True).detach())")
            subprocess.run([PYTHON, "-c", code, out, VITS + "features.npz", self.path("x.npz")], check=True, timeout=harness.GUARD)
            got = self.features(folder, f"model.trunk.pool={pool}", *pairs)
            for tap, want in np.load(self.path("x.npz")).items():
                self.assertLess(np.abs(got[tap] - want).max(), 1e-5 * np.abs(want).max(), (pool, tap))

    def trained(self):
        """A run of one step, with the weights of timm's file and its head."""
        self.expect(0, ranks=2, args=[self.deck(), *harness.sets(f"init.from={VITS}timm.safetensors", "init.dont_load=[]")])

    def test_folders(self):
        self.trained()
        self.export(self.dir, self.path("names.safetensors"), "--names", "timm")
        for library in ("timm", "transformers"):
            folder = self.path(library)
            self.assertIn(folder, self.export(self.dir, folder, "--as", library, "--license", "cc0-1.0"))
            with open(folder + "/README.md", encoding="utf-8") as f:
                card = f.read()
            self.assertTrue(card.startswith(f"---\nlibrary_name: {library}\nlicense: cc0-1.0\n"), card)
            for name in set(os.listdir(folder)) - {"README.md"}:
                with open(f"{folder}/{name}", "rb") as f:
                    self.assertIn(f"| `{name}` | `{hashlib.sha256(f.read()).hexdigest()}` |", card)
            with open(folder + "/deck.toml", "rb") as f:
                self.assertEqual(tomllib.load(f)["model"]["trunk"]["width"], 16)
        with open(self.path("timm/model.safetensors"), "rb") as a, open(self.path("names.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        with open(self.path("timm/config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual(config["model_args"], {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2,
                                                "mlp_ratio": 4.0, "num_classes": 3})
        cfg = config["pretrained_cfg"]
        self.assertEqual((cfg["input_size"], cfg["crop_mode"], cfg["mean"], cfg["std"]), ([3, 32, 32], "squash", [0.5] * 3, [0.5] * 3))
        # The trainer reads what it wrote for both.
        for library in ("timm", "transformers"):
            self.same_features(self.features(self.path(library) + "/model.safetensors"), "timm")

    def test_folders_that_are_refused(self):
        cropped = "data.train.preprocess='decode | resize_small(40) | central_crop(32) | normalize() | keep(\"image\", \"label\")'"
        self.expect(0, args=[self.deck(), "--dir", self.path("gap"), *harness.sets("model.trunk.pool=gap", "model.trunk.norm_epsilon=0.01",
                                                                                  cropped)])
        run, out = self.path("gap"), self.path("x")
        for args, words in ((("--as", "transformers"), "has a class token, and this ViT has none: take --as onnx\n"),
                            (("--as", "timm"), "epsilon of 1e-06 alone, and this ViT has 0.01"),
                            (("--as", "timm", "--names", "timm"), "writes a folder"),
                            (("--license", "cc0-1.0"), "give --as as well"),
                            (("--as", "timm", "--tokenizer", "x.model"), "holds no tokenizer"),
                            (("--as", "timm", "--preprocess", "decode | inception_crop(32) | value_range"), "by a fixed resize"),
                            (("--as", "timm", "--preprocess", "decode | resize(64) | value_range"), "to 32 x 32 pixels")):
            with self.subTest(args):
                self.assertIn(words, self.export(run, out, *args, code=2))
                self.assertFalse(os.path.exists(out))
        preparation = harness.loaded("image_preparation.py").preparation
        deck = {"train": {"data": "a"}, "data": {"a": {"preprocess": "decode | random_resized_crop(32) | normalize"},
                                                 "b": {"preprocess": "decode | resize_small(40) | central_crop(32) | normalize"}}}
        found = preparation(deck, 32)
        self.assertEqual((found["shorter"], found["size"], found["mean"], found["std"]),
                         (40, 32, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        found = preparation(deck, 32, "decode | resize(32, 'bicubic') | value_range(0, 1)")
        self.assertEqual((found["shorter"], found["interpolation"], found["mean"], found["std"]), (None, "bicubic", [0] * 3, [1] * 3))

    def test_results_of_the_card(self):
        rows = [{"kind": "eval", "eval": "val", "step": step, "attempt": 1, "loss": loss, "note": "text"}
                for step, loss in ((2, 4.0), (4, 3.0), (6, 2.0))]
        with open(self.path("metrics.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in [*rows, {"kind": "train", "step": 4, "loss": 1.0}])
        self.assertEqual(harness.loaded("library_folders.py").results_of(self.folder, 5), [("val/loss", 4, 3.0)])

    def with_library(self, library, code):
        """What the library computes with a folder that was exported for it."""
        self.export(self.dir, self.path(library), "--as", library)
        return self.opened(library, code, self.path(library))

    def check_library(self, library, code):
        self.trained()
        got, said = self.with_library(library, code)
        self.assertNotIn("newly initialized", said)
        want = RECORDED["images"].transpose(0, 3, 1, 2) / 127.5 - 1
        self.assertLess(np.abs(got["x"] - want).max(), 1e-5)
        want = RECORDED["timm/encoded"]
        self.assertLess(np.abs(got["tokens"][:len(want)] - want).max(), 1e-5 * np.abs(want).max())
        self.assertEqual(got["logits"].shape, (len(got["x"]), 3))
        self.assertGreater(np.abs(got["logits"]).max(), 0)

    @unittest.skipIf(NO_TIMM, NO_TIMM)
    def test_timm_opens_its_folder(self):
        self.check_library("timm", WITH_TIMM)

    @unittest.skipIf(NO_TRANSFORMERS, NO_TRANSFORMERS)
    def test_transformers_opens_its_folder(self):
        self.check_library("transformers", WITH_TRANSFORMERS)


if __name__ == "__main__":
    harness.main()
