# SPDX-License-Identifier: Apache-2.0
"""Runs the small deck on the CPU and, with TRAINER_ON_EMULATOR, on emulated GPUs, and compares the results."""
import os
import shutil

import harness
from harness import sets

CPU, EMULATED = harness.TRAINER, os.environ["TRAINER_ON_EMULATOR"]
SETTINGS = ["train.total_steps=4", "train.global_batch=4", "train.micro_batch=2", "schedule.default.warmup_steps=1",
            "checkpoint.every_steps=2", "eval.val.every_steps=4", "loader.threads=1"]
# Times on the emulator say nothing about products, so only tests of the search make it.
ON_GPU = ["run.device=cuda", "run.gemm_search=off"]


class CudaTest(harness.RunTest):
    def setUp(self):
        """Evaluators take few examples, because the emulator is slow: as many as fill whole
        rounds of ranks. A rank without examples would never query its emulated GPU and would
        wait in MPI, where that GPU makes no progress."""
        super().setUp()
        of_train = self.good[self.good.index("[data.train]"):self.good.index("[eval.val]")]
        self.good = self.changed(('data        = "train"', 'data        = "few"'))
        self.good += of_train.replace("[data.train]", "[data.few]\nlimit = 8")

    def train(self, name, device, *settings, ranks=0, args=()):
        """Runs the deck in a folder of this name. Returns its rows of training."""
        harness.TRAINER = EMULATED if device == "cuda" else CPU
        folder = f"{self.folder}/{name}"
        words = sets(*SETTINGS, *(ON_GPU if device == "cuda" else [f"run.device={device}"]), *settings)
        self.expect(0, args=[self.deck(), "--dir", folder, *words, *args], ranks=ranks)
        return self.rows(folder=folder)

    def compare(self, got, want, part):
        self.assertEqual([r["step"] for r in got], [r["step"] for r in want])
        for one, other in zip(got, want):
            # The gradients of key biases are rounding noise, from which Adafactor makes updates of
            # full size.
            for key, allowed in (("loss", part), ("l2_grads", part), ("l2_params", part), ("l2_updates", max(part, 2e-3))):
                delta = allowed * abs(other[key])
                self.assertAlmostEqual(one[key], other[key], delta=delta, msg=f"{key} at step {one['step']}")

    def same_bits(self, one, other, step=4):
        """Checks that the checkpoints of two runs have the same bits."""
        got, want = (self.tensors(step, f"{self.folder}/{name}") for name in (one, other))
        self.assertEqual(got.keys(), want.keys())
        for name, value in want.items():
            self.assertEqual(got[name], value, f"{one} and {other}: {name}")

    def keep_only(self, name, step, copy):
        """Copies the run as it was at this step."""
        folder = f"{self.folder}/{copy}"
        os.makedirs(f"{folder}/checkpoints")
        shutil.copy(f"{self.folder}/{name}/checkpoints/{step:010}.h5", f"{folder}/checkpoints")

    def emulate(self, **environment):
        for name, value in environment.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def nccl_beside_mpi(self, ranks, part, *settings):
        """Runs the deck by both exchanges and compares them. Groups of two, whose sums have one
        order, give the same bits (part = 0)."""
        mpi = self.train("mpi", "cuda", *settings, ranks=ranks)
        self.assertIn("share one GPU", self.output)
        self.emulate(CUDA_ON_CPU_GPUS=str(ranks))
        nccl = self.train("nccl", "cuda", *settings, ranks=ranks)
        self.assertIn("backend=nccl 2.28.9", self.output)
        self.compare(nccl, mpi, part)
        if part:
            return
        for key in ("loss", "l2_grads", "l2_params", "l2_updates"):
            self.assertEqual([r[key] for r in nccl], [r[key] for r in mpi], key)
        self.same_bits("mpi", "nccl")
