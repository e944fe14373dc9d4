#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""run.device = "cuda" on the emulated GPU: the same losses as on the CPU, checkpoints that cross between the two, bits that a
restart does not change, meshes of two ranks through host memory."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness
import place
import processes
from cuda_harness import CPU, EMULATED, ON_GPU, SETTINGS, CudaTest


class Cuda(CudaTest):
    def test_one_rank(self):
        cpu, gpu = self.train("cpu", "cpu"), self.train("gpu", "cuda")
        self.assertIn("device   cuda", self.output)
        self.assertIn("backend=mpi through host memory (one rank exchanges nothing)", self.output)
        self.compare(gpu, cpu, 2e-5)
        values = [self.rows("eval", f"{self.folder}/{name}")[-1]["perplexity"] for name in ("cpu", "gpu")]
        self.assertAlmostEqual(values[0], values[1], delta=2e-5 * values[0])
        # A restart of the GPU's run from its middle gives the same bits. A restart on the other
        # device gives the same numbers within rounding.
        for start, device in (("gpu", "cuda"), ("cpu", "cuda"), ("gpu", "cpu")):
            name = f"{device}_after_{start}"
            self.keep_only(start, 2, name)
            rows = self.train(name, device)
            self.assertIn("restore  step=2", self.output)
            self.compare(rows, (gpu if device == "cuda" else cpu)[2:], 2e-5)
        whole, again = (self.tensors(4, f"{self.folder}/{name}") for name in ("gpu", "cuda_after_gpu"))
        self.assertEqual(whole.keys(), again.keys())
        for name, value in whole.items():
            self.assertEqual(value, again[name], name)

    def test_memory_is_as_planned(self):
        settings = ("train.total_steps=1", "schedule.default.warmup_steps=0", "eval.val.at_end=false")
        self.train("gpu", "cuda", *settings)
        said = re.search(r"memory   per rank, MiB: (.*)", self.output)[1].split()
        sets = [arg for s in (*SETTINGS, *settings, "run.device=cuda") for arg in ("--set", s)]
        self.expect(0, args=[self.deck(), "--mode", "plan", "--ranks", "1", *sets])
        for name, mib in re.findall(r"^ +([a-z]\S*) +[0-9,]+ bytes +(\S+) MiB", self.output, re.M):
            self.assertEqual(said[said.index(name) + 1], mib, self.output)
        self.assertIn("bounds   per rank and step", self.output)
        *kinds, (name, total) = re.findall(r"^ +(\S.*?) +\d+ calls .* (\S+) ms$", self.output, re.M)
        self.assertEqual(name, "sum")
        self.assertIn("gemm", [kind for kind, _ in kinds])
        self.assertAlmostEqual(sum(float(ms) for _, ms in kinds), float(total), delta=0.002 * len(kinds))

    def test_two_ranks(self):
        cpu = self.train("cpu", "cpu")
        for name, settings in (("fsdp", ["mesh.fsdp=2"]),
                               ("replicas", ["mesh.fsdp=1", "mesh.replica=2", "sharding.optimizer=replicated",
                                             "sharding.parameters=replicated", "checkpoint.async=false"])):
            self.compare(self.train(name, "cuda", *settings, ranks=2), cpu, 2e-5)

    def test_nccl_where_every_rank_has_a_gpu(self):
        self.nccl_beside_mpi(2, 0, "mesh.fsdp=2")

    def test_nccl_of_rounded_weights(self):
        self.nccl_beside_mpi(4, 0, "mesh.fsdp=2", "mesh.replica=2", "precision.compute=bf16", "train.micro_batch=1")

    def test_nccl_of_four(self):
        self.nccl_beside_mpi(4, 2e-6, "mesh.fsdp=4", "train.micro_batch=1")

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_rank_that_hangs_ends_the_job(self):
        self.emulate(CUDA_ON_CPU_GPUS="2")
        # Evaluations and checkpoints wait in MPI, which has no limit, so the rank stops in a step.
        settings = (*ON_GPU, "mesh.fsdp=2", "mesh.gpu_timeout_s=5", "train.total_steps=100000", "checkpoint.every_steps=100000",
                    "eval.val.every_steps=100000")
        sets = [arg for s in (*SETTINGS, *settings) for arg in ("--set", s)]
        log = f"{self.folder}/log"
        with open(log, "w") as out:
            job = subprocess.Popen(["mpirun", "-np", "2", EMULATED, self.deck(), *sets], stdout=out, stderr=subprocess.STDOUT,
                                   cwd=self.folder)
        self.addCleanup(job.kill)
        text = ""
        while "step=3 " not in text:
            self.assertIsNone(job.poll(), text)
            time.sleep(0.1)
            with open(log) as f:
                text = f.read()
        ranks = processes.children(job.pid, "deck.toml")
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGSTOP)
        code = job.wait(timeout=harness.GUARD)
        with open(log) as f:
            text = f.read()
        self.assertEqual(code, 3, text)
        self.assertIn("not ended after 5 s (mesh.gpu_timeout_s)", text)

    def test_a_hanging_exchange_ends_the_job(self):
        self.emulate(CUDA_ON_CPU_GPUS="2", NCCL_ON_CPU="hang@20")
        harness.TRAINER = EMULATED
        sets = [arg for s in (*SETTINGS, *ON_GPU, "mesh.fsdp=2", "mesh.gpu_timeout_s=5") for arg in ("--set", s)]
        self.expect(3, "fsdp group of 2 as its rank", "(operation 20 of this rank", "not ended after 5 s", args=[self.deck(), *sets],
                    ranks=2)

    def test_search_of_algorithms(self):
        first = self.train("first", "cuda", ranks=2)
        self.assertNotIn("products ", self.output)
        # At first the library's first proposal is the fastest, so nothing changes. Then another one
        # is the fastest for every product.
        same = self.train("same", "cuda", "run.gemm_search=auto", ranks=2)
        self.assertRegex(self.output, r"products (\d+) shapes, \1 of them timed now: 0 take another")
        self.assertRegex(self.output, r"bias gradients go into 0 of [1-9]\d* kernels")
        self.assertEqual([r["loss"] for r in same], [r["loss"] for r in first])
        self.emulate(CUBLASLT_ON_CPU_FASTEST="2")
        other = self.train("other", "cuda", "run.gemm_search=on", ranks=2)
        self.assertRegex(self.output, r"products (\d+) shapes, \1 of them timed now: \1 take another")
        self.assertNotEqual([r["loss"] for r in other], [r["loss"] for r in first])
        self.compare(other, first, 2e-5)
        # A continued run keeps the choices although others are fastest now, and has the same bits.
        # Without the file its bits differ.
        os.environ["CUBLASLT_ON_CPU_FASTEST"] = "0"
        self.keep_only("other", 2, "resumed")
        shutil.copy(f"{self.folder}/other/gemm_search.txt", f"{self.folder}/resumed")
        resumed = self.train("resumed", "cuda", "run.gemm_search=on", ranks=2)
        self.assertIn(" 0 of them timed now", self.output)
        self.assertEqual([r["loss"] for r in resumed], [r["loss"] for r in other][2:])
        whole, again = (self.tensors(4, f"{self.folder}/{name}") for name in ("other", "resumed"))
        self.assertEqual(whole, again)
        # At level "mesh" other runs must have the same bits, so nothing is timed unasked.
        self.train("mesh", "cuda", "run.gemm_search=auto", "determinism.level=mesh", "determinism.slices=2", "train.total_steps=1",
                   "schedule.default.warmup_steps=0")
        self.assertNotIn("products ", self.output)
        # If the library's kernels with sums are faster, they form the bias gradients.
        self.emulate(CUBLASLT_ON_CPU_SUMS="fast")
        together = self.train("together", "cuda", "run.gemm_search=on", ranks=2)
        self.assertRegex(self.output, r"bias gradients go into ([1-9]\d*) of \1 kernels")
        self.compare(together, first, 2e-5)
        # The file of choices is for another GPU, or damaged.
        self.keep_only("other", 2, "moved")
        path = f"{self.folder}/moved/gemm_search.txt"
        with open(f"{self.folder}/other/gemm_search.txt") as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("CUDA on the CPU", "Another GPU"))
        self.train("moved", "cuda", "run.gemm_search=on", ranks=2)
        self.assertIn("is for Another GPU", self.output)
        with open(path) as f:
            self.assertTrue(f.read().startswith("CUDA on the CPU"))
        with open(path, "w") as f:
            f.write(text.replace("feed", "0000"))
        sets = [arg for s in (*SETTINGS[1:], "train.total_steps=6", "run.device=cuda", "run.gemm_search=on") for arg in ("--set", s)]
        self.expect(3, "is not for this GPU", args=[self.deck(), "--dir", f"{self.folder}/moved", *sets], ranks=2)
        harness.TRAINER = CPU
        self.expect(2, "run.gemm_search", "applies only to matrix products on GPUs",
                    args=[self.deck(), "--validate", "--set", "run.gemm_search=off"])

    def test_work_that_runs_late(self):
        """The GPU runs its work as late as CUDA may, and the host may wait nowhere within a
        step: the bits stay the same."""
        self.train("at_once", "cuda")
        self.assertRegex(self.output, r"data     .*image u8 \[16,16,3\]")
        self.emulate(CUDA_ON_CPU_LATE="1")
        self.train("late", "cuda", "profile.forbid_waits=true")
        # Images as floats give the same values, because no value lies outside of the clipped range.
        text = self.good.replace("value_range(-1, 1)", "value_range(-1, 1, clip_values=True)")
        self.deck(text)
        self.good = text
        self.train("floats", "cuda")
        self.assertRegex(self.output, r"data     .*image f32 \[16,16,3\]")
        expected = self.tensors(4, f"{self.folder}/at_once")
        for name in ("late", "floats"):
            for tensor, value in self.tensors(4, f"{self.folder}/{name}").items():
                self.assertEqual(value, expected[tensor], f"{name}: {tensor}")

    def test_not_finite_and_known_one_step_later(self):
        """The host learns of the step's result during the next step, and decides as on the CPU."""
        self.emulate(CUDA_ON_CPU_LATE="1")
        for policy, code, words in (("stop", 6, "step 4: loss=nan"), ("skip", 0, "guard    1 steps without an update"),
                                    ("rewind", 0, "went back to step 3; 12 examples are left out")):
            rows = {}
            for device in ("cpu", "cuda"):
                harness.TRAINER = EMULATED if device == "cuda" else CPU
                folder = f"{self.folder}/{policy}_{device}"
                where = [*ON_GPU, "profile.forbid_waits=true"] if device == "cuda" else ["run.device=cpu"]
                more = [arg for s in ("checkpoint.every_steps=3", *where) for arg in ("--set", s)]
                self.expect(code, words, args=[*self.poisoned(policy, *more), "--dir", folder], timeout=harness.GUARD)
                rows[device] = self.rows(folder=folder)
                if policy == "stop":
                    self.assertEqual(self.checkpoints(folder), ["0000000003.h5"])
                    with open(folder + "/report.txt") as f:
                        self.assertRegex(f.readline(), r" step=4 phase=train exit=6: step 4: loss=")
            self.assertEqual([r["step"] for r in rows["cuda"]], list(range(1, 4 if policy == "stop" else 9)))
            self.assertEqual([r["skipped"] for r in rows["cuda"]], [r["skipped"] for r in rows["cpu"]])
            for one, other in zip(rows["cuda"], rows["cpu"]):
                if not one["skipped"]:
                    self.assertAlmostEqual(one["loss"], other["loss"], delta=2e-5 * other["loss"])
                    self.assertEqual(one["schedule"], other["schedule"])
                self.assertEqual(one["examples_seen"], other["examples_seen"])

    def test_bf16(self):
        settings = ["precision.compute=bf16", "memory.recompute=gelu", "optimizer.kind=adamw"]
        self.compare(self.train("gpu", "cuda", *settings), self.train("cpu", "cpu", *settings), 2e-2)

    def test_tf32(self):
        exact = self.train("f32", "cuda")
        rounded = self.train("tf32", "cuda", "precision.compute=tf32")
        self.assertIn("compute  tf32: ", self.output)
        self.compare(rounded, exact, 3e-3)
        self.assertNotEqual([r["loss"] for r in rounded], [r["loss"] for r in exact])
        self.emulate(CUDA_ON_CPU_CAPABILITY="75")
        args = [self.deck(), "--dir", f"{self.folder}/old", "--set", "run.device=cuda", "--set"]
        self.expect(3, 'precision.compute = "tf32": rank 0 on ', "compute capability 7.5, which has no tf32 products",
                    args=[*args, "precision.compute=tf32"])
        self.emulate(CUDA_ON_CPU_CAPABILITY="80", NVIDIA_TF32_OVERRIDE="0")
        self.expect(3, "NVIDIA_TF32_OVERRIDE=0 in the environment forbids it", args=[*args, "precision.compute=tf32"])
        self.assertFalse(os.path.exists(f"{self.folder}/old/metrics.jsonl"))

    def test_cpus_have_neither_tf32_nor_fp16(self):
        for compute, instead in (("tf32", '"f32" (more exact)'), ("fp16", '"bf16" or "f32"')):
            sets = ["--set", f"precision.compute={compute}", "--set"]
            harness.TRAINER = CPU
            for device in ("cpu", "auto"):  # "auto" finds no GPU
                self.expect(2, "precision.compute", f'"{compute}" is computed on GPUs only; use {instead} on CPUs',
                            args=[self.deck(), *sets, f"run.device={device}"])
            self.assertFalse(os.path.exists(self.dir))

    def test_fp16(self):
        settings = ["optimizer.kind=adamw", "memory.recompute=gelu"]
        exact = self.train("f32", "cuda", *settings)
        fp16 = ["precision.compute=fp16", "precision.loss_scale.growth_interval=3", "precision.loss_scale.init=1024"]
        rows = self.train("fp16", "cuda", *settings, *fp16)
        self.assertIn("compute  fp16, f32 masters and sums, loss scale from 1024", self.output)
        self.compare(rows, exact, 3e-3)
        self.assertNotEqual([r["loss"] for r in rows], [r["loss"] for r in exact])
        self.assertEqual([r["loss_scale"] for r in rows], [1024, 1024, 1024, 2048])
        self.assertNotIn("loss_scale", exact[0])
        # A restart from the middle has the same scale, which changes at the same step. Another
        # scale gives other bits.
        self.keep_only("fp16", 2, "again")
        again = self.train("again", "cuda", *settings, *fp16, "precision.loss_scale.init=8")
        self.assertEqual([(r["loss"], r["loss_scale"]) for r in again], [(r["loss"], r["loss_scale"]) for r in rows[2:]])
        self.assertEqual(self.tensors(4, f"{self.folder}/again"), self.tensors(4, f"{self.folder}/fp16"))
        # A minimum that the user raised before the restart applies.
        self.keep_only("fp16", 2, "raised")
        raised = self.train("raised", "cuda", *settings, *fp16, "precision.loss_scale.init=4096", "precision.loss_scale.min=2048")
        self.assertEqual(raised[0]["loss_scale"], 2048)
        # Another precision drops the scale with a warning; a return to fp16 starts with the initial
        # scale.
        self.keep_only("fp16", 2, "cpu")
        self.compare(self.train("cpu", "cpu", *settings), exact[2:], 3e-3)
        self.assertIn('the checkpoint\'s loss scale, 1024, is left out: precision.compute = "f32" has none', self.output)

    def test_fp16_overflows(self):
        """Two ranks leave out the same updates until the scale fits; the run's order of examples does not change."""
        fp16 = ["precision.compute=fp16", "precision.loss_scale.init=67108864", "mesh.fsdp=2", "optimizer.kind=adamw",
                "guard.nonfinite=stop"]
        rows = self.train("two", "cuda", *fp16, "train.total_steps=8", "precision.loss_scale.backoff=0.015625", ranks=2)
        skipped = [r["skipped"] for r in rows]
        self.assertEqual(skipped[0], 1)
        self.assertEqual(skipped[-1], 0)
        self.assertNotIn("l2_updates", rows[0])
        self.assertEqual([r["skipped_updates"] for r in rows], [sum(skipped[:i + 1]) for i in range(8)])
        self.assertEqual([r["examples_seen"] for r in rows], [4 * (i + 1) for i in range(8)])
        self.assertEqual([r["loss_scale"] for r in rows[:2]], [2**26, 2**20])
        self.assertIn("step=1 overflow in fp16: no update; loss_scale=6.71089e+07 -> 1.04858e+06", self.output)
        self.assertIn(f"fp16     {sum(skipped):.0f} steps without an update because gradients overflowed; loss scale 1.04858e+06",
                      self.output)
        # A gradient that overflows at the smallest scale is an ordinary gradient that is not
        # finite, and ends the run.
        harness.TRAINER = EMULATED
        sets = [arg for s in (*SETTINGS, *fp16, *ON_GPU, "precision.loss_scale.init=1e15") for arg in ("--set", s)]
        self.expect(6, "step 2: loss=", "loss scale 5e+14, its minimum", "nothing was updated", ranks=2,
                    args=[self.deck(), "--dir", f"{self.folder}/least", *sets, "--set", "precision.loss_scale.min=5e14"])
        self.expect(6, "3 times in a row (guard.max_skips)", ranks=2,
                    args=[self.deck(), "--dir", f"{self.folder}/ever", *sets, "--set", "guard.max_skips=2"])

    def test_auto_takes_it(self):
        self.train("gpu", "auto", "train.total_steps=1", "schedule.default.warmup_steps=0", "eval.val.at_end=false")
        self.assertIn("device   cpu (auto: ", self.output)
        harness.TRAINER = EMULATED
        self.expect(0, "device   cuda (auto: ", "memory   per rank",
                    args=[self.deck(), "--mode", "plan", "--set", "run.device=auto"])


harness.main()
