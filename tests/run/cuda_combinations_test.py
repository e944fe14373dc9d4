#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Combined features of GPUs: fp16 with exchanges, late work and rewinds; searched products on another mesh.

Useless settings are refused or logged, never ignored in silence.
"""
import os
import re
import shutil

import harness
from cuda_harness import CPU, EMULATED, ON_GPU, SETTINGS, CudaTest
from harness import sets

FP16 = ["precision.compute=fp16", "precision.loss_scale.init=1024", "precision.loss_scale.growth_interval=2", "optimizer.kind=adamw"]


class Combinations(CudaTest):
    def test_fp16_over_nccl(self):
        """Rounded weights and the decision about an update must be equal on all ranks."""
        self.nccl_beside_mpi(2, 0, "mesh.fsdp=2", "train.micro_batch=1", *FP16)
        self.assertEqual([r["loss_scale"] for r in self.rows(folder=f"{self.folder}/nccl")], [1024, 1024, 2048, 2048])

    def test_fp16_of_zero1_over_nccl(self):
        self.nccl_beside_mpi(2, 0, "mesh.fsdp=2", "sharding.parameters=replicated", "train.micro_batch=1", *FP16)

    def test_fp16_late(self):
        self.train("at_once", "cuda", *FP16)
        self.emulate(CUDA_ON_CPU_LATE="1")
        self.train("late", "cuda", "profile.forbid_waits=true", *FP16)
        self.same_bits("late", "at_once")

    def test_fp16_and_a_batch_that_is_not_finite(self):
        """A batch that is not finite is no overflow, so guard.nonfinite decides. A rewind
        continues with the checkpoint's scale."""
        self.emulate(CUDA_ON_CPU_LATE="1")
        harness.TRAINER = EMULATED
        for policy, words in (("skip", "guard    1 steps without an update"), ("rewind", "went back to step 3; 12 examples are left out")):
            folder = f"{self.folder}/{policy}"
            args = self.poisoned(policy, *sets("checkpoint.every_steps=3", *ON_GPU, "profile.forbid_waits=true", *FP16))
            self.expect(0, words, "fp16     0 steps without an update because gradients overflowed", args=[*args, "--dir", folder],
                        timeout=harness.GUARD)
            rows = self.rows(folder=folder)
            self.assertEqual([r["step"] for r in rows], list(range(1, 9)))
            self.assertEqual([r["skipped"] for r in rows], [0, 0, 0, policy == "skip", 0, 0, 0, 0])
            scales = [1024, 1024, 2048, 2048, 4096, 4096, 8192, 8192]
            if policy == "rewind":
                self.assertEqual([r["loss_scale"] for r in rows], scales)
            else:  # gradients of a loss that is not finite count as too large
                self.assertEqual([r["loss_scale"] for r in rows], [1024, 1024, 2048, 2048, 1024, 1024, 2048, 2048])

    def test_searched_products_on_another_mesh(self):
        """Shapes of both meshes keep their choice. New shapes are timed, and no choice is lost."""
        self.emulate(CUBLASLT_ON_CPU_FASTEST="2")
        self.train("one", "cuda", "run.gemm_search=on")
        with open(f"{self.folder}/one/gemm_search.txt") as f:
            of_one = f.read()
        os.environ["CUBLASLT_ON_CPU_FASTEST"] = "0"

        def go_on(name, *settings, ranks):
            self.keep_only("one", 2, name)
            shutil.copy(f"{self.folder}/one/gemm_search.txt", f"{self.folder}/{name}")
            return self.norms(self.train(name, "cuda", "run.gemm_search=on", *settings, ranks=ranks))

        # An equal number of examples per pass has the same products.
        same = go_on("same_shapes", "mesh.fsdp=2", ranks=2)
        self.assertIn(" 0 of them timed now", self.output)
        self.keep_only("one", 2, "first_proposals")
        first = self.norms(self.train("first_proposals", "cuda", "mesh.fsdp=2", ranks=2))
        self.assertNotEqual(same, first)
        # Half as many examples per pass change some shapes, but not those that do not depend on the
        # batch.
        go_on("other_shapes", "mesh.fsdp=2", "train.micro_batch=1", ranks=2)
        found = self.products()
        self.assertGreater(found["timed"], 0)
        self.assertGreater(found["kept"], 0)
        with open(f"{self.folder}/other_shapes/gemm_search.txt") as f:
            both = f.read()
        self.assertLess(set(of_one.splitlines()), set(both.splitlines()))
        # Back on one rank, the run finds its own choices and times nothing.
        shutil.copy(f"{self.folder}/other_shapes/gemm_search.txt", f"{self.folder}/one")
        again = go_on("back", ranks=0)
        self.assertEqual(again, self.norms(self.rows(folder=f"{self.folder}/one"))[2:])
        self.assertEqual(self.products()["timed"], 0)
        self.assertGreater(self.products()["kept"], 0)

    def norms(self, rows):
        """Returns what shows the order in which products add; a loss rounds such differences away."""
        return [r["l2_grads"] for r in rows]

    def products(self):
        """Returns two numbers of the log's line: shapes timed now, and choices in the file for other shapes."""
        timed, kept = re.search(r"^products \d+ shapes, (\d+) of them timed now.*?(?:; (\d+) choices of other jobs.*)?$", self.output,
                                re.M).groups()
        return {"timed": int(timed), "kept": int(kept or 0)}

    def refuse(self, key, words, *settings):
        harness.TRAINER = CPU
        self.expect(2, key, words, args=[self.deck(), "--validate", *sets(*settings)])

    def test_settings_of_no_use(self):
        for setting, key in (("run.gemm_search=off", "run.gemm_search"), ("mesh.gpu_exchange=nccl", "mesh.gpu_exchange"),
                             ("mesh.gpu_timeout_s=9", "mesh.gpu_timeout_s"), ("profile.forbid_waits=true", "profile.forbid_waits")):
            self.refuse(f"{setting}: applies only to", 'and run.device is "cpu": leave it out, or compute on GPUs', setting)
            # The result of "auto" depends on the machine, so the log reports the key, also for a
            # plan.
            for mode in (["--mode", "plan"], ["--mode", "bench", *sets("bench.steps=1", "bench.warmup_steps=1")], []):
                self.expect(0, f"unused   {key}: applies only to", "this job computes on CPUs",
                            args=[self.deck(), "--dir", f"{self.folder}/{key}", *mode, *sets(*SETTINGS, "run.device=auto", setting)])
            self.expect(0, args=[self.deck(), "--mode", "plan", *sets("run.device=cuda", setting)])
            self.assertNotIn("unused ", self.output)
        self.train("alone", "cuda", "mesh.gpu_timeout_s=9", "train.total_steps=1", "schedule.default.warmup_steps=0")
        self.assertIn("mesh.gpu_timeout_s is unused, because it applies only to NCCL", self.output)

    def test_settings_that_others_turn_off(self):
        self.expect(0, "unused   train.shuffle_window: train.shuffle is \"exact\"",
                    "unused   determinism.slices: determinism.level is \"run\"",
                    "unused   loader.max_bad_sample_fraction: loader.on_bad_sample is \"error\"",
                    "unused   early_stop.metric: early_stop.patience_evals is 0",
                    "unused   guard.max_skips: guard.nonfinite is \"stop\"",
                    "unused   data.train.limit_seed: neither limit nor skip",
                    args=[self.deck(), "--mode", "plan",
                          *sets("train.shuffle_window=9", "determinism.slices=4", "loader.max_bad_sample_fraction=0.5", "guard.max_skips=3",
                                "early_stop.metric=val/perplexity:min", "data.train.limit_seed=3")])
        # A user who follows our own advice to switch something off may keep such settings.
        for compute in ("f32", "bf16", "tf32"):
            self.expect(0, f"unused   precision.loss_scale: applies only to fp16, and precision.compute is \"{compute}\"",
                        args=[self.deck(), "--mode", "plan", *sets("run.device=cuda", f"precision.compute={compute}",
                                                                   "precision.loss_scale.init=8")])
        self.expect(0, 'unused   run.cuda_graph_limit: run.cuda_graph is "off"',
                    'unused   mesh.gpu_timeout_s: applies only to exchanges by NCCL, and mesh.gpu_exchange is "mpi"',
                    args=[self.deck(), "--mode", "plan", *sets("run.device=cuda", "run.cuda_graph_limit=3", "mesh.gpu_exchange=mpi",
                                                               "mesh.gpu_timeout_s=9")])
        # The resolved deck has every key at its default, and no default is reported as unused.
        self.train("run", "cpu", "train.total_steps=1", "schedule.default.warmup_steps=0")
        self.expect(0, args=[f"{self.folder}/run/deck.resolved.toml", "--mode", "plan"])
        self.assertNotIn("unused ", self.output)


harness.main()
