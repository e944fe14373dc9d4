#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Self-supervised runs of every kind of model that are killed or stopped, and continue on another number of ranks, with another
accumulation: queues, centres, memories, teachers, running statistics and means over the epoch must end with the bits of one run."""
import os
import random
import re
import shutil
import signal

import h5py
import numpy as np

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
          "npid": ["params/loss/memory"], "deepcluster_v2": ["params/loss/memory1", "params/loss/centroids0"],
          "pirl": ["params/loss/memory", "params/head/joined.0.weight"], "rotnet": ["params/head/clf.0.weight"],
          "jigsaw": ["params/head2/clf.0.weight"], "linear_probe": ["params/head/channel_bn.running_mean"],
          "mae": ["params/decoder/mask_token"], "combined": ["params/head/clf.1.running_mean"]}


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
        self.wait("a checkpoint", self.checkpoints)  # saved beside training
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

    def check_clusters(self, name, folder, tensors):
        """The number of each sample's cluster, against NumPy on the features and the tensors of the run."""
        single = (f'\n[data.single]\nkind = "webdataset"\npath = "{self.data}/images.tar"\nfields = {{ image = "png" }}\n'
                  'preprocess = \'decode | resize(16) | value_range(-1, 1) | keep("image")\'\n[checkpoint]')
        deck = self.deck(self.changed(("[checkpoint]", single)))
        self.expect(0, args=[deck, "--dir", folder, "--mode", "extract", "--set", "extract.data=single",
                             "--set", 'extract.taps=["cluster0", "flatten"]'], ranks=2)
        with h5py.File(folder + "/extract/single.h5") as f:
            got, features = f["features/cluster0"][:], f["features/flatten"][:].astype(np.float64)
        self.assertEqual((got.shape, got.dtype), ((40,), np.int32))
        if name != "deepcluster_v2":
            return
        def values(path):
            return np.frombuffer(tensors["params/" + path], np.float32).astype(np.float64)
        embedded = features @ values("head/clf.0.weight").reshape(8, -1).T + values("head/clf.0.bias")
        scores = embedded @ values("loss/centroids0").reshape(7, 8).T
        np.testing.assert_array_equal(got, scores.argmax(axis=1))
        self.assertGreater(len(set(got)), 1)

    def test_each_kind(self):
        chance = random.Random(SEED)
        seldom = ["--set", f"checkpoint.every_steps={STEPS}"]  # saves time where no job is ended
        for number, name in enumerate(KINDS):
            with self.subTest(name):
                self.use(name)
                straight = f"{self.folder}/{name}"
                self.expect(0, args=[self.deck(), "--dir", straight, *seldom])
                want, rows = self.outcome(straight)
                if name in ("swav", "deepcluster_v2"):
                    self.check_clusters(name, straight, want)
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
