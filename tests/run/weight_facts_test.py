#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests weights of other programs with files such as config.json beside them. Those files tell heads, activations, positions and the
preparation of images, and a model that differs is refused. Folders and the names of transformers 5's modules are read, too.
vit_weights_test.py compares features with those of the libraries.
"""
import json
import os
import shutil
import unittest

import numpy as np

import harness
import vit_weights_test as vits
from torch_weights_test import read_safetensors, save_pth, save_safetensors

HALF = [0.5] * 3
# The older names of modules, which files have, and the names in transformers 5.
RENAMED = (("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
           ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
           ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"))


class WeightFacts(vits.VitTest):
    def folder_of(self, name, tensors=None, **beside):
        """Makes a folder of weights and the JSON files beside them. Returns its path."""
        folder = self.path(name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        if tensors is None:
            tensors = read_safetensors(vits.VITS + "timm.safetensors")
        save_safetensors(tensors, folder + "/model.safetensors")
        for file, content in beside.items():
            with open(f"{folder}/{file}.json", "w", encoding="utf-8") as f:
                json.dump(content, f)
        return folder

    def refused(self, source, *fragments, pairs=()):
        self.expect(5, *fragments, args=[self.deck(), "--mode", "extract", *harness.sets(f"extract.from={source}", *pairs)])

    def renamed(self, file, before, after):
        """Returns the tensors of a file of transformers with the names of version 5's modules."""
        out = {}
        for name, value in read_safetensors(vits.VITS + file).items():
            head, found, rest = name.partition(before)
            if found:
                for old, new in RENAMED:
                    if old in rest:
                        rest = rest.replace(old, new)
                        break
            out[head + (after if found else "") + rest] = value
        return out

    def test_names_of_modules(self):
        """model.state_dict() has them, and save_pretrained writes the older names."""
        for file, before, after in (("transformers_msn.safetensors", "encoder.layer.", "layers."),
                                    ("transformers_ijepa.safetensors", "encoder.layer.", "layers."),
                                    ("transformers_dinov2.safetensors", "encoder.layer.", "encoder.layer."),
                                    ("transformers_dinov2_giant.safetensors", "encoder.layer.", "encoder.layer."),
                                    ("transformers_dinov2_reg.safetensors", "encoder.layer.", "encoder.layer."),
                                    ("transformers_dinov3.safetensors", "layer.", "model.layer.")):
            tensors = self.renamed(file, before, after)
            self.assertTrue(any("_proj" in name for name in tensors))
            save_pth({"model." + name: value.astype("f4") for name, value in tensors.items()}, self.path("state.pth"))
            name = file.split(".", maxsplit=1)[0]
            self.same_features(self.features(self.path("state.pth"), *vits.pairs_of(vits.FILES[file]),
                                             mentions=["; names of transformers"]), name)

    def test_layers_of_other_models(self):
        """A tower of texts beside the ViT has layers with the names of a ViT's, but no patches."""
        tensors = read_safetensors(vits.VITS + "timm.safetensors")
        other = {f"{tower}.layers.0.attention.q_proj.weight": np.zeros((4, 4), "f4") for tower in ("texts", "sounds")}
        self.weights(self.folder_of("two", {**tensors, **other}), "family   timm")

    def test_folders(self):
        folder = self.folder_of("folder", config={"architecture": "vit_tiny", "model_args": {"num_heads": 2}})
        self.assertEqual(self.weights(folder, "beside   config.json")["model"]["trunk"]["heads"], 2)
        self.same_features(self.features(folder), "timm")
        self.expect(0, "loaded", args=[self.deck(), *harness.sets(f"init.from={folder}/")])
        for deck in (folder, folder + "/model.safetensors"):
            self.expect(2, "holds weights and no deck", "extract.from", args=[deck, "--mode", "extract"])
        run = self.path("run_of_folder")
        self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(f"init.from={folder}")])
        exported = self.path("exported")
        self.export(run, exported, "--as", "timm")
        self.assertEqual(self.weights(exported)["model"]["trunk"]["heads"], 2)
        self.same_features(self.features(exported), "timm")

    def test_heads(self):
        """Tensors do not tell them. A file beside the weights does, or else a table of published widths."""
        two = {"num_attention_heads": 2}
        self.same_features(self.features(self.folder_of("two", config=two)), "timm")
        self.refused(self.folder_of("four", config={"num_attention_heads": 4}), "config.json beside", "has 4 heads",
                     "model.trunk.heads = 2")
        self.refused(self.folder_of("four", config={"architecture": "vit", "model_args": {"num_heads": 4}}), "has 4 heads")
        clip = read_safetensors(vits.VITS + "open_clip.safetensors")
        for columns, heads in ((8, 2), (4, 4)):
            folder = self.folder_of("clip", clip, open_clip_config={"model_cfg": {"vision_cfg": {
                "image_size": 32, "width": 16, "head_width": columns}}})
            trunk = self.weights(folder)["model"]["trunk"]
            self.assertEqual((trunk["heads"], trunk["gelu"]), (heads, "erf"))
        for width, heads in ((192, 3), (1152, 16), (1280, 16), (1408, 16), (1664, 16), (1536, 24)):
            tensors = {"patch_embed.proj.weight": np.zeros((width, 3, 1, 1), "f4"), "cls_token": np.zeros((1, 1, width), "f4"),
                       "pos_embed": np.zeros((1, 5, width), "f4"), "blocks.0.attn.qkv.weight": np.zeros((3, 1), "f4")}
            deck = self.weights(self.folder_of("wide", tensors), "tensors do not tell it")
            self.assertEqual(deck["model"]["trunk"]["heads"], heads, width)

    def test_what_files_refuse(self):
        """No tensor shows these, and features would differ."""
        rope = self.folder_of("rope", config={"architecture": "vit_small_patch16_rope_ape_224"})
        for folder, words in ((rope, "whose rotary positions are not DINOv3's"),
                              (self.folder_of("relu", config={"hidden_act": "relu"}), 'hidden_act = "relu"')):
            self.refused(folder, "config.json beside", words)
            self.expect(0, "refused  ", words, args=[folder, "--mode", "weights"])
        dinov3 = read_safetensors(vits.VITS + "transformers_dinov3.safetensors")
        pairs = vits.pairs_of(vits.FILES["transformers_dinov3.safetensors"])
        said = {"model_type": "dinov3_vit", "num_attention_heads": 2, "use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 100.0}
        self.same_features(self.features(self.folder_of("good", dinov3, config=said), *pairs), "transformers_dinov3")
        for change, words in (({"rope_theta": 1000.0}, "rope_theta = 1000"), ({"hidden_act": "gelu"}, "of a gated MLP"),
                              ({"rope_theta": None, "rope_parameters": {"rope_theta": 10.0}}, "rope_theta = 10")):
            self.refused(self.folder_of("bad", dinov3, config={**said, **change}), words, pairs=pairs)
        siglip = read_safetensors(vits.VITS + "timm_siglip.safetensors")
        both = self.folder_of("both", {**siglip, "cls_token": np.zeros((1, 1, 16), "f4")})
        self.refused(both, "a class token and a pooling head", pairs=["model.trunk.pool=map", "model.trunk.gelu=tanh"])
        self.expect(0, "refused  a pooling head behind a class token", args=[both, "--mode", "weights"])
        timm = read_safetensors(vits.VITS + "timm.safetensors")
        self.expect(0, "refused  encoder/dist_token", args=[
            self.folder_of("deit", {**timm, "dist_token": np.zeros((1, 1, 16), "f4")}), "--mode", "weights"])
        self.expect(0, "refused  no norm behind the blocks", args=[
            self.folder_of("bare", {key: value for key, value in timm.items() if not key.startswith("norm.")}), "--mode", "weights"])
        no_table = self.folder_of("none", {key: value for key, value in timm.items() if key != "pos_embed"})
        self.expect(0, "refused  no table of positions", args=[no_table, "--mode", "weights"])
        self.assertNotIn("rope", self.output)

    def test_gelu_of_architectures(self):
        """timm's names of pairs tell it, or an argument does."""
        clip = read_safetensors(vits.VITS + "timm_clip.safetensors")
        siglip = read_safetensors(vits.VITS + "timm_siglip.safetensors")
        for tensors, config, gelu in (
                (clip, {"architecture": "vit_base_patch32_clip_224"}, "erf"),
                (clip, {"architecture": "vit_base_patch32_clip_quickgelu_224"}, "quick"),
                (siglip, {"architecture": "vit_base_patch16_siglip_224"}, "erf"),
                (siglip, {"architecture": "vit_so400m_patch14_siglip_378"}, "erf"),
                (siglip, {"architecture": "vit_so400m_patch16_siglip_256"}, "tanh"),
                (siglip, {"architecture": "vit_large_patch16_siglip_512"}, "tanh"),
                (siglip, {"architecture": "vit_tiny", "model_args": {"act_layer": "quick_gelu"}}, "quick")):
            self.assertEqual(self.weights(self.folder_of("named", tensors, config=config))["model"]["trunk"]["gelu"], gelu, config)
        for vision, words in (({"pool_type": "avg"}, 'pool_type = "avg"'), ({"final_ln_after_pool": True}, "final_ln_after_pool")):
            folder = self.folder_of("pooled", clip, open_clip_config={"model_cfg": {"vision_cfg": {"image_size": 32, **vision}}})
            self.refused(folder, words, pairs=["model.trunk.pre_norm=true"])

    def test_odd_files_beside_weights(self):
        """They are passed over, and the weights are read."""
        folder = self.folder_of("odd")
        for text in ('{"a":' * 200000 + "1" + "}" * 200000, '{"hidden_act": 1, "num_attention_heads": [2], "vision_config": null}',
                     '{"vision_config": {}, "hidden_act": "relu"}', '{"hidden_act": "gelu_python"}', "{", ""):
            with open(folder + "/config.json", "w", encoding="utf-8") as f:
                f.write(text)
            self.weights(folder, "family   timm")
            self.same_features(self.features(folder), "timm")
        os.remove(folder + "/config.json")
        os.mkfifo(folder + "/config.json")
        self.weights(folder, "family   timm")
        # A shape that no ResNet has.
        save_safetensors({"conv1.weight": np.zeros((8, 3, 7, 7), "f4"), "layer1.0.conv1.weight": np.zeros((8, 8, 1, 1), "f4"),
                          "layer1.0.conv2.weight": np.zeros((1, 8, 1, 1), "f4"), "layer1.0.conv3.weight": np.zeros((8, 1, 1, 1), "f4")},
                         self.path("shape.safetensors"))
        self.weights(self.path("shape.safetensors"), "family   torchvision")

    def test_exports_in_a_run_directory(self):
        """The run stays a run."""
        run = self.path("run_with_export")
        self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(f"init.from={vits.VITS}timm.safetensors")])
        self.export(run, run + "/model.safetensors")
        self.features(run, mentions=["checkpoints/0000000001.h5"])

    def test_gelu_beside_weights(self):
        siglip = read_safetensors(vits.VITS + "timm_siglip.safetensors")
        pairs = ["model.trunk.pool=map", "model.trunk.gelu=tanh"]
        for name, warns in (("gelu", True), ("gelu_pytorch_tanh", False)):
            self.features(self.folder_of(name, siglip, config={"hidden_act": name}), *pairs)
            self.assertEqual("a file beside it says so" in self.output, warns, name)

    def test_no_registers(self):
        """transformers stores none as a tensor without elements."""
        tensors = read_safetensors(vits.VITS + "transformers_dinov3.safetensors")
        tensors["embeddings.register_tokens"] = np.zeros((1, 0, 16), "f4")
        deck = self.weights(self.folder_of("none", tensors))
        self.assertNotIn("registers", deck["model"]["trunk"])
        keys = {**vits.FILES["transformers_dinov3.safetensors"], "registers": 0}
        self.features(self.folder_of("none", tensors), *vits.pairs_of(keys))

    def test_preparation_of_images(self):
        def told(**beside):
            return self.weights(self.folder_of("prepared", **beside))["data"]["train"]["preprocess"]
        means = {"image_mean": HALF, "image_std": HALF, "resample": 3}
        square, wide = {"height": 32, "width": 32}, {"height": 40, "width": 40}
        resize, crop = 'resize({}, method="bicubic", antialias=True)', "| central_crop(32) "
        for beside, side, crops in (
                ({"preprocessor_config": {**means, "size": square}}, 32, False),
                ({"preprocessor_config": {**means, "size": wide, "do_center_crop": True, "crop_size": square}}, 40, True),
                ({"config": {"architecture": "vit", "pretrained_cfg": {"input_size": [3, 32, 32], "crop_mode": "squash", "crop_pct": 1.0}}},
                 32, False),
                ({"open_clip_config": {"model_cfg": {"vision_cfg": {"image_size": 32}}, "preprocess_cfg": {"resize_mode": "squash"}}},
                 32, False)):
            text = told(**beside)
            self.assertIn(resize.format(side), text, beside)
            self.assertEqual(crop in text, crops, text)
        shorter = {**means, "size": {"shortest_edge": 354}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
        self.assertIn('resize_small(50, method="bicubic", antialias=True) | central_crop(', told(preprocessor_config=shorter))
        # One number is the shorter side for CLIP, and a square for others.
        for kind, op in (("CLIPFeatureExtractor", "resize_small(32"), ("ViTFeatureExtractor", "resize(32")):
            self.assertIn(f"| {op},", told(preprocessor_config={**means, "feature_extractor_type": kind, "size": 32}))
        # A table of 32 pixels beside a preparation for 16
        self.assertIn("| resize_small(40, ", told(preprocessor_config={
            **means, "size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}))
        # The printed ops work as they are.
        other = {"model_cfg": {"vision_cfg": {"image_size": 32}}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": HALF}}
        ops = told(open_clip_config=other)
        self.assertIn("antialias=True) | central_crop(32) | normalize(mean=[0.1, 0.2, 0.3], std=[0.5, 0.5, 0.5])", ops)
        ops = ops.replace("| ...", '| keep("image", "label")')
        self.features(self.folder_of("prepared", open_clip_config=other), f"data.train.preprocess='{ops}'")
        self.assertNotIn("images had mean", self.output)

    def test_convolutional_trunks(self):
        convs = harness.SOURCE + "/tests/data/convs/"
        for name, want in (("resnet18", {"kind": "resnet", "depth": 18, "width": 4}),
                           ("wide_resnet50", {"kind": "resnet", "depth": 50, "width": 2, "width_per_group": 128}),
                           ("resnext50", {"kind": "resnet", "depth": 50, "width": 2, "groups": 4, "width_per_group": 32}),
                           ("convnext", {"kind": "convnext", "depths": [1, 1, 2, 1], "widths": [8, 12, 16, 20]})):
            deck = self.weights(f"{convs}{name}.safetensors", "family   torchvision")
            self.assertEqual(deck["model"]["trunk"], want)


if __name__ == "__main__":
    harness.main()
