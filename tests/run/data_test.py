#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bad data and unsuitable rank counts give the documented exit code and the name of the fault,
and lose nothing."""
import os
import re
import tarfile

import harness


class Data(harness.RunTest):
    def test_missing_shard(self):
        os.remove(f"{self.data}/train-001.tar")
        self.expect(4, "train-001.tar", args=[self.deck()])
        self.assertFalse(os.path.exists(self.dir))

    def test_truncated_tar(self):
        path = f"{self.data}/train-001.tar"
        size = os.path.getsize(path)
        for cut in (100, 512, 700, size // 2 + 77, size - 11000):
            with self.subTest(cut=cut):
                with open(path, "r+b") as f:
                    f.truncate(min(cut, size))
                self.expect(4, "train-001.tar", args=[self.deck()], ranks=2)
                harness.make_shards(self.data)

    def test_broken_png(self):
        with tarfile.open(f"{self.data}/train-001.tar", "w") as tar:
            good = harness.png(1)
            for i in range(20):
                harness.add_member(tar, f"{i:06}.png", good[: len(good) // 2] if i == 7 else good)
                harness.add_member(tar, f"{i:06}.txt", b"words")
        self.expect(4, "train-001.tar", "000007", args=[self.deck()], ranks=2)
        # The run's earlier files are intact: it continues with repaired data.
        harness.make_shards(self.data)
        self.expect(0, "done     exit=0", args=[self.deck()], ranks=2)

    def test_not_an_image(self):
        with tarfile.open(f"{self.data}/train-000.tar", "w") as tar:
            harness.add_member(tar, "a.png", b"this is text")
            harness.add_member(tar, "a.txt", b"words")
        self.expect(4, "train-000.tar", args=[self.deck()])

    def test_missing_member(self):
        with tarfile.open(f"{self.data}/train-000.tar", "w") as tar:
            harness.add_member(tar, "a.png", harness.png(0))
        self.expect(4, "train-000.tar", "txt", args=[self.deck()])

    def test_missing_tokenizer(self):
        self.expect(4, "nowhere.model", args=[self.deck(), "--set", "tokenizer.words.path=/nowhere.model"])

    def test_labels_outside_the_vocabulary(self):
        # The ids of a tokenizer are known before the start; labels from files are not.
        self.expect(2, "vocab_size", "168 ids", args=[self.deck(), "--set", "model.vocab_size=5"])
        with tarfile.open(f"{self.data}/labels.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(12):
                harness.add_member(tar, f"{i:03}.png", harness.png(i))
                harness.add_member(tar, f"{i:03}.cls", b"400" if i == 7 else b"399")
        preprocess = re.search("preprocess = '''.*?'''", self.good, re.S).group(0)
        text = self.changed((preprocess, "preprocess = '''decode | resize(16) | value_range(-1, 1) | reshape([1], key=\"labels\") "
                                         "| pad_to_shape([12], key=\"labels\")'''"),
                            ('fields     = { image = "png", text = "txt" }', 'fields = { image = "png", labels = "cls" }'),
                            ("train-{000..001}.tar", "labels.tar"))
        self.expect(4, "labels.tar:007", "field 'labels' holds 400", "model.vocab_size", args=[self.deck(text)])
        replace = [self.deck(text), "--set", "loader.on_bad_sample=substitute", "--set", "loader.max_bad_sample_fraction=0.1"]
        self.expect(0, "labels.tar:007", "a fixed substitute is used", args=replace)
        for mode in ("bench", "show"):  # the modes open data alike
            self.expect(4, "labels.tar:007", "field 'labels' holds 400", args=[self.deck(text), "--mode", mode])
        self.expect(0, '"ms_per_step"', args=[*replace, "--mode", "bench", "--set", "bench.steps=2"])
        self.expect(0, "replaced: data.train: ", "labels.tar:007", "show     12 examples", args=[*replace, "--mode", "show"])

    def test_ranks_that_do_not_fit(self):
        self.expect(3, "global_batch", "5 ranks", args=[self.deck()], ranks=5)
        self.assertFalse(os.path.exists(self.dir))
        self.expect(3, "fsdp", args=[self.deck(), "--set", "mesh.fsdp=2"], ranks=3)
        self.expect(3, "replica", args=[self.deck(), "--set", "mesh.replica=2"], ranks=3)
        self.expect(3, "powers of two", args=[self.deck(), "--set", "determinism.level=mesh", "--set", "determinism.slices=4"], ranks=3)
        self.expect(3, "slices", args=[self.deck(), "--set", "determinism.level=mesh", "--set", "determinism.slices=2"], ranks=4)
        self.expect(3, "micro_batch", args=[self.deck(), "--set", "determinism.level=mesh", "--set", "determinism.slices=2",
                                           "--set", "train.micro_batch=3"], ranks=2)
        self.expect(3, "run.device", "CUDA cannot be used here", args=[self.deck(), "--set", "run.device=cuda"])
        self.assertFalse(os.path.exists(self.dir))

    def test_mesh_rule(self):
        text = self.changed(("fsdp = -1 }", 'fsdp = -1, rule = [ { match = "pair.*", replica = 2, fsdp = 1 } ] }'))
        self.expect(0, "replica 1 x fsdp 2", args=[self.deck(text)], ranks=2)
        self.expect(0, "replica 2 x fsdp 1", ranks=2,
                    args=[self.deck(text), "--dir", self.folder + "/b", "--mesh-selector", "pair-of-nodes"])

    def test_loss_not_finite(self):
        # A learning rate that makes the weights infinite ends the run on all ranks, without a
        # checkpoint of these weights.
        self.expect(6, "finite", "step", args=[self.deck(), "--set", "optimizer.learning_rate=1e38", "--set", "optimizer.clip_norm=0",
                                               "--set", "checkpoint.every_steps=1"], ranks=2)
        steps = [int(name[:10]) for name in self.checkpoints()]
        for step in steps:
            for name, value in self.tensors(step).items():
                if name.startswith("params/"):
                    self.assertTrue(harness.np.isfinite(harness.np.frombuffer(value, "<f4")).all(), (step, name))

    def test_plan_needs_no_data(self):
        os.remove(f"{self.data}/train-001.tar")
        self.expect(0, "memory", "checkpoint", "traffic", args=[self.deck(), "--mode", "plan", "--ranks", "4"])
        self.assertFalse(os.path.exists(self.dir))

    def test_bench(self):
        self.expect(0, '"ms_per_step"', args=[self.deck(), "--mode", "bench", "--set", "bench.steps=2"], ranks=2)
        last = self.output.strip().splitlines()[-1]
        self.assertEqual(set(harness.json.loads(last)) >= {"ms_per_step", "workload", "dtype", "batch", "peak_rss_mib"}, True)
        self.assertFalse(os.path.exists(self.dir))


harness.main()
