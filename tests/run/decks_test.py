#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Broken decks: exit 2 at once, every problem with its place and the way out, nothing created."""
import os
import re

import harness
from deck_harness import DeckTest


class Decks(DeckTest):
    def refuse_all(self, cases):
        """`cases`: a deck and fragments of its problem, by name. The problem's line is that of the first change; a third element
        names another part of the deck."""
        for name, (text, fragments, *part) in cases.items():
            with self.subTest(name):
                line = self.line_of(text, part[0]) if part else self.changed_line(text)
                self.refuse(text, f"deck.toml:{line}: ", *fragments)

    def test_broken_keys(self):
        change = self.changed
        self.refuse_all({
            "syntax": (change(("total_steps = 12", "total_steps = = 12")), ["deck.toml:3"]),
            "unknown key": (change(("clip_norm     = 1.0", "clip_nrom = 1.0")), ["clip_nrom", "clip_norm"]),
            "unknown table": (change(("[checkpoint]", "[chekpoint]")), ["chekpoint", "checkpoint"]),
            "key of another table": (change(("learning_rate = 1e-2", "learning_rate = 1e-2\nglobal_batch = 3")), ["global_batch", "train"]),
            "wrong type": (change(("global_batch = 12", 'global_batch = "12"')), ["global_batch", "integer"]),
            "float for integer": (change(("global_batch = 12", "global_batch = 12.0")), ["global_batch", "12"]),
            "too small": (change(("global_batch = 12", "global_batch = 0")), ["global_batch"]),
            "negative": (change(("micro_batch = 6", "micro_batch = -6")), ["micro_batch"]),
            "missing": (change((", global_batch = 12", "")), ["global_batch", "missing"], "train  ="),
            "missing dir": (change((f'dir = "{self.dir}", ', "")), ["run.dir"], "run    ="),
            "seed too large": (change(('dir = "', 'seed = 9223372036854775808, dir = "')),
                               ["9223372036854775808", "the largest is 9223372036854775807"]),
            "keys that moved": (change(("micro_batch = 6", "micro_batch = 6, pad_id = 0")), ["train.pad_id", "write model.pad_id"]),
            "unknown kind": (change(('kind          = "adafactor"', 'kind = "adafacter"')), ["adafacter", "adafactor", "adamw"]),
            "unknown choice": (change(('parameters = "sharded"', 'parameters = "shraded"')), ["shraded", "sharded", "replicated"]),
            "key of another kind": (change(("clip_norm     = 1.0", "clip_norm = 1.0\nb1 = 0.9")), ["b1", "adamw"], "b1 = 0.9"),
            "bad group": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["enc(.*", "decoder/.*"]')),
                          ["log.groups", "enc(.*", "regular expression"]),
            "group twice": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["decoder/.*", "decoder/.*"]')),
                            ["log.groups", "twice"]),
            "group of nothing": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["encodr/.*"]')),
                                 ["log.groups", "encodr/.*", "matches no parameter"]),
        })

    def test_broken_lengths(self):
        change = self.changed
        self.refuse_all({
            "two durations": (change(("total_steps = 12", "total_steps = 12, total_epochs = 3")), ["total_steps", "total_epochs"]),
            "no duration": (change(("total_steps = 12, ", "")), ["total_steps, total_examples, total_epochs to"], "train  ="),
            "no steps": (change(("total_steps = 12", "total_steps = 0")), ["train.total_steps", "> 0"]),
            "no epochs": (change(("total_steps = 12", "total_epochs = 0")), ["train.total_epochs", "> 0"]),
            "percent": (change(("warmup_steps = 2", "warmup_percent = 10")), ["warmup_percent", "warmup_fraction"]),
            "fraction of itself": (change(("total_steps = 12", "total_fraction = 0.5")), ["train.total_fraction: cannot be"]),
            "fraction above one": (change(("warmup_steps = 2", "warmup_fraction = 10")), ["warmup_fraction"]),
            "warm-up, steps": (change(("warmup_steps = 2", "warmup_steps = 12")), ["schedule.default.warmup_steps", "12 steps"]),
            "warm-up, examples": (change(("warmup_steps = 2", "warmup_examples = 240")),
                                  ["schedule.default.warmup_examples", "20 steps", "12 steps"]),
            "warm-up, fraction": (change(("warmup_steps = 2", "warmup_fraction = 1.0")), ["schedule.default.warmup_fraction"]),
        })

    def test_broken_schedules(self):
        change = self.changed
        self.refuse_all({
            "no timescale": (change(('kind         = "cosine"', 'kind = "rsqrt"\ntimescale_steps = 0')),
                             ["schedule.default.timescale_steps", "> 0"], "timescale_steps"),
            "parts in no order": (change(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "composite"\n[[schedule.default.part]]\n'
                                          '[[schedule.default.part]]\nfrom_steps = 8\n[[schedule.default.part]]\nfrom_steps = 5\n')),
                                  ["schedule.default.part.2.from_steps", "part 1 starts at step 8 and ends at 5"], "from_steps = 5"),
            "warm-up of a part": (change(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "composite"\n[[schedule.default.part]]\n'
                                          '[[schedule.default.part]]\nfrom_steps = 8\nwarmup_steps = 4\n')),
                                  ["schedule.default.part.1.warmup_steps", "4 steps does not fit into 4"], "warmup_steps = 4"),
            "composite without parts": (change(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "composite"')),
                                        ["[[schedule.default.part]]"], "[schedule.default]"),
            "stair between steps": (change(('kind         = "cosine"\nwarmup_steps = 2',
                                            'kind = "stair"\nat_steps = [2.5, 4]\nmults = [0.5, 0.1]')),
                                    ["schedule.default.at_steps", "2.5 is not a whole number"], "at_steps"),
            "unused schedule": (change(("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                                ["schedule.slow", "no [[optimizer.rule]] names"], "[schedule.slow]"),
            "unused default": (change(("decay_scale = 1.0", 'decay_scale = 1.0\nschedule = "slow"'),
                                      ("decay_scale = 0.0", 'decay_scale = 0.0\nschedule = "slow"'),
                                      ("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                               ["schedule.default", "every rule names another"], "[schedule.default]"),
            "schedule of frozen parameters": (change(("decay_scale = 1.0", 'decay_scale = 1.0\nschedule = "slow"\nfrozen = true'),
                                                     ("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                                              ["schedule.slow", "frozen"], "[schedule.slow]"),
        })

    def test_broken_rules_and_meshes(self):
        change = self.changed
        self.refuse_all({
            "bad regex": (change(('match       = ".*/kernel"', 'match = "(.*"')), ["match", "regular expression"]),
            "rule matches nothing": (change(('match       = ".*/kernel"', 'match = ".*/kernle"')), ["kernle", "no parameter"]),
            "uncovered parameters": (change(('match       = ".*"', 'match = ".*/bias"')), ["encoder/pos_embedding"], "[[optimizer.rule]]"),
            "rule never reached": (change(('match       = ".*"\n', 'match       = ".*"\n[[optimizer.rule]]\nmatch = "encoder/.*"\n')),
                                   ["optimizer.rule.2.match", "encoder/.*", "never reached"], '"encoder/.*"'),
            "no gradient gets in": (change(("clip_norm     = 1.0", "clip_norm = 1.0\nmomentum = 1")), ["optimizer.momentum", "gradient"],
                                    "momentum = 1"),
            "sharding conflict": (change(('optimizer = "sharded" }', 'optimizer = "replicated" }')), ["optimizer", "sharded parameters"]),
            "sharding rule never reached": (change(('optimizer = "sharded" }', 'optimizer = "sharded", rule = [{ match = ".*" }, '
                                                    '{ match = "encoder/.*", parameters = "replicated" }] }')),
                                            ["sharding.rule.1.match", "never reached"]),
            "slices": (change(("[checkpoint]", '[determinism]\nlevel = "mesh"\nslices = 8\n[checkpoint]')), ["slices", "12"], "slices = 8"),
            "mesh twice inferred": (change(("replica = 1,", "replica = -1,")), ["fsdp", "inferred"]),
            "mesh of too many": (change(("replica = 1,", "replica = 3000000000,")), ["mesh.replica", "out of range"]),
        })

    def test_broken_model(self):
        change = self.changed
        self.refuse_all({
            "heads": (change(("heads = 2", "heads = 3")), ["model.encoder.heads: width = 32 is not divisible by heads = 3"]),
            "heads of the decoder": (change(("decoder          = { depth = 1 }", "decoder = { depth = 1, heads = 3 }")),
                                     ["model.decoder.heads: width = 32 (of model.encoder) is not divisible by heads = 3"]),
            "width of the decoder": (change(("decoder          = { depth = 1 }", "decoder = { depth = 1, width = 33 }")),
                                     ["model.decoder.width: width = 33 is not divisible by heads = 2", "model.decoder.heads"]),
            "patch": (change(("image_size       = 16", "image_size = 20"), ("resize(16)", "resize(20)")), ["image_size", "patch"]),
            "image size": (change(("resize(16)", "resize(24)")), ["[24,24,3]", "[16,16,3]", "image_size"]),
            "text length": (change(("max_len=12", "max_len=10")), ["labels", "[10]", "[12]"], "preprocess"),
            "vocabulary": (change(("vocab_size       = 400", "vocab_size = 1")), ["vocab_size"]),
            "vocabulary of the tokenizer": (change(("vocab_size       = 400", "vocab_size = 100")),
                                            ["model.vocab_size", "100 is smaller than the 168 ids"]),
            "pad id": (change(("masked_pred_prob = 0.5", "masked_pred_prob = 0.5\npad_id = 400")),
                       ["model.pad_id", "400", "model.vocab_size"]),
            "nothing masked": (change(("masked_pred_prob = 0.5", "masked_pred_prob = 0.5\nmasking_ratio = 0.05")),
                               ["model.masking_ratio", "seq_len = 12"]),
        })

    def test_broken_ops(self):
        change = self.changed
        self.refuse_all({
            "unknown op": (change(("value_range(", "value_rnage(")), ["value_rnage", "value_range"]),
            "op argument": (change(("resize(16)", "resize(sise=16)")), ["sise", "size"]),
            "op that is empty": (change(("decode | resize(16)", "decode | | resize(16)")), ["character 10", "expected an op"]),
            "size beyond the limit": (change(("resize(16)", "resize(100000)")), ["100000", "1..65536"]),
            "op order": (change(("decode | resize(16)", "resize(16) | decode")), ["resize", "decode"]),
            "resize method": (change(("resize(16)", 'resize(16, "bilinaer")')), ["bilinaer", "nearest is 'bilinear'"]),
            "crop too large": (change(("resize(16)", "resize(12) | central_crop(16)")), ["central_crop", "[16,16,3]", "[12,12,3]"]),
            "reference loop": (re.sub("preprocess = '''.*?'''", 'preprocess = "@train"', self.good, flags=re.S), ["@train"]),
        })

    def test_broken_data(self):
        change = self.changed
        fields, tars = 'fields     = { image = "png", text = "txt" }', 'kind       = "webdataset"'
        self.refuse_all({
            "missing feature": (change(('keep("image", "labels")', 'keep("image")')), ["labels"], "preprocess"),
            "pixels that are not scaled": (change((" | value_range(-1, 1)", "")),
                                           ["image u8 [16,16,3]", "f32", "value_range(-1, 1)"]),
            "texts that are not chosen": (change((fields, 'captions = "c.json"'), (tars, 'kind = "folder"'),
                                                 ('inkey="text"', 'inkey="captions"')),
                                          ["captions", "texts", "choice"], "preprocess"),
            "rows of no type": (change(('text = "txt" }', 'text = "captions: words" }'), (tars, 'kind = "hdf5"')),
                                ["data.train.fields", "'words' is not a type", "bytes, text, texts"], "fields     ="),
            "captions of another kind": (change((fields, 'captions = "c.txt"'), (tars, 'kind = "folder"')),
                                         ["data.train.captions", ".tsv", ".csv", ".json"], "captions ="),
            "masks of no length": (change((' | keep("image", "labels")', ' | randu("label_masks")')),
                                        ["label_masks f32 []", "f32 [12]"], "preprocess"),
            "unknown data": (change(('data = "train", total', 'data = "trian", total')), ["trian", "train"]),
            "unknown tokenizer": (change(('tokenize("words"', 'tokenize("wrods"')), ["wrods", "words"], "preprocess"),
            "image of bytes": (change((" | value_range(-1, 1)", "")), ["image u8 [16,16,3]", "f32 [16,16,3]", "value_range"]),
            "masks of another length": (change(('keep("image", "labels")', 'reshape([3, 4], inkey="label_masks", '
                                                'outkey="label_masks") | keep("image", "labels", "label_masks")'),
                                               ('outkey="labels")', 'outkey="labels", prefix="a")')),
                                        ["label_masks f32 [3,4]", "f32 [12]", "model.seq_len"], "preprocess"),
            "masks of whole numbers": (change(('keep("image", "labels")', 'copy(inkey="labels", outkey="label_masks") '
                                               '| keep("image", "labels", "label_masks")')),
                                       ["label_masks i32 [12]", "f32 [12]"], "preprocess"),
        })

    def test_good(self):
        self.expect(0, "valid", args=[self.deck(), "--validate"])
        self.assertFalse(os.path.exists(self.dir))

    def test_known_once_the_data_is_open(self):
        # Epochs and the tokenizer's ids are checked before the run directory is made.
        text = self.changed(("warmup_steps = 2", "warmup_epochs = 4"))
        self.expect(0, args=[self.deck(text), "--validate"])
        for ranks in (0, 2):
            self.expect(2, f"deck.toml:{self.line_of(text, 'warmup_epochs')}: schedule.default.warmup_epochs", "13 steps",
                        args=[self.deck(text)], ranks=ranks)
            self.assertFalse(os.path.exists(self.dir))
        small = self.changed(("vocab_size       = 400", "vocab_size = 167"))
        self.expect(2, f"deck.toml:{self.line_of(small, 'vocab_size')}: model.vocab_size: 167", "168 ids", args=[self.deck(small)],
                    ranks=2)
        self.assertFalse(os.path.exists(self.dir))

    def test_a_ramp_of_zero_is_off(self):
        for key in ("warmup_steps", "warmup_examples", "warmup_epochs", "warmup_fraction", "cooldown_epochs", "cooldown_fraction"):
            with self.subTest(key):
                zero = "0" if key.endswith(("steps", "examples")) else "0.0"
                text = self.changed(('kind         = "cosine"\nwarmup_steps = 2', f'kind = "constant"\n{key} = {zero}'))
                self.expect(0, " 1:1  ", " 12:1\n", args=[self.deck(text), "--mode", "plan"])

    def test_problems_come_once(self):
        self.run_trainer(self.deck(self.changed(("resize(16)", "resize(24)"))), "--validate")
        self.assertEqual(self.output.count("[24,24,3]"), 1, self.output)
        # Data sets with "@train" do not repeat its problem, and neither do evaluators.
        for old, new, sign in (("resize(16)", "resize(24)", "[24,24,3]"), ("decode | resize(16)", "resize(16) | decode", "resize")):
            text = self.changed((old, new), ('data        = "train"', 'data = "val"'))
            text += f"""[data.val]
path = "{self.data}/train-000.tar"
fields = {{ image = "png", text = "txt" }}
preprocess = "@train"
"""
            self.run_trainer(self.deck(text), "--validate")
            self.assertEqual(len(self.output.splitlines()), 1, self.output)
            self.assertIn(sign, self.output)

    def test_all_problems_at_once_with_lines(self):
        text = self.changed(("global_batch = 12", "global_batch = 0"), ("heads = 2", "heads = -2"),
                            ("warmup_steps = 2", "warmup_stops = 2"))
        self.refuse(text, f"deck.toml:{self.line_of(text, 'global_batch')}", f"deck.toml:{self.line_of(text, 'heads')}",
                    f"deck.toml:{self.line_of(text, 'warmup_stops')}")
        # Problems between sections are reported all at once as well.
        text = self.changed((" | value_range(-1, 1)", ""), ("warmup_steps = 2", "warmup_steps = 20"),
                            ('data        = "train"', 'data = "vla"'), ('match       = ".*/kernel"', 'match = ".*/kernle"'),
                            ("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]'))
        self.refuse(text, *[f"deck.toml:{self.line_of(text, part)}: {key}" for part, key in (
            ("preprocess", "data.train.preprocess"), ("warmup_steps = 20", "schedule.default.warmup_steps"),
            ('"vla"', "eval.val.data"), ("kernle", "optimizer.rule.0.match"), ("[schedule.slow]", "schedule.slow"))])

    def test_wrong_hints(self):
        # heads of the encoder: one problem, of the encoder alone.
        self.expect(2, args=[self.deck(self.changed(("heads = 2", "heads = 3"))), "--validate"])
        self.assertEqual(self.output.count("divisible"), 1, self.output)
        # More ranks than examples: no batch of 0.
        self.expect(3, "12 is not divisible by 16384 ranks", "set it to 16384\n",
                    args=[self.deck(), "--mode", "plan", "--ranks", 16384])
        # Lengths that an override does not leave room for are the override's.
        path = self.deck()
        self.expect(2, "error: --set train.total_steps=2: schedule.default.warmup_steps: a warm-up of 2 steps does not fit into 2",
                    args=[path, "--validate", "--set", "train.total_steps=2"])
        line = self.line_of(self.good, "warmup_steps = 2")
        self.expect(2, "--set schedule.default.warmup_steps=3: a warm-up of 3 steps",
                    args=[path, "--validate", "--set", "train.total_steps=3", "--set", "schedule.default.warmup_steps=3"])
        self.expect(2, "--set model.image_size=24: data.train.preprocess: yields image f32 [16,16,3]",
                    args=[path, "--validate", "--set", "model.image_size=24"])
        text = self.changed(("total_steps = 12", "total_steps = 2"))
        self.expect(2, f"deck.toml:{line}: schedule.default.warmup_steps: a warm-up", args=[self.deck(text), "--validate"])
        # A key that no run has: the one that is meant.
        short = [self.deck(), "--set", "train.total_steps=3"]
        self.expect(0, args=short)
        more = [self.deck(), "--set", "train.total_steps=4", "--set", "run.seed=1"]
        self.expect(2, "--allow-change optimizer.lr: no such key or table; did you mean optimizer.learning_rate?",
                    args=[*more, "--allow-change", "optimizer.lr"])
        self.expect(2, "--allow-change trian.data", "did you mean train.data?", args=[*more, "--allow-change", "trian.data"])
        self.expect(2, "--allow-change optimizer.qqq: no such key or table\n", args=[*more, "--allow-change", "optimizer.qqq"])


harness.main()
