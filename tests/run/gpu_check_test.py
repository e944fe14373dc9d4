#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/gpu_check with replacements for the programs on a GPU: it reports each failure with its reason, runs the other steps,
measures clocks, and ends what programs leave. Then the whole check runs on the emulated GPU and is interrupted at random moments."""
import ast
import glob
import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

import harness
import place

TOOLS = os.path.join(harness.SOURCE, "tools")
CHECK = os.path.join(TOOLS, "gpu_check")
FOUND = "echo on NVIDIA H200; echo library nccl 22809 /opt/wheels/libnccl.so.2"
# "ms_per_step" and the peak depend on the precision.
TRAINER = '''for a; do case $a in precision.compute=*bf16*|precision.compute=*fp16*) ms=100 peak=989400;;
precision.compute=*tf32*) ms=200 peak=494700;; precision.compute=*f32*) ms=1000 peak=66900;; esac; done
echo "rank=0 level=warning step=2 the disk is nearly full"
echo "{\\"ms_per_step\\":$ms,\\"data_ms\\":1.5,\\"peak_gflops\\":$peak,\\"peak_memory_gib\\":20.5,\\"planned_mib\\":20480.0,\\"steps\\":30,\
\\"gpu_ops_ms\\":90,\\"gpu_span_ms\\":95,\\"gpu_ops\\":[{\\"op\\":\\"gemm\\",\\"calls\\":12,\\"ms\\":60,\\"gflop\\":50,\\"mb\\":300}]}"'''
# A Python with PyTorch and without JAX.
PYTHON = '''case "$2" in "import torch"*) echo 1; exit 0;; import*) exit 1;; esac
case "$2" in *bf16*) ms=150;; *tf32*) ms=300;; *) exit 2;; esac
echo "{\\"ms_per_step\\":$ms,\\"peak_memory_gib\\":30}"'''
TABLE = '''for a; do case $a in --json=*) echo '{"device": "NVIDIA H200"}' > "${a#--json=}";;
--markdown=*) echo "| gemm |" > "${a#--markdown=}";; esac; done'''
SPOILED = '''case "$*" in *=GemmNarrow*) echo "[  FAILED  ] GemmNarrow.Sums (3 ms)"; echo "[  FAILED  ] GemmGelu.Forward"
echo "CUDA: a copy: an illegal memory access was encountered (cudaErrorIllegalAddress); the cause"; exit 1;; esac'''
WITH_NO_GIT = "/usr/sbin:/sbin"  # programs that the check starts itself are given by their paths


def survivors(word):
    """Returns the processes with this word in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if word.encode() in f.read().split(b"\0"):
                    with open(f"/proc/{name}/cmdline", "rb") as g:
                        found.append((name, g.read()))
        except OSError:  # it has ended
            pass
    return found


@unittest.skipIf(place.no_processes(), place.no_processes())
class GpuCheck(harness.RunTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder + "/out"
        self.word = "GPU_CHECK_TEST=" + os.path.basename(self.folder)
        self.environment = {**os.environ, **dict([self.word.split("=")])}

    def programs(self, folder="bin", **scripts):
        os.makedirs(os.path.join(self.folder, folder), exist_ok=True)
        for name, script in scripts.items():
            path = os.path.join(self.folder, folder, name.replace("_smi", "-smi").replace("_sanitizer", "-sanitizer"))
            with open(path, "w") as f:
                f.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)

    def command(self, *args, build=None):
        return [sys.executable, CHECK, "--build", build or self.folder, "--out", self.out, *args]

    def check(self, *args):
        done = subprocess.run(self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              env=self.environment)
        self.output = done.stdout
        self.assertEqual(survivors(self.word), [])
        return done.returncode

    def results(self, name="*-nvidia-h200"):
        path, = glob.glob(f"{self.out}/{name}.json")
        with open(path) as f, open(path.replace(".json", ".md")) as g:
            return json.load(f), g.read()

    def test_one_failure_stops_nothing(self):
        os.makedirs(self.folder + "/tests/golden")  # as in a bundle
        self.programs(gpu_libraries=FOUND, kernel_table=TABLE, test_kernels=SPOILED, test_optim='[ "$TRAINER_TEST_KIND" = cuda ]',
                      golden='[ "$3" = --mesh ] && exit 77; exit 0', trainer=TRAINER, mpirun='shift 3; exec "$@"', python=PYTHON)
        self.programs("path", nvidia_smi='case "$*" in *name*) echo "NVIDIA H200, 580.1, 143771, 1980, 700";; *) echo "1815, 655.2";; esac',
                      compute_sanitizer='echo "$*"; case "$2" in racecheck) exit 9;; esac')
        self.environment["PATH"] = self.folder + "/path:" + self.environment["PATH"]
        self.assertEqual(self.check(), 1, self.output)
        data, text = self.results()
        for line in ("; complete.", "driver_version: 580.1", "| nccl | 22809 | /opt/wheels/libnccl.so.2 |",
                     # An error of CUDA spoils one group. Each case that failed is named.
                     "| ops | products with epilogues | failed (exit 1): 2 cases failed, first GemmNarrow.Sums; cudaErrorIllegalAddress |",
                     "| ops | attention | passed |", "| ops | optimizers | passed |",
                     "| sanitizer | compute-sanitizer, memcheck | passed |",
                     "| sanitizer | compute-sanitizer, racecheck | failed (exit 9): --tool racecheck",
                     "| mesh | two ranks, 2x1 | skipped |",
                     "| golden | one rank, f32 | passed |", "| golden | one rank, fp16 | passed |",
                     "| table | kernel table, L/14 | passed |", "| gemm |",
                     "* this program, first proposals, B/16, bf16: the disk is nearly full",
                     # 256 examples take 142.3 GFLOP each and 100 ms together. Each precision has
                     # its own peak.
                     "| B/16 | this program | bf16 | 256 | 30 | 100.0 |  | 2560 | 364 | 36.8 % | 1815 | 655 | 1.5 | 20.5 GiB | 20.0 GiB |",
                     "| B/16 | this program, graphs | bf16 | 256 |", "| B/16 | this program, first proposals | bf16 | 256 |",
                     "| B/16 | this program | tf32 | 256 | 30 | 200.0 |  | 1280 | 182 | 36.8 % |",
                     "| B/16 | this program | f32 | 256 | 30 | 1000.0 |  | 256 | 36 | 54.5 % |",
                     "## Ops within steps: this program, B/16, bf16", "90.00 ms in ops, 95.00 ms from the first op to the last.",
                     "| gemm | 50.00 | 300.0 | 12 | 60.000 | 10 | 60 |",
                     "B/16: fp16 is 1.00 times as fast as bf16.", "B/16: tf32 is 5.00 times as fast as f32."):
            self.assertIn(line, text)
        self.assertEqual(data["steps"]["ops"][0]["failed_cases"], ["GemmNarrow.Sums", "GemmGelu.Forward"])
        self.assertEqual(data["steps"]["training"][0]["sm_mhz"], 1815)

        # The peers are compared with those rows, without a git and without a GPU's tools.
        self.environment["PATH"] = WITH_NO_GIT
        self.assertEqual(self.check("--peers", "--python", self.folder + "/bin/python"), 0, self.output)
        _, text = self.results("*-nvidia-h200-peers")
        for line in ("an unknown state (no git here)", "| peers | jax, B/16, bf16 | skipped: no Python with jax; --python names one |",
                     "| B/16 | torch | tf32 | 256 |  | 300.0 |", "| L/14 | torch | tf32 | 128 |  | 300.0 |  | 427 |",
                     "B/16: 1.50 times the faster bf16 peer", "B/16: 1.50 times the faster tf32 peer"):
            self.assertIn(line, text)

    def test_work_that_a_library_refused_fails(self):
        refused = "echo rank=0 level=warning step=0 fallback product: no kernel for 5x5;"
        self.programs(gpu_libraries=FOUND, kernel_table=refused,
                      trainer='echo "{\\"ms_per_step\\":1,\\"attention_own\\":12,\\"fallbacks\\":0}"')
        self.assertEqual(self.check("--only", "table", "training"), 1)
        self.assertRegex(self.output, r"table +kernel table, B/16 +failed \(exit 1\)[^\n]*no kernel for 5x5")
        self.assertRegex(self.output, r"training +this program, B/16, bf16 +failed")
        self.assertIn("12 attention_own per step", self.output)

    def test_without_a_gpu_it_is_skipped(self):
        self.programs(gpu_libraries="echo no GPU here; exit 77")
        self.assertEqual(self.check(), 77)
        self.assertIn("no GPU here", self.output)

    def test_what_is_missing_fails(self):
        self.programs(gpu_libraries=FOUND)
        self.assertEqual(self.check("--only", "table", "mesh"), 1)
        self.assertEqual(self.output.count("no program"), 4, self.output)

    def test_time_is_limited(self):
        """The parts take less than six minutes together. A program that hangs is ended with its children, and so are others that
        have no time left. The children are in sessions of their own, as Open MPI's ranks are in groups of their own."""
        self.assertEqual(self.check("--plan"), 0)
        self.assertLess(int(self.output.split()[-2]), 360, self.output)
        self.programs(gpu_libraries=FOUND, test_optim="setsid sleep 600 & exit 0",
                      trainer='trap "" TERM; echo before; setsid sleep 600 & sleep 600')
        self.assertEqual(self.check("--limit", "3", "--only", "training", "ops"), 1)
        data, _ = self.results()
        first, second = data["steps"]["training"][:2]
        self.assertEqual((first["verdict"], first["output"][0]), ("failed (exit 124)", "before"))
        self.assertRegex(first["output"][-1], "took more than [0-9]+ s")
        self.assertIn("not started", second["why"])

    def test_old_pythons_can_read_it(self):
        for path in (CHECK, os.path.join(TOOLS, "console.py"), *glob.glob(TOOLS + "/gpu_*.py")):
            with open(path) as f:
                text = f.read()
            ast.parse(text, path, feature_version=(3, 6))
            for newer in ("capture_output", "text=True", "removeprefix", "time_ns", "from __future__"):
                self.assertNotIn(newer, text, path)

    # ------------------------------------------------------------ on the emulated GPU

    def emulated(self, *args):
        return self.command("--kind", "emulator", *args, build=os.path.dirname(harness.TRAINER))

    def test_all_of_it_on_the_emulator(self):
        done = subprocess.run(self.emulated(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              env=self.environment)
        data, text = self.results("*-cuda-on-the-cpu")
        self.assertEqual(done.returncode, 0, done.stdout + text)
        self.assertEqual(set(data["steps"]), {"libraries", "training", "table", "ops", "golden", "mesh", "sanitizer"})
        skipped = [r["what"] for step in data["steps"].values() for r in step if r["verdict"] == "skipped"]
        self.assertEqual(skipped, ["compute-sanitizer"])
        names = [line["name"] for line in data["steps"]["libraries"][0]["libraries"]]
        self.assertEqual(names, ["cublasLt", "cudnn", "nccl"])
        # Steps ran their ops with events around them, those with graphs did not.
        training = data["steps"]["training"]
        self.assertEqual(["gpu_ops" in r for r in training[:3]], [True, True, False])
        ops = training[0]["gpu_ops"]
        self.assertGreater(sum(o["calls"] for o in ops if o["op"] == "gemm"), 20)
        self.assertGreater(sum(o["ms"] for o in ops if o["op"] == "gemm"), 0)
        self.assertIn("## Ops within steps: this program, tiny, bf16", text)
        self.assertEqual(survivors(self.word), [])

    def test_interrupted_at_random_moments(self):
        random_moments = random.Random(7)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            self.out = f"{self.folder}/{number.name}"
            moment = random_moments.uniform(0, 1.5)
            with self.subTest(number=number.name, moment=moment):
                self.interrupt(number, moment)

    def interrupt(self, number, moment):
        job = subprocess.Popen(self.emulated("--only", "libraries", "training", "ops"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=self.environment)
        output = job.stdout.readline()  # the first result: from here on something is lost if it is not on disk
        time.sleep(moment)
        job.send_signal(number)
        output += job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, -9 if number == signal.SIGKILL else 128 + number, output)
        self.wait("the end of all programs", lambda: not survivors(self.word))
        if number != signal.SIGKILL:
            self.assertEqual(survivors(self.word), [])
        printed = [line for line in output.splitlines() if " passed in " in line]
        self.assertTrue(printed, output)
        data, text = self.results("*-cuda-on-the-cpu")
        self.assertFalse(data["complete"])
        self.assertIn("not complete; running:", text)
        kept = [r["what"] for step in data["steps"].values() for r in step]
        for line in printed:  # what was said is on disk, and at most one result more
            self.assertTrue(any(what in line for what in kept), (line, kept))
        self.assertLessEqual(len(kept), len(printed) + 1)


harness.main()
