#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Self-supervised runs of every kind of model that are killed or stopped, and continue on another number of ranks, with another
accumulation: queues, centres, memories, teachers, running statistics and means over the epoch must end with the bits of one run."""
import os
import random
import re
import shutil
import signal

import processes
from live_harness import LiveTest
from ssl_harness import KINDS, SelfSupervised

import harness

SEED = 1
STEPS = 16
# The tensors beside trained weights that each kind must have.
STATES = {"simclr": ["params/trunk/bn1.running_mean", "params/head/clf.1.running_var"], "moco": ["params/loss/queue", "teacher/trunk/"],
          "swav": ["params/loss/local_emb_queue"], "swav_teacher": ["teacher/head/prototypes0"],
          "barlow_twins": ["params/head/clf.1.running_mean"], "dino": ["params/loss/center", "teacher/trunk/bn1.running_var"],
          "npid": ["params/loss/memory"], "linear_probe": ["params/head/channel_bn.running_mean"]}


class Resume(SelfSupervised, LiveTest):
    def setUp(self):
        super().setUp()
        self.make_images()

    def outcome(self, folder=None):
        """Returns what a run ends with: tensors, and the measures of steps and epochs."""
        rows = [{name: value for name, value in row.items() if re.search("^(step|l2_.*|.*loss.*|.*_top1|epoch_mean.*)$", name)}
                for row in self.rows(folder=folder)]
        return self.tensors(STEPS, folder), rows

    def cut(self, step, way, ranks):
        """Ends a job of so many ranks about the step; returns False if the job was faster."""
        job = self.start(ranks=ranks)
        self.until(job, f"step={step} ")
        if way == "stop":
            job.send_signal(signal.SIGUSR1)
        else:
            for victim in [*processes.children(job.pid, "deck.toml"), job.pid]:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        job.communicate(timeout=harness.GUARD)
        if job.returncode:
            self.assertEqual(job.returncode, 75 if way == "stop" else -signal.SIGKILL)
        return job.returncode != 0

    def test_each_kind(self):
        chance = random.Random(SEED)
        seldom = ["--set", f"checkpoint.every_steps={STEPS}"]  # saves time where no job is ended
        for number, name in enumerate(KINDS):
            with self.subTest(name):
                self.use(name)
                straight = f"{self.folder}/{name}"
                self.expect(0, args=[self.deck(), "--dir", straight, *seldom])
                want, rows = self.outcome(straight)
                for state in STATES[name]:
                    self.assertTrue([path for path in want if path.startswith(state)], (state, sorted(want)))
                first, second = ((2, 4), (2, 1), (4, 2))[number % 3]
                for _ in range(5):  # until the job ends before it is done
                    shutil.rmtree(self.dir, ignore_errors=True)
                    step = chance.randrange(2, STEPS - 5)
                    if self.cut(step, "stop" if number % 2 else "kill", first):
                        break
                else:
                    self.fail("no job could be ended in time")
                self.wait("the end of ranks without mpirun", lambda: not processes.with_word(self.folder + "/deck.toml"))
                mesh = ["--set", f"mesh.replica={2 if second == 4 else 1}"]
                self.expect(0, "from=checkpoint", args=[self.deck(), *seldom, *mesh], ranks=second if second > 1 else 0)
                got, got_rows = self.outcome()
                self.assertEqual(sorted(got), sorted(want))
                for path in want:
                    self.assertEqual(got[path], want[path], path)
                self.assertEqual(got_rows, rows)
                self.assertEqual(sum("epoch_mean[loss]" in row for row in rows), 4)  # 40 images, 16 steps of 8


harness.main()
