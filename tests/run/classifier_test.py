#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests classifiers as a user trains them: labels of every kind, values against NumPy, refusals,
modes, and the deck of inputs/."""
import json
import os
import shutil
import subprocess
import tarfile
import unittest
from unittest import mock

import h5py
import numpy as np

import harness
import numpy_vit

CLASSES = ["ant", "bee", "cat", "dog"]

DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 12, global_batch = 12, micro_batch = 6 }}
mesh   = {{ replica = 1, fsdp = -1 }}
log    = {{ console_every_steps = 1 }}

[model]
kind        = "classifier"
image_size  = 16
num_classes = 4
trunk       = {{ kind = "vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "gap" }}

[optimizer]
kind          = "adamw"
learning_rate = 3e-3

[schedule.default]
kind         = "cosine"
warmup_steps = 2

[data.train]
kind       = "webdataset"
path       = "{data}/train-000.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image", "label")'

[eval.val]
kind        = "classification"
data        = "train"
k           = [1, 3]
every_steps = 6

[checkpoint]
every_steps = 6
"""


def logits_of(p, images, pool):
    """Computes the logits of the published ViT, in double."""
    n, x = len(images), numpy_vit.taps(p, images, class_token=pool == "tok")["encoded"]
    if pool == "gap":
        pooled = x.mean(1)
    elif pool == "tok":
        pooled = x[:, 0]
    else:
        head = "encoder/MAPHead_0"
        probe = np.tile(p[head + "/probe"], (n, 1, 1))
        a = numpy_vit.attention(p, head + "/MultiHeadDotProductAttention_0", probe, x)
        pooled = (a + numpy_vit.mlp(p, head + "/MlpBlock_0", numpy_vit.layer_norm(p, head + "/LayerNorm_0", a)))[:, 0]
    return pooled @ p["head/kernel"] + p["head/bias"]


def class_values(scores, targets):
    """Computes numbers of all classes; targets [images, classes]: 1 shown, 0 not, -1 not known. No scores are equal."""
    precisions = []
    for s, t in zip(scores.T, targets.T):
        s, t = s[t >= 0], t[t >= 0] > 0
        hits = np.cumsum(t[np.argsort(-s)])
        precision = hits / np.arange(1, len(t) + 1)
        best = np.maximum.accumulate(precision[::-1])[::-1]
        precisions.append(best[np.diff(hits, prepend=0) > 0].mean())
    known = [(s[t >= 0], t[t >= 0] > 0) for s, t in zip(scores, targets)]
    right = {k: [t[np.argsort(-s)[:k]] for s, t in known] for k in (1, 2)}
    shown = sum(t.sum() for _, t in known)
    return {"mean_ap": np.mean(precisions), "recall_at_2": sum(t.sum() for t in right[2]) / shown,
            **{f"precision_at_{k}": np.concatenate(right[k]).mean() for k in (1, 2)}}


class Classifier(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.labels = [i * 7 % 4 for i in range(41)]
        with tarfile.open(self.data + "/train-000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, label in enumerate(self.labels):
                harness.add_member(tar, f"{i:06}.png", self.picture(i))
                harness.add_member(tar, f"{i:06}.cls", str(label).encode())
        self.good = DECK.format(dir=self.dir, data=self.data)

    def picture(self, i):
        # four of five images show their class
        return harness.png(1000 + i if i % 5 == 0 else self.labels[i])

    def images(self):
        """Returns the images that the deck's ops make."""
        self.expect(0, args=[self.deck(), "--mode", "show", "--set", "show.data=train", "--set", "show.examples=41",
                             "--dir", self.folder + "/show"])
        with h5py.File(self.folder + "/show/show.h5") as f:
            self.assertEqual(list(f["model/label"][()]), self.labels)
            return f["model/image"][()].astype(np.float64)

    def evaluation(self, folder=None):
        row = self.rows("eval", folder)[-1]
        return {name: row[name] for name in ("top1", "top3", "loss")}

    def test_values_are_those_of_numpy(self):
        images = self.images()
        for pool in ("gap", "map", "tok"):
            for loss in ("softmax", "sigmoid"):
                folder = f"{self.folder}/{pool}_{loss}"
                self.expect(0, args=[self.deck(), "--dir", folder, "--set", f"model.trunk.pool={pool}", "--set", f"model.loss={loss}",
                                     "--set", "model.label_smoothing=0.1", "--set", "model.mixup.p=0.2",
                                     *(["--set", "model.init_head_bias=-1.5"] if loss == "sigmoid" else [])])
                with h5py.File(f"{folder}/checkpoints/0000000012.h5") as f:
                    p = {}
                    f["params"].visititems(lambda name, d, p=p: p.__setitem__(name, d[()].astype(np.float64))
                                           if isinstance(d, h5py.Dataset) else None)
                x = logits_of(p, images, pool)
                own = x[np.arange(41), self.labels]
                rank = (x > own[:, None]).sum(1)
                if loss == "softmax":
                    losses = np.log(np.exp(x).sum(1)) - own
                else:
                    losses = np.log1p(np.exp(x)).sum(1) - own
                value = self.evaluation(folder)
                self.assertEqual(value["top1"], np.mean(rank < 1), (pool, loss))
                self.assertEqual(value["top3"], np.mean(rank < 3), (pool, loss))
                self.assertLess(abs(value["loss"] - losses.mean()), 1e-5 * losses.mean(), (pool, loss))

    def test_scores_of_all_classes(self):
        """Precision, recall and average precision are those of NumPy's logits, for labels and for several classes per
        image, with images and classes that do not count."""
        rng = np.random.default_rng(5)
        images = rng.uniform(-1, 1, (31, 16, 16, 3)).astype(np.float32)
        labels, masks = rng.integers(-1, 4, 31), rng.integers(0, 3, 31) > 0
        targets = rng.choice([-1, 0, 1], (31, 4)).astype(np.float32)
        with h5py.File(self.folder + "/images.h5", "w") as f:
            f["images"], f["classes"], f["counts"], f["tags"] = images, labels, masks.astype(np.int16), targets
        deck = self.deck(self.good + f"""
[data.tagged]
kind = "hdf5"
path = "{self.folder}/images.h5"
fields = {{ image = "images", label = "classes", tags = "tags", counts = "counts" }}
preprocess = 'keep("image", "label", "tags", "counts")'
""" + "".join(f"""[eval.{name}]
kind = "classification"
data = "tagged"
k = [1]
precision_at = [1, 2]
recall_at = [2]
mean_ap = true
{keys}
every_steps = 12
""" for name, keys in (("labels", "skip_unlabelled = true"), ("tags", 'targets = "tags"\nmask = "counts"'))))
        self.expect(0, args=[deck, "--validate"])
        for ranks in (1, 3):
            folder = f"{self.folder}/on{ranks}"
            self.expect(0, "eval=tags step=12 top1=", ranks=ranks, args=[deck, "--dir", folder, "--set", "train.micro_batch=2"])
            rows = {row["eval"]: row for row in self.rows("eval", folder)}
            x = logits_of(self.parameters(f"{folder}/checkpoints/0000000012.h5"), images.astype(np.float64), "gap")
            one = np.where(labels[:, None] < 0, -1.0, np.eye(4)[labels])
            for name, wanted in (("labels", one), ("tags", np.where(masks[:, None], targets, -1.0))):
                expected = class_values(x, wanted)
                self.assertEqual(len(expected), 4)
                for key, value in expected.items():
                    self.assertAlmostEqual(rows[name][key], value, delta=1e-12, msg=(ranks, name, key))
            self.assertNotIn("loss", rows["tags"])
        with open(deck) as f:
            unmarked = f.read().replace("skip_unlabelled = true", "")
        self.refuse(self.good.replace("k           = [1, 3]", "precision_at = [5]"),
                    "eval.val", "precision_at: 5 is more than the 4 classes", args=["--validate"])
        self.refuse(self.good.replace("k           = [1, 3]", 'targets = "tags"'), 'eval.val.data needs "tags"', args=["--validate"])
        self.refuse(self.good.replace("k           = [1, 3]", 'targets = "tags"\nskip_unlabelled = true'),
                    "eval.val.skip_unlabelled", args=["--validate"])
        self.refuse(unmarked, "holds -1, which is not in [0, 4)", code=4)

    @staticmethod
    def parameters(path):
        p = {}
        with h5py.File(path) as f:
            f["params"].visititems(lambda name, d: p.__setitem__(name, d[()].astype(np.float64)) if isinstance(d, h5py.Dataset) else None)
        return p

    def test_same_numbers_on_all_meshes(self):
        """Level "mesh" with mixup gives equal numbers: in training, and in evaluations of 41
        images and of fewer images than ranks."""
        tail = '\n[determinism]\nlevel = "mesh"\nslices = 4\n'
        deck = self.deck(self.good.replace("global_batch = 12, micro_batch = 6", "global_batch = 16") + tail +
                         f'[data.few]\nkind = "webdataset"\npath = "{self.data}/train-000.tar"\nlimit = 3\n'
                         'fields = { image = "png", label = "cls" }\npreprocess = "@train"\n'
                         '[eval.few]\nkind = "classification"\ndata = "few"\nevery_steps = 6\n')
        seen = {}
        for ranks, *more in ((1, "train.micro_batch=16"), (1, "train.micro_batch=4"), (2, "mesh.fsdp=1", "mesh.replica=2"),
                             (2, "sharding.parameters=sharded", "sharding.optimizer=sharded"),
                             (4, "mesh.replica=2", "sharding.optimizer=sharded")):
            folder = f"{self.folder}/mesh{len(seen)}"
            words = [word for key in ("model.mixup.p=0.4", "model.trunk.pool=map", *more) for word in ("--set", key)]
            self.expect(0, args=[deck, "--dir", folder, *words], ranks=ranks)
            seen[folder] = ([[row[name] for name in ("loss", "accuracy", "l2_grads", "l2_params")] for row in self.rows(folder=folder)],
                            [[row[name] for name in ("top1", "loss")] for row in self.rows("eval", folder)],
                            self.tensors(12, folder))
        first = next(iter(seen.values()))
        self.assertEqual(len(first[0]), 12)
        self.assertEqual(len(first[1]), 4)
        for folder, outcome in seen.items():
            self.assertEqual(outcome, first, folder)

    def test_learns_in_bf16_and_goes_on(self):
        words = ["--set", "train.total_steps=150", "--set", "eval.val.every_steps=50", "--set", "checkpoint.every_steps=50",
                 "--set", "precision.compute=bf16", "--set", "checkpoint.best=val/top1:max", "--set", "log.console_every_steps=50"]
        self.expect(0, "model    classifier", "accuracy=", "best=yes", args=[self.deck(), *words], ranks=2)
        self.assertGreater(self.evaluation()["top1"], 0.75)
        before = self.rows()[-1]
        self.assertEqual(before["accuracy"], round(before["accuracy"] * 12) / 12)
        self.expect(0, args=[self.deck(), *words, "--set", "train.total_steps=152"], ranks=1)
        with h5py.File(self.dir + "/metrics.h5") as f:
            self.assertEqual(f["eval/val/top1"].attrs["unit"].decode(), "1")
            self.assertIn("3 most likely", f["eval/val/top3"].attrs["doc"].decode())
            self.assertIn("own class", f["train/accuracy"].attrs["doc"].decode())

    def test_labels_of_every_kind(self):
        """Equal images and classes give equal numbers from a tar, HDF5, sub-folders and tables."""
        table = ["name\tkind"]
        for i, label in enumerate(self.labels):
            for name in (f"folders/{CLASSES[label]}/{i:03}.png", f"table/{i:03}.png"):
                os.makedirs(os.path.dirname(f"{self.folder}/{name}"), exist_ok=True)
                with open(f"{self.folder}/{name}", "wb") as f:
                    f.write(self.picture(i))
            table.append(f"{i:03}.png\t{CLASSES[label]}")
        with open(self.folder + "/table/labels.tsv", "w") as f:
            f.write("\n".join(table) + "\n")
        with open(self.folder + "/table/labels.jsonl", "w") as f:
            for i, label in enumerate(self.labels):
                f.write(json.dumps({"name": f"{i:03}.png", "size": [20, 20], "class": label}) + "\n")
        with open(self.folder + "/names.txt", "w") as f:
            f.write("\n".join(CLASSES) + "\n")
        with h5py.File(self.folder + "/images.h5", "w") as f:
            files = f.create_dataset("files", 41, h5py.vlen_dtype(np.uint8))
            for i in range(41):
                files[i] = np.frombuffer(self.picture(i), np.uint8)
            f["classes"] = np.array(self.labels, np.int16)
        ops = 'decode | resize(16) | value_range(-1, 1)'
        sources = {
            "tar": f'kind = "webdataset"\npath = "{self.data}/train-000.tar"\nfields = {{ image = "png", label = "cls" }}\n'
                   f"preprocess = '{ops} | keep(\"image\", \"label\")'\n",
            "hdf5": f'kind = "hdf5"\npath = "{self.folder}/images.h5"\nfields = {{ image = "files: bytes", label = "classes" }}\n'
                    f"preprocess = '{ops} | keep(\"image\", \"label\")'\n",
            "folders": f'kind = "class_folder"\npath = "{self.folder}/folders"\npreprocess = \'{ops} | keep("image", "label")\'\n',
            "table": f'kind = "folder"\ncaptions = "{self.folder}/table/labels.tsv"\nsample = "caption"\nimage_column = "name"\n'
                     f'caption_column = "kind"\n'
                     f"preprocess = '{ops} | class_number(\"{self.folder}/names.txt\") | keep(\"image\", \"label\")'\n",
            "jsonl": f'kind = "folder"\ncaptions = "{self.folder}/table/labels.jsonl"\nsample = "caption"\nimage_column = "name"\n'
                     f'caption_column = "class"\npreprocess = \'{ops} | class_number() | keep("image", "label")\'\n',
        }
        deck = self.deck(self.good + "".join(f"[data.{name}]\n{text}" for name, text in sources.items()) +
                         "".join(f'[eval.{name}]\nkind = "classification"\ndata = "{name}"\nevery_steps = 12\n' for name in sources))
        self.expect(0, args=[deck, "--validate"])
        self.expect(0, args=[deck])
        values = {row["eval"]: (row["top1"], row["top5"], round(row["loss"], 6)) for row in self.rows("eval") if row["eval"] in sources}
        self.assertEqual(len(values), 5)
        self.assertEqual(len(set(values.values())), 1, values)
        self.expect(0, "41 images, 4 classes: ant, bee, cat, dog", args=[deck, "--mode", "index", "--set", "index.data=[\"folders\"]"])

    def refuse(self, text, *fragments, code=2, args=()):
        self.expect(code, *fragments, args=[self.deck(text), *args])

    def test_refusals(self):
        change = self.changed
        ok = self.good
        self.refuse(change(('kind        = "classification"', 'kind        = "perplexity"'), ("k           = [1, 3]\n", "")),
                    "eval.val.kind", 'perplexity needs a model that can score captions, and model.kind = "classifier" cannot',
                    args=["--validate"])
        captioner = harness.DECK.format(dir=self.dir, data=self.data, tokenizer=harness.TOKENIZER)
        self.refuse(captioner.replace('kind        = "perplexity"', 'kind        = "classification"'),
                    'classification needs a model that can rank classes, and model.kind = "cappa" cannot', args=["--validate"])
        self.refuse(change((', label = "cls"', ""), ('keep("image", "label")', 'keep("image")')), 'the model needs "label"',
                    args=["--validate"])
        self.refuse(change((', label = "cls"', ', label = "txt"')), "yields label text where the model takes i32 []", args=["--validate"])
        self.refuse(change(('pool = "gap"', 'pool = "gpa"')), 'model.trunk.pool', '"gap"', args=["--validate"])
        self.refuse(change(("num_classes = 4\n", "")), "model.num_classes", "missing", args=["--validate"])
        self.refuse(change(("image_size  = 16", "image_size  = 20"), ("resize(16)", "resize(20)")),
                    "20 is not divisible by model.trunk.patch = 8", args=["--validate"])
        self.refuse(ok + 'best = "val/top5:max"\n', "[eval.val] yields no \"top5\"", args=["--validate"])
        self.refuse(change(("num_classes = 4", "num_classes = 3")), "holds 3, which is not in [0, 3) (model.num_classes)", code=4)
        self.refuse(ok, "model.mixup.group = 4 does not divide the 6 examples", code=3,
                    args=["--set", "model.mixup.p=0.2", "--set", "model.mixup.group=4"])
        os.makedirs(self.folder + "/folders/ant")
        os.makedirs(self.folder + "/folders/bee")
        folder = f'\n[data.more]\nkind = "class_folder"\npath = "{self.folder}/folders"\npreprocess = "@train"\n'
        more = '[eval.more]\nkind = "classification"\ndata = "more"\nevery_steps = 6\n'
        errors = change(('classifier"', 'classifier"\nloss = "mse"\ntargets = "ages"\nunknown = "ignore"\nbeta = 0.5'))
        self.refuse(errors, "model.beta", 'applies only to loss = "smooth_l1"', "model.unknown", "a target of -1 is an ordinary number",
                    args=["--validate"])
        one = ok.replace("num_classes = 4", "num_classes = 1").replace("classifier\"", 'classifier"\nloss = "sigmoid"')
        self.refuse(one + folder + more,
                    "1 is smaller than the 2 ids that [data.more] can yield", args=["--validate"])

    def test_classes_that_changed_since_the_training(self):
        """A checkpoint knows the names of its classes. All modes that use them compare."""
        for name in ("train", "val"):
            for i in range(12):
                os.makedirs(f"{self.folder}/{name}/{CLASSES[i % 3]}", exist_ok=True)
                with open(f"{self.folder}/{name}/{CLASSES[i % 3]}/{i}.png", "wb") as f:
                    f.write(harness.png(i))
        head, tail = self.good.split("[data.train]")
        folders = "".join(f"""[data.{name}]
kind       = "class_folder"
path       = "{self.folder}/{name}"
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image", "label")'

""" for name in ("train", "val", "more"))
        deck = self.deck(head + folders + tail[tail.index("[eval.val]"):].replace('"train"', '"val"'))
        self.expect(0, args=[deck])
        with h5py.File(f"{self.dir}/checkpoints/0000000012.h5") as f:
            self.assertEqual(f.attrs["classes"].decode(), "ant\nbee\ncat")
        modes = {"eval": (), "predict": ("--set", "predict.evaluator=val"), "extract": ("--set", "extract.data=val"),
                 "train": ("--set", "train.total_steps=13")}
        # Another set beside the same training.
        shutil.copytree(self.folder + "/val", self.folder + "/more")
        os.rename(self.folder + "/more/bee", self.folder + "/more/dog")
        for args in (("predict", *modes["predict"], "--set", "predict.data=more"), ("extract", "--set", "extract.data=more")):
            self.expect(2, "data.more.path", 'class 1 is "cat" in [data.more], and "bee" in [data.train]', "keep(\"image\")",
                        args=[deck, "--mode", *args])
            os.rename(self.folder + "/train", self.folder + "/away")    # the checkpoint's list is enough
            self.expect(2, "data.more.path", 'class 1 is "cat" in [data.more], and "bee" in the training of', "0000000012.h5",
                        args=[deck, "--mode", *args])
            os.rename(self.folder + "/away", self.folder + "/train")
        # A class has another name in both sets.
        for name in ("train", "val"):
            os.rename(f"{self.folder}/{name}/ant", f"{self.folder}/{name}/eel")
        wrong = ('class 0 is "bee" in [data.', 'and "ant" in the training of')
        for mode, args in modes.items():
            allowed = ("--allow-change", "train.data") if mode == "train" else ()
            self.expect(2, *wrong, "--allow-change data.", args=[deck, "--mode", mode, *args, *allowed], ranks=2 if mode == "eval" else 0)
        for mode, args in modes.items():
            self.expect(0, args=[deck, "--mode", mode, *args, "--allow-change", "data", "--allow-change", "train.data"])
        with h5py.File(f"{self.dir}/checkpoints/0000000013.h5") as f:
            self.assertEqual(f.attrs["classes"].decode(), "bee\ncat\neel")
        self.expect(0, args=[deck, "--mode", "eval"])

    def test_modes(self):
        self.expect(0, "label=", args=[self.deck(), "--mode", "show", "--set", "show.examples=3"])
        drawn = subprocess.run([harness.SOURCE + "/tools/show_batch", self.deck(), "-o", self.folder + "/batch.png"],
                               capture_output=True, text=True)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.expect(0, "activations", args=[self.deck(), "--mode", "plan", "--ranks", "2"])
        self.expect(0, "examples/s", args=[self.deck(), "--mode", "bench", "--set", "bench.steps=2"], ranks=2)
        self.expect(0, "41", args=[self.deck(), "--mode", "index", "--set", 'index.data=["train"]'])

    @unittest.skipUnless(os.path.exists(harness.SOURCE + "/data/emoji/val-000.tar"), "tools/make_emoji_dataset has not been run")
    def test_the_deck_of_emoji(self):
        """inputs/emoji_classes.toml runs for a few steps with a few examples."""
        self.expect(0, "top5=",
                    args=["inputs/emoji_classes.toml", "--dir", self.dir, "--set", "train.total_steps=2", "--set", "data.val.limit=9",
                          "--set", "train.global_batch=8"], ranks=2, cwd=harness.SOURCE)

    @unittest.skipUnless("TRAINER_ON_EMULATOR" in os.environ, "needs the program on emulated GPUs")
    def test_on_an_emulated_gpu(self):
        """Images reach the GPU as bytes, and the GPU blends them."""
        for pool in ("gap", "map", "tok"):
            words = [word for key in ("train.total_steps=3", "schedule.default.warmup_steps=1", "model.mixup.p=0.4",
                                      "checkpoint.every_steps=3", "eval.val.every_steps=3", f"model.trunk.pool={pool}")
                     for word in ("--set", key)]
            rows = []
            for device, program in (("cpu", harness.TRAINER), ("cuda", os.environ["TRAINER_ON_EMULATOR"])):
                folder = f"{self.folder}/{pool}_{device}"
                search = ["--set", "run.gemm_search=off"] if device == "cuda" else []
                with mock.patch.object(harness, "TRAINER", program):
                    self.expect(0, args=[self.deck(), "--dir", folder, "--set", f"run.device={device}", *search, *words])
                rows.append(self.rows(folder=folder) + self.rows("eval", folder))
            for one, other in zip(*rows):
                for name in {"loss", "accuracy", "l2_grads", "top1"} & one.keys():
                    self.assertAlmostEqual(one[name], other[name], delta=2e-5 * abs(other[name]), msg=(pool, name, one["step"]))

    def test_learns_made_up_classes(self):
        made = 'data.train={kind="synthetic", examples=96, image_size=16, seq_len=8, vocab_size=9, classes=4, pattern="separable"}'
        self.expect(0, args=[self.deck(), "--set", made, "--set", "train.total_steps=24", "--set", "train.reduce_gradients=after_backward",
                             "--set", 'optimizer={kind="rmsprop", learning_rate=1e-3, momentum=0.5, centered=true}'], ranks=2)
        self.assertEqual(self.rows("eval")[-1]["top1"], 1)

    def expect_two_classes(self, folder):
        """Each batch that was trained on has two classes with equally many examples."""
        batches = {}
        for name in os.listdir(folder + "/logs/samples"):
            with open(f"{folder}/logs/samples/{name}") as f:
                for line in f:
                    step, _, _, key = line.rstrip("\n").split("\t")
                    batches.setdefault(step, []).append(self.labels[int(key.split(":")[-1])])
        self.assertEqual(len(batches), 3)
        for labels in batches.values():
            self.assertEqual(sorted(np.unique(labels, return_counts=True)[1]), [len(labels) // 2] * 2)

    def test_parts_and_orders_by_class(self):
        part = ["--set", "data.train.limit=3", "--set", "data.train.limit_per=class"]
        self.expect(0, "12 of 41 samples", "order: by class, power 1",
                    args=[self.deck(), *part, "--set", "train.shuffle=classes", "--set", "train.total_steps=3"])
        self.expect(0, "order: by class, power 0.5", args=[
            self.deck(), *part, "--set", "train.shuffle=classes", "--set", "train.class_power=0.5", "--set", "train.total_steps=1",
            "--set", "checkpoint.resume=never"])
        fresh = ["--dir", self.folder + "/fresh"]
        strata = ["--set", "train.shuffle=stratified", "--set", "log.samples=true", *fresh]
        self.expect(0, "order: stratified, ", args=[self.deck(), *strata, "--set", "train.classes_per_batch=2", "--set",
                                                     "train.total_steps=3"], ranks=2)
        self.expect_two_classes(fresh[1])
        shutil.rmtree(fresh[1])
        self.expect(2, "train.classes_per_batch = 6, but the data have only 4 classes",
                    args=[self.deck(), *strata, "--set", "train.classes_per_batch=6"])
        self.expect(4, "limit = 11, skip = 0: class '1' has 10 samples",
                    args=[self.deck(), *fresh, *part[2:], "--set", "data.train.limit=11"])
        self.expect(2, "class_field: the source has no field 'labels', nearest is 'label'",
                    args=[self.deck(), *fresh, *part, "--set", "data.train.class_field=labels"])
        self.expect(2, 'model.unknown = "ignore"', "train.micro_batch", args=[self.deck(), *fresh, "--set", "model.unknown=ignore"])

    def test_a_captioner_gives_its_encoder(self):
        """init.from with a map puts the trunk of another model below a fresh head."""
        captions = self.folder + "/captions"
        os.mkdir(captions)
        harness.make_shards(captions)
        captioner = harness.DECK.format(dir=self.folder + "/cappa", data=captions, tokenizer=harness.TOKENIZER)
        self.expect(0, args=[self.deck(captioner, "captioner.toml"), "--set", "train.total_steps=4"])
        init = f'\n[init]\nfrom = "{self.folder}/cappa/checkpoints/0000000004.h5"\nmap = {{ "encoder" = "params/encoder" }}\n'
        self.expect(0, args=[self.deck(self.good + init), "--set", "train.total_steps=3", "--set", "optimizer.learning_rate=1e-30"])
        theirs, ours = self.tensors(4, self.folder + "/cappa"), self.tensors(3)
        names = [name for name in ours if name.startswith("params/encoder/")]
        self.assertEqual(len(names), 21)
        for name in names:
            self.assertEqual(ours[name], theirs[name], name)


if __name__ == "__main__":
    harness.main()
