#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --mode eval: the values that training wrote, on other meshes and from other files, and what it refuses."""
import glob
import json
import os
import re
import shutil
import signal
import struct
import subprocess

import h5py
import numpy as np

import harness
from harness import sets

EMA = "\n[ema]\ndecay = 0.5\n"
SHUFFLED = '\n[eval.shuffled]\nkind = "perplexity"\ndata = "train"\nevery_steps = 4\nshuffle_images = true\n'


def listing(folder):
    """Returns size and time of change of every file below a folder."""
    out = {}
    for place, _, names in os.walk(folder):
        for name in names:
            facts = os.stat(os.path.join(place, name))
            out[os.path.join(place, name)] = (facts.st_size, facts.st_mtime_ns)
    return out


class EvalMode(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.good = self.changed(("every_steps = 6", "every_steps = 4"))
        self.path = self.deck(self.good + SHUFFLED)

    def train(self, *more, ranks=2, text=None):
        """Trains for 12 steps with a checkpoint and values at 4, 8 and 12."""
        if text is not None:
            self.path = self.deck(text)
        self.expect(0, args=[self.path, *more], ranks=ranks)
        return self.output

    def evaluate(self, *more, ranks=0, code=0):
        """Returns the rows of the last line of output."""
        self.expect(code, args=[self.path, "--mode", "eval", *more], ranks=ranks)
        return json.loads(self.output.splitlines()[-1])["evaluations"] if code == 0 else None

    def written(self, folder=None):
        """Returns the values of metrics.jsonl by evaluation and step."""
        return {(r["eval"], r["step"]): (r["perplexity"], r["perplexity_per_token"]) for r in self.rows("eval", folder)}

    def values(self, rows):
        got = {(r["eval"], r["step"]): (r["perplexity"], r["perplexity_per_token"]) for r in rows}
        self.assertEqual(len(got), len(rows))
        return got

    def lines(self):
        """Returns the lines of evaluations, without their seconds."""
        return sorted(line.rpartition(" s=")[0] for line in self.output.splitlines() if line.startswith("eval="))

    def checkpoint(self, step, folder=None):
        return f"{folder or self.dir}/checkpoints/{step:010}.h5"

    def damage(self, path):
        """Changes a byte in the middle of the largest parameter."""
        with h5py.File(path) as f:
            found = {}
            f["params"].visititems(lambda name, d: found.__setitem__(name, (d.nbytes, d.id.get_offset()))
                                   if isinstance(d, h5py.Dataset) else None)
        size, offset = max(found.values())
        with open(path, "r+b") as f:
            f.seek(offset + size // 2)
            byte = f.read(1)[0]
            f.seek(offset + size // 2)
            f.write(bytes([byte ^ 255]))

    def params(self, step):
        out = {}
        with h5py.File(self.checkpoint(step)) as f:
            f["params"].visititems(lambda name, d: out.__setitem__(f"params/{name}", d[()])
                                   if isinstance(d, h5py.Dataset) else None)
        return out

    def test_values_of_training_on_every_mesh(self):
        for compute, level in (("f32", "run"), ("bf16", "mesh")):
            with self.subTest(compute=compute):
                folder = f"{self.folder}/{compute}"
                how = ["--dir", folder, *sets(f"precision.compute={compute}", f"determinism.level={level}",
                                              "determinism.slices=4", "eval.val.weights=both")]
                self.train(*how, text=self.good + SHUFFLED + EMA)
                trained, want, before = self.lines(), self.written(folder), listing(folder)
                names = ("shuffled", "val", "val_ema")
                self.assertEqual(sorted(want), [(name, step) for name in names for step in (4, 8, 12)])
                self.assertEqual(len(set(want.values())), 9)
                for ranks, more in ((0, sets("mesh.replica=2")), (1, sets("evaluate.batch=1")), (2, []),
                                    (2, sets("sharding.parameters=replicated", "evaluate.batch=7")),
                                    (5, sets("mesh.replica=5", "mesh.fsdp=1"))):
                    got = self.evaluate(*how, *sets("evaluate.checkpoints=all"), *more, ranks=ranks)
                    self.assertEqual(self.values(got), want, (ranks, more))
                    self.assertEqual(self.lines(), trained)
                    self.assertEqual(listing(folder), before, "the run directory must not change")
                memory = [line for line in self.output.splitlines() if line.startswith("memory")][0]
                self.assertIn("weights", memory)
                for part in ("optimizer", "gradients", "ema", "average"):
                    self.assertNotIn(part, memory)
                # The newest one, of the directory or by its name, and evaluators by name.
                self.assertEqual(self.values(self.evaluate(*how)), {k: v for k, v in want.items() if k[1] == 12})
                one = self.evaluate("--dir", self.folder + "/none", *how[2:], ranks=2,
                                    *sets(f'evaluate.from=["{self.checkpoint(4, folder)}", "{folder}"]',
                                          'evaluate.evaluators=["val_ema"]'))
                self.assertEqual(self.values(one), {("val_ema", step): want["val_ema", step] for step in (4, 12)})
                self.assertEqual([row["from"] for row in one], [self.checkpoint(4, folder), self.checkpoint(12, folder)])
                self.assertFalse(os.path.exists(self.folder + "/none"))

    def test_values_in_another_type(self):
        # The values are those of a job that computes everything in that type, and the losses those of a run without it.
        # With a sharded optimizer alone the ranks hold f32 weights whole or in parts, according to the type of products.
        text = self.good + SHUFFLED + EMA
        for own, run, how in (("f32", "bf16", ["determinism.level=mesh", "determinism.slices=4"]),
                              ("f32", "bf16", ["sharding.parameters=replicated"]),
                              ("bf16", "f32", ["sharding.parameters=replicated"]),
                              ("bf16", "f32", [])):
            with self.subTest(own=own, run=run, how=how):
                words = [f"precision.compute={run}", "eval.val.weights=both", *how]
                folders = [f"{self.folder}/{own}{len(how)}{n}" for n in (0, 1)]
                self.train("--dir", folders[0], *sets(*words), text=text)
                usual = self.written(folders[0])
                self.train("--dir", folders[1], *sets(*words, f"eval.val.compute={own}"), text=text)
                self.assertIn(f"val every 4 in {own} (40)", self.output)
                said = re.search(r"memory   per rank, MiB: (.*)", self.output)[1].split()
                want = self.written(folders[1])
                self.assertEqual([row["loss"] for row in self.rows(folder=folders[0])],
                                 [row["loss"] for row in self.rows(folder=folders[1])])
                for at, value in want.items():
                    (self.assertEqual if at[0] == "shuffled" else self.assertNotEqual)(value, usual[at], at)
                dir1 = ["--dir", folders[1], *sets("evaluate.checkpoints=all")]
                for ranks in (0, 2):
                    got = self.evaluate(*dir1, *sets(*words, f"precision.compute={own}"), ranks=ranks)
                    self.assertEqual({k: v for k, v in self.values(got).items() if k[0] != "shuffled"},
                                     {k: v for k, v in want.items() if k[0] != "shuffled"})
                    got = self.evaluate(*dir1, *sets(*words, f"eval.val.compute={own}"), ranks=ranks)
                    self.assertEqual(self.values(got), want)
                # The plan counts what this type needs.
                self.expect(0, args=[self.path, "--mode", "plan", "--ranks", "2", *sets(*words, f"eval.val.compute={own}")])
                for name, mib in re.findall(r"^ +([a-z]\S*) +[0-9,]+ bytes +(\S+) MiB", self.output, re.M):
                    self.assertEqual(said[said.index(name) + 1], mib, self.output)

    def test_without_the_training_data(self):
        # Only the evaluator's data are read, and a length in epochs needs no training data.
        shutil.copytree(self.data, self.folder + "/copy")
        text = self.changed(('data        = "train"', 'data = "copy"'), ("total_steps = 12", "total_epochs = 3.6"))
        table = text[text.index("[data.train]"):text.index("[eval.val]")]
        text += "\n" + table.replace("[data.train]", "[data.copy]").replace(self.data, self.folder + "/copy")
        self.train(text=text)
        want = {k: v for k, v in self.written().items() if k[1] == 12}
        self.assertEqual(list(want), [("val", 12)])
        shutil.rmtree(self.data)
        self.assertEqual(self.values(self.evaluate(ranks=2)), want)

    def test_another_file_of_the_tokenizer(self):
        words = self.folder + "/words.model"
        shutil.copy(harness.TOKENIZER, words)
        self.train(ranks=0, text=self.good.replace(harness.TOKENIZER, words))
        with open(words, "ab") as f:
            f.write(b"\xc0\x3e\x01")    # a field that the library does not know: the ids are the same
        image = self.folder + "/a.png"
        with open(image, "wb") as f:
            f.write(harness.png(1))
        for args in ((self.path, "--mode", "eval"), (self.dir, "--mode", "caption", image), (self.path, "--set", "train.total_steps=13")):
            self.expect(2, "tokenizer.words: its file differs from the file of the training of", "0000000012.h5",
                        "--allow-change tokenizer.words", args=args)
            self.expect(0, args=[*args, "--allow-change", "tokenizer.words"])
        self.expect(0, args=[self.path, "--mode", "eval"])    # the last checkpoint knows the new file
        self.expect(2, "tokenizer.words", args=[self.path, "--mode", "eval", *sets(f"tokenizer.words.path={harness.TOKENIZER}")])
        self.expect(0, args=[self.path, "--mode", "eval", *sets(f"tokenizer.words.path={harness.TOKENIZER}",
                                                                f"evaluate.from=[\"{self.checkpoint(12)}\"]")])

    def test_files_of_initial_weights(self):
        self.train()
        want = {name: value for (name, step), value in self.written().items() if step == 12}
        params = self.params(12)
        np.savez(self.folder + "/all.npz", **params)
        header, at = {}, 0
        for name, value in params.items():
            header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
            at += value.nbytes
        text = json.dumps(header).encode()
        with open(self.folder + "/all.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(value.tobytes() for value in params.values()))
        for ranks in (0, 2):
            rows = self.evaluate(*sets(f'evaluate.from=["{self.folder}/all.npz", "{self.folder}/all.safetensors"]'), ranks=ranks)
            self.assertEqual([row["step"] for row in rows], [0] * 4)
            for row in rows:
                self.assertEqual((row["perplexity"], row["perplexity_per_token"]), want[row["eval"]])
            self.assertNotIn("random values", self.output)
        # Random parameters are named, and depend on the seed.
        part = {name: value for name, value in params.items() if "encoder/" not in name}
        np.savez(self.folder + "/part.npz", **part)
        use = sets(f'evaluate.from=["{self.folder}/part.npz"]', 'evaluate.evaluators=["val"]')
        self.evaluate(*use, code=5)
        self.assertIn("init.dont_load", self.output)
        use += sets('init.dont_load=["encoder/.*"]')
        seeds = [self.evaluate(*use, *sets(f"run.seed={seed}"))[0]["perplexity"] for seed in (0, 1, 0)]
        self.assertIn(f"{len(params) - len(part)} parameters are not loaded and keep random values", self.output)
        self.assertEqual(seeds[0], seeds[2])
        self.assertEqual(len({*seeds, want["val"][0]}), 3)

    def test_damage(self):
        self.train()
        want = self.written()
        self.damage(self.checkpoint(12))
        got = self.evaluate(ranks=2)
        self.assertEqual(self.values(got), {k: v for k, v in want.items() if k[1] == 8})
        self.assertIn("checkpoint refused", self.output)
        self.evaluate(*sets(f'evaluate.from=["{self.checkpoint(12)}"]'), code=5)
        self.assertIn("is damaged", self.output)
        # All of them were asked for: the first ones are evaluated before the error.
        out = self.folder + "/values.jsonl"
        every = sets("evaluate.checkpoints=all", f"evaluate.out={out}")
        self.evaluate(*every, code=5)
        self.assertEqual(len(self.lines()), 4)
        # The same command goes on there. A noted row that the file lacks, or has in part, is added once.
        with open(out) as f:
            before = f.readlines()
        self.assertEqual(len(before), 4)
        with open(out, "w") as f:
            f.write("".join(before[:3]) + before[3][:30])
        self.damage(self.checkpoint(12))  # the same bits again, so it is sound
        rows = self.evaluate(*every, ranks=2)
        self.assertEqual(self.output.count(" is taken over from the call before"), 4)
        with open(out) as f:
            lines = f.readlines()
        self.assertEqual((lines[:4], [json.loads(line) for line in lines]), (before, rows))
        self.assertEqual(self.values(rows), want)
        self.damage(self.checkpoint(12))
        for step in (4, 8):
            self.damage(self.checkpoint(step))
        self.evaluate(ranks=2, code=5)
        self.assertIn("none is valid", self.output)

    def test_refused(self):
        self.train(*sets("train.total_steps=4"))
        with open(self.folder + "/text.h5", "w") as f:
            f.write("no checkpoint")
        os.mkdir(self.folder + "/empty")
        np.savez(self.folder + "/all.npz", **self.params(4))
        from_ = 'evaluate.from=["{}"]'.format
        for code, words, text in (
                (5, [from_(self.folder + "/nothing.h5")], "evaluate.from: "),
                (5, [from_(self.folder + "/nothing.npz")], "there is no such file"),
                (5, [from_(self.folder + "/text.h5")], "text.h5"),
                (5, [from_(self.folder + "/empty")], "holds no checkpoint"),
                (5, ["run.dir=" + self.folder + "/other"], "run.dir: "),
                (5, ["model.decoder.depth=2"], "belongs to another model"),
                (5, [from_(self.folder + "/all.npz"), "model.decoder.depth=2"], "all.npz"),
                (2, ['evaluate.evaluators=["vall"]'], "the deck has shuffled, val"),
                (2, ["evaluate.evaluator=val"], "did you mean"),
                (2, ["evaluate.checkpoints=first"], "Accepted"),
                (2, ["eval.val.weights=ema"], "[ema]"),
                (5, ["eval.val.weights=both", "ema.decay=0.5"], "holds no average of the weights"),
                (2, ["eval.val.weights=ema", "ema.decay=0.5", from_(self.folder + "/all.npz")],
                 '"val_ema" runs on the average'),
                (5, [f"evaluate.out={self.folder}/text.h5/rows"], "text.h5"),
        ):
            for ranks in (0, 2):
                with self.subTest(words=words, ranks=ranks):
                    self.evaluate(*sets(*words), ranks=ranks, code=code)
                    self.assertIn(text, self.output)
                    self.assertEqual(self.lines(), [])
        self.evaluate("--unset", "eval", ranks=2, code=2)
        self.assertIn("the deck has no evaluator", self.output)
        self.assertIn("[eval.NAME]", self.output)

    def test_rows_in_a_file(self):
        self.train()
        out = self.folder + "/new/values.jsonl"
        for _ in range(2):
            rows = self.evaluate(*sets("evaluate.checkpoints=all", f"evaluate.out={out}"), ranks=2)
        with open(out) as f:
            self.assertEqual([json.loads(line) for line in f][-6:], rows)
        with open(out) as f:
            self.assertEqual(self.values(rows), self.written())
            self.assertEqual(len(f.readlines()), 12)
        self.assertEqual({row["captions"] for row in rows}, {40})

    def test_broken_samples(self):
        # A broken sample ends the mode, or its substitute is used as in training.
        for name in sorted(glob.glob(self.data + "/*.tar"))[:1]:
            with open(name, "r+b") as f:
                f.seek(512 + 20)  # in the first image
                f.write(b"\0" * 40)
        use = sets("loader.on_bad_sample=substitute", "loader.max_bad_sample_fraction=0.1")
        self.train(*use)
        before = listing(self.dir)
        got = self.evaluate(*use, *sets("evaluate.checkpoints=all"), ranks=2)
        self.assertEqual(self.values(got), self.written())
        self.assertIn("a fixed substitute is used", self.output)
        self.assertEqual(listing(self.dir), before)
        self.evaluate(code=4)
        self.evaluate(*use, *sets("loader.max_bad_sample_fraction=0.01"), code=4)
        self.assertIn("max_bad_sample_fraction", self.output)

    def test_signal(self):
        self.train()
        many = json.dumps([self.checkpoint(12)] * 500)
        with open(self.folder + "/log", "w+") as log:
            job = subprocess.Popen([harness.TRAINER, self.path, "--mode", "eval", *sets("evaluate.from=" + many)],
                                   stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
            self.addCleanup(job.kill)

            def text():
                with open(self.folder + "/log") as f:
                    return f.read()

            self.wait("the first value", lambda: "eval=val step=12" in text())
            job.send_signal(signal.SIGUSR1)
            self.assertEqual(job.wait(timeout=harness.GUARD), 75, text())
        self.assertRegex(text(), r"stopped .*signal USR1 at rank 0")
        self.assertIn("done     exit=75", text())
        # A time that is over at the start: another attempt would gain nothing.
        self.evaluate(*harness.wall_time(1), *sets("evaluate.from=" + many, "limits.margin_s=0"), code=8)


harness.main()
