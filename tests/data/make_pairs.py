#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small pairs of towers with open_clip and transformers, and records their features:   tests/data/make_pairs.py FOLDER

The recorded files were made with PyTorch 1.13, open_clip 3.3.0, timm 1.0.31 and transformers 4.48.0. The ids of the texts are
those of SentencePiece 0.2.0.
"""
import json
import os
import sys
import tempfile

import numpy as np
import open_clip
import safetensors.torch
import sentencepiece
import torch
import transformers

folder, here = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
TEXTS = ["A large blue piano reflected in a frozen lake.", "kite and sunflower, grey on golden", "The chair is quiet, isn't it?"]
LENGTH = 12
images = np.load(here + "/vits/features.npz")["images"]
x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
tokenizer = sentencepiece.SentencePieceProcessor(here + "/../golden/tokenizer/unigram.model")
pieces = [tokenizer.encode(text.lower())[:LENGTH - 1] + [tokenizer.eos_id()] for text in TEXTS]
ids = np.array([row + [tokenizer.pad_id()] * (LENGTH - len(row)) for row in pieces], np.int32)
found = {"texts": np.array(TEXTS), "ids": ids}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 4.0, "num_classes": 0,
       "act_layer": "gelu_tanh", "class_token": False}


def record(name, seed, vision, dim=16, **text):
    torch.manual_seed(seed)
    config = {"embed_dim": dim, "init_logit_bias": -2.0, "vision_cfg": {"image_size": 32, **vision},
              "text_cfg": {"context_length": LENGTH, "vocab_size": tokenizer.vocab_size(), "width": 16, "heads": 2, "layers": 1,
                           "mlp_ratio": 3.0, "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6},
                           "act_kwargs": {"approximate": "tanh"}, **text}}
    pair = open_clip.CustomTextCLIP(**config).eval()
    for p in pair.parameters():
        p.add_(0.3 * torch.randn_like(p))  # many begin as 0 or 1
        p.copy_(p.half().float())          # so that files are small
    found[name + "/image"], found[name + "/text"] = pair.encode_image(x), pair.encode_text(torch.from_numpy(ids).long())
    found[name + "/logits"] = pair.get_logits(x, torch.from_numpy(ids).long())[0]
    save(pair, name)


def save(pair, name):
    tensors = {key: value.half() for key, value in pair.state_dict().items() if value.is_floating_point()}
    safetensors.torch.save_file(tensors, f"{folder}/{name}.safetensors")


def record_transformers(name, seed):
    torch.manual_seed(seed)
    shared = {"hidden_size": 16, "num_attention_heads": 2}
    pair = transformers.SiglipModel(transformers.SiglipConfig(
        text_config={**shared, "vocab_size": tokenizer.vocab_size(), "num_hidden_layers": 1, "intermediate_size": 48,
                     "max_position_embeddings": LENGTH, "projection_size": 16},
        vision_config={**shared, "image_size": 32, "patch_size": 8, "num_hidden_layers": 2, "intermediate_size": 64})).eval()
    for p in pair.parameters():
        p.add_(0.3 * torch.randn_like(p))
        p.copy_(p.half().float())
    out = pair(input_ids=torch.from_numpy(ids).long(), pixel_values=x)
    found[name + "/image"], found[name + "/text"] = out.vision_model_output.pooler_output, out.text_model_output.pooler_output
    found[name + "/logits"] = out.logits_per_image
    save(pair, name)


def timm_tower(path, **given):
    """Returns the part of vision_cfg for a small ViT of timm, which has no name there."""
    os.mkdir(path)
    with open(path + "/config.json", "w", encoding="utf-8") as f:
        json.dump({"architecture": "vit_base_patch16_224", "num_classes": 0, "model_args": {**VIT, **given}, "pretrained_cfg": {}}, f)
    return {"timm_model_name": "local-dir:" + path}


with torch.no_grad(), tempfile.TemporaryDirectory() as place:
    record("clip", 1, {"layers": 2, "width": 16, "head_width": 8, "patch_size": 8, "ls_init_value": 1.0}, dim=12)
    record("siglip", 2, {**timm_tower(place + "/map", global_pool="map"), "timm_pool": "map", "timm_proj": "none"})
    record("gap", 3, {**timm_tower(place + "/gap", global_pool="avg", fc_norm=False), "timm_pool": "avg", "timm_proj": "linear",
                      "timm_proj_bias": True}, dim=12, pool_type="first")
    record_transformers("transformers", 4)
np.savez_compressed(folder + "/features.npz", **{name: np.asarray(value) for name, value in found.items()})
