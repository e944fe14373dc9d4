# SPDX-License-Identifier: Apache-2.0
"""A ViT of a checkpoint, with the names and shapes of other libraries. src/checkpoint/foreign_vit.cpp reads them."""
import functools
import re

import numpy as np

from captioner_files import sincos2d
from lacking import Lacking

BLOCK = "encoder/Transformer/encoderblock_{}/"
HEADED = BLOCK + "MultiHeadDotProductAttention_0/"
MLP = BLOCK + "MlpBlock_0/"
QKV = ("query", "key", "value")
PARTS = (("weight", "kernel"), ("bias", "bias"))
POOL = "encoder/MAPHead_0/"
POSITIONS, PATCH_BIAS, PRE_NORM = "encoder/pos_embedding", "encoder/embedding/bias", "encoder/pre_norm/"
# Parts that a library may lack: in our paths, and in a message.
WORDS = ((POOL, "pooling by attention (pool = \"map\")"), (PRE_NORM, "a norm in front of its blocks (pre_norm = true)"),
         ("encoder/registers", "registers"))


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


def options_of_vit(weights):
    """Returns the keys of the deck about the trunk, which is a captioner's encoder, and those of the model."""
    model = weights.deck().get("model", {})
    return model.get("trunk") or model.get("encoder") or {}, model


def is_rotary(weights):
    return options_of_vit(weights)[0].get("posemb") == "rope"


class WithTable:
    """Some weights and a fixed table of positions beside them, as other programs know tables among the weights alone."""

    def __init__(self, weights, place, table):
        self.weights, self.place, self.table, self.places = weights, place, table, {**weights.places, place: ""}

    def __getattr__(self, name):
        return getattr(self.weights, name)

    def type_of(self, path):
        return "f32" if path == self.place else self.weights.type_of(path)

    def shape(self, path):
        return list(self.table.shape) if path == self.place else self.weights.shape(path)

    def values(self, path):
        return self.table if path == self.place else self.weights.values(path)


TABLES = {"sincos2d": sincos2d, "sincos2d_mae": functools.partial(sincos2d, mae=True)}


def with_table(weights, known=()):
    """Returns the weights, with a table of positions if the program computes one. `known`: those that the library computes as well."""
    options, model = options_of_vit(weights)
    posemb = options.get("posemb", model.get("posemb"))  # a captioner's positions belong to the model
    if posemb not in TABLES or posemb in known or "encoder/embedding/kernel" not in weights.places:
        return weights
    facts = facts_of_vit(weights)
    side = facts["size"] // facts["patch"]
    return WithTable(weights, POSITIONS, TABLES[posemb](side, side, facts["width"]))


def facts_of_vit(weights):
    """Returns the sizes of the ViT that the weights hold, and what their deck says about it."""
    patch, _, _, width = weights.shape("encoder/embedding/kernel")
    options, model = options_of_vit(weights)
    given = model.get("image_size")
    table = weights.shape(POSITIONS)[1] if POSITIONS in weights.places else 0
    return {"patch": patch, "width": width, "depth": len(block_numbers(weights)),
            "heads": weights.shape(HEADED.format(0) + "query/kernel")[1],
            "mlp": weights.shape(BLOCK.format(0) + "MlpBlock_0/Dense_0/kernel")[1],
            "size": round(table**0.5) * patch or (given[0] if isinstance(given, list) else given),
            "gated": MLP.format(0) + "gate/kernel" in weights.places, "rotary": is_rotary(weights),
            "normed": PRE_NORM + "scale" in weights.places,
            "token": "encoder/cls" in weights.places, "pooled": POOL + "probe" in weights.places,
            "scaled": BLOCK.format(0) + "LayerScale_0/scale" in weights.places,
            "registers": weights.shape("encoder/registers")[1] if "encoder/registers" in weights.places else 0,
            "gelu": options.get("gelu", "tanh"), "epsilon": options.get("norm_epsilon", 1e-6),
            "classes": weights.shape("head/kernel")[1] if "head/kernel" in weights.places else 0}


def describe(facts):
    return (f"A ViT of depth {facts['depth']}, width {facts['width']}, {facts['heads']} heads, patches of {facts['patch']} pixels, for "
            f"images of {facts['size']} x {facts['size']}")


def turned_layer(path, values):
    """Returns a tensor of a block, or a product, as PyTorch has it: matrices [out, in]."""
    if "/MultiHeadDotProductAttention_0/" in path:
        if path.endswith("/bias"):
            return values.reshape(-1)
        joined = values.shape[0] * values.shape[1] if "/out/" in path else values.shape[0]
        return values.reshape(joined, -1).T
    return values.T if values.ndim == 2 else values


class Vit:
    """Has the tensors of some weights under a library's names. A class token gets a position of zeros, which ours lacks; with
    registers neither has one.

    A library is a subclass with NAMES: the library's name and our paths, which are joined. {} is the number of a block.
    """

    program, NAMES = "", {}
    GATED = {}              # NAMES that differ if the MLPs are SwiGLU; without a path: there are none
    ZEROS = {}              # name: shape of tensors that the library has and no model needs
    ALWAYS_PLACED = False   # the class token has a position beside registers, too
    ROTARY = False          # positions are DINOv3's, so there is no table

    def __init__(self, weights):
        weights = with_table(weights)
        self.weights, self.path, self.step, self.name, self.places = weights, weights.path, weights.step, weights.name, {}
        if "encoder/embedding/kernel" not in weights.places:
            raise Lacking(f"{weights.path} holds no ViT (encoder/embedding/kernel)")
        self.folds = not self.ROTARY and self.lacks_patch_bias()  # into the table of positions
        if self.folds and weights.type_of(POSITIONS) != "f32":
            raise Lacking(f"{weights.path}: {self.model} has no bias of patches, and {POSITIONS} is no f32 that could take it up")
        blocks, gated = block_numbers(weights), MLP.format(0) + "gate/kernel" in weights.places
        for name, paths in (self.NAMES | self.GATED if gated else self.NAMES).items():
            if self.folds and paths == [PATCH_BIAS]:
                continue
            for block in blocks if "{}" in name else [0]:
                own = [path.format(block) for path in paths]
                if own and all(path in weights.places for path in own):
                    self.places[name.format(block)] = own
        self.facts = facts_of_vit(weights)
        used = {path for own in self.places.values() for path in own}
        self.left_out = [path for path in weights.places if path not in used]
        if lost := [path for path in self.left_out if path.startswith("encoder/") and not (self.folds and path == PATCH_BIAS)
                    and not self.is_zero(path)]:
            # A part of the model before single tensors, for which there may be another way.
            raise self.lacking(min(lost, key=lambda path: not path.startswith(tuple(part for part, _ in WORDS))))
        self.left_out = [path for path in self.left_out if not path.startswith("encoder/")]
        self.places |= {name: [] for name in self.ZEROS}

    @property
    def model(self):
        return f"{self.program}'{'' if self.program.endswith('s') else 's'} ViT"

    @property
    def size(self):
        return self.facts["size"]

    @property
    def classes(self):
        return self.facts["classes"]

    @property
    def description(self):
        return describe(self.facts)

    def lacks_patch_bias(self):
        """Returns True if the library's ViT has no bias of patches: the positions take it up."""
        return False

    def is_zero(self, path):
        """Returns True for a tensor that the library lacks, and whose values change nothing."""
        return False

    def lacking(self, path):
        """Returns the refusal of a tensor without a place."""
        words = next((words for part, words in WORDS if path.startswith(part)), None)
        return Lacking(f"{self.path}: " + (f"this ViT has {words}, which {self.model} lacks" if words else
                                           f"{path} has no place in {self.model}"))

    def type_of(self, name):
        return self.weights.type_of(self.places[name][0]) if self.places[name] else "f32"

    def has_place_of_token(self):
        return self.facts["token"] and (self.ALWAYS_PLACED or not self.facts["registers"])

    def turned(self, path, values):
        """Returns ours as PyTorch has it: matrices [out, in], convolutions [out, channels, height, width]."""
        if path == "encoder/embedding/kernel":
            return values.transpose(3, 2, 0, 1)
        if path == POSITIONS:
            values = values + self.weights.values(PATCH_BIAS) if self.folds else values
            first = np.zeros((1, 1, values.shape[2]), values.dtype)
            return np.concatenate([first, values], 1) if self.has_place_of_token() else values
        return turned_layer(path, values)

    def zeros(self, name):
        return np.zeros([self.facts["width"] if side is None else side for side in self.ZEROS[name]], np.float32)

    def shape(self, name):
        if name in self.ZEROS:
            return list(self.zeros(name).shape)
        parts = [self.turned(path, np.broadcast_to(np.int8(0), self.weights.shape(path))).shape for path in self.places[name]]
        return [sum(part[0] for part in parts), *parts[0][1:]]

    def values(self, name):
        if name in self.ZEROS:
            return self.zeros(name)
        parts = [self.turned(path, self.weights.values(path)) for path in self.places[name]]
        return np.ascontiguousarray(np.concatenate(parts) if len(parts) > 1 else parts[0])


def ratio_of(width, hidden):
    """Returns a factor that libraries multiply the width with, and cut off to a whole number."""
    return hidden / width if int(width * (hidden / width)) == hidden else (hidden + 0.5) / width


GELUS = {"tanh": "gelu_tanh", "quick": "quick_gelu"}  # timm's names of those that are not exact


class Timm(Vit):
    program = "timm"
    NAMES = {
        "patch_embed.proj.weight": ["encoder/embedding/kernel"],
        "patch_embed.proj.bias": [PATCH_BIAS],
        "cls_token": ["encoder/cls"],
        "reg_token": ["encoder/registers"],
        "pos_embed": [POSITIONS],
        "norm_pre.weight": [PRE_NORM + "scale"],
        "norm_pre.bias": [PRE_NORM + "bias"],
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
    GATED = {f"blocks.{{}}.mlp.fc1.{kind}": [f"{MLP}{part}/{own}" for part in ("gate", "Dense_0")] for kind, own in PARTS}
    EPSILON = 1e-6  # of the norms of the model that folders begin with

    def __init__(self, weights):
        super().__init__(weights)
        if self.facts["gated"] and self.facts["pooled"]:
            # One argument gives the widths of blocks, whose gates lie in the same matrix, and of the pooling, which has no gate.
            raise Lacking(f"{self.path}: this ViT has SwiGLU (swiglu = true) beside pooling by attention (pool = \"map\"), and "
                          f"{self.model} has one of them at a time")
        if self.began_as() == "vit_base_patch16_clip_224":
            self.EPSILON = 1e-5

    def lacks_patch_bias(self):
        return PRE_NORM + "scale" in self.weights.places

    def began_as(self):
        """Returns the model of timm whose arguments a folder changes. No file can name the MLP of another, nor another epsilon."""
        if self.facts["gated"]:
            return "vit_giant_patch14_dinov2"
        return "vit_base_patch16_clip_224" if self.folds else "vit_base_patch16_224"

    def arguments(self):
        """Returns what differs from the arguments of timm's VisionTransformer and of `began_as`, but for an epsilon of norms."""
        f = self.facts
        given = {"img_size": f["size"], "patch_size": f["patch"], "embed_dim": f["width"], "depth": f["depth"], "num_heads": f["heads"],
                 "mlp_ratio": ratio_of(f["width"], f["mlp"] * (2 if f["gated"] else 1)), "num_classes": f["classes"]}
        if not f["token"]:
            given |= {"class_token": False, **({"global_pool": "map"} if f["pooled"] else {"global_pool": "avg", "fc_norm": False})}
        if f["registers"]:
            given |= {"reg_tokens": f["registers"], "no_embed_class": True}
        if f["scaled"] or f["gated"]:
            given |= {"init_values": 1e-5 if f["scaled"] else None}
        given |= {"pre_norm": True} if self.folds else {}
        return given | ({"act_layer": GELUS[f["gelu"]]} if f["gelu"] != "erf" and not f["gated"] else {})

    def hint(self):
        """Returns the call that makes a model for these weights."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        epsilon = self.facts["epsilon"]
        given += ", mlp_layer=timm.layers.SwiGLUPacked, act_layer=torch.nn.SiLU" if self.facts["gated"] else ""
        given += f", norm_layer=functools.partial(torch.nn.LayerNorm, eps={epsilon!r})" if epsilon != 1e-6 else ""
        return f"timm.models.vision_transformer.VisionTransformer({given})"


class TimmDinov3(Timm):
    """A ViT with rotary positions, in timm's class Eva. It has no biases of keys."""

    model = "timm's DINOv3"
    NAMES = {name: paths for name, paths in Timm.NAMES.items()
             if not name.startswith(("attn_pool", "norm_pre", "pos_embed", "blocks.{}.attn.qkv.bias", "blocks.{}.ls"))} | {
        "blocks.{}.attn.q_bias": [HEADED + "query/bias"],
        "blocks.{}.attn.v_bias": [HEADED + "value/bias"],
        "blocks.{}.gamma_1": [BLOCK + "LayerScale_0/scale"],
        "blocks.{}.gamma_2": [BLOCK + "LayerScale_1/scale"],
    }
    GATED = {f"blocks.{{}}.mlp.fc1_{theirs}.{kind}": [f"{MLP}{part}/{own}"]
             for theirs, part in (("g", "gate"), ("x", "Dense_0")) for kind, own in PARTS} | {
        f"blocks.{{}}.mlp.fc1.{kind}": [] for kind, _ in PARTS}
    EPSILON = 1e-5
    ROTARY = True

    def __init__(self, weights):
        super().__init__(weights)
        self.check_form()

    def check_form(self):
        """Refuses what no other values of the weights would mend."""
        if not self.facts["gated"] and self.facts["gelu"] != "erf":
            raise Lacking(f"{self.path}: timm's DINOv3 has the exact GELU, and this ViT has gelu = \"{self.facts['gelu']}\"")
        if not self.facts["token"]:
            raise Lacking(f"{self.path}: timm's DINOv3 has a class token, and this ViT has none", ", or train with pool = \"tok\"")

    def is_zero(self, path):
        return path.endswith("/key/bias") and not self.weights.values(path).any()

    def lacking(self, path):
        if not path.endswith("/key/bias"):
            return super().lacking(path)
        self.check_form()
        return Lacking(f"{self.path}: {self.model} has no biases of keys, and {path} is not zero",
                       ", or freeze it in training ([[optimizer.rule]] match = \".*/key/bias\", frozen = true)")

    def began_as(self):
        return "vit_small_patch16_dinov3_qkvb"

    def arguments(self):
        f = self.facts
        given = {"img_size": f["size"], "patch_size": f["patch"], "embed_dim": f["width"], "depth": f["depth"], "num_heads": f["heads"],
                 "mlp_ratio": ratio_of(f["width"], f["mlp"]), "num_classes": f["classes"], "global_pool": "token",
                 "num_reg_tokens": f["registers"], "init_values": 1e-5 if f["scaled"] else None}
        return given | ({"swiglu_mlp": True, "swiglu_align_to": 1} if f["gated"] else {})

    def hint(self):
        given = self.arguments() | {"qkv_bias": True, "use_abs_pos_emb": False, "use_rot_pos_emb": True, "rope_type": "dinov3",
                                    "rope_temperature": 100, "rope_rotate_half": True, "use_fc_norm": False}
        given = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"timm.models.eva.Eva({given}, norm_layer=functools.partial(torch.nn.LayerNorm, eps={self.facts['epsilon']!r}))"


class Transformers(Vit):
    program = "transformers"
    NAMES = {
        "vit.embeddings.patch_embeddings.projection.weight": ["encoder/embedding/kernel"],
        "vit.embeddings.patch_embeddings.projection.bias": [PATCH_BIAS],
        "vit.embeddings.cls_token": ["encoder/cls"],
        "vit.embeddings.position_embeddings": [POSITIONS],
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
            raise Lacking(f"{self.path}: {self.model} has a class token, and this ViT has none")

    KIND, TYPE = "ViT", "vit"  # the first part of the names of its classes, and its name in config.json

    def hint(self):
        return f"transformers.{self.architecture()}(transformers.{self.KIND}Config(**{self.settings()!r}))"

    def architecture(self):
        return self.KIND + ("ForImageClassification" if self.facts["classes"] else "Model")

    def settings(self):
        """Returns the arguments of the library's configuration."""
        f = self.facts
        return {"image_size": f["size"], "patch_size": f["patch"], "hidden_size": f["width"], "num_hidden_layers": f["depth"],
                "num_attention_heads": f["heads"], "intermediate_size": f["mlp"], "layer_norm_eps": f["epsilon"],
                "hidden_act": {"tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}.get(f["gelu"], "gelu"), "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0, **({"num_labels": f["classes"]} if f["classes"] else {})}


class TransformersDinov2(Transformers):
    """A ViT with layer scale. The library's classifier reads the class token and the mean of the patches, whose weights are zeros."""

    KIND, TYPE, model, ALWAYS_PLACED = "Dinov2", "dinov2", "transformers' DINOv2", True
    NAMES = {
        **{"dinov2." + name.removeprefix("vit."): paths for name, paths in Transformers.NAMES.items()
           if name.startswith(("vit.embeddings", "vit.encoder.layer.{}.attention", "vit.layernorm"))},
        **block_names("dinov2.encoder.layer.{}.", ("norm1", "norm2"), ("attention.output.dense", "mlp.fc1", "mlp.fc2")),
        "dinov2.embeddings.register_tokens": ["encoder/registers"],
        "dinov2.encoder.layer.{}.layer_scale1.lambda1": [BLOCK + "LayerScale_0/scale"],
        "dinov2.encoder.layer.{}.layer_scale2.lambda1": [BLOCK + "LayerScale_1/scale"],
        "classifier.weight": ["head/kernel"],
        "classifier.bias": ["head/bias"],
    }
    GATED = {
        **{f"dinov2.encoder.layer.{{}}.mlp.fc{i}.{kind}": [] for i in (1, 2) for kind, _ in PARTS},
        **{f"dinov2.encoder.layer.{{}}.mlp.weights_in.{kind}": [f"{MLP}{part}/{own}" for part in ("gate", "Dense_0")]
           for kind, own in PARTS},
        **{f"dinov2.encoder.layer.{{}}.mlp.weights_out.{kind}": [f"{MLP}Dense_1/{own}"] for kind, own in PARTS},
    }
    ZEROS = {"dinov2.embeddings.mask_token": (1, None)}

    def __init__(self, weights):
        super().__init__(weights)
        if not self.facts["scaled"]:
            raise Lacking(f"{self.path}: transformers has SwiGLU in DINOv2 alone, which has layer scale, and this ViT has none")
        if self.facts["gated"] and self.facts["mlp"] % 8:
            raise Lacking(f"{self.path}: transformers' DINOv2 has SwiGLU with widths that 8 divides, and this one has {self.facts['mlp']}")
        if self.facts["registers"]:
            self.KIND, self.TYPE = "Dinov2WithRegisters", "dinov2_with_registers"
            begin = f"{self.TYPE}."
            self.places = {begin + name.removeprefix("dinov2.") if name.startswith("dinov2.") else name: paths
                           for name, paths in self.places.items()}
            self.ZEROS = {begin + name.removeprefix("dinov2."): shape for name, shape in self.ZEROS.items()}

    def turned(self, path, values):
        values = super().turned(path, values)
        return np.concatenate([values, np.zeros_like(values)], 1) if path == "head/kernel" else values

    def settings(self):
        f = self.facts
        given = super().settings()
        del given["intermediate_size"]
        given |= {"mlp_ratio": self.ratio(), "use_swiglu_ffn": f["gated"]}
        return given | ({"num_register_tokens": f["registers"]} if f["registers"] else {})

    def ratio(self):
        """Returns a factor that gives the library this width of MLPs: a whole number if one does, since version 5 takes no other."""
        width, gated, mlp = self.facts["width"], self.facts["gated"], self.facts["mlp"]
        whole = (mlp * 3 // 2 if gated else mlp) // width
        # The library takes 2/3 of a gated MLP's width, and then the next multiple of 8.
        widths = {ratio: (width * ratio * 2 // 3 + 7) // 8 * 8 if gated else width * ratio for ratio in (whole, whole + 1)}
        return next((ratio for ratio, got in widths.items() if got == mlp), ratio_of(width, mlp * 3 // 2 if gated else mlp))

    def remark(self):
        """Returns what the export says about libraries that do not open these weights."""
        return "" if isinstance(self.ratio(), int) else (
            f"model.trunk.mlp = {self.facts['mlp']} is no whole multiple of the width for transformers (mlp_ratio {self.ratio():.4g}): "
            "version 4 opens it, version 5 refuses it")


class TransformersDinov3(Transformers):
    """A ViT with rotary positions. The library has no classifier for it, so a head is left out."""

    KIND, TYPE, model, ROTARY = "DINOv3ViT", "dinov3_vit", "transformers' DINOv3", True
    NAMES = {
        "embeddings.patch_embeddings.weight": ["encoder/embedding/kernel"],
        "embeddings.patch_embeddings.bias": [PATCH_BIAS],
        "embeddings.cls_token": ["encoder/cls"],
        "embeddings.register_tokens": ["encoder/registers"],
        **block_names("layer.{}.", ("norm1", "norm2"), ("attention.o_proj", "mlp.up_proj", "mlp.down_proj")),
        **{f"layer.{{}}.attention.{part[0]}_proj.{kind}": [HEADED + f"{part}/{own}"] for part in QKV for kind, own in PARTS},
        "layer.{}.layer_scale1.lambda1": [BLOCK + "LayerScale_0/scale"],
        "layer.{}.layer_scale2.lambda1": [BLOCK + "LayerScale_1/scale"],
        "norm.weight": ["encoder/Transformer/encoder_norm/scale"],
        "norm.bias": ["encoder/Transformer/encoder_norm/bias"],
    }
    GATED = {f"layer.{{}}.mlp.gate_proj.{kind}": [f"{MLP}gate/{own}"] for kind, own in PARTS}
    ZEROS = {"embeddings.mask_token": (1, 1, None)}

    def __init__(self, weights):
        if "encoder/registers" not in weights.places:  # the library's model has no registers, but the tensor of them
            self.ZEROS = self.ZEROS | {"embeddings.register_tokens": (1, 0, None)}
        super().__init__(weights)
        if not self.facts["scaled"]:
            raise Lacking(f"{self.path}: transformers' DINOv3 has layer scale, and this ViT has none")
        self.facts["classes"] = 0

    def settings(self):
        given = super().settings()
        del given["hidden_dropout_prob"], given["attention_probs_dropout_prob"]
        if self.facts["gated"]:
            given["hidden_act"] = "silu"
        return given | {"key_bias": True, "use_gated_mlp": self.facts["gated"], "num_register_tokens": self.facts["registers"]}


def timm(weights):
    """Returns the weights as timm names them."""
    return (TimmDinov3 if is_rotary(weights) else Timm)(weights)


def transformers(weights):
    """Returns the weights as transformers names them."""
    if is_rotary(weights):
        return TransformersDinov3(weights)
    scaled, gated = BLOCK.format(0) + "LayerScale_0/scale", MLP.format(0) + "gate/kernel"
    return (TransformersDinov2 if scaled in weights.places or gated in weights.places else Transformers)(weights)
