#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the examples of training on three ranks of the real program: orders and mixtures through
restarts on other rank counts, broken samples that are replaced and named once, and copies on
node-local disk."""
import os
import random
import re
import shutil
import struct
import tarfile
import zlib

import harness
from harness import sets


def mixed(text):
    """Returns the good deck with a mixture of its two shards."""
    begin, end = text.index("[data.train]"), text.index("[eval.val]")
    table = text[begin:end]
    sets = "".join(table.replace("[data.train]", f"[data.{name}]").replace("train-{000..001}.tar", f"train-00{i}.tar")
                   for i, name in enumerate(("few", "many")))
    return text[:begin] + table + sets + text[end:]


class Stream(harness.RunTest):
    def losses(self, folder=None):
        return {row["step"]: row["loss"] for row in self.rows(folder=folder)}

    def samples(self, folder):
        """Reads log.samples as {step: {position: sample}}; the later record of a repeated step
        counts."""
        files = {}
        for name in os.listdir(folder + "/logs/samples"):
            begin, rank = re.fullmatch(r"from(\d{10})\.rank(\d{5})\.tsv", name).groups()
            files.setdefault(int(begin), []).append(f"{folder}/logs/samples/{name}")
        steps = {}
        for begin in sorted(files):
            steps = {step: batch for step, batch in steps.items() if step <= begin}
            for path in files[begin]:
                with open(path) as f:
                    for line in f:
                        step, position, dataset, key = line.rstrip("\n").split("\t")
                        batch = steps.setdefault(int(step), {})
                        self.assertNotIn(int(position), batch, "read twice")
                        batch[int(position)] = (dataset, os.path.basename(key))
        return steps

    def test_restarts_on_other_rank_counts(self):
        # Every step has the batch of the uninterrupted run, sample by sample. Losses differ only by
        # the order of sums.
        draws = random.Random(4)
        every = sets("checkpoint.every_steps=1", "checkpoint.keep_last=12", "eval.val.every_steps=0",
                     "log.samples=true")
        mixture = sets('train.data=""', "train.mixture={few=1,many=2}")
        modes = {"exact": [], "blocks": sets("train.shuffle_block=3", "train.shuffle_window=2"),
                 "none": mixture}
        for mode, extra in modes.items():
            with self.subTest(mode):
                args = [self.deck(mixed(self.good)), *sets(f"train.shuffle={mode}"), *every, *extra]
                straight, parts = f"{self.folder}/{mode}", f"{self.folder}/{mode}_parts"
                self.expect(0, args=[*args, "--dir", straight], ranks=3)
                shutil.copytree(straight, parts)
                for ranks in (2, 4, 1, 3):
                    keep = draws.randint(1, 10)
                    for name in self.checkpoints(parts):
                        if int(name[:10]) > keep:
                            os.remove(f"{parts}/checkpoints/{name}")
                    stopped = int(self.checkpoints(parts)[-1][:10])
                    self.expect(0, f"step={stopped + 1} ", args=[*args, "--dir", parts], ranks=ranks)
                expected, got = self.losses(straight), self.losses(parts)
                self.assertEqual(sorted(got), list(range(1, 13)))
                for step, loss in expected.items():
                    self.assertAlmostEqual(got[step], loss, delta=2e-4 * loss, msg=f"{mode} step {step}")
                spread = max(expected.values()) - min(expected.values())
                self.assertGreater(spread, 0.01 * expected[1], "the losses must distinguish batches")
                batches = self.samples(straight)
                self.assertEqual(self.samples(parts), batches)
                stream = [batches[step][position] for step in range(1, 13) for position in sorted(batches[step])]
                self.assertEqual(len(stream), 144)
                if mode == "none":  # weights 1 and 2: any three in a row have one of few
                    for i in range(len(stream) - 2):
                        self.assertEqual([name for name, _ in stream[i:i + 3]].count("few"), 1, i)
                for name in {name for name, _ in stream}:  # every sample exactly once in each epoch of its data set
                    keys, size = [key for n, key in stream if n == name], 40 if name == "train" else 20
                    for epoch in range(len(keys) // size):
                        self.assertEqual(len(set(keys[epoch * size:(epoch + 1) * size])), size)

    def test_mixture_metrics_and_refusals(self):
        text = mixed(self.good)
        args = sets('train.data=""', "train.mixture={few=1,many=3}")
        self.expect(0, "few + many", "1 of 4 from few", args=[self.deck(text), *args], ranks=3)
        for row in self.rows():
            step = row["step"]
            self.assertEqual(row["examples_seen"], 12 * step)
            self.assertEqual(row["examples_seen[few]"], 3 * step)
            self.assertEqual(row["examples_seen[many]"], 9 * step)
            self.assertAlmostEqual(row["epoch[many]"], 9 * step / 20)
            self.assertAlmostEqual(row["epoch"], 12 * step / 40)
        with harness.h5py.File(self.dir + "/metrics.h5") as f:
            self.assertEqual(f["train/examples_seen[many]"][-1], 108)
        # An epoch of a mixture has as many examples as its data sets hold together, 40.
        self.expect(0, "3 steps", "0.9 epochs", ranks=1,
                    args=[self.deck(text.replace("total_steps = 12", "total_epochs = 1")), *args,
                          "--dir", self.folder + "/epochs"])
        refused = self.folder + "/refused"
        for extra, fragments in ((sets("train.mixture={few=1,manny=3}"), ["manny", "many"]),
                                 (sets("train.mixture={few=1,many=0}"), ["train.mixture.many", "> 0"]),
                                 (sets("train.mixture={few=1,many=1e-5}"), ["many", "1 in 10,000"]),
                                 (sets("train.data=train", "train.mixture={few=1}"), ["train.mixture", "train.data"]),
                                 ([], ["train.data", "mixture"])):
            with self.subTest(extra):
                self.expect(2, *fragments, args=[self.deck(text), *sets('train.data=""'), *extra, "--dir", refused])
        few, many = text.split("[data.many]")
        for old, new in (('text = "txt" }', 'text = "txt", label = "cls" }'),
                         ('"image", "labels")', '"image", "labels", "label")')):
            many = many.replace(old, new)
        self.expect(2, "[data.few]", "[data.many]", "'label' is missing in the first", args=[
            self.deck(few + "[data.many]" + many), "--dir", refused,
            *sets('train.data=""', "train.mixture={few=1,many=1}")])
        self.assertFalse(os.path.exists(refused))


# ---------------------------------------------------------------- broken samples

def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def broken_images():
    good = harness.png(3)
    out = harness.io.BytesIO()
    harness.Image.fromarray(harness.np.full((40, 40, 3), 90, harness.np.uint8)).save(out, "JPEG")
    jpeg = out.getvalue()
    flipped = bytearray(good)
    flipped[good.index(b"IDAT") + 12] ^= 0x55
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    out = harness.io.BytesIO()
    harness.Image.new("RGB", (8, 8)).save(out, "BMP")
    return {"empty": b"", "text": b"not an image at all", "noise": bytes(random.Random(1).randbytes(200)),
            "half a PNG": good[: len(good) // 2], "PNG with flipped bits": bytes(flipped),
            "PNG that claims to be huge": good[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
                                          + chunk(b"IEND", b""),
            "half a JPEG header": jpeg[:100], "BMP": out.getvalue()}


class BadMembers(harness.RunTest):
    """Breaks one sample of a hundred, by turns in every possible way."""
    SIZE = 10_000
    missing = True  # a missing member, which is found before any sample is read

    def setUp(self):
        super().setUp()
        # Each row is an image and a text; one of them is broken.
        kinds = [(image, b"a red house") for image in broken_images().values()]
        good = harness.png(3)
        kinds += [(good, "caf\u00e9 au lait".encode("latin-1")), (good, b"a\0b"), (good, b"a" * (1 << 20) + b"b")]
        if self.missing:
            kinds.append((good, None))
        images = [harness.png(i, 16) for i in range(20)]
        draws = random.Random(7)
        self.bad = sorted(draws.sample(range(self.SIZE), self.SIZE // 100))
        kind_of = {sample: kinds[n % len(kinds)] for n, sample in enumerate(self.bad)}
        for s in range(2):
            with tarfile.open(f"{self.data}/train-{s:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(s * self.SIZE // 2, (s + 1) * self.SIZE // 2):
                    image, text = kind_of.get(i, (images[i % len(images)], b"a red house"))
                    harness.add_member(tar, f"{i:06}.png", image)
                    if text is not None:
                        harness.add_member(tar, f"{i:06}.txt", text)
        with tarfile.open(f"{self.data}/val.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(20):
                harness.add_member(tar, f"v{i}.png", b"" if i == 5 else images[i])
                harness.add_member(tar, f"v{i}.txt", b"two birds")
        text = self.good.replace("global_batch = 12, micro_batch = 6", "global_batch = 240, micro_batch = 120")
        for old, new in (('data        = "train"', 'data        = "val"'), ("every_steps = 6", "every_steps = 60"),
                         ("every_steps = 4", "every_steps = 30"),
                         ("console_every_steps = 1", "console_every_steps = 50")):
            text = text.replace(old, new)
        train = text[text.index("[data.train]"):text.index("[eval.val]")]
        self.good = text + train.replace("[data.train]", "[data.val]").replace("train-{000..001}.tar", "val.tar")
        self.substitute = sets("loader.on_bad_sample=substitute", "loader.max_bad_sample_fraction=0.06")

    def listed(self, folder=None):
        with open((folder or self.dir) + "/logs/bad_samples.txt") as f:
            return [line.rstrip("\n").split("\t") for line in f]


class BadSamples(BadMembers):
    def test_substitutes_on_three_ranks(self):
        # The first job takes one epoch and a half on three ranks, the second runs to the end of the
        # third on two.
        self.expect(0, "a fixed substitute is used", "further bad samples", "done     exit=0", ranks=3,
                    args=[self.deck(), *self.substitute, *sets("train.total_steps=60", "log.samples=true")])
        # Each rank reads equally much, wherever the broken samples are.
        positions = []
        for rank in range(3):
            with open(f"{self.dir}/logs/samples/from0000000000.rank{rank:05}.tsv") as f:
                own = [tuple(map(int, line.split("\t")[:2])) for line in f]
            self.assertEqual([step for step, _ in own], [step for step in range(1, 61) for _ in range(80)])
            positions += [position for _, position in own]
        self.assertEqual(sorted(positions), list(range(60 * 240)))
        first = self.listed()
        with open(f"{self.dir}/logs/bad_samples.txt", "a") as f:
            f.write("nothing of ours\nother\ta:1\twhy\n")
        self.expect(0, "from=checkpoint", "300 examples were replaced for 101 bad samples", "bad_samples.txt", ranks=2,
                    args=[self.deck(), *self.substitute, *sets("train.total_steps=125")])
        self.assertIn("bad_samples.txt: 2 lines do not name samples", self.output)
        lines = self.listed()
        self.assertEqual(lines[: len(first)], first, "the list is continued")
        lines = [line for line in lines if line[0] in ("train", "val")]
        keys = [key for name, key, why in lines if name == "train"]
        self.assertEqual(len(keys), len(set(keys)), "each key once")
        self.assertEqual(sorted(int(key.rsplit(":", 1)[1]) for key in keys), self.bad)
        self.assertTrue(all(f"train-00{int(key.rsplit(':', 1)[1]) * 2 // self.SIZE}.tar:" in key for key in keys))
        self.assertEqual([key.rsplit("/", 1)[1] for name, key, why in lines if name == "val"], ["val.tar:v5"])
        reasons = {re.sub(r"\d+", "", why)[:24] for name, key, why in lines}
        self.assertGreaterEqual(len(reasons), 10, f"each kind must have its own reason: {reasons}")
        rows = self.rows()
        self.assertEqual([row["step"] for row in rows], list(range(1, 126)))
        self.assertEqual(sum(row["bad_samples"] for row in rows), 300)  # three epochs of 100
        # One rank from the beginning gives the same batches and the same substitutes.
        self.expect(0, ranks=1, args=[self.deck(), *self.substitute, *sets("train.total_steps=60"),
                                      "--dir", self.folder + "/one"])
        for a, b in zip(rows, self.rows(folder=self.folder + "/one")):
            self.assertEqual(a["bad_samples"], b["bad_samples"], a["step"])
            if a["step"] <= 30:  # later, rounding errors grow
                self.assertAlmostEqual(a["loss"], b["loss"], delta=0.02 * a["loss"])
        self.assertEqual({key for _, key, _ in self.listed(self.folder + "/one")}, {key for _, key, _ in lines})

    def test_missing_members_are_found_at_once(self):
        self.expect(4, "data.train", "8 of 10,000 samples have no member '.txt'", "train-00", "loader.on_bad_sample", args=[self.deck()],
                    ranks=3)

    def test_too_many(self):
        self.expect(4, "max_bad_sample_fraction = 0.005", "bad_samples.txt", ranks=3,
                    args=[self.deck(), *sets("loader.on_bad_sample=substitute", "loader.max_bad_sample_fraction=0.005",
                                               "train.total_steps=125", "eval.val.every_steps=0",
                                               "eval.val.at_end=false")])
        count = re.search(r"data\.train: (\d+) of 10,000 samples cannot be used", self.output)
        self.assertTrue(count, self.output)
        # The run ends after the step whose batch exceeds 50. A bad neighbour of a bad sample counts
        # at once.
        self.assertTrue(51 <= int(count[1]) <= 60, count[0])
        self.assertEqual(len(self.listed()), int(count[1]))


class OneBadSampleIsAnError(BadMembers):
    missing = False

    def test_error_names_shard_and_member(self):
        self.expect(4, "data.train", "train-00", ".tar:00", "loader.on_bad_sample", args=[self.deck()], ranks=3)
        named = {int(n) for n in re.findall(r"train-00\d\.tar:(\d+)", self.output)}
        self.assertTrue(named and named <= set(self.bad), self.output)


# ---------------------------------------------------------------- staging

class Staging(harness.RunTest):
    def test_copies_once_per_node(self):
        local = self.folder + "/local"
        os.mkdir(local)
        os.environ["TRAINER_TEST_LOCAL"] = local
        self.addCleanup(os.environ.pop, "TRAINER_TEST_LOCAL")
        stage = sets('loader.stage_dir="$TRAINER_TEST_LOCAL/shards"')
        self.expect(0, f"stage    {local}/shards on 1 node: 2 files", "copied 2 files",
                    args=[self.deck(), *stage], ranks=3)
        self.assertEqual(len(os.listdir(local + "/shards")), 2)
        self.expect(0, "copied 0 files", args=[self.deck(), *stage, "--dir", self.folder + "/again"], ranks=3)
        self.expect(0, args=[self.deck(), "--dir", self.folder + "/direct"], ranks=3)
        folders = (self.dir, self.folder + "/again", self.folder + "/direct")
        losses = [[row["loss"] for row in self.rows(folder=folder)] for folder in folders]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    def test_refusals(self):
        self.expect(2, "TRAINER_TEST_NOWHERE", "not set", ranks=2,
                    args=[self.deck(), *sets('loader.stage_dir="$TRAINER_TEST_NOWHERE"')])
        with open(f"{self.data}/train-001.tar", "r+b") as f:
            f.truncate(8 << 40)
        self.expect(4, "loader.stage_dir", "GiB free", "8192.00 GiB", ranks=2,
                    args=[self.deck(), *sets(f'loader.stage_dir="{self.folder}/local"')])
        self.assertFalse(os.path.exists(self.dir))


harness.main()
