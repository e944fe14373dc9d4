#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/pack_dataset takes what the trainer takes, gives the same bytes twice and overwrites nothing."""
import codecs
import io
import json
import os
import random

import h5py
import numpy as np
from PIL import Image

import harness
import tool_harness

stored_hdf5 = harness.loaded("stored_hdf5.py")


class Pack(tool_harness.ToolTest):
    def test_pack_a_folder(self):
        for i in range(12):
            self.write(f"in/{'sub/' if i % 2 else ''}{i:02}.PNG", harness.png(i))
            self.write(f"in/{'sub/' if i % 2 else ''}{i:02}.txt", f"picture  {i}\n")
        self.write("in/readme.md", "not an image")
        text = self.tool("pack_dataset", "in", "out", "--shard-mb", 0.01)
        self.assertIn('fields = { image = "png", text = "txt" }', text)
        self.tool("pack_dataset", "in", "again", "--shard-mb", 0.01)
        self.assertEqual(self.digests("out"), self.digests("again"))
        names = sorted(os.listdir(self.path("out")))
        self.assertGreater(len(names), 1)
        order = [f"{i:02}" for i in range(0, 12, 2)] + [f"sub/{i:02}" for i in range(1, 12, 2)]
        everything = {}
        for name in names:
            everything.update(self.members(f"out/{name}"))
        self.assertEqual(len(everything), 24)
        for i, name in enumerate(order):
            number = int(name[-2:])
            self.assertEqual(everything[f"{i:09}.png"], harness.png(number))
            self.assertEqual(everything[f"{i:09}.txt"], f"picture  {number}".encode())
        shards = "train-{00000..%05d}.tar" % (len(names) - 1)
        self.assertIn(shards, text)
        report = self.tool("index_dataset", self.deck_of("out", shards=shards))
        self.assertIn("12 samples", report)
        # The tool overwrites nothing. Another prefix may share the folder. --shuffle gives another
        # order of the same samples.
        before = self.digests("out")
        self.assertIn("holds train-00000.tar", self.tool("pack_dataset", "in", "out", code=1))
        os.remove(self.path("out/train-00000.tar.index"))
        self.tool("pack_dataset", "in", "out", "--prefix", "val", "--shuffle", 3)
        self.assertEqual({n: d for n, d in self.digests("out").items() if n in before and n.endswith("tar")},
                         {n: d for n, d in before.items() if n.endswith("tar")})
        shuffled = self.members("out/val-00000.tar")
        self.assertEqual(sorted(shuffled.values()), sorted(everything.values()))
        self.assertNotEqual([shuffled[f"{i:09}.txt"] for i in range(12)], [everything[f"{i:09}.txt"] for i in range(12)])

    def test_pack_keeps_the_limit(self):
        """Samples of different sizes: no shard exceeds --shard-mb, no shard has room for the next one's first sample, and the
        printed figures are true."""
        draw = random.Random(4)
        for i in range(60):
            size = 150000 if i == 20 else draw.choice((100, 511, 512, 513, 3000, 20000))
            self.write(f"in/{i:02}.png", harness.png(i) + draw.randbytes(size))
            self.write(f"in/{i:02}.txt", "words " * draw.randint(1, 300))
        limit = int(0.0625 * 2**20)
        text = self.tool("pack_dataset", "in", "out", "--shard-mb", 0.0625)
        names = sorted(os.listdir(self.path("out")))
        sizes = {name: os.path.getsize(self.path(f"out/{name}")) for name in names}
        counts = {name: len(self.members(f"out/{name}")) // 2 for name in names}
        alone = [name for name in names if "000000020.png" in self.members(f"out/{name}")]
        self.assertEqual([counts[name] for name in alone], [1], "a sample larger than a shard has its own shard")
        self.assertEqual([name for name in names if sizes[name] > limit], alone)
        for name, after in zip(names, names[1:]):
            first = list(self.members(f"out/{after}").values())[:2]
            self.assertGreater(sizes[name] + sum(512 + len(data) for data in first) + 10240, limit, "a shard was closed too early")
        for name in names:
            digest = self.digests("out")[name][:16]
            self.assertIn(f"{name}  {counts[name]} samples  {sizes[name]} bytes  sha256={digest}\n", text)
        self.assertIn(f"60 samples in {len(names)} shards. In a deck:", text)

    def test_pack_follows_links(self):
        for i in range(4):
            self.write(f"{'in/a' if i % 2 else 'other'}/{i}.png", harness.png(i))
            self.write(f"{'in/a' if i % 2 else 'other'}/{i}.txt", "x")
        os.symlink(self.path("other"), self.path("in/b"))
        self.tool("pack_dataset", "in", "out")
        self.assertEqual(len(self.members("out/train-00000.tar")), 8)
        os.symlink(self.path("in"), self.path("in/a/round"))
        self.assertIn("packed already", self.tool("pack_dataset", "in", "out2", code=1))

    def test_pack_bad_folders(self):
        self.write("in/a.png", harness.png(1))
        self.write("in/b.png", b"no image")
        self.write("in/b.txt", "words")
        text = self.tool("pack_dataset", "in", "out", code=1)
        for part in ("a.png: no caption", "b.png: neither", "--skip-bad"):
            self.assertIn(part, text)
        self.assertIn("nothing to pack", self.tool("pack_dataset", "in", "out", "--skip-bad", code=1))
        self.assertFalse(os.path.exists(self.path("out")))
        self.write("in/c.jpg", harness.png(2))
        self.write("in/c.txt", "words")
        self.assertIn("b.png", self.tool("pack_dataset", "in", "out", "--skip-bad"))
        self.assertEqual(self.members("out/train-00000.tar"), {"000000000.png": harness.png(2), "000000000.txt": b"words"})
        for args, part in ((("none", "out2"), "no such"), (("in/a.png", "out2"), "is expected"),
                           (("in", "out2", "--prefix", "a/b"), "prefix"), (("in", "out2", "--captions", "in/c.txt"), "columns")):
            self.assertIn(part, self.tool("pack_dataset", *args, code=1))
        self.assertEqual(os.listdir(self.path("out")), ["train-00000.tar"])

    def test_pack_what_the_trainer_takes(self):
        """Folders with names and files of other systems."""
        name = os.fsdecode(b"caf\xe9")
        self.write("in/IMG_1.JPG", harness.png(1))
        self.write("in/IMG_1.TXT", b"\xef\xbb\xbf one  two\xc2\xa0three\t\r\n\nfour \r\n")
        self.write(f"in/{name}.png", harness.png(2))
        self.write(f"in/{name}.txt", "two")
        self.write("in/.thumbs/x.png", harness.png(3))
        self.write("in/.thumbs/x.txt", "no")
        self.assertIn("left out   1 hidden folders:\n  in/.thumbs\n2 samples".replace("\n2", "\ntrain-00000.tar  2"),
                      self.tool("pack_dataset", "in", "out"))
        self.assertEqual(self.members("out/train-00000.tar"),
                         {"000000000.png": harness.png(1), "000000000.txt": b" one  two\xc2\xa0three\t four ",
                          "000000001.png": harness.png(2), "000000001.txt": b"two"})
        # --skip-bad leaves out whatever cannot be used, and names it.
        os.symlink("nowhere", self.path("in/a.png"))
        os.mkfifo(self.path("in/b.png"))
        for name, data in (("a.txt", "x"), ("b.txt", "x"), ("c.png", harness.png(4)), ("c.txt", b"\xc0\xaf"), ("d.png", harness.png(5)),
                           ("d.txt", "nu\0ll"), ("e.png", harness.png(6)), ("e.txt", "x"), ("e.Txt", "y"), ("g.png", harness.png(8)),
                           ("g.txt", "a cat".encode("utf-16")), ("h.png", harness.png(9))):
            self.write(f"in/{name}", data)
        os.symlink("nowhere", self.path("in/h.txt"))
        self.write("in/i.png", harness.png(10))
        os.mkfifo(self.path("in/i.txt"))
        self.write("in/j.png", harness.png(11))
        self.write("in/j.txt", "a cat".encode("utf-16-le"))
        with open(self.write("in/f.png", harness.png(7)), "ab") as f:
            f.truncate((256 << 20) + 1)
        self.write("in/f.txt", "x")
        for args, code in ((("in", "out2"), 1), (("in", "out2", "--skip-bad"), 0)):
            text = self.tool("pack_dataset", *args, code=code)
            self.assertNotIn("Errno", text)
            for part in ("a.png: a link that leads nowhere", "b.png: not a regular file",
                         "c.png: no caption: in/c.txt: not UTF-8 text (byte 0)", "d.png: its caption holds a zero byte",
                         "e.png: e.Txt and e.txt could both be its caption",
                         "f.png: 268435457 bytes; at most 268435456 are read",
                         "g.png: no caption: in/g.txt is UTF-16 text: save it as UTF-8",
                         "h.png: no caption: in/h.txt: a link that leads nowhere", "i.png: no caption: in/i.txt: not a regular file",
                         "j.png: no caption: in/j.txt is UTF-16 text: save it as UTF-8"):
                self.assertIn(part, text)
        self.assertEqual(self.members("out2/train-00000.tar"), self.members("out/train-00000.tar"))

    def test_pack_captions_files(self):
        for i in range(3):
            self.write(f"in/{i}.png", harness.png(i))
        words = ["blue water", "red house", "small cat", "old tree", "two birds", "the road", "a wire \u00e9"]
        coco = {"images": [{"id": 10 + i, "file_name": f"{i}.png"} for i in range(3)],
                "annotations": [{"image_id": 10 + i % 3, "caption": caption} for i, caption in enumerate(words)]}
        self.write("coco.json", json.dumps(coco))
        text = self.tool("pack_dataset", "in", "out", "--captions", "coco.json")
        self.assertIn('captions = "json:captions"', text)
        self.assertEqual(json.loads(self.members("out/train-00000.tar")["000000000.json"]),
                         {"captions": ["blue water", "old tree", "a wire \u00e9"]})
        # The trainer reads the files with the tool's advice.
        deck = self.deck_of("out", 'image = "png", captions = "json:captions"')
        with open(deck) as f:
            text = f.read().replace("| tokenize", '| choice(inkey="captions", outkey="text") | tokenize')
        self.tool("index_dataset", self.deck(text))
        self.good = text
        _, examples, _ = self.show("--set", "show.data=train")
        for i, example in enumerate(examples):
            self.assertTrue(any(example["caption"][:6] == word[:6] for word in words[i::3]), example)
        self.write("c.tsv", "".join(f"{i}.png\tsays \"{i}\"\n" for i in range(3)))
        self.tool("pack_dataset", "in", "out2", "--captions", "c.tsv")
        self.assertEqual(self.members("out2/train-00000.tar")["000000002.txt"], b'says "2"')
        self.write("c.tsv", "none.png\tx\n")
        self.assertIn("none.png", self.tool("pack_dataset", "in", "out3", "--captions", "c.tsv", code=1))
        os.symlink("nowhere", self.path("in/link.png"))
        self.write("c.tsv", "link.png\tx\nsub\tx\n")
        os.mkdir(self.path("in/sub"))
        self.assertIn("c.tsv:1: link.png is a link that leads nowhere\n  c.tsv:2: sub is not a regular file",
                      self.tool("pack_dataset", "in", "out3", "--captions", "c.tsv", code=1))
        for name, data, parts in (
                ("bad.json", "{}", ("bad.json: not COCO",)), ("wide.jsonl", "{}".encode("utf-16"), ("wide.jsonl is UTF-16 text",)),
                ("wider.jsonl", "{}".encode("utf-32"), ("wider.jsonl is UTF-32 text",)),
                ("widest.tsv", codecs.BOM_UTF32_BE + "x\ty".encode("utf-32-be"), ("widest.tsv is UTF-32 text",)),
                ("rows.json", '[{"image": "0.png", "conversations": []}]', ("rows.json: a list", "COCO", ".jsonl")),
                ("none.tsv", None, ("error: none.tsv: there is no such file",)),
                ("twice.json", '{"images": [], "annotations": [], "images": []}', ('two lists "images": join them',)),
                ("lfs.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", ("lfs.csv: this is a pointer of Git LFS",)),
                ("rows.jsonl", '[{"image": "0.png"},', ("rows.jsonl:1: is not a JSON object: a list; write each row",)),
                ("row.jsonl", '{"image": ', ("row.jsonl:1: is not a JSON object: Expecting",)),
                ("pipe.csv", None, ("pipe.csv: not a regular file",)),
                ("link.csv", None, ("link.csv: a link that leads nowhere",))):
            if data is not None:
                self.write(name, data)
            elif name.startswith("link"):
                os.symlink("nowhere", self.path(name))
            elif name.startswith("pipe"):
                os.mkfifo(self.path(name))
            for args in ((name, "out3"), ("in", "out3", "--captions", name)):
                text = self.tool("pack_dataset", *args, code=1)
                for part in parts:
                    self.assertIn(part, text)

    def test_pack_tables(self):
        for i in range(3):
            self.write(f"in/{i}.png", harness.png(i))
        self.write("in/list.csv", 'id,image,caption,label\n7,2.png,"a, b",4\n8,0.png,"c\nd",5\n')
        text = self.tool("pack_dataset", "in/list.csv", "out")
        self.assertIn('label = "cls"', text)
        # Files that were joined bring their byte order marks.
        for name, data in (("in/joined.tsv", "\ufeff0.png\tx\n\ufeff1.png\ty\n"), ("in/joined.csv", "\ufeff0.png,x\n\ufeff\"1.png\",y\n"),
                           ("in/joined.jsonl", '{"image": "0.png", "text": "x"}\n\ufeff{"image": "1.png", "text": "y"}\n')):
            self.write(name, data)
            self.tool("pack_dataset", name, f"{name}.out")
            self.assertEqual(self.members(f"{name}.out/train-00000.tar")["000000001.txt"], b"y")
        self.assertEqual(self.members("out/train-00000.tar"),
                         {"000000000.png": harness.png(2), "000000000.txt": b"a, b", "000000000.cls": b"4",
                          "000000001.png": harness.png(0), "000000001.txt": b"c d", "000000001.cls": b"5"})
        text = self.tool("pack_dataset", "in/list.csv", "x", "--image-column", "picture", code=1)
        self.assertIn("no column 'picture'; there are: id, image", text)
        self.write("in/list.tsv", "image\tcaption\n2.png\tx\n9.png\ty\n1.png\n")
        text = self.tool("pack_dataset", "in/list.tsv", "x", code=1)
        self.assertIn("list.tsv:3: no file 9.png", text)
        self.assertIn("list.tsv:4: 1 columns", text)
        self.write("in/list.tsv", b"image\tcaption\n2.png\t\xff\n")
        self.assertIn("not UTF-8", self.tool("pack_dataset", "in/list.tsv", "x", code=1))
        self.write("in/open.csv", 'image,caption\n0.png,"a cat\n1.png,dog\n2.png,dog\n')
        self.assertIn("open.csv:4: unexpected end of data", self.tool("pack_dataset", "in/open.csv", "x", code=1))
        # --skip-bad leaves out rows, and packs the others. -1 is the label of an image without one.
        self.write("in/list.jsonl", '\ufeff{"file_name": "2.png", "text": "a\\nb", "label": -1, "score": NaN}\r\n\r\n'
                                    '{"label": 3.0, "file_name": "1.PNG", "text": "x"}\n'
                                    '{"label": true, "file_name": "0.png", "text": 7}\n')
        self.assertIn("list.jsonl:3: no file 1.PNG; '1.png' exists, with other capitals",
                      self.tool("pack_dataset", "in/list.jsonl", "x", code=1))
        self.tool("pack_dataset", "in/list.jsonl", "lines", "--skip-bad")
        self.assertEqual(self.members("lines/train-00000.tar"),
                         {"000000000.png": harness.png(2), "000000000.txt": b"a b", "000000000.cls": b"-1",
                          "000000001.png": harness.png(0), "000000001.txt": b"7", "000000001.cls": b"1"})
        os.rename(self.path("in/list.csv"), self.path("in/list-009.csv"))
        self.write("in/list-010.csv", "image,caption,label\n1.png,e,0\n")
        text = self.tool("pack_dataset", "in/list-{9..010}.csv", "parts")
        self.assertEqual(self.members("parts/train-00000.tar")["000000002.txt"], b"e")
        self.assertIn("in/list-011.csv: there is no such file", self.tool("pack_dataset", "in/list-{010..011}.csv", "x", code=1))
        self.write("in/bad.tsv", b"0.png\t\xed\xa0\xbd\n1.png\tx\0\n2.png\tgood\n")
        text = self.tool("pack_dataset", "in/bad.tsv", "rows", "--skip-bad")
        self.assertIn("bad.tsv:1: the caption is not UTF-8\n  in/bad.tsv:2: the caption holds a zero byte\n", text)
        self.assertIn("1 samples in 1 shards", text)
        self.write("in/label.csv", "image,caption,label\n0.png,a,-2\n")
        self.assertIn("label.csv:2: the label '-2' is not a whole number from -1", self.tool("pack_dataset", "in/label.csv", "x", code=1))
        self.write("in/label.csv", "image,caption,label\n0.png,a,1.5\n")
        self.assertIn("label.csv:2: the label '1.5' is not a whole number", self.tool("pack_dataset", "in/label.csv", "x", code=1))
        self.write("in/two.csv", "image,caption,label\n0.png,a,1\n./0.png,b,2\n")
        self.assertIn("two.csv:3: ./0.png has the label 2, and 1 above", self.tool("pack_dataset", "in/two.csv", "x", code=1))

    def test_pack_hdf5(self):
        images = np.random.default_rng(1).integers(0, 255, (4, 6, 5, 3), np.uint8)
        with h5py.File(self.path("a.h5"), "w") as f:
            f["images"], f["labels"] = images, np.arange(4)
            f["captions"] = ["one", "two", "three", "four"]
        self.tool("pack_dataset", "a.h5", "out")
        self.tool("pack_dataset", "a.h5", "again")
        self.assertEqual(self.digests("out"), self.digests("again"))
        got = self.members("out/train-00000.tar")
        for i in range(4):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(got[f"{i:09}.png"]))), images[i])
        self.assertEqual((got["000000002.txt"], got["000000003.cls"]), (b"three", b"3"))
        self.assertIn("4 samples", self.tool("index_dataset", self.deck_of("out")))
        with h5py.File(self.path("b.h5"), "w") as f:
            encoded = f.create_dataset("jpegs", 2, h5py.vlen_dtype(np.uint8))
            for i in range(2):
                encoded[i] = np.frombuffer(harness.png(i), np.uint8)
            f["captions"] = [["a", "b"], ["c", "d"]]
        self.assertIn("there are: captions, jpegs", self.tool("pack_dataset", "b.h5", "x", code=1))
        self.tool("pack_dataset", "b.h5", "out2", "--images", "jpegs")
        got = self.members("out2/train-00000.tar")
        self.assertEqual(got["000000001.png"], harness.png(1))
        self.assertEqual(json.loads(got["000000001.json"]), {"captions": ["c", "d"]})

    def test_pack_hdf5_with_rows_that_are_not_stored(self):
        """HDF5 gives zeros for them. The trainer refuses the same files."""
        images = np.full((4, 6, 5, 3), 7, np.uint8)

        def file(name, captions=True):
            f = h5py.File(self.path(name), "w")
            if captions:
                f["captions"] = list("abcd")
            return f

        def virtual(name, *parts):
            layout = h5py.VirtualLayout(images.shape, "u1")
            for at, source, size in parts:
                layout[at:at + size] = h5py.VirtualSource(source, "images", (size, 6, 5, 3))[:size]
            with file(name) as f:
                f.create_virtual_dataset("images", layout)

        for name, rows in (("p.h5", 2), ("short.h5", 1)):
            with file(name, captions=False) as f:
                f["images"] = images[:rows]
        virtual("whole.h5", (0, "p.h5", 2), (2, "p.h5", 2), (1, "p.h5", 2))
        virtual("gap.h5", (0, "p.h5", 2))
        virtual("overlap.h5", (0, "p.h5", 2), (1, "p.h5", 2))
        virtual("part.h5", (0, "p.h5", 2), (2, "short.h5", 2))
        virtual("moved.h5", (0, "p.h5", 2), (2, "none.h5", 2))
        virtual("nested.h5", (0, "chunk.h5", 4))
        # Sources have grown since: more rows behind the others, and longer rows.
        for name, now in (("grown", (6, 6, 5, 3)), ("mixed", (2, 6, 7, 3))):
            with file(f"{name}_source.h5", captions=False) as f:
                f["images"] = images[:2]
            layout = h5py.VirtualLayout(images.shape, "u1")
            layout[:2] = h5py.VirtualSource(f"{name}_source.h5", "images", (2, 6, 5, 3))    # all of it
            layout[2:] = h5py.VirtualSource("p.h5", "images", (2, 6, 5, 3))
            with file(f"{name}.h5") as f:
                f.create_virtual_dataset("images", layout)
            with file(f"{name}_source.h5", captions=False) as f:
                f["images"] = np.full(now, 7, np.uint8)
        virtual("round.h5", (0, "round.h5", 4))
        for name, chunks in (("chunk.h5", (2, 6, 5, 3)), ("never.h5", None)):
            with file(name) as f:
                f.create_dataset("images", images.shape, "u1", chunks=chunks)
                if chunks:
                    f["images"][:2] = images[:2]
        self.write("raw.bin", images.tobytes()[:-1])
        for name, source in (("outside.h5", "none.bin"), ("cut.h5", "raw.bin")):
            with file(name) as f:
                f.create_dataset("images", images.shape, "u1", external=[(source, 0, h5py.h5f.UNLIMITED)])
        with file("link.h5") as f:
            f["images"] = h5py.ExternalLink("none.h5", "/images")
        with file("empty.h5") as f:
            f["images"] = h5py.Empty("u1")
        self.write("garbage.h5", "garbage")
        for name, culprit, part in (
                ("gap", "gap", "180 of its 360 elements have no source"),
                ("overlap", "overlap", "90 of its 360 elements have no source"),
                ("part", "part", "its source, dataset 'images' of 'short.h5', is smaller"),
                ("mixed", "mixed", "its source, dataset 'images' of 'mixed_source.h5', has rows of another size than the virtual"),
                ("nested", "chunk", "1 of its 2 chunks were never written"),
                ("round", "round", "its virtual datasets are nested too deep"),
                ("chunk", "chunk", "1 of its 2 chunks were never written, the first at row 2"),
                ("never", "never", "it was never written")):
            with h5py.File(self.path(f"{name}.h5")) as f, self.assertRaises(stored_hdf5.Failure) as caught:
                stored_hdf5.check_stored(f["images"], self.path(f"{name}.h5"))
            self.assertIn(f"{self.path(culprit)}.h5: dataset /images: {part}", str(caught.exception))
        for name, part in (("moved", "dataset /images: its rows are stored in 'none.h5', which does not exist"),
                           ("outside", "dataset /images: its external file 'none.bin' cannot be read: No such file"),
                           ("cut", "dataset /images: its external file 'raw.bin' has only 359 of 360 bytes"),
                           ("link", "'images' is a link that leads nowhere"), ("empty", "/images has no rows"),
                           ("garbage", "Unable to open file")):
            self.assertIn(f"{name}.h5: {part}", self.tool("pack_dataset", f"{name}.h5", "x", code=1))
        self.tool("pack_dataset", "grown.h5", "out_grown")
        self.assertEqual(len(self.members("out_grown/train-00000.tar")), 8)
        self.tool("pack_dataset", "whole.h5", "out")
        self.assertEqual(len(self.members("out/train-00000.tar")), 8)

    def test_pack_what_lacks_captions(self):
        """An empty text is a caption, in each source. Images with labels need none."""
        images = np.random.default_rng(2).integers(0, 255, (3, 6, 5, 3), np.uint8)
        with h5py.File(self.path("one.h5"), "w") as f:
            f["images"], f["captions"] = images, ["", " ", "c"]
        with h5py.File(self.path("rows.h5"), "w") as f:
            f["images"], f["captions"] = images, [["", ""], ["b", ""], ["", "c"]]
        with h5py.File(self.path("labels.h5"), "w") as f:
            f["images"], f["labels"] = images, [4, 0, 7]
        for i in range(3):
            self.write(f"in/{i}.png", harness.png(i))
            self.write(f"in/{i}.txt", ("", " ", "c")[i])
        self.write("in/list.csv", "image,caption\n0.png,\n1.png,\n2.png,c\n")

        def packed(source, out):
            self.output = self.tool("pack_dataset", source, out)
            return {name: data for name, data in self.members(f"{out}/train-00000.tar").items() if not name.endswith(".png")}

        for source in ("one.h5", "in", "in/list.csv"):
            self.assertEqual([text.decode() for text in packed(source, source.replace("/", "_") + "_out").values()],
                             ["", "" if source == "in/list.csv" else " ", "c"])
            self.assertIn("2 captions; they are packed", self.output)
        # Texts behind the last one that is not empty only fill up the row.
        self.assertEqual([json.loads(text)["captions"] for text in packed("rows.h5", "rows").values()], [[""], ["b"], ["", "c"]])
        self.assertEqual(list(packed("labels.h5", "labels").items()),
                         [(f"{i:09}.cls", label) for i, label in enumerate((b"4", b"0", b"7"))])
        self.assertIn('fields = { image = "png", label = "cls" }', self.output)
        with h5py.File(self.path("bare.h5"), "w") as f:
            f["images"] = images
        self.assertIn("images[0]: no caption", self.tool("pack_dataset", "bare.h5", "x", code=1))


harness.main()
