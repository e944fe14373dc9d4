#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small ViTs with timm, transformers, torchvision and open_clip, and records their features:   tests/data/make_vits.py FOLDER

The recorded files were made with PyTorch 1.13, timm 1.0.31, transformers 4.48.0, torchvision 0.14.1 and open_clip 3.3.0.
The code of DINOv3 and SigLIP 2 is that of transformers 4.56.2, whose folder models may be given as a second argument.
"""
import functools
import importlib.util
import os
import sys
import types

import numpy as np
import open_clip
import safetensors.torch
import timm.models.vision_transformer
import torch
import torchvision
import transformers

folder = sys.argv[1]
torch.manual_seed(0)
images = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
found = {"images": images}
FORM = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def shaken(model, seed):
    """Adds noise to all parameters, because many begin as 0 or 1. They become numbers of f16, so that files are small."""
    torch.manual_seed(seed)
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
        p.copy_(p.half().float())
    return model.eval()


def save(model, name):
    tensors = {key: value.half() for key, value in model.state_dict().items() if value.is_floating_point()}
    safetensors.torch.save_file(tensors, f"{folder}/{name}.safetensors")


def timm_vit(name, seed, **options):
    vit = shaken(timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, **{"num_classes": 0, **options}), seed)
    found[name + "/encoded"] = vit.forward_features(x)
    found[name + "/pre_logits"] = vit.forward_head(vit.forward_features(x), pre_logits=True)
    return vit


def transformers_vit(name, seed, vit, pooled=lambda out: out.last_hidden_state[:, 0]):
    vit = shaken(vit, seed)
    out = vit(x)
    found[name + "/encoded"] = out.last_hidden_state
    found[name + "/pre_logits"] = pooled(out)
    return vit


def newer_code(name, what):
    """Returns transformers' modules of the configuration and the model. Old releases lack them, and a few helpers that they import."""
    if len(sys.argv) < 3:
        return [importlib.import_module(f"transformers.models.{name}.{part}_{what}") for part in ("configuration", "modeling")]
    layers = sys.modules["transformers.modeling_layers"] = types.ModuleType("transformers.modeling_layers")
    layers.GradientCheckpointingLayer = torch.nn.Module
    transformers.utils.TransformersKwargs = dict
    transformers.pytorch_utils.compile_compatible_method_lru_cache = functools.lru_cache
    as_it_is = lambda code=None, **_: code or (lambda of: of)
    transformers.utils.auto_docstring = transformers.utils.can_return_tuple = transformers.utils.generic.check_model_inputs = as_it_is
    modules = []
    for part in ("configuration", "modeling"):
        spec = importlib.util.spec_from_file_location(f"transformers.models.{name}.{part}_{what}",
                                                      os.path.join(sys.argv[2], name, f"{part}_{what}.py"))
        modules.append(importlib.util.module_from_spec(spec))
        sys.modules[spec.name] = modules[-1]
        spec.loader.exec_module(modules[-1])
    return modules


def timm_model(name, seed, architecture, **options):
    vit = shaken(timm.create_model(architecture, **{"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2,
                                                    "num_classes": 0, "global_pool": "token", **options}), seed)
    found[name + "/encoded"] = vit.forward_features(x)
    found[name + "/pre_logits"] = vit.forward_head(vit.forward_features(x), pre_logits=True)
    save(vit, name)


with torch.no_grad():
    safetensors.torch.save_file(timm_vit("timm", 1, num_classes=3).state_dict(), folder + "/timm.safetensors")
    torch.save(transformers_vit("transformers", 2, transformers.ViTModel(
        transformers.ViTConfig(initializer_range=0.2, **FORM), add_pooling_layer=False)).state_dict(), folder + "/transformers.bin")

    vit = shaken(torchvision.models.vision_transformer.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=64, num_classes=3), 3)
    tokens = vit.encoder(torch.cat([vit.class_token.expand(4, -1, -1), vit._process_input(x)], 1))
    found["torchvision/encoded"] = tokens
    found["torchvision/pre_logits"] = tokens[:, 0]
    torch.save({"model": vit.state_dict(), "epoch": 1}, folder + "/torchvision.pth")

    save(timm_vit("timm_dinov2", 4, init_values=1e-5), "timm_dinov2")
    save(timm_vit("timm_dinov2_reg", 5, init_values=1e-5, reg_tokens=3, no_embed_class=True), "timm_dinov2_reg")
    form = {**FORM, "mlp_ratio": 4, "initializer_range": 0.2}
    save(transformers_vit("transformers_dinov2", 6, transformers.Dinov2Model(transformers.Dinov2Config(**form))),
         "transformers_dinov2")
    save(transformers_vit("transformers_dinov2_reg", 7, transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(num_register_tokens=3, **form))), "transformers_dinov2_reg")

    # Towers of CLIP and SigLIP. Those of transformers and open_clip normalise the vector, or the tokens, behind the blocks.
    save(timm_vit("timm_clip", 8, pre_norm=True, norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-5), act_layer="quick_gelu"),
         "timm_clip")
    save(timm_vit("timm_siglip", 9, class_token=False, global_pool="map", act_layer="gelu_tanh"), "timm_siglip")
    clip = shaken(transformers.CLIPModel(transformers.CLIPConfig(
        text_config={"vocab_size": 5, "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
                     "max_position_embeddings": 3},
        vision_config={**FORM, "initializer_factor": 9}, projection_dim=3)), 10)
    out = clip.vision_model(x)
    found["transformers_clip/encoded"] = clip.vision_model.post_layernorm(out.last_hidden_state)
    found["transformers_clip/pre_logits"] = out.pooler_output
    save(clip, "transformers_clip")
    save(transformers_vit("transformers_siglip", 11, transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**FORM)),
                          lambda out: out.pooler_output), "transformers_siglip")
    clip = shaken(open_clip.CLIP(3, open_clip.CLIPVisionCfg(layers=2, width=16, head_width=8, patch_size=8, image_size=32, ls_init_value=1),
                                 open_clip.CLIPTextCfg(context_length=3, vocab_size=5, width=4, heads=1, layers=1)), 12)
    clip.visual.output_tokens, clip.visual.proj = True, None
    found["open_clip/pre_logits"], patches = clip.visual(x)
    found["open_clip/encoded"] = torch.cat([found["open_clip/pre_logits"][:, None], patches], 1)
    save(clip, "open_clip")

    timm_model("timm_dinov2_giant", 13, "vit_giant_patch14_dinov2", mlp_ratio=5)
    save(transformers_vit("transformers_dinov2_giant", 14, transformers.Dinov2Model(
        transformers.Dinov2Config(use_swiglu_ffn=True, **form))), "transformers_dinov2_giant")
    timm_model("timm_dinov3", 15, "vit_small_patch16_dinov3_qkvb")
    timm_model("timm_dinov3_plus", 16, "vit_small_plus_patch16_dinov3")
    settings, code = newer_code("dinov3_vit", "dinov3_vit")
    save(transformers_vit("transformers_dinov3", 17, code.DINOv3ViTModel(settings.DINOv3ViTConfig(
        use_gated_mlp=True, hidden_act="silu", num_register_tokens=2, **FORM))), "transformers_dinov3")

    # Positions without one of the class token; no class token and the mean of the patches; that without biases of attention.
    timm_model("timm_deit3", 18, "deit3_small_patch16_224")
    timm_model("timm_siglip_gap", 19, "vit_base_patch16_siglip_gap_224", global_pool="avg")
    timm_model("timm_medium_gap", 20, "vit_medium_patch16_gap_240", global_pool="avg")
    mae = shaken(transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(
        mask_ratio=0.0, decoder_num_attention_heads=1, decoder_hidden_size=4, decoder_num_hidden_layers=1, decoder_intermediate_size=4,
        **FORM)), 21)
    found["transformers_mae/encoded"] = mae.vit(x, noise=torch.arange(16.0).expand(4, -1)).last_hidden_state
    found["transformers_mae/pre_logits"] = found["transformers_mae/encoded"][:, 0]
    save(mae, "transformers_mae")
    save(transformers_vit("transformers_msn", 22, transformers.ViTMSNModel(transformers.ViTMSNConfig(**FORM))), "transformers_msn")
    save(transformers_vit("transformers_ijepa", 23, transformers.IJepaModel(transformers.IJepaConfig(**FORM), add_pooling_layer=False),
                          lambda out: out.last_hidden_state.mean(1)), "transformers_ijepa")
    clip = shaken(open_clip.CLIP(3, open_clip.CLIPVisionCfg(layers=2, width=16, head_width=8, patch_size=8, image_size=32),
                                 open_clip.CLIPTextCfg(context_length=3, vocab_size=5, width=4, heads=1, layers=1), quick_gelu=True), 24)
    clip.visual.output_tokens, clip.visual.proj = True, None
    found["open_clip_quick/pre_logits"], patches = clip.visual(x)
    found["open_clip_quick/encoded"] = torch.cat([found["open_clip_quick/pre_logits"][:, None], patches], 1)
    save(clip, "open_clip_quick")
    settings, code = newer_code("siglip2", "siglip2")
    settings = settings.Siglip2VisionConfig(num_patches=16, **{key: value for key, value in FORM.items() if key != "image_size"})
    settings._attn_implementation = "eager"
    siglip2 = shaken(code.Siglip2VisionModel(settings), 25)
    patches = x.reshape(4, 3, 4, 8, 4, 8).permute(0, 2, 4, 3, 5, 1).reshape(4, 16, 192)
    out = siglip2(patches, torch.ones(4, 16), torch.tensor([[4, 4]] * 4))
    found["transformers_siglip2/encoded"], found["transformers_siglip2/pre_logits"] = out.last_hidden_state, out.pooler_output
    save(siglip2, "transformers_siglip2")

np.savez_compressed(folder + "/features.npz", **{name: np.asarray(value) if name == "images" else np.asarray(value[:2])
                                                 for name, value in found.items()})
