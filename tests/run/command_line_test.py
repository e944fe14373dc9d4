#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Options and environment: help, overrides, options that cannot have an effect, checked files, threads."""
import json
import os
from unittest import mock

import h5py
import numpy

import harness
from deck_harness import DeckTest


class CommandLine(DeckTest):
    def test_command_line(self):
        self.expect(2, "deck", args=[])
        self.expect(2, "no_such_deck.toml", args=["no_such_deck.toml"])
        self.expect(2, args=[self.deck(), "--mode", "trian"])
        self.expect(0, "global_batch", args=["--describe", "train"])
        self.expect(2, "train", args=["--describe", "trian"])
        self.expect(0, "adafactor", "adamw", args=["--list", "optimizer"])
        self.expect(0, "--mesh-selector", args=["--help"])

    def test_what_the_program_says_of_itself(self):
        self.expect(0, "Examples:", "mpirun -np 4 trainer", "The deck", "What to do", "Explanations", "--unset", args=["--help"])
        self.assertLess(max(map(len, self.output.splitlines())), 140)
        self.expect(0, "git=", "hdf5=", "cuda=", "nccl=", "onednn=", "build=", "bf16=", args=["--version"])
        self.assertRegex(self.output, r" (gcc|clang)=\d+\.\d+\.\d+ ")
        listed = {"model": "npid", "trunk": "resnet", "head": "siamese_concat_view", "loss": "sigmoid", "measure": "loss_off_diagonal",
                  "optimizer": "rmsprop", "schedule": "phases", "phase": "cosine", "data": "synthetic", "tokenizer": "bytes",
                  "evaluator": "knn", "mode": "plan"}
        for kind, one in listed.items():
            self.expect(0, f"\n{one} ", args=["--list", kind])
            for line in self.output.splitlines():
                self.assertRegex(line, r"^\w+ +\S.*\S", kind)
        self.expect(2, "lost", "trunk,head,loss", args=["--list", "lost"])
        self.expect(0, "resnet (trunk): ", "model.trunk.depth", args=["--describe", "resnet"])
        self.expect(0, "adamw (optimizer): ", "optimizer.b1", "optimizer.eps", args=["--describe", "adamw"])
        self.assertNotIn("beta2_cap", self.output)
        self.expect(0, "cosine (schedule): ", "schedule.NAME.kind", args=["--describe", "cosine"])
        self.expect(0, "resize(size", args=["--describe", "resize"])
        self.assertNotIn("Similar keys", self.output)
        self.expect(0, "No key is called batch_size", "train.global_batch", "train.micro_batch", args=["--describe", "batch_size"])
        self.expect(2, "did you mean learning_rate?", args=["--describe", "lr"])
        self.expect(2, "unknown key", args=["--describe", "qqqq"])

    def test_overrides(self):
        self.refuse(self.good, "--set", "optimizer.lerning_rate", args=["--set", "optimizer.lerning_rate=1"])
        self.refuse(self.good, "train.global_batch", args=["--set", "train.global_batch=many"])
        self.expect(0, args=[self.deck(), "--validate", "--set", "train.total_epochs=3", "--set", "optimizer.learning_rate=5e-4"])

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

    def test_directories_are_taken_literally(self):
        for name in ("back\\slash\\new", 'quo"te', "tab\there", "apo'strophe"):
            with self.subTest(name):
                self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/{name}", "--set", "train.total_steps=1",
                                     "--set", "schedule.default.warmup_steps=0"])
                self.assertTrue(os.path.exists(f"{self.folder}/{name}/checkpoints/0000000001.h5"), os.listdir(self.folder))
        self.expect(2, "--dir", "empty", args=[self.deck(), "--dir", ""])

    def test_directories_that_cannot_be(self):
        with open(self.folder + "/file", "w"):
            pass
        long = f"{self.folder}/{'x' * 300}"
        for name, *why in (("~/runs/a", "begins with ~", "write "), ("s3://bucket/a", "is an address"),
                           ("$HOME/a", "begins with a variable"),
                           (f"{self.folder}/a\nb", "holds a line break"), (long, "File name too long", "choose another --dir"),
                           ("/x" * 2000, "at most 3584"), ("/dev/null", "choose another --dir"),
                           (f"{self.folder}/file/a", "choose another --dir")):
            with self.subTest(name):
                self.expect(2, *why, args=[self.deck(), "--dir", name])
        self.expect(2, "run.dir", "begins with ~", args=[self.deck(), "--validate", "--set", "run.dir=~/a"])
        self.expect(2, "deck", "is an address", args=["s3://bucket/deck.toml", "--validate"])
        self.assertFalse(os.path.exists("~"))

    def test_options_that_would_do_nothing(self):
        self.expect(2, "--ranks", "--mode plan", args=[self.deck(), "--ranks", 7])
        self.expect(3, "nonsense", args=[self.deck(), "--validate", "--mesh-selector", "nonsense"])
        # A mesh that cannot be: before anything is opened, in a bench as in a run.
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        for mode in ("train", "bench"):
            self.expect(3, "mesh", args=[self.deck(), *mesh, "--mode", mode], ranks=3)
        self.assertFalse(os.path.exists(self.dir))

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

    def test_files_are_looked_at_when_asked_for(self):
        with open(self.folder + "/empty.npz", "wb"):
            pass
        text = self.changed((f"{self.data}/train-{{000..001}}.tar", f"{self.folder}/no/train-{{000..006}}.tar"),
                            (harness.TOKENIZER, self.folder + "/no.model"))
        text += f'[init]\nfrom = "{self.folder}/empty.npz"\n'
        text += f'[data.other]\nkind = "hdf5"\npath = "{self.folder}/other.h5"\nfields = {{ image = "images: bytes" }}\n'
        with open(self.folder + "/other.h5", "w") as f:
            f.write("no HDF5 file")
        with h5py.File(self.folder + "/packed.h5", "w") as f:
            f.create_dataset("images", data=numpy.zeros((4, 8, 8, 3), "u1"), compression="lzf")
        # Another filter, which no library here has: the name follows its number by 8 bytes.
        with open(self.folder + "/packed.h5", "rb+") as f:
            name = f.read().index(b"lzf\0")
            f.seek(name - 8)
            f.write((32004).to_bytes(2, "little"))
            f.seek(name)
            f.write(b"lz4\0")
        text += f'[data.packed]\nkind = "hdf5"\npath = "{self.folder}/packed.h5"\nfields = {{ image = "images" }}\n'
        path = self.deck(text)
        self.expect(0, "valid", args=[path, "--validate"])
        unchecked = [line for line in self.output.splitlines() if line.startswith("not checked: ")]
        self.assertEqual([line.split()[2] for line in unchecked],
                         ["tokenizer.words.path", "data.other.path", "data.packed.path", "data.train.path", "init.from"], self.output)
        self.assertIn("--validate --files", self.output)
        self.expect(4, f"deck.toml:{self.line_of(text, 'no.model')}: tokenizer.words.path: tokenizer model",
                    f"deck.toml:{self.line_of(text, '/no/train-')}: data.train.path: cannot open '{self.folder}/no/train-000.tar'",
                    "in all 7 of 7 files", "other.h5' does not begin like an HDF5 file",
                    "packed.h5: dataset /images: it is compressed with lz4", "HDF5_PLUGIN_PATH",
                    f"deck.toml:{self.line_of(text, 'empty.npz')}: init.from: ", args=[path, "--validate", "--files"])
        self.assertFalse(os.path.exists(self.dir))
        # Weights alone do for a new run, but a branch continues a full state.
        weights = os.path.join(harness.SOURCE, "tests/data/weights_of_python.safetensors")
        look = [self.deck(), "--validate", "--files", "--set"]
        self.expect(0, "valid", args=[*look, f"init.from={weights}"])
        self.expect(5, "--set checkpoint.branch_from=", "does not begin as a checkpoint", args=[*look, f"checkpoint.branch_from={weights}"])
        self.expect(0, "valid", args=[self.deck(), "--validate", "--files"])
        self.assertNotIn("not checked", self.output)
        with open(self.data + "/train-001.tar", "wb") as f:
            f.write(b"not a tar" * 100)
        self.expect(4, "train-001.tar' does not begin like a tar", args=[self.deck(), "--validate", "--files"])
        self.expect(2, "--files", "--validate", args=[self.deck(), "--files"])

    def test_the_last_line_of_a_bench_is_json(self):
        few = ["--set", "bench.steps=900", "--set", "bench.warmup_steps=1", "--set", "bench.max_s=1e-9"]
        self.expect(0, args=[self.deck(), "--mode", "bench", "--set", "run.name='a \"name\"'", *few])
        summary = json.loads(self.output.splitlines()[-1])
        self.assertEqual((summary["workload"], summary["steps"]), ('a "name"', 2))  # no fewer, whatever max_s says

    def test_threads_that_openmp_bound(self):
        # OpenMP binds the thread that loads it to one core at once; that is not all that the rank
        # has.
        cores = len(os.sched_getaffinity(0))
        few = ["--set", "bench.steps=1", "--set", "bench.warmup_steps=1", "--set", "run.threads=0"]
        for variable, value in (("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores"), ("OMP_PROC_BIND", "false")):
            with mock.patch.dict(os.environ, {variable: value}):
                self.expect(0, f"1 ranks x {cores} threads", args=[self.deck(), "--mode", "bench", *few])
            self.assertNotIn("binding", self.output)

    def test_omp_num_threads_is_not_ignored_in_silence(self):
        few = [self.deck(), "--set", "train.total_steps=1", "--set", "schedule.default.warmup_steps=0", "--set", "checkpoint.resume=never"]
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "abc"}):
            self.expect(0, "level=warning", 'OMP_NUM_THREADS="abc" is no number of threads', args=few, ranks=2)
            self.assertEqual(self.output.count("OMP_NUM_THREADS=\"abc\""), 1, self.output)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "7"}):
            self.expect(0, 'threads  OMP_NUM_THREADS="7" is not used', args=few)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
            self.expect(0, args=few)
            # A start may say that this variable has changed since the start before.
            said = [line for line in self.output.splitlines() if "OMP_NUM_THREADS" in line]
            self.assertEqual([line for line in said if not line.startswith("changed")], [])


harness.main()
