#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests initial weights ([init]) and branches in the real program: every tensor bit by bit, on
several meshes, and bad files."""
import io
import json
import os
import struct
import zipfile

import h5py
import numpy as np

import harness

try:
    from safetensors.numpy import save_file as save_safetensors
except ImportError:
    # Debian has no package of safetensors, so this function writes the documented format (length,
    # JSON header, data).
    def save_safetensors(tensors, path, bf16=()):
        header, at = {}, 0
        names = {"float32": "F32", "float16": "F16", "float64": "F64", "uint16": "BF16", "int32": "I32"}
        for name, value in tensors.items():
            header[name] = {"dtype": names[str(value.dtype)], "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
            at += value.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for value in tensors.values():
                f.write(np.ascontiguousarray(value).tobytes())

ONE_STEP = ["--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=20", "--set", "train.total_steps=2",
            "--set", "schedule.default.warmup_steps=1"]


def inventory(E=32, M=48, heads=2, patches=4, patch=8, depth=2, layers=2, V=400, L=12):
    """Returns names and shapes of cappa.md 1.7 (no decoder biases) for a small model; the
    decoder is as wide as the encoder."""
    out = {"encoder/embedding/kernel": (patch, patch, 3, E), "encoder/embedding/bias": (E,), "encoder/pos_embedding": (1, patches, E)}

    def attention(at, bias):
        for name in ("query", "key", "value"):
            out[f"{at}/{name}/kernel"] = (E, heads, E // heads)
            if bias:
                out[f"{at}/{name}/bias"] = (heads, E // heads)
        out[f"{at}/out/kernel"] = (heads, E // heads, E)
        if bias:
            out[f"{at}/out/bias"] = (E,)

    def norm(at, bias=True):
        out[at + "/scale"] = (E,)
        if bias:
            out[at + "/bias"] = (E,)

    for i in range(depth):
        at = f"encoder/Transformer/encoderblock_{i}"
        norm(at + "/LayerNorm_0"), norm(at + "/LayerNorm_1")
        attention(at + "/MultiHeadDotProductAttention_0", True)
        out.update({f"{at}/MlpBlock_0/Dense_0/kernel": (E, M), f"{at}/MlpBlock_0/Dense_0/bias": (M,),
                    f"{at}/MlpBlock_0/Dense_1/kernel": (M, E), f"{at}/MlpBlock_0/Dense_1/bias": (E,)})
    norm("encoder/Transformer/encoder_norm")
    out["pos_embedding_decoder"] = (1, L, E)
    out["decoder/EmbedTargets/embedding"] = (V + 1, E)
    for i in range(layers):
        at = f"decoder/EncDecBlock{i}"
        for n in (1, 2, 3):
            norm(f"{at}/LayerNorm{n}", False)
        attention(at + "/SelfAttn", False), attention(at + "/CrossAttn", False)
        out.update({f"{at}/MLP/Dense_0/kernel": (E, M), f"{at}/MLP/Dense_1/kernel": (M, E)})
    norm("decoder/LayerNorm")
    out.update({"decoder/LogitsDense/kernel": (E, V), "decoder/LogitsDense/bias": (V,)})
    return out


def made(shapes, seed=1):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) * np.float32(0.1) for name, shape in shapes.items()}


class Init(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.good = self.changed(("patch = 8, depth = 1", "patch = 8, depth = 2"), ("decoder          = { depth = 1 }",
                                                                                   "decoder          = { depth = 2 }"))
        self.shapes = inventory()
        self.values = made(self.shapes)

    def path(self, name):
        return os.path.join(self.folder, name)

    def npz(self, tensors, name="w.npz", save=np.savez):
        save(self.path(name), **tensors)
        return self.path(name)

    def start(self, code, source, *fragments, extra=(), ranks=0, dir="run"):
        self.expect(code, *fragments, ranks=ranks,
                    args=[self.deck(), "--dir", self.path(dir), "--set", f"init.from={source}", *ONE_STEP, *extra])

    def params(self, dir="run", step=1):
        """Returns the values after step 1: the schedule is 0 there (warm-up), so they are the
        initial values."""
        with h5py.File(f"{self.path(dir)}/checkpoints/{step:010}.h5") as f:
            out = {}
            f["params"].visititems(lambda name, d: out.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
            return out, f.attrs["origin"].decode()

    def same(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            self.assertEqual(got[name].shape, value.shape, name)
            self.assertEqual(got[name].tobytes(), value.tobytes(), name)

    def test_every_tensor_of_every_format(self):
        rooted = {"params/" + name: value for name, value in self.values.items()}
        extra = {"opt/1/0/0/0": np.int32(7), "chrono/accum_train_time": np.float32(3)}
        save_safetensors(self.values, self.path("w.safetensors"))
        files = {
            "npz": self.npz({**rooted, **extra}, "a.npz"),
            "npz, compressed": self.npz(self.values, "b.npz", np.savez_compressed),
            "old root": self.npz({"opt/target/" + name: value for name, value in self.values.items()}, "c.npz"),
            "safetensors": self.path("w.safetensors"),
        }
        zero1 = ["--set", "sharding.parameters=replicated"]
        plain = [*zero1, "--set", "sharding.optimizer=replicated"]
        meshes = [(0, plain), (2, []), (2, zero1), (3, []), (4, ["--set", "mesh.replica=2"])]
        for i, (name, source) in enumerate(files.items()):
            for j, (ranks, how) in enumerate(meshes if i in (0, 3) else meshes[:1]):
                with self.subTest(name, ranks=ranks, how=how):
                    dir = f"run{i}{j}"
                    count = sum(value.size for value in self.values.values())
                    self.start(0, source, "from=init", f"loaded {len(self.values)} of {len(self.values)} tensors = {count:,} values",
                               extra=how, ranks=ranks, dir=dir)
                    got, origin = self.params(dir)
                    self.same(got, self.values)
                    self.assertEqual(origin, "parameters of " + source)
                    with open(f"{self.path(dir)}/logs/init.txt") as f:
                        self.assertEqual(sum(line.startswith("loaded ") for line in f), len(self.values))
                    if i == 0:
                        self.assertIn("unused in the file 2", self.output)
        with h5py.File(self.path("run00") + "/metrics.h5") as f:
            self.assertEqual(f.attrs["origin"].decode(), "parameters of " + files["npz"])
        # The run's own checkpoints precede [init], even if that file is gone; the origin stays.
        os.remove(files["npz"])
        self.start(0, files["npz"], "from=checkpoint", "goes on from its own", dir="run01", ranks=2, extra=["--set", "train.total_steps=3"])
        self.assertEqual(self.params("run01", 3)[1], "parameters of " + files["npz"])

    def table(self, name, dir):
        """Returns {parameter: (shape, size, mean, deviation)} of a table in a run's logs, and its total."""
        with open(f"{self.path(dir)}/logs/{name}") as f:
            head, *lines, total = f.read().splitlines()
        self.assertEqual(head.split(), ["Name", "Shape", "Size", "Mean", "Std"])
        cells = [line.split() for line in lines]
        self.assertEqual([c[0] for c in cells], sorted(c[0] for c in cells))
        return {c[0]: (c[1], int(c[2].replace(",", "")), float(c[3]), float(c[4])) for c in cells}, total

    def assert_table(self, name, dir, values):
        table, total = self.table(name, dir)
        self.assertEqual(total, f"Total: {sum(v.size for v in values.values()):,}")
        self.assertEqual(sorted(table), sorted(values))
        for path, value in values.items():
            shape, size, mean, std = table[path]
            self.assertEqual((shape, size), (f"[{','.join(map(str, value.shape))}]", value.size), path)
            self.assertAlmostEqual(mean, value.mean(dtype=float), delta=6e-3 * abs(value.mean()) + 1e-6, msg=path)
            self.assertAlmostEqual(std, value.std(dtype=float), delta=6e-3 * value.std() + 1e-6, msg=path)

    def test_tables_before_and_after(self):
        """The first table is of random values, the second of those that [init] or a checkpoint put in their place."""
        self.start(0, self.npz(self.values), ranks=2)
        self.assert_table("parameters.txt", "run", self.values)
        first, total = self.table("parameters_init.txt", "run")
        self.assertEqual(sorted(first), sorted(self.values))
        self.assertEqual(first["decoder/LogitsDense/kernel"], ("[32,400]", 12800, 0, 0))
        self.assertEqual(first["encoder/Transformer/encoder_norm/scale"][2:], (1, 0))
        self.assertAlmostEqual(first["decoder/EmbedTargets/embedding"][3], 1, delta=0.03)
        self.start(0, self.npz(self.values), "from=checkpoint", extra=["--set", "train.total_steps=3"])
        self.assert_table("parameters.txt", "run", self.params(step=2)[0])
        self.assertEqual(self.table("parameters_init.txt", "run"), (first, total))
        # Without [init], both are the values at the start.
        self.expect(0, args=[self.deck(), "--dir", self.path("plain"), "--set", "train.total_steps=1", *ONE_STEP[:2],
                             "--set", "schedule.default.warmup_steps=0"])
        self.assertEqual(self.table("parameters.txt", "plain"), self.table("parameters_init.txt", "plain"))

    def test_types(self):
        def bf16(value):
            # truncated, not rounded: any bits suffice
            return (value.view(np.uint32) >> 16).astype(np.uint16)
        kinds = list(self.values)
        changed, want = {}, {}
        for i, name in enumerate(kinds):
            value = self.values[name]
            if i % 4 == 0:
                changed[name] = bf16(value)
                want[name] = (changed[name].astype(np.uint32) << 16).view(np.float32)
            elif i % 4 == 1:
                changed[name] = value.astype(np.float16)
                want[name] = changed[name].astype(np.float32)
            elif i % 4 == 2:
                changed[name] = value.astype(np.float64) / 3
                want[name] = changed[name].astype(np.float32)
            else:
                changed[name] = want[name] = value
        # Every other tensor is stored like a transposed array: first axis fastest.
        changed = {name: np.asfortranarray(value) if i // 4 % 2 else value for i, (name, value) in enumerate(changed.items())}
        as_void = {name: value.view("V2") if value.dtype == np.uint16 else value for name, value in changed.items()}
        self.start(0, self.npz(as_void), ranks=2, dir="a")
        self.same(self.params("a")[0], want)
        # safetensors.numpy has no bfloat16
        if "bf16" in save_safetensors.__code__.co_varnames:
            save_safetensors(changed, self.path("w.safetensors"))
            self.start(0, self.path("w.safetensors"), dir="b")
            self.same(self.params("b")[0], want)

    def test_file_of_the_safetensors_library(self):
        """data/weights_of_python.safetensors was written by safetensors 0.8.0 (safetensors.torch.save_file, torch 2.15).

        The types take turns: bf16, f16, f32 and f64. Tensor n of the sorted names holds (37 k + 101 n) mod 255 - 127 over 256
        at its element k, exact in all types."""
        def value(number, shape):
            k = np.arange(np.prod(shape), dtype=np.int64)
            return (((k * 37 + number * 101) % 255 - 127).astype(np.float32) / 256).reshape(shape)
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/weights_of_python.safetensors")
        want = {name: value(i, shape) for i, (name, shape) in enumerate(sorted(self.shapes.items()))}
        for ranks, dir in ((0, "a"), (3, "b")):
            self.start(0, source, f"loaded {len(want)} of {len(want)} tensors", "unused in the file 1", ranks=ranks, dir=dir)
            self.same(self.params(dir)[0], want)

    def test_own_checkpoint(self):
        self.start(0, self.npz(self.values), ranks=2, dir="a")
        after = self.params("a", 2)[0]
        # A run directory means its newest checkpoint. Only parameters come from it, not step or
        # optimizer.
        for source, ranks, dir in ((self.path("a"), 3, "b"), (self.path("a/checkpoints/0000000002.h5"), 0, "c")):
            self.start(0, source, "from=init", "start    step=0", ranks=ranks, dir=dir)
            self.same(self.params(dir)[0], after)
        with h5py.File(self.path("a/checkpoints/0000000002.h5")) as f:
            at = f["params/decoder/EmbedTargets/embedding"].id.get_offset()
        with open(self.path("a/checkpoints/0000000002.h5"), "r+b") as f:
            f.seek(at + 2000)
            f.write(b"\xff" * 64)
        self.start(5, self.path("a/checkpoints/0000000002.h5"), "0000000002.h5", "damaged", ranks=2, dir="d")

    def test_position_table(self):
        old = np.random.default_rng(2).standard_normal((1, 25, 32)).astype(np.float32)
        new = np.empty((2, 2, 32))  # corners aligned: 5 x 5 to 2 x 2 keeps exactly the corners
        new[:] = old.reshape(5, 5, 32)[::4, ::4]
        tensors = dict(self.values, **{"encoder/pos_embedding": old})
        self.start(0, self.npz(tensors), "resampled encoder/pos_embedding [1, 4, 32] from", "(1 resampled)", ranks=2, dir="a")
        want = dict(self.values, **{"encoder/pos_embedding": new.astype(np.float32).reshape(1, 4, 32)})
        self.same(self.params("a")[0], want)
        # Old ViT files have a class token's row first.
        token = np.concatenate([np.full((1, 1, 32), 9, np.float32), old], axis=1)
        self.start(0, self.npz(dict(self.values, **{"encoder/pos_embedding": token}), "t.npz"), dir="b")
        self.same(self.params("b")[0], want)
        self.start(0, self.path("w.npz"), "skipped", "posemb", extra=["--set", "init.posemb=keep"], dir="c")
        random = self.params("c")[0]["encoder/pos_embedding"]
        self.assertLess(abs(random.std() - 32 ** -0.5), 0.05)

    def test_map_and_dont_load(self):
        """An encoder comes alone, from a two-tower file; the decoder keeps the values that it
        would have without the file."""
        self.expect(0, args=[self.deck(), "--dir", self.path("random"), *ONE_STEP])
        random = self.params("random")[0]
        tensors = {name.replace("encoder/", "params/img/", 1): value for name, value in self.values.items() if name.startswith("encoder/")}
        tensors.update({"params/txt/x": np.zeros(3, np.float32), "params/img/head/kernel": np.zeros((4, 5), np.float32)})
        source = self.npz(tensors)
        self.start(0, source, "unmapped", "unused", ranks=2, extra=["--set", 'init.map={ encoder = "params/img" }'])
        self.same(self.params()[0], {name: (self.values if name.startswith("encoder/") else random)[name] for name in random})
        self.start(0, self.npz(self.values, "all.npz"), "skipped   decoder/LogitsDense/bias [400] (dont_load)", dir="b",
                   extra=["--set", 'init.dont_load=["decoder/LogitsDense/.*"]'])
        self.same(self.params("b")[0], {name: (random if "LogitsDense" in name else self.values)[name] for name in random})
        self.start(5, self.path("all.npz"), 'init.dont_load "LogitsDense/.*" matches no parameter', dir="c",
                   extra=["--set", 'init.dont_load=["LogitsDense/.*"]'])
        for extra, fragment in ((['init.map={ enc = "params/img" }'], "enc"), (['init.dont_load=["("]'], "regular expression"),
                                (["init.posemb=stretch"], "interpolate"), (["checkpoint.branch_from=x"], "both")):
            self.start(2, source, fragment, dir="none", extra=["--set", *extra])
        self.assertFalse(os.path.exists(self.path("none")))

    def test_rules_give_initial_distributions(self):
        """Other parameters begin as without rules, on any mesh."""
        rules = """
[[model.init]]
match = "encoder/.*/out/kernel"
kind  = "xavier_uniform"
scale = 0.5
[[model.init]]
match = "encoder/.*/kernel"
kind  = "normal"
scale = 0.02
[[model.init]]
match = "encoder/.*/bias"
kind  = "constant"
scale = 0.25
"""
        self.expect(0, args=[self.deck(), "--dir", self.path("usual"), *ONE_STEP])
        usual = self.params("usual")[0]
        self.good += rules
        self.expect(0, args=[self.deck(), "--dir", self.path("a"), *ONE_STEP])
        self.expect(0, args=[self.deck(), "--dir", self.path("b"), *ONE_STEP], ranks=2)
        got = self.params("a")[0]
        self.same(self.params("b")[0], got)
        for name, value in got.items():
            if not name.startswith("encoder/") or not name.endswith(("/kernel", "/bias")):
                self.assertEqual(value.tobytes(), usual[name].tobytes(), name)
            elif name.endswith("/bias"):
                self.assertTrue((value == 0.25).all(), name)
            elif name.endswith("/out/kernel"):
                np.testing.assert_array_equal(value, usual[name] / 2, name)  # the model's own kind
            else:
                self.assertLess(abs(value.std() - 0.02), 0.003, name)
        self.expect(0, "xavier_uniform(fan_in=32,fan_out=32,scale=0.5)", "normal(std=0.02)", "constant(0.25)",
                    args=[self.deck(), "--mode", "plan", "--ranks", "2", "--set", "plan.parameters=true"])
        for old, new, words in (('"encoder/.*/kernel"', '"encoder/kernel/.*"', "matches no parameter"),
                                ('"encoder/.*/bias"', '"encoder/.*/out/kernel"', "is never reached"),
                                ('"constant"', '"lecun_normal"', "needs a weight of a matrix product"),
                                ('"normal"', '"normall"', "did you mean")):
            self.expect(2, "model.init", words, args=[self.deck(self.changed((old, new))), "--validate"])

    def test_frozen_encoder_keeps_what_it_was_given(self):
        rule = '[[optimizer.rule]]\nmatch       = ".*/kernel"'
        self.good = self.changed((rule, '[[optimizer.rule]]\nmatch = "encoder/.*"\nfrozen = true\n' + rule))
        for dir, extra in (("a", []), ("b", ["--set", "sharding.parameters=replicated"])):
            self.start(0, self.npz(self.values), ranks=2, dir=dir, extra=[*extra, "--set", "train.total_steps=4"])
            got = self.params(dir, 4)[0]
            for name, value in self.values.items():
                self.assertEqual(got[name].tobytes() == value.tobytes(), name.startswith("encoder/"), name)

    def test_what_does_not_fit(self):
        self.start(5, self.path("none.npz"), "no such file", ranks=2)
        tensors = dict(self.values)
        del tensors["decoder/EncDecBlock1/MLP/Dense_0/kernel"]
        tensors["encoder/Transformer/more"] = np.zeros(2, np.float32)
        # a Cap model has no mask token
        tensors["decoder/EmbedTargets/embedding"] = tensors["decoder/EmbedTargets/embedding"][:-1]
        self.start(5, self.npz(tensors), "missing in the file: decoder/EncDecBlock1/MLP/Dense_0/kernel [32, 48]",
                   "only in the file: encoder/Transformer/more", "dont_load", ranks=2)
        self.assertIn("decoder/EmbedTargets/embedding: the file has [400, 32], this model [401, 32]", self.output)
        bad = dict(self.values)
        bad["encoder/embedding/bias"] = np.full(32, np.nan, np.float32)
        self.start(5, self.npz(bad), "encoder/embedding/bias", "nan", ranks=2)
        self.assertEqual(self.checkpoints(), [])
        # A refused start must leave nothing behind that would stop a good start.
        self.start(0, self.npz(self.values), ranks=2)
        self.same(self.params()[0], self.values)

    def test_hostile(self):
        source = self.npz(dict(self.values, evil=np.array([{"a": 1}], dtype=object)))
        self.start(5, source, "evil", "pickled", ranks=2)
        with open(self.npz(self.values), "rb") as f:
            good = f.read()
        for cut in (0, 100, len(good) // 2, len(good) - 1):
            with open(source, "wb") as f:
                f.write(good[:cut])
            self.start(5, source, "w.npz", "cut")
        # zip's checksum finds a changed byte inside an array.
        with zipfile.ZipFile(io.BytesIO(good)) as z:
            member = z.getinfo("decoder/EmbedTargets/embedding.npy")
        at = member.header_offset + 1000
        with open(source, "wb") as f:
            f.write(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        self.start(5, source, "decoder/EmbedTargets/embedding", "damaged", ranks=2)
        save_safetensors(self.values, self.path("w.safetensors"))
        with open(self.path("w.safetensors"), "r+b") as f:
            f.truncate(os.path.getsize(f.name) - 4)
        self.start(5, self.path("w.safetensors"), "w.safetensors", "outside", ranks=2)
        # Names are matched with patterns, by recursion over their characters, so their length is
        # limited.
        self.start(5, self.npz({"params/" + "a" * 30000: np.zeros(2, np.float32)}, "long.npz"), "30007 bytes, at most 1024")
        # A pipe without a writer would block the reader forever.
        for name in ("p.npz", "p.safetensors", "p.h5"):
            os.mkfifo(self.path(name))
            self.start(5, self.path(name), name, "not a regular file", ranks=2)
        self.expect(5, "not a regular file", ranks=2,
                    args=[self.deck(), "--dir", self.path("b"), "--set", f"checkpoint.branch_from={self.path('p.h5')}"])

    def test_branch(self):
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        self.expect(0, args=[self.deck(), *mesh], ranks=2)  # steps 4, 8, 12
        parent = self.tensors(12)
        # A run that branches from step 8 of the other run, with the same deck, on other meshes, has
        # the same bits at step 12.
        for ranks, source in ((1, self.dir + "/checkpoints/0000000008.h5"), (4, self.path("cut"))):
            if ranks == 4:  # a directory stands for its newest file
                os.makedirs(source + "/checkpoints")
                os.link(self.dir + "/checkpoints/0000000008.h5", source + "/checkpoints/0000000008.h5")
            dir = self.path(f"branch{ranks}")
            args = [self.deck(), *mesh, "--dir", dir, "--set", f"checkpoint.branch_from={source}"]
            self.expect(0, "branch   step=8", "start    step=8 from=branch", "step=9 ", ranks=ranks, args=args)
            self.assertNotIn("step=8 loss", self.output)
            got = self.tensors(12, dir)
            self.assertEqual(sorted(got), sorted(parent))
            for name in parent:
                self.assertEqual(got[name], parent[name], name)
            self.assertEqual([row["step"] for row in self.rows(folder=dir)], [9, 10, 11, 12])
            with open(dir + "/deck.resolved.toml") as f:
                self.assertIn('branch_from', f.read())
            for file in ("metrics.h5", "checkpoints/0000000012.h5"):
                with h5py.File(f"{dir}/{file}") as f:
                    taken = source + "/checkpoints/0000000008.h5" if ranks == 4 else source
                    self.assertEqual(f.attrs["origin"].decode(), f"branch of {taken} at step 8")
        # The run's own checkpoint precedes the branch when it resumes.
        os.remove(dir + "/checkpoints/0000000012.h5")
        self.expect(0, "branch   step=8", args=args, ranks=2)  # the run has no own checkpoint
        self.expect(0, "from=checkpoint", "goes on from its own", args=[*args, "--set", "train.total_steps=13"], ranks=2)
        self.assertEqual(self.checkpoints(self.path("cut")), ["0000000008.h5"])

    def test_branch_refused(self):
        self.expect(0, args=[self.deck()], ranks=2)
        args = [self.deck(), "--dir", self.path("b"), "--set", f"checkpoint.branch_from={self.dir}"]
        self.expect(2, "end of this deck", args=args, ranks=2)
        longer = ["--set", "train.total_steps=20"]
        self.expect(5, "another model or optimizer", "missing in the file: /params/decoder/EncDecBlock2", "init.from", ranks=2,
                    args=[*args, *longer, "--set", "model.decoder.depth=3"])
        self.expect(5, "missing in the file: /optimizer/adamw", "and 236 more", args=[*args, *longer, "--set", "optimizer.kind=adamw"])
        self.expect(5, "nowhere", "no such file", args=[self.deck(), "--dir", self.path("b"), "--set", "checkpoint.branch_from=nowhere"])
        # If the newest file is damaged, the branch uses the file before it, with a warning, and
        # changes nothing of the parent.
        with open(self.dir + "/checkpoints/0000000012.h5", "r+b") as f:
            f.truncate(20000)
        open(self.dir + "/checkpoints/0000000016.h5.tmp", "w").close()
        before = sorted(os.listdir(self.dir + "/checkpoints"))
        self.expect(0, "level=warning", "branch   step=8", args=[*args, *longer], ranks=2)
        self.assertEqual(sorted(os.listdir(self.dir + "/checkpoints")), before)


harness.main()
