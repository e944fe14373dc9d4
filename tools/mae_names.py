# SPDX-License-Identifier: Apache-2.0
"""A masked autoencoder of a checkpoint, with the names of facebookresearch/mae. Not a tool itself."""
import re

import numpy as np

from console import Failure
from vit_names import PARTS, TABLES, Timm, WithTable

ROOT, TABLE = "decoder/", "decoder/pos_embedding"
NAMES = {"mask_token": ["decoder/mask_token"], "decoder_pos_embed": [TABLE],
         **{f"decoder_{theirs}.{kind}": [f"{ROOT}{part}/{own}"] for theirs, part in (("embed", "embed"), ("pred", "pixels"))
            for kind, own in PARTS},
         **{"decoder_" + name: [path.replace("encoder/", ROOT, 1) for path in paths] for name, paths in Timm.NAMES.items()
            if name.startswith(("blocks.", "norm."))}}


class Mae(Timm):
    program, model = "mae", "the published masked autoencoder"

    def __init__(self, weights):
        if "decoder/mask_token" not in weights.places:
            raise Failure(f"{weights.path} holds no masked autoencoder (decoder/mask_token): leave out --names mae")
        super().__init__(weights)
        side, width = self.facts["size"] // self.facts["patch"], weights.shape("decoder/mask_token")[2]
        table = np.concatenate([np.zeros((1, 1, width), np.float32), TABLES["sincos2d_mae"](side, side, width)], 1)
        self.weights = WithTable(self.weights, TABLE, table)
        self.decoder_depth = len({found[1] for path in weights.places if (found := re.match(r"decoder/.*encoderblock_(\d+)/", path))})
        for name, paths in NAMES.items():
            for block in range(self.decoder_depth) if "{}" in name else [0]:
                own = [path.format(block) for path in paths]
                if all(path in self.weights.places for path in own):
                    self.places[name.format(block)] = own
        self.left_out = []
        hidden = self.weights.shape("decoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel")[1]
        if self.facts["gelu"] != "erf" or self.facts["gated"] or hidden * self.facts["width"] != self.facts["mlp"] * width:
            raise Failure(f"{weights.path}: {self.model} has MLPs with the exact GELU, and equal ratios of widths in encoder and decoder: "
                          "train with gelu = \"erf\" and decoder.mlp = 0, or take --names timm for the encoder alone")

    def hint(self):
        f, decoder = self.facts, self.weights.deck()["model"]["decoder"]
        given = {"img_size": f["size"], "patch_size": f["patch"], "embed_dim": f["width"], "depth": f["depth"], "num_heads": f["heads"],
                 "decoder_embed_dim": decoder["width"], "decoder_depth": self.decoder_depth, "decoder_num_heads": decoder["heads"],
                 "mlp_ratio": f["mlp"] / f["width"], "norm_pix_loss": self.weights.deck()["model"]["normalize_pixels"]}
        given = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"models_mae.MaskedAutoencoderViT({given}, norm_layer=functools.partial(torch.nn.LayerNorm, eps={f['epsilon']!r}))"
