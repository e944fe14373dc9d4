# SPDX-License-Identifier: Apache-2.0
"""Computes parts of the published ViT in double, from its parameters by path (NumPy)."""
import numpy as np


def layer_norm(p, path, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * p[path + "/scale"] + p[path + "/bias"]


def attention(p, path, queries, memory):
    q, k, v = (np.einsum("ble,ehd->blhd", x, p[f"{path}/{name}/kernel"]) + p[f"{path}/{name}/bias"]
               for name, x in (("query", queries), ("key", memory), ("value", memory)))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd,hde->bqe", weights, v, p[path + "/out/kernel"]) + p[path + "/out/bias"]


def mlp(p, path, x):
    h = x @ p[path + "/Dense_0/kernel"] + p[path + "/Dense_0/bias"]
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return h @ p[path + "/Dense_1/kernel"] + p[path + "/Dense_1/bias"]


def taps(p, images, class_token=False):
    """Computes the taps block00 and encoded of a ViT with one block on 16 x 16 images in patches of 8."""
    n = len(images)
    patches = images.reshape(n, 2, 8, 2, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 4, 192)
    x = patches @ p["encoder/embedding/kernel"].reshape(192, -1) + p["encoder/embedding/bias"] + p["encoder/pos_embedding"]
    if class_token:
        x = np.concatenate([np.tile(p["encoder/cls"], (n, 1, 1)), x], axis=1)
    block = "encoder/Transformer/encoderblock_0"
    y = layer_norm(p, block + "/LayerNorm_0", x)
    x = x + attention(p, block + "/MultiHeadDotProductAttention_0", y, y)
    x = x + mlp(p, block + "/MlpBlock_0", layer_norm(p, block + "/LayerNorm_1", x))
    return {"block00": x, "encoded": layer_norm(p, "encoder/Transformer/encoder_norm", x)}
