#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Short runs at determinism.level "anywhere": each instruction set that this CPU has, and each number of ranks, must have in every step
the digests that tests/recorded/runs.txt holds."""
import io
import os
import re
import shutil
import subprocess
import tarfile
import unittest

import h5py
import numpy as np
import ssl_harness
from PIL import Image

import harness
from recorded_bits import Record, digest, instruction_sets, jobs

STEPS = 4
CLASSIFIER = ('kind = "classifier"\nimage_size = 16\nnum_classes = 5\ntrunk = { kind = "resnet", depth = 18, width = 4, '
              "group_examples = 2 }\n", 'resize(16) | value_range(-1, 1) | keep("image", "label")')
CONVNEXT = ('kind = "classifier"\nimage_size = 32\nnum_classes = 5\ntrunk = { kind = "convnext", depths = [1, 1, 1, 1], '
            "widths = [8, 8, 16, 16] }\n", 'resize(32) | value_range(-1, 1) | keep("image", "label")')
RESNET = 'kind = "classifier"\nimage_size = 16\nnum_classes = 5\ntrunk = { kind = "resnet", depth = 18, width = 4, OTHERS }\n'
# Optimizers, ops of data and parts of models that the other decks leave out: the tables of [model], what follows `decode`, and the
# optimizer. The ViT has 9 patches, so that their mean is no division by a power of two.
OTHERS = {
    "vit_lion_muon": (
        'kind = "classifier"\nimage_size = 24\nnum_classes = 5\nmixup = { p = 0.3, group = 2 }\ntrunk = { kind = "vit", patch = 8, '
        'depth = 2, width = 24, mlp = 40, heads = 2, pool = "gap", posemb = "rope", swiglu = true, layer_scale = 0.1 }\n',
        'resize(27) | random_resized_crop(24) | color_jitter(0.4, 0.4, 0.4, 0.2) | gaussian_blur(1) | value_range(-1, 1) '
        '| keep("image", "label")',
        'kind = "lion"\nlearning_rate = 0.003\nweight_decay = 0.01\n[[optimizer.rule]]\nmatch = ".*block_[0-9]+/.*/kernel"\n'
        'kind = "muon"\n[[optimizer.rule]]\nmatch = ".*"\n'),
    "convnext_drop_path": (
        'kind = "classifier"\nimage_size = 16\nnum_classes = 5\ntrunk = { kind = "convnext", depths = [1, 2], widths = [8, 12], '
        'drop_path = 0.2 }\n', ssl_harness.ONE, 'kind = "adamw"\nlearning_rate = 0.003\nweight_decay = 0.05\n'),
    "resnet_group_rmsprop": (
        RESNET.replace("OTHERS", 'norm = "group", norm_groups = 2'), ssl_harness.ONE,
        'kind = "rmsprop"\nlearning_rate = 0.003\nmomentum = 0.9\ncentered = true\nclip_norm = 0.5\n'),
    "resnet_lars": (
        RESNET.replace("OTHERS", "group_examples = 2"), ssl_harness.ONE,
        'kind = "sgd"\nlearning_rate = 0.2\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.01\ndecay_form = "gradient"\n'
        'trust = { rule = "lars", coefficient = 0.01 }\n'),
}


class Anywhere(ssl_harness.SelfSupervised, harness.RunTest):
    def setUp(self):
        super().setUp()
        self.make_images()

    def digests(self, program, cpu, ranks, *more, steps=STEPS):
        """Trains the good deck. Returns digests of each step's measures and norms, and of all tensors of the end."""
        folder = f"{self.folder}/{cpu}{ranks}"
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(["mpirun", "-np", str(ranks), *program, self.deck(), "--dir", folder, *more,
                               *sets("determinism.level=anywhere", "determinism.slices=4", f"run.cpu={cpu}",
                                     f"train.total_steps={steps}", "checkpoint.every_steps=1")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              stdin=subprocess.DEVNULL, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("determinism=anywhere", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^built    build=.* onednn=.* png=1.* jpeg=.* sentencepiece=")
        rows = self.rows(folder=folder)
        out = {str(row["step"]): digest(*(repr(row.get(key)) for key in ("loss", "l2_grads", "l2_updates", "l2_params")))[:8]
               for row in rows}
        self.assertEqual(list(out), [str(step + 1) for step in range(steps)])
        self.assertGreater(len(set(out.values())), steps // 2, "the model does not learn")
        tensors = self.tensors(steps, folder)
        out["end"] = digest(*(part for name in sorted(tensors) for part in (name, tensors[name])))[:16]
        return out

    def check(self, name, *more, steps=STEPS):
        """Holds a deck to its record on all instruction sets, on 1 and 2 ranks."""
        Record("runs.txt").check(self, name, {str(job): self.digests(*job, *more, steps=steps) for job in jobs()})

    def test_captioners(self):
        batch = sets("train.global_batch=8", "train.micro_batch=2", "eval.val.every_steps=2")
        self.check("cappa_adafactor", *batch)
        self.check("cappa_adafactor_bf16", *batch, *sets("precision.compute=bf16"))
        self.good = self.changed(('kind          = "adafactor"', 'kind          = "adamw"'))
        self.check("cappa_adamw", *batch)

    def test_raw_pixels(self):
        """No library decodes or resizes these images, whose numbers are small integers."""
        with h5py.File(f"{self.folder}/pixels.h5", "w") as f:
            f["images"] = (np.arange(40 * 16 * 16 * 3) * 7919 % 1009 / np.float32(512) - 1).astype(np.float32).reshape(40, 16, 16, 3)
            f["labels"] = (3 + np.arange(40 * 12) * 31 % 397).astype(np.int32).reshape(40, 12)
        self.check("raw_pixels", *sets("train.global_batch=8", "train.micro_batch=2", "train.data=pixels",
                                       f'data.pixels={{kind="hdf5", path="{self.folder}/pixels.h5", '
                                       'fields={image="images", labels="labels"}, preprocess=\'keep("image", "labels")\'}'))

    def test_the_log_ends_with_a_digest(self):
        def digest_of(folder, *more, ranks=1):
            self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/{folder}", *more, *sets(
                "determinism.level=mesh", "determinism.slices=4", "train.global_batch=8", "train.micro_batch=2", "train.total_steps=4",
                "checkpoint.every_steps=2", "checkpoint.keep_last=3")], ranks=ranks)
            lines = re.findall(r"^digest   losses=([0-9a-f]{16}) weights=([0-9a-f]{16})(.*)$", self.output, re.M)
            self.assertEqual(len(lines), 1, self.output)
            return lines[0]
        whole = digest_of("whole")
        self.assertEqual(digest_of("ranks", ranks=2), whole)
        other = digest_of("seed", "--set", "run.seed=5")
        self.assertTrue(other[0] != whole[0] and other[1] != whole[1], other)
        # A run that continues ends with the digest of all its steps.
        os.remove(f"{self.folder}/whole/checkpoints/0000000004.h5")
        self.assertEqual(digest_of("whole", ranks=2), whole)
        self.assertIn("start    step=2 ", self.output)

    def test_classifiers(self):
        for name, (model, ops) in {"resnet": CLASSIFIER, "convnext": CONVNEXT}.items():
            self.good = ssl_harness.DECK.format(dir=self.dir, data=self.data, model=model, ops=ops)
            self.check(name)

    def test_other_optimizers_and_parts(self):
        """The images have no flat parts, so that a rounding of a resize or of a colour reaches a byte."""
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(40):
                pixels, png = (np.arange(40 * 40 * 3) * (7919 + 2 * i) % 1009 % 256).astype(np.uint8).reshape(40, 40, 3), io.BytesIO()
                Image.fromarray(pixels).save(png, "PNG")
                harness.add_member(tar, f"{i:03}.png", png.getvalue())
                harness.add_member(tar, f"{i:03}.cls", str(i % 5).encode())
        for name, (model, ops, optimizer) in OTHERS.items():
            with self.subTest(name):
                self.good = ssl_harness.DECK.format(dir=self.dir, data=self.data, model=model, ops=ops)
                self.good = self.changed(('kind          = "sgd"\nlearning_rate = 0.05\nmomentum      = 0.9\n', optimizer))
                self.check(name)

    def test_self_supervised(self):
        for name in ssl_harness.KINDS:
            with self.subTest(name):
                self.use(name)
                self.check(name, steps=12 if name == "deepcluster_v2" else STEPS)  # its clusters begin with the second epoch

    @unittest.skipUnless("avx512" in instruction_sets(), "this CPU has no AVX-512 to leave out")
    def test_the_library_keeps_the_limit_at_other_levels(self):
        def products(cpu):
            self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/{cpu}", *sets(f"run.cpu={cpu}", "train.total_steps=1")],
                        env={**os.environ, "ONEDNN_VERBOSE": "1"})
            return self.output
        self.assertIn("avx512", products("avx512"))
        self.assertNotIn("avx512", products("avx2"))

    def test_gpus_are_refused(self):
        for setting, why in ("determinism.level=anywhere", "GPUs compute others"), ("run.cpu=avx2", "applies only to"):
            self.expect(2, setting.partition("=")[0], why, args=[self.deck(), "--validate", *sets("run.device=cuda", setting)])

    def test_what_a_cpu_lacks_is_refused(self):
        self.expect(2, "run.cpu = \"generic\"", 'determinism.level = "anywhere"', args=[self.deck(), "--set", "run.cpu=generic"])


sets = harness.sets

if __name__ == "__main__":
    harness.main()
