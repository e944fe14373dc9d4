# SPDX-License-Identifier: Apache-2.0
"""Runs the real program with faults at chosen calls of the file system (tests/inject/inject.cpp)."""
import os
import shutil
import subprocess

import harness

LIBRARY = os.environ["INJECT_LIBRARY"]  # build/tests/libinject.so


class HurtTest(harness.RunTest):
    def start_hurt(self, order, under, *args, ranks=2, call="", ends=""):
        """Starts a run in which tests/inject carries out an order."""
        shutil.rmtree(self.trace(), ignore_errors=True)
        os.mkdir(self.trace())
        environment = {"LD_PRELOAD": harness.preload(LIBRARY), "INJECT_UNDER": under, "INJECT_TRACE": self.trace(), "INJECT": order,
                       "INJECT_CALL": call, "INJECT_ENDS": ends}
        command = ["mpirun", "-np", str(ranks)]
        for name, value in environment.items():
            command += ["-x", f"{name}={value}"]
        return subprocess.Popen([*command, harness.TRAINER, self.deck(), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, cwd=self.folder, stdin=subprocess.DEVNULL)

    def trace(self):
        return self.folder + "/trace"

    def calls(self, rank):
        """Returns the counted calls of a rank until now: [name, path] each."""
        with open(f"{self.trace()}/{rank}.calls") as f:
            return [line.split(" ", 2)[1:] for line in f.read().splitlines()]

    def hurt(self, order, under, *args, ranks=2, **which):
        """Runs a job with an injected fault to its end; returns the exit code and each rank's
        calls."""
        job = self.start_hurt(order, under, *args, ranks=ranks, **which)
        self.output = job.communicate(timeout=harness.GUARD)[0]
        return job.returncode, [self.calls(rank) for rank in range(ranks)]
