#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Limits the address space (ulimit -v, as batch systems do): the job runs, or ends with exit 3
and names the purpose of the memory."""
import os
import resource
import subprocess
import unittest

import harness
import place


class MemoryLimit(harness.RunTest):
    def under(self, kib, *args, ranks=0):
        """Returns exit code and output of a run whose ranks have a limit of `kib` KiB; ranks =
        0: without mpirun."""
        words = ["bash", "-c", f'ulimit -v {kib}; exec "$0" "$@"', harness.TRAINER, self.deck(), "--dir", f"{self.folder}/{kib}", *args]
        launcher = ["mpirun", "-np", str(ranks)] if ranks else []
        run = subprocess.run(launcher + words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        return run.returncode, run.stdout

    def loaded(self):
        """Returns the smallest limit, in KiB, under which the program's libraries can be loaded."""
        kib = 50000
        while self.under(kib, "--help")[0]:
            kib += 10000
        return kib

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_every_limit(self):
        # The limits go from the least that loads the libraries to more than enough. The job never
        # crashes, and never succeeds under a limit below one that was refused.
        first, ended = self.loaded(), []
        for kib in [first + 60000 * i for i in range(6)] + [first + 2000000]:
            with self.subTest(kib=kib):
                code, output = self.under(kib)
                ended.append(code)
                self.assertIn(code, (0, 3), output)
                if code:
                    self.assertRegex(output, r"error: .*out of memory: (starting|training) .*needs \d+ MiB of address space.*ulimit -v")
        self.assertEqual(ended[0], 3)
        self.assertEqual(ended[-1], 0)
        self.assertEqual(ended, sorted(ended, reverse=True))

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_ranks(self):
        code, output = self.under(self.loaded() + 180000, ranks=2)
        self.assertEqual(code, 3, output)
        self.assertRegex(output, r"error: (rank \d: )?.*out of memory: .*ulimit -v")
        with open(f"{self.folder}/{self.loaded() + 180000}/report.txt") as f:
            self.assertRegex(f.readline(), r"^rank=\d of 2 host=\S+ step=0 phase=\S+ exit=3: out of memory: training \(\d+ MiB planned")

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_ranks_share_no_memory(self):
        # Memory of other ranks would take the address space that the plan has not counted.
        code, output = self.under(self.loaded() + 2000000, ranks=2)
        self.assertEqual(code, 0, output)
        self.assertIn("backend=mpi by messages (rank 0 of the node: the address space is limited (ulimit -v))", output)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_threads_and_plans_count(self):
        # Under a limit that is enough for the unchanged deck, more threads and a larger model are
        # refused by name.
        kib = self.loaded() + 500000
        self.assertEqual(self.under(kib)[0], 0)
        code, output = self.under(kib, "--set", "loader.threads=250")
        self.assertEqual(code, 3, output)
        self.assertIn("751 threads of loader.threads", output)
        code, output = self.under(kib, "--set", "run.threads=200")
        self.assertEqual(code, 3, output)
        self.assertIn("starting 200 threads (run.threads)", output)
        code, output = self.under(kib, "--set", "model.encoder.width=2048", "--set", "model.encoder.mlp=8192")
        self.assertEqual(code, 3, output)
        self.assertRegex(output, r"training \([\d,]{4,} MiB planned for this deck, see --mode plan")

    def test_a_thread_of_a_save(self):
        """A save ends with an error, whichever of its threads the system refuses."""
        for number in (1, 2, 3):
            with self.subTest(number):
                folder = f"{self.folder}/thread{number}"
                self.expect(5, "a thread could not be started", timeout=300,
                            args=[self.deck(), "--dir", folder, *harness.sets("train.total_steps=1", "checkpoint.io_threads=4")],
                            env={**os.environ, "LD_PRELOAD": harness.preload(os.environ["MACHINE_LIBRARY"]),
                                 "MACHINE": f"-1:thread={number}", "MACHINE_WHEN": f"{folder}/checkpoints/*.tmp"})


if __name__ == "__main__":
    if resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY:
        print("skipped: there is a limit of the address space already")
        raise SystemExit(77)
    harness.main()
