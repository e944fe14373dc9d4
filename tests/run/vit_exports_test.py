#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests exports of ViTs that were read from other libraries: names, shapes and features are those of before.

timm is optional, as in vit_weights_test.py, which has the files.
"""
import importlib.util
import json
import re
import unittest

import h5py
import numpy as np

import harness
import vit_weights_test as vits
from torch_weights_test import read_safetensors


class VitExports(vits.VitTest):
    def test_exports_of_other_forms(self):
        """What was read from timm is written as it was, but for the positions of a class token."""
        for name in ("timm_dinov2", "timm_dinov2_reg", "timm_siglip", "timm_siglip_gap", "timm_clip", "timm_deit3"):
            tensors = read_safetensors(f"{vits.VITS}{name}.safetensors")
            pairs = vits.pairs_of(vits.FILES[name + ".safetensors"])
            self.expect(0, args=[self.deck(), "--dir", self.path(name), *harness.sets(
                f"init.from={vits.VITS}{name}.safetensors", *pairs, "init.dont_load=[\"head/.*\"]")])
            out = self.path(name + ".safetensors")
            said = self.export(self.path(name), out, "--names", "timm")
            self.assertIn({"timm_siglip": "global_pool='map'", "timm_siglip_gap": "global_pool='avg', fc_norm=False",
                           "timm_clip": "pre_norm=True"}.get(name, "init_values=1e-05"), said)
            back = read_safetensors(out)
            self.assertEqual(sorted(set(back) - {"head.weight", "head.bias"}), sorted(tensors))
            for key, value in tensors.items():
                if key not in ("cls_token", "pos_embed"):
                    self.assertEqual(back[key].tobytes(), value.astype(np.float32).tobytes(), key)
            self.same_features(self.features(out, *pairs), name)

    def test_all_go_to_timm(self):
        """What was read from any library goes out under timm's names, and has the features of that library again."""
        for name, keys in vits.FILES.items():
            with self.subTest(name):
                run, out, pairs = self.path("run_" + name), self.path("out_" + name.split(".")[0] + ".safetensors"), vits.pairs_of(keys)
                self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(f"init.from={vits.VITS}{name}", *pairs)])
                self.assertIn("model: timm.models.", self.export(run, out, "--names", "timm"))
                self.same_features(self.features(out, *pairs, mentions=["names of timm"]), name.split(".")[0])

    def test_clip_as_a_folder_of_timm(self):
        """The library's own CLIP has the epsilon of such ViTs. A trained bias of patches goes into the positions."""
        pairs = vits.pairs_of(vits.FILES["timm_clip.safetensors"])
        self.expect(0, args=[self.deck(), *harness.sets(
            f"init.from={vits.VITS}timm_clip.safetensors", *pairs, 'init.dont_load=["head/.*"]', "optimizer.learning_rate=0.01",
            "train.total_steps=3", "schedule.default.warmup_steps=1")])
        with h5py.File(self.dir + "/checkpoints/0000000003.h5") as f:
            self.assertTrue(f["params/encoder/embedding/bias"][()].any())
        want = self.features(self.dir, *pairs)
        self.assertIn("local-dir:", self.export(self.dir, self.path("clip"), "--as", "timm"))
        got = self.features(self.path("clip") + "/model.safetensors", *pairs)
        for tap, values in want.items():
            self.assertLess(np.abs(got[tap] - values).max(), 1e-5 * np.abs(values).max(), tap)
        with open(self.path("clip") + "/config.json", encoding="utf-8") as f:
            self.assertEqual(json.load(f)["architecture"], "vit_base_patch16_clip_224")
        if not vits.NO_TIMM:
            tokens = self.opened("timm", vits.WITH_TIMM, self.path("clip"))[0]["tokens"]
            self.assertLess(np.abs(tokens - want["encoded"]).max(), 1e-5 * np.abs(want["encoded"]).max())

    def test_fixed_positions(self):
        """A table that the trainer computes is written to libraries that learn theirs, and read as such a one."""
        code_of = {"timm": (vits.NO_TIMM, vits.WITH_TIMM), "transformers": (vits.NO_TRANSFORMERS, vits.WITH_TRANSFORMERS)}
        for number, (keys, libraries) in enumerate((({"posemb": "sincos2d"}, ("timm", "transformers")),
                                                    ({"posemb": "sincos2d", "pool": "gap"}, ("timm",)))):
            run = self.path(f"run{number}")
            self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(*vits.pairs_of(keys))])
            want = self.features(run, *vits.pairs_of(keys))
            for library in libraries:
                with self.subTest((keys, library)):
                    folder = self.path(f"{library}{number}")
                    self.export(run, folder, "--as", library)
                    for posemb in ("learn", "sincos2d"):
                        got = self.features(folder + "/model.safetensors", *vits.pairs_of({**keys, "posemb": posemb}))
                        for tap, values in want.items():
                            self.assertLess(np.abs(got[tap] - values).max(), 1e-5 * np.abs(values).max(), (tap, posemb))
                    missing, code = code_of[library]
                    if not missing:
                        tokens = self.opened(library, code, folder)[0]["tokens"]
                        self.assertLess(np.abs(tokens - want["encoded"]).max(), 1e-5 * np.abs(want["encoded"]).max())

    def test_refusals_name_the_libraries_that_take_the_model(self):
        """Each library that a refusal names writes this very model."""
        erf_map, tok = {"pool": "map", "norm_epsilon": 1e-6}, {"pool": "tok"}
        for number, (keys, library, words) in enumerate((
                (erf_map, "transformers", "pooling by attention (pool = \"map\"), which transformers' ViT lacks: take --as timm or onnx"),
                ({**erf_map, "gelu": "tanh"}, "transformers", "transformers' ViT lacks: take --as timm, onnx or big_vision"),
                (vits.CLIP, "transformers", "a norm in front of its blocks (pre_norm = true), which transformers' ViT lacks: take --as "
                 "timm or onnx"),
                ({**vits.CLIP, "gelu": "tanh"}, "big_vision", "model.trunk.norm_epsilon (1e-05): take --as timm or onnx"),
                ({**tok, "registers": 2}, "transformers", "registers, which transformers' ViT lacks: take --as timm or onnx"),
                ({**tok, "gelu": "quick"}, "big_vision", "model.trunk.gelu (quick): take --as timm, transformers or onnx"),
                ({**vits.DINOV3, "gelu": "quick"}, "timm", "timm's DINOv3 has the exact GELU, and this ViT has gelu = \"quick\": take --as "
                 "transformers or onnx"),
                ({**tok, "norm_epsilon": 1e-3}, "timm", "this ViT has 0.001: take --as transformers or onnx, or --names timm"))):
            with self.subTest(words):
                run = self.path(f"run{number}")
                self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(*vits.pairs_of(keys))])
                said = self.export(run, self.path("refused"), "--as", library, code=2)
                self.assertIn(words, said)
                for name in re.findall("[a-z_]{3,}", said.partition("take --as ")[2].partition(", or --names")[0]):
                    if name != "onnx" or importlib.util.find_spec("onnx"):
                        self.export(run, self.path(f"{name}{number}"), "--as", name)


if __name__ == "__main__":
    unittest.main()
