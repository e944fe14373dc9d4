#!/usr/bin/python3
"""tools/inspect_checkpoint and tools/status on runs of the real program."""
import os
import re
import signal
import subprocess

import numpy as np

import harness

TOOLS = os.path.join(harness.SOURCE, "tools")


class Inspect(harness.RunTest):
    def tool(self, name, *args):
        done = subprocess.run([f"{TOOLS}/{name}", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
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

    def test_damage_is_named(self):
        self.expect(0, args=[self.deck()], ranks=2)
        path = f"{self.dir}/checkpoints/0000000012.h5"
        with open(path, "rb") as f:
            good = f.read()
        # A byte of a tensor, of the header, of HDF5's own structure; a cut; nothing at all.
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
        # No traceback if nobody reads on.
        done = subprocess.run(f"{TOOLS}/status {' '.join([self.dir] * 400)} | head -1", shell=True, capture_output=True, text=True)
        self.assertEqual((done.stdout.split()[0], done.stderr), ("run", ""))
        job.send_signal(signal.SIGUSR1)
        job.communicate(timeout=60)
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
        """A run with a long evaluation after each 5th step: it says so, and the ETA counts evaluations."""
        text = self.good + """
[data.many]
kind = "synthetic"
image_size = 16
seq_len = 12
vocab_size = 400
examples = 40000  # even a fast machine is still at it when the tool has started
preprocess = 'keep("image", "labels") | value_range(-1, 1, key="image")'
"""
        job = subprocess.Popen([harness.TRAINER, self.deck(text), "--set", "train.total_steps=1000", "--set", "eval.val.data=many", "--set",
                                "eval.val.every_steps=5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, text=True)
        evaluations = 0
        for line in job.stdout:
            evaluations += line.startswith("eval=val ")
            if evaluations == 2 and line.startswith("step=15 "):
                break
        for _ in range(100):
            output = self.tool("status", self.dir)[1]
            if "evaluating" in output:
                break
        self.assertRegex(output, r"(?m)^doing       evaluating, since \d+s, at step 15")
        step, alone = re.search(r"step        (\d+) of", output).group(1), float(re.search(r"pace        ([\d.]+) ms", output).group(1))
        with_all = float(re.search(r"eta .*\(([\d.]+) ms per step with", output).group(1))
        seconds = {row["step"]: row["eval_s"] for row in self.rows("eval")}
        self.assertEqual(step, "15")
        # Rows 3 to 15: two evaluations in twelve steps.
        at = {row["step"]: row["uptime_s"] for row in self.rows("train")}
        self.assertAlmostEqual(with_all, 1000 * (at[15] - at[3]) / 12, delta=0.2)
        self.assertGreater(with_all, 1000 * (seconds[5] + seconds[10]) / 12)
        self.assertGreater(alone, 0)
        job.kill()
        job.communicate()


harness.main()
