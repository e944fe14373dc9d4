#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks figures and pictures of the tools, from known measurements. No trainer runs."""
import argparse
import contextlib
import io
import os
import tarfile
import unittest
import unittest.mock

import numpy as np
from PIL import Image, ImageDraw

import harness


class Figures(harness.RunTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def test_figures_of_bench_scaling(self):
        """Ratios, goals and medians follow from known measurements."""
        tool = harness.loaded("bench_scaling")
        options = argparse.Namespace(rounds=3)

        def run(text, function, *args):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                result = function(*args)
            for part in text:
                self.assertIn(part, out.getvalue())
            return result
        values = iter((7, 1, 9))
        self.assertEqual(run((), tool.in_turns, options, [("a", lambda: {"ms": next(values)})]), {"a": {"ms": 7}})

        def bench(_, keys, ranks=1, threads=2):
            batch = keys["train.global_batch"]
            ms = 10 * batch + 20 + (8 if batch == 64 else 0) if ranks == 1 else 400 * ranks
            return {"ms_per_step": ms, "optimizer_ms": 20, "batch": batch, "products_alone_ms": 6 * batch, "products_ms": 8 * batch,
                    "other_ops_ms": 3, "planned_mib": 512, "examples_per_s": 1e3 * batch / ms, "comm_ms": 50 if ranks > 1 else 0}
        with unittest.mock.patch.object(tool, "bench", bench), \
                unittest.mock.patch.object(tool, "planned_bytes", lambda *_: 512 << 20):
            # A step of batch 64 takes 668 ms, 648 without the optimizer. Its parts take 384 + 668 -
            # 512 = 540.
            good, found = run(("| 64 | 668 | 10.1 | 512 | 384 | 3 | 1.237 | 512 | yes |",
                               "dearest over cheapest example: 1.012, goal at most 1.1\n",
                               "at most: 1.237, goal at most 1.15: **missed**"), tool.sweep, options, "batch")
            self.assertFalse(good)
            self.assertEqual(found["8"]["ms_per_step"], 100)
            # 2 ranks take 800 ms; two programs of half the batch take 180 ms, and communication 50
            # ms. 4 ranks take twice as long as 2.
            good, _ = run(("over half the batch and the all-reduce: 3.478, goal at most 1.1: **missed**",
                           "4 ranks over 2, both batch 32: 2.000, goal at most 1.5: **missed**",
                           "| 2 ranks x 1 thread, batch 32 | 800 | 40.00 | 50 | 512 |"), tool.ranks, options)
            self.assertFalse(good)
        with unittest.mock.patch.object(tool, "bench", bench), unittest.mock.patch.object(tool, "planned_bytes", lambda *_: 511 << 20):
            run(("| **no** |",), tool.sweep, options, "batch")
        table = run((), tool.Table, "t", ["a"])
        run(("at most 2\n",), table.goal, "x", 2, 2)
        self.assertTrue(table.good)

    def test_figures_of_bench_data(self):
        """Rates per second of processor time, medians of ratios, shares and goals follow from
        known measurements."""
        tool = harness.loaded("bench_data")

        class Runner:
            def __init__(self, command, core=None, quiet=False):
                self.speeds = {"bare": [200.0, 100.0, 150.0], "loader": [90.0, 75.0, 135.0]}

            def ask(self, command):
                word, *rest = command.split()
                if word == "ops":
                    return 100, float(rest[0]) * 0.2, 9.0     # each op adds 2 ms an image
                if word == "loader" and int(rest[0]) > 1:
                    return 100, 1.25, 0.625
                images = self.speeds[word].pop(0)
                self.speeds[word].append(images)
                return images, 1.0, 2.0

            def close(self):
                pass
        options = argparse.Namespace(rounds=3, seconds=1.0, python=[], threads=[1, 2])
        with unittest.mock.patch.object(tool, "Runner", Runner), \
                unittest.mock.patch.object(tool, "find_peers", lambda *_: ({}, ["tensorflow"])):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                good, report = tool.one_core(options, "bench", "shard")
            # The ratios of the loader to bare decoding are 0.45, 0.75, 0.9.
            self.assertEqual(report["bare libjpeg-turbo"], {"images_per_cpu_s": 150.0, "ours_over_it": 0.75})
            self.assertEqual(report["ours"]["images_per_cpu_s"], 90.0)
            self.assertTrue(good)
            self.assertRegex(out.getvalue(), r"bare libjpeg-turbo +150\.0 +75\.0 %   45\.0 \.\. 90\.0   goal 70 %\n")
            self.assertIn("read and decode 2.000, resize 2.000, value_range 2.000, tokenize 2.000", out.getvalue())
            self.assertIn("not found                   tensorflow", out.getvalue())
            with contextlib.redirect_stdout(io.StringIO()) as out:
                _, report = tool.scaling(options, "bench", "shard")
            self.assertEqual(report, {1: {"images_per_s": 45.0, "images_per_cpu_s": 90.0}, 2: {"images_per_s": 160.0,
                                                                                             "images_per_cpu_s": 80.0}})
            self.assertRegex(out.getvalue(), r"2 +160\.0 +3\.56 +80\.0 +0\.89\n")

    def test_figures_of_pack_dataset(self):
        """A tar has the size that pack_dataset expects, at every border of blocks and records."""
        tool = harness.loaded("pack_dataset")
        for sizes in ((0, 0), (1, 6143), (1, 6144), (1, 6145), (1, 6655), (512, 6144), (513, 6144), (0, 6656), (0, 6657), (10240, 0)):
            contents = {"png": b"x" * sizes[0], "txt": b"y" * sizes[1]}
            path = self.path("a.tar")
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                tool.add(tar, "first.png", b"z" * 700)
                expected = tool.tar_bytes(tar.offset, contents)
                for extension, data in contents.items():
                    tool.add(tar, f"a.{extension}", data)
            self.assertEqual(expected, os.path.getsize(path), sizes)

    def test_figures_of_make_emoji_dataset(self):
        """Tokens count as the trainer counts them: with the end token. A long caption is cut and
        keeps its end token."""
        tool = harness.loaded("make_emoji_dataset")

        class Pieces:
            def __init__(self, model_proto):
                pass

            def encode(self, text):
                return [3 if word == "a" else 4 for word in text.split()]

            def get_piece_size(self):
                return 9
        found = tool.measure(argparse.Namespace(SentencePieceProcessor=Pieces), b"", ["A b", "a a a", "a " * 30], ["b"])
        counts = {3: 1 + 3 + 23, 4: 1, 1: 3}
        total = sum(counts.values())
        self.assertAlmostEqual(found["unigram_entropy_nats"], -sum(n / total * np.log(n / total) for n in counts.values()), places=12)
        self.assertEqual((found["mean_tokens"], found["max_tokens"], found["cut_at_24"], found["pieces"], found["pieces_used"]),
                         ((3 + 4 + 31 + 2) / 4, 31, 1, 9, 3))

    # ------------------------------------------------------------------------------------------------ show_batch

    def boxes_font(self, characters):
        """Makes a font in $XDG_DATA_HOME whose glyphs are black squares."""
        from fontTools.fontBuilder import FontBuilder
        from fontTools.pens.ttGlyphPen import TTGlyphPen

        def square(side):
            pen = TTGlyphPen(None)
            pen.moveTo((0, 0)), pen.lineTo((0, side)), pen.lineTo((side, side)), pen.lineTo((side, 0)), pen.closePath()
            return pen.glyph()
        names = [f"u{ord(c):04X}" for c in characters]
        font = FontBuilder(1000, isTTF=True)
        font.setupGlyphOrder([".notdef", *names])
        font.setupCharacterMap({ord(c): name for c, name in zip(characters, names)})
        font.setupGlyf({".notdef": square(0), **{name: square(1000) for name in names}})
        font.setupHorizontalMetrics({name: (1000, 0) for name in (".notdef", *names)})
        font.setupHorizontalHeader(ascent=1000, descent=0)
        font.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
        font.setupOS2()
        font.setupPost()
        os.makedirs(self.path("share/fonts"), exist_ok=True)
        font.save(self.path("share/fonts/squares.ttf"))

    def drawn(self, text):
        """Returns (pixels of a text of size 20, its width, characters that no font has)."""
        fonts = harness.loaded("fonts.py")
        picture = Image.new("RGB", (400, 40), (255, 255, 255))
        line = fonts.Text(20)
        line.draw(picture, ImageDraw.Draw(picture), 5, 5, text, (0, 0, 0))
        return np.asarray(picture), line.width(text), fonts.Text.missing

    @unittest.skipUnless(os.path.exists("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"), "no DejaVu Sans here")
    def test_fonts_step_in(self):
        private = "\U000f1234"  # no font of any machine has it
        with unittest.mock.patch.dict(os.environ, XDG_DATA_HOME=self.path("share")):
            _, _, missing = self.drawn("a" + private)
            self.assertEqual(missing, {private})
            self.boxes_font(private)
            pixels, width, missing = self.drawn(private)
            self.assertEqual((missing, width), (set(), 20))
            black = np.argwhere((pixels == 0).all(axis=2))
            self.assertEqual(len(black), 20 * 20)
            # Between letters of the usual font, the text has the width of its parts, in their
            # order.
            alone = self.drawn("ab")[1]
            self.assertAlmostEqual(self.drawn(f"a{private}b")[1], alone + 20, delta=2)
            pixels, width, _ = self.drawn(f"{private}a")
            self.assertTrue((pixels[:, 5:25] == 0).all(axis=2).any())
            self.assertTrue((pixels[:, 26:] < 128).any())

    @unittest.skipUnless(os.path.exists("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"), "no fonts-noto-color-emoji here")
    def test_emoji_are_in_colour(self):
        def colours(pixels):
            return (pixels.max(axis=2).astype(int) - pixels.min(axis=2) > 60).sum()
        pixels, width, missing = self.drawn("\U0001f525")
        self.assertEqual(missing, set())
        self.assertGreater(colours(pixels), 100)
        self.assertLess(width, 40)
        self.assertEqual(colours(self.drawn("fire")[0]), 0)
        if harness.loaded("fonts.py").SHAPING:  # one glyph for several code points
            family = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
            self.assertEqual(self.drawn(family)[1], width)
            self.assertEqual(self.drawn("\U0001f44d\U0001f3fd")[1], width)

    def test_words_of_show_batch(self):
        """Checks the texts under each image, and above all images, of a known batch."""
        tool = harness.loaded("show_batch")
        batch = tool.Batch.__new__(tool.Batch)
        batch.arrays = {"image": np.full((2, 3, 5, 3), -0.5, np.float32), "causal": np.array([0, 1]), "weights": np.array([[1, 1, 0]] * 2),
                        "decoder_ids": np.array([[400, 7, 400], [0, 5, 6]])}
        batch.arrays["image"][0, 0, 0] = 1
        batch.about = {"mask_id": 400, "data": "train", "step": 4, "preprocess": "decode  | keep"}
        batch.examples = [{"position": 36 + i, "key": f"/data/a.tar:{i}", "caption": "red house", "labels": ["red", "house", "pad"]}
                          for i in range(2)]
        written = []
        with unittest.mock.patch.object(tool.fonts.Text, "draw", lambda *arguments: written.append(arguments[-2:])):
            picture = tool.sheet(batch, 2)
        words = [text for text, _ in written]
        self.assertEqual(words[0], "train, step 4: 2 images 5 pixels wide and 3 high, values -0.5..1")
        self.assertEqual(words[1:9], ["decode | keep", "36: parallel, 2/3 masked", "a.tar:0", "red", "house", "red", "house", "pad"])
        self.assertEqual(words[9], "37: autoregressive")
        # Masked tokens are red. Tokens without loss are grey, masked or not.
        self.assertEqual([colour for text, colour in written[6:9]], [tool.RED, tool.BLACK, tool.GREY])
        pixels = np.asarray(picture)
        self.assertIn((255, 255, 255), {tuple(p) for p in pixels[60:70, 10:20].reshape(-1, 3)})
        np.testing.assert_array_equal(batch.pixels()[1, 0, 0], [64] * 3)    # -0.5 of -1..1


harness.main()
