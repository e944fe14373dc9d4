#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of source gives the same run to the bit for the same samples. Label masks reach the
loss, and random ops are repeatable."""
import io
import json
import os
import re
import shutil
import struct
import subprocess
import tarfile

import h5py
import numpy as np
import xxhash
from PIL import Image

import harness

OPS = """decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")"""


class Sources(harness.RunTest):
    def with_data(self, table, ops=OPS):
        """Returns the good deck for three steps in the order of the set, with another
        [data.train]."""
        data = f"[data.train]\n{table}\npreprocess = '''{ops}'''\n"
        text = re.sub(r"\[data\.train\].*?(?=\n\[eval)", lambda _: data, self.good, flags=re.S)
        return text.replace("total_steps = 12", 'total_steps = 3, shuffle = "none"')

    def outcome(self, text, name, *args, ranks=0):
        folder = f"{self.folder}/run_{name}"
        self.expect(0, "done     exit=0", args=[self.deck(text), "--dir", folder, *args], ranks=ranks)
        return [row["loss"] for row in self.rows(folder=folder)], self.tensors(3, folder)

    def samples(self):
        """Returns (name, png, caption) of each sample in the order of the shards."""
        out = []
        for s in range(2):
            with tarfile.open(f"{self.data}/train-{s:03}.tar") as tar:
                for i in range(s, 40, 2):
                    out.append((f"{i:06}.png", tar.extractfile(f"{i:06}.png").read(), tar.extractfile(f"{i:06}.txt").read().decode()))
        return out

    def test_same_samples_through_every_source(self):
        samples = self.samples()
        os.mkdir(f"{self.folder}/images")
        for name, png, _ in samples:
            with open(f"{self.folder}/images/{name}", "wb") as f:
                f.write(png)
        with open(f"{self.folder}/captions.tsv", "w") as f:
            f.writelines(f"{name}\t{caption}\n" for name, _, caption in samples)
        with open(f"{self.folder}/captions.json", "w") as f:
            json.dump({"annotations": [{"id": i, "image_id": 7 * i, "caption": c} for i, (_, _, c) in enumerate(samples)],
                       "images": [{"id": 7 * i, "file_name": n} for i, (n, _, _) in enumerate(samples)]}, f)
        with h5py.File(f"{self.folder}/a.h5", "w") as f:
            files = f.create_dataset("files", len(samples), h5py.vlen_dtype(np.uint8))
            for i, (_, png, _) in enumerate(samples):
                files[i] = np.frombuffer(png, np.uint8)
            f["texts"] = [c for _, _, c in samples]
            pixels = np.stack([np.array(Image.open(io.BytesIO(p))) for _, p, _ in samples])
            f.create_dataset("pixels", data=pixels, compression="gzip", chunks=(1, 20, 20, 3))
            # Noise is stored as it is, chunk by chunk, and smooth parts are compressed.
            f.create_dataset("lzf", data=pixels, compression="lzf", chunks=(3, 7, 20, 2))
            f.create_dataset("shuffled", data=pixels, compression="lzf", shuffle=True, fletcher32=True, chunks=(1, 20, 20, 3))
        expected = self.outcome(self.with_data(f'kind = "webdataset"\npath = "{self.data}/train-{{000..001}}.tar"\n'
                                               'fields = { image = "png", text = "txt" }'), "tar")
        choose = OPS.replace("decode", 'decode | coco_captions("captions") | choice(inkey="captions", outkey="text")')
        folder = f'kind = "folder"\npath = "{self.folder}/images"\n'
        others = {
            "h5_files": (f'kind = "hdf5"\npath = "{self.folder}/a.h5"\nfields = {{ image = "files: bytes", text = "texts: text" }}', OPS),
            "h5_untyped": (f'kind = "hdf5"\npath = "{self.folder}/a.h5"\nfields = {{ image = "pixels", text = "texts" }}',
                           OPS.replace("decode | ", "")),
            "h5_pixels": (f'kind = "hdf5"\npath = "{self.folder}/a.h5"\n'
                          'fields = { image = "pixels: u8 [20, 20, 3]", text = "texts: text" }', OPS.replace("decode | ", "")),
            "tsv": (folder + f'captions = "{self.folder}/captions.tsv"\nsample = "caption"', OPS),
            "coco": (folder + f'captions = "{self.folder}/captions.json"', choose),
        }
        if "liblzf" in subprocess.run(["ldd", harness.TRAINER], capture_output=True, text=True, check=True).stdout:
            for name in ("lzf", "shuffled"):
                others[name] = (others["h5_untyped"][0].replace('"pixels"', f'"{name}"'), others["h5_untyped"][1])
        for name, (table, ops) in others.items():
            with self.subTest(name):
                self.assertEqual(self.outcome(self.with_data(table, ops), name), expected)
        for name, copies in (("coco", 40), ("h5_untyped", 1)):
            with self.subTest("staged " + name):
                text = self.with_data(*others[name])
                self.assertEqual(self.outcome(text, "staged_" + name, "--set", f"loader.stage_dir={self.folder}/{name}"), expected)
                self.assertIn(f"copied {copies} files", self.output)
        # A deck can be checked without its data: checks that need a file come later, all others
        # come now.
        text = self.with_data(*others["h5_untyped"])
        gone = text.replace(f"{self.folder}/a.h5", "/nowhere/a.h5")
        self.expect(0, args=[self.deck(gone), "--validate"])
        self.expect(0, args=[self.deck(gone), "--mode", "plan"])
        self.expect(4, "data.train", "/nowhere/a.h5", args=[self.deck(gone), "--dir", f"{self.folder}/gone"])
        self.expect(2, "data.train.preprocess", "not an encoded image",
                    args=[self.deck(text.replace("resize(16)", "decode | resize(16)")), "--validate"])

    def at_step(self, path, step):
        """Copies the checkpoint into its folder with another step; returns the name."""
        out = f"{os.path.dirname(path)}/{step:010}.h5"
        shutil.copy(path, out)
        with h5py.File(out, "r+") as f:
            f.attrs.modify("step", step)
        with open(out, "r+b") as f:
            lines = dict(line.split("=", 1) for line in f.read(4096).decode().split("\n") if "=" in line)
            hashes = []
            for piece in lines["structure"].split():
                begin, length = map(int, piece.split("+"))
                f.seek(begin)
                hashes.append(xxhash.xxh3_64_intdigest(f.read(length)))
            f.seek(0)
            text = f.read(4096).decode()
            hashes = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(hashes)}Q", *hashes))
            begin, length = map(int, lines["index"].split("+"))
            f.seek(begin)
            index = re.sub(rb"(dstep\x74)\d{20}", lambda m: m[1] + b"%020d" % step, f.read(length))  # CBOR: text of 20 digits
            f.seek(begin)
            f.write(index)
            text = re.sub("structure_xxh3=.*", f"structure_xxh3={hashes:016x}", re.sub(r"\bstep=.*", f"step={step}", text))
            text = re.sub("index_xxh3=.*", f"index_xxh3={xxhash.xxh3_64_intdigest(index):016x}", text)
            text = text[:text.index("header_xxh3=")]
            text += f"header_xxh3={xxhash.xxh3_64_intdigest(text.encode()):016x}\n"
            f.seek(0)
            f.write(text.encode().ljust(4096, b"\0"))
        return out

    def test_a_million_steps_on(self):
        # Two steps from step 10 and from step 1,000,000 take the same time, for any source and
        # order. Reading all earlier positions would take 120 million of them.
        png = [harness.png(i) for i in range(40)]
        os.mkdir(f"{self.folder}/images")
        for i in range(40):
            with open(f"{self.folder}/images/{i}.png", "wb") as f:
                f.write(png[i])
        with open(f"{self.folder}/captions.tsv", "w") as f:
            f.writelines(f"{i}.png\ta red house\n" for i in range(40))
        with h5py.File(f"{self.folder}/a.h5", "w") as f:
            files = f.create_dataset("files", 40, h5py.vlen_dtype(np.uint8))
            for i in range(40):
                files[i] = np.frombuffer(png[i], np.uint8)
            f["texts"] = ["a red house"] * 40
        tar = f'kind = "webdataset"\npath = "{self.data}/train-{{000..001}}.tar"\nfields = {{ image = "png", text = "txt" }}'
        tables = {"tar": tar,
                  "hdf5": f'kind = "hdf5"\npath = "{self.folder}/a.h5"\nfields = {{ image = "files", text = "texts" }}',
                  "folder": f'kind = "folder"\npath = "{self.folder}/images"\ncaptions = "{self.folder}/captions.tsv"\n'
                            'sample = "caption"',
                  "synthetic": 'kind = "synthetic"\nexamples = 40\nimage_size = 16\nseq_len = 12\nvocab_size = 400'}
        quick = ["--set", "eval.val.every_steps=0", "--set", "eval.val.at_end=false", "--set", "log.samples=true"]
        changes = (("global_batch = 12, micro_batch = 6", "global_batch = 120, micro_batch = 120"),
                   ("every_steps = 4", "every_steps = 1000"))
        for old, new in changes:
            self.assertEqual(self.good.count(old), 1)
            self.good = self.good.replace(old, new)
        self.expect(0, args=[self.deck(self.with_data(tar)), *quick, "--set", "train.total_steps=10"])
        base = f"{self.dir}/checkpoints/0000000010.h5"
        far = self.at_step(base, 1_000_000)

        def two_steps(text, step, path, folder):
            shutil.rmtree(folder, ignore_errors=True)
            self.expect(0, f"step={step + 2} ", args=[self.deck(text), *quick, "--dir", folder, "--set",
                                                      f"train.total_steps={step + 2}", "--set", f"checkpoint.branch_from={path}"])
            with open(f"{folder}/logs/samples/from{step:010}.rank00000.tsv") as f:
                rows = [line.split("\t") for line in f]
            self.assertEqual(sorted({int(row[1]) for row in rows}), list(range(120 * step, 120 * step + 240)))

        for name, table in tables.items():
            text = self.with_data(table, "" if name == "synthetic" else OPS)
            decks = {mode: text.replace('shuffle = "none"', f'shuffle = "{mode}"') for mode in ("none", "exact", "blocks")}
            if name == "tar":
                more = re.search(r"\[data\.train\].*?(?=\n\[eval)", text, re.S)[0]
                decks["mixture"] = text.replace('data = "train", ', "").replace('shuffle = "none"', 'mixture = { train = 1, more = 2 }')
                decks["mixture"] += "\n" + more.replace("[data.train]", "[data.more]")
            for mode, deck in decks.items():
                with self.subTest(source=name, mode=mode):
                    self.assert_no_slower(lambda: two_steps(deck, 1_000_000, far, f"{self.folder}/far_{name}_{mode}"),
                                          lambda: two_steps(deck, 10, base, f"{self.folder}/near_{name}_{mode}"), factor=2)

    def test_bad_samples_and_staging(self):
        os.mkdir(f"{self.folder}/images")
        for i in range(18):  # 18.png is missing, 19.png is a folder
            with open(f"{self.folder}/images/{i}.png", "wb") as f:
                f.write(harness.png(i))
        os.mkdir(f"{self.folder}/images/19.png")
        with open(f"{self.folder}/captions.tsv", "w") as f:
            f.writelines(f"{i}.png\ta red house\n" for i in range(20))
        text = self.with_data(f'kind = "folder"\npath = "{self.folder}/images"\n'
                              f'captions = "{self.folder}/captions.tsv"\nsample = "caption"')
        self.expect(4, "18.png", "no such file", args=[self.deck(text)])
        replace = ["--set", "loader.on_bad_sample=substitute", "--set", "loader.max_bad_sample_fraction=0.2"]
        self.expect(0, args=[self.deck(text), "--dir", f"{self.folder}/replaced", *replace])
        with open(f"{self.folder}/replaced/logs/bad_samples.txt") as f:
            lines = f.read()
        self.assertEqual(lines.count("\n"), 2)
        self.assertIn("18.png#0\tthere is no such file", lines)
        self.assertIn("19.png#0\tit is a folder", lines)
        # A missing caption is an error of the set, or of its sample.
        with tarfile.open(f"{self.data}/train-000.tar", "w") as tar:
            for i in range(20):
                harness.add_member(tar, f"{i}.png", harness.png(i))
                if i != 7:
                    harness.add_member(tar, f"{i}.txt", b"a red house")
        tars = self.tar(OPS)
        self.expect(4, "1 of 40 samples have no member '.txt'", "train-000.tar:7",
                    args=[self.deck(tars), "--dir", f"{self.folder}/no"])
        self.expect(0, "has no member .txt", args=[self.deck(tars), "--dir", f"{self.folder}/lacking", *replace])
        # The plan counts missing captions as the run does.
        plan = [self.deck(tars.replace("total_steps = 3", "total_epochs = 1")), "--mode", "plan"]
        self.expect(4, "size of the training data is not known", args=plan)
        self.expect(0, args=[*plan, *replace])
        with h5py.File(f"{self.folder}/a.h5", "w") as f:
            f["pixels"] = np.stack([np.full((20, 20, 3), 9 * i, np.uint8) for i in range(24)])
            f["texts"] = ["a red house"] * 24
        h5 = self.with_data(f'kind = "hdf5"\npath = "{self.folder}/a.h5"\n'
                            'fields = { image = "pixels: u8 [20, 20, 3]", text = "texts: text" }', OPS.replace("decode | ", ""))
        expected = self.outcome(h5, "in_place")
        self.assertIn("captions train labels: 0.00 % of", self.output)
        self.assertEqual(self.outcome(h5, "staged", "--set", f"loader.stage_dir={self.folder}/stage"), expected)
        self.assertIn("copied 1 files", self.output)

    def tar(self, ops):
        return self.with_data(f'kind = "webdataset"\npath = "{self.data}/train-{{000..001}}.tar"\n'
                              'fields = { image = "png", text = "txt" }', ops)

    def test_label_masks_reach_the_loss(self):
        plain = self.outcome(self.tar(OPS), "plain")
        masked = OPS.replace('eos="sticky"', 'eos="sticky", prefix="{}"')
        masked = masked.replace('keep("image", "labels")', 'keep("image", "labels", "label_masks")')
        # An empty prefix masks padding only, which carries no loss anyway.
        self.assertEqual(self.outcome(self.tar(masked.format("")), "empty"), plain)
        given = self.outcome(self.tar(masked.format("a photo: ")), "given")
        predicted = self.outcome(self.tar(masked.format("a photo: ").replace(', "label_masks")', ")")), "predicted")
        # At the first update the head is zero, so every token costs ln V, masked or not. Then the
        # runs differ.
        self.assertAlmostEqual(given[0][0], predicted[0][0], places=5)
        self.assertGreater(abs(given[0][2] - predicted[0][2]), 1e-4)
        # The evaluator uses the masks as well.
        last = [self.rows("eval", f"{self.folder}/run_{n}")[-1]["perplexity_per_token"] for n in ("given", "predicted")]
        self.assertGreater(abs(last[0] - last[1]), 1e-4)

    def test_bytes_and_random_ops(self):
        ops = OPS.replace("resize(16)", 'inception_crop(16, 30, antialias=True) | flip_lr').replace('"words"', '"b"')
        text = self.tar(ops).replace("vocab_size       = 400", "vocab_size       = 259") + '\n[tokenizer.b]\nkind = "bytes"\n'
        losses, tensors = self.outcome(text, "random")
        self.assertEqual(self.outcome(text, "threads", "--set", "loader.threads=3"), (losses, tensors))
        other, _ = self.outcome(text, "ranks", ranks=2)
        np.testing.assert_allclose(other, losses, rtol=1e-5)
        moved, _ = self.outcome(text, "seed", "--set", "run.seed=5")
        self.assertNotEqual(moved, losses)


harness.main()
