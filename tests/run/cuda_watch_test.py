#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Searches steps of small models of every kind for races between threads of a kernel, and for work of two streams that no event
orders. Threads and blocks run in random orders. Defects that are planted in such steps are found.

WATCH_SEEDS=N runs all with N further orders."""
import os

import classifier_test
import harness
from cuda_harness import EMULATED, CudaTest
from harness import sets
from ssl_harness import KINDS, SelfSupervised

FURTHER = int(os.environ.get("WATCH_SEEDS", "0"))
STEPS = ("train.total_steps=2", "schedule.default.warmup_steps=1", "checkpoint.every_steps=2")
EVALUATORS = "".join(f'\n[eval.{name}]\nkind = {kind}\ndata = "few"\nevery_steps = 2\n' for name, kind in (
    ("greedy", '"captioning"\nattention = 2'), ("beam", '"captioning"\nmethod = "beam"\nbeams = 3'),
    ("retrieval", '"retrieval"\nsubtract_prior = true')))


class CudaWatch(SelfSupervised, CudaTest):
    def setUp(self):
        super().setUp()
        self.emulate(CUDA_ON_CPU_WATCH="1", CUDA_ON_CPU_ORDER="random")
        harness.TRAINER = EMULATED
        self.runs = 0

    def watch(self, *settings, ranks=0, good=True, words=()):
        """Runs the good deck for two steps, each time in another folder and another order."""
        for seed in range(1, 2 + FURTHER):
            self.runs += 1
            self.dir = f"{self.folder}/{self.runs}"
            self.emulate(CUDA_ON_CPU_SEED=str(100 * seed + self.runs))
            given = sets("run.device=cuda", "run.gemm_search=off", f"run.dir={self.dir}", *STEPS, *settings)
            with self.subTest(settings=settings):
                code = self.run_trainer(self.deck(), *given, ranks=ranks)
                self.assertEqual(code == 0, good, self.output)
                for fragment in words:
                    self.assertIn(fragment, self.output)

    def captioner(self, *settings, **more):
        self.watch("train.global_batch=4", "train.micro_batch=2", "eval.val.every_steps=2", "loader.threads=1", *settings, **more)

    def test_captioners(self):
        self.captioner("precision.compute=tf32", "optimizer.kind=adamw")
        self.captioner("model.encoder.dropout=0.1", "model.decoder.dropout=0.1", "memory.recompute=gelu")
        self.captioner("determinism.level=mesh", "determinism.slices=2", "optimizer.kind=lion")
        self.captioner("precision.compute=fp16", "run.cuda_graph=on", "train.global_batch=8", words=["passes of this attempt were one"])

    def test_captions_and_scores(self):
        self.good += EVALUATORS
        for compute in ("bf16", "f32"):
            self.captioner(f"precision.compute={compute}", "memory.recompute=block", "eval.val.shuffle_images=true")
            self.assertEqual({row["eval"] for row in self.rows("eval")}, {"val", "greedy", "beam", "retrieval"})

    def test_ranks(self):
        self.emulate(CUDA_ON_CPU_GPUS="2")
        self.captioner("mesh.fsdp=2", "precision.compute=bf16", "train.micro_batch=1", ranks=2, words=["backend=nccl"])
        self.captioner("mesh.fsdp=1", "mesh.replica=2", "sharding.optimizer=replicated", "sharding.parameters=replicated",
                       "train.micro_batch=1", ranks=2, words=["backend=nccl"])

    def test_classifiers(self):
        self.make_images()
        self.good = classifier_test.DECK.format(dir=self.dir, data=self.data)
        self.good = self.changed(("train-000.tar", "images.tar"), ("num_classes = 4", "num_classes = 5"))
        rest = ("train.global_batch=4", "train.micro_batch=2", "eval.val.every_steps=2", "model.mixup.p=0.4")
        for pool in ("map", "tok"):
            self.watch(f"model.trunk.pool={pool}", "model.loss=sigmoid", *rest)
        self.good = self.changed(('"vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "gap"',
                                  '"resnet", depth = 50, width = 4, group_examples = 2'))
        for compute in ("bf16", "f32"):
            self.watch(f"precision.compute={compute}", *rest)

    def test_without_labels(self):
        self.make_images()
        for kind in KINDS:
            self.use(kind)
            self.watch("train.total_steps=3", f"precision.compute={'bf16' if kind in ('simclr', 'dino') else 'f32'}")

    def test_planted_defects_are_found(self):
        for variable, value, found in (("CUDA_ON_CPU_NO_BARRIER", "layer_norm.cu", "a race in "),
                                       ("CUDA_ON_CPU_NO_BARRIER", "block.cuh", "a race in "),
                                       ("CUDA_ON_CPU_NO_EVENT", "1", "streams without an order")):
            self.emulate(**{variable: value})
            self.captioner(good=False, words=[found])
            os.environ.pop(variable)


if __name__ == "__main__":
    harness.main()
