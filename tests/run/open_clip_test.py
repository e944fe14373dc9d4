#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests folders of tools/export --as open_clip: pairs that open_clip made come back under its names, and give its features and logits.
tests/data/make_pairs.py made the files.

open_clip is optional: TORCH_PYTHON names a Python that has it, if this one has not.
"""
import json
import os
import re
import subprocess
import tarfile

import h5py
import numpy as np
from PIL import Image

import harness
import vit_weights_test as vits
from torch_weights_test import read_safetensors, save_safetensors

PAIRS = harness.SOURCE + "/tests/data/pairs/"
RECORDED = dict(np.load(PAIRS + "features.npz"))
IMAGES = vits.RECORDED["images"]
VOCABULARY = read_safetensors(PAIRS + "siglip.safetensors")["text.token_embedding.weight"].shape[0]
TEXTS, LENGTH = list(map(str, RECORDED["texts"])), RECORDED["ids"].shape[1]
SHORT = ["A large blue piano reflected in", TEXTS[1]]  # the first texts up to the end of their ids
NO_OPEN_CLIP = vits.lacks("open_clip, transformers, safetensors.torch")
# file: keys of the trunk that differ from the deck's, and of the texts; what open_clip makes the image tower of
FILES = {"clip": ('gelu = "erf", norm_epsilon = 1e-5, layer_scale = 1, pre_norm = true, pool = "tok"', "last", "own"),
         "siglip": ('pool = "map"', "last", "timm"), "gap": ('pool = "gap"', "first", "timm")}
DECK = vits.DECK[:vits.DECK.index("[model]")] + """[model]
kind       = "siglip"
image_size = 32
vocab_size = {vocabulary}
seq_len    = {length}
image_head = {head}
dim        = {dim}
trunk      = {{ kind = "vit", patch = 8, depth = 2, width = 16, mlp = 64, heads = 2, {trunk} }}
text       = {{ depth = 1, width = 16, mlp = 48, heads = 2, pool = "{pool}" }}

[optimizer]
kind          = "adamw"
learning_rate = 0.0

[schedule.default]
kind = "cosine"

[tokenizer]
words = {{ kind = "sentencepiece", path = "{tokenizer}" }}

[data.train]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(32) | value_range(-1, 1)
              | tokenize("words", max_len={length}, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels", "label")'''

[extract]
data = "train"
taps = ["pre_logits"]

[eval.scores]
kind        = "scoring"
data        = "train"
every_steps = 0
at_end      = false
classes     = {texts}

[checkpoint]
every_steps = 1
"""
WITH_OPEN_CLIP = """
import sys, json, numpy, torch, open_clip
from PIL import Image
folder, images, texts, out = sys.argv[1:]
model, _, prepare = open_clip.create_model_and_transforms('local-dir:' + folder)
tokenizer = open_clip.get_tokenizer('local-dir:' + folder)
model.eval()
x = torch.stack([prepare(Image.fromarray(i)) for i in numpy.load(images)['images']])
ids = tokenizer(json.loads(texts))
with torch.no_grad():
    numpy.savez(out, x=x.numpy(), ids=ids.numpy(), image=model.encode_image(x).numpy(), text=model.encode_text(ids).numpy(),
                logits=model.get_logits(x, ids)[0].numpy())
"""


def matrix(values, heads=0, out=False):
    """Returns a matrix [out, in] as ours: [in, out], and heads on an axis of their own."""
    values = values.T
    if heads:
        values = values.reshape((heads, -1, values.shape[1]) if out else (len(values), heads, -1))
    return values


def block(theirs, before, ours, to):
    """Adds a block with the names of open_clip or timm to `to`."""
    get = lambda *names: next(theirs[before + name] for name in names if before + name in theirs)
    for i, names in enumerate((("ln_1", "norm1"), ("ln_2", "norm2"))):
        for part, own in (("weight", "scale"), ("bias", "bias")):
            to[f"{ours}LayerNorm_{i}/{own}"] = get(*(f"{name}.{part}" for name in names))
    attention = ours + "MultiHeadDotProductAttention_0/"
    weights = np.split(get("attn.in_proj_weight", "attn.qkv.weight"), 3)
    biases = np.split(get("attn.in_proj_bias", "attn.qkv.bias"), 3)
    for part, weight, bias in zip(("query", "key", "value"), weights, biases):
        to[f"{attention}{part}/kernel"], to[f"{attention}{part}/bias"] = matrix(weight, 2), bias.reshape(2, -1)
    to[attention + "out/kernel"] = matrix(get("attn.out_proj.weight", "attn.proj.weight"), 2, out=True)
    to[attention + "out/bias"] = get("attn.out_proj.bias", "attn.proj.bias")
    for i, names in enumerate((("mlp.c_fc", "mlp.fc1"), ("mlp.c_proj", "mlp.fc2"))):
        to[f"{ours}MlpBlock_0/Dense_{i}/kernel"] = matrix(get(*(name + ".weight" for name in names)))
        to[f"{ours}MlpBlock_0/Dense_{i}/bias"] = get(*(name + ".bias" for name in names))
    for i in range(2):
        if f"{before}ls_{i + 1}.gamma" in theirs:
            to[f"{ours}LayerScale_{i}/scale"] = theirs[f"{before}ls_{i + 1}.gamma"]


def pooling(theirs, to):
    """Adds SigLIP's pooling of timm."""
    before, ours = "visual.trunk.attn_pool.", "encoder/MAPHead_0/"
    attention = ours + "MultiHeadDotProductAttention_0/"
    to[ours + "probe"] = theirs[before + "latent"]
    weights = [theirs[before + "q.weight"], *np.split(theirs[before + "kv.weight"], 2)]
    biases = [theirs[before + "q.bias"], *np.split(theirs[before + "kv.bias"], 2)]
    for part, weight, bias in zip(("query", "key", "value"), weights, biases):
        to[f"{attention}{part}/kernel"], to[f"{attention}{part}/bias"] = matrix(weight, 2), bias.reshape(2, -1)
    to[attention + "out/kernel"] = matrix(theirs[before + "proj.weight"], 2, out=True)
    to[attention + "out/bias"] = theirs[before + "proj.bias"]
    to[ours + "LayerNorm_0/scale"], to[ours + "LayerNorm_0/bias"] = theirs[before + "norm.weight"], theirs[before + "norm.bias"]
    for i in range(2):
        to[f"{ours}MlpBlock_0/Dense_{i}/kernel"] = matrix(theirs[f"{before}mlp.fc{i + 1}.weight"])
        to[f"{ours}MlpBlock_0/Dense_{i}/bias"] = theirs[f"{before}mlp.fc{i + 1}.bias"]


def tower(theirs, to):
    """Adds the tower of images."""
    width = 16
    if "visual.conv1.weight" in theirs:
        before, last = "visual.transformer.resblocks.", "visual.ln_post."
        kernel, to["encoder/embedding/bias"] = theirs["visual.conv1.weight"], np.zeros(width, np.float32)
        table = theirs["visual.positional_embedding"]
        to["encoder/cls"], to["encoder/pos_embedding"] = (theirs["visual.class_embedding"] + table[0]).reshape(1, 1, -1), table[None, 1:]
        to["encoder/pre_norm/scale"], to["encoder/pre_norm/bias"] = theirs["visual.ln_pre.weight"], theirs["visual.ln_pre.bias"]
        to["head/kernel"], to["head/bias"] = theirs["visual.proj"], np.zeros(theirs["visual.proj"].shape[1], np.float32)
    else:
        before, last = "visual.trunk.blocks.", "visual.trunk.norm."
        kernel, to["encoder/embedding/bias"] = theirs["visual.trunk.patch_embed.proj.weight"], theirs["visual.trunk.patch_embed.proj.bias"]
        to["encoder/pos_embedding"] = theirs["visual.trunk.pos_embed"]
        if "visual.head.proj.weight" in theirs:
            to["head/kernel"], to["head/bias"] = matrix(theirs["visual.head.proj.weight"]), theirs["visual.head.proj.bias"]
    to["encoder/embedding/kernel"] = kernel.transpose(2, 3, 1, 0)
    for i in range(2):
        block(theirs, f"{before}{i}.", f"encoder/Transformer/encoderblock_{i}/", to)
    for part, own in (("weight", "scale"), ("bias", "bias")):
        to["encoder/Transformer/encoder_norm/" + own] = theirs[last + part]


def ours(theirs):
    """Returns the tensors of a file of open_clip under our paths."""
    theirs = {key: value.astype(np.float32) for key, value in theirs.items()}
    to = {"txt/Embed_0/embedding": theirs["text.token_embedding.weight"], "txt/pos_embedding": theirs["text.positional_embedding"][None],
          "txt/head/kernel": matrix(theirs["text.text_projection.weight"]), "txt/head/bias": theirs["text.text_projection.bias"],
          "t": theirs["logit_scale"].reshape(1), "b": theirs["logit_bias"].reshape(1)}
    block(theirs, "text.transformer.resblocks.0.", "txt/Encoder_0/encoderblock_0/", to)
    for part, own in (("weight", "scale"), ("bias", "bias")):
        to["txt/Encoder_0/encoder_norm/" + own] = theirs["text.ln_final." + part]
    tower(theirs, to)
    if "visual.trunk.attn_pool.latent" in theirs:
        pooling(theirs, to)
    return {path: np.ascontiguousarray(values, np.float32) for path, values in to.items()}


def ids_of(tokenizer, text):
    """Returns the ids of an ASCII text by the vocabulary of tokenizer.json: the pieces with the largest sum of scores, and the end."""
    vocabulary = {piece: (score, i) for i, (piece, score) in enumerate(tokenizer["model"]["vocab"])}
    text = "\u2581" + text.lower().replace(" ", "\u2581")
    best = [(0.0, [])]
    for end in range(1, len(text) + 1):
        found = [(best[begin][0] + vocabulary[text[begin:end]][0], [*best[begin][1], vocabulary[text[begin:end]][1]])
                 for begin in range(end) if text[begin:end] in vocabulary and best[begin]]
        best.append(max(found, default=None))
    return best[-1][1] + tokenizer["post_processor"]["special_tokens"]["</s>"]["ids"]


class OpenClip(harness.RunTest):
    path, export = vits.VitTest.path, vits.VitTest.export

    def setUp(self):
        super().setUp()
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, pixels in enumerate(IMAGES):
                Image.fromarray(pixels).save(self.path("x.png"))
                with open(self.path("x.png"), "rb") as f:
                    harness.add_member(tar, f"{i:06}.png", f.read())
                harness.add_member(tar, f"{i:06}.txt", TEXTS[i % len(TEXTS)].encode())
                harness.add_member(tar, f"{i:06}.cls", str(i % len(SHORT)).encode())

    def set_deck(self, name, dim, head="false"):
        trunk, pool, _ = FILES[name]
        self.good = DECK.format(dir=self.dir, data=self.data, tokenizer=harness.TOKENIZER, vocabulary=VOCABULARY, dim=dim, head=head,
                                length=LENGTH, trunk=trunk, pool=pool, texts=json.dumps(SHORT))

    def run_of(self, name):
        """Makes a run of one step that changes nothing and began with a recorded file. Returns the file's tensors."""
        theirs = read_safetensors(f"{PAIRS}{name}.safetensors")
        head = "true" if {"visual.proj", "visual.head.proj.weight"} & set(theirs) else "false"
        self.set_deck(name, theirs["text.text_projection.bias"].shape[0], head)
        np.savez(self.path(name + ".npz"), **ours(theirs))
        self.dir = self.path("run_" + name)
        self.expect(0, args=[self.deck(), "--dir", self.dir, *harness.sets(f"init.from={self.path(name)}.npz", "init.dont_load=[]")])
        return theirs

    def near(self, got, want, what):
        self.assertEqual(got.shape, want.shape, what)
        self.assertLess(np.abs(got - want).max(), 1e-5 * np.abs(want).max(), what)

    def check_features(self, name, theirs):
        """The trainer computes what open_clip did."""
        features = self.images_features(name)
        if "head/kernel" in (mine := ours(theirs)):
            features = features @ mine["head/kernel"] + mine["head/bias"]
        self.near(features, RECORDED[name + "/image"], name)
        scale, bias = (theirs[key].astype(np.float32) for key in ("logit_scale", "logit_bias"))
        self.near(np.exp(scale) * self.cosines() + bias, RECORDED[name + "/logits"][:, :len(SHORT)], name)

    def images_features(self, name):
        out = self.path(name + ".h5")
        self.expect(0, args=[self.deck(), "--dir", self.dir, "--mode", "extract", *harness.sets(f"extract.out={out}")])
        with h5py.File(out) as f:
            return f["features/pre_logits"][()].reshape(len(IMAGES), -1)

    def cosines(self):
        self.expect(0, args=[self.deck(), "--dir", self.dir, "--mode", "predict", *harness.sets("predict.evaluator=scores")])
        with h5py.File(self.dir + "/predict/scores.h5") as f:
            return f["score"][()]

    def check_settings(self, name, folder, kind):
        with open(folder + "/open_clip_config.json", encoding="utf-8") as f:
            config = json.load(f)
        model, images = config["model_cfg"], config["preprocess_cfg"]
        self.assertEqual(images, {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"})
        self.assertEqual(model["embed_dim"], RECORDED[name + "/image"].shape[1])
        self.assertTrue(model["custom_text"])
        text, vision = model["text_cfg"], model["vision_cfg"]
        self.assertEqual((text["pool_type"], text["context_length"], text["layers"], int(text["mlp_ratio"] * text["width"])),
                         (FILES[name][1], LENGTH, 1, 48))
        self.assertEqual("timm_model_name" in vision, kind == "timm")
        if kind == "own":
            self.assertEqual((vision["layers"], vision["head_width"], vision["norm_kwargs"]), (2, 8, {"eps": 1e-5}))
            self.assertNotIn("act_kwargs", vision)
        else:
            self.assertEqual(vision["timm_model_name"], f"local-dir:{folder}/image_tower")
            with open(folder + "/image_tower/config.json", encoding="utf-8") as f:
                self.assertEqual(json.load(f)["model_args"]["global_pool"], vision["timm_pool"])
        with open(folder + "/tokenizer.json", encoding="utf-8") as f:
            tokenizer = json.load(f)
        for text, ids in zip(TEXTS, RECORDED["ids"]):
            self.assertEqual(ids_of(tokenizer, text)[:LENGTH - 1], [i for i in ids.tolist() if i][:LENGTH - 1], text)
        with open(folder + "/README.md", encoding="utf-8") as f:
            card = f.read()
        self.assertIn("library_name: open_clip\n", card)
        self.assertIn("pipeline_tag: zero-shot-image-classification\n", card)
        self.assertEqual("timm_model_name" in card, kind == "timm")

    def test_pairs(self):
        for name, (_, _, kind) in FILES.items():
            with self.subTest(name):
                theirs, folder = self.run_of(name), self.path("folder_" + name)
                self.check_features(name, theirs)
                said = self.export(self.dir, folder, "--as", "open_clip", "--license", "cc0-1.0")
                self.assertIn(f"open_clip.create_model_and_transforms('local-dir:{folder}')", said)
                back = read_safetensors(folder + "/open_clip_model.safetensors")
                self.assertEqual(sorted(back), sorted(theirs))
                for key, value in theirs.items():
                    self.assertEqual(back[key].shape, value.shape, key)
                    if key == "visual.positional_embedding":  # the class token takes its position
                        np.testing.assert_array_equal(back[key][1:], value[1:])
                        self.assertFalse(back[key][0].any())
                    elif key != "visual.class_embedding":
                        self.assertEqual(back[key].tobytes(), value.astype(np.float32).tobytes(), key)
                self.check_settings(name, folder, kind)
                self.check_reading(name, ours(theirs))
                if not NO_OPEN_CLIP:
                    self.check_open_clip(name, folder)

    def read(self, name, file, *left):
        """Returns the parameters of a run that begins with a file of another program."""
        run = self.path("read_" + name)
        self.expect(0, args=[self.deck(), "--dir", run, *harness.sets(f"init.from={file}", f"init.dont_load={json.dumps(left)}")])
        with h5py.File(run + "/checkpoints/0000000001.h5") as f:
            paths = []
            f["params"].visititems(lambda path, data: paths.append(path) if isinstance(data, h5py.Dataset) else None)
            return {path: f["params/" + path][()] for path in paths}

    def check_reading(self, name, want):
        """The trainer reads both towers of open_clip's file. open_clip's own ViT has no bias of its head."""
        got = self.read(name, f"{PAIRS}{name}.safetensors", *(["head/.*"] if name == "clip" else []))
        self.assertEqual(sorted(got), sorted(want))
        for path, values in want.items():
            if name != "clip" or not path.startswith("head/"):
                np.testing.assert_array_equal(got[path], values, path)

    def test_pairs_of_transformers(self):
        """A pair that transformers made: both towers are read, compute what it did, and go to open_clip."""
        self.set_deck("siglip", RECORDED["transformers/image"].shape[1])
        file = f"{PAIRS}transformers.safetensors"
        self.read("transformers", file)
        self.dir = self.path("read_transformers")
        scale, bias = (read_safetensors(file)[name].astype(np.float32).reshape(()) for name in ("logit_scale", "logit_bias"))
        self.near(self.images_features("transformers"), RECORDED["transformers/image"], "images")
        self.near(np.exp(scale) * self.cosines() + bias, RECORDED["transformers/logits"][:, :len(SHORT)], "logits")
        self.export(self.dir, self.path("pair"), "--as", "open_clip")
        if not NO_OPEN_CLIP:
            self.check_open_clip("transformers", self.path("pair"))
        # The trainer refuses a tensor of the texts that it does not know, and names it.
        tensors = read_safetensors(file)
        tensors["text_model.embeddings.extra"] = np.zeros(2, np.float32)
        save_safetensors(tensors, self.path("more.safetensors"))
        self.expect(5, "only in the file: txt/text_model.embeddings.extra", args=[self.deck(), "--dir", self.path("no"), *harness.sets(
            f"init.from={self.path('more.safetensors')}", "init.dont_load=[]")])

    def check_open_clip(self, name, folder):
        args = [vits.PYTHON, "-c", WITH_OPEN_CLIP, folder, vits.VITS + "features.npz", json.dumps(TEXTS), self.path("o.npz")]
        done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=harness.GUARD)
        self.assertEqual(done.returncode, 0, done.stderr)
        with np.load(self.path("o.npz")) as got:
            np.testing.assert_array_equal(got["ids"], RECORDED["ids"])
            self.near(got["x"], IMAGES.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1, name)
            for part in ("image", "text", "logits"):
                self.near(got[part], RECORDED[f"{name}/{part}"], f"{name}/{part}")

    def test_names_of_timm(self):
        """Sizes that timm knows by a name need no path."""
        name_of = harness.loaded("open_clip_names.py").name_of_vit
        facts = {"width": 768, "depth": 12, "heads": 12, "mlp": 3072, "patch": 16, "size": 256, "gelu": "erf", "epsilon": 1e-6,
                 "token": False, "registers": 0, "scaled": False, "gated": False, "rotary": False, "normed": False, "pooled": True}
        self.assertEqual(name_of(facts), "vit_base_patch16_siglip_256")
        self.assertEqual(name_of({**facts, "pooled": False, "size": 224}), "vit_base_patch16_siglip_gap_224")
        self.assertEqual(name_of({**facts, "patch": 32, "gelu": "tanh"}), "vit_base_patch32_siglip_256")
        self.assertEqual(name_of({**facts, "width": 1152, "depth": 27, "heads": 16, "mlp": 4304, "patch": 14, "size": 378}),
                         "vit_so400m_patch14_siglip_378")
        for change in ({"gelu": "tanh"}, {"size": 288}, {"scaled": True}, {"mlp": 3000}, {"epsilon": 1e-5}, {"token": True}):
            self.assertEqual(name_of({**facts, **change}), "", change)

    def test_what_is_refused(self):
        self.run_of("siglip")
        def refused(words, *more, run=None):
            self.assertIn(words, re.sub(r"\s+", " ", self.export(run or self.dir, self.path("no"), "--as", "open_clip", *more, code=2)))
            self.assertFalse(os.path.exists(self.path("no")))
        refused("by a bilinear or bicubic resize", "--preprocess", "decode | resize_small(40) | central_crop(32) | value_range(-1, 1)")
        refused("no such file; name the run's tokenizer", "--tokenizer", self.path("none.model"))
        refused("is not a SentencePiece model", "--tokenizer", vits.VITS + "timm.safetensors")
        def other(name, *pairs):
            self.expect(0, args=[self.deck(), "--dir", self.path(name), *harness.sets(*pairs)])
            return self.path(name)
        refused('model.text.pool is "mean": take --as timm, onnx or big_vision for the encoder of images',
                run=other("mean", "model.text.pool=mean"))
        text = self.good.replace('eos="sticky"', 'eos="yes"')
        self.expect(0, args=[self.deck(text), "--dir", self.path("yes")])
        refused('eos = "yes", whose end may be cut off', run=self.path("yes"))
        convnext = re.sub(r"\ntrunk .*", '\ntrunk = { kind = "convnext", depths = [1, 2], widths = [8, 16] }', self.good)
        self.expect(0, args=[self.deck(convnext), "--dir", self.path("convnext")])
        refused("whose tensors have other names: take --as torchvision or onnx for the encoder of images", run=self.path("convnext"))
        self.good = vits.DECK.format(dir=self.path("classes"), data=self.data)
        self.expect(0, args=[self.deck()])
        refused("and this model is a classifier: take --as timm", run=self.path("classes"))


if __name__ == "__main__":
    harness.main()
