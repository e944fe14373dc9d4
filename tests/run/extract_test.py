#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --mode extract and --mode predict: equal files on all ranks and after kills, values against NumPy and against
--mode eval, float16, and what is refused."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import unittest

import h5py
import numpy as np
import sentencepiece

import harness
import numpy_vit
import place
import processes
import published_model
from harness import sets

SAMPLES = 41
CLASSES = ["a red car", "cat", "two cows", "ox", "hens"]


CAPTIONER = """
[data.pairs]
path       = "{data}/pairs.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels")
              | keep("image", "labels", "label")'''

[data.pictures]
path       = "{data}/pairs.tar"
fields     = {{ image = "png" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image")'

[eval.classes]
kind        = "scoring"
data        = "pairs"
every_steps = 0
k           = [1, 2]
classes     = {classes}
"""

CLASSIFIER = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 12, global_batch = 12, micro_batch = 6 }}

[model]
kind        = "classifier"
image_size  = 16
num_classes = 5
trunk       = {{ kind = "vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "gap" }}

[optimizer]
kind          = "adamw"
learning_rate = 3e-3

[schedule.default]
kind = "cosine"

[data.train]
kind       = "webdataset"
path       = "{data}/pairs.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image", "label")'

[data.pictures]
kind       = "webdataset"
path       = "{data}/pairs.tar"
fields     = {{ image = "png" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image")'

[eval.kinds]
kind        = "classification"
data        = "train"
k           = [1, 3]
every_steps = 12

[checkpoint]
every_steps = 6
"""


class Rows(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(f"{self.data}/pairs.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(SAMPLES):
                # The longest key is that of the last rank, and as wide as the column on every rank.
                name = f"{i:06}" + "_with_a_longer_name" * (i == SAMPLES - 1)
                harness.add_member(tar, f"{name}.png", harness.png(100 + i))
                harness.add_member(tar, f"{name}.txt", CLASSES[self.label(i)].encode())
                harness.add_member(tar, f"{name}.cls", str(self.label(i)).encode())
        self.path = self.deck(self.good + CAPTIONER.format(data=self.data, classes=json.dumps(CLASSES)))
        self.out = self.folder + "/rows.h5"

    @staticmethod
    def label(i):
        return (i * i + 1) % len(CLASSES)

    def train(self, *more):
        self.expect(0, args=[self.path, *sets("train.total_steps=4", "checkpoint.every_steps=2", "eval.val.every_steps=0",
                                           "eval.val.at_end=false", "eval.classes.at_end=false", *more)])

    def mode(self, name, *pairs, out=None, ranks=0, code=0, mentions=()):
        """Runs a mode and returns the name of its file."""
        out = out or self.out
        self.expect(code, *mentions, args=[self.path, "--mode", name, *sets(f"{name}.out={out}", *pairs)], ranks=ranks)
        return out

    def extract(self, *pairs, **how):
        return self.mode("extract", "extract.data=pairs", *pairs, **how)

    def assert_equal_files(self, one, other):
        done = subprocess.run(["h5diff", "-v", one, other], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotRegex(done.stdout, "[1-9][0-9]* differences found|not comparable|Not comparable")
        with open(one, "rb") as a, open(other, "rb") as b:
            self.assertEqual(a.read(), b.read(), (one, other))

    def images(self, name="pairs"):
        """Returns the images that the deck's ops make."""
        self.expect(0, args=[self.path, "--mode", "show", "--dir", self.folder + "/show",
                             *sets(f"show.data={name}", f"show.examples={SAMPLES}")])
        with h5py.File(self.folder + "/show/show.h5") as f:
            return f["model/image"][()].astype(np.float64)

    def parameters(self, step=4):
        out = {}
        with h5py.File(f"{self.dir}/checkpoints/{step:010}.h5") as f:
            f["params"].visititems(lambda name, d: out.__setitem__(name, d[()].astype(np.float64))
                                   if isinstance(d, h5py.Dataset) else None)
        return out

    # ------------------------------------------------------------------------ extract

    def test_features_are_those_of_numpy_on_every_mesh(self):
        self.train()
        taps = 'extract.taps=["block00", "encoded", "pre_logits", "block00_mean"]'
        first = self.extract(taps, mentions=("rows=41 of=41", "done     exit=0"))
        want = numpy_vit.taps(self.parameters(), self.images())
        want["block00_mean"], want["pre_logits"] = want["block00"].mean(1), want["encoded"].mean(1)
        with h5py.File(first) as f:
            self.assertEqual(sorted(f["features"]), sorted(want))
            for name, value in want.items():
                self.assertEqual((f["features/" + name].dtype, f["features/" + name].shape), (np.float32, value.shape))
                np.testing.assert_allclose(f["features/" + name], value, rtol=2e-5, atol=2e-5, err_msg=name)
                self.assertEqual(f["features/" + name].attrs["tap"].decode(), name)
            self.assertEqual(list(f["label"]), [self.label(i) for i in range(SAMPLES)])
            self.assertEqual(list(f["sample"]), list(range(SAMPLES)))
            self.assertEqual(f["key"][7].decode().rpartition(":")[2], "000007")
            self.assertEqual(len(set(f["key"])), SAMPLES)
            self.assertEqual((f.attrs["step"], f.attrs["mode"].decode(), f.attrs["weights"].decode()), (4, "extract", "raw"))
            self.assertEqual(f.attrs["weights_file"].decode(), f"{self.dir}/checkpoints/0000000004.h5")
            made = json.loads(f["made_from"][()])
            self.assertEqual((made["extract.pool"], made["step"], made["samples"]), ("none", "4", "41"))
        # The mean over tokens is this mode's own; those of the taps come from the model.
        pooled = self.extract('extract.taps=["encoded", "pre_logits"]', "extract.pool=mean", out=self.folder + "/pooled.h5")
        with h5py.File(pooled) as f:
            np.testing.assert_allclose(f["features/encoded"], want["pre_logits"], rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(f["features/pre_logits"], want["pre_logits"], rtol=2e-5, atol=2e-5)
            self.assertEqual([f["features/" + name].attrs["pool"].decode() for name in ("encoded", "pre_logits")],
                             ["mean", "none"])
        for ranks, more in ((1, []), (2, ["extract.batch=5"]), (4, []), (4, ["mesh.replica=4", "mesh.fsdp=1", "extract.batch=20"])):
            other = self.extract(taps, *more, out=f"{self.folder}/on_{ranks}_{len(more)}.h5", ranks=ranks)
            self.assert_equal_files(first, other)
        self.assertEqual([n for n in os.listdir(self.folder) if n.endswith((".part", ".progress"))], [])
        # The file is complete: the same command says this and changes nothing.
        before = os.stat(first).st_mtime_ns
        self.extract(taps, ranks=2, mentions=("41 rows, 1 MiB, 41 of them written before", "done     exit=0"))
        self.assertEqual(os.stat(first).st_mtime_ns, before)

    def test_float16(self):
        self.train()
        with h5py.File(self.extract('extract.taps=["block00"]')) as f:
            wide = f["features/block00"][()]
        half = self.extract('extract.taps=["block00"]', "extract.dtype=float16", out=self.folder + "/half.h5", ranks=2)
        with h5py.File(half) as f:
            self.assertEqual(f["features/block00"].dtype, np.float16)
            got = f["features/block00"][()]
            self.assertIn("ties to even", f["features/block00"].attrs["rounding"].decode())
        np.testing.assert_array_equal(got.view(np.uint16), wide.astype(np.float16).view(np.uint16))
        self.assertGreater(np.abs(got.astype(np.float32) - wide).max(), 0)
        # A feature that float16 cannot hold is named with its sample.
        params = {name: value.astype(np.float32) for name, value in self.parameters().items()}
        for sign in (-1, 1):
            params["encoder/pos_embedding"][0, 1, 3] = sign * 1e5
            np.savez(self.folder + "/large.npz", **{"params/" + name: value for name, value in params.items()})
            large = f"extract.from={self.folder}/large.npz"
            self.extract('extract.taps=["block00"]', "extract.dtype=float16", large, out=f"{self.folder}/large{sign}.h5", code=2,
                         mentions=("extract.dtype", ":000000", "tap block00", "65504", "feature " + "-" * (sign < 0)))
        with h5py.File(self.extract('extract.taps=["block00"]', large, out=self.folder + "/wide.h5")) as f:
            self.assertGreater(f["features/block00"][()].max(), 65504)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_killed_and_continued(self):
        """Kills all ranks at random moments, and stops by a signal; the final file is that of an undisturbed job."""
        self.train()
        slow = ["extract.batch=1", 'extract.taps=["encoded"]']
        whole = self.extract(*slow, out=self.folder + "/whole.h5", ranks=2)
        draws = random.Random(22)
        part, progress = self.out + ".part", self.out + ".progress"
        env = {**os.environ, "LD_PRELOAD": harness.preload(os.environ["INJECT_LIBRARY"]), "INJECT_UNDER": self.folder,
               "INJECT_ENDS": "rows.h5.progress", "INJECT": "0:0:slow=30+"}

        def rows():
            try:
                with open(progress) as f:
                    return max([int(n) for n in re.findall(r"rows=(\d{20}) xxh3=[0-9a-f]{16}", f.read())], default=-1)
            except FileNotFoundError:
                return -1

        def interrupt(ranks, number, least):
            """Starts a job and interrupts it when it has recorded `least` rows. Returns its exit code and output."""
            job = subprocess.Popen(["mpirun", "-np", str(ranks), harness.TRAINER, self.path, "--mode", "extract",
                                    *sets(f"extract.out={self.out}", "extract.data=pairs", *slow)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=env)
            self.addCleanup(job.kill)
            self.wait("rows", lambda: rows() >= least or job.poll() is not None, pause=0.002)
            trainers = processes.descendants(job.pid)
            if number == signal.SIGKILL:
                for pid in trainers:
                    os.kill(pid, number)
                job.kill()
            else:
                job.send_signal(number)
            text = job.communicate()[0]
            self.wait("the end of all ranks", lambda: all(processes.ended(pid) for pid in trainers))
            return job.returncode, text

        before = -1
        for ranks, least in ((2, 0), (4, draws.randrange(3, 9)), (1, draws.randrange(10, 20))):
            code, text = interrupt(ranks, signal.SIGKILL, least)
            self.assertNotEqual(code, 0, text)
            self.assertFalse(os.path.exists(self.out), text)
            self.assertTrue(os.path.exists(part))
            self.assertGreaterEqual(rows(), max(before, least))
            before = rows()
        code, text = interrupt(2, signal.SIGUSR1, draws.randrange(before + 1, 30))
        self.assertEqual(code, 75, text)
        self.assertRegex(text, r"stopped .*signal USR1.*; \d+ of 41 rows are written, and the same command continues")
        stopped = rows()
        self.assertIn(f"; {stopped} of 41 rows", text)
        self.assertLess(stopped, SAMPLES)
        # Nothing of another kind continues the file, and nothing is lost by the attempt.
        for pairs, words in ((['extract.taps=["pre_logits"]'], "extract.taps: then \"encoded\", now \"pre_logits\""),
                             (["extract.dtype=float16"], "extract.dtype: then \"float32\", now \"float16\""),
                             (["extract.data=train"], "extract.data: then \"pairs\", now \"train\""),
                             ([f"extract.from={self.dir}/checkpoints/0000000002.h5"], "step: then \"4\", now \"2\"")):
            self.expect(2, words, "cannot be continued; remove it to begin anew", args=[
                self.path, "--mode", "extract", *sets(f"extract.out={self.out}", "extract.data=pairs", *slow, *pairs)], ranks=2)
            self.assertEqual(rows(), stopped)
        self.extract(*slow, ranks=2, mentions=(f"{stopped} of them written before", "rows=41 of=41"))
        self.assert_equal_files(whole, self.out)
        self.assertFalse(os.path.exists(progress))

    def test_torn_records_and_other_jobs(self):
        self.train()
        whole = self.extract("extract.batch=1", out=self.folder + "/whole.h5")
        # A record that was torn in the middle does not count; the one before it does.
        os.rename(whole, self.out + ".part")
        with h5py.File(self.out + ".part") as f:
            made, places = f["made_from"][()].decode(), [f[n].id.get_offset() for n in ("features/pre_logits", "key", "sample", "label")]
        with open(self.out + ".part", "r+b") as f:  # rows from 9 on are lost
            f.seek(places[0] + 9 * 32 * 4)
            f.write(b"\0" * (32 * 32 * 4))
        size = os.path.getsize(self.out + ".part")
        shutil.copy(self.out + ".part", self.folder + "/lost")

        def begin(slots):
            shutil.copy(self.folder + "/lost", self.out + ".part")
            with open(self.out + ".progress", "w") as f:
                f.write(json.dumps({"made_from": made, "columns": places, "bytes": size}) + "\n" + slots)

        # The slots of 9 and 12 rows, as the program writes them.
        slot = {n: f"rows={n:020}" for n in (9, 12)}
        begin("".join(f"{slot[n] + ' xxh3=0000000000000000':<63}\n" for n in (9, 12)))
        self.extract("extract.batch=1", mentions=("out      ",))  # neither record is valid: all rows again
        self.assertNotIn("written before", self.output)
        with h5py.File(self.out) as f:
            self.assertTrue(f["features/pre_logits"][()].any(1).all())
        os.remove(self.out)
        # The file of another program is not replaced, nor is a finished one of other settings.
        with open(self.out, "w") as f:
            f.write("text")
        self.extract(code=2, mentions=("extract.out", "was not made by this mode"), ranks=2)
        with open(self.out) as f:
            self.assertEqual(f.read(), "text")
        os.remove(self.out)
        self.extract()
        self.extract("extract.pool=mean", code=2, mentions=("made from other weights, data or settings",
                                                           "extract.pool: then \"none\", now \"mean\""))

    def test_other_weights_are_refused(self):
        """Weights of equal names and steps differ in their digest."""
        self.train()
        params = {"params/" + name: value.astype(np.float32) for name, value in self.parameters().items()}
        for name in ("one", "other"):
            np.savez(f"{self.folder}/{name}.npz", **params)
            params["params/encoder/pos_embedding"][0, 2, 5] += np.float32(1e-3)
        self.extract(f"extract.from={self.folder}/one.npz")
        self.extract(f"extract.from={self.folder}/other.npz", code=2, mentions=("digest of the weights: then",), ranks=2)
        os.rename(self.folder + "/one.npz", self.folder + "/renamed.npz")
        self.extract(f"extract.from={self.folder}/renamed.npz", mentions=("41 of them written before",), ranks=2)

    def test_replaced_samples_are_named(self):
        """The row of a broken sample holds its substitute, and says so."""
        self.train()
        with h5py.File(self.extract(out=self.folder + "/good.h5")) as f:
            good, keys = f["features/pre_logits"][()], f["key"][()]
        with open(f"{self.data}/pairs.tar", "r+b") as f:
            with tarfile.open(fileobj=f) as tar:
                at = tar.getmember("000005.png").offset_data
            f.seek(at + 20)
            f.write(b"\0" * 40)
        self.extract(ranks=2, code=4, mentions=("000005",))
        use = ["loader.on_bad_sample=substitute", "loader.max_bad_sample_fraction=0.1"]
        # The job before wrote what it could; this one continues it.
        with h5py.File(self.extract(*use, ranks=2, mentions=("a fixed substitute is used",))) as f:
            sample = f["sample"][()]
            self.assertEqual(np.flatnonzero(sample != np.arange(SAMPLES)).tolist(), [5])
            np.testing.assert_array_equal(f["features/pre_logits"][()], good[sample])
            np.testing.assert_array_equal(f["key"][()], keys[sample])
            self.assertEqual(f["label"][5], self.label(sample[5]))

    def test_refused(self):
        self.train()
        np.savez(self.folder + "/all.npz", **{"params/" + n: v.astype(np.float32) for n, v in self.parameters().items()})
        for code, pairs, text in (
                (2, ['extract.data=""'], "extract.data: missing"),
                (2, ["extract.data=pears"], 'did you mean "pairs"'),
                (2, ['extract.taps=["block01"]'], "there is no tap \"block01\"; did you mean \"block00\""),
                (2, ['extract.taps=["encoded", "encoded"]'], "is listed twice"),
                (2, ["extract.dtype=float8"], "Accepted"),
                (2, ["extract.pol=mean"], "did you mean"),
                (2, ["extract.weights=ema", f"extract.from={self.folder}/all.npz"], "extract.weights"),
                (5, ["extract.weights=ema"], "holds no average of the weights"),
                (5, [f"extract.from={self.folder}/none.h5"], "extract.from: "),
                (5, ["run.dir=" + self.folder + "/other"], "in extract.from"),
                (5, ["model.encoder.width=16"], "belongs to another model"),
        ):
            with self.subTest(pairs=pairs):
                self.extract(*pairs, code=code, mentions=(text,))
                self.assertFalse(os.path.exists(self.out) or os.path.exists(self.out + ".part"))
        self.extract("extract.weights=ema", code=5, mentions=("holds no average of the weights",), ranks=2)

    # ------------------------------------------------------------------------ predict

    def check_published_classes(self, score, prediction):
        """The published formulas with the exported weights give the same scores, and the same class for each image."""
        file = self.folder + "/weights.npz"
        subprocess.run([harness.SOURCE + "/tools/export", self.dir, file], check=True, stdout=subprocess.DEVNULL)
        with np.load(file) as arrays:
            p = {name.removeprefix("params/"): arrays[name].astype(np.float64) for name in arrays}
        words = sentencepiece.SentencePieceProcessor(harness.TOKENIZER)
        texts = np.zeros((len(CLASSES), 12), int)
        for row, ids in zip(texts, words.encode(CLASSES)):
            row[:len(ids) + 1] = [*ids, 1]  # 1 ends a text
        config = {"patches": (8, 8), "num_layers": 1, "decoder_num_layers": 1, "seq_len": 12}
        published = published_model.scores(p, config, published_model.load().encode(p, config, self.images()), texts)
        np.testing.assert_allclose(score, published, rtol=1e-5)
        np.testing.assert_array_equal(prediction, published.argmax(1))
        # Short texts are always likely. Beside their means over all images, each class wins somewhere.
        ours, theirs = ((s - s.mean(0)).argmax(1) for s in (score, published))
        np.testing.assert_array_equal(ours, theirs)
        self.assertEqual(set(ours), set(range(len(CLASSES))))

    def test_scores_of_texts(self):
        self.train()
        predict = ["predict.evaluator=classes"]
        one = self.mode("predict", *predict)
        self.expect(0, args=[self.path, "--mode", "eval", *sets('evaluate.evaluators=["classes"]')])
        want = json.loads(self.output.splitlines()[-1])["evaluations"][0]
        with h5py.File(one) as f:
            score, prediction, label = f["score"][()], f["prediction"][()], f["label"][()]
            self.assertEqual([name.decode() for name in f["class"]], CLASSES)
            self.assertEqual(f["score"].attrs["unit"].decode(), "nats")
        self.assertEqual((score.dtype, score.shape), (np.float64, (SAMPLES, len(CLASSES))))
        self.assertEqual(list(label), [self.label(i) for i in range(SAMPLES)])
        np.testing.assert_array_equal(prediction, score.argmax(1))
        self.check_published_classes(score, prediction)
        self.assertEqual(want["top1"], np.mean(prediction == label))
        own = score[np.arange(SAMPLES), label][:, None]
        self.assertEqual(want["top2"], np.mean(((score > own).sum(1)) < 2))
        self.assertLess(score.max(), 0)
        for ranks in (2, 4):
            self.assert_equal_files(one, self.mode("predict", *predict, out=f"{self.folder}/on_{ranks}.h5", ranks=ranks))
        # Two prompts: the logarithm of the sum of the likelihoods of each alone.
        alone = []
        for prompt in ("{}", "a {}"):
            with h5py.File(self.mode("predict", *predict, f'eval.classes.prompts=["{prompt}"]',
                                     out=f"{self.folder}/prompt_{len(alone)}.h5")) as f:
                alone.append(f["score"][()])
        with h5py.File(self.mode("predict", *predict, 'eval.classes.prompts=["{}", "a {}"]', out=self.folder + "/both.h5",
                                 ranks=2)) as f:
            # Texts of one list share rows, so their sums are rounded otherwise.
            np.testing.assert_allclose(f["score"], np.logaddexp(*alone), rtol=2e-7)
        np.testing.assert_array_equal(alone[0], score)
        with h5py.File(self.mode("predict", *predict, "eval.classes.normalize_by_length=true", out=self.folder + "/mean.h5")) as f:
            ratio = score / f["score"][()]  # the number of tokens of each class
        np.testing.assert_allclose(ratio, np.round(ratio[:1]).repeat(SAMPLES, 0), rtol=1e-12)
        self.assertGreater(len(set(ratio[0])), 1)
        # Images without texts take the tokenizer of another set.
        pictures = [*predict, "predict.data=pictures"]
        with h5py.File(self.mode("predict", *pictures, "eval.classes.text_data=pairs", out=self.folder + "/pictures.h5")) as f:
            np.testing.assert_array_equal(f["score"], score)
            self.assertNotIn("label", f)
        self.mode("predict", *pictures, code=4, mentions=("data.pictures", "tokenize"), out=self.folder + "/none.h5")
        for pairs, text in ((["predict.evaluator=val"], "predicts no class"), (["predict.evaluator=non"], "the deck has classes, val"),
                            (["predict.evaluator=classes", "eval.classes.subtract_prior=true"], "eval.classes.subtract_prior"),
                            (['predict.evaluator=""'], "predict.evaluator: missing")):
            self.mode("predict", *pairs, code=2, mentions=(text,), out=self.folder + "/none.h5")

    def test_logits_of_a_classifier(self):
        self.path = self.deck(CLASSIFIER.format(dir=self.dir, data=self.data))
        for loss in ("softmax", "sigmoid", "mse"):
            shutil.rmtree(self.dir, ignore_errors=True)
            model = f"model.loss={loss}"
            self.expect(0, args=[self.path, *sets(model)])
            value = self.rows("eval")[-1]
            out = self.mode("predict", "predict.evaluator=kinds", "predict.top_k=3", model, out=f"{self.folder}/{loss}.h5", ranks=2)
            p = self.parameters(12)
            x = numpy_vit.taps(p, self.images("train"))["encoded"].mean(1) @ p["head/kernel"] + p["head/bias"]
            with h5py.File(out) as f:
                logit, label, top, share = (f[name][()] for name in ("logit", "label", "top_class", "top_probability"))
                np.testing.assert_array_equal(f["prediction"], logit.argmax(1))
            np.testing.assert_allclose(logit, x, rtol=2e-4, atol=2e-4)
            np.testing.assert_array_equal(top, np.argsort(-logit, axis=1, kind="stable")[:, :3])
            self.assertEqual(value["top1"], np.mean(logit.argmax(1) == label))
            self.assertEqual(value["top3"], np.mean((top == label[:, None]).any(1)))
            wide = logit.astype(np.float64)
            want = np.exp(wide) / np.exp(wide).sum(1, keepdims=True) if loss == "softmax" else 1 / (1 + np.exp(-wide))
            if loss == "mse":  # outputs are no probabilities
                np.testing.assert_array_equal(share, np.take_along_axis(logit, top, 1))
                self.assertAlmostEqual(value["loss"], np.mean((wide - np.eye(5)[label]) ** 2), 5)
                continue
            np.testing.assert_allclose(share, np.take_along_axis(want, top, 1), rtol=1e-6)
            # Images without labels have equal predictions, and no labels in the file.
            with h5py.File(self.mode("predict", "predict.evaluator=kinds", "predict.data=pictures", model,
                                     out=f"{self.folder}/{loss}_alone.h5")) as f:
                np.testing.assert_array_equal(f["logit"], logit)
                self.assertNotIn("label", f)
                self.assertEqual(f["top_class"].shape, (SAMPLES, 5))


harness.main()
