# SPDX-License-Identifier: Apache-2.0
"""Runs the real program for tests: decks, small image-caption shards, mpirun, and the files of the run."""
import glob
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import h5py
import numpy as np
from PIL import Image

TRAINER = os.environ["TRAINER"]  # build/trainer
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENIZER = os.path.join(SOURCE, "tests/golden/tokenizer/unigram.model")
GUARD = 1800  # s: ends hung tests; no other check depends on it, so busy and slow machines pass


def png(seed, size=20):
    rng = np.random.default_rng(seed)
    image = np.full((size, size, 3), rng.integers(0, 255, 3), np.uint8)
    image[: size // 2, : size // 2] = rng.integers(0, 255, 3)
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def preload(library):
    """Returns the libraries to load before the C library: this one, and those of the environment (tests/inject/rest.cpp)."""
    return ":".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))


def sets(*pairs):
    """Returns the program's arguments for KEY=VALUE pairs."""
    return [word for pair in pairs for word in ("--set", pair)]


def exit_code(code, output):
    """Returns what a job ended with. The mpiexec of MPICH 4.0 may return 0 after ranks that ended with 75; as the job scripts do
    (jobs/common.sh), the tests then believe the run's last line."""
    if code == 0 and os.environ.get("TRAINER_LAUNCHER", "").startswith("hydra:"):
        said = re.findall(r"^done  +exit=(\d+)$", output, re.M)
        return int(said[-1]) if said else code
    return code


def hdf5_kind():
    """Returns "parallel" if the program's HDF5 was built with MPI, else "serial"."""
    text = subprocess.run([TRAINER, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r" hdf5=\d[\d.]*-(\w+)", text)[1]


def wall_time(seconds):
    """Returns the arguments of a job with this many seconds."""
    return ["--set", f"limits.wall_time={seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"]


def add_member(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def make_shards(folder, samples=40, shards=2):
    """Makes image-caption shards train-000.tar ...: a sample's caption depends on its image."""
    words = ["a red house", "the small cat", "two birds on a wire", "blue water", "an old tree by the road"]
    for s in range(shards):
        with tarfile.open(f"{folder}/train-{s:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(s, samples, shards):
                add_member(tar, f"{i:06}.png", png(i))
                add_member(tar, f"{i:06}.txt", words[i % len(words)].encode())


# The decks of tests give a peak. Measuring it would keep each rank busy for 0.15 s of each start, as it does in the runs of
# docs_test.py and quickstart_test.py.
DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
train  = {{ data = "train", total_steps = 12, global_batch = 12, micro_batch = 6 }}
mesh   = {{ replica = 1, fsdp = -1 }}
sharding = {{ parameters = "sharded", optimizer = "sharded" }}
log    = {{ console_every_steps = 1 }}
profile = {{ peak_tflops = 0.1 }}

[model]
kind             = "cappa"
image_size       = 16
vocab_size       = 400
seq_len          = 12
masked_pred_prob = 0.5
encoder          = {{ patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }}
decoder          = {{ depth = 1 }}

[optimizer]
kind          = "adafactor"
learning_rate = 1e-2
clip_norm     = 1.0

[[optimizer.rule]]
match       = ".*/kernel"
decay_scale = 1.0
[[optimizer.rule]]
match       = ".*"
decay_scale = 0.0

[schedule.default]
kind         = "cosine"
warmup_steps = 2

[tokenizer.words]
kind = "sentencepiece"
path = "{tokenizer}"

[data.train]
kind       = "webdataset"
path       = "{data}/train-{{000..001}}.tar"
fields     = {{ image = "png", text = "txt" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")'''

[eval.val]
kind        = "perplexity"
data        = "train"
every_steps = 6

[checkpoint]
every_steps = 4
keep_last   = 3
"""


class RunTest(unittest.TestCase):
    """Gives each test its own folder, with shards in `data` and a good deck."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trainer_test_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.data = os.path.join(self.folder, "data")
        self.dir = os.path.join(self.folder, "run")
        os.mkdir(self.data)
        make_shards(self.data)
        self.good = DECK.format(dir=self.dir, data=self.data, tokenizer=TOKENIZER)

    def deck(self, text=None, name="deck.toml"):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(self.good if text is None else text)
        return path

    def changed(self, *replacements):
        """Returns the good deck with (old, new) replaced; each `old` must occur exactly once."""
        text = self.good
        for old, new in replacements:
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        return text

    def poisoned(self, policy, *more, examples=60, bad=(40,)):
        """Returns arguments for images from an HDF5 file. Some overflow the loss: by default one, in step 4 of batch 12 in
        order. Their pixels are finite, because a sample with others is a broken sample."""
        images = np.random.default_rng(0).uniform(-1, 1, (examples, 16, 16, 3)).astype(np.float32)
        labels = np.random.default_rng(1).integers(3, 400, (examples, 12)).astype(np.int32)
        images[list(bad)] = 3e38
        with h5py.File(self.folder + "/poisoned.h5", "w") as f:
            f["images"], f["labels"] = images, labels
        text = self.good + f'\n[data.poisoned]\nkind = "hdf5"\npath = "{self.folder}/poisoned.h5"\n'
        text += 'fields = { image = "images: f32 [16, 16, 3]", labels = "labels: i32 [12]" }\npreprocess = \'keep("image", "labels")\'\n'
        return [self.deck(text), "--set", "train.data=poisoned", "--set", "train.shuffle=none", "--set", "eval.val.every_steps=0",
                "--set", "checkpoint.every_steps=2", "--set", "eval.val.at_end=false", "--set", f"guard.nonfinite={policy}",
                "--set", "train.total_steps=8", *more]

    def run_trainer(self, *args, ranks=0, timeout=GUARD, cwd=None, env=None):
        """Returns the exit code; `output` gets all output. ranks = 0: without mpirun."""
        command = (["mpirun", "-np", str(ranks)] if ranks else []) + [TRAINER, *map(str, args)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                              cwd=cwd or self.folder, stdin=subprocess.DEVNULL, env=env)
        self.output = done.stdout
        return exit_code(done.returncode, self.output) if ranks else done.returncode

    def expect(self, code, *fragments, args=(), ranks=0, **more):
        """Runs the program, and checks the exit code and fragments of the output."""
        got = self.run_trainer(*args, ranks=ranks, **more)
        self.assertEqual(got, code, self.output)
        for fragment in fragments:
            self.assertIn(fragment, self.output)

    def wait(self, what, condition, pause=0.02):
        """Waits until the condition has a value, and returns the value."""
        end = time.monotonic() + GUARD
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, f"{what}: never came")
            time.sleep(pause)
        return value

    def assert_no_slower(self, what, usual, factor, tries=10):
        """Checks that `what` takes at most `factor` times as long as `usual`. Both run in turn until this holds: other programs
        on the machine disturb a try, but not each of them."""
        seen = []
        for _ in range(tries):
            moments = [time.monotonic()]
            for call in (usual, what):
                call()
                moments.append(time.monotonic())
            seen.append((moments[2] - moments[1]) / (moments[1] - moments[0]))
            if seen[-1] <= factor:
                return
        self.fail(f"slower by these factors, not {factor}: {seen}")

    def phase(self, folder=None):
        """Returns the activity of the job in the run directory, from its lock: "train step=4"; "" without a job."""
        try:
            with open(f"{folder or self.dir}/lock") as f:
                return f.read().strip().rpartition("\n")[2].partition(" since ")[0]
        except FileNotFoundError:
            return ""

    def checkpoints(self, folder=None):
        names = map(os.path.basename, glob.glob((folder or self.dir) + "/checkpoints/*.h5"))
        return sorted(set(names) - {"latest.h5"})

    def tensors(self, step, folder=None):
        """Returns every dataset under /params, /optimizer, /ema and /teacher, as bytes."""
        out = {}
        with h5py.File(f"{folder or self.dir}/checkpoints/{step:010}.h5") as f:
            for root in {"params", "optimizer", "ema", "teacher"} & set(f):  # plain SGD keeps nothing
                f[root].visititems(lambda name, d, root=root: out.__setitem__(f"{root}/{name}", d[()].tobytes())
                                   if isinstance(d, h5py.Dataset) else None)
        return out

    def rows(self, kind="train", folder=None):
        with open(f"{folder or self.dir}/metrics.jsonl") as f:
            return [row for row in map(json.loads, f) if row["kind"] == kind]


def loaded(name):
    """Imports a tool as a module, for tests of its parts."""
    path = os.path.join(SOURCE, "tools", name)
    if os.path.dirname(path) not in sys.path:
        sys.path.insert(0, os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def main():
    """Runs all tests of a script. If all of them were skipped, the script ends with CTest's code for that."""
    result = unittest.main(verbosity=2, exit=False).result
    skipped = len(result.skipped) == result.testsRun > 0
    sys.exit(1 if not result.wasSuccessful() else 77 if skipped else 0)
