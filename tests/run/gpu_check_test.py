#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/gpu_check with replacements for the programs on a GPU: it reports each failure
with its reason and runs the other steps."""
import glob
import json
import os
import subprocess
import sys

import harness

CHECK = os.path.join(harness.SOURCE, "tools/gpu_check")
# "ms_per_step" and the peak depend on the precision.
TRAINER = '''for a; do case $a in precision.compute=*bf16*|precision.compute=*fp16*) ms=100 peak=989400;;
precision.compute=*tf32*) ms=200 peak=494700;; precision.compute=*f32*) ms=1000 peak=66900;; esac; done
echo "{\\"ms_per_step\\":$ms,\\"data_ms\\":1.5,\\"peak_gflops\\":$peak,\\"peak_memory_gib\\":20.5,\\"planned_mib\\":20480.0}"'''
# A Python with PyTorch and without JAX.
PYTHON = '''case "$2" in "import torch") exit 0;; import*) exit 1;; esac
case "$2" in *bf16*) ms=150;; *tf32*) ms=300;; *) exit 2;; esac
echo "{\\"ms_per_step\\":$ms,\\"peak_memory_gib\\":30}"'''


class GpuCheck(harness.RunTest):
    def programs(self, **scripts):
        os.mkdir(os.path.join(self.folder, "bin"))
        for name, script in scripts.items():
            path = os.path.join(self.folder, "bin", name)
            with open(path, "w") as f:
                f.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)

    def check(self, *args):
        done = subprocess.run([sys.executable, CHECK, "--build", self.folder, "--out", self.folder + "/out", *args],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
        self.output = done.stdout
        return done.returncode

    def test_one_failure_stops_nothing(self):
        table = 'for a; do case $a in --json=*) echo \'{"device": "NVIDIA H200"}\' > "${a#--json=}";; ' \
                '--markdown=*) echo "| gemm |" > "${a#--markdown=}";; esac; done'
        self.programs(kernel_table=table, test_kernels="echo on NVIDIA H200; echo expected 1, got 2; exit 1",
                      golden='[ "$3" = --mesh ] && exit 77; exit 0', trainer=TRAINER, mpirun='shift 3; exec "$@"', python=PYTHON)
        some = ("ops", "golden", "mesh", "table", "training", "peers")
        self.assertEqual(self.check("--python", self.folder + "/bin/python", "--only", *some), 1, self.output)
        report, = glob.glob(self.folder + "/out/*-nvidia-h200.md")
        with open(report) as f:
            text = f.read()
        for line in ("| ops | op suite | failed (exit 1): expected 1, got 2 |", "| golden | one rank | passed |",
                     "| mesh | two ranks, 2x1 | skipped |", "| table | kernel table | passed |", "| gemm |",
                     "| golden | one rank, tf32 | passed |", "| golden | one rank, fp16 | passed |",
                     # 256 examples take 142.3 GFLOP each and 100 ms together. Each precision has
                     # its own peak.
                     "| B/16 | this program | bf16 | 100.0 | 1.5 | 2560 | 364 | 36.8 % | 20.5 GiB | 20.0 GiB |",
                     "| B/16 | this program | fp16 | 100.0 | 1.5 | 2560 | 364 | 36.8 % | 20.5 GiB | 20.0 GiB |",
                     "| B/16 | this program | tf32 | 200.0 | 1.5 | 1280 | 182 | 36.8 % | 20.5 GiB | 20.0 GiB |",
                     "| B/16 | this program | f32 | 1000.0 | 1.5 | 256 | 36 | 54.5 % | 20.5 GiB | 20.0 GiB |",
                     "| B/16 | torch | tf32 | 300.0 |  | 853 | 121 | 24.5 % | 30.0 GiB |  |",
                     "B/16: 1.50 times the faster bf16 peer", "L/14: 1.50 times the faster tf32 peer",
                     "B/16: fp16 is 1.00 times as fast as bf16.", "L/14: tf32 is 5.00 times as fast as f32."):
            self.assertIn(line, text)
        with open(report.replace(".md", ".json")) as f:
            steps = json.load(f)["steps"]
        self.assertEqual([r["verdict"] for r in steps["mesh"]], ["skipped", "skipped"])
        self.assertEqual(steps["ops"][0]["output"], ["on NVIDIA H200", "expected 1, got 2"])

    def test_work_that_a_library_refused_fails(self):
        refused = "echo rank=0 level=warning step=0 fallback product: no kernel for 5x5;"
        self.programs(kernel_table=refused, trainer='echo "{\\"ms_per_step\\":1,\\"attention_own\\":12,\\"fallbacks\\":0}"')
        self.assertEqual(self.check("--only", "table", "training"), 1)
        self.assertRegex(self.output, r"table +kernel table +failed \(exit 1\)[^\n]*\n[^\n]*no kernel for 5x5")
        self.assertRegex(self.output, r"training +this program, B/16, bf16 +failed")
        self.assertIn("12 attention_own per step", self.output)

    def test_without_a_gpu_it_is_skipped(self):
        self.programs(kernel_table="echo no GPU here; exit 77")
        self.assertEqual(self.check(), 77)
        self.assertIn("no GPU here", self.output)

    def test_what_is_missing_fails(self):
        self.programs(kernel_table="exit 0")
        self.assertEqual(self.check("--only", "ops", "training"), 1)
        self.assertEqual(self.output.count("no program"), 2, self.output)


harness.main()
