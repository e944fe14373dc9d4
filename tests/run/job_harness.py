# SPDX-License-Identifier: Apache-2.0
"""Helps tests of jobs/*.sh: the project's folder as a user of a cluster has it, with a deck of a
few seconds, and means to watch its runs.

Scenarios run at the same time, as threads. Those that are interrupted train slowly at first, so
that there is time to interrupt them.
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

import harness

STEPS = 600

# Replaces the program by one on a slow node. In the first SLOW_PARTS parts of the job, or until
# there is a checkpoint (SLOW_PARTS=unsaved), each row of metrics takes long to write. So the
# program does a few steps per second (tests/inject/inject.cpp).
SLOW = """#!/usr/bin/python3
import glob, os, sys
part = int(os.environ.get("PART", "1")) + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
parts = os.environ["SLOW_PARTS"]
unsaved = not glob.glob(sys.argv[sys.argv.index("--dir") + 1] + "/checkpoints/*.h5")
if unsaved if parts == "unsaved" else part <= int(parts):
    libraries = [os.path.abspath("build/libinject.so"), os.environ.get("LD_PRELOAD")]
    os.environ.update(LD_PRELOAD=":".join(filter(None, libraries)), INJECT_UNDER=os.getcwd(), INJECT_ENDS="metrics.jsonl",
                      INJECT_CALL="write", INJECT="0:0:slow=300+")
os.execv("build/trainer", ["build/trainer", *sys.argv[1:]])
"""


# Replaces the program by one on nodes of several names. NAMES is the variable that holds a node's
# name. The selftest finds no locks on the node TEST. Training meets the fault on the node RUN
# (tests/inject/inject.cpp).
ON_NODES = """#!/bin/bash
export LD_PRELOAD=$PWD/build/libmachine.so${{LD_PRELOAD:+:$LD_PRELOAD}} MACHINE_HOST={names} node=${names}
test=$({test}) run=$({run})
if [[ " $* " = *" --mode selftest "* ]]; then
  [ "$node" != "$test" ] || export MACHINE=-1:nolocks
elif [ "$node" = "$run" ]; then
  export LD_PRELOAD=$PWD/build/libinject.so:$LD_PRELOAD INJECT_UNDER=$PWD INJECT_ENDS={ends} INJECT_CALL=write
  export INJECT=-1:3:{fault}
fi
exec build/trainer "$@"
"""


class JobTest(unittest.TestCase):
    """`home` is the project's folder. Each play_NAME is a scenario; `result(NAME)` waits for its result."""

    FIRST = ""  # the scenario that must not wait for others, if there is one

    @classmethod
    def make_project(cls, home):
        cls.home = home
        shutil.copytree(f"{harness.SOURCE}/jobs", f"{home}/jobs")
        for folder in ("build", "data", "local", "memory"):
            os.mkdir(f"{home}/{folder}")
        shutil.copy(harness.TRAINER, f"{home}/build/trainer")
        shutil.copy(os.environ["INJECT_LIBRARY"], f"{home}/build/libinject.so")
        shutil.copy(os.environ["MACHINE_LIBRARY"], f"{home}/build/libmachine.so")
        shutil.copy(harness.TOKENIZER, f"{home}/tokenizer.model")
        harness.make_shards(f"{home}/data")
        deck = harness.DECK.format(dir="runs/test", data="data", tokenizer="tokenizer.model")
        third = STEPS // 3
        for old, new in (("total_steps = 12", f"total_steps = {STEPS}"), ("console_every_steps = 1", f"console_every_steps = {third}"),
                         ("every_steps = 6", f"every_steps = {third}"), ("every_steps = 4", f"every_steps = {third}"),
                         ("mesh   = ", 'limits = { wall_time = "none" }\nmesh   = ')):
            assert deck.count(old) == 1, old
            deck = deck.replace(old, new)
        # The variables that Open MPI needs here, without those that the job scripts set. Killed
        # ranks leave their shared memory in the folder.
        cls.mpi = {k: v for k, v in os.environ.items() if k.startswith(("OMPI_MCA_", "HWLOC_", "RES_"))}
        cls.mpi.pop("OMPI_MCA_hwloc_base_binding_policy", None)
        kind, _, program = os.environ.get("TRAINER_LAUNCHER", "").partition(":")
        if kind == "hydra":
            cls.mpi["LAUNCHER"] = program
        cls.srun_mpi = "pmi2" if kind == "hydra" else "pmix"
        cls.mpi.update(OMP_WAIT_POLICY="passive", OMPI_MCA_btl_vader_backing_directory=f"{home}/memory")
        # Ranks that wait for a slow one rest (tests/inject/rest.cpp), also as a user who cannot read the build's folder.
        libraries = list(filter(None, os.environ.get("LD_PRELOAD", "").split(":")))
        if libraries:
            own = [shutil.copy(library, f"{home}/build/") for library in libraries]
            cls.mpi["LD_PRELOAD"] = ":".join(own)
        cls.write("deck.toml", deck)
        cls.write("slow", SLOW)

    @classmethod
    def write(cls, name, text):
        with open(f"{cls.home}/{name}", "w") as f:
            f.write(text)
        os.chmod(f"{cls.home}/{name}", 0o755)

    @classmethod
    def start_plays(cls):
        names = sorted((n[len("play_"):] for n in dir(cls) if n.startswith("play_")), key=lambda n: n != cls.FIRST)
        only = os.environ.get("PLAYS", "").split()  # for somebody who runs a single test by hand
        names = [n for n in names if not only or n in only]
        threads = concurrent.futures.ThreadPoolExecutor(max_workers=len(names))
        cls.addClassCleanup(threads.shutdown)
        cls.plays = {name: threads.submit(cls.play, name) for name in names}

    @classmethod
    def play(cls, name):
        if cls.FIRST and name != cls.FIRST:
            time.sleep(3)
        begin = time.time()
        try:
            return getattr(cls, f"play_{name}")()
        finally:
            print(f"{name}: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)

    @classmethod
    def wait(cls, what, condition, pause=0.1):
        end = time.monotonic() + harness.GUARD
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(pause)
        raise AssertionError(f"{what}: never came\n{cls.processes()}\n{cls.everything()}")

    @classmethod
    def processes(cls):
        """Returns the tree of all processes of this machine, and where the kernel holds each: what hangs is among them."""
        if not shutil.which("ps"):
            return "no ps here\n"
        return subprocess.run(["ps", "-eo", "pid,ppid,user,stat,etime,wchan:20,args", "--forest", "--cols=180"], capture_output=True,
                              text=True, timeout=harness.GUARD).stdout

    @classmethod
    def everything(cls):
        """Returns the last lines of all logs."""
        return "\n".join("\n".join([f"--- {n}", *cls.log(n[:-4]).splitlines()[-12:]])
                         for n in sorted(os.listdir(cls.home)) if n.endswith(".log"))

    @classmethod
    def log(cls, name):
        try:
            with open(f"{cls.home}/{name}.log", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    @classmethod
    def step(cls, name):
        """Returns the newest step in the metrics of a run."""
        try:
            with open(f"{cls.home}/runs/{name}/metrics.jsonl") as f:
                lines = f.read().splitlines()
        except FileNotFoundError:
            return 0
        for line in reversed(lines[-3:]):
            try:
                return json.loads(line)["step"]
            except ValueError:
                continue  # the job is still writing this line
        return 0

    @classmethod
    def trains(cls, name, part, steps=3):
        """Waits until part `part` of the job has done some steps; returns the step."""
        cls.wait(f"{name} part {part} starts", lambda: f" part {part} on " in cls.log(name))
        begin = cls.step(name)

        def progress():
            if f" part {part} ended with " in cls.log(name):
                raise AssertionError(f"{name} ended too early:\n{cls.log(name)}")
            return cls.step(name) > begin + steps and cls.step(name)
        return cls.wait(f"{name} part {part} trains", progress)

    def result(self, name):
        return self.plays[name].result()

    def tensors(self, name):
        return harness.RunTest.tensors(self, STEPS, f"{self.home}/runs/{name}")

    def uninterrupted(self):
        """Waits for the uninterrupted run; returns its final parameters and optimizer state."""
        self.result("straight")
        return self.tensors("straight")

    def assert_same_bits(self, name):
        """Checks that the final parameters and optimizer state of a run are those of the
        uninterrupted run."""
        reference, got = self.uninterrupted(), self.tensors(name)
        self.assertGreater(len(reference), 20)
        self.assertEqual(sorted(reference), sorted(got))
        self.assertEqual([n for n in reference if reference[n] != got[n]], [])

    def checkpoints(self, name):
        return sorted(set(os.listdir(f"{self.home}/runs/{name}/checkpoints")) - {"latest.h5"})

