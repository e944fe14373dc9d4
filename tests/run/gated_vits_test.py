#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ViTs with SwiGLU and with rotary positions (DINOv2's giant, DINOv3): Meta's names, what is refused, exports. vit_weights_test.py
compares their features with those of the libraries.

timm and transformers are optional, as there.
"""
import json
import subprocess
import unittest

import numpy as np

import harness
import vit_weights_test as vits
from torch_weights_test import read_safetensors, save_safetensors

FILES = {name: vits.pairs_of(vits.FILES[name + ".safetensors"])
         for name in ("timm_dinov2_giant", "transformers_dinov2_giant", "timm_dinov3", "timm_dinov3_plus", "transformers_dinov3")}
# Opens a folder, and writes the tokens.
OPEN = {"timm": "import sys, numpy, torch, timm; model = timm.create_model('local-dir:' + sys.argv[1], pretrained=True).eval(); "
                "f = model.forward_features",
        "transformers": "import sys, numpy, torch, transformers; model = transformers.AutoModel.from_pretrained(sys.argv[1]).eval(); "
                        "f = lambda x: model(x).last_hidden_state"}
RUN = ("; x = torch.from_numpy(numpy.load(sys.argv[2])['images']).permute(0, 3, 1, 2).float() / 127.5 - 1; "
       "numpy.save(sys.argv[3], f(x).detach().numpy())")


def of_meta(name):
    """Returns the tensors of a file with Meta's names."""
    out = {}
    for key, value in read_safetensors(f"{vits.VITS}{name}.safetensors").items():
        for theirs, meta in (("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"), ("fc1_g", "w1"),
                             ("fc1_x", "w2"), ("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3")):
            if "dinov3." not in name + "." or not meta.startswith("mlp."):  # DINOv3's smallest has no SwiGLU
                key = key.replace(theirs, meta)
        out[key] = value
    for i in range(2):
        if (query := out.pop(f"blocks.{i}.attn.q_bias", None)) is not None:  # the mask drops what keys have
            out[f"blocks.{i}.attn.qkv.bias"] = np.concatenate([query, np.ones_like(query), out.pop(f"blocks.{i}.attn.v_bias")])
            out[f"blocks.{i}.attn.qkv.bias_mask"] = np.repeat(np.float32([1, 0, 1]), len(query))
    return out | {"mask_token": np.ones((1, 16), "f4"), "rope_embed.periods": np.ones(2, "f4")}


class GatedVits(vits.VitTest):
    def trained(self, name, *more):
        """Makes a run of one step that began with a file."""
        self.expect(0, args=[self.deck(), "--dir", self.path(name), *harness.sets(
            f"init.from={vits.VITS}{name}.safetensors", *FILES[name], 'init.dont_load=["head/.*"]', *more)])
        return self.path(name)

    def refused(self, code, source, *fragments, pairs=()):
        self.expect(code, *fragments, args=[self.deck(), "--mode", "extract", *harness.sets(f"extract.from={source}", *pairs)])

    def test_names_of_meta(self):
        for name in ("timm_dinov2_giant", "timm_dinov3", "timm_dinov3_plus"):
            save_safetensors(of_meta(name), self.path("meta.safetensors"))
            self.same_features(self.features(self.path("meta.safetensors"), *FILES[name], mentions=["names of timm"]), name)

    def test_other_sizes_of_images(self):
        """Rotary positions need no resampling."""
        pairs = ["model.image_size=48", "data.train.preprocess='decode | resize(48) | value_range(-1, 1) | keep(\"image\", \"label\")'"]
        got = self.features(vits.VITS + "timm_dinov3.safetensors", *FILES["timm_dinov3"], *pairs)
        self.assertEqual(got["encoded"].shape, (4, 36 + 5, 16))
        self.assertIn("(0 resampled)", self.output)

    def test_half_matches(self):
        """No model takes a file whose MLPs or positions are not its own."""
        giant, dinov3, plain = (vits.VITS + name + ".safetensors" for name in ("timm_dinov2_giant", "timm_dinov3", "timm_dinov2"))
        scale = ["model.trunk.layer_scale=1"]
        self.refused(2, giant, "model.trunk.swiglu = 0: the file holds a ViT of depth 2, width 16, mlp 40", "with SwiGLU",
                     pairs=[*scale, "model.trunk.mlp=40"])
        self.refused(2, plain, "model.trunk.swiglu: the file holds", pairs=[*scale, "model.trunk.swiglu=true"])
        for posemb in ("learn", "sincos2d"):
            self.refused(5, dinov3, "holds a ViT with the rotary positions of DINOv3", 'posemb = "rope" fits',
                         pairs=[*FILES["timm_dinov3"], f"model.trunk.posemb={posemb}"])
        self.refused(5, plain, "without the rotary positions of DINOv3", pairs=[*scale, "model.trunk.posemb=rope"])
        tensors = read_safetensors(dinov3)
        for name, source in (("qkv.bias", "q_bias"), ("gate.weight", "proj.weight")):
            other = {**tensors, f"blocks.0.attn.{name}": tensors[f"blocks.0.attn.{source}"]}
            save_safetensors(other, self.path("other.safetensors"))
            self.refused(5, self.path("other.safetensors"), pairs=FILES["timm_dinov3"])
        save_safetensors({key: value for key, value in tensors.items() if key != "blocks.1.attn.v_bias"}, self.path("less.safetensors"))
        self.refused(5, self.path("less.safetensors"), "missing in the file", "encoderblock_1/MultiHeadDotProductAttention_0/value/bias",
                     pairs=FILES["timm_dinov3"])
        self.expect(2, "rope needs heads whose width is divisible by 4; width / heads is 2",
                    args=[self.deck(), *harness.sets("model.trunk.posemb=rope", "model.trunk.heads=8")])

    def test_names_of_exports(self):
        """What was read is written under the same names, to the last bit."""
        for name, library in (("timm_dinov2_giant", "timm"), ("timm_dinov3", "timm"), ("timm_dinov3_plus", "timm"),
                              ("transformers_dinov2_giant", "transformers"), ("transformers_dinov3", "transformers")):
            tensors, out = read_safetensors(f"{vits.VITS}{name}.safetensors"), self.path(name + ".safetensors")
            said = self.export(self.trained(name), out, "--names", library)
            self.assertIn({"timm_dinov2_giant": "SwiGLUPacked", "timm_dinov3": "num_reg_tokens=4", "timm_dinov3_plus": "swiglu_mlp=True",
                           "transformers_dinov2_giant": "'use_swiglu_ffn': True", "transformers_dinov3": "DINOv3ViTModel"}[name], said)
            back = {key.removeprefix("dinov2."): value for key, value in read_safetensors(out).items()
                    if key.split(".")[0] not in ("head", "classifier")}
            added = {f"layer.{i}.attention.k_proj.bias" for i in range(2)} if name == "transformers_dinov3" else set()
            if name == "timm_dinov3_plus":
                added = {f"blocks.{i}.attn.{part}_bias" for i in range(2) for part in "qv"}
            self.assertEqual(set(back) - added, set(tensors))
            for key, value in tensors.items():
                if not key.endswith(("cls_token", "pos_embed", "position_embeddings", "mask_token")):
                    self.assertEqual(back[key].tobytes(), value.astype(np.float32).tobytes(), key)
            self.assertFalse(any(back[key].any() for key in added))
            self.same_features(self.features(out, *FILES[name]), name)

    def test_exports_that_are_refused(self):
        def refused(run, library, words):
            self.assertIn(words, self.export(run, self.path("x.npz"), "--names", library, code=2))
        run = self.trained("timm_dinov3", "optimizer.learning_rate=0.01", "train.total_steps=3")
        refused(run, "timm", "timm's DINOv3 has no biases of keys, and encoder/Transformer/")
        self.export(run, self.path("y.npz"), "--names", "transformers")
        def tiny(name, *pairs):
            self.expect(0, args=[self.deck(), "--dir", self.path(name), *harness.sets(*pairs)])
            return self.path(name)
        trained = "optimizer.learning_rate=0.01", "train.total_steps=3"  # so that biases of keys lack a place as well
        refused(tiny("tanh", "model.trunk.posemb=rope", "model.trunk.gelu=tanh", *trained), "timm", "has the exact GELU")
        refused(tiny("gap", "model.trunk.posemb=rope", "model.trunk.pool=gap"), "timm", "has a class token")
        refused(self.path("tanh"), "transformers", "has layer scale, and this ViT has none")
        refused(tiny("gated", "model.trunk.swiglu=true"), "transformers", "SwiGLU in DINOv2 alone, which has layer scale")
        odd = tiny("odd", "model.trunk.swiglu=true", "model.trunk.mlp=44", "model.trunk.layer_scale=1")
        refused(odd, "transformers", "this one has 44")
        normed = tiny("normed", "model.trunk.posemb=rope", "model.trunk.pre_norm=true", "model.trunk.layer_scale=1",
                      *trained)
        refused(normed, "timm", "a norm in front of its blocks (pre_norm = true), which timm's DINOv3 lacks: take --as onnx\n")
        refused(normed, "transformers", "which transformers' DINOv3 lacks: take --as onnx\n")
        pooled = tiny("pooled", "model.trunk.swiglu=true", "model.trunk.pool=map", "model.trunk.layer_scale=1")
        refused(pooled, "timm", "SwiGLU (swiglu = true) beside pooling by attention (pool = \"map\"), and timm's ViT has one of them at a "
                "time: take --as onnx\n")
        refused(pooled, "transformers", "pooling by attention (pool = \"map\"), which transformers' DINOv2 lacks: take --as onnx\n")

    def test_folders(self):
        for name, library, want in (
                ("timm_dinov2_giant", "timm", {"architecture": "vit_giant_patch14_dinov2"}),
                ("timm_dinov3", "timm", {"architecture": "vit_small_patch16_dinov3_qkvb"}),
                ("timm_dinov2_giant", "transformers", {"model_type": "dinov2", "use_swiglu_ffn": True, "mlp_ratio": 3.75}),
                ("transformers_dinov2_giant", "transformers", {"model_type": "dinov2", "use_swiglu_ffn": True, "mlp_ratio": 4}),
                ("timm_dinov3", "transformers", {"model_type": "dinov3_vit", "use_gated_mlp": False, "num_register_tokens": 4})):
            folder = self.path(f"{library}_of_{name}")
            said = self.export(self.trained(name), folder, "--as", library, "--license", "cc0-1.0")
            self.assertEqual("(mlp_ratio 3.75): version 4 opens it, version 5 refuses it" in said, want.get("mlp_ratio") == 3.75)
            with open(folder + "/config.json", encoding="utf-8") as f:
                config = json.load(f)
            self.assertEqual({key: config[key] for key in want}, want)
            for key, value in want.items():  # transformers 5 takes 4, and refuses 4.0
                self.assertIs(type(config[key]), type(value), key)
            self.same_features(self.features(folder + "/model.safetensors", *FILES[name]), name)

    def test_dinov3_without_registers(self):
        """transformers has an empty tensor of registers then, and warns of a file without it. The trainer reads the folder again."""
        pairs = vits.pairs_of(vits.DINOV3)
        self.expect(0, args=[self.deck(), *harness.sets(*pairs)])
        want = self.features(f"{self.dir}/checkpoints/0000000001.h5", *pairs)
        self.export(self.dir, self.path("folder"), "--as", "transformers")
        self.assertEqual(read_safetensors(self.path("folder/model.safetensors"))["embeddings.register_tokens"].shape, (1, 0, 16))
        got = self.features(self.path("folder/model.safetensors"), *pairs)
        np.testing.assert_array_equal(got["encoded"], want["encoded"])
        if not vits.NO_TRANSFORMERS:
            self.opened_as("transformers", self.path("folder"), want["encoded"])

    def opens(self, library, name):
        self.export(self.trained(name), self.path(f"opened_{library}_{name}"), "--as", library)
        self.opened_as(library, self.path(f"opened_{library}_{name}"), vits.RECORDED[name + "/encoded"])

    def opened_as(self, library, folder, want):
        """Compares what the library computes with a folder."""
        done = subprocess.run([vits.PYTHON, "-c", OPEN[library] + RUN, folder, vits.VITS + "features.npz", self.path("tokens.npy")],
                              capture_output=True, text=True, check=False, timeout=harness.GUARD)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("newly initialized", done.stderr)
        self.assertLess(np.abs(np.load(self.path("tokens.npy"))[:len(want)] - want).max(), 1e-5 * np.abs(want).max(), folder)

    @unittest.skipIf(vits.NO_TIMM, vits.NO_TIMM)
    def test_timm_opens_its_folders(self):
        for name in ("timm_dinov2_giant", "timm_dinov3", "timm_dinov3_plus"):
            self.opens("timm", name)

    @unittest.skipIf(vits.NO_TRANSFORMERS, vits.NO_TRANSFORMERS)
    def test_transformers_opens_its_folders(self):
        code = "import transformers; print(transformers.__version__.split('.')[0])"
        version = int(subprocess.run([vits.PYTHON, "-c", code], capture_output=True, check=True, timeout=harness.GUARD).stdout)
        for name in ("timm_dinov2", "timm_dinov2_reg", "timm_dinov2_giant", "transformers_dinov2_giant"):
            FILES.setdefault(name, vits.pairs_of(vits.FILES[name + ".safetensors"]))
            if name == "timm_dinov2_giant" and version >= 5:
                with self.assertRaisesRegex(AssertionError, "Field 'mlp_ratio' expected int"):  # as the export's note says
                    self.opens("transformers", name)
            else:
                self.opens("transformers", name)


if __name__ == "__main__":
    harness.main()
