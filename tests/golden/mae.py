#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records a small masked autoencoder of the published code:   tests/golden/mae.py CHECKOUT

CHECKOUT is facebookresearch/mae at commit efb2a8062c206524e35e47d04501ed4f544c0ae8. Writes mae/case.h5 beside this file, and the weights
with the published names, tests/data/vits/mae.pth. The recorded files were made with PyTorch 1.13 and timm 1.0.31; the code ran in f64.
"""
import functools
import os
import sys

import h5py
import numpy as np
import timm.models.vision_transformer
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
np.float = float  # old names and arguments that the published code uses
BLOCK = timm.models.vision_transformer.Block
timm.models.vision_transformer.Block = lambda *args, qk_scale, **options: BLOCK(*args, **options)
sys.path.insert(0, sys.argv[1])
import models_mae  # pylint: disable=wrong-import-position

SIZES = {"image_size": 32, "patch": 8, "depth": 2, "width": 16, "heads": 2, "mlp": 64,
         "decoder_depth": 1, "decoder_width": 12, "decoder_heads": 3}
EXAMPLES, RATIO = 4, 0.7


def made_model(normalized):
    torch.manual_seed(0)
    model = models_mae.MaskedAutoencoderViT(
        img_size=SIZES["image_size"], patch_size=SIZES["patch"], embed_dim=SIZES["width"], depth=SIZES["depth"], num_heads=SIZES["heads"],
        decoder_embed_dim=SIZES["decoder_width"], decoder_depth=SIZES["decoder_depth"], decoder_num_heads=SIZES["decoder_heads"],
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6), norm_pix_loss=normalized)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:  # many begin as 0 or 1; numbers of f16 make small files
                p.add_(0.2 * torch.randn_like(p))
                p.copy_(p.half().float())
    return model.double()


def our_block(name, rest, value, heads):
    """Returns {our path: values} of a tensor of a block."""
    part, kind = rest.rsplit(".", 1)
    if part.startswith("norm"):
        return {f"{name}LayerNorm_{int(part[-1]) - 1}/{'scale' if kind == 'weight' else 'bias'}": value}
    own = "kernel" if kind == "weight" else "bias"
    if part == "attn.qkv":
        path, out = name + "MultiHeadDotProductAttention_0/{}/" + own, {}
        for of, values in zip(("query", "key", "value"), np.split(value, 3)):
            out[path.format(of)] = values.T.reshape(-1, heads, values.shape[0] // heads) if kind == "weight" else values.reshape(heads, -1)
        return out
    if part == "attn.proj":
        turned = value.T.reshape(heads, -1, value.shape[0]) if kind == "weight" else value
        return {f"{name}MultiHeadDotProductAttention_0/out/{own}": turned}
    return {f"{name}MlpBlock_0/Dense_{int(part[-1]) - 1}/{own}": value.T}


def ours(name, value):
    """Returns {our path: values} of a tensor, with our shapes."""
    for root, to, heads in (("blocks.", "encoder/", SIZES["heads"]), ("decoder_blocks.", "decoder/", SIZES["decoder_heads"])):
        if name.startswith(root):
            block, rest = name.removeprefix(root).split(".", 1)
            return our_block(f"{to}Transformer/encoderblock_{block}/", rest, value, heads)
    for root, to in (("norm.", "encoder/"), ("decoder_norm.", "decoder/")):
        if name.startswith(root):
            return {f"{to}Transformer/encoder_norm/{'scale' if name.endswith('weight') else 'bias'}": value}
    path = {"cls_token": "encoder/cls", "mask_token": "decoder/mask_token", "pos_embed": "encoder/pos_embedding",
            "decoder_pos_embed": "decoder/pos_embedding", "patch_embed.proj.weight": "encoder/embedding/kernel",
            "patch_embed.proj.bias": "encoder/embedding/bias", "decoder_embed.weight": "decoder/embed/kernel",
            "decoder_embed.bias": "decoder/embed/bias", "decoder_pred.weight": "decoder/pixels/kernel",
            "decoder_pred.bias": "decoder/pixels/bias"}[name]
    if path.endswith("pos_embedding"):
        assert not value[:, 0].any(), "the class token has no position"
        return {path: value[:, 1:]}
    if name == "patch_embed.proj.weight":
        return {path: value.transpose(2, 3, 1, 0)}
    return {path: value.T if path.endswith("kernel") else value}


def store(group, name, values, smallest=0.0):
    values = np.asarray(values)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    data = group.create_dataset(name, data=values)
    if values.dtype == np.float32:
        data.attrs["tol"] = max(2e-5 * float(np.abs(values).max()), smallest)


def main():
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (EXAMPLES, SIZES["image_size"], SIZES["image_size"], 3), dtype=np.uint8)
    pixels[0, :8, :8] = 77  # a patch of one colour, whose variance is 0
    images = torch.from_numpy(pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)).permute(0, 3, 1, 2).double()
    with h5py.File(f"{HERE}/mae/case.h5", "w", libver="latest") as f:
        f.attrs.update({**SIZES, "mask_ratio": RATIO})
        f.create_dataset("image", data=pixels)
        for normalized in (True, False):
            model = made_model(normalized)
            torch.manual_seed(1)
            loss, predicted, mask = model(images, RATIO)
            loss.backward()
            masked = mask.bool()
            case = f.create_group("normalized" if normalized else "plain")
            store(case, "loss", loss.detach().numpy())
            store(case, "pixels", predicted.detach()[masked].reshape(EXAMPLES, -1, predicted.shape[2]).numpy())
            kept = np.stack([np.flatnonzero(~row) for row in masked.numpy()]).astype(np.int32)
            if normalized:
                store(f, "kept", kept)
            assert (f["kept"][:] == kept).all()
            for name, p in model.named_parameters():
                if normalized:
                    for path, values in ours(name, p.detach().numpy()).items():
                        store(f, "params/" + path, values)
                if p.requires_grad:
                    for path, values in ours(name, p.grad.numpy()).items():
                        store(case, "grads/" + path, values, 1e-6)
        with torch.no_grad():
            tokens, _, order = model.forward_encoder(images, 0)
            patches = torch.gather(tokens[:, 1:], 1, order.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
            store(f, "encoded", torch.cat([tokens[:, :1], patches], 1).numpy())
        torch.save({"model": {name: value.float() if "pos_embed" in name else value.half() for name, value in model.state_dict().items()}},
                   f"{HERE}/../data/vits/mae.pth")


main()
