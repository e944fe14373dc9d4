#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --mode caption: captions of the evaluator from any start, broken images, and attention against NumPy."""
import glob
import io
import json
import os
import shutil
import subprocess
import tempfile

import h5py
import numpy as np
from PIL import Image

import harness

EVALUATOR = """
[eval.captions]
kind        = "captioning"
data        = "train"
every_steps = 12
attention   = 3
"""


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """A captioner in NumPy, in double, after the published model (big_vision's names and shapes)."""

    def __init__(self, params):
        self.w = {name: value.astype(np.float64) for name, value in params.items()}

    def dense(self, x, at):
        y = x @ self.w[at + "/kernel"].reshape(x.shape[-1], -1)
        return y + self.w[at + "/bias"].ravel() if at + "/bias" in self.w else y

    def norm(self, x, at):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return y * self.w[at + "/scale"] + self.w.get(at + "/bias", 0)

    def attend(self, x, memory, at, causal=False):
        """Returns output and weights [heads, rows of x, rows of memory]."""
        heads, size = self.w[at + "/query/kernel"].shape[1:]
        q, k, v = (self.dense(t, f"{at}/{part}").reshape(len(t), heads, size).transpose(1, 0, 2)
                   for t, part in ((x, "query"), (memory, "key"), (memory, "value")))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(size)
        weights = softmax(np.where(np.tri(len(x), len(memory), dtype=bool), scores, -np.inf) if causal else scores)
        return self.dense((weights @ v).transpose(1, 0, 2).reshape(len(x), -1), at + "/out"), weights

    def mlp(self, x, at):
        h = self.dense(x, at + "/Dense_0")
        return self.dense(0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h ** 3))), at + "/Dense_1")

    def encode(self, image):
        p = self.w["encoder/embedding/kernel"].shape[0]
        n = len(image) // p
        x = image.astype(np.float64).reshape(n, p, n, p, 3).transpose(0, 2, 1, 3, 4).reshape(n * n, -1)
        x = self.dense(x, "encoder/embedding") + self.w["encoder/pos_embedding"][0]
        at = "encoder/Transformer/encoderblock_0"
        y = self.norm(x, at + "/LayerNorm_0")
        x = x + self.attend(y, y, at + "/MultiHeadDotProductAttention_0")[0]
        x = x + self.mlp(self.norm(x, at + "/LayerNorm_1"), at + "/MlpBlock_0")
        return self.norm(x, "encoder/Transformer/encoder_norm")

    def decode(self, encoded, ids):
        """Returns logits, and the weights of the last layer's cross-attention, mean over heads."""
        x = self.w["decoder/EmbedTargets/embedding"][ids] + self.w["pos_embedding_decoder"][0, :len(ids)]
        for i in range(2):
            at = f"decoder/EncDecBlock{i}"
            y = self.norm(x, at + "/LayerNorm1")
            x = x + self.attend(y, y, at + "/SelfAttn", causal=True)[0]
            out, weights = self.attend(self.norm(x, at + "/LayerNorm2"), encoded, at + "/CrossAttn")
            x = x + out
            x = x + self.mlp(self.norm(x, at + "/LayerNorm3"), at + "/MLP")
        return self.dense(self.norm(x, "decoder/LayerNorm"), "decoder/LogitsDense"), weights.mean(0)

    def caption(self, image, length):
        """Returns log-likelihood, number of tokens without the end, and their weights."""
        encoded, ids, likelihood = self.encode(image), [0], 0
        while len(ids) <= length:
            logits, weights = self.decode(encoded, ids)
            best = int(logits[-1].argmax())
            likelihood += np.log(softmax(logits[-1])[best])
            if best == 1:
                return likelihood, len(ids) - 1, weights[:-1]
            ids.append(best)
        return likelihood, length, weights


class Caption(harness.RunTest):
    @classmethod
    def setUpClass(cls):
        """Trains once: a deck, its run, the evaluator's captions, and its images as files in the same order."""
        cls.home = tempfile.mkdtemp(prefix="trainer_test_")
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        cls.run_dir, cls.path, cls.images = cls.home + "/run", cls.home + "/deck.toml", cls.home + "/images"
        for folder in (cls.home + "/data", cls.images):
            os.mkdir(folder)
        harness.make_shards(cls.home + "/data")
        text = harness.DECK.format(dir=cls.run_dir, data=cls.home + "/data", tokenizer=harness.TOKENIZER)
        for old, new in (("decoder          = { depth = 1 }", "decoder          = { depth = 2 }"),
                         ("every_steps = 6", "every_steps = 12"), ("every_steps = 4", "every_steps = 6")):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        with open(cls.path, "w") as f:
            f.write(text + EVALUATOR + '\n[determinism]\nlevel = "mesh"\nslices = 4\n')
        subprocess.run(["mpirun", "-np", "2", harness.TRAINER, cls.path], check=True, stdout=subprocess.DEVNULL, timeout=harness.GUARD)
        with open(f"{cls.run_dir}/eval/captions/0000000012/captions.jsonl") as f:
            cls.want = [json.loads(line) for line in f]
        for row in cls.want:
            with open(f"{cls.images}/{row['position']:03}.png", "wb") as f:
                f.write(harness.png(int(row["key"].rpartition(":")[2])))

    def setUp(self):
        super().setUp()
        self.dir, self.out = self.run_dir, self.folder + "/out/captions.jsonl"

    def caption(self, *words, start=None, ranks=0, code=0, keys=()):
        """Returns the lines that the mode writes."""
        sets = [word for key in (f"caption.out={self.out}", *keys) for word in ("--set", key)]
        self.expect(code, args=[start or self.dir, "--mode", "caption", *words, *sets], ranks=ranks)
        with open(self.out) as f:
            return [json.loads(line) for line in f]

    def check(self, rows, attention=0):
        """Compares lines with the evaluator's, bit by bit."""
        self.assertEqual([row["file"] for row in rows], [f"{self.images}/{i:03}.png" for i in range(len(self.want))])
        for i, (row, want) in enumerate(zip(rows, self.want)):
            names = ["caption", "log_likelihood", "ended"] + (["tokens", "attention"] if i < attention else [])
            self.assertEqual(list(row), ["file", *names])
            for name in names:
                self.assertEqual(row[name], want[name], (i, name))

    def test_captions_of_the_evaluator(self):
        self.assertGreater(len({row["log_likelihood"] for row in self.want}), 30)
        newest = f"{self.dir}/checkpoints/0000000012.h5"
        params = {}
        with h5py.File(newest) as f:
            f["params"].visititems(lambda name, d: params.__setitem__(f"params/{name}", d[()]) if isinstance(d, h5py.Dataset) else None)
        np.savez(self.folder + "/weights.npz", **params)
        before = sorted(glob.glob(self.dir + "/**", recursive=True))
        for start, ranks, keys in ((self.dir, 0, ["mesh.replica=2"]), (newest, 2, ["caption.attention=2"]),
                                   (self.path, 3, ["caption.batch=4"]),
                                   (self.path, 0, [f"caption.from={self.folder}/weights.npz", "caption.data=train", "caption.batch=7"])):
            with self.subTest(start=start, ranks=ranks):
                self.check(self.caption(self.images, start=start, ranks=ranks, keys=keys), attention=2 if ranks == 2 else 0)
        self.assertEqual(sorted(glob.glob(self.dir + "/**", recursive=True)), before, "the run directory must not change")
        # An earlier checkpoint has other weights.
        other = self.caption(self.images, start=f"{self.dir}/checkpoints/0000000006.h5")
        self.assertTrue(all(a["log_likelihood"] != b["log_likelihood"] for a, b in zip(other, self.want)))
        # Without a file the console has the captions.
        self.expect(0, f'file={self.images}/001.png caption="{self.want[1]["caption"]}" '
                       f'log_likelihood={self.want[1]["log_likelihood"]:.4f}', "captions=1 failed=0",
                    args=[self.dir, "--mode", "caption", f"{self.images}/001.png"])

    def test_files_of_evaluators(self):
        # The bytes are those of training. Equal weights twice have two folders.
        out, newest = self.folder + "/files", f"{self.dir}/checkpoints/0000000012.h5"
        words = ["--set", f'evaluate.from=["{newest}", "{newest}"]', "--set", 'evaluate.evaluators=["captions"]']
        self.expect(0, args=[self.path, "--mode", "eval", *words], ranks=2)
        self.assertFalse(os.path.exists(out))
        self.expect(0, args=[self.path, "--mode", "eval", *words, "--set", f"evaluate.files={out}"], ranks=2)
        self.assertEqual(sorted(os.listdir(out + "/captions")), ["0000000012", "0000000012-2"])
        want = f"{self.dir}/eval/captions/0000000012"
        for folder in glob.glob(out + "/captions/*"):
            self.assertEqual(sorted(os.listdir(folder)), sorted(os.listdir(want)))
            for name in os.listdir(want):
                with open(f"{folder}/{name}", "rb") as a, open(f"{want}/{name}", "rb") as b:
                    self.assertEqual(a.read(), b.read(), name)

    def test_attention_of_a_reference(self):
        self.assertEqual([i for i, row in enumerate(self.want) if "attention" in row], [0, 1, 2])
        few = ["show.data=train", "show.examples=8"]
        self.expect(0, args=[self.path, "--mode", "show", *[word for key in few for word in ("--set", key)]])
        params = {}
        with h5py.File(f"{self.dir}/checkpoints/0000000012.h5") as f:
            f["params"].visititems(lambda name, d: params.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
        with h5py.File(self.dir + "/show.h5") as f:
            images = f["model/image"][()]
        rows = self.caption(self.images, keys=["caption.attention=8"])
        uneven = 0
        for i, (row, image) in enumerate(zip(rows[:8], images)):
            likelihood, tokens, weights = Reference(params).caption(image, 12)
            self.assertAlmostEqual(row["log_likelihood"], likelihood, delta=1e-3, msg=i)
            self.assertEqual(len(row["tokens"]), tokens)
            self.assertEqual("".join(row["tokens"]), row["caption"])
            got = np.array(row["attention"])
            self.assertEqual(got.shape, (tokens, 2, 2))
            np.testing.assert_allclose(got.reshape(tokens, 4), weights, rtol=0.006, atol=1e-4)
            np.testing.assert_allclose(got.sum((1, 2)), 1, atol=0.003)
            uneven += np.ptp(weights, axis=1).max() > 0.02
        self.assertEqual(uneven, 8, "even weights would prove nothing")

    def test_methods(self):
        greedy = self.caption(self.images)
        beam = self.caption(self.images, ranks=2, keys=["caption.method=beam", "caption.beams=3"])
        self.assertTrue(all(b["log_likelihood"] >= g["log_likelihood"] for b, g in zip(beam, greedy)))
        self.assertTrue(any(b["log_likelihood"] > g["log_likelihood"] for b, g in zip(beam, greedy)))
        draws = [self.caption(self.images, ranks=ranks, keys=["caption.method=sample", f"caption.seed={seed}"])
                 for seed, ranks in ((1, 0), (1, 3), (2, 0))]
        self.assertEqual(draws[0], draws[1])
        self.assertNotEqual(draws[0], draws[2])
        short = self.caption(self.images, keys=["caption.max_length=3", "caption.attention=1"])
        self.assertEqual(len(short[0]["tokens"]), 3)

    def test_files_that_are_no_images(self):
        folder = self.folder + "/mixed"
        os.makedirs(folder + "/b/.hidden")
        image = Image.open(io.BytesIO(harness.png(3)))
        for name, form in (("a.JPG", "JPEG"), ("b/c.webp", "WEBP"), ("b/d.gif", "GIF"), ("b/.hidden/e.png", "PNG"), ("odd name", "PNG")):
            image.save(f"{folder}/{name}", form)
        for name, data in (("b/broken.png", harness.png(3)[:60]), ("b/empty.jpeg", b""), ("notes.txt", b"no image")):
            with open(f"{folder}/{name}", "wb") as f:
                f.write(data)
        os.mkfifo(f"{folder}/b/e.png")  # nobody writes to it
        broken = [f"{folder}/b/broken.png", f"{folder}/b/empty.jpeg", f"{folder}/none.png", f"{folder}/notes.txt", f"{folder}/b/e.png"]
        good = [f"{folder}/a.JPG", f"{folder}/b/c.webp", f"{folder}/b/d.gif", f"{folder}/odd name"]
        for ranks in (0, 2):
            rows = self.caption(folder, f"{folder}/odd name", broken[2], broken[3], ranks=ranks, code=4, keys=["caption.batch=3"])
            self.assertEqual([row["file"] for row in rows],
                             [good[0], broken[0], *good[1:3], broken[4], broken[1], good[3], *broken[2:4]])
            self.assertEqual(sorted(row["file"] for row in rows if "error" in row), sorted(broken))
            self.assertEqual({row["file"] for row in rows if "caption" in row}, set(good))
            for name, why in zip(broken, ("PNG", "", "no such file", "", "it is a pipe, socket or device")):
                self.assertRegex(self.output, f"error: .*{name}: .*{why}")
            self.assertIn("captions=4 failed=5", self.output)
        # A PNG and a copy of it without loss have one caption.
        self.assertEqual(rows[-3]["caption"], self.caption(f"{folder}/odd name")[0]["caption"])

    def test_refused(self):
        os.mkdir(self.folder + "/empty")
        image = self.images + "/000.png"
        for i, (code, words, text) in enumerate((
                (2, [self.dir, "--mode", "caption"], "name files or folders"),
                (2, [self.path, image], "not expected"),
                (2, [self.path, "--mode", "eval", image], "not expected"),
                (2, [self.folder + "/none", "--mode", "caption", image], "/none"),
                (5, [self.folder + "/empty", "--mode", "caption", image], "holds no checkpoint"),
                (5, [self.path, "--mode", "caption", image, "--dir", self.folder + "/empty"], "run.dir: "),
                (4, [self.dir, "--mode", "caption", self.folder + "/empty"], "holds no image"),
                (2, [self.dir, "--mode", "caption", image, "--set", "caption.data=val"], "there is no [data.val]"),
                (2, [self.dir, "--mode", "caption", image, "--set", "caption.method=best"], "Accepted"),
                (5, [self.dir, "--mode", "caption", image, "--set", "caption.weights=ema"], "no average"),
                (5, [self.dir, "--mode", "caption", image, "--set", "caption.from=" + self.folder + "/no.h5"], "caption.from: "),
                (2, [self.dir, "--mode", "caption", image, "--set", "caption.max_length=13"], "model.seq_len"),
        )):
            with self.subTest(words=words):
                self.expect(code, text, args=words, ranks=i % 2 * 2)
                self.assertNotIn("caption=", self.output)


harness.main()
