#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""run.device on a machine without a GPU, also for a program built with CUDA: the program starts,
trains and logs its choice."""
import os
import subprocess

import harness


class Device(harness.RunTest):
    def test_needs_no_cuda_to_start(self):
        linked = subprocess.run(["ldd", os.environ["TRAINER"]], capture_output=True, text=True, check=True).stdout
        for library in ("libcuda.so", "libcudart", "libcublas", "libcudnn", "libnccl"):
            self.assertNotIn(library, linked)

    def test_auto_says_what_it_chose(self):
        text = self.changed(('device = "cpu"', 'device = "auto"'))
        self.expect(0, "device   cpu (auto: ", args=[self.deck(text), "--set", "train.total_steps=1", "--set",
                                                     "schedule.default.warmup_steps=0"])

    def test_cuda_is_refused_where_it_cannot_be(self):
        self.expect(3, 'run.device = "cuda"', "CUDA cannot be used here", args=[self.deck(), "--set", "run.device=cuda"])


harness.main()
