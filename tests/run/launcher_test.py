#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A job under the launcher of another MPI (tools/test_mpi): its ranks, signals, exit codes, kills, and the bits of continued runs. With
the system's MPI other tests hold all of this."""
import os
import re
import signal
import subprocess
import time
import unittest

import harness
import processes

MPI = os.environ.get("TRAINER_LAUNCHER", "")
LONG = ["--set", "train.total_steps=100000"]


@unittest.skipUnless(MPI, "the launcher is the system's; tools/test_mpi runs this with others")
class Launcher(harness.RunTest):
    def setUp(self):
        super().setUp()
        # A rate that does not depend on the number of steps, which differs here between parts of a run.
        self.good = self.changed(('kind         = "cosine"\nwarmup_steps = 2', 'kind = "constant"'))

    def job(self, *args):
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), *args], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, job)
        return job

    def end(self, job):
        for pid in [*self.ranks(job), job.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        job.communicate()

    def ranks(self, job):
        """Returns the processes of the program below the launcher, which may start them by a helper."""
        return sorted(pid for pid in processes.descendants(job.pid) if processes.words(pid)[:1] == [harness.TRAINER])

    def until(self, job, words):
        for line in job.stdout:
            if words in line:
                return
        self.fail(f"the job ended without '{words}'")

    def straight(self, steps):
        """Returns the tensors of a run of so many steps without a stop."""
        folder = f"{self.folder}/straight{steps}"
        self.expect(0, f"finished step={steps}", args=[self.deck(), "--dir", folder, *harness.sets(f"train.total_steps={steps}")], ranks=2)
        return self.tensors(steps, folder)

    def goes_on_to(self, steps):
        """The run continues, and has the bits of one that was never stopped."""
        self.expect(0, f"finished step={steps}", args=[self.deck(), *harness.sets(f"train.total_steps={steps}")], ranks=2)
        self.assertEqual(self.tensors(steps), self.straight(steps))

    def test_ranks_share_memory_and_one_answers(self):
        self.expect(0, "mesh     2 ranks on 1 node", "sums in shared memory", "finished step=12", args=[self.deck()], ranks=2)
        name = subprocess.run([harness.TRAINER, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(name, r"(gcc|clang)=\S+ (openmpi|mpich|intelmpi)=\d+\.\d+\S* hdf5=")
        self.expect(0, args=["--version"], ranks=2)
        self.assertEqual(self.output.count("hdf5="), 1)
        self.expect(2, "deck.toml", args=[f"{self.folder}/no/deck.toml"], ranks=2)

    def test_asked_to_stop_it_saves_and_continues(self):
        for ask in ("launcher", "rank"):
            job = self.job(*LONG)
            self.until(job, " loss=" if ask == "rank" else "step=3 ")
            os.kill(job.pid if ask == "launcher" else self.ranks(job)[1], signal.SIGUSR1)
            output = job.communicate(timeout=harness.GUARD)[0]
            self.assertEqual(harness.exit_code(job.returncode, output), 75, output)
            self.assertRegex(output, r"(?m)^done  +exit=75$")
            self.assertRegex(output, r"stopped  step=\d+ of 100000: signal USR1 at rank \d")
        self.goes_on_to(int(self.checkpoints()[-1][:10]) + 3)

    def test_killed_it_ends_and_continues(self):
        for victim in ("rank", "launcher"):
            job = self.job(*LONG)
            self.wait("a checkpoint", lambda: len(self.checkpoints()) > 1 or job.poll() is not None)
            time.sleep(0.2)
            os.kill(self.ranks(job)[1] if victim == "rank" else job.pid, signal.SIGKILL)
            job.communicate(timeout=harness.GUARD)
            # The mpiexec of MPICH 4.2 returns 0 at one of four kills, which the job scripts notice (jobs/common.sh).
            self.assertNotIn(job.returncode, (75,) if MPI.startswith("hydra") else (0, 75))
            if victim == "launcher" and MPI.startswith("openmpi"):
                for pid in processes.with_word(f"{self.folder}/deck.toml"):
                    os.kill(pid, signal.SIGKILL)  # Open MPI 5's ranks do not notice
            self.wait("the end of all ranks", lambda: not processes.with_word(f"{self.folder}/deck.toml"))
        self.goes_on_to(int(self.checkpoints()[-1][:10]) + 3)

    def test_an_error_of_one_rank_ends_all_with_its_code(self):
        self.expect(6, "step 4", ranks=2, args=self.poisoned("stop"))
        self.assertTrue(re.search(r"error: .*(loss|gradient)", self.output), self.output)

    def test_the_launcher_of_another_mpi_is_refused(self):
        other = "/usr/bin/mpirun.openmpi"
        if MPI.startswith("openmpi") or not os.path.exists(other):
            self.skipTest("no launcher of another kind of MPI here")
        done = subprocess.run([other, "-np", "2", harness.TRAINER, self.deck()], capture_output=True, text=True, timeout=harness.GUARD)
        if " by plugin openmpi" in done.stdout:
            self.skipTest("this program takes the MPI of any launcher")
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("mpirun of Open MPI has started 2 ranks, but this program's MPI (", done.stdout + done.stderr)


harness.main()
