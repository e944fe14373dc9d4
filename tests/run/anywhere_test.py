#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Short runs at determinism.level "anywhere": each instruction set that this CPU has, and each number of ranks, must end with the digest
that tests/recorded/runs.txt holds. So must the program of another processor or compiler, if $OTHER_TRAINER is its command
(tools/test_arch). TRAINER_RECORD=1 writes the file anew."""
import hashlib
import os
import shlex
import shutil
import subprocess
import unittest

import ssl_harness

import harness

RECORDED = os.path.join(harness.SOURCE, "tests/recorded/runs.txt")
STEPS = 4
OTHER = shlex.split(os.environ.get("OTHER_TRAINER", ""))
CLASSIFIER = ('kind = "classifier"\nimage_size = 16\nnum_classes = 5\ntrunk = { kind = "resnet", depth = 18, width = 4, '
              "group_examples = 2 }\n", 'resize(16) | value_range(-1, 1) | keep("image", "label")')
CONVNEXT = ('kind = "classifier"\nimage_size = 32\nnum_classes = 5\ntrunk = { kind = "convnext", depths = [1, 1, 1, 1], '
            "widths = [8, 8, 16, 16] }\n", 'resize(32) | value_range(-1, 1) | keep("image", "label")')


def instruction_sets():
    """Returns the values of run.cpu that this CPU can run."""
    with open("/proc/cpuinfo") as f:
        flags = f.read()
    here = os.uname().machine == "x86_64"
    return ["generic"] + ["avx2"] * here + ["avx512"] * (here and all(f"avx512{x}" in flags for x in ("f", "bw", "vl", "dq")))


class Anywhere(ssl_harness.SelfSupervised, harness.RunTest):
    def setUp(self):
        super().setUp()
        self.make_images()
        with open(RECORDED) as f:
            self.recorded = dict(line.split() for line in f)

    def digest(self, program, cpu, ranks, *more):
        """Trains the good deck; returns a digest of all losses and tensors."""
        folder = f"{self.folder}/{cpu}{ranks}"
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(["mpirun", "-np", str(ranks), *program, self.deck(), "--dir", folder, *more,
                               *sets("determinism.level=anywhere", "determinism.slices=4", f"run.cpu={cpu}",
                                     f"train.total_steps={STEPS}")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              stdin=subprocess.DEVNULL, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("determinism=anywhere", done.stdout)
        made = hashlib.sha256()
        for row in self.rows(folder=folder):
            made.update(repr(row["loss"]).encode())
        for name, value in sorted(self.tensors(STEPS, folder).items()):
            made.update(name.encode() + value)
        return made.hexdigest()[:16]

    def check(self, name, *more):
        """Holds a deck to its record on all instruction sets, on 1 and 2 ranks."""
        here = [harness.TRAINER]
        jobs = [(here, cpu, 1) for cpu in instruction_sets()] + [(here, "auto", 2)] + [(OTHER, "auto", 1)] * bool(OTHER)
        found = {str(job): self.digest(*job, *more) for job in jobs}
        self.assertEqual(len(set(found.values())), 1, f"{name}: {found}")
        made = found[str(jobs[0])]
        if os.environ.get("TRAINER_RECORD"):
            self.recorded[name] = made
            with open(RECORDED, "w") as f:
                f.writelines(f"{key} {self.recorded[key]}\n" for key in sorted(self.recorded))
        self.assertEqual(self.recorded.get(name), made, f"{name}: the digest of tests/recorded/runs.txt")

    def test_captioners(self):
        batch = sets("train.global_batch=8", "train.micro_batch=2", "eval.val.every_steps=2", "checkpoint.every_steps=4")
        self.check("cappa_adafactor", *batch)
        self.check("cappa_adafactor_bf16", *batch, *sets("precision.compute=bf16"))
        self.good = self.changed(('kind          = "adafactor"', 'kind          = "adamw"'))
        self.check("cappa_adamw", *batch)

    def test_classifiers(self):
        for name, (model, ops) in {"resnet": CLASSIFIER, "convnext": CONVNEXT}.items():
            self.good = ssl_harness.DECK.format(dir=self.dir, data=self.data, model=model, ops=ops)
            self.check(name)

    def test_self_supervised(self):
        for name in ssl_harness.KINDS:
            with self.subTest(name):
                self.use(name)
                self.check(name)

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
