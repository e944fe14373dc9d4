#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the data tools show the samples that the trainer reads."""
import argparse
import io
import json
import os
import re
import subprocess
import tarfile
import unittest

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


harness.main()
