#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records a small masked autoencoder of the published code:   tests/golden/mae.py CHECKOUT

CHECKOUT is facebookresearch/mae at commit efb2a8062c206524e35e47d04501ed4f544c0ae8. Writes mae/case.h5 beside this file, and the weights
with the published names, tests/data/vits/mae.pth, and with those of transformers, transformers_mae_whole.safetensors. The recorded files
were made with PyTorch 1.13, timm 1.0.31 and transformers 4.48; the code ran in f64.
"""
import functools
import os
import sys

import h5py
import numpy as np
import timm.models.vision_transformer
import torch
import transformers
from safetensors.torch import save_file

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


def their_name(name):
    """Returns the name in transformers of a published one. Queries, keys and values are split."""
    if name.startswith(("cls_token", "pos_embed")):
        return "vit.embeddings." + name.replace("pos_embed", "position_embeddings")
    for begin, to in (("patch_embed.proj", "vit.embeddings.patch_embeddings.projection"), ("norm.", "vit.layernorm."),
                      ("blocks.", "vit.encoder.layer."), ("decoder_blocks.", "decoder.decoder_layers."),
                      ("mask_token", "decoder.mask_token"), ("decoder_", "decoder.decoder_")):
        if name.startswith(begin):
            name = to + name.removeprefix(begin)
            break
    for part, to in (("norm1", "layernorm_before"), ("norm2", "layernorm_after"), ("attn.proj", "attention.output.dense"),
                     ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")):
        name = name.replace(part, to)
    return name


def write_transformers(model, images, kept, pixels):
    """Writes the weights as transformers names them, after its model has predicted the same pixels with them."""
    state = {}
    for name, value in model.state_dict().items():
        if ".attn.qkv." in name:
            for part, values in zip(("query", "key", "value"), value.chunk(3)):
                state[their_name(name).replace("attn.qkv", "attention.attention." + part)] = values
        else:
            state[their_name(name)] = value
    theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(
        image_size=SIZES["image_size"], patch_size=SIZES["patch"], hidden_size=SIZES["width"], num_hidden_layers=SIZES["depth"],
        num_attention_heads=SIZES["heads"], intermediate_size=SIZES["mlp"], decoder_hidden_size=SIZES["decoder_width"],
        decoder_num_hidden_layers=SIZES["decoder_depth"], decoder_num_attention_heads=SIZES["decoder_heads"],
        decoder_intermediate_size=4 * SIZES["decoder_width"], mask_ratio=RATIO, norm_pix_loss=True, layer_norm_eps=1e-6)).double().eval()
    theirs.load_state_dict(state)
    noise = torch.ones(len(kept), (SIZES["image_size"] // SIZES["patch"]) ** 2, dtype=torch.double)
    for row, places in zip(noise, kept):
        row[torch.from_numpy(places).long()] = torch.arange(len(places), dtype=torch.double) / 100
    with torch.no_grad():
        out = theirs(images, noise=noise)
    assert np.allclose(out.logits[out.mask.bool()].numpy().reshape(pixels.shape), pixels, atol=1e-5)
    save_file({name: (value.float() if "pos" in name else value.half()).contiguous() for name, value in theirs.state_dict().items()},
              f"{HERE}/../data/vits/transformers_mae_whole.safetensors")


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
        write_transformers(model, images, f["kept"][:], f["normalized/pixels"][:])


main()
