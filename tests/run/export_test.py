#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/export: bits of every tensor, exported and imported again, and the captioner in PyTorch.

PyTorch is optional: TORCH_PYTHON names a Python that has it (with NumPy and Pillow), if this one has not.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

import h5py
import numpy as np

import harness

GOLDEN = harness.SOURCE + "/tests/golden"
TOOL = harness.SOURCE + "/tools/export"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
ONE_STEP = ["--set", "train.total_steps=1", "--set", "schedule.default.warmup_steps=1", "--set", "checkpoint.every_steps=1"]
EMA = "\n[ema]\ndecay = 0.9\n"
FROZEN = '[[optimizer.rule]]\nmatch = "encoder/.*"\nfrozen = true\n'
FIRST_RULE = '[[optimizer.rule]]\nmatch       = ".*/kernel"'


def no_torch():
    """Returns why PyTorch cannot be used, or ""."""
    needs = "import torch, numpy, PIL; torch.nn.functional.scaled_dot_product_attention"
    done = subprocess.run([PYTHON, "-c", needs], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{PYTHON}: {done.stderr.strip().splitlines()[-1]}"


NO_TORCH = no_torch()


def read_safetensors(path):
    """Returns (tensors by name, the names' types, metadata) of a file; bf16 as uint16."""
    types = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": np.uint16}
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    about = header.pop("__metadata__")
    tensors = {name: np.frombuffer(data[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}
    return tensors, {name: t["dtype"] for name, t in header.items()}, about


class Given:
    """Weights for the tool's writers that come from a dictionary: name -> (type, array)."""

    def __init__(self, tensors, deck=None):
        self.tensors, self.step, self.name, self.places = tensors, 3, "raw", dict.fromkeys(tensors)
        self.deck = lambda: deck

    def type_of(self, name):
        return self.tensors[name][0]

    def shape(self, name):
        return list(self.tensors[name][1].shape)

    def values(self, name):
        return self.tensors[name][1]


class Export(harness.RunTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def tool(self, *args, code=0):
        done = subprocess.run([TOOL, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout

    def group(self, root, step, run=None):
        out = {}
        with h5py.File(f"{run or self.dir}/checkpoints/{step:010}.h5") as f:
            f[root].visititems(lambda name, d: out.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
        return out

    def same(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            self.assertEqual((got[name].shape, got[name].dtype), (value.shape, value.dtype), name)
            self.assertEqual(got[name].tobytes(), value.tobytes(), name)

    def npz(self, path):
        with np.load(path) as arrays:
            self.assertTrue(all(name.startswith("params/") for name in arrays))
            return {name.removeprefix("params/"): arrays[name] for name in arrays}

    def imported(self, source, name):
        """Returns the weights of a new run that begins with those of the file."""
        self.expect(0, "from=init", args=[self.deck(), "--dir", self.path(name), "--set", f"init.from={source}", *ONE_STEP])
        return self.group("params", 1, self.path(name))

    def test_every_bit(self):
        self.good = self.changed((FIRST_RULE, FROZEN + FIRST_RULE)) + EMA
        self.expect(0, args=[self.deck()], ranks=2)
        raw, average = self.group("params", 12), self.group("ema", 12)
        self.assertTrue(average and all(name.startswith(("decoder/", "pos_embedding_decoder")) for name in average))
        mean = {**raw, **average}  # frozen tensors have no average
        self.assertNotEqual(raw["decoder/LogitsDense/kernel"].tobytes(), mean["decoder/LogitsDense/kernel"].tobytes())
        for weights, want in (("raw", raw), ("ema", mean)):
            with self.subTest(weights):
                npz, safe = self.path(weights + ".npz"), self.path(weights + ".safetensors")
                count = sum(value.size for value in want.values())
                self.assertIn(f"{len(want)} tensors, {count:,} values, step 12, weights {weights}",
                              self.tool(self.dir, npz, "--weights", weights))
                self.tool(f"{self.dir}/checkpoints/0000000012.h5", safe, "--weights", weights)
                self.same(self.npz(npz), want)
                tensors, types, about = read_safetensors(safe)
                self.same(tensors, want)
                self.assertEqual(set(types.values()), {"F32"})
                self.assertEqual((about["step"], about["weights"]), ("12", weights))
                for source in (npz, safe):
                    self.same(self.imported(source, f"from_{os.path.basename(source)}"), want)
        # An older checkpoint is another file; the same export has the same bytes.
        self.tool(f"{self.dir}/checkpoints/0000000008.h5", self.path("old.npz"))
        self.same(self.npz(self.path("old.npz")), self.group("params", 8))
        self.tool(self.dir + "/checkpoints", self.path("again.npz"))
        with open(self.path("raw.npz"), "rb") as a, open(self.path("again.npz"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_types(self):
        """Tensors of all types keep their bits; checkpoints of today hold f32 weights alone."""
        self.expect(0, args=[self.deck(), *ONE_STEP])
        made, want = {}, {}
        for i, (name, value) in enumerate(sorted(self.group("params", 1).items())):
            kind = ("bf16", "f16", "f32", "f64")[i % 4]
            value = np.random.default_rng(i).standard_normal(value.shape).astype(np.float32)
            bits = {"bf16": (value.view(np.uint32) >> 16).astype(np.uint16), "f16": value.astype(np.float16), "f32": value,
                    "f64": value.astype(np.float64) / 3}[kind]
            made[name] = (kind, bits)
            want[name] = (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else bits.astype(np.float32)
        tool = harness.loaded("export")
        tool.write_npz(Given(made), self.path("t.npz"))
        tool.write_safetensors(Given(made), self.path("t.safetensors"))
        self.check_aligned(self.path("t.safetensors"))
        arrays, (tensors, types, _) = self.npz(self.path("t.npz")), read_safetensors(self.path("t.safetensors"))
        for name, (kind, bits) in made.items():
            self.assertEqual((tensors[name].tobytes(), types[name]), (bits.tobytes(), kind.upper()), name)
            self.assertEqual((arrays[name].tobytes(), arrays[name].dtype), (bits.tobytes(), "V2" if kind == "bf16" else bits.dtype), name)
        for source in ("t.npz", "t.safetensors"):
            self.same(self.imported(self.path(source), "from_" + source), want)

    def check_aligned(self, path):
        """Checks that each tensor begins at a multiple of the size of its elements, as readers of mapped files need it."""
        sizes = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "U8": 1}
        with open(path, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(length))
        header.pop("__metadata__")
        self.assertEqual((8 + length) % 8, 0)
        ends = [0]
        for name, t in sorted(header.items(), key=lambda row: row[1]["data_offsets"]):
            begin, end = t["data_offsets"]
            self.assertEqual((begin, begin % sizes[t["dtype"]]), (ends[-1], 0), name)
            ends.append(end)
        self.assertEqual(os.path.getsize(path), 8 + length + ends[-1])

    def test_tensors_begin_at_multiples_of_their_elements(self):
        """Odd numbers of small elements come behind large ones, whatever the names are. So do the tables of a folder."""
        made = {"a": ("bf16", np.zeros(3, np.uint16)), "b": ("f64", np.zeros((1, 3))), "c": ("f16", np.zeros(5, np.float16)),
                "d": ("f32", np.zeros(3, np.float32)), "e": ("f64", np.zeros(1)), "f": ("f32", np.zeros((), np.float32))}
        tool = harness.loaded("export")
        tool.write_safetensors(Given(made), self.path("odd.safetensors"), {"table": np.zeros(7, np.float32)})
        self.check_aligned(self.path("odd.safetensors"))

    def test_what_is_refused(self):
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=4"])
        checkpoint = f"{self.dir}/checkpoints/0000000004.h5"
        before = sorted(os.listdir(self.folder))
        for args, words in ((("a.npz", "--weights", "ema"), "holds no average"), (("a.pt",), ".pt is not written"),
                            (("data",), "data exists"), (("no/a.npz",), "No such file"), (("~/a.npz",), "only a shell replaces"),
                            (("s3://b/a.npz",), "is an address"),
                            (("f", "--tokenizer", "none.model"), "none.model: no such file"),
                            (("f", "--tokenizer", "deck.toml"), "not a SentencePiece model"),
                            (("f", "--preprocess", "decode | resize(32) | value_range"), "yields 32 x 32 pixels, but the model takes 16"),
                            (("f", "--preprocess", "decode | flip_lr | resize(16) | value_range"), "decode | flip_lr | resize"),
                            (("f", "--preprocess", "decode | resize(16, antialias=True) | value_range"), "antialias True"),
                            (("f", "--preprocess", "decode | resize(16"), "not understood at 'resize(16'")):
            with self.subTest(args):
                self.assertIn(words, self.tool(checkpoint, *args, code=2))
                self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertIn("none.h5: no such file", self.tool("none.h5", "a.npz", code=2))
        # One bit of one tensor; the file of another program.
        with h5py.File(checkpoint) as f:
            at = f["params/decoder/EmbedTargets/embedding"].id.get_offset() + 2000
        with open(checkpoint, "r+b") as f:
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 1]))
        for out in ("a.npz", "a.safetensors", "f"):
            self.assertIn("/params/decoder/EmbedTargets/embedding is damaged", self.tool(checkpoint, out, code=5))
        self.assertIn("does not begin as a checkpoint", self.tool(self.data + "/train-000.tar", "a.npz", code=5))
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_other_models_and_decks(self):
        tool = harness.loaded("captioner_files.py")
        with self.assertRaisesRegex(Exception, "the model is a classifier"):
            tool.config_of({"model": {"kind": "classifier"}})
        encoder = {"patch": 8, "depth": 1, "width": 24, "mlp": 32, "heads": 2}
        deck = {"model": {"kind": "cappa", "image_size": 16, "vocab_size": 300, "seq_len": 9, "posemb": "learn", "pad_id": 0,
                          "encoder": encoder, "decoder": {"depth": 3, "width": 0, "mlp": 64, "heads": 0}},
                "train": {"data": "b", "mixture": {}}, "tokenizer": {"x": {"kind": "bytes"}},
                "data": {"a": {"preprocess": "@b"},
                         "b": {"preprocess": 'decode|inception_crop(16)|value_range(0,1)\n|tokenize("x", 9, eos="yes")'},
                         "c": {"preprocess": """ decode(precise=True) | lower | resize([16, 16], method='bilinear')
                               | choice(inkey="a|b") | value_range(vmin=-2, vmax=+.5, in_max=127.5, clip_values=false) """}}}
        config, model = tool.config_of(deck)
        self.assertIsNone(model)
        self.assertEqual(config["image"], {"height": 16, "width": 16, "value_range": [0, 127.5, -2, 0.5]})
        self.assertEqual(config["decoder"], {"depth": 3, "width": 24, "mlp": 64, "heads": 2})
        self.assertEqual((config["encoder"], config["max_len"], config["end_ids"]), (encoder, 9, [0, 1]))
        self.assertEqual((len(config["vocabulary"]), config["vocabulary"][3 + ord("a")]), (300, ord("a")))
        del deck["data"]["c"]
        with self.assertRaisesRegex(Exception, "decode . inception_crop . value_range.*--preprocess"):
            tool.config_of(deck)
        deck["data"]["b"]["preprocess"] = 'decode | resize(16) | value_range | tokenize("x", max_len=9, prefix="a photo of")'
        with self.assertRaisesRegex(Exception, "begin with prefix"):
            tool.config_of(deck)
        for key, value in (("gelu", "erf"), ("norm_epsilon", 1e-5), ("layer_scale", 1), ("swiglu", True)):
            other = {**deck, "model": {**deck["model"], "encoder": {**encoder, key: value}}}
            with self.assertRaisesRegex(Exception, f"model.encoder.{key} = .*and the PyTorch code has"):
                tool.config_of(other)

    def test_chunked_checkpoint_of_tensorstore(self):
        """data/chunked_checkpoint.tar.xz was written by TensorStore 0.1.86, as big_vision's trainer does (one zarr array for
        each tensor, chunks as two devices hold them).

        Tensor n of the sorted names holds (37 k + 101 n) mod 255 - 127 over 256 at its element k; biases are 0. Beside them
        are momenta in bfloat16, counters, and the pointer to the newest checkpoint."""
        with tarfile.open(harness.SOURCE + "/tests/data/chunked_checkpoint.tar.xz") as tar:
            tar.extractall(self.folder)
        folder = self.path("checkpoint.bv-000000012-tmp")
        chunks = [len(os.listdir(f"{folder}/{name}")) - 1 for name in os.listdir(folder)]
        self.assertEqual(set(chunks), {1, 2})
        small = ["--set", "model.encoder.width=16", "--set", "model.encoder.mlp=24"]
        for source, ranks, dir in ((folder, 0, "a"), (self.path("checkpoint.bv"), 3, "b")):
            self.expect(0, "loaded 40 of 40 tensors", "unused in the file 45", ranks=ranks,
                        args=[self.deck(), "--dir", self.path(dir), "--set", f"init.from={source}", *ONE_STEP, *small])
            for i, (name, value) in enumerate(sorted(self.group("params", 1, self.path(dir)).items())):
                k = np.arange(value.size, dtype=np.int64)
                want = (((k * 37 + i * 101) % 255 - 127) * (not name.endswith("/bias"))).astype(np.float32) / 256
                self.assertEqual(value.tobytes(), want.tobytes(), name)
        # Without a chunk the folder is no checkpoint.
        os.remove(folder + "/params~decoder~EmbedTargets~embedding/0.1")
        self.expect(5, "params/decoder/EmbedTargets/embedding: chunk 0.1 is missing", "never finished", ranks=2,
                    args=[self.deck(), "--dir", self.path("c"), "--set", f"init.from={folder}", *ONE_STEP, *small])

    def shown(self):
        """Returns (images, labels, captions) of the data set as the model gets them."""
        self.expect(0, args=[self.deck(), "--mode", "show", "--dir", self.path("show"), "--set", 'show.data="train"',
                             "--set", "show.examples=40"])
        with h5py.File(self.path("show/show.h5")) as f:
            examples = json.loads(f["examples"][()])
            return f["model/image"][()], f["model/labels"][()], [e["caption"] for e in examples], [e["key"] for e in examples]

    def test_folder(self):
        self.expect(0, args=[self.deck()], ranks=2)
        self.tool(self.dir, self.path("out"))
        self.assertEqual(sorted(os.listdir(self.path("out"))),
                         ["config.json", "model.safetensors", "tokenizer.model", "torch_captioner.py"])
        self.same(read_safetensors(self.path("out/model.safetensors"))[0], self.group("params", 12))
        with open(harness.TOKENIZER, "rb") as a, open(self.path("out/tokenizer.model"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        with open(harness.SOURCE + "/tools/torch_captioner.py", encoding="utf-8") as a, \
                open(self.path("out/torch_captioner.py"), encoding="utf-8") as b:
            text = a.read()
            self.assertEqual(text, b.read())
        self.assertLessEqual(len(text.splitlines()), 80)
        self.assertEqual(set(re.findall(r"(?m)^(?:import|from) (\w+)", text)), {"json", "sys", "numpy", "torch", "PIL"})
        with open(self.path("out/config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual((config["step"], config["weights"], config["max_len"], config["end_ids"]), (12, "raw", 12, [0, 1]))
        self.assertEqual(config["image"], {"height": 16, "width": 16, "value_range": [0, 255, -1, 1]})
        self.assertEqual(config["encoder"], {"patch": 8, "depth": 1, "width": 32, "mlp": 48, "heads": 2})
        # The pieces of the labels join to the captions that the trainer reads from them.
        _, labels, captions, _ = self.shown()
        for row, caption in zip(labels, captions):
            pieces = [config["vocabulary"][i] for i in row]
            self.assertEqual("".join(pieces).removeprefix(" "), caption)

    def test_pieces(self):
        """The vocabularies of both golden tokenizers join to the golden texts."""
        tool = harness.loaded("captioner_files.py")
        with h5py.File(GOLDEN + "/tokenizer.h5") as f:
            for op, model in (("op6", "unigram"), ("op8", "bpe")):
                vocabulary, end = tool.sentencepiece(f"{GOLDEN}/tokenizer/{model}.model")
                self.assertEqual(end, 1)
                compared = 0
                for text, ids in zip(f["text"].asstr()[()], f[op][()]):
                    if end not in ids or 2 in ids or not text.isascii() or not text.isprintable() or text != " ".join(text.split()):
                        continue  # cut, unknown pieces, or changed by normalization
                    parts = [vocabulary[i] for i in ids[:list(ids).index(end)]]
                    joined = b"".join(bytes([p]) if isinstance(p, int) else p.encode() for p in parts).decode()
                    self.assertEqual(joined.removeprefix(" "), re.sub("[A-Z]", lambda m: m[0].lower(), text))
                    compared += 1
                self.assertGreater(compared, 15, model)

    def torch(self, folder, code):
        """Runs code in a Python with PyTorch; `t` is the module in the folder, `out` a dictionary that is returned."""
        script = ("import sys\nsys.path.insert(0, sys.argv[1])\nimport numpy as np, torch, torch_captioner as t\n"
                  "torch.set_grad_enabled(False)\nout = {}\n" + code + "\nnp.savez(sys.argv[2], **out)\n")
        done = subprocess.run([PYTHON, "-c", script, folder, self.path("torch.npz")], capture_output=True, text=True,
                              timeout=harness.GUARD, cwd=self.folder, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with np.load(self.path("torch.npz")) as arrays:
            return {name: arrays[name] for name in arrays}

    @unittest.skipIf(NO_TORCH, NO_TORCH)
    def test_torch_gives_the_published_logits(self):
        """The PyTorch code with the parameters of the golden cases gives the published code's logits."""
        tool, files = harness.loaded("export"), harness.loaded("captioner_files.py")
        for case in ("ar", "parallel", "sincos"):
            with self.subTest(case), h5py.File(f"{GOLDEN}/case_{case}.h5") as f:
                tensors = {}
                f["params_init"].visititems(lambda n, d: tensors.__setitem__(n, ("f32", d[()])) if isinstance(d, h5py.Dataset) else None)
                options = json.loads(f["config"].attrs["json"])["model"]
                more = {}
                if options["posemb_type"] == "sincos2d":
                    height, width = (n // 8 for n in f["batch/image"].shape[1:3])
                    more = {"encoder/pos_embedding": files.sincos2d(height, width, options["emb_dim"]),
                            "pos_embedding_decoder": files.sincos2d(1, options["seq_len"], options["decoder_emb_dim"])}
                folder = self.path(case)
                os.mkdir(folder)
                tool.write_safetensors(Given(tensors), folder + "/model.safetensors", more)
                with open(folder + "/config.json", "w", encoding="utf-8") as config:
                    json.dump({"encoder": {"depth": options["num_layers"]}, "decoder": {"depth": options["decoder_num_layers"]}}, config)
                shutil.copy(tool.HERE + "/torch_captioner.py", folder)
                labels, eval_logits = f["batch/labels"][()], f"forward/{'eval_' * ('eval_logits' in f['forward'])}logits"
                np.savez(folder + "/in.npz", image=f["batch/image"][()], ids=np.pad(labels, ((0, 0), (1, 0)))[:, :-1].astype(np.int64))
                got = self.torch(folder, "c, x = t.Captioner(sys.argv[1]), np.load(sys.argv[1] + '/in.npz')\n"
                                 "e = c.encode(torch.from_numpy(x['image']))\nout['encoded'] = e.numpy()\n"
                                 "out['logits'] = c.decode(e, torch.from_numpy(x['ids'])).numpy()")
                for name, want in (("encoded", f["forward/encoded"]), ("logits", f[eval_logits])):
                    off = np.abs(got[name] - want[()]).max()
                    print(f"{case} {name}: off by at most {off:.2g}, allowed {want.attrs['tol']:.2g}", file=sys.stderr)
                    self.assertLessEqual(off, want.attrs["tol"], name)

    @unittest.skipIf(NO_TORCH, NO_TORCH)
    def test_torch_captions_images(self):
        """Images, loss and captions of the PyTorch code are those of the run that it was exported from."""
        longer = ["--set", "train.total_steps=200", "--set", "checkpoint.every_steps=200", "--set", "eval.val.every_steps=200"]
        self.good = self.changed(("resize(16)", "resize(24)"), ("image_size       = 16", "image_size       = 24"))
        self.expect(0, args=[self.deck(), *longer], ranks=2)
        self.tool(self.dir, self.path("out"))
        images, labels, captions, keys = self.shown()
        for shard in (0, 1):
            with tarfile.open(f"{self.data}/train-{shard:03}.tar") as tar:
                for member in tar.getmembers():
                    with open(self.path(os.path.basename(member.name)), "wb") as f:
                        f.write(tar.extractfile(member).read())
        files = [next(name for name in os.listdir(self.folder) if name.endswith(".png") and name[:-4] in key) for key in keys]
        with open(self.path("list.json"), "w", encoding="utf-8") as f:
            json.dump(files, f)
        np.savez(self.path("labels.npz"), labels=labels.astype(np.int64))
        got = self.torch(self.path("out"), """
import json
c, files, labels = t.Captioner(sys.argv[1]), json.load(open("list.json")), torch.from_numpy(np.load("labels.npz")["labels"])
x = torch.stack([c.image(name) for name in files])
out["images"] = x.numpy()
ids = torch.nn.functional.pad(labels, (1, 0))[:, :-1]
nll = torch.nn.functional.cross_entropy(c.decode(c.encode(x), ids).flatten(0, 1), labels.flatten(), reduction="none").reshape(labels.shape)
out["nll"] = (nll * (labels != 0)).sum(1).numpy()
out["captions"] = np.array(c.caption(x))
out["alone"] = np.array([c.caption(one[None])[0] for one in x])
""")
        self.assertEqual(got["images"].tobytes(), images.tobytes())
        row = self.rows("eval")[-1]
        self.assertAlmostEqual(float(got["nll"].mean(dtype=np.float64)), row["perplexity"], delta=1e-5 * row["perplexity"])
        self.assertEqual(got["captions"].tolist(), got["alone"].tolist())
        right = np.mean([a == b for a, b in zip(got["captions"], captions)])
        print(f"{right:.0%} of the captions are those of the training set", file=sys.stderr)
        self.assertGreater(right, 0.5)
        # The folder works as a program too.
        done = subprocess.run([PYTHON, self.path("out/torch_captioner.py"), *files[:3]], capture_output=True, text=True, cwd=self.folder,
                              timeout=harness.GUARD, check=False)
        self.assertEqual(done.stdout, "".join(f"{name}\t{text}\n" for name, text in zip(files, got["captions"][:3])), done.stderr)


harness.main()
