#!/usr/bin/python3
"""run.device = "cuda" on the emulated GPU: the same losses as on the CPU, checkpoints that cross between the two, bits that a
restart does not change, meshes of two ranks through host memory."""
import os
import re
import shutil
import signal
import subprocess
import time

import harness

CPU, EMULATED = harness.TRAINER, os.environ["TRAINER_ON_EMULATOR"]
SETTINGS = ["train.total_steps=4", "train.global_batch=4", "train.micro_batch=2", "schedule.default.warmup_steps=1",
            "checkpoint.every_steps=2", "eval.val.every_steps=4", "loader.threads=1"]


class Cuda(harness.RunTest):
    def train(self, name, device, *settings, ranks=0, args=()):
        """Runs the deck in a folder of this name; its rows of training."""
        harness.TRAINER = EMULATED if device == "cuda" else CPU
        folder = f"{self.folder}/{name}"
        sets = [arg for s in (*SETTINGS, f"run.device={device}", *settings) for arg in ("--set", s)]
        self.expect(0, args=[self.deck(), "--dir", folder, *sets, *args], ranks=ranks, timeout=240)
        return self.rows(folder=folder)

    def compare(self, got, want, part):
        self.assertEqual([r["step"] for r in got], [r["step"] for r in want])
        for one, other in zip(got, want):
            # Adafactor makes updates of full size from the rounding noise that the gradients of key biases are.
            for key, allowed in (("loss", part), ("l2_grads", part), ("l2_params", part), ("l2_updates", max(part, 2e-3))):
                delta = allowed * abs(other[key])
                self.assertAlmostEqual(one[key], other[key], delta=delta, msg=f"{key} at step {one['step']}")

    def keep_only(self, name, step, copy):
        """A copy of the run that has got to this step and no further."""
        folder = f"{self.folder}/{copy}"
        os.makedirs(f"{folder}/checkpoints")
        shutil.copy(f"{self.folder}/{name}/checkpoints/{step:010}.h5", f"{folder}/checkpoints")

    def test_one_rank(self):
        cpu, gpu = self.train("cpu", "cpu"), self.train("gpu", "cuda")
        self.assertIn("device   cuda", self.output)
        self.assertIn("backend=mpi through host memory (one rank exchanges nothing)", self.output)
        self.compare(gpu, cpu, 2e-5)
        values = [self.rows("eval", f"{self.folder}/{name}")[-1]["perplexity"] for name in ("cpu", "gpu")]
        self.assertAlmostEqual(values[0], values[1], delta=2e-5 * values[0])
        # Again from the middle: the same bits. From the CPU's middle, and the CPU from the GPU's: the same within rounding.
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

    def test_two_ranks(self):
        cpu = self.train("cpu", "cpu")
        for name, settings in (("fsdp", ["mesh.fsdp=2"]),
                               ("replicas", ["mesh.fsdp=1", "mesh.replica=2", "sharding.optimizer=replicated",
                                             "sharding.parameters=replicated", "checkpoint.async=false"])):
            self.compare(self.train(name, "cuda", *settings, ranks=2), cpu, 2e-5)

    def emulate(self, **environment):
        for name, value in environment.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name)

    def nccl_beside_mpi(self, ranks, part, *settings):
        """The same run by both ways; of groups of two, whose sums have one order, the same bits (part = 0)."""
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
        whole, again = (self.tensors(4, f"{self.folder}/{name}") for name in ("mpi", "nccl"))
        self.assertEqual(whole.keys(), again.keys())
        for name, value in whole.items():
            self.assertEqual(value, again[name], name)

    def test_nccl_where_every_rank_has_a_gpu(self):
        self.nccl_beside_mpi(2, 0, "mesh.fsdp=2")

    def test_nccl_of_rounded_weights(self):
        self.nccl_beside_mpi(4, 0, "mesh.fsdp=2", "mesh.replica=2", "precision.compute=bf16", "train.micro_batch=1")

    def test_nccl_of_four(self):
        self.nccl_beside_mpi(4, 2e-6, "mesh.fsdp=4", "train.micro_batch=1")

    def test_a_rank_that_hangs_ends_the_job(self):
        self.emulate(CUDA_ON_CPU_GPUS="2")
        settings = ("run.device=cuda", "mesh.fsdp=2", "mesh.gpu_timeout_s=3", "train.total_steps=100000")
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
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as f:
            ranks = [int(pid) for pid in f.read().split()]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGSTOP)
        code = job.wait(timeout=120)
        with open(log) as f:
            text = f.read()
        self.assertEqual(code, 3, text)
        self.assertIn("not ended after 3 s (mesh.gpu_timeout_s)", text)

    def test_a_hanging_exchange_ends_the_job(self):
        self.emulate(CUDA_ON_CPU_GPUS="2", NCCL_ON_CPU="hang@20")
        harness.TRAINER = EMULATED
        sets = [arg for s in (*SETTINGS, "run.device=cuda", "mesh.fsdp=2", "mesh.gpu_timeout_s=2") for arg in ("--set", s)]
        self.expect(3, "fsdp group of 2 as its rank", "(operation 20 of this rank", "not ended after 2 s", args=[self.deck(), *sets],
                    ranks=2)

    def test_search_of_algorithms(self):
        first = self.train("first", "cuda", ranks=2)
        self.assertNotIn("products ", self.output)
        # The first proposal is the fastest there: nothing changes. Then another one is, for every product.
        same = self.train("same", "cuda", "run.gemm_search=on", ranks=2)
        self.assertRegex(self.output, r"products (\d+) shapes, \1 of them timed now: 0 take another")
        self.assertEqual([r["loss"] for r in same], [r["loss"] for r in first])
        self.emulate(CUBLASLT_ON_CPU_FASTEST="2")
        other = self.train("other", "cuda", "run.gemm_search=on", ranks=2)
        self.assertRegex(self.output, r"products (\d+) shapes, \1 of them timed now: \1 take another")
        self.assertNotEqual([r["loss"] for r in other], [r["loss"] for r in first])
        self.compare(other, first, 2e-5)
        # What was chosen stays, whatever is the fastest when the run goes on: the same bits. Without the file others are.
        os.environ["CUBLASLT_ON_CPU_FASTEST"] = "0"
        self.keep_only("other", 2, "resumed")
        shutil.copy(f"{self.folder}/other/gemm_search.txt", f"{self.folder}/resumed")
        resumed = self.train("resumed", "cuda", "run.gemm_search=on", ranks=2)
        self.assertIn(" 0 of them timed now", self.output)
        self.assertEqual([r["loss"] for r in resumed], [r["loss"] for r in other][2:])
        whole, again = (self.tensors(4, f"{self.folder}/{name}") for name in ("other", "resumed"))
        self.assertEqual(whole, again)
        # Choices for another GPU, or damaged.
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
        self.expect(2, "run.gemm_search", "it is about products on GPUs", args=[self.deck(), "--validate", "--set", "run.gemm_search=on"])

    def test_bf16(self):
        settings = ["precision.compute=bf16", "memory.recompute=gelu", "optimizer.kind=adamw"]
        self.compare(self.train("gpu", "cuda", *settings), self.train("cpu", "cpu", *settings), 2e-2)

    def test_auto_takes_it(self):
        self.train("gpu", "auto", "train.total_steps=1", "schedule.default.warmup_steps=0", "eval.val.at_end=false")
        self.assertIn("device   cpu (auto: ", self.output)
        harness.TRAINER = EMULATED
        self.expect(0, "device   cuda (auto: ", "memory   per rank",
                    args=[self.deck(), "--mode", "plan", "--set", "run.device=auto"])


harness.main()
