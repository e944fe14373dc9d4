#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captions images greedily with the exported model in this folder: python3 torch_captioner.py IMAGE..."""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image


class Captioner:
    def __init__(self, folder):
        with open(f"{folder}/config.json", encoding="utf-8") as config, open(f"{folder}/model.safetensors", "rb") as file:
            self.config, tensors = json.load(config), json.loads(file.read(int.from_bytes(file.read(8), "little")))
            data = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
        self.w = {name: data[t["data_offsets"][0] // 4:t["data_offsets"][1] // 4].reshape(t["shape"])
                  for name, t in tensors.items() if name != "__metadata__"}

    def dense(self, x, at):  # kernel [in, out], [in, heads, size] or [heads, size, out]
        y = x @ self.w[at + "/kernel"].reshape(x.shape[-1], -1)
        return y + self.w[at + "/bias"].flatten() if at + "/bias" in self.w else y

    def norm(self, x, at):
        return F.layer_norm(x, x.shape[-1:], self.w[at + "/scale"], self.w.get(at + "/bias"), 1e-6)

    def attend(self, x, memory, at, causal=False):
        q, k, v = (self.dense(t, f"{at}/{part}").unflatten(-1, self.w[at + "/query/kernel"].shape[1:]).transpose(1, 2)
                   for t, part in ((x, "query"), (memory, "key"), (memory, "value")))
        return self.dense(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2), at + "/out")

    def mlp(self, x, at):
        return self.dense(F.gelu(self.dense(x, at + "/Dense_0"), approximate="tanh"), at + "/Dense_1")

    def encode(self, images):  # f32 [B, H, W, 3] -> [B, patches, width]
        p = self.w["encoder/embedding/kernel"].shape[0]
        x = images.unfold(1, p, p).unfold(2, p, p).permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
        x = self.dense(x, "encoder/embedding") + self.w["encoder/pos_embedding"]
        for at in (f"encoder/Transformer/encoderblock_{i}" for i in range(self.config["encoder"]["depth"])):
            y = self.norm(x, at + "/LayerNorm_0")
            x = x + self.attend(y, y, at + "/MultiHeadDotProductAttention_0")
            x = x + self.mlp(self.norm(x, at + "/LayerNorm_1"), at + "/MlpBlock_0")
        return self.norm(x, "encoder/Transformer/encoder_norm")

    def decode(self, encoded, ids):  # i64 [B, L], which begin with 0 -> logits of the next tokens [B, L, V]
        x = self.w["decoder/EmbedTargets/embedding"][ids] + self.w["pos_embedding_decoder"][:, :ids.shape[1]]
        for at in (f"decoder/EncDecBlock{i}" for i in range(self.config["decoder"]["depth"])):
            y = self.norm(x, at + "/LayerNorm1")
            x = x + self.attend(y, y, at + "/SelfAttn", causal=True)
            x = x + self.attend(self.norm(x, at + "/LayerNorm2"), encoded, at + "/CrossAttn")
            x = x + self.mlp(self.norm(x, at + "/LayerNorm3"), at + "/MLP")
        return self.dense(self.norm(x, "decoder/LayerNorm"), "decoder/LogitsDense")

    def caption(self, images):  # greedily: the most likely token at each position, until every caption has ended
        encoded, ids, ends = self.encode(images), torch.zeros(len(images), 1).long(), torch.tensor(self.config["end_ids"])
        while ids.shape[1] <= self.config["max_len"] and not torch.isin(ids[:, 1:], ends).any(1).all():
            ids = torch.cat([ids, self.decode(encoded, ids)[:, -1:].argmax(-1)], 1)
        return [self.text(row) for row in ids[:, 1:].tolist()]

    def text(self, ids):  # up to the end; the vocabulary holds texts, and bytes as numbers
        end = next((n for n, i in enumerate(ids) if i in self.config["end_ids"]), len(ids))
        pieces = (self.config["vocabulary"][i] for i in ids[:end])
        return b"".join(bytes([p]) if isinstance(p, int) else p.encode() for p in pieces).decode(errors="replace").removeprefix(" ")

    def image(self, path):  # f32 [H, W, 3], resized without antialiasing to whole grey levels, then scaled
        x, config = np.asarray(Image.open(path).convert("RGB"), np.float32), self.config["image"]
        for axis, size in ((1, config["width"]), (0, config["height"])):
            at = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(x.shape[axis] / size) - 0.5
            low, high = (x.take(np.clip(f(at).astype(int), 0, x.shape[axis] - 1), axis) for f in (np.floor, np.ceil))
            x = low + (high - low) * (at - np.floor(at)).reshape(-1, *(1,) * (2 - axis))
        in_min, in_max, vmin, vmax = config["value_range"]
        return torch.from_numpy(vmin + (np.floor(x) - in_min) / np.float32(in_max - in_min) * np.float32(vmax - vmin))


if __name__ == "__main__":
    captioner = Captioner(__file__.rpartition("/")[0] or ".")
    with torch.inference_mode():
        for name in sys.argv[1:]:
            print(name, captioner.caption(captioner.image(name)[None])[0], sep="\t")
