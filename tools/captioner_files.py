# SPDX-License-Identifier: Apache-2.0
"""Describes a captioner for tools/torch_captioner.py: sizes, images, vocabulary. Not a tool itself."""
import ast
import json
import os
import re

import numpy as np

from console import Failure

TEXT_OPS = {"tokenize", "choice", "coco_captions", "lower", "keep", "drop"}  # these leave images as they are
IMAGE_OPS = ["decode", "resize", "value_range"]
CONTROL, UNKNOWN, BYTE = 3, 2, 6  # types of pieces in SentencePiece models; all others are texts


def pipeline(text):
    """Parses a preprocessing string: [(name of the op, its positional values, its named values)]."""
    out = []
    for call in re.findall(r"""(?:[^|"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')+""", text.replace("\n", " ")):
        try:
            tree = ast.parse(call.strip(), mode="eval").body
            if isinstance(tree, ast.Name):
                out.append((tree.id, [], {}))
                continue
            words = {"true": True, "false": False}  # decks may write them in small letters
            value = lambda node: words[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
            out.append((tree.func.id, [value(a) for a in tree.args], {k.arg: value(k.value) for k in tree.keywords}))
        except (SyntaxError, ValueError, AttributeError, KeyError):
            raise Failure(f"the preprocessing '{text.strip()}' is not understood at '{call.strip()}'") from None
    return out


def pipelines(deck):
    """Returns the pipeline of each data set, that of training first."""
    tables = deck.get("data", {})

    def text_of(name):
        text = tables[name].get("preprocess", "").strip()
        return text_of(text[1:]) if text.startswith("@") else text

    train = deck["train"]
    first = [train.get("data", ""), *train.get("mixture", {})]
    names = [name for name in first if name in tables] + [name for name in tables if name not in first]
    return {name: pipeline(text_of(name)) for name in names}


def arguments(call, *names, **defaults):
    """Returns the values of a call's parameters. `names` have no default and come first."""
    _, positional, named = call
    out = dict(defaults, **dict(zip([*names, *defaults], positional)), **named)
    if missing := [name for name in names if name not in out]:
        raise Failure(f"{call[0]} has no {missing[0]}")
    return out


def images_of(ops):
    """Returns (what the captioner does with images, "") or (None, why it cannot do what these ops do)."""
    mine = [op for op in ops if op[0] not in TEXT_OPS]
    names = [name for name, _, _ in mine]
    if names != IMAGE_OPS:
        return None, f"images go through {' | '.join(names) or 'no op'}"
    resize = arguments(mine[1], "size", method="bilinear", antialias=False)
    scale = arguments(mine[2], vmin=-1, vmax=1, in_min=0, in_max=255, clip_values=False)
    keys = {value for _, _, named in mine for key, value in named.items() if key in ("key", "inkey", "outkey")}
    if resize["method"] != "bilinear" or resize["antialias"]:
        return None, f"resize has method {resize['method']}, antialias {resize['antialias']}"
    limits = [scale[key] for key in ("in_min", "in_max", "vmin", "vmax")]
    if scale["clip_values"] or keys - {"image"} or not all(isinstance(x, (int, float)) for x in limits):
        return None, "value_range clips, has values for each channel, or another field is prepared"
    size = resize["size"] if isinstance(resize["size"], (list, tuple)) else [resize["size"]] * 2
    return {"height": size[0], "width": size[1], "value_range": limits}, ""


def protobuf(data):
    """Yields (number of the field, value) of a message; a value is a whole number or bytes."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not data[at - 1] & 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        length = number() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        if at + length > len(data):
            raise ValueError("cut")
        yield key >> 3, data[at:at + length]
        at += length


def sentencepiece(path):
    """Returns (vocabulary, id of the end piece or None). The vocabulary holds texts, and bytes as numbers."""
    try:
        with open(path, "rb") as file:
            model = list(protobuf(file.read()))
        # Fields of the format: 1 pieces (1 text, 3 type), 2 options of training (44 unknown's text, 47 end).
        options = {k: v for number, value in model if number == 2 for k, v in protobuf(value)}
        pieces = [dict(protobuf(value)) for number, value in model if number == 1]
        end, vocabulary = options.get(47, b"</s>"), []
        for piece in pieces:
            text, of_type = piece[1].decode(), piece.get(3, 1)
            vocabulary.append("" if of_type == CONTROL else options.get(44, " \u2047 ".encode()).decode() if of_type == UNKNOWN
                              else int(text[3:5], 16) if of_type == BYTE else text.replace("\u2581", " "))
        ends = [i for i, piece in enumerate(pieces) if piece[1] == end and piece.get(3, 1) == CONTROL]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        raise Failure(f"{path} is not a SentencePiece model") from None
    if not pieces:
        raise Failure(f"{path} is not a SentencePiece model")
    return vocabulary, ends[0] if ends else None


def words_of(deck, all_ops, tokenizer):
    """Returns (entries of config.json about tokens, file of the tokenizer or None)."""
    calls = [op for ops in all_ops.values() for op in ops if op[0] == "tokenize"]
    if not calls:
        raise Failure("no data set of the deck has captions (an op tokenize)")
    call = arguments(calls[0], "model", "max_len", eos="none", prefix=None)
    if call["prefix"]:
        raise Failure(f'captions begin with prefix="{call["prefix"]}", which the PyTorch code does not give; '
                      "export to .npz or .safetensors instead")
    table = deck["tokenizer"][call["model"]]
    if table["kind"] == "bytes":
        path, vocabulary, end = None, ["", "", "", *range(256)], 1
    else:
        path = tokenizer or table["path"]
        if not os.path.isfile(path):
            raise Failure(f"{path}: no such file; name the run's tokenizer with --tokenizer FILE")
        vocabulary, end = sentencepiece(path)
    size = deck["model"]["vocab_size"]
    if len(vocabulary) > size:
        raise Failure(f"{path} has {len(vocabulary)} pieces, the model {size}: it is not the run's tokenizer")
    ends = {deck["model"].get("pad_id", 0)} | ({end} if call["eos"] != "none" else set())
    return {"max_len": call["max_len"], "end_ids": sorted(ends),
            "vocabulary": vocabulary + [" \u2047 "] * (size - len(vocabulary))}, path


def config_of(deck, tokenizer=None, preprocess=None):
    """Returns (config.json of a captioner, file of its tokenizer or None). Takes the deck of its run."""
    model = deck["model"]
    if model["kind"] != "cappa":
        raise Failure(f"the model is a {model['kind']}, but only captioners are exported to a folder: export to .npz or .safetensors")
    if "trunk" in model:
        raise Failure("model.trunk encodes the images, but only captioners with model.encoder are exported to a folder: "
                      "export to .npz or .safetensors")
    for key, usual in (("gelu", "tanh"), ("norm_epsilon", 1e-6), ("layer_scale", 0), ("swiglu", False)):
        if (value := model["encoder"].get(key, usual)) != usual:
            raise Failure(f"model.encoder.{key} = {json.dumps(value)}, and the PyTorch code has {json.dumps(usual)} alone: "
                          "export to .npz or .safetensors")
    all_ops = pipelines(deck)
    candidates = [preprocess and pipeline(preprocess)] if preprocess else list(all_ops.values())
    answers = [images_of(ops) for ops in candidates]
    images = next((image for image, _ in answers if image), None)
    if not images:
        raise Failure(f"the PyTorch code prepares images by {' | '.join(IMAGE_OPS)} alone, but {answers[0][1]}; "
                      "give other ops, such as --preprocess 'decode | resize(224) | value_range(-1, 1)'")
    if [images["height"], images["width"]] != [model["image_size"]] * 2:
        raise Failure(f"--preprocess yields {images['height']} x {images['width']} pixels, but the model takes {model['image_size']}")
    words, path = words_of(deck, all_ops, tokenizer)
    encoder = {key: model["encoder"][key] for key in ("patch", "depth", "width", "mlp", "heads")}
    decoder = {key: model["decoder"][key] or encoder[key] for key in ("depth", "width", "mlp", "heads")}
    return {"encoder": encoder, "decoder": decoder, "posemb": model["posemb"], "vocab_size": model["vocab_size"],
            "seq_len": model["seq_len"], "image": images, **words}, path


def sincos2d(height, width, size, mae=False):
    """Returns the fixed position table f32 [1, height * width, size]: sin x, cos x, sin y, cos y, a quarter each. `mae`: that of
    posemb = "sincos2d_mae", whose lowest frequency lies above 1/10000."""
    y, x = (axis.reshape(-1, 1).astype(np.float64) for axis in np.mgrid[:height, :width])
    omega = 10000.0 ** (-np.arange(size // 4) / (size // 4 - (not mae)))
    parts = [f(axis * omega) for axis in (x, y) for f in (np.sin, np.cos)]
    return np.concatenate(parts, 1).astype(np.float32)[None]


def fixed_tables(model):
    """Returns the position tables of a model with posemb = "sincos2d", which are no parameters; else nothing."""
    if model["posemb"] != "sincos2d":
        return {}
    side, width = model["image_size"] // model["encoder"]["patch"], model["encoder"]["width"]
    return {"encoder/pos_embedding": sincos2d(side, side, width),
            "pos_embedding_decoder": sincos2d(1, model["seq_len"], model["decoder"]["width"] or width)}
