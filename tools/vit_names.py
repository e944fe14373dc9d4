# SPDX-License-Identifier: Apache-2.0
"""A ViT of a checkpoint, with the names and shapes of other libraries. src/checkpoint/foreign_vit.cpp reads them."""
import re

import numpy as np

from console import Failure

BLOCK = "encoder/Transformer/encoderblock_{}/"
HEADED = BLOCK + "MultiHeadDotProductAttention_0/"
QKV = ("query", "key", "value")
POOL = "encoder/MAPHead_0/"


def block_names(prefix, norms, dense):
    """Returns {library's name: our path} of a block without its query, key and value: two norms, three products."""
    ours = dict(zip(norms, ("LayerNorm_0/", "LayerNorm_1/")))
    names = {}
    for theirs, own in ours.items():
        names |= {f"{prefix}{theirs}.weight": [BLOCK + own + "scale"], f"{prefix}{theirs}.bias": [BLOCK + own + "bias"]}
    for theirs, own in zip(dense, ("MultiHeadDotProductAttention_0/out/", "MlpBlock_0/Dense_0/", "MlpBlock_0/Dense_1/")):
        names |= {f"{prefix}{theirs}.weight": [BLOCK + own + "kernel"], f"{prefix}{theirs}.bias": [BLOCK + own + "bias"]}
    return names


def block_numbers(weights):
    """Returns the numbers of the blocks of the ViT that the weights hold."""
    return sorted({int(found[1]) for path in weights.places if (found := re.match(BLOCK.format(r"(\d+)"), path))})


def facts_of_vit(weights):
    """Returns the sizes of the ViT that the weights hold, and what their deck says about it."""
    patch, _, _, width = weights.shape("encoder/embedding/kernel")
    model = weights.deck().get("model", {})
    options = model.get("trunk") or model.get("encoder") or {}
    table = weights.shape("encoder/pos_embedding")[1] if "encoder/pos_embedding" in weights.places else 0
    return {"patch": patch, "width": width, "depth": len(block_numbers(weights)),
            "heads": weights.shape(HEADED.format(0) + "query/kernel")[1],
            "mlp": weights.shape(BLOCK.format(0) + "MlpBlock_0/Dense_0/kernel")[1],
            "size": round(table**0.5) * patch or model.get("image_size"),
            "token": "encoder/cls" in weights.places, "pooled": POOL + "probe" in weights.places,
            "scaled": BLOCK.format(0) + "LayerScale_0/scale" in weights.places,
            "registers": weights.shape("encoder/registers")[1] if "encoder/registers" in weights.places else 0,
            "gelu": options.get("gelu", "tanh"), "epsilon": options.get("norm_epsilon", 1e-6),
            "classes": weights.shape("head/kernel")[1] if "head/kernel" in weights.places else 0}


def describe(facts):
    return (f"A ViT of depth {facts['depth']}, width {facts['width']}, {facts['heads']} heads, patches of {facts['patch']} pixels, for "
            f"images of {facts['size']} x {facts['size']}")


class Vit:
    """Has the tensors of some weights under a library's names. A class token gets a position of zeros, which ours lacks; with
    registers neither has one.

    A library is a subclass with NAMES: the library's name and our paths, which are joined. {} is the number of a block.
    """

    program, NAMES = "", {}

    def __init__(self, weights):
        self.weights, self.path, self.step, self.name, self.places = weights, weights.path, weights.step, weights.name, {}
        if "encoder/embedding/kernel" not in weights.places:
            raise Failure(f"{weights.path} holds no ViT (encoder/embedding/kernel): leave out --names {self.program}")
        if "encoder/pos_embedding" not in weights.places:
            raise Failure(f"{weights.path} has the fixed positions of posemb = \"sincos2d\", which {self.model} lacks")
        blocks = block_numbers(weights)
        for name, paths in self.NAMES.items():
            for block in blocks if "{}" in name else [0]:
                own = [path.format(block) for path in paths]
                if all(path in weights.places for path in own):
                    self.places[name.format(block)] = own
        used = {path for own in self.places.values() for path in own}
        self.left_out = [path for path in weights.places if path not in used]
        if lost := [path for path in self.left_out if path.startswith("encoder/")]:
            raise Failure(f"{weights.path}: {lost[0]} has no place in {self.model}")
        self.facts = facts_of_vit(weights)

    @property
    def model(self):
        return f"{self.program}'s ViT"

    @property
    def size(self):
        return self.facts["size"]

    @property
    def classes(self):
        return self.facts["classes"]

    @property
    def description(self):
        return describe(self.facts)

    def type_of(self, name):
        return self.weights.type_of(self.places[name][0])

    def turned(self, path, values):
        """Returns ours as PyTorch has it: matrices [out, in], convolutions [out, channels, height, width]."""
        if path == "encoder/embedding/kernel":
            return values.transpose(3, 2, 0, 1)
        if path == "encoder/pos_embedding":
            first = np.zeros((1, 1, values.shape[2]), values.dtype)
            return np.concatenate([first, values], 1) if self.facts["token"] and not self.facts["registers"] else values
        if "/MultiHeadDotProductAttention_0/" in path:
            if path.endswith("/bias"):
                return values.reshape(-1)
            joined = values.shape[0] * values.shape[1] if "/out/" in path else values.shape[0]
            return values.reshape(joined, -1).T
        return values.T if values.ndim == 2 else values

    def shape(self, name):
        parts = [self.turned(path, np.broadcast_to(np.int8(0), self.weights.shape(path))).shape for path in self.places[name]]
        return [sum(part[0] for part in parts), *parts[0][1:]]

    def values(self, name):
        parts = [self.turned(path, self.weights.values(path)) for path in self.places[name]]
        return np.ascontiguousarray(np.concatenate(parts) if len(parts) > 1 else parts[0])


GELUS = {"tanh": "gelu_tanh", "quick": "quick_gelu"}  # timm's names of those that are not exact


class Timm(Vit):
    program = "timm"
    NAMES = {
        "patch_embed.proj.weight": ["encoder/embedding/kernel"],
        "patch_embed.proj.bias": ["encoder/embedding/bias"],
        "cls_token": ["encoder/cls"],
        "reg_token": ["encoder/registers"],
        "pos_embed": ["encoder/pos_embedding"],
        **block_names("blocks.{}.", ("norm1", "norm2"), ("attn.proj", "mlp.fc1", "mlp.fc2")),
        "blocks.{}.attn.qkv.weight": [HEADED + part + "/kernel" for part in QKV],
        "blocks.{}.attn.qkv.bias": [HEADED + part + "/bias" for part in QKV],
        "blocks.{}.ls1.gamma": [BLOCK + "LayerScale_0/scale"],
        "blocks.{}.ls2.gamma": [BLOCK + "LayerScale_1/scale"],
        "attn_pool.latent": [POOL + "probe"],
        **{f"attn_pool.{theirs}.{kind}": [f"{POOL}MultiHeadDotProductAttention_0/{part}/{own}" for part in parts]
           for theirs, parts in (("q", QKV[:1]), ("kv", QKV[1:]), ("proj", ("out",)))
           for kind, own in (("weight", "kernel"), ("bias", "bias"))},
        "attn_pool.norm.weight": [POOL + "LayerNorm_0/scale"],
        "attn_pool.norm.bias": [POOL + "LayerNorm_0/bias"],
        **{f"attn_pool.mlp.{theirs}.{kind}": [f"{POOL}MlpBlock_0/{part}/{own}"]
           for theirs, part in (("fc1", "Dense_0"), ("fc2", "Dense_1")) for kind, own in (("weight", "kernel"), ("bias", "bias"))},
        "norm.weight": ["encoder/Transformer/encoder_norm/scale"],
        "norm.bias": ["encoder/Transformer/encoder_norm/bias"],
        "head.weight": ["head/kernel"],
        "head.bias": ["head/bias"],
    }

    def arguments(self):
        """Returns the arguments of timm's VisionTransformer, without an epsilon of norms that is not timm's."""
        f = self.facts
        given = {"img_size": f["size"], "patch_size": f["patch"], "embed_dim": f["width"], "depth": f["depth"], "num_heads": f["heads"],
                 "mlp_ratio": f["mlp"] / f["width"], "num_classes": f["classes"]}
        if not f["token"]:
            given |= {"class_token": False, **({"global_pool": "map"} if f["pooled"] else {"global_pool": "avg", "fc_norm": False})}
        if f["registers"]:
            given |= {"reg_tokens": f["registers"], "no_embed_class": True}
        if f["scaled"]:
            given |= {"init_values": 1e-5}
        return given | ({"act_layer": GELUS[f["gelu"]]} if f["gelu"] != "erf" else {})

    def hint(self):
        """Returns the call that makes a model for these weights."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        epsilon = self.facts["epsilon"]
        given += f", norm_layer=functools.partial(torch.nn.LayerNorm, eps={epsilon!r})" if epsilon != 1e-6 else ""
        return f"timm.models.vision_transformer.VisionTransformer({given})"


class Transformers(Vit):
    program = "transformers"
    NAMES = {
        "vit.embeddings.patch_embeddings.projection.weight": ["encoder/embedding/kernel"],
        "vit.embeddings.patch_embeddings.projection.bias": ["encoder/embedding/bias"],
        "vit.embeddings.cls_token": ["encoder/cls"],
        "vit.embeddings.position_embeddings": ["encoder/pos_embedding"],
        **block_names("vit.encoder.layer.{}.", ("layernorm_before", "layernorm_after"),
                      ("attention.output.dense", "intermediate.dense", "output.dense")),
        **{f"vit.encoder.layer.{{}}.attention.attention.{part}.{kind}": [HEADED + f"{part}/{own}"]
           for part in QKV for kind, own in (("weight", "kernel"), ("bias", "bias"))},
        "vit.layernorm.weight": ["encoder/Transformer/encoder_norm/scale"],
        "vit.layernorm.bias": ["encoder/Transformer/encoder_norm/bias"],
        "classifier.weight": ["head/kernel"],
        "classifier.bias": ["head/bias"],
    }

    def __init__(self, weights):
        super().__init__(weights)
        if not self.facts["token"]:
            raise Failure(f"{self.path}: transformers' ViT has a class token, and this one has none: export it for timm")

    def hint(self):
        return f"transformers.{self.architecture()}(transformers.ViTConfig(**{self.settings()!r}))"

    def architecture(self):
        return "ViTForImageClassification" if self.facts["classes"] else "ViTModel"

    def settings(self):
        """Returns the arguments of transformers' ViTConfig."""
        f = self.facts
        return {"image_size": f["size"], "patch_size": f["patch"], "hidden_size": f["width"], "num_hidden_layers": f["depth"],
                "num_attention_heads": f["heads"], "intermediate_size": f["mlp"], "layer_norm_eps": f["epsilon"],
                "hidden_act": {"tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}.get(f["gelu"], "gelu"), "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0, **({"num_labels": f["classes"]} if f["classes"] else {})}
