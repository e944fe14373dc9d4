# SPDX-License-Identifier: Apache-2.0
"""A ViT or a captioner of a checkpoint, with the names of big_vision, and the settings of the model there. Not a tool itself."""
from lacking import Lacking
from vit_names import describe, facts_of_vit, with_table

# Facts that big_vision's ViT cannot vary: (fact, its value there, our key).
FIXED = (("gelu", "tanh", "gelu"), ("epsilon", 1e-6, "norm_epsilon"), ("scaled", False, "layer_scale"), ("registers", 0, "registers"),
         ("gated", False, "swiglu"), ("rotary", False, "posemb"), ("normed", False, "pre_norm"))


class BigVision:
    """Has the parameters as big_vision nests them: a captioner's as they are, those of a ViT without "encoder/"."""

    program, model = "big_vision", "big_vision's model"

    def __init__(self, weights):
        weights = with_table(weights, ["sincos2d"])
        self.weights, self.path, self.step, self.name = weights, weights.path, weights.step, weights.name
        self.options = weights.deck().get("model", {})
        if "encoder/embedding/kernel" not in weights.places or self.options.get("trunk", {}).get("kind", "vit") != "vit":
            raise Lacking(f"{weights.path} holds no ViT (encoder/embedding/kernel), and big_vision's other models are not written")
        self.captions = self.options["kind"] == "cappa"
        self.facts = facts_of_vit(weights)
        self.size, self.classes = self.facts["size"], self.facts["classes"]
        for fact, value, key in FIXED:
            if self.facts[fact] != value:
                raise Lacking(f"{self.path}: big_vision's ViT has no such model.trunk.{key} ({self.facts[fact]})")
        if self.captions and "trunk" in self.options:
            raise Lacking(f"{self.path}: big_vision's captioner has a ViT of [model.encoder], not of [model.trunk]")
        names = {path if self.captions else path.removeprefix("encoder/"): path for path in weights.places}
        known = ("encoder/", "decoder/", "pos_embedding_decoder") if self.captions else ("head/",) if self.classes else ()
        self.places = {name: path for name, path in names.items() if path.startswith("encoder/") or name.startswith(known)}
        self.left_out = [path for path in weights.places if path not in self.places.values()]

    @property
    def description(self):
        return describe(self.facts) + (", and the decoder of a captioner (CapPa)" if self.captions else "")

    def type_of(self, name):
        return self.weights.type_of(self.places[name])

    def shape(self, name):
        return self.weights.shape(self.places[name])

    def values(self, name):
        return self.weights.values(self.places[name])

    def module(self):
        return "big_vision.models.proj.cappa.cappa" if self.captions else "big_vision.models.vit"

    def arguments(self):
        """Returns the arguments of the module's Model."""
        f, m = self.facts, self.options
        patches = (f["patch"], f["patch"])
        if not self.captions:
            return {**({"num_classes": self.classes} if self.classes else {}), "width": f["width"], "depth": f["depth"],
                    "mlp_dim": f["mlp"], "num_heads": f["heads"], "patch_size": patches,
                    "posemb": "learn" if "encoder/pos_embedding" in self.weights.places else "sincos2d",
                    "pool_type": "map" if f["pooled"] else "tok" if f["token"] else "gap"}
        d = m["decoder"]
        return {"num_layers": f["depth"], "num_heads": f["heads"], "mlp_dim": f["mlp"], "emb_dim": f["width"], "patches": patches,
                "vocab_size": m["vocab_size"], "seq_len": m["seq_len"], "posemb_type": m["posemb"], "decoder_num_layers": d["depth"],
                "decoder_num_heads": d["heads"], "decoder_mlp_dim": d["mlp"], "decoder_emb_dim": d["width"],
                "decoder_bias": d["bias"], "masked_pred_prob": m["masked_pred_prob"], "masking_ratio": m["masking_ratio"],
                "enc_dropout_rate": m["encoder"]["dropout"], "dec_dropout_rate": d["dropout"]}

    def config(self, ops):
        """Returns config.py of the folder. ops: how images are prepared, which is the language of both programs."""
        lines = [f"  config.model.{name} = {value!r}" for name, value in self.arguments().items()]
        return "\n".join([
            '"""The model of weights.npz and the preparation of its images, for a configuration of big_vision."""',
            "import ml_collections", "", "", "def get_config():", "  config = ml_collections.ConfigDict()",
            f"  config.model_name = {self.module().removeprefix('big_vision.models.')!r}",
            "  config.model_init = './weights.npz'", "  config.model = ml_collections.ConfigDict()", *lines,
            f"  config.pp_image = {ops!r}", "  return config", ""])
