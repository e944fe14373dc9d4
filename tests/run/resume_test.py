#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints and resuming in the real program: same bits, other meshes, damaged files,
finished runs, the lock."""
import json
import os
import shutil
import signal
import subprocess

import harness


class Resume(harness.RunTest):
    def same(self, a, b):
        self.assertEqual(sorted(a), sorted(b))
        for name in a:
            self.assertEqual(a[name], b[name], name)

    def straight(self, *extra, ranks=2):
        """Makes an uninterrupted run in another directory."""
        folder = self.folder + "/straight"
        self.expect(0, "done     exit=0", args=[self.deck(), "--dir", folder, *extra], ranks=ranks)
        return folder

    def losses(self, folder=None):
        return {row["step"]: row["loss"] for row in self.rows(folder=folder)}

    def test_resume_is_the_same_run(self):
        folder = self.straight()
        # A kill after the checkpoint of step 8 loses rows from 9 on; step 12 must have the same
        # bits.
        self.expect(0, args=[self.deck()], ranks=2)
        os.remove(f"{self.dir}/checkpoints/0000000012.h5")
        self.expect(0, "from=checkpoint", "step=9 ", "done     exit=0", args=[self.deck()], ranks=2)
        self.assertNotIn("step=8 loss", self.output)
        self.same(self.tensors(12), self.tensors(12, folder))
        self.assertEqual(self.losses(), self.losses(folder))
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 13)))
        self.assertEqual([row["step"] for row in self.rows("eval")], [6, 12])

    def test_finished(self):
        self.expect(0, args=[self.deck()], ranks=2)
        before = self.tensors(12)
        self.expect(0, "finished", args=[self.deck()], ranks=2)
        self.assertNotIn("loss=", self.output)
        self.same(before, self.tensors(12))
        # A longer run continues it; the schedule follows the new length.
        self.expect(0, "step=13 ", "step=15 ", args=[self.deck(), "--set", "train.total_steps=15"], ranks=2)

    def test_phases(self):
        """40 examples in batches of 12: epochs end with steps 4, 7 and 10, and the run ends in epoch 3."""
        phases = ["--set", "train.test_every=2", "--set", "eval.val.every_steps=0", "--set", "eval.val.at_end=false"]
        self.expect(0, "phases   TeTTeTe ", "val in test phases", args=[self.deck(), *phases])
        self.assertEqual([(row["step"], row["phase"]) for row in self.rows("eval")], [(4, 1), (10, 4), (12, 6)])
        self.assertEqual([row["train_phase"] for row in self.rows()], [0] * 4 + [1] * 3 + [2] * 3 + [3] * 2)
        self.assertEqual([row["phase"] for row in self.rows()], [0] * 4 + [2] * 3 + [3] * 3 + [5] * 2)

    def test_until_the_input_ends(self):
        until = [self.deck(), "--set", "train.total_steps=input"]
        self.expect(0, "length   3 steps = 36 examples", "the input ends there", "eval=val step=3 ",
                    "input    its end was reached: 40 examples; the last 4 do not fill a batch", args=until, ranks=2)
        self.assertEqual([row["step"] for row in self.rows()], [1, 2, 3])
        self.assertEqual(self.rows()[-1]["progress"], 1)
        self.expect(0, "finished", args=until, ranks=2)
        self.assertNotIn("loss=", self.output)
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertRegex(f.read(), r'total_steps +(= "input")')
        self.expect(0, "step=4 ", "changed  train.total", args=[self.deck(), "--set", "train.total_steps=4"], ranks=2)
        self.expect(2, "train.total_steps", "before the first batch of 48", args=[*until, "--dir", self.folder + "/none", "--set",
                                                                           "train.global_batch=48"], ranks=2)
        self.assertFalse(os.path.exists(self.folder + "/none"))

    def test_other_meshes(self):
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        reference = self.tensors(12, self.straight(*mesh, ranks=1))
        self.expect(0, args=[self.deck(), *mesh], ranks=2)
        for ranks, replica, sharding in ((1, 1, "replicated"), (4, 1, "sharded"), (4, 1, "replicated"), (2, 2, "sharded"),
                                         (4, 2, "sharded"), (4, 4, "replicated")):
            with self.subTest(ranks=ranks, replica=replica, sharding=sharding):
                folder = f"{self.folder}/on{ranks}{replica}{sharding}"
                shutil.copytree(self.dir, folder)
                os.remove(f"{folder}/checkpoints/0000000012.h5")
                self.expect(0, "from=checkpoint", "step=9 ", ranks=ranks,
                            args=[self.deck(), "--dir", folder, *mesh, "--set", f"sharding.parameters={sharding}",
                                  "--set", f"mesh.replica={replica}"])
                self.same(self.tensors(12, folder), reference)
                if ranks // replica > 1 < replica:
                    self.assertRegex(self.output, r"check +all-reduce 16 MiB: world [1-9].* ms, fsdp [1-9].* ms, replica [1-9].* ms")
        # Three ranks need level "run", whose losses stay close.
        folder = f"{self.folder}/on3"
        shutil.copytree(self.dir, folder)
        os.remove(f"{folder}/checkpoints/0000000012.h5")
        self.expect(0, "from=checkpoint", "step=9 ", args=[self.deck(), "--dir", folder, "--allow-change", "determinism"], ranks=3)
        for step, loss in self.losses(folder).items():
            self.assertAlmostEqual(loss, self.losses()[step], delta=1e-5 * loss)

    def test_again(self):
        # A small model with texts of 64, 196 patches and threads: the same command gives the same
        # bits.
        small = {"model.encoder": "{ patch = 16, depth = 1, width = 128, mlp = 64, heads = 8 }", "model.vocab_size": 500,
                 "data.train.vocab_size": 500, "train.global_batch": 16, "train.total_steps": 8, "run.threads": 2,
                 "optimizer.learning_rate": 1e-3, "log.groups": '["decoder/.*/value/.*"]'}
        for compute in ("f32", "bf16"):
            rows = []
            for folder in ("one", "two"):
                folder = f"{self.folder}/{folder}_{compute}"
                words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
                self.expect(0, args=[harness.SOURCE + "/inputs/bench_s16.toml", "--dir", folder, "--set",
                                     f"precision.compute={compute}", *words])
                with open(folder + "/metrics.jsonl") as f:
                    rows.append([{name: value for name, value in json.loads(line).items() if name.startswith(("loss", "l2_"))}
                                 for line in f if '"l2_grads"' in line])
            self.assertGreaterEqual(len(rows[0]), 8)
            self.assertEqual(*rows)

    def test_bf16(self):
        # Operands rounded to bf16 give other numbers than f32, and the same bits on other meshes
        # and after a restart.
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        exact = self.losses(self.straight(*mesh, ranks=1))
        narrow = ["--set", "precision.compute=bf16"]
        folder = self.folder + "/narrow"
        self.expect(0, "compute  bf16=", args=[self.deck(), "--dir", folder, *mesh, *narrow], ranks=1)
        for step, loss in self.losses(folder).items():
            # logits are 0 until the first step with a learning rate
            self.assertTrue(loss != exact[step] or step <= 2)
            self.assertAlmostEqual(loss, exact[step], delta=1e-2 * loss)
        self.expect(0, args=[self.deck(), *mesh, *narrow, "--set", "sharding.parameters=replicated"], ranks=2)
        os.remove(f"{self.dir}/checkpoints/0000000012.h5")
        self.expect(0, "from=checkpoint", "step=9 ", args=[self.deck(), *mesh, *narrow], ranks=4)
        self.same(self.tensors(12), self.tensors(12, folder))
        # On CPUs without such instructions (or if oneDNN may not use them) the log reports it.
        native = self.losses(folder)
        rounding = {step: abs(native[step] - exact[step]) for step in exact}
        for limit in ("AVX2", "AVX512_CORE"):
            os.environ["ONEDNN_MAX_CPU_ISA"] = limit
            try:
                self.expect(0, "compute  bf16=emulated", args=[self.deck(), "--dir", folder + limit, *mesh, *narrow], ranks=2)
            finally:
                del os.environ["ONEDNN_MAX_CPU_ISA"]
            # Both runs round the same values (Bf16Rounding in test_kernels, Bf16 in test_models),
            # but add f32 sums in another order. Step 3 is the first one whose loss depends on
            # products. After it, sums that differ in their last bit change roundings, and training
            # doubles the difference every step or two. At the end roundings have moved the runs as
            # far as they can: each is as far from f32 as the other, within a factor of 3.
            for step, loss in self.losses(folder + limit).items():
                bound = 0.1 * rounding[3] if step <= 3 else 4 * max(rounding.values())
                self.assertLessEqual(abs(loss - native[step]), bound, f"{limit}: step {step}")

    def test_damaged(self):
        self.expect(0, args=[self.deck()], ranks=2)
        good = self.tensors(12)
        newest = f"{self.dir}/checkpoints/0000000012.h5"
        with open(newest, "rb") as f:
            content = f.read()
        middle = len(content) // 2
        for what, damaged in (("empty", b""), ("head", content[:1000]), ("half", content[: len(content) // 2]), ("tail", content[:-1]),
                              ("flip", content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:])):
            with self.subTest(what):
                with open(newest, "wb") as f:
                    f.write(damaged)
                # The run uses the checkpoint before it, logs the reason, and ends with the same
                # bits.
                self.expect(0, "0000000012.h5", "level=warning", "step=9 ", args=[self.deck()], ranks=2)
                self.same(self.tensors(12), good)
        # Without a valid checkpoint the run never starts afresh.
        for name in self.checkpoints():
            with open(f"{self.dir}/checkpoints/{name}", "r+b") as f:
                f.truncate(5000)
        names = self.checkpoints()
        self.expect(5, names[0], names[-1], args=[self.deck()], ranks=2)
        self.assertEqual(self.checkpoints(), names)

    def test_resume_words(self):
        self.expect(5, "resume", args=[self.deck(), "--set", "checkpoint.resume=must"])
        self.expect(0, args=[self.deck()], ranks=2)
        self.expect(0, "step=5 ", args=[self.deck(), "--set", 'checkpoint.resume="4"'], ranks=2)

    def test_nth_newest(self):
        every = [self.deck(), "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=9"]
        self.expect(0, args=every, ranks=2)
        steps = range(2, 13, 2)
        back = [*every, "--set", 'checkpoint.resume="-3"']
        self.expect(0, "restore  step=8 ", "step=9 ", "done     exit=0", args=back, ranks=2)
        kept = sorted(os.listdir(self.dir + "/checkpoints/abandoned"))
        self.assertEqual(kept, ["0000000010.h5", "0000000012.h5"])
        self.assertEqual(self.checkpoints(), [f"{step:010}.h5" for step in steps])
        # A repeated command goes on from the newest one.
        self.expect(0, 'resume = "-3" was already carried out', "finished", args=back, ranks=2)
        self.expect(5, 'resume = "-7"', "holds only steps 12 10 8 6 4 2", args=[*every, "--set", 'checkpoint.resume="-7"'], ranks=2)
        self.expect(2, "checkpoint.resume", "N-th newest", args=[*every, "--set", 'checkpoint.resume="-x"'])
        self.expect(2, "checkpoint.resume", "N-th newest", args=[*every, "--set", 'checkpoint.resume="-0"'])
        self.expect(0, "restore  step=12 ", args=[*every, "--set", 'checkpoint.resume="-1"'], ranks=2)

    def test_other_model(self):
        self.expect(0, args=[self.deck()], ranks=2)
        before = self.tensors(12)
        self.expect(5, "decoder/EncDecBlock1", args=[self.deck(), "--set", "model.decoder.depth=2", "--set", "train.total_steps=20"])
        self.same(before, self.tensors(12))

    def test_keep_last(self):
        self.expect(0, args=[self.deck(), "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=2"], ranks=2)
        self.assertEqual(self.checkpoints(), ["0000000010.h5", "0000000012.h5"])
        self.assertEqual(os.readlink(self.dir + "/checkpoints/latest.h5"), "0000000012.h5")

    def test_saved_when_a_metric_passes(self):
        often = ["--set", "eval.val.every_steps=1", "--set", "checkpoint.every_steps=0", "--set", "checkpoint.keep_last=20"]
        folder = self.straight(*often)
        self.assertEqual(self.checkpoints(folder), ["0000000012.h5"])
        values = {row["step"]: row["perplexity"] for row in self.rows("eval", folder)}
        middle = (max(values.values()) + min(values.values())) / 2
        for side in ("below", "above"):
            beyond = {step: value < middle if side == "below" else value > middle for step, value in values.items()}
            want = {step for step in beyond if beyond[step] and not beyond.get(step - 1, False)}
            self.assertTrue(want)
            there = self.folder + "/" + side
            # The value before the first step passes nothing.
            args = [self.deck(), "--dir", there, *often, "--set", f"checkpoint.passes=val/perplexity:{side}:{middle!r}",
                    "--set", "eval.val.at_start=true"]
            self.expect(0, args=args, ranks=2)
            self.assertEqual(self.checkpoints(there), [f"{step:010}.h5" for step in sorted(want | {12})])
            passed = {int(line.split()[1][5:]) for line in self.output.splitlines() if line.endswith("passes=yes")}
            self.assertEqual(passed, want)
            # Checkpoints know the side: a run that goes on does not save for it again.
            self.expect(0, args=[*args, "--set", "train.total_steps=13"], ranks=2)
            value = self.rows("eval", there)[-1]["perplexity"]
            crossed = not beyond[12] and (value < middle if side == "below" else value > middle)
            self.assertEqual("passes=yes" in self.output, crossed)
        for text, problem in (("val/perplexity:min", "is not EVAL/METRIC:below:VALUE"), ("val/perplexity:below:x", "is not"),
                              ("val/perplexit:below:3", "did you mean"), ("vol/perplexity:above:3", "there is no [eval.vol]")):
            self.expect(2, "checkpoint.passes", problem, args=[self.deck(), "--validate", "--set", f"checkpoint.passes={text}"])

    def test_small_parameters_stay_replicated(self):
        # 0.004 MiB = 1,048 values: 32 x 32 kernels are replicated, 32 x 48 and larger ones sharded.
        # At level "mesh" the sharding changes no bit.
        mesh = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]
        folder = self.straight(*mesh)
        self.expect(0, args=[self.deck(), *mesh, "--set", "sharding.min_size_to_shard_mb=0.004"], ranks=2)
        self.same(self.tensors(12), self.tensors(12, folder))
        plans = []
        for least in ("0", "0.004", "1000"):
            self.expect(0, args=[self.deck(), "--mode", "plan", "--ranks", "2", "--set", f"sharding.min_size_to_shard_mb={least}"])
            plans.append(self.output)
        self.assertEqual(len(set(plans)), 3)

    def test_first_step(self):
        first = ["--set", "checkpoint.first_step=true"]
        self.expect(0, args=[self.deck(), *first], ranks=2)
        self.assertEqual(self.checkpoints(), ["0000000004.h5", "0000000008.h5", "0000000012.h5"])
        wrote = [line.split()[1] for line in self.output.splitlines() if line.startswith("checkpoint ")]
        self.assertEqual(wrote, ["step=1", "step=4", "step=8", "step=12"])
        # Without a period too, and not again in a run that goes on.
        other = [self.deck(), "--dir", self.folder + "/other", *first, "--set", "checkpoint.every_steps=0"]
        self.expect(0, "checkpoint step=1 ", args=[*other, "--set", "train.total_steps=3"])
        self.assertEqual(self.checkpoints(self.folder + "/other"), ["0000000001.h5", "0000000003.h5"])
        self.expect(0, "from=checkpoint", args=[*other, "--set", "train.total_steps=4"])
        self.assertNotIn("checkpoint step=1 ", self.output)

    def test_lock(self):
        first = subprocess.Popen([harness.TRAINER, self.deck(), "--set", "train.total_steps=100000"], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, cwd=self.folder)
        try:
            self.wait("a checkpoint", lambda: os.path.exists(self.dir + "/lock") and self.checkpoints())
            self.assertEqual(self.run_trainer(self.deck()), 2, self.output)
            self.assertIn(str(first.pid), self.output)
        finally:
            first.kill()
            first.wait()
            first.stdout.close()
        # A dead job leaves no lock behind.
        self.expect(0, "from=checkpoint", args=[self.deck(), "--set", "train.total_steps=%d" % (int(self.checkpoints()[-1][:10]) + 2)])

    def test_signal_stops_with_a_checkpoint(self):
        # mpirun passes USR1 on to the ranks: a checkpoint of the current step, exit 75, and the
        # same command continues.
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(), "--set", "train.total_steps=100000"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        for line in job.stdout:
            if line.startswith("step=5 "):
                break
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(harness.exit_code(job.returncode, output), 75, output)
        stopped = int(self.checkpoints()[-1][:10])
        self.assertIn(f"stopped  step={stopped}", output)
        self.expect(0, f"step={stopped + 1} ", args=[self.deck(), "--set", f"train.total_steps={stopped + 2}"], ranks=2)

    def test_frozen_has_no_state(self):
        text = self.changed(('[[optimizer.rule]]\nmatch       = ".*/kernel"', '[[optimizer.rule]]\nmatch = "encoder/.*"\nfrozen = true\n'
                             '[[optimizer.rule]]\nmatch       = ".*/kernel"'))
        self.expect(0, args=[self.deck(text)], ranks=2)
        tensors = self.tensors(12)
        self.assertTrue(any("encoder/" in name for name in tensors if name.startswith("params/")))
        self.assertFalse([name for name in tensors if name.startswith("optimizer/") and "/encoder/" in name])
        self.same({n: v for n, v in tensors.items() if n.startswith("params/encoder")},
                  {n: v for n, v in self.tensors(4).items() if n.startswith("params/encoder")})


harness.main()
