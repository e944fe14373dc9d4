# SPDX-License-Identifier: Apache-2.0
"""Starts jobs, watches their output while they run, and ends them."""
import os
import subprocess

import harness
import processes

LONG = ["--set", "train.total_steps=100000"]


class LiveTest(harness.RunTest):
    def start(self, *args, ranks=2, env=None):
        """Starts a job; `env` has further variables."""
        return subprocess.Popen(["mpirun", "-np", str(ranks), harness.TRAINER, self.deck(), *args], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, cwd=self.folder, text=True, env=os.environ | (env or {}))

    def until(self, job, text):
        """Reads and returns the job's output up to a line that holds the text."""
        seen = ""
        for line in job.stdout:
            seen += line
            if text in line:
                return seen
        self.fail(f"{text} never came:\n{seen}")

    def ended(self, job, code):
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(harness.exit_code(job.returncode, output), code, output)
        return output

    def newest(self):
        return int(self.checkpoints()[-1][:10])

    def ranks(self, job, count=2):
        """Returns the ranks of a job, in the order in which they started. The launcher may start them by a helper."""
        found = {pid for pid in processes.descendants(job.pid) if processes.words(pid)[:1] == [harness.TRAINER]}
        found -= {child for pid in found for child in processes.children(pid)}  # a rank may start programs
        self.assertEqual(len(found), count)
        return sorted(found)
