#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the folders of tools/export --as onnx, torchvision and big_vision: they give the features that the trainer computes.

ONNX Runtime, torchvision and big_vision are optional: TORCH_PYTHON names a Python that has them, if this one has not. Without ONNX
Runtime, NumPy computes the graphs (numpy_onnx.py).
"""
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import types
import unittest

import h5py
import numpy as np
from PIL import Image

import harness
import torch_weights_test as torch_weights
import vit_weights_test as vits

TOOL = harness.SOURCE + "/tools/export"
NO_ONNX = "" if importlib.util.find_spec("onnx") else "no module onnx here (python3-onnx)"
NO_RUNTIME, NO_TORCHVISION = vits.lacks("onnxruntime"), vits.lacks("torchvision, safetensors.torch")
NO_BIG_VISION = vits.lacks("jax, big_vision.models.vit, big_vision.models.proj.cappa.cappa")
IMAGES = np.random.default_rng(3).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
SCALED = IMAGES.astype(np.float32) / 127.5 - 1

WITH_RUNTIME = """
import sys, numpy, onnxruntime
folder, images, out = sys.argv[1:]
model = onnxruntime.InferenceSession(folder + '/model.onnx')
names = [o.name for o in model.get_outputs()]
numpy.savez(out, **dict(zip(names, model.run(names, {'images': numpy.load(images)}))))
"""
WITH_TORCHVISION = """
import sys, numpy, torch
from PIL import Image
folder, images, out = sys.argv[1:]
sys.path.insert(0, folder)
import model as made
model, prepare = made.model(), made.images()
x = torch.stack([prepare(Image.fromarray(i)) for i in numpy.load(images)])
with torch.no_grad():
    numpy.savez(out, x=x.numpy(), logits=model(x).numpy())
"""
# Imports what the folder's README.md names.
WITH_BIG_VISION = """
import sys, numpy
folder, images, out = sys.argv[1:]
sys.path.insert(0, folder)
import config, importlib
from big_vision import utils
c = config.get_config()
module = importlib.import_module('big_vision.models.' + c.model_name)
model, params = module.Model(**c.model), utils.load_params(folder + '/weights.npz')
x = numpy.load(images)
if c.model_name == 'vit':
    result, more = model.apply({'params': params}, x)
    numpy.savez(out, logits=result, encoded=more['encoded'], pre_logits=more['pre_logits'])
else:
    encoded = model.apply({'params': params}, x, method=model.encode)
    numpy.savez(out, encoded=encoded)
"""


class ExportFolders(harness.RunTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def setUp(self):
        super().setUp()
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, pixels in enumerate(IMAGES):
                Image.fromarray(pixels).save(self.path("x.png"))
                with open(self.path("x.png"), "rb") as f:
                    harness.add_member(tar, f"{i:06}.png", f.read())
                harness.add_member(tar, f"{i:06}.cls", str(i % 3).encode())

    def export(self, *args, code=0):
        done = subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def python(self, script, folder, images):
        """Runs the script with a folder and images; returns the arrays that it writes."""
        np.save(self.path("images.npy"), images)
        done = subprocess.run([vits.PYTHON, "-c", script, folder, self.path("images.npy"), self.path("out.npz")], capture_output=True,
                              text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with np.load(self.path("out.npz")) as arrays:
            return dict(arrays)

    def features(self, deck, taps, *pairs):
        """Trains one step that changes nothing; returns the values of the taps for the four images. Heads begin with random numbers."""
        pairs = (*pairs, 'model.init=[{ match = "head/kernel", kind = "normal", scale = 1.0 }]')
        self.good = deck.format(dir=self.dir, data=self.data)
        self.expect(0, args=[self.deck(), *harness.sets(*pairs)])
        out = self.path("features.h5")
        if os.path.exists(out):
            os.remove(out)
        self.expect(0, args=[self.deck(), "--mode", "extract", *harness.sets(
            *pairs, f"extract.from={self.dir}/checkpoints/0000000001.h5", f"extract.out={out}", "extract.data=train",
            "extract.taps=" + json.dumps(taps))])
        with h5py.File(out) as f:
            return {tap: f["features/" + tap][()] for tap in taps}

    def near(self, got, want, what):
        self.assertEqual(got.shape, want.shape, what)
        self.assertLess(np.abs(got - want).max(), 1e-5 * np.abs(want).max(), what)

    def logits(self, features):
        with h5py.File(f"{self.dir}/checkpoints/0000000001.h5") as f:
            return features @ f["params/head/kernel"][()] + f["params/head/bias"][()]

    def graph(self, name, *more):
        """Exports the run as a graph; returns its outputs."""
        said = self.export(self.dir, self.path(name), "--as", "onnx", *more)
        self.assertIn("onnxruntime.InferenceSession", said)
        self.assertEqual(sorted(os.listdir(self.path(name))),
                         ["README.md", "deck.toml", "model.onnx", "model.onnx.data", "preprocessor_config.json"])
        import numpy_onnx
        images = SCALED.transpose(0, 3, 1, 2)
        out = numpy_onnx.run(self.path(name) + "/model.onnx", images)
        if not NO_RUNTIME:
            real = self.python(WITH_RUNTIME, self.path(name), images)
            self.assertEqual(sorted(real), sorted(out))
            for key, values in out.items():
                self.near(real[key], values, f"{name}/{key}")
        return out

    VITS = {"timm": {}, "timm_dinov2_giant": None, "timm_dinov3_plus": None, "transformers_dinov3": None, "timm_dinov2_reg": None,
            "timm_clip": None, "timm_siglip": None, "transformers": {"norm_epsilon": 1e-12},
            "sincos": {"posemb": "sincos2d", "pool": "gap", "gelu": "tanh"}}

    @unittest.skipIf(NO_ONNX, NO_ONNX)
    def test_vits_as_graphs(self):
        for name, keys in self.VITS.items():
            with self.subTest(name):
                file = next((file for file in vits.FILES if file.split(".")[0] == name), None)
                keys = vits.FILES[file] if keys is None else keys
                begin = [f"init.from={vits.VITS}{file}", 'init.dont_load=["head/.*"]'] if file else []
                self.dir = self.path("run_" + name)
                want = self.features(vits.DECK, ["encoded", "pre_logits"], *vits.pairs_of(keys), *begin)
                out = self.graph("out_" + name)
                self.near(out["tokens"], want["encoded"], name)
                self.near(out["features"], want["pre_logits"], name)
                self.near(out["logits"], self.logits(want["pre_logits"]), name)

    @unittest.skipIf(NO_ONNX, NO_ONNX)
    def test_convolutional_trunks_as_graphs(self):
        resnet = 'trunk       = {{ kind = "resnet", depth = 18, width = {width} }}'
        kinds = {"resnet": (resnet.replace("{width}", "8"), "res5", "flatten"),
                 "bottlenecks": ('trunk = {{ kind = "resnet", depth = 50, width = 8, groups = 2, layer4_stride = 1 }}', "res5", "flatten"),
                 "group_norm": ('trunk = {{ kind = "resnet", depth = 18, width = 8, norm = "group", norm_groups = 2 }}', "res5", "flatten"),
                 "convnext": (torch_weights.CONVNEXT.replace("{", "{{").replace("}", "}}"), "stage2", "pre_logits")}
        for name, (trunk, last, pooled) in kinds.items():
            with self.subTest(name):
                self.dir = self.path("run_" + name)
                self.good = torch_weights.DECK.replace(resnet, trunk)
                deck = self.good.replace("train-000.tar", "images.tar").replace("global_batch = 12", "global_batch = 4")
                want = self.features(deck, [last, pooled], "optimizer.learning_rate=0.0")
                out = self.graph("out_" + name)
                self.near(out["map"].transpose(0, 2, 3, 1), want[last], name)
                self.near(out["features"], want[pooled].reshape(4, -1), name)
                self.near(out["logits"], self.logits(want[pooled].reshape(4, -1)), name)

    def captioner(self):
        self.good = harness.DECK.format(dir=self.dir, data=self.data, tokenizer=harness.TOKENIZER)
        harness.make_shards(self.data)
        self.expect(0, args=[self.deck(), *harness.sets("train.total_steps=1", "schedule.default.warmup_steps=1",
                                                        "checkpoint.every_steps=1")])
        return f"{self.dir}/checkpoints/0000000001.h5"

    @unittest.skipIf(NO_ONNX, NO_ONNX)
    def test_the_encoder_of_a_captioner(self):
        self.captioner()
        self.assertIn("left out: ", self.export(self.dir, self.path("out"), "--as", "onnx"))
        import numpy_onnx
        self.assertEqual(list(numpy_onnx.run(self.path("out/model.onnx"), np.zeros((2, 3, 16, 16)))), ["tokens"])

    def settings(self, folder):
        """Returns the configuration of a folder for big_vision, with a stand-in for ml_collections."""
        sys.modules["ml_collections"] = types.SimpleNamespace(ConfigDict=types.SimpleNamespace)
        scope = {}
        with open(folder + "/config.py", encoding="utf-8") as f:
            exec(f.read(), scope)  # pylint: disable=exec-used
        return scope["get_config"]()

    def test_big_vision(self):
        checkpoint = self.captioner()
        self.assertIn("wrote", self.export(self.dir, self.path("out"), "--as", "big_vision"))
        with h5py.File(checkpoint) as f, np.load(self.path("out/weights.npz")) as arrays:
            names = []
            f["params"].visititems(lambda name, d: names.append(name) if isinstance(d, h5py.Dataset) else None)
            self.assertEqual(sorted(arrays), sorted("params/" + name for name in names))
        config = self.settings(self.path("out"))
        self.assertEqual((config.model_name, config.model_init), ("proj.cappa.cappa", "./weights.npz"))
        self.assertEqual((config.model.num_layers, config.model.emb_dim, config.model.num_heads, config.model.mlp_dim), (1, 32, 2, 48))
        self.assertEqual((config.model.patches, config.model.seq_len), ((8, 8), 12))
        self.assertEqual(config.pp_image, "decode|resize(16)|value_range(-1, 1)")
        # A ViT is a model of its own there, and other forms of it are refused.
        self.dir = self.path("vit")
        want = self.features(vits.DECK, ["encoded", "pre_logits"], "model.trunk.gelu=tanh")
        self.export(self.dir, self.path("vit_out"), "--as", "big_vision")
        with np.load(self.path("vit_out/weights.npz")) as arrays:
            self.assertTrue({"params/embedding/kernel", "params/cls", "params/Transformer/encoder_norm/scale", "params/head/kernel"} <=
                            set(arrays))
        config = self.settings(self.path("vit_out"))
        self.assertEqual(vars(config.model), {"num_classes": 3, "width": 16, "depth": 2, "mlp_dim": 64, "num_heads": 2,
                                              "patch_size": (8, 8), "posemb": "learn", "pool_type": "tok"})
        if not NO_BIG_VISION:
            got = self.python(WITH_BIG_VISION, self.path("vit_out"), SCALED)
            self.near(got["pre_logits"], want["pre_logits"], "vit")
            self.assertEqual(self.python(WITH_BIG_VISION, self.path("out"), SCALED[:, :16, :16])["encoded"].shape, (4, 4, 32))
        self.dir = self.path("erf")
        self.features(vits.DECK, ["encoded"])
        self.assertIn("no such model.trunk.gelu (erf)", self.export(self.dir, self.path("no"), "--as", "big_vision", code=2))

    def test_torchvision(self):
        deck = torch_weights.DECK.replace("train-000.tar", "images.tar").replace("global_batch = 12", "global_batch = 4")
        convnext = deck.replace('trunk       = {{ kind = "resnet", depth = 18, width = {width} }}',
                                torch_weights.CONVNEXT.replace("{", "{{").replace("}", "}}"))
        kinds = {"resnet": (deck.replace("{width}", "64"), "flatten", "resnet.ResNet(BasicBlock, [2, 2, 2, 2], num_classes=4)"),
                 "convnext": (convnext, "pre_logits",
                              "ConvNeXt([CNBlockConfig(8, 12, 1), CNBlockConfig(12, None, 2)], num_classes=4)")}
        for name, (text, pooled, call) in kinds.items():
            with self.subTest(name):
                self.dir = self.path("run_" + name)
                features = self.features(text, [pooled], "optimizer.learning_rate=0.0")[pooled].reshape(4, -1)
                self.export(self.dir, self.path(name), "--as", "torchvision")
                with open(self.path(name) + "/model.py", encoding="utf-8") as f:
                    self.assertIn(call, f.read())
                if NO_TORCHVISION:
                    continue
                got = self.python(WITH_TORCHVISION, self.path(name), IMAGES)
                self.near(got["x"].transpose(0, 2, 3, 1), SCALED, name)
                self.near(got["logits"], self.logits(features), name)
        self.dir = self.path("narrow")
        self.features(deck.replace("{width}", "8"), ["flatten"])
        self.assertIn("model.trunk.width = 64 alone, and this one 8", self.export(self.dir, self.path("no"), "--as", "torchvision", code=2))

    def test_what_is_refused(self):
        checkpoint = self.captioner()
        self.assertIn("holds no ResNet", self.export(checkpoint, self.path("a"), "--as", "torchvision", code=2))
        self.assertIn("give a name without an ending", self.export(checkpoint, self.path("a.npz"), "--as", "onnx", code=2))
        # A Python without the module.
        with open(self.path("onnx.py"), "w", encoding="utf-8") as f:
            f.write("raise ImportError('none')")
        done = subprocess.run([TOOL, checkpoint, self.path("a"), "--as", "onnx"], capture_output=True, text=True, timeout=harness.GUARD,
                              check=False, env={**os.environ, "PYTHONPATH": self.folder})
        self.assertEqual(done.returncode, 2)
        self.assertIn("apt-get install python3-onnx, or pip install onnx", done.stderr)
        self.assertFalse(os.path.exists(self.path("a")))


if __name__ == "__main__":
    unittest.main()
