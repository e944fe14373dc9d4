#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The program of a build without the libraries that a build may lack (TRAINER_WITHOUT): it trains, and refuses by name what needs
one of them.

TRAINER is that program here.
"""
import io
import json
import os
import shutil
import tarfile

import h5py
from PIL import Image

import harness

BYTES = ('kind = "sentencepiece"\npath = "{}"'.format(harness.TOKENIZER), 'kind = "bytes"')


class Without(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.with_words, self.good = self.good, self.good.replace(*BYTES)
        self.assertNotEqual(self.good, self.with_words)

    def replace_images(self, kind):
        """Replaces the images of all samples by images of this format, under the same names."""
        for name in sorted(n for n in os.listdir(self.data) if n.endswith(".tar")):
            with tarfile.open(f"{self.data}/{name}") as tar:
                members = [(m.name, tar.extractfile(m).read()) for m in tar]
            with tarfile.open(f"{self.data}/{name}", "w", format=tarfile.USTAR_FORMAT) as tar:
                for member, data in members:
                    if member.endswith(".png"):
                        out = io.BytesIO()
                        Image.open(io.BytesIO(data)).save(out, kind)
                        data = out.getvalue()
                    harness.add_member(tar, member, data)

    def test_says_so(self):
        self.expect(0, "gif=no webp=no sentencepiece=no archive=no lzf=", args=["--version"])

    def test_trains(self):
        self.expect(0, "finished step=3", args=[self.deck(), "--set", "train.total_steps=3"])

    def test_refuses_a_tokenizer(self):
        self.expect(2, "tokenizer.words.path", "this program was built without SentencePiece (TRAINER_WITHOUT)", 'use kind = "bytes"',
                    args=[self.deck(self.with_words), "--validate"])

    def test_refuses_images(self):
        for kind, library in (("WEBP", "libwebp"), ("GIF", "giflib")):
            self.replace_images(kind)
            # It is no bad sample, which another one could replace.
            for words in ([], ["--set", "loader.on_bad_sample=substitute"]):
                with self.subTest(kind, words=words):
                    self.expect(2, "data.train: ", ".tar:", f"this program was built without {library} (TRAINER_WITHOUT)",
                                "convert the images to PNG or JPEG", args=[self.deck(), *words])

    def test_refuses_weights(self):
        npz = self.folder + "/weights.npz"
        open(npz, "wb").close()
        self.expect(5, "weights.npz: this program was built without libarchive (TRAINER_WITHOUT), which reads .npz",
                    args=[self.deck(self.good + f'\n[init]\nfrom = "{npz}"\n')])
        # A folder as big_vision writes it, with the tensors of this model.
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=3"])

        def add(name, data):
            folder = f"{self.folder}/zarr/params~{name.replace('/', '~')}"
            os.makedirs(folder)
            with open(folder + "/.zarray", "w", encoding="utf-8") as f:
                json.dump({"zarr_format": 2, "shape": data.shape, "chunks": data.shape, "dtype": "<f4", "order": "C", "fill_value": None,
                           "compressor": {"id": "zstd"}, "filters": None}, f)
            with open(folder + "/" + ".".join("0" for _ in data.shape), "wb") as f:
                f.write(b"(\xb5/\xfd")

        with h5py.File(f"{self.dir}/checkpoints/{self.checkpoints()[-1]}") as f:
            f["params"].visititems(lambda name, data: add(name, data) if isinstance(data, h5py.Dataset) else None)
        shutil.rmtree(self.dir)
        self.expect(5, "is compressed by zstd, and this program was built without libarchive (TRAINER_WITHOUT)",
                    args=[self.deck(self.good + f'\n[init]\nfrom = "{self.folder}/zarr"\n')])


harness.main()
