# SPDX-License-Identifier: Apache-2.0
"""The two towers of a checkpoint of pairs, with the names of open_clip, and the settings of the model there. Not a tool itself.

open_clip has three kinds of image towers that fit: a ViT of its own with a class token, a model of timm by its name, and a model of timm
by a folder.
"""
import numpy as np

from lacking import Lacking
from torchvision_names import Torchvision, options_of
from vit_names import (BLOCK, HEADED, PARTS, POSITIONS, PRE_NORM, QKV, Vit, block_names, describe, facts_of_vit, ratio_of, timm,
                       turned_layer)

RESBLOCKS = block_names("transformer.resblocks.{}.", ("ln_1", "ln_2"), ("attn.out_proj", "mlp.c_fc", "mlp.c_proj")) | {
    f"transformer.resblocks.{{}}.attn.in_proj_{kind}": [f"{HEADED}{part}/{own}" for part in QKV] for kind, own in PARTS}
# Image towers of timm that have a name: {(size, patch): (gelu, sides of images)}. `gap` ones have the same sizes.
SIZES = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096), "so400m": (1152, 27, 16, 4304), "giantopt": (1536, 40, 16, 6144)}
NAMED = {("base", 32): {256: "tanh"}, ("base", 16): {224: "erf", 256: "erf", 384: "erf", 512: "erf"},
         ("large", 16): {256: "erf", 384: "erf", 512: "tanh"}, ("so400m", 14): {224: "erf", 378: "erf"},
         ("so400m", 16): {256: "tanh", 384: "tanh", 512: "tanh"}, ("giantopt", 16): {256: "tanh", 384: "tanh"}}
# (depth, groups, width of a group): timm's name of a ResNet
RESNETS = {**{(depth, 1, 64): f"resnet{depth}" for depth in (18, 34, 50, 101, 152, 200)}, (50, 1, 128): "wide_resnet50_2",
           (101, 1, 128): "wide_resnet101_2", (50, 32, 4): "resnext50_32x4d", (101, 32, 4): "resnext101_32x4d",
           (101, 32, 8): "resnext101_32x8d"}


class Texts:
    """The tower of texts."""

    NAMES = {
        "token_embedding.weight": ["txt/Embed_0/embedding"],
        "positional_embedding": ["txt/pos_embedding"],
        **{name: [path.replace("encoder/Transformer/", "txt/Encoder_0/") for path in paths] for name, paths in RESBLOCKS.items()},
        "ln_final.weight": ["txt/Encoder_0/encoder_norm/scale"],
        "ln_final.bias": ["txt/Encoder_0/encoder_norm/bias"],
        "text_projection.weight": ["txt/head/kernel"],
        "text_projection.bias": ["txt/head/bias"],
    }

    def __init__(self, weights, model):
        self.weights, self.options, self.seq_len, self.vocabulary = weights, model["text"], model["seq_len"], model["vocab_size"]
        if self.options["pool"] not in ("last", "first"):
            raise Lacking(f"{weights.path}: open_clip makes a text's vector of its \"last\" or \"first\" token alone, and "
                          f"model.text.pool is \"{self.options['pool']}\"")
        self.places = {name.format(block): [path.format(block) for path in paths] for name, paths in self.NAMES.items()
                       for block in (range(self.options["depth"]) if "{}" in name else [0])}

    def type_of(self, name):
        return self.weights.type_of(self.places[name][0])

    @staticmethod
    def turned(path, values):
        if path == "txt/pos_embedding":
            return values[0]
        return values if path == "txt/Embed_0/embedding" else turned_layer(path, values)

    def shape(self, name):
        return list(self.values(name).shape)

    def values(self, name):
        return np.ascontiguousarray(np.concatenate([self.turned(path, self.weights.values(path)) for path in self.places[name]]))

    def settings(self):
        """Returns text_cfg. The blocks are those of a ViT of big_vision."""
        o = self.options
        return {"context_length": self.seq_len, "vocab_size": self.vocabulary, "width": o["width"], "heads": o["heads"],
                "layers": o["depth"], "mlp_ratio": ratio_of(o["width"], o["mlp"]), "no_causal_mask": True, "proj_bias": True,
                "pool_type": o["pool"], "norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}}


class OwnVit(Vit):
    """open_clip's own ViT, without a bias of patches."""

    program, prefix = "open_clip", ""
    NAMES = {
        "conv1.weight": ["encoder/embedding/kernel"],
        "class_embedding": ["encoder/cls"],
        "positional_embedding": [POSITIONS],
        "ln_pre.weight": [PRE_NORM + "scale"],
        "ln_pre.bias": [PRE_NORM + "bias"],
        **RESBLOCKS,
        "transformer.resblocks.{}.ls_1.gamma": [BLOCK + "LayerScale_0/scale"],
        "transformer.resblocks.{}.ls_2.gamma": [BLOCK + "LayerScale_1/scale"],
        "ln_post.weight": ["encoder/Transformer/encoder_norm/scale"],
        "ln_post.bias": ["encoder/Transformer/encoder_norm/bias"],
    }

    @staticmethod
    def fits(weights):
        if "encoder/cls" not in weights.places or "encoder/registers" in weights.places or POSITIONS not in weights.places:
            return False
        facts = facts_of_vit(weights)
        biased = "head/bias" in weights.places and weights.values("head/bias").any()
        # A quick GELU would be that of the texts as well.
        return not facts["gated"] and facts["gelu"] != "quick" and not biased

    def lacks_patch_bias(self):
        return True

    def turned(self, path, values):
        if path == "encoder/cls":
            return values.reshape(-1)
        values = super().turned(path, values)
        return values[0] if path == POSITIONS else values

    def settings(self):
        f = self.facts
        given = {"image_size": f["size"], "layers": f["depth"], "width": f["width"], "head_width": f["width"] // f["heads"],
                 "patch_size": f["patch"], "mlp_ratio": ratio_of(f["width"], f["mlp"]), "pool_type": "tok",
                 "norm_kwargs": {"eps": f["epsilon"]}, "no_ln_pre": PRE_NORM + "scale" not in self.weights.places}
        given |= {"ls_init_value": 1e-5} if f["scaled"] else {}
        return given | ({"act_kwargs": {"approximate": "tanh"}} if f["gelu"] == "tanh" else {})


def name_of_vit(facts):
    """Returns timm's name of a ViT of these sizes for SigLIP, or ""."""
    sizes = tuple(facts[key] for key in ("width", "depth", "heads", "mlp"))
    size = next((name for name, those in SIZES.items() if those == sizes), None)
    named = NAMED.get((size, facts["patch"]), {}).get(facts["size"])
    plain = not (facts["token"] or facts["registers"] or facts["scaled"] or facts["gated"] or facts["rotary"] or facts["normed"])
    if named != facts["gelu"] or not plain or facts["epsilon"] != 1e-6:
        return ""
    return f"vit_{size}_patch{facts['patch']}_siglip_{'' if facts['pooled'] else 'gap_'}{facts['size']}"


class TimmTower:
    """A model of timm. `folder`: open_clip makes it by a folder of its own, since no name stands for it."""

    prefix = "trunk."

    def __init__(self, weights):
        options = options_of(weights)
        if options.get("kind") == "convnext":
            raise Lacking(f"{weights.path}: open_clip has timm's ConvNeXts alone, whose tensors have other names")
        self.resnet = options.get("kind") == "resnet"
        self.view = Torchvision(weights) if self.resnet else timm(weights)
        self.type_of, self.shape, self.values = self.view.type_of, self.view.shape, self.view.values
        self.places = {name: paths for name, paths in self.view.places.items() if not name.startswith(("head.", "fc."))}
        if self.resnet:
            self.view.call()  # refuses what timm cannot express either
            self.name = RESNETS.get((options["depth"], options["groups"], options["width_per_group"]))
            if self.name is None or options["norm"] != "batch":
                raise Lacking(f"{weights.path}: no name of timm stands for this ResNet")
            return
        self.facts = self.view.facts = {**self.view.facts, "classes": 0}
        self.name = name_of_vit(self.facts)

    @property
    def pool(self):
        if self.resnet:
            return "avg"
        return "token" if self.facts["token"] else "map" if self.facts["pooled"] else "avg"


class OpenClip:
    program, model = "open_clip", "open_clip's pair of towers"

    def __init__(self, weights):
        self.weights, self.path, self.step, self.name = weights, weights.path, weights.step, weights.name
        self.options = weights.deck().get("model", {})
        if self.options.get("kind") != "siglip":
            raise Lacking(f"{self.path}: open_clip opens pairs of towers for images and texts alone (model.kind = \"siglip\"), and this "
                          f"model is a {self.options.get('kind')}")
        self.texts = Texts(weights, self.options)
        vit = self.options["trunk"]["kind"] == "vit"
        self.tower = OwnVit(weights) if vit and OwnVit.fits(weights) else TimmTower(weights)
        self.own = isinstance(self.tower, OwnVit)
        self.facts = facts_of_vit(weights) if vit else None
        self.size = self.facts["size"] if vit else self.options["image_size"]
        self.dim = weights.shape("txt/head/kernel")[1]
        self.classes, self.left_out = 0, []
        self.more = {"logit_scale": weights.values("t").reshape(()), "logit_bias": weights.values("b").reshape(())} | self.head()
        parts = {"text.": self.texts, "visual." + self.tower.prefix: self.tower}
        self.sources = {before + name: (part, name) for before, part in parts.items() for name in part.places}
        self.places = [*self.more, *self.sources]

    def head(self):
        """Returns the product behind the image tower."""
        if "head/kernel" in self.weights.places:
            kernel = self.weights.values("head/kernel")
            return {"visual.proj": kernel} if self.own else {"visual.head.proj.weight": np.ascontiguousarray(kernel.T),
                                                             "visual.head.proj.bias": self.weights.values("head/bias")}
        return {"visual.proj": np.eye(self.dim, dtype=np.float32)} if self.own else {}

    def type_of(self, name):
        return "f32" if name in self.more else self.sources[name][0].type_of(self.sources[name][1])

    def shape(self, name):
        return list(self.more[name].shape) if name in self.more else self.sources[name][0].shape(self.sources[name][1])

    def values(self, name):
        return self.more[name] if name in self.more else self.sources[name][0].values(self.sources[name][1])

    @property
    def description(self):
        o = self.texts.options
        images = describe(self.facts) if self.facts else self.tower.view.description
        return (f"Two towers whose vectors are compared (SigLIP). Images: {images}. Texts: {self.texts.seq_len} tokens of "
                f"{self.texts.vocabulary:,}, depth {o['depth']}, width {o['width']}, {o['heads']} heads")

    def folder(self):
        """Returns the view of timm whose settings make the image tower, if no name stands for it; else None."""
        return None if self.own or self.tower.name else self.tower.view

    def config(self, tower):
        """Returns model_cfg. tower: timm's name of the image tower."""
        vision = self.tower.settings() if self.own else {
            "image_size": self.size, "timm_model_name": tower, "timm_model_pretrained": False, "timm_pool": self.tower.pool,
            "timm_proj": "linear" if "visual.head.proj.weight" in self.more else "none", "timm_proj_bias": True}
        return {"embed_dim": self.dim, "init_logit_bias": float(self.more["logit_bias"]), "custom_text": True, "vision_cfg": vision,
                "text_cfg": self.texts.settings()}
