#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/inspect_checkpoint and tools/status on runs of the real program."""
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess

import numpy as np

import harness
from harness import loaded

TOOLS = os.path.join(harness.SOURCE, "tools")


class Inspect(harness.RunTest):
    def tool(self, name, *args):
        done = subprocess.run([f"{TOOLS}/{name}", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD)
        return done.returncode, done.stdout

    def test_checkpoints(self):
        self.expect(0, args=[self.deck()], ranks=2)
        old, new = (f"{self.dir}/checkpoints/{step:010}.h5" for step in (8, 12))
        code, output = self.tool("inspect_checkpoint", new, "--verify")
        self.assertEqual(code, 0, output)
        self.assertIn("valid: step 12", output)
        code, output = self.tool("inspect_checkpoint", new)
        self.assertIn("/params/encoder/embedding/kernel", output)
        self.assertRegex(output, r"(?m)^step +12$")
        values = sum(len(v) // 4 for n, v in self.tensors(12).items() if n == "params/encoder/embedding/kernel")
        code, output = self.tool("inspect_checkpoint", new, "--match", "params/encoder/embedding/kernel", "--stats")
        self.assertIn(f"{values:,} values", output)
        mean = np.frombuffer(self.tensors(12)["params/encoder/embedding/kernel"], np.float32).astype(np.float64).mean()
        self.assertIn(f"{mean:>10.3g}", output)
        code, output = self.tool("inspect_checkpoint", new, "--diff", new)
        self.assertEqual(code, 0, output)
        code, output = self.tool("inspect_checkpoint", new, "--diff", old)
        self.assertEqual(code, 1, output)
        self.assertIn("attribute step: 12 | 8", output)
        self.assertIn("values differ", output)
        code, output = self.tool("inspect_checkpoint", new, "--deck")
        self.assertIn("[optimizer]", output)
        # A folder means its newest checkpoint.
        for folder in (self.dir, f"{self.dir}/checkpoints", f"{self.dir}/checkpoints/"):
            code, output = self.tool("inspect_checkpoint", folder, "--verify")
            self.assertEqual(code, 0, output)
            self.assertIn("0000000012.h5", output)
            self.assertIn("valid: step 12", output)
        self.assertEqual(self.tool("inspect_checkpoint", self.dir, "--diff", new)[0], 0)
        for args, words in (((self.data,), "a folder without checkpoints"), ((self.folder + "/none.h5",), "none.h5: no such file"),
                            ((new, "--diff", self.folder + "/none.h5"), "none.h5: no such file"), ((new, "--match", "a("), "--match")):
            code, output = self.tool("inspect_checkpoint", *args)
            self.assertEqual(code, 2, output)
            self.assertIn(words, output)
        # If the reader has closed the pipe, the tool prints no complaint and does not exit with 0.
        done = subprocess.run(["bash", "-c", f"{TOOLS}/inspect_checkpoint {new} | head -0; exit ${{PIPESTATUS[0]}}"], capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (141, "", ""))

    def copy_of(self, path, name, change):
        """Copies the checkpoint at `path` and applies change(HDF5 file). Its header then does
        not fit, but show() and diff() do not read the header."""
        import h5py
        copy = f"{self.folder}/{name}.h5"
        shutil.copy(path, copy)
        with h5py.File(copy, "r+") as f:
            change(f)
        return copy

    def test_figures(self):
        """--stats and --diff give numbers known beforehand."""
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=4", "--set", "eval.val.every_steps=0"])
        path = f"{self.dir}/checkpoints/0000000004.h5"
        tool = loaded("inspect_checkpoint")
        name = "params/encoder/embedding/kernel"

        def poison(f):
            values = f[name][()]
            values.flat[0], values.flat[1], values.flat[2] = np.nan, np.inf, -7
            f[name][...] = values
        with contextlib.redirect_stdout(io.StringIO()) as out:
            tool.show(self.copy_of(path, "poisoned", poison), ".*embedding/kernel", True)
        self.assertRegex(out.getvalue(), rf"/{name} .* not finite 2\n")
        x = np.frombuffer(self.tensors(4)[name], np.float32).astype(np.float64)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            tool.show(path, name, True)
        self.assertIn(f"mean {x.mean():>10.3g} std {x.std():>9.3g} min {x.min():>10.3g} max {x.max():>10.3g} not finite 0\n\n"
                      f"{x.size:,} values", out.getvalue())

        def nudge(f):
            values = f[name][()]
            values.flat[5] += 0.5
            values.flat[7] -= 2
            f[name][...] = values
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertFalse(tool.diff(path, self.copy_of(path, "nudged", nudge), None))
        self.assertIn(f"/{name}: 2 of {x.size:,} values differ, by at most 2 (largest value {np.abs(x).max():.3g})", out.getvalue())
        # One copy has another shape, the next another type with the same bits.

        def reshape(f):
            values = f[name][()]
            del f[name]
            f[name] = values.reshape(-1)

        def retype(f):
            values = f[name][()]
            del f[name]
            f[name] = values.view(np.int32)
        for change, words in ((reshape, f"f32 [{x.size}]"), (retype, "i32 [")):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertFalse(tool.diff(path, self.copy_of(path, "changed", change), None))
            self.assertIn(words, out.getvalue())

    def test_diff_of_other_models(self):
        """Two files differ if only one of them has some tensor, even if all others are equal."""
        few = ["--set", "train.total_steps=4", "--set", "eval.val.every_steps=0"]
        self.expect(0, args=[self.deck(), *few])
        other = f"{self.folder}/other"
        self.expect(0, args=[self.deck(), *few, "--dir", other, "--set", "model.encoder.depth=2"])
        a, b = (f"{run}/checkpoints/0000000004.h5" for run in (self.dir, other))
        for first, second in ((a, b), (b, a)):
            code, output = self.tool("inspect_checkpoint", first, "--diff", second, "--match", "params/encoder/.*encoderblock_1/.*")
            self.assertEqual(code, 1, output)
            only = re.findall(r"(?m)^only in (\S+): (\S+)$", output)
            self.assertGreater(len(only), 5)
            self.assertEqual({path for path, _ in only}, {b})
            self.assertIn("0 datasets have the same bits", output)
        code, output = self.tool("inspect_checkpoint", a, "--diff", b, "--match", "params/none")
        self.assertEqual(code, 0, output)
        narrow = f"{self.folder}/narrow"
        self.expect(0, args=[self.deck(), *few, "--dir", narrow, "--set", "model.encoder.mlp=32"])
        code, output = self.tool("inspect_checkpoint", a, "--diff", f"{narrow}/checkpoints/0000000004.h5")
        self.assertEqual(code, 1, output)
        self.assertRegex(output, r"(?m)^/params/\S+: f32 \[32, 48\] \| f32 \[32, 32\]$")

    def test_damage_is_named(self):
        self.expect(0, args=[self.deck()], ranks=2)
        path = f"{self.dir}/checkpoints/0000000012.h5"
        with open(path, "rb") as f:
            good = f.read()
        # The damages: a byte of a tensor, of the header, of HDF5's own structure; a cut; an empty
        # file.
        import h5py
        with h5py.File(path) as f:
            tensor = f["params/encoder/embedding/kernel"].id.get_offset()
        def flipped(at, bit=1):
            return good[:at] + bytes([good[at] ^ bit]) + good[at + 1:]
        for damaged, words in ((flipped(tensor + 7), "/params/encoder/embedding/kernel is damaged"), (flipped(50), "header is damaged"),
                               (flipped(50, 0x80), "header is damaged"), (flipped(4200), "structure is damaged"),
                               (good[:-1], "bytes, "), (b"", "shorter than its header")):
            with self.subTest(words):
                with open(path, "wb") as f:
                    f.write(damaged)
                code, output = self.tool("inspect_checkpoint", path, "--verify")
                self.assertEqual(code, 5, output)
                self.assertIn(words, output)

    def test_status(self):
        code, output = self.tool("status", self.folder)
        self.assertEqual(code, 2, output)
        job = subprocess.Popen([harness.TRAINER, self.deck(), "--set", "train.total_steps=100000"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        for line in job.stdout:
            if line.startswith("step=9 "):
                break
        code, output = self.tool("status", self.dir)
        self.assertEqual(code, 0, output)
        self.assertIn(f":{job.pid} ", output.splitlines()[1])
        self.assertIn("running", output)
        self.assertIn("of 100,000", output)
        self.assertIn("eta ", output)
        self.assertRegex(output, r"(?m)^doing       (training|saving|evaluating)")
        self.assertRegex(output, r"(?m)^pace        .* waiting for data \d+ %")
        # A closed pipe gives no traceback.
        done = subprocess.run(f"{TOOLS}/status {' '.join([self.dir] * 400)} | head -1", shell=True, capture_output=True, text=True)
        self.assertEqual((done.stdout.split()[0], done.stderr), ("run", ""))
        job.send_signal(signal.SIGUSR1)
        job.communicate(timeout=harness.GUARD)
        self.assertIn("stopped (exit=75)", self.tool("status", self.dir)[1])
        job = subprocess.Popen([harness.TRAINER, self.deck(), "--set", "train.total_steps=100000"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        for line in job.stdout:
            if line.startswith("step="):
                break
        job.kill()
        job.communicate()
        self.assertRegex(self.tool("status", self.dir)[1], r"not running; its last job \(.*, \w+ step=\d+ since .*\) was killed")

    def test_status_tells_the_phase(self):
        """A run has a long evaluation after each 5th step: status shows it, and the ETA counts
        evaluations."""
        text = self.good + """
[data.many]
kind = "synthetic"
image_size = 16
seq_len = 12
vocab_size = 400
examples = 40000  # long enough for the tool to start, also on a fast machine
preprocess = 'keep("image", "labels") | value_range(-1, 1, key="image")'
"""
        job = subprocess.Popen([harness.TRAINER, self.deck(text), "--set", "train.total_steps=1000", "--set", "eval.val.data=many", "--set",
                                "eval.val.every_steps=5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        evaluations = 0
        for line in job.stdout:
            evaluations += line.startswith("eval=val ")
            if evaluations == 2 and line.startswith("step=15 "):
                break
        # The job is stopped there, because the tool may take as long to start as the evaluation.
        self.wait("the evaluation", lambda: self.phase() == "evaluate step=15")
        job.send_signal(signal.SIGSTOP)
        output = self.tool("status", self.dir)[1]
        self.assertRegex(output, r"(?m)^doing       evaluating, since \d+s, at step 15")
        step, alone = re.search(r"step        (\d+) of", output).group(1), float(re.search(r"pace        ([\d.]+) ms", output).group(1))
        with_all = float(re.search(r"eta .*\(([\d.]+) ms per step with", output).group(1))
        seconds = {row["step"]: row["eval_s"] for row in self.rows("eval")}
        self.assertEqual(step, "15")
        # Rows 3 to 15 cover two evaluations in twelve steps.
        at = {row["step"]: row["uptime_s"] for row in self.rows("train")}
        self.assertAlmostEqual(with_all, 1000 * (at[15] - at[3]) / 12, delta=0.2)
        self.assertGreater(with_all, 1000 * (seconds[5] + seconds[10]) / 12)
        self.assertGreater(alone, 0)
        job.kill()
        job.communicate()


harness.main()
