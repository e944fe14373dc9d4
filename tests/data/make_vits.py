#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small ViTs with timm, transformers and torchvision, and records their features:   tests/data/make_vits.py FOLDER

The recorded files were made with PyTorch 1.13, timm 1.0.31, transformers 4.30.2 and torchvision 0.14.1.
"""
import sys

import numpy as np
import safetensors.torch
import timm.models.vision_transformer
import torch
import torchvision
import transformers

folder = sys.argv[1]
torch.manual_seed(1)
images = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def shake(model):
    """Adds noise to all parameters, because many begin as 0 or 1."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


found = {"images": images}
with torch.no_grad():
    vit = shake(timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3))
    found["timm/encoded"] = vit.forward_features(x)
    found["timm/pre_logits"] = vit.forward_head(vit.forward_features(x), pre_logits=True)
    found["timm/logits"] = vit(x)
    safetensors.torch.save_file(vit.state_dict(), folder + "/timm.safetensors")

    vit = shake(transformers.ViTModel(transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.2), add_pooling_layer=False))
    found["transformers/encoded"] = vit(x).last_hidden_state
    found["transformers/pre_logits"] = vit(x).last_hidden_state[:, 0]
    torch.save(vit.state_dict(), folder + "/transformers.bin")

    vit = shake(torchvision.models.vision_transformer.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=64, num_classes=3))
    tokens = vit.encoder(torch.cat([vit.class_token.expand(4, -1, -1), vit._process_input(x)], 1))
    found["torchvision/encoded"] = tokens
    found["torchvision/pre_logits"] = tokens[:, 0]
    found["torchvision/logits"] = vit(x)
    torch.save({"model": vit.state_dict(), "epoch": 1}, folder + "/torchvision.pth")
np.savez(folder + "/features.npz", **{name: np.asarray(value) for name, value in found.items()})
