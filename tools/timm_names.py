# SPDX-License-Identifier: Apache-2.0
"""A ViT of a checkpoint, with the names and shapes of timm's VisionTransformer. src/checkpoint/foreign_vit.cpp reads them."""
import re

import numpy as np

from console import Failure

BLOCK = "encoder/Transformer/encoderblock_{}/"
HEADED = BLOCK + "MultiHeadDotProductAttention_0/"
# timm's name: our paths, which are joined. {} is the number of a block.
NAMES = {
    "patch_embed.proj.weight": ["encoder/embedding/kernel"],
    "patch_embed.proj.bias": ["encoder/embedding/bias"],
    "cls_token": ["encoder/cls"],
    "pos_embed": ["encoder/pos_embedding"],
    "blocks.{}.norm1.weight": [BLOCK + "LayerNorm_0/scale"],
    "blocks.{}.norm1.bias": [BLOCK + "LayerNorm_0/bias"],
    "blocks.{}.attn.qkv.weight": [HEADED + part + "/kernel" for part in ("query", "key", "value")],
    "blocks.{}.attn.qkv.bias": [HEADED + part + "/bias" for part in ("query", "key", "value")],
    "blocks.{}.attn.proj.weight": [HEADED + "out/kernel"],
    "blocks.{}.attn.proj.bias": [HEADED + "out/bias"],
    "blocks.{}.norm2.weight": [BLOCK + "LayerNorm_1/scale"],
    "blocks.{}.norm2.bias": [BLOCK + "LayerNorm_1/bias"],
    "blocks.{}.mlp.fc1.weight": [BLOCK + "MlpBlock_0/Dense_0/kernel"],
    "blocks.{}.mlp.fc1.bias": [BLOCK + "MlpBlock_0/Dense_0/bias"],
    "blocks.{}.mlp.fc2.weight": [BLOCK + "MlpBlock_0/Dense_1/kernel"],
    "blocks.{}.mlp.fc2.bias": [BLOCK + "MlpBlock_0/Dense_1/bias"],
    "norm.weight": ["encoder/Transformer/encoder_norm/scale"],
    "norm.bias": ["encoder/Transformer/encoder_norm/bias"],
    "head.weight": ["head/kernel"],
    "head.bias": ["head/bias"],
}


class Timm:
    """Has the tensors of some weights under timm's names. A class token gets a position of zeros, which ours lacks."""

    model = "timm's ViT"

    def __init__(self, weights):
        self.weights, self.path, self.step, self.name, self.places = weights, weights.path, weights.step, weights.name, {}
        if "encoder/embedding/kernel" not in weights.places:
            raise Failure(f"{weights.path} holds no ViT (encoder/embedding/kernel): leave out --names timm")
        if "encoder/pos_embedding" not in weights.places:
            raise Failure(f"{weights.path} has the fixed positions of posemb = \"sincos2d\", which timm's ViT lacks")
        blocks = {int(found[1]) for path in weights.places if (found := re.match(BLOCK.format(r"(\d+)"), path))}
        for name, paths in NAMES.items():
            for block in sorted(blocks) if "{}" in name else [0]:
                own = [path.format(block) for path in paths]
                if all(path in weights.places for path in own):
                    self.places[name.format(block)] = own
        used = {path for own in self.places.values() for path in own}
        self.left_out = [path for path in weights.places if path not in used]
        if lost := [path for path in self.left_out if path.startswith("encoder/")]:
            raise Failure(f"{weights.path}: {lost[0]} has no place in timm's ViT")

    def hint(self):
        """Returns the call that makes a model for these weights."""
        patch, _, _, width = self.weights.shape("encoder/embedding/kernel")
        heads = self.weights.shape(HEADED.format(0) + "query/kernel")[1]
        mlp = self.weights.shape(BLOCK.format(0) + "MlpBlock_0/Dense_0/kernel")[1]
        depth = sum(name.endswith(".norm1.bias") for name in self.places)
        side = round(self.weights.shape("encoder/pos_embedding")[1] ** 0.5) * patch
        model = self.weights.deck().get("model", {})
        options = model.get("trunk") or model.get("encoder") or {}
        token = "cls_token" in self.places
        more = "" if token else ", class_token=False, global_pool='avg', fc_norm=False"
        more += ", act_layer='gelu_tanh'" if options.get("gelu", "tanh") == "tanh" else ""
        epsilon = options.get("norm_epsilon", 1e-6)
        more += f", norm_layer=functools.partial(torch.nn.LayerNorm, eps={epsilon!r})" if epsilon != 1e-6 else ""
        classes = self.shape("head.weight")[0] if "head.weight" in self.places else 0
        return (f"timm.models.vision_transformer.VisionTransformer(img_size={side}, patch_size={patch}, embed_dim={width}, "
                f"depth={depth}, num_heads={heads}, mlp_ratio={mlp / width!r}, num_classes={classes}{more})")

    def type_of(self, name):
        return self.weights.type_of(self.places[name][0])

    def turned(self, name, values):
        """Returns ours as timm has it: matrices [out, in], convolutions [out, channels, height, width]."""
        if name == "patch_embed.proj.weight":
            return values.transpose(3, 2, 0, 1)
        if name == "pos_embed":
            first = np.zeros((1, 1, values.shape[2]), values.dtype)
            return np.concatenate([first, values], 1) if "cls_token" in self.places else values
        if ".attn." in name and name.endswith(".weight"):
            rows = values.shape[0] if "qkv" in name else values.shape[0] * values.shape[1]
            return values.reshape(rows, -1).T
        if ".attn." in name:
            return values.reshape(-1)
        return values.T if values.ndim == 2 else values

    def shape(self, name):
        parts = [self.turned(name, np.broadcast_to(np.int8(0), self.weights.shape(path))).shape for path in self.places[name]]
        return [sum(part[0] for part in parts), *parts[0][1:]]

    def values(self, name):
        return np.ascontiguousarray(np.concatenate([self.turned(name, self.weights.values(path)) for path in self.places[name]]))
