#!/usr/bin/python3
"""Broken decks and command lines: exit 2 in under a second, every problem with its place and the way out, nothing created."""
import os
import re
import subprocess
import time

import harness


class Decks(harness.RunTest):
    def refuse(self, text, *fragments, args=()):
        path = self.deck(text)
        begin = time.monotonic()
        self.expect(2, *fragments, args=[path, *args])
        self.assertLess(time.monotonic() - begin, 5 if os.environ.get("TRAINER_SLOW_MACHINE") else 2)
        self.assertFalse(os.path.exists(self.dir), "a refused deck must create nothing")

    def line_of(self, text, part):
        return text[: text.index(part)].count("\n") + 1

    def test_good(self):
        self.expect(0, "valid", args=[self.deck(), "--validate"])
        self.assertFalse(os.path.exists(self.dir))

    def test_broken(self):
        change = self.changed
        fields, tars = 'fields     = { image = "png", text = "txt" }', 'kind       = "webdataset"'
        cases = {
            "syntax": (change(("total_steps = 12", "total_steps = = 12")), ["deck.toml:3"]),
            "unknown key": (change(("clip_norm     = 1.0", "clip_nrom = 1.0")), ["clip_nrom", "clip_norm"]),
            "unknown table": (change(("[checkpoint]", "[chekpoint]")), ["chekpoint", "checkpoint"]),
            "key of another table": (change(("learning_rate = 1e-2", "learning_rate = 1e-2\nglobal_batch = 3")), ["global_batch", "train"]),
            "wrong type": (change(("global_batch = 12", 'global_batch = "12"')), ["global_batch", "integer"]),
            "float for integer": (change(("global_batch = 12", "global_batch = 12.0")), ["global_batch", "12"]),
            "too small": (change(("global_batch = 12", "global_batch = 0")), ["global_batch"]),
            "negative": (change(("micro_batch = 6", "micro_batch = -6")), ["micro_batch"]),
            "missing": (change((", global_batch = 12", "")), ["global_batch", "missing"]),
            "missing dir": (change((f'dir = "{self.dir}", ', "")), ["run.dir"]),
            "two durations": (change(("total_steps = 12", "total_steps = 12, total_epochs = 3")), ["total_steps", "total_epochs"]),
            "no duration": (change(("total_steps = 12, ", "")), ["total_steps", "total_epochs"]),
            "percent": (change(("warmup_steps = 2", "warmup_percent = 10")), ["warmup_percent", "warmup_fraction"]),
            "fraction of itself": (change(("total_steps = 12", "total_fraction = 0.5")), ["total"]),
            "fraction above one": (change(("warmup_steps = 2", "warmup_fraction = 10")), ["warmup_fraction"]),
            "unknown kind": (change(('kind          = "adafactor"', 'kind = "adafacter"')), ["adafacter", "adafactor", "adamw"]),
            "unknown choice": (change(('parameters = "sharded"', 'parameters = "shraded"')), ["shraded", "sharded", "replicated"]),
            "key of another kind": (change(("clip_norm     = 1.0", "clip_norm = 1.0\nb1 = 0.9")), ["b1", "adamw"]),
            "sharding conflict": (change(('optimizer = "sharded" }', 'optimizer = "replicated" }')), ["optimizer", "sharded parameters"]),
            "bad regex": (change(('match       = ".*/kernel"', 'match = "(.*"')), ["match", "regular expression"]),
            "rule matches nothing": (change(('match       = ".*/kernel"', 'match = ".*/kernle"')), ["kernle", "no parameter"]),
            "uncovered parameters": (change(('match       = ".*"', 'match = ".*/bias"')), ["encoder/pos_embedding"]),
            "heads": (change(("heads = 2", "heads = 3")), ["heads", "32"]),
            "patch": (change(("image_size       = 16", "image_size = 20"), ("resize(16)", "resize(20)")), ["image_size", "patch"]),
            "image size": (change(("resize(16)", "resize(24)")), ["[24,24,3]", "[16,16,3]", "image_size"]),
            "text length": (change(("max_len=12", "max_len=10")), ["labels", "[10]", "[12]"]),
            "unknown op": (change(("value_range(", "value_rnage(")), ["value_rnage", "value_range"]),
            "op argument": (change(("resize(16)", "resize(sise=16)")), ["sise", "size"]),
            "op order": (change(("decode | resize(16)", "resize(16) | decode")), ["resize", "decode"]),
            "missing feature": (change(('keep("image", "labels")', 'keep("image")')), ["labels"]),
            "pixels that are not scaled": (change((" | value_range(-1, 1)", "")),
                                           ["image u8 [16,16,3]", "f32", "value_range(-1, 1)"]),
            "texts that are not chosen": (change((fields, 'captions = "c.json"'), (tars, 'kind = "folder"'),
                                                 ('inkey="text"', 'inkey="captions"')),
                                          ["captions", "texts", "choice"]),
            "rows without a type": (change(('text = "txt" }', 'text = "captions" }'), (tars, 'kind = "hdf5"')),
                                    ["data.train.fields", "DATASET: TYPE", "bytes, text, texts"]),
            "captions of another kind": (change((fields, 'captions = "c.csv"'), (tars, 'kind = "folder"')),
                                         ["data.train.captions", ".tsv", ".json"]),
            "masks of another length": (change((' | keep("image", "labels")', ' | randu("label_masks")')),
                                        ["label_masks f32 []", "f32 [12]"]),
            "resize method": (change(("resize(16)", 'resize(16, "bilinaer")')), ["bilinaer", "nearest is 'bilinear'"]),
            "crop too large": (change(("resize(16)", "resize(12) | central_crop(16)")), ["central_crop", "[16,16,3]", "[12,12,3]"]),
            "unknown data": (change(('data = "train", total', 'data = "trian", total')), ["trian", "train"]),
            "unknown tokenizer": (change(('tokenize("words"', 'tokenize("wrods"')), ["wrods", "words"]),
            "vocabulary": (change(("vocab_size       = 400", "vocab_size = 1")), ["vocab_size"]),
            "slices": (change(("[checkpoint]", '[determinism]\nlevel = "mesh"\nslices = 8\n[checkpoint]')), ["slices", "12"]),
            "mesh twice inferred": (change(("replica = 1,", "replica = -1,")), ["fsdp", "inferred"]),
            "reference loop": (re.sub("preprocess = '''.*?'''", 'preprocess = "@train"', self.good, flags=re.S), ["@train"]),
        }
        self.assertGreaterEqual(len(cases), 30)
        for name, (text, fragments) in cases.items():
            with self.subTest(name):
                self.refuse(text, *fragments)

    def test_all_problems_at_once_with_lines(self):
        text = self.changed(("global_batch = 12", "global_batch = 0"), ("heads = 2", "heads = -2"),
                            ("warmup_steps = 2", "warmup_stops = 2"))
        self.refuse(text, f"deck.toml:{self.line_of(text, 'global_batch')}", f"deck.toml:{self.line_of(text, 'heads')}",
                    f"deck.toml:{self.line_of(text, 'warmup_stops')}")

    def test_overrides(self):
        self.refuse(self.good, "--set", "optimizer.lerning_rate", args=["--set", "optimizer.lerning_rate=1"])
        self.refuse(self.good, "train.global_batch", args=["--set", "train.global_batch=many"])
        self.expect(0, args=[self.deck(), "--validate", "--set", "train.total_epochs=3", "--set", "optimizer.learning_rate=5e-4"])

    def test_command_line(self):
        self.expect(2, "deck", args=[])
        self.expect(2, "no_such_deck.toml", args=["no_such_deck.toml"])
        self.expect(2, args=[self.deck(), "--mode", "trian"])
        self.expect(0, "global_batch", args=["--describe", "train"])
        self.expect(2, "train", args=["--describe", "trian"])
        self.expect(0, "adafactor", "adamw", args=["--list", "optimizer"])
        self.expect(0, "--mesh-selector", args=["--help"])

    def test_ranks_see_the_same_deck(self):
        # Rank 1 gets another file: all ranks stop with 2.
        self.deck()
        self.deck(self.changed(("learning_rate = 1e-2", "learning_rate = 2e-2")), "other.toml")
        script = os.path.join(self.folder, "start.sh")
        with open(script, "w") as f:
            f.write(f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && cp other.toml mine1.toml || cp deck.toml mine0.toml\n'
                    f'exec {harness.TRAINER} mine$OMPI_COMM_WORLD_RANK.toml\n')
        done = subprocess.run(["mpirun", "-np", "2", "sh", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("different bytes", done.stdout)
        self.assertFalse(os.path.exists(self.dir))


harness.main()
