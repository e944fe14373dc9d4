#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/quickstart as a user runs it: Ctrl-C saves, the same command continues, and all
printed figures are true. Builds nothing new."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

import harness
import place

QUICKSTART = os.path.join(harness.SOURCE, "tools", "quickstart")
SMALL = ("--set", "model.encoder.depth=1", "--set", "model.decoder.depth=1",
         "--set", "train.global_batch=8", "--set", "train.micro_batch=4", "--set", "determinism.slices=4", "--set", "data.val.limit=40")
LONG = (*SMALL, "--set", "train.total_steps=100000", "--set", "eval.val.every_steps=0", "--set", "eval.val_shuffled.every_steps=0",
        "--set", "log.console_every_steps=1")


class Quickstart(harness.RunTest):
    def start(self, *args):
        """Starts the script in its own process group, as a terminal does."""
        return subprocess.Popen([QUICKSTART, "--dir", self.dir, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, text=True, start_new_session=True)

    def until(self, job, text):
        seen = ""
        for line in job.stdout:
            seen += line
            if line.startswith(text):
                return
        self.fail(f"{text} never came:\n{seen}")

    def ended(self, job):
        output = job.communicate(timeout=harness.GUARD)[0]
        return job.returncode, output

    def stopped(self, job):
        """Checks that the promised checkpoint exists, and returns its step."""
        code, output = self.ended(job)
        self.assertEqual(code, 75, output)
        self.assertNotIn("failed", output)
        found = re.search(r"stopped \(exit=75\) with a checkpoint at step (\d+); start the same command to continue", output)
        self.assertTrue(found, output)
        self.assertEqual(self.checkpoints()[-1], f"{int(found[1]):010}.h5")
        return int(found[1])

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_interrupted(self):
        job = self.start(*LONG)
        self.until(job, "step=4 ")
        os.killpg(job.pid, signal.SIGINT)  # Ctrl-C
        first = self.stopped(job)
        self.assertGreaterEqual(first, 4)
        # The same command continues. This time mpirun itself gets a TERM. It ends with 1 although
        # the ranks save, and kills ranks that take long; the script reports both cases.
        job = self.start(*LONG)
        self.until(job, f"step={first + 1} ")
        mpirun = subprocess.run(["pgrep", "-P", str(job.pid), "mpirun"], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(mpirun), 1)
        os.kill(int(mpirun[0]), signal.SIGTERM)
        code, output = self.ended(job)
        self.assertIn(code, (75, 1), output)
        self.assertNotIn("training failed", output)
        found = re.search(r"stopped \(exit=75\) with a checkpoint at step (\d+); start the same command to continue|"
                          r"was killed; newest checkpoint: step (\d+); the same command continues", output)
        self.assertTrue(found, output)
        second = int(found[1] or found[2])
        self.assertEqual(self.checkpoints()[-1], f"{second:010}.h5")
        self.assertGreaterEqual(second, first)
        # The run finishes in a few more steps.
        code, output = self.ended(self.start(*SMALL, "--set", f"train.total_steps={second + 2}"))
        self.assertEqual(code, 0, output)
        self.assertIn(f"Result after {second + 2} steps", output)
        self.assertIn(f"{self.dir}/checkpoints/{second + 2:010}.h5", output)
        self.assertTrue(output.endswith(f"  report      {self.dir}/report.html\n"), output)
        with open(f"{self.dir}/report.html", encoding="utf-8") as f:
            self.assertIn("</html>", f.read())
        with open(harness.SOURCE + "/data/emoji/summary.json") as f:
            entropy = json.load(f)["unigram_entropy_nats"]
        val, shuffled = ([row["perplexity_per_token"] for row in self.rows("eval") if row["eval"] == name][-1]
                         for name in ("val", "val_shuffled"))
        for line in (f"validation loss per token       {val:.3f} nats", f"the same, images shuffled       {shuffled:.3f} nats",
                     f"unigram entropy of captions     {entropy:.3f} nats",
                     f"loss / unigram entropy          {val / entropy:.3f}        goal: at most 0.62   MISSED",
                     f"worth of the image              {shuffled - val:.3f} nats   goal: at least 0.5   MISSED"):
            self.assertIn(line, output)
        zero_shot = [row["top1"] for row in self.rows("eval") if row["eval"] == "zero_shot"][-1]
        self.assertIn(f"zero-shot accuracy              {zero_shot:.3f}        99 classes by their names alone; chance 0.010", output)
        with open(f"{self.dir}/eval/captions/{second + 2:010}/captions.jsonl", encoding="utf-8") as f:
            captions = [json.loads(line) for line in f]
        self.assertEqual(len(captions), 40)
        printed = re.search(r"Captions of validation images, generated and true:\n(.*?)Files:", output, re.S)[1].splitlines()
        self.assertEqual([[text.strip() for text in line.split("  |  ")] for line in printed],
                         [[row["caption"], " / ".join(row["references"])] for row in captions[:8]])

    def test_failed(self):
        # The program refuses this before it makes the run directory, so the script asks nothing
        # about it.
        code, output = self.ended(self.start("--set", "model.encoder.heads=3"))
        self.assertEqual(code, 1, output)
        self.assertRegex(output, r"error: quickstart stopped: training failed with exit \d+ \(message above\)")
        for args, words in ((("--dirr", "x"), "unknown argument '--dirr'"), (("--set",), "an option without its value")):
            code, output = self.ended(self.start(*args))
            self.assertEqual(code, 1, output)
            self.assertIn(words, output)


class Result(harness.RunTest):
    """tools/quickstart_result.py alone, on a made run."""

    def result(self, val, shuffled, top1, *options, files=None, digest=None, decks=("12ab",)):
        """Returns exit code and output for a run with these values, with these hashes of its data, its bits and its attempts' decks."""
        for name, row in (("val", {"perplexity_per_token": val}), ("val_shuffled", {"perplexity_per_token": shuffled}),
                          ("zero_shot", {"top1": top1}), ("captions", {"cider_d": 0.7})):
            os.makedirs(f"{self.dir}/eval/{name}/0000000700", exist_ok=True)
            with open(f"{self.dir}/metrics.jsonl", "a", encoding="utf-8") as f:
                f.write(json.dumps({"kind": "eval", "eval": name, "step": 700, **row}) + "\n")
        os.makedirs(f"{self.dir}/checkpoints", exist_ok=True)
        for name, text in (("eval/zero_shot/0000000700/confusions.json", '{"classes": [1, 2, 3, 4]}'), ("checkpoints/0000000700.h5", ""),
                           ("eval/captions/0000000700/captions.jsonl", '{"caption": "a", "references": ["b", "c"]}\n')):
            with open(f"{self.dir}/{name}", "w", encoding="utf-8") as f:
                f.write(text)
        with open(f"{self.data}/summary.json", "w", encoding="utf-8") as f:
            json.dump({"unigram_entropy_nats": 4.436, "files": files or {}}, f)
        os.makedirs(f"{self.dir}/logs", exist_ok=True)
        with open(f"{self.dir}/logs/rank00000.log", "w", encoding="utf-8") as f:
            for deck in decks:
                f.write(f"12:00:00 trainer 0.1.0\n12:00:00 deck     inputs/emoji.toml sha256={deck} overrides=0  everything\n")
            f.write("12:00:00 digest   losses={} weights={}\n".format(*digest) if digest else "")
        done = subprocess.run(["/usr/bin/python3", harness.SOURCE + "/tools/quickstart_result.py", self.dir, self.data, "60", "50",
                               *options],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
        return done.returncode, done.stdout

    def test_values_beside_those_of_other_runs(self):
        low, high = harness.loaded("quickstart_result.py").RANGES["validation loss per token"]
        for options in ((), ("--dir", "runs/x", "--set=run.seed=7")):
            code, output = self.result(low, low + 0.85, 0.1, *options)
            self.assertEqual(code, 0, output)
            self.assertIn(f"validation loss per token       {low:.3f} nats   other runs: {low:.3f} to {high:.3f}", output)
            self.assertNotRegex(output, "FAR OUTSIDE|MISSED|warning")
        # A little outside may be rounding. Far outside is a fault, also on the good side.
        width = high - low
        for value, word in ((high + 0.4 * width, False), (high + 0.6 * width, True), (low - 0.6 * width, True)):
            code, output = self.result(value, value + 0.85, 0.1)
            self.assertEqual(code, 0, output)
            self.assertEqual("warning: 'validation loss per token' is far outside" in output, word, output)
            self.assertEqual(bool(re.search("validation loss per token .*FAR OUTSIDE", output)), word)
        code, output = self.result(high, high + 0.2, 0.1)
        self.assertEqual(code, 1, output)
        self.assertIn("goal: at least 0.5   MISSED", output)
        self.assertIn("error: the run finished but missed a goal", output)
        # Another experiment is compared with nothing.
        code, output = self.result(9.0, 9.1, 0.0, "--set", "train.total_steps=9")
        self.assertEqual(code, 0, output)
        self.assertNotRegex(output, "other runs|FAR OUTSIDE|warning|error")

    def test_bits_beside_those_of_the_record(self):
        with open(harness.loaded("quickstart_result.py").RECORDED, encoding="utf-8") as f:
            recorded = json.load(f)
        good, bits = recorded["data"], (recorded["losses"], recorded["weights"])
        self.assertIn("tokenizer.model", good)
        same = "All losses and weights are those of README.md's run, to the last bit."
        self.assertIn(same, self.result(2.0, 2.85, 0.1, files=good, digest=bits)[1])
        self.assertIn(same, self.result(2.0, 2.85, 0.1, "--dir", "runs/x", "--set", "run.cpu=avx2", files=good, digest=bits)[1])
        self.assertIn("packages differ", self.result(2.0, 2.85, 0.1, files={**good, "val-000.tar": "0"}, digest=bits)[1])
        for other in ((bits[1], bits[1]), (bits[0], bits[0])):
            self.assertIn("warning: The deck and the data are those of README.md, but losses and weights are not",
                          self.result(2.0, 2.85, 0.1, files=good, digest=other)[1])
        self.assertIn(same, self.result(2.0, 2.85, 0.1, files=good, digest=bits, decks=("12ab", "12ab"))[1])
        self.assertNotRegex(self.result(2.0, 2.85, 0.1, files=good, digest=(bits[1], bits[1]), decks=("12ab", "34cd"))[1],
                            "README|warning")
        for options, digest in ((("--set", "run.seed=1"), bits), ((), None)):
            self.assertNotRegex(self.result(2.0, 2.85, 0.1, *options, files=good, digest=digest)[1], "README|warning")

    def test_pages_state_the_same_ranges(self):
        for name, (low, high) in harness.loaded("quickstart_result.py").RANGES.items():
            for page in ("README.md", "inputs/emoji.toml"):
                with open(f"{harness.SOURCE}/{page}", encoding="utf-8") as f:
                    self.assertIn(f"{low:.3f} to {high:.3f}", f.read(), f"{page}: {name}")


if os.path.realpath(harness.TRAINER) != harness.SOURCE + "/build/trainer":
    print("skipped: quickstart uses build/trainer, and another one is tested")
    sys.exit(77)
if not os.path.exists(harness.SOURCE + "/data/emoji/summary.json"):
    print("skipped: no data/emoji (tools/make_emoji_dataset data/emoji)")
    sys.exit(77)
harness.main()
