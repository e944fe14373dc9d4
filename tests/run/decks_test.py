#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Broken decks and command lines: exit 2 at once, every problem with its place and the way out, nothing created."""
import json
import math
import os
import re
import subprocess
import tarfile
from unittest import mock

import harness


class Decks(harness.RunTest):
    def refuse(self, text, *fragments, args=()):
        """Exit 2, as fast as a good deck is found valid."""
        path, good = self.deck(text), self.deck(name="good.toml")
        self.assert_no_slower(lambda: self.expect(2, *fragments, args=[path, "--validate", *args]),
                              lambda: self.expect(0, args=[good, "--validate"]), factor=3)
        self.expect(2, *fragments, args=[path, *args])
        self.assertFalse(os.path.exists(self.dir), "a refused deck must create nothing")

    def line_of(self, text, part):
        return text[: text.index(part)].count("\n") + 1

    def changed_line(self, text):
        """The first line that is not as in the good deck."""
        for number, (a, b) in enumerate(zip(text.split("\n"), self.good.split("\n")), 1):
            if a != b:
                return number
        raise AssertionError("the deck is the good one")

    def launch(self, *contexts):
        """mpirun with several application contexts, each a list of words; stdout, stderr and exit code."""
        words = ["mpirun"]
        for i, context in enumerate(contexts):
            words += [":"] * (i > 0) + [str(word) for word in context]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, cwd=self.folder,
                              stdin=subprocess.DEVNULL)
        self.output = done.stdout
        return done.returncode

    def test_good(self):
        self.expect(0, "valid", args=[self.deck(), "--validate"])
        self.assertFalse(os.path.exists(self.dir))

    def test_broken(self):
        change = self.changed
        fields, tars = 'fields     = { image = "png", text = "txt" }', 'kind       = "webdataset"'
        # The line of the problem is that of the first change. A third element names another part of
        # the deck (None: the deck does not set the key).
        cases = {
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
            "two durations": (change(("total_steps = 12", "total_steps = 12, total_epochs = 3")), ["total_steps", "total_epochs"]),
            "no duration": (change(("total_steps = 12, ", "")), ["total_steps, total_examples, total_epochs to"], "train  ="),
            "percent": (change(("warmup_steps = 2", "warmup_percent = 10")), ["warmup_percent", "warmup_fraction"]),
            "fraction of itself": (change(("total_steps = 12", "total_fraction = 0.5")), ["train.total_fraction: cannot be"]),
            "fraction above one": (change(("warmup_steps = 2", "warmup_fraction = 10")), ["warmup_fraction"]),
            "unknown kind": (change(('kind          = "adafactor"', 'kind = "adafacter"')), ["adafacter", "adafactor", "adamw"]),
            "unknown choice": (change(('parameters = "sharded"', 'parameters = "shraded"')), ["shraded", "sharded", "replicated"]),
            "key of another kind": (change(("clip_norm     = 1.0", "clip_norm = 1.0\nb1 = 0.9")), ["b1", "adamw"], "b1 = 0.9"),
            "sharding conflict": (change(('optimizer = "sharded" }', 'optimizer = "replicated" }')), ["optimizer", "sharded parameters"]),
            "bad regex": (change(('match       = ".*/kernel"', 'match = "(.*"')), ["match", "regular expression"]),
            "rule matches nothing": (change(('match       = ".*/kernel"', 'match = ".*/kernle"')), ["kernle", "no parameter"]),
            "uncovered parameters": (change(('match       = ".*"', 'match = ".*/bias"')), ["encoder/pos_embedding"], "[[optimizer.rule]]"),
            "heads": (change(("heads = 2", "heads = 3")), ["model.encoder.heads: width = 32 is not divisible by heads = 3"]),
            "heads of the decoder": (change(("decoder          = { depth = 1 }", "decoder = { depth = 1, heads = 3 }")),
                                     ["model.decoder.heads: width = 32 (of model.encoder) is not divisible by heads = 3"]),
            "width of the decoder": (change(("decoder          = { depth = 1 }", "decoder = { depth = 1, width = 33 }")),
                                     ["model.decoder.width: width = 33 is not divisible by heads = 2", "model.decoder.heads"]),
            "patch": (change(("image_size       = 16", "image_size = 20"), ("resize(16)", "resize(20)")), ["image_size", "patch"]),
            "image size": (change(("resize(16)", "resize(24)")), ["[24,24,3]", "[16,16,3]", "image_size"]),
            "text length": (change(("max_len=12", "max_len=10")), ["labels", "[10]", "[12]"], "preprocess"),
            "unknown op": (change(("value_range(", "value_rnage(")), ["value_rnage", "value_range"]),
            "op argument": (change(("resize(16)", "resize(sise=16)")), ["sise", "size"]),
            "op that is empty": (change(("decode | resize(16)", "decode | | resize(16)")), ["character 10", "expected an op"]),
            "size beyond the limit": (change(("resize(16)", "resize(100000)")), ["100000", "1..65536"]),
            "op order": (change(("decode | resize(16)", "resize(16) | decode")), ["resize", "decode"]),
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
            "resize method": (change(("resize(16)", 'resize(16, "bilinaer")')), ["bilinaer", "nearest is 'bilinear'"]),
            "crop too large": (change(("resize(16)", "resize(12) | central_crop(16)")), ["central_crop", "[16,16,3]", "[12,12,3]"]),
            "unknown data": (change(('data = "train", total', 'data = "trian", total')), ["trian", "train"]),
            "unknown tokenizer": (change(('tokenize("words"', 'tokenize("wrods"')), ["wrods", "words"], "preprocess"),
            "vocabulary": (change(("vocab_size       = 400", "vocab_size = 1")), ["vocab_size"]),
            "slices": (change(("[checkpoint]", '[determinism]\nlevel = "mesh"\nslices = 8\n[checkpoint]')), ["slices", "12"], "slices = 8"),
            "mesh twice inferred": (change(("replica = 1,", "replica = -1,")), ["fsdp", "inferred"]),
            "reference loop": (re.sub("preprocess = '''.*?'''", 'preprocess = "@train"', self.good, flags=re.S), ["@train"]),
        }
        more = {
            "image of bytes": (change((" | value_range(-1, 1)", "")), ["image u8 [16,16,3]", "f32 [16,16,3]", "value_range"]),
            "masks of another length": (change(('keep("image", "labels")', 'reshape([3, 4], inkey="label_masks", '
                                                'outkey="label_masks") | keep("image", "labels", "label_masks")'),
                                               ('outkey="labels")', 'outkey="labels", prefix="a")')),
                                        ["label_masks f32 [3,4]", "f32 [12]", "model.seq_len"], "preprocess"),
            "masks of whole numbers": (change(('keep("image", "labels")', 'copy(inkey="labels", outkey="label_masks") '
                                               '| keep("image", "labels", "label_masks")')),
                                       ["label_masks i32 [12]", "f32 [12]"], "preprocess"),
            "warm-up, steps": (change(("warmup_steps = 2", "warmup_steps = 12")), ["schedule.default.warmup_steps", "12 steps"]),
            "warm-up, examples": (change(("warmup_steps = 2", "warmup_examples = 240")),
                                  ["schedule.default.warmup_examples", "20 steps", "12 steps"]),
            "warm-up, fraction": (change(("warmup_steps = 2", "warmup_fraction = 1.0")), ["schedule.default.warmup_fraction"]),
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
            "no steps": (change(("total_steps = 12", "total_steps = 0")), ["train.total_steps", "> 0"]),
            "no epochs": (change(("total_steps = 12", "total_epochs = 0")), ["train.total_epochs", "> 0"]),
            "seed too large": (change(('dir = "', 'seed = 9223372036854775808, dir = "')),
                               ["9223372036854775808", "the largest is 9223372036854775807"]),
            "bad group": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["enc(.*", "decoder/.*"]')),
                          ["log.groups", "enc(.*", "regular expression"]),
            "group twice": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["decoder/.*", "decoder/.*"]')),
                            ["log.groups", "twice"]),
            "unused schedule": (change(("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                                ["schedule.slow", "no [[optimizer.rule]] names"], "[schedule.slow]"),
            "unused default": (change(("decay_scale = 1.0", 'decay_scale = 1.0\nschedule = "slow"'),
                                      ("decay_scale = 0.0", 'decay_scale = 0.0\nschedule = "slow"'),
                                      ("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                               ["schedule.default", "every rule names another"], "[schedule.default]"),
            "schedule of frozen parameters": (change(("decay_scale = 1.0", 'decay_scale = 1.0\nschedule = "slow"\nfrozen = true'),
                                                     ("[schedule.default]", '[schedule.slow]\nkind = "constant"\n[schedule.default]')),
                                              ["schedule.slow", "frozen"], "[schedule.slow]"),
            "pad id": (change(("masked_pred_prob = 0.5", "masked_pred_prob = 0.5\npad_id = 400")),
                       ["model.pad_id", "400", "model.vocab_size"]),
            "keys that moved": (change(("micro_batch = 6", "micro_batch = 6, pad_id = 0")), ["train.pad_id", "write model.pad_id"]),
            "nothing masked": (change(("masked_pred_prob = 0.5", "masked_pred_prob = 0.5\nmasking_ratio = 0.05")),
                               ["model.masking_ratio", "seq_len = 12"]),
            "mesh of too many": (change(("replica = 1,", "replica = 3000000000,")), ["mesh.replica", "out of range"]),
            "vocabulary of the tokenizer": (change(("vocab_size       = 400", "vocab_size = 100")),
                                            ["model.vocab_size", "100 is smaller than the 168 ids"]),
            "group of nothing": (change(("console_every_steps = 1", 'console_every_steps = 1, groups = ["encodr/.*"]')),
                                 ["log.groups", "encodr/.*", "matches no parameter"]),
            "rule never reached": (change(('match       = ".*"\n', 'match       = ".*"\n[[optimizer.rule]]\nmatch = "encoder/.*"\n')),
                                   ["optimizer.rule.2.match", "encoder/.*", "never reached"], '"encoder/.*"'),
            "sharding rule never reached": (change(('optimizer = "sharded" }', 'optimizer = "sharded", rule = [{ match = ".*" }, '
                                                    '{ match = "encoder/.*", parameters = "replicated" }] }')),
                                            ["sharding.rule.1.match", "never reached"]),
            "no gradient gets in": (change(("clip_norm     = 1.0", "clip_norm = 1.0\nmomentum = 1")), ["optimizer.momentum", "gradient"],
                                    "momentum = 1"),
        }
        self.assertFalse(set(cases) & set(more))
        cases |= more
        self.assertGreaterEqual(len(cases), 60)
        for name, (text, fragments, *part) in cases.items():
            with self.subTest(name):
                line = self.line_of(text, part[0]) if part else self.changed_line(text)
                self.refuse(text, f"deck.toml:{line}: ", *fragments)

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

    def test_options_that_would_do_nothing(self):
        self.expect(2, "--ranks", "--mode plan", args=[self.deck(), "--ranks", 7])
        self.expect(3, "nonsense", args=[self.deck(), "--validate", "--mesh-selector", "nonsense"])
        # A mesh that cannot be: before anything is opened, in a bench as in a run.
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        for mode in ("train", "bench"):
            self.expect(3, "mesh", args=[self.deck(), *mesh, "--mode", mode], ranks=3)
        self.assertFalse(os.path.exists(self.dir))

    def test_threads_that_openmp_bound(self):
        # OpenMP binds the thread that loads it to one core at once; that is not all that the rank
        # has.
        cores = len(os.sched_getaffinity(0))
        few = ["--set", "bench.steps=1", "--set", "bench.warmup_steps=1", "--set", "run.threads=0"]
        for variable, value in (("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores"), ("OMP_PROC_BIND", "false")):
            with mock.patch.dict(os.environ, {variable: value}):
                self.expect(0, f"1 ranks x {cores} threads", args=[self.deck(), "--mode", "bench", *few])
            self.assertNotIn("binding", self.output)

    def test_the_last_line_of_a_bench_is_json(self):
        few = ["--set", "bench.steps=2", "--set", "bench.warmup_steps=1"]
        self.expect(0, args=[self.deck(), "--mode", "bench", "--set", "run.name='a \"name\"'", *few])
        self.assertEqual(json.loads(self.output.splitlines()[-1])["workload"], 'a "name"')

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

    def test_overrides(self):
        self.refuse(self.good, "--set", "optimizer.lerning_rate", args=["--set", "optimizer.lerning_rate=1"])
        self.refuse(self.good, "train.global_batch", args=["--set", "train.global_batch=many"])
        self.expect(0, args=[self.deck(), "--validate", "--set", "train.total_epochs=3", "--set", "optimizer.learning_rate=5e-4"])

    def test_directories_are_taken_literally(self):
        for name in ("back\\slash\\new", 'quo"te', "tab\there", "apo'strophe"):
            with self.subTest(name):
                self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/{name}", "--set", "train.total_steps=1",
                                     "--set", "schedule.default.warmup_steps=0"])
                self.assertTrue(os.path.exists(f"{self.folder}/{name}/checkpoints/0000000001.h5"), os.listdir(self.folder))
        self.expect(2, "--dir", "empty", args=[self.deck(), "--dir", ""])

    def test_what_cannot_be_is_not_ignored(self):
        ruled = self.changed(("replica = 1, fsdp = -1 }", 'replica = 1, fsdp = -1, rule = [ { match = "a.*", replica = 2 } ] }'),
                             ('device = "cpu"', 'device = "cuda"'))
        for mode in ("train", "bench"):
            self.expect(3, "run.device", "CUDA cannot be used here", args=[self.deck(ruled), "--mode", mode])
        self.expect(0, "device   cuda", args=[self.deck(ruled), "--mode", "plan"])  # a plan needs no GPU
        self.expect(0, "device   cpu (auto: ", args=[self.deck(ruled.replace('"cuda"', '"auto"')), "--mode", "plan"])
        ruled = ruled.replace('"cuda"', '"cpu"')
        self.expect(3, "--mesh-selector", '"b1" matches no', '"a.*"', args=[self.deck(ruled), "--mode", "plan", "--mesh-selector", "b1"])
        self.expect(3, "--mesh-selector", "the deck has none", args=[self.deck(), "--mesh-selector", "b1"])
        self.expect(0, "2 ranks", args=[self.deck(ruled), "--mode", "plan", "--mesh-selector", "a1"])
        many = self.changed(("replica = 1, fsdp = -1", "replica = 1000000, fsdp = 1000000"))
        self.expect(3, "1,000,000,000,000 ranks", args=[self.deck(many), "--mode", "plan"])
        self.expect(2, "--ranks", args=[self.deck(), "--mode", "plan", "--ranks", "0"])
        self.assertLess(len(self.output), 200, self.output)
        self.expect(2, "9223372036854775807", "run.seed", args=[self.deck(), "--validate", "--set", "run.seed=9223372036854775808"])
        self.assertFalse(os.path.exists(self.dir))

    def test_ranks_are_started_alike(self):
        deck = self.deck(self.changed(("mesh   = { replica = 1, fsdp = -1 }",
                                       'mesh = { replica = 1, fsdp = -1, rule = [ { match = "a.*", replica = 2, fsdp = 1 } ] }')))
        one, others = ["-np", 1], ["-np", 1, harness.TRAINER, deck]
        cases = {
            "environment": ([*one, "-x", "TRAINER_MESH_SELECTOR=a", harness.TRAINER, deck],
                            ["--mesh-selector", '"a"', "TRAINER_MESH_SELECTOR"]),
            "selector": ([*one, harness.TRAINER, deck, "--mesh-selector", "ab"], ["--mesh-selector", '"ab"']),
            "mode": ([*one, harness.TRAINER, deck, "--mode", "bench"], ["--mode", '"bench"']),
            "dir": ([*one, harness.TRAINER, deck, "--dir", "other"], ["--dir", '"other"']),
            "set": ([*one, harness.TRAINER, deck, "--set", "run.seed=3"], ["--set", "run.seed=3"]),
        }
        for name, (context, fragments) in cases.items():
            with self.subTest(name):
                self.assertEqual(self.launch(context, others), 2, self.output)
                for fragment in ["not started alike", *fragments]:
                    self.assertIn(fragment, self.output)
        self.assertFalse(os.path.exists(self.dir))

    def test_ranks_read_the_same_data(self):
        # Copies that differ: by number of samples, and by one caption only.
        deck = self.deck(self.changed((f"{self.data}/train-", "train-")))
        for name, samples in (("c1", 40), ("c2", 40), ("c3", 30), ("c4", 40)):
            os.mkdir(f"{self.folder}/{name}")
            harness.make_shards(f"{self.folder}/{name}", samples)
        with tarfile.open(f"{self.folder}/c1/train-001.tar") as old, tarfile.open(f"{self.folder}/c4/train-001.tar", "w") as tar:
            for i, member in enumerate(old.getmembers()):
                data = old.extractfile(member).read()
                harness.add_member(tar, member.name, data + b"s" if i == 1 else data)
        start = lambda folder, *args: ["-wdir", f"{self.folder}/{folder}", "-np", 1, harness.TRAINER, deck, *args]
        for args in ([], ["--mode", "bench"]):
            self.assertEqual(self.launch(start("c1", *args), start("c3", *args)), 4, self.output)
            for fragment in ("[data.train]", "rank 0: 40 samples", "rank 1: 30 samples"):
                self.assertIn(fragment, self.output)
        self.assertEqual(self.launch(start("c1"), start("c4")), 4, self.output)
        self.assertIn("fingerprint", self.output)
        self.assertFalse(os.path.exists(self.dir))
        short = ["--set", "train.total_steps=3"]
        self.assertEqual(self.launch(start("c1", *short), start("c2", *short)), 0, self.output)

    def test_evaluators_are_asked_before_the_run(self):
        os.mkdir(f"{self.folder}/one")
        harness.make_shards(f"{self.folder}/one", 1, 1)
        text = self.changed(('data        = "train"', 'data = "one"\nshuffle_images = true'))
        text += f"""[data.one]
path = "{self.folder}/one/train-000.tar"
fields = {{ image = "png", text = "txt" }}
preprocess = "@train"
"""
        self.expect(4, "shuffle_images", "[data.one]", "1 example", args=[self.deck(text)])
        self.assertFalse(os.path.exists(self.dir))

    def test_an_untrained_model_costs_the_logarithm_of_the_vocabulary(self):
        # The head starts at zero, so all tokens are equally likely for any image. The last batch is
        # not full.
        tokens = set()
        for ranks, shuffled in ((1, "false"), (2, "true"), (3, "false")):
            folder = f"{self.folder}/on{ranks}"
            self.expect(0, "eval=val step=0 ", ranks=ranks,
                        args=[self.deck(), "--dir", folder, "--set", "eval.val.at_start=true",
                              "--set", f"eval.val.shuffle_images={shuffled}"])
            row = self.rows("eval", folder)[0]
            self.assertEqual(row["step"], 0)
            self.assertAlmostEqual(row["perplexity_per_token"], math.log(400), delta=1e-5)
            tokens.add(round(40 * row["perplexity"] / row["perplexity_per_token"], 3))
        self.assertEqual(len(tokens), 1)
        self.assertEqual(tokens.pop() % 1, 0)  # of 40 captions

    def test_no_result_without_targets(self):
        # Empty captions give labels of padding only, for which 0 nats would mean nothing.
        with tarfile.open(f"{self.folder}/blank.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(5):
                harness.add_member(tar, f"{i}.png", harness.png(i))
                harness.add_member(tar, f"{i}.txt", b"")
        preprocess = re.search("preprocess = '''.*?'''", self.good, re.S).group(0).replace("sticky", "none")
        text = self.changed(('data        = "train"', 'data = "blank"'))
        text += f"""[data.blank]
path = "{self.folder}/blank.tar"
fields = {{ image = "png", text = "txt" }}
{preprocess}
"""
        self.expect(0, args=[self.deck(text)])
        for row in self.rows("eval"):
            self.assertNotIn("perplexity_per_token", row)
        self.assertTrue(self.rows("eval"))

    def test_command_line(self):
        self.expect(2, "deck", args=[])
        self.expect(2, "no_such_deck.toml", args=["no_such_deck.toml"])
        self.expect(2, args=[self.deck(), "--mode", "trian"])
        self.expect(0, "global_batch", args=["--describe", "train"])
        self.expect(2, "train", args=["--describe", "trian"])
        self.expect(0, "adafactor", "adamw", args=["--list", "optimizer"])
        self.expect(0, "--mesh-selector", args=["--help"])

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

    def test_another_optimizer_for_the_published_deck(self):
        published = os.path.join(harness.SOURCE, "inputs/cappa_b16.toml")
        left = ["beta2_cap", "beta2_decay", "eps", "factor_min", "momentum", "momentum_type"]
        unset = [word for key in left for word in ("--unset", f"optimizer.{key}")]
        switch = [published, "--validate", "--set", "optimizer.kind=adamw"]
        self.expect(2, *[f"optimizer.{key}: " for key in left], 'optimizer.eps: written for kind = "adafactor"',
                    'optimizer.momentum_type: written for kind = "adafactor"', " ".join(unset), """--set 'optimizer={kind="adamw", ...}'""",
                    args=switch)
        self.expect(0, "valid", args=[*switch, *unset])
        self.expect(2, "optimizer.eps", args=[*switch, *unset[:4], *unset[6:]])
        self.assertNotIn("beta2_cap:", self.output)
        self.expect(0, "valid", args=[*switch, *unset[:4], *unset[6:], "--set", "optimizer.eps=1e-8"])
        self.expect(0, "valid", args=[published, "--validate", "--set", 'optimizer={kind="adamw", learning_rate=1e-3}'])
        # An edited deck: the message names the keys for AdamW and the keys that AdamW lacks.
        with open(published) as f:
            text = f.read().replace('kind          = "adafactor"', 'kind          = "adamw"')
        self.expect(2, 'optimizer.eps: is this meant for kind = "adamw"', "optimizer.momentum_type: is this meant",
                    "optimizer.factor_min: key factor_min belongs", args=[self.deck(text), "--validate"])
        # The resolved deck has no dropped key, and the digest changes.
        self.expect(0, "overrides=3", args=[self.deck(), "--unset", "optimizer.clip_norm", "--set", "train.total_steps=3",
                                            "--dir", self.dir])
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertRegex(f.read(), r"clip_norm +(= 0\.0)")
        self.expect(2, "--unset optimizer.clip_nrom", "did you mean optimizer.clip_norm?",
                    args=[self.deck(), "--validate", "--unset", "optimizer.clip_nrom"])

    def test_files_are_looked_at_when_asked_for(self):
        with open(self.folder + "/empty.npz", "wb"):
            pass
        text = self.changed((f"{self.data}/train-{{000..001}}.tar", f"{self.folder}/no/train-{{000..006}}.tar"),
                            (harness.TOKENIZER, self.folder + "/no.model"))
        text += f'[init]\nfrom = "{self.folder}/empty.npz"\n'
        text += f'[data.other]\nkind = "hdf5"\npath = "{self.folder}/other.h5"\nfields = {{ image = "images: bytes" }}\n'
        with open(self.folder + "/other.h5", "w") as f:
            f.write("no HDF5 file")
        path = self.deck(text)
        self.expect(0, "valid", args=[path, "--validate"])
        unchecked = [line for line in self.output.splitlines() if line.startswith("not looked at: ")]
        self.assertEqual([line.split()[3] for line in unchecked],
                         ["tokenizer.words.path", "data.other.path", "data.train.path", "init.from"], self.output)
        self.assertIn("--validate --files", self.output)
        self.expect(4, f"deck.toml:{self.line_of(text, 'no.model')}: tokenizer.words.path: tokenizer model",
                    f"deck.toml:{self.line_of(text, '/no/train-')}: data.train.path: cannot open '{self.folder}/no/train-000.tar'",
                    "in all 7 of 7 files", "other.h5' does not begin like an HDF5 file",
                    f"deck.toml:{self.line_of(text, 'empty.npz')}: init.from: ", args=[path, "--validate", "--files"])
        self.assertFalse(os.path.exists(self.dir))
        self.expect(0, "valid", args=[self.deck(), "--validate", "--files"])
        self.assertNotIn("not looked at", self.output)
        with open(self.data + "/train-001.tar", "wb") as f:
            f.write(b"not a tar" * 100)
        self.expect(4, "train-001.tar' does not begin like a tar", args=[self.deck(), "--validate", "--files"])
        self.expect(2, "--files", "--validate", args=[self.deck(), "--files"])

    def test_ranks_are_told_to_do_the_same(self):
        # Whatever two ranks were asked for: one error, exit 2, and no rank waits for another.
        deck = self.deck()
        train, bench = [deck], [deck, "--mode", "bench"]
        look = {"validate": [deck, "--validate"], "plan": [deck, "--mode", "plan"], "show": [deck, "--mode", "show"],
                "index": [deck, "--mode", "index"], "describe": ["--describe", "train"], "list": ["--list", "op"],
                "help": ["--help"], "version": ["--version"], "wrong": [deck, "--mode", "trian"], "unset": [deck, "--unset", "log"]}
        pairs = [(train, other) if i % 2 else (other, train) for i, other in enumerate(look.values())]
        pairs += [(look["plan"], bench), (look["validate"], look["plan"]), (look["help"], look["list"]), (look["wrong"], look["show"])]
        for one, other in pairs:
            with self.subTest(f"{one} {other}"):
                self.assertEqual(self.launch(["-np", 1, harness.TRAINER, *one], ["-np", 1, harness.TRAINER, *other]), 2, self.output)
                self.assertEqual(self.output.count("not started alike"), 1, self.output)
                self.assertEqual(self.output.count("error: "), 1, self.output)
        self.assertFalse(os.path.exists(self.dir))

    def test_ranks_that_run_scripts(self):
        # Ranks may look first and then train, and one rank may look alone: neither waits for ranks
        # that never start.
        look, train = f"{harness.TRAINER} {self.deck()} --validate", f"{harness.TRAINER} {self.deck()} --set train.total_steps=3"
        self.assertEqual(self.launch(["-np", 2, "sh", "-c", f"{look} && {train}"]), 0, self.output)
        self.assertIn("exit=0", self.output)
        self.assertEqual(self.launch(["-np", 2, "sh", "-c", f"if [ $OMPI_COMM_WORLD_RANK = 0 ]; then {look}; fi"]), 0, self.output)
        self.assertEqual(self.output.count(": valid"), 1, self.output)
        # A rank that trains gives up if the script of another rank only looks.
        with mock.patch.dict(os.environ, {"TRAINER_MPI_START_S": "2"}):
            code = self.launch(["-np", 1, harness.TRAINER, self.deck()], ["-np", 1, "sh", "-c", f"{look}; true"])
        self.assertIn(code, (1, 2), self.output)  # 1 if Open MPI notices first that the other rank never joined
        self.assertIn("error: MPI has not started within 2 s: some ranks never called it", self.output)

    def test_one_error_in_one_form(self):
        def errors(*args, ranks):
            self.run_trainer(*args, ranks=ranks)
            kept, skip = [], 0
            for line in self.output.splitlines():
                if line.startswith("-----"):
                    skip += 1  # mpirun's own text is between two rulers
                elif skip % 2 == 0 and line:
                    kept.append(line)
            return kept

        broken = self.deck(self.changed(("global_batch = 12", "global_batch = 0"), ("heads = 2", "heads = -2")), "broken.toml")
        good = self.deck()
        for args in ([broken], [broken, "--validate"], [good, "--mode", "trian"], ["no_such.toml"], [good, "--mesh-selector", "b1"]):
            with self.subTest(args):
                alone = errors(*args, ranks=0)
                self.assertEqual(sum(line.startswith("error: ") for line in alone), 1, alone)
                self.assertEqual(errors(*args, ranks=3), alone)
        # Data that no rank finds: named once. The rank is named if it found out before the others.
        self.expect(4, "error: ", "cannot open", args=[good, "--set", f"data.train.path={self.folder}/no.tar"], ranks=3)
        self.assertEqual(self.output.count("cannot open"), 1, self.output)
        # An error that one rank has alone names it.
        other = ["-np", 1, "-wdir", "/", harness.TRAINER, good, "--set", "data.train.path=data/train-{000..001}.tar"]
        self.assertEqual(self.launch(["-np", 1, *other[4:]], other), 4, self.output)
        self.assertIn("error: rank 1: ", self.output)

    def test_looking_with_several_ranks_is_done_once(self):
        for args, text in (([self.deck(), "--validate"], ": valid"), (["--list", "optimizer"], "adafactor"), (["--version"], "git="),
                           ([self.deck(), "--mode", "plan"], "plan     "), ([self.deck(), "--mode", "show"], "show     ")):
            with self.subTest(args):
                self.expect(0, text, args=args, ranks=2)
                self.assertEqual(self.output.count(text), 1, self.output)

    def test_what_the_program_says_of_itself(self):
        self.expect(0, "Examples:", "mpirun -np 4 trainer", "The deck", "What to do", "Explanations", "--unset", args=["--help"])
        self.assertLess(max(map(len, self.output.splitlines())), 140)
        self.expect(0, "git=", "gcc=", "hdf5=", "cuda=", "nccl=", "build=", "bf16=", args=["--version"])
        for kind in ("model", "optimizer", "schedule", "data", "tokenizer", "evaluator"):
            self.expect(0, args=["--list", kind])
            for line in self.output.splitlines():
                self.assertRegex(line, r"^\w+ +\w.*\w", kind)
        self.expect(0, "adamw (optimizer): ", "optimizer.b1", "optimizer.eps", args=["--describe", "adamw"])
        self.assertNotIn("beta2_cap", self.output)
        self.expect(0, "cosine (schedule): ", "schedule.NAME.kind", args=["--describe", "cosine"])
        self.expect(0, "resize(size", args=["--describe", "resize"])
        self.assertNotIn("come near", self.output)
        self.expect(0, "No key is called batch_size", "train.global_batch", "train.micro_batch", args=["--describe", "batch_size"])
        self.expect(2, "did you mean learning_rate?", args=["--describe", "lr"])
        self.expect(2, "unknown key", args=["--describe", "qqqq"])

    def test_omp_num_threads_is_not_ignored_in_silence(self):
        few = [self.deck(), "--set", "train.total_steps=1", "--set", "schedule.default.warmup_steps=0", "--set", "checkpoint.resume=never"]
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "abc"}):
            self.expect(0, "level=warning", 'OMP_NUM_THREADS="abc" is no number of threads', args=few, ranks=2)
            self.assertEqual(self.output.count("OMP_NUM_THREADS=\"abc\""), 1, self.output)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "7"}):
            self.expect(0, 'threads  OMP_NUM_THREADS="7" is not used', args=few)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
            self.expect(0, args=few)
            self.assertNotIn("OMP_NUM_THREADS", self.output)

    def test_ranks_see_the_same_deck(self):
        # Rank 1 gets another file: all ranks stop with 2.
        self.deck()
        self.deck(self.changed(("learning_rate = 1e-2", "learning_rate = 2e-2")), "other.toml")
        script = os.path.join(self.folder, "start.sh")
        with open(script, "w") as f:
            f.write(f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && cp other.toml mine1.toml || cp deck.toml mine0.toml\n'
                    f'exec {harness.TRAINER} mine$OMPI_COMM_WORLD_RANK.toml\n')
        done = subprocess.run(["mpirun", "-np", "2", "sh", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("different bytes", done.stdout)
        self.assertFalse(os.path.exists(self.dir))


harness.main()
