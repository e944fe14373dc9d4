#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the data tools show the samples that the trainer reads; packing gives the same
bytes twice and overwrites nothing."""
import argparse
import io
import json
import os
import random
import re
import subprocess
import tarfile
import unittest

import h5py
import numpy as np
from PIL import Image

import harness
import tool_harness


class Tools(tool_harness.ToolTest):
    def test_paths_of_the_command_line(self):
        path = harness.loaded("console.py").path
        for good in ("a", "./~", "a/~/b", "a:b", "runs/$x", "$", "./s3://b"):
            self.assertEqual(path(good), good)
        for bad in ("~", "~/a", "~me/a", "$HOME/a", "${HOME}/a", "s3://b/a", "http://h/a"):
            with self.subTest(bad), self.assertRaisesRegex(argparse.ArgumentTypeError, "shell|address"):
                path(bad)

    def test_closed_pipes_are_no_errors(self):
        """With TOOL | head, no Python tool prints "Broken pipe" or a traceback, and none exits
        with 0."""
        tools = []
        for name in sorted(os.listdir(f"{harness.SOURCE}/tools")):
            path = f"{harness.SOURCE}/tools/{name}"
            with open(path, "rb") if os.path.isfile(path) else io.BytesIO() as f:
                if f.readline().startswith(b"#!/usr/bin/python3"):
                    tools.append(path)
        self.assertGreater(len(tools), 8)
        for tool in tools:
            with self.subTest(tool):
                self.assertEqual(self.into_closed_pipe(tool, "--help"), (141, ""))
        # The pipe closes in the middle of the work: the unfinished tar files are removed.
        for i in range(3):
            self.write(f"in/{i}.png", harness.png(i) if i else b"bad")
            self.write(f"in/{i}.txt", "words")
        self.assertEqual(self.into_closed_pipe(f"{harness.SOURCE}/tools/index_dataset", self.deck()), (141, ""))
        pack = f"{harness.SOURCE}/tools/pack_dataset"
        self.assertEqual(self.into_closed_pipe(pack, "in", "out", "--skip-bad", PYTHONUNBUFFERED="1"), (141, ""))
        self.assertFalse(os.path.exists(self.path("out")))

    def into_closed_pipe(self, *command, **environment):
        """Returns exit code and stderr of a tool whose reader has closed the pipe."""
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=harness.GUARD, cwd=self.folder,
                              env={**os.environ, **environment})
        os.close(writer)
        return done.returncode, done.stderr

    def test_help(self):
        for name in ("show_batch", "index_dataset", "pack_dataset"):
            self.assertIn("usage:", self.tool(name, "--help"))
            self.tool(name, code=2)
        for name in ("bench_data", "bench_scaling"):
            self.assertIn("usage:", self.tool(name, "--help"))

    @unittest.skipUnless(os.path.realpath(harness.TRAINER) == harness.SOURCE + "/build/trainer", "measures build/ only")
    def test_bench_data(self):
        # Checks that the tool measures; the figures need quiet machines.
        quick = ("--seconds", 0.05, "--rounds", 2, "--images", 3, "--json", self.path("rates.json"))
        done = subprocess.run([f"{harness.SOURCE}/tools/bench_data", *map(str, quick)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
        self.assertIn(done.returncode, (0, 1), done.stdout)
        with open(self.path("rates.json")) as f:
            rates = json.load(f)
        self.assertGreater(rates["ours"]["images_per_cpu_s"], 10, done.stdout)
        self.assertGreater(rates["bare libjpeg-turbo"]["ours_over_it"], 0.2, done.stdout)
        self.assertIn("not found", done.stdout + " not found" * (not rates["missing"]))
        output = self.tool("bench_data", *quick, "--threads", 1, 2)
        with open(self.path("rates.json")) as f:
            self.assertEqual(sorted(json.load(f)), ["1", "2"], output)
        self.tool("bench_data", "--python", "/nowhere/python", *quick, code=2)

    def test_bench_scaling(self):
        # Checks that the tool measures and adds up; the goals need quiet machines.
        quick = ("batch", "--deck", self.deck(), "--rounds", 1, "--steps", 1, "--json", self.path("growth.json"))
        done = subprocess.run([f"{harness.SOURCE}/tools/bench_scaling", *map(str, quick)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, env={**os.environ, "TRAINER": harness.TRAINER})
        self.assertIn(done.returncode, (0, 1), done.stdout)
        with open(self.path("growth.json")) as f:
            growth = json.load(f)
        self.assertEqual([growth["batch"][b]["batch"] for b in ("8", "16", "32", "64")], [8, 16, 32, 64])
        self.assertNotIn("**no**", done.stdout, "memory is not as planned")
        self.assertIn("no table 'height'", self.tool("bench_scaling", "height", code=2))

    # ------------------------------------------------------------------------------------------------ show_batch

    def show(self, *extra):
        self.expect(0, "show     ", args=[self.deck(), "--mode", "show", "--dir", self.dir, *extra])
        with h5py.File(self.dir + "/show.h5") as f:
            return {n: f["model"][n][()] for n in f["model"]}, json.loads(f["examples"][()]), dict(f.attrs)

    def test_show_is_what_the_model_gets(self):
        self.good = self.changed(("resize(16)", "resize(20)"), ("image_size       = 16", "image_size       = 20"),
                                 ("patch = 8", "patch = 4"))
        arrays, examples, about = self.show("--set", "show.step=3")
        self.assertEqual([e["position"] for e in examples], list(range(24, 36)))
        self.assertEqual(len({e["key"] for e in examples}), 12)
        words = ["a red house", "the small cat", "two birds on a wire", "blue water", "an old tree by the road"]
        for i, example in enumerate(examples):
            sample = int(example["key"].rsplit(":", 1)[1])
            want = np.asarray(Image.open(io.BytesIO(harness.png(sample)))).astype(np.float32) / 255 * 2 - 1
            np.testing.assert_allclose(arrays["image"][i], want, atol=1e-6)
            self.assertTrue(words[sample % 5].startswith(example["caption"]), example)
            self.assertEqual(len(example["labels"]), 12)
            np.testing.assert_array_equal(arrays["weights"][i], arrays["labels"][i] != 0)
            # The decoder's input is masks alone in parallel (masking_ratio 1), else the labels one
            # later, beginning with 0.
            masked = arrays["decoder_ids"][i] >= about["mask_id"]
            self.assertEqual(masked.all() if not arrays["causal"][i] else not masked.any(), True)
            if arrays["causal"][i]:
                np.testing.assert_array_equal(arrays["decoder_ids"][i], np.roll(np.append(arrays["labels"][i], 0), 1)[:12])
        self.assertEqual(len(set(arrays["causal"])), 2)
        # Evaluators see the examples in order, and always autoregressively.
        arrays, examples, about = self.show("--set", "show.data=train", "--set", "show.examples=5")
        self.assertEqual([os.path.basename(e["key"]) for e in examples], [f"train-000.tar:{i:06}" for i in range(0, 10, 2)])
        self.assertTrue(arrays["causal"].all())
        self.assertFalse(os.path.exists(self.dir + "/lock"))

    def test_show_mixtures_and_substitutes(self):
        text = self.changed(('data = "train", total', 'mixture = { train = 1.0, val = 3.0 }, total')).replace(
            "[eval.val]", '[data.val]\nkind = "webdataset"\npath = "%s/train-001.tar"\nfields = { image = "png", text = "txt" }\n'
            'preprocess = "@train"\n\n[eval.val]' % self.data)
        self.good = text
        _, examples, about = self.show()
        self.assertEqual(about["data"].decode(), "train + val")
        self.assertEqual([sum(e["data"] == name for e in examples) for name in ("train", "val")], [3, 9])
        # A broken sample is refused by name, or replaced as in training, with a message.
        with tarfile.open(f"{self.data}/train-001.tar", "w") as tar:
            for i in range(20):
                harness.add_member(tar, f"{i:06}.png", b"broken" if i % 2 else harness.png(i))
                harness.add_member(tar, f"{i:06}.txt", b"words")
        self.expect(4, "train-001.tar:0000", args=[self.deck(), "--mode", "show", "--dir", self.dir])
        _, examples, _ = self.show("--set", "loader.on_bad_sample=substitute")
        self.assertIn("replaced: data.val", self.output)
        self.assertTrue(all(int(e["key"][-1]) % 2 == 0 for e in examples if e["data"] == "val"))

    def test_show_batch(self):
        text = self.tool("show_batch", self.deck(), "-o", "a.png", "--examples", 3, "--step", 2)
        self.assertIn("a.png: 3 examples", text)
        picture = np.asarray(Image.open(self.path("a.png")))
        arrays, examples, _ = self.show("--set", "show.step=2", "--set", "show.examples=3")
        pixels = np.round((arrays["image"] + 1) / 2 * 255).astype(np.uint8)
        # The picture has each image in a row, enlarged by a whole factor.
        tops = np.argwhere((picture != 255).any(axis=2).sum(axis=1) > 300)[0][0]
        for i in range(3):
            left = 10 + i * 170
            got = picture[tops: tops + 160: 10, left: left + 160: 10]
            self.assertLessEqual(np.abs(got.astype(int) - pixels[i]).max(), 1)
        self.assertFalse(os.path.exists(self.dir + "/lock"))
        self.tool("show_batch", self.deck(), "-o", "a.jpg", code=1)
        self.assertIn("there is no [data.nothing]", self.tool("show_batch", self.deck(), "--data", "nothing", code=1))

    # ------------------------------------------------------------------------------------------------ index_dataset

    def test_index_dataset(self):
        sizes = {i: (10 + i % 3, 20) for i in range(20)}
        with tarfile.open(f"{self.data}/train-001.tar", "w") as tar:
            for i, (height, width) in sizes.items():
                out = io.BytesIO()
                Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(out, "PNG")
                harness.add_member(tar, f"x{i:06}.png", out.getvalue()[:40] if i == 7 else b"GIF99" if i == 9 else out.getvalue())
                if i != 11:
                    harness.add_member(tar, f"x{i:06}.txt", b"cat")
        for name in os.listdir(self.data):
            if name.endswith(".index"):
                os.remove(f"{self.data}/{name}")
        text = self.tool("index_dataset", self.deck(), "train", "--json", "r.json", code=4)
        self.assertIn("train-001.tar:x000007", text)
        self.assertIn("broken     3 of 40 (7.5 %)", text)
        # The named report exists.
        self.assertEqual(re.findall(r"(?m)^report +(.*)$", text), ["r.json"])
        with open(self.path("r.json")) as f:
            report = json.load(f)["train"]
        self.assertEqual(report["samples"], 40)
        self.assertEqual([b["index"] for b in report["broken_samples"]], [27, 29, 31])
        self.assertIn("x000009", report["broken_samples"][1]["key"])
        self.assertIn(".txt", report["broken_samples"][2]["why"])
        self.assertEqual(report["images"]["image"]["images"], 37)
        count = {}
        for i, size in sizes.items():
            if i not in (7, 9, 11):
                count[size] = count.get(size, 0) + 1
        count[(20, 20)] = 20
        got = {(h, w): n for h, w, n in report["images"]["image"]["most_frequent"]}
        self.assertEqual(got, count)
        # 20 images have height 20, and 17 have 10 to 12.
        heights = sorted([20] * 20 + [10 + i % 3 for i in range(20) if i not in (7, 9, 11)])
        self.assertEqual(report["images"]["image"]["height"],
                         {"min": 10, "median": heights[18], "p95": 20, "max": 20, "mean": sum(heights) / 37})
        self.assertEqual(report["images"]["image"]["width"], {"min": 20, "median": 20, "p95": 20, "max": 20, "mean": 20})
        self.assertEqual(report["images"]["image"]["sizes"], 4)
        self.assertIn("images     image: 37  height 10..20 median 20 p95 20  width 20..20 median 20 p95 20  "
                      "4 sizes, most are 20 high and 20 wide (54.1 %)", text)
        captions = report["captions"]["labels"]
        self.assertEqual(sum(n for _, n in captions["histogram"]), 37)
        # "two birds on a wire" and "an old tree by the road" are longer than 12 tokens with this
        # model: 8 of the first 20 samples.
        self.assertEqual((captions["captions"], captions["cut"], captions["max_len"], captions["empty"]), (37, 8, 12, 0))
        self.assertAlmostEqual(captions["cut_share"], 8 / 37)
        lengths = sorted(length for length, n in captions["histogram"] for _ in range(n))
        self.assertEqual(captions["tokens"], {"min": lengths[0], "median": lengths[18], "p95": lengths[35], "max": lengths[-1],
                                              "mean": sum(lengths) / 37})
        self.assertIn(f"captions   labels: 37  tokens {lengths[0]}..{lengths[-1]} median {lengths[18]} p95 {lengths[35]}  "
                      "longer than max_len 12: 8 (21.6 %)  empty 0", text)
        self.assertGreater(captions["tokens"]["max"], 12)
        self.assertEqual(sum(n for length, n in captions["histogram"] if length > 12), 8)
        # The indexes are where the trainer looks for them.
        self.assertEqual(sorted(n for n in os.listdir(self.data) if "index" in n), ["train-000.tar.index", "train-001.tar.index"])
        self.assertIn("exists", self.tool("index_dataset", self.deck(), "--json", "r.json", code=1))
        self.assertIn("there is no [data.trian]", self.tool("index_dataset", self.deck(), "trian", code=2))
        # Without --json the tool writes no report and names none.
        self.assertNotIn("report ", self.tool("index_dataset", self.deck(), "train", code=4))

    def test_index_reads_once_under_mpirun(self):
        self.expect(0, "40 samples", args=[self.deck(), "--mode", "index"], ranks=2)
        self.assertEqual(self.output.count("40 samples"), 1)

    def test_index_counts_every_caption(self):
        with open(self.path("c.tsv"), "w") as f:
            for i in range(6):
                os.makedirs(self.path("images"), exist_ok=True)
                self.write(f"images/{i}.png", harness.png(i))
                f.writelines(f"{i}.png\t{text}\n" for text in ("cat", "two birds on a wire by the old tree on the hill", ""))
        ops = """decode | resize(16) | value_range(-1, 1) | choice(inkey="captions", outkey="t") | copy("t", "text")
                 | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")"""
        data = (f'[data.train]\nkind = "folder"\npath = "{self.path("images")}"\ncaptions = "{self.path("c.tsv")}"\n'
                f"preprocess = \'\'\'{ops}\'\'\'\n")
        deck = self.deck(re.sub(r"\[data\.train\].*?(?=\n\[eval)", lambda _: data, self.good, flags=re.S))
        self.tool("index_dataset", deck, "train", "--json", "r.json")
        with open(self.path("r.json")) as f:
            captions = json.load(f)["train"]["captions"]["labels"]
        self.assertEqual((captions["captions"], captions["cut"], captions["empty"]), (18, 6, 6))
        text = self.tool("index_dataset", deck, "train", "--json", "one.json", "--set", "data.train.limit=1")
        self.assertIn("1 samples in 1 of 6 samples of", text)
        # The median of three captions is the second one, and at least 95 % of them are as long as the longest.
        with open(self.path("one.json")) as f:
            captions = json.load(f)["train"]["captions"]["labels"]
        lengths = [length for length, count in captions["histogram"]]
        self.assertEqual(len(set(lengths)), 3)
        self.assertEqual([captions["tokens"][name] for name in ("min", "median", "p95", "max")],
                         [lengths[0], lengths[1], lengths[2], lengths[2]])

    # ------------------------------------------------------------------------------------------------ pack_dataset

    def deck_of(self, out, fields='image = "png", text = "txt"', shards="train-00000.tar"):
        return self.deck(self.changed(('path       = "%s/train-{000..001}.tar"' % self.data, f'path = "{self.path(out)}/{shards}"'),
                                      ('image = "png", text = "txt"', fields)))

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
            self.assertEqual(everything[f"{i:09}.txt"], f"picture {number}".encode())
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
        self.write("in/IMG_1.TXT", b"\xef\xbb\xbfone\r\n")
        self.write(f"in/{name}.png", harness.png(2))
        self.write(f"in/{name}.txt", "two")
        self.write("in/.thumbs/x.png", harness.png(3))
        self.write("in/.thumbs/x.txt", "no")
        self.assertIn("left out   1 hidden folders:\n  in/.thumbs\n2 samples".replace("\n2", "\ntrain-00000.tar  2"),
                      self.tool("pack_dataset", "in", "out"))
        self.assertEqual(self.members("out/train-00000.tar"),
                         {"000000000.png": harness.png(1), "000000000.txt": b"one",
                          "000000001.png": harness.png(2), "000000001.txt": b"two"})
        # --skip-bad leaves out whatever cannot be used, and names it.
        os.symlink("nowhere", self.path("in/a.png"))
        os.mkfifo(self.path("in/b.png"))
        for name, data in (("a.txt", "x"), ("b.txt", "x"), ("c.png", harness.png(4)), ("c.txt", b"\xc0\xaf"), ("d.png", harness.png(5)),
                           ("d.txt", "nu\0ll"), ("e.png", harness.png(6)), ("e.txt", "x"), ("e.Txt", "y")):
            self.write(f"in/{name}", data)
        with open(self.write("in/f.png", harness.png(7)), "ab") as f:
            f.truncate((256 << 20) + 1)
        self.write("in/f.txt", "x")
        for args, code in ((("in", "out2"), 1), (("in", "out2", "--skip-bad"), 0)):
            text = self.tool("pack_dataset", *args, code=code)
            for part in ("a.png: a link that leads nowhere", "b.png: no regular file",
                         "c.png: no caption: in/c.txt: not UTF-8 text (byte 0)", "d.png: its caption holds a zero byte",
                         "e.png: e.Txt and e.txt could both be its caption",
                         "f.png: 268435457 bytes; at most 268435456 are read"):
                self.assertIn(part, text)
        self.assertEqual(self.members("out2/train-00000.tar"), self.members("out/train-00000.tar"))

    def test_names_that_are_not_utf8(self):
        """No tool dies of such a name of a file or a run."""
        raw = os.fsdecode(b"caf\xe9")
        for i in range(8):
            self.write(f"in/{raw}{i}.png", harness.png(i))
        with open(self.write("in/c.tsv", ""), "wb") as f:
            f.writelines(b"caf\xe9%d.png\ta cat\n" % i for i in range(8))
        ops = 'decode | resize(16) | value_range(-1, 1) | tokenize("words", max_len=12, eos="sticky") | keep("image", "labels")'
        data = f"[data.train]\nkind = \"folder\"\ncaptions = \"in/c.tsv\"\nsample = \"caption\"\npreprocess = '''{ops}'''\n"
        deck = self.deck(re.sub(r"\[data\.train\].*?(?=\n\[eval)", lambda _: data, self.good, flags=re.S), f"{raw}.toml")
        self.tool("show_batch", deck, "--examples", 2, "-o", f"{raw}.png")
        self.assertGreater(os.path.getsize(self.path(f"{raw}.png")), 100)
        self.assertIn("8 samples", self.tool("index_dataset", deck, "train"))
        self.assertIn("8 samples in 1 shards", self.tool("pack_dataset", "in/c.tsv", f"out{raw}"))
        run = self.path(f"run{raw}")
        os.rename(deck, self.path("deck.toml"))
        self.expect(0, args=["deck.toml", "--dir", self.dir, "--set", "train.total_steps=4"])
        os.rename(self.dir, run)    # a deck cannot hold such a name
        for command in (("status", run), ("report", run), ("plot_metrics", run), ("published_metrics", run),
                        ("inspect_checkpoint", f"{run}/checkpoints/latest.h5", "--deck"),
                        ("export", run, self.path(f"{raw}.npz"))):
            with self.subTest(command[0]):
                self.tool(*command)

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
        self.write("bad.json", "{}")
        self.assertIn("COCO", self.tool("pack_dataset", "in", "out3", "--captions", "bad.json", code=1))

    def test_pack_tables(self):
        for i in range(3):
            self.write(f"in/{i}.png", harness.png(i))
        self.write("in/list.csv", 'id,image,caption,label\n7,2.png,"a, b",4\n8,0.png,"c\nd",5\n')
        text = self.tool("pack_dataset", "in/list.csv", "out")
        self.assertIn('label = "cls"', text)
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
        self.assertIn("list.jsonl:3: no file 1.PNG; '1.png' is there, with other capitals",
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
        self.assertIn("label.csv:2: the label '-2' is no whole number from -1", self.tool("pack_dataset", "in/label.csv", "x", code=1))
        self.write("in/label.csv", "image,caption,label\n0.png,a,1.5\n")
        self.assertIn("label.csv:2: the label '1.5' is no whole number", self.tool("pack_dataset", "in/label.csv", "x", code=1))
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
            self.assertEqual([text.decode() for text in packed(source, source.replace("/", "_") + "_out").values()], ["", "", "c"])
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
