#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ResNets with group norm as a user trains them: values against NumPy, weights with torchvision's names in and out, equal
numbers on all meshes, on emulated GPUs with and without graphs, plans, and refusals."""
import os
import subprocess

import h5py
import numpy as np

import harness
from harness import sets

EMULATED = os.environ.get("TRAINER_ON_EMULATOR", "")
BLOCKS, WIDTH, GROUPS, CLASSES = (2, 2, 2, 2), 8, 4, 5  # of a ResNet-18

DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 4, global_batch = 16, micro_batch = 4 }}
mesh   = {{ replica = 1, fsdp = -1 }}

[model]
kind        = "classifier"
image_size  = 32
num_classes = 5
trunk       = {{ kind = "resnet", depth = 18, width = 8, norm = "group", norm_groups = 4 }}

[optimizer]
kind          = "sgd"
learning_rate = 0.1
momentum      = 0.9

[schedule.default]
kind         = "cosine"
warmup_steps = 1

[data.train]
kind       = "hdf5"
path       = "{data}/images.h5"
fields     = {{ image = "images", label = "classes" }}
preprocess = 'keep("image", "label")'

[eval.val]
kind        = "classification"
data        = "train"
every_steps = 4

[checkpoint]
every_steps = 4
"""


def units():
    """Yields convolution, norm, shape and stride of all units of the trunk, as torchvision names them."""
    yield "conv1", "bn1", (WIDTH, 3, 7, 7), 2
    before = WIDTH
    for stage, count in enumerate(BLOCKS):
        channels = WIDTH << stage
        for block in range(count):
            at, stride = f"layer{stage + 1}.{block}.", 2 if stage and not block else 1
            yield at + "conv1", at + "bn1", (channels, before, 3, 3), stride
            yield at + "conv2", at + "bn2", (channels, channels, 3, 3), 1
            if before != channels:
                yield at + "downsample.0", at + "downsample.1", (channels, before, 1, 1), stride
            before = channels


def weights(seed=1):
    """Returns made-up tensors of the trunk and of a head."""
    rng = np.random.default_rng(seed)
    out = {}
    for convolution, norm, shape, _ in units():
        out[convolution + ".weight"] = rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5
        out[norm + ".weight"] = 1 + 0.2 * rng.standard_normal(shape[0])
        out[norm + ".bias"] = 0.2 * rng.standard_normal(shape[0])
    out["fc.weight"], out["fc.bias"] = rng.standard_normal((CLASSES, WIDTH << 3)), rng.standard_normal(CLASSES)
    return {name: value.astype(np.float32) for name, value in out.items()}


def convolve(x, w, stride):
    pad = w.shape[2] // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)


def group_norm(x, weight, bias):
    """Computes what torch.nn.GroupNorm(GROUPS, channels) does to x [images, channels, height, width]."""
    g = x.reshape(len(x), GROUPS, -1)
    g = (g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + 1e-5)
    return g.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def logits_of(p, images):
    """Computes the logits of the published ResNet-18 in double; images have channels last."""
    shapes = {convolution: (norm, stride) for convolution, norm, _, stride in units()}

    def unit(name, x):
        norm, stride = shapes[name]
        return group_norm(convolve(x, p[name + ".weight"], stride), p[norm + ".weight"], p[norm + ".bias"])

    x = np.maximum(unit("conv1", images.transpose(0, 3, 1, 2)), 0)
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))  # all values are at least 0, so padding never wins
    x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max((4, 5))
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            at = f"layer{stage + 1}.{block}."
            inner = np.maximum(unit(at + "conv1", x), 0)
            shortcut = unit(at + "downsample.0", x) if at + "downsample.0" in shapes else x
            x = np.maximum(unit(at + "conv2", inner) + shortcut, 0)
    return x.mean((2, 3)) @ p["fc.weight"].T + p["fc.bias"]


class GroupNorm(harness.RunTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        self.labels = rng.integers(0, CLASSES, 32)
        patterns = rng.uniform(-1, 1, (CLASSES, 32, 32, 3))  # that show the class
        self.images = (patterns[self.labels] + rng.uniform(-1, 1, (32, 32, 32, 3))).astype(np.float32)
        with h5py.File(self.data + "/images.h5", "w") as f:
            f["images"], f["classes"] = self.images, self.labels
        self.good = DECK.format(dir=self.dir, data=self.data)

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, name, *settings, ranks=0, args=()):
        self.expect(0, args=[self.deck(), "--dir", self.path(name), *sets(*settings), *args], ranks=ranks)
        return self.rows(folder=self.path(name))

    def test_values_are_those_of_numpy(self):
        """A file with torchvision's names is read, gives the published network, and comes back by tools/export."""
        tensors = weights()
        np.savez(self.path("weights.npz"), **tensors)
        # The rate of step 1 is 0.
        self.train("run", f"init.from={self.path('weights.npz')}", "init.dont_load=[]", "train.total_steps=1", "eval.val.every_steps=1",
                   "checkpoint.every_steps=1", ranks=2)
        self.assertIn(f"loaded {len(tensors)} of {len(tensors)} tensors", self.output)
        x = logits_of({name: value.astype(np.float64) for name, value in tensors.items()}, self.images.astype(np.float64))
        losses = np.log(np.exp(x).sum(1)) - x[np.arange(32), self.labels]
        rank = (x > x[np.arange(32), self.labels][:, None]).sum(1)
        row = self.rows("eval", self.path("run"))[-1]
        self.assertAlmostEqual(row["loss"], losses.mean(), delta=2e-5 * losses.mean())
        self.assertEqual(row["top1"], np.mean(rank < 1))
        done = subprocess.run([harness.SOURCE + "/tools/export", self.path("run"), self.path("back.npz"), "--names", "torchvision"],
                              capture_output=True, text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        back = np.load(self.path("back.npz"))
        self.assertEqual(sorted(back), sorted(tensors))
        for name, value in tensors.items():
            self.assertEqual(back[name].tobytes(), value.tobytes(), name)
        # Weights of batch norm are no weights of group norm, and the other way round.
        norms = [norm for _, norm, _, _ in units()]
        running = {norm + of: np.zeros_like(tensors[norm + ".weight"]) for norm in norms for of in (".running_mean", ".running_var")}
        np.savez(self.path("batch.npz"), **tensors, **running)
        for name, norm, words in (("batch", "group", "only in the file: bn1.running_mean"),
                                  ("weights", "batch", "missing in the file: trunk/bn1.running_mean")):
            self.expect(5, words, args=[self.deck(), "--dir", self.path("no"), *sets(f"init.from={self.path(name)}.npz",
                        f"model.trunk.norm={norm}", *(["model.trunk.norm_groups=32", "train.micro_batch=16"] if norm == "batch" else []))])

    def test_same_numbers_on_all_meshes(self):
        """Level "mesh" has the bits of one rank, with any accumulation: no example reads another's numbers."""
        level = ("determinism.level=mesh", "determinism.slices=8")
        seen = {}
        for ranks, *more in ((1, "train.micro_batch=16"), (1, "train.micro_batch=2", "memory.recompute=block"),
                             (2, "mesh.fsdp=1", "mesh.replica=2"), (2, "sharding.parameters=sharded", "sharding.optimizer=sharded"),
                             (4, "mesh.replica=2", "sharding.optimizer=sharded")):
            name = f"mesh{len(seen)}"
            rows = self.train(name, *level, *more, ranks=ranks)
            seen[name] = ([[row[key] for key in ("loss", "accuracy", "l2_grads", "l2_params")] for row in rows],
                          [row["loss"] for row in self.rows("eval", self.path(name))], self.tensors(4, self.path(name)))
        first = seen.pop("mesh0")
        self.assertEqual(len(first[0]), 4)
        self.assertFalse([name for name in first[2] if "running" in name])
        for name, outcome in seen.items():
            self.assertEqual(outcome, first, name)

    def test_learns_and_goes_on(self):
        rows = self.train("run", "train.total_steps=24", "checkpoint.every_steps=12", "precision.compute=bf16", ranks=2)
        self.assertLess(rows[-1]["loss"], 0.8 * rows[0]["loss"])
        folder = ["--dir", self.path("run")]
        self.expect(5, "belongs to another model", "missing in the file: /params/trunk/bn1.running_mean",
                    args=[self.deck(), *folder, *sets("train.total_steps=25", "precision.compute=bf16", "model.trunk.norm=batch",
                                                      "model.trunk.norm_groups=32", "train.micro_batch=16")])
        self.expect(2, "model.trunk.norm_groups: the checkpoint has 4, the deck 8", "--allow-change",
                    args=[self.deck(), *folder, *sets("train.total_steps=25", "precision.compute=bf16", "model.trunk.norm_groups=8")])
        self.expect(0, "step=25 ", args=[self.deck(), *folder, *sets("train.total_steps=25", "precision.compute=bf16",
                                                                      "log.console_every_steps=1")])

    def test_emulated_gpu(self):
        """A GPU has the CPU's numbers within rounding, and graphs have the bits of passes without them."""
        few = ("train.total_steps=2", "train.global_batch=4", "train.micro_batch=2", "eval.val.every_steps=0", "eval.val.at_end=false",
               "checkpoint.every_steps=2", "loader.threads=1")
        want = self.train("cpu", *few)
        self.addCleanup(setattr, harness, "TRAINER", harness.TRAINER)
        harness.TRAINER = EMULATED
        on_gpu = ("run.device=cuda", "run.gemm_search=off", *few)
        got, graphs = self.train("gpu", *on_gpu), self.train("graphs", *on_gpu, "run.cuda_graph=on")
        self.assertIn("passes of this attempt were one launch", self.output)
        for one, other in zip(want, got):
            for key in ("loss", "l2_grads", "l2_params"):
                self.assertAlmostEqual(one[key], other[key], delta=2e-4 * abs(one[key]), msg=key)
        self.assertEqual([row["loss"] for row in got], [row["loss"] for row in graphs])
        self.assertEqual(self.tensors(2, self.path("gpu")), self.tensors(2, self.path("graphs")))

    def test_plans_and_refusals(self):
        for device in ("cpu", "cuda"):
            self.expect(0, "group_norm_backward" if device == "cuda" else "activations",
                        args=[self.deck(), "--mode", "plan", "--ranks", "2", *sets(f"run.device={device}")])
        for words, *settings in ((("model.trunk.norm_groups", "cut into 3 equal groups; give a divisor of 8"), "model.trunk.norm_groups=3"),
                                 (("model.trunk.group_examples", "leave the key out"), "model.trunk.group_examples=4"),
                                 (("model.trunk.norm_groups", 'of no use with norm = "batch"'), "model.trunk.norm=batch"),
                                 (("model.trunk.norm", "group"), "model.trunk.norm=grup")):
            self.expect(2, *words, args=[self.deck(), "--validate", *sets(*settings)])


if __name__ == "__main__":
    harness.main()
