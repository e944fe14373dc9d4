#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ResNets and ConvNeXts with the names of PyTorch programs: loaded into a classifier below every prefix, refused if they do not
fit, exported and loaded again.

PyTorch is optional: TORCH_PYTHON names a Python that has it (with torchvision and safetensors), if this one has not.
"""
import argparse
import collections
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import types
import unittest
import zipfile
from unittest import mock

import h5py
import numpy as np

import harness

TOOL = harness.SOURCE + "/tools/export"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)

DECK = """format = 1
run    = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile = {{ peak_tflops = 0.1 }}
train  = {{ data = "train", total_steps = 1, global_batch = 12 }}
mesh   = {{ replica = 1, fsdp = -1 }}

[model]
kind        = "classifier"
image_size  = 32
num_classes = 4
trunk       = {{ kind = "resnet", depth = 18, width = {width} }}

[optimizer]
kind          = "adamw"
learning_rate = 3e-3

[schedule.default]
kind         = "cosine"
warmup_steps = 1

[data.train]
kind       = "webdataset"
path       = "{data}/train-000.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(32) | value_range(-1, 1) | keep("image", "label")'

[checkpoint]
every_steps = 1
"""


def resnet(blocks=(2, 2, 2, 2), width=8, seed=1):
    """Returns the tensors of a ResNet of basic blocks and a head over 4 classes, as torchvision names them."""
    rng = np.random.default_rng(seed)
    out = {}

    def convolution(name, shape):
        out[name] = (rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32)

    def norm(name, channels):
        out[name + ".weight"] = (1 + 0.1 * rng.standard_normal(channels)).astype(np.float32)
        out[name + ".bias"] = (0.1 * rng.standard_normal(channels)).astype(np.float32)
        out[name + ".running_mean"] = (0.1 * rng.standard_normal(channels)).astype(np.float32)
        out[name + ".running_var"] = rng.uniform(0.5, 1.5, channels).astype(np.float32)
        out[name + ".num_batches_tracked"] = np.array(1000 + len(out), np.int64)

    convolution("conv1.weight", (width, 3, 7, 7))
    norm("bn1", width)
    before = width
    for stage, count in enumerate(blocks):
        channels = width << stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            convolution(at + ".conv1.weight", (channels, before, 3, 3))
            norm(at + ".bn1", channels)
            convolution(at + ".conv2.weight", (channels, channels, 3, 3))
            norm(at + ".bn2", channels)
            if before != channels:
                convolution(at + ".downsample.0.weight", (channels, before, 1, 1))
                norm(at + ".downsample.1", channels)
            before = channels
    convolution("fc.weight", (4, before))
    out["fc.bias"] = rng.standard_normal(4).astype(np.float32)
    return out


CONVNEXT = 'trunk = { kind = "convnext", depths = [1, 2], widths = [8, 12] }'


def convnext(depths=(1, 2), widths=(8, 12), seed=1):
    """Returns the tensors of a ConvNeXt and a head over 4 classes, as torchvision names them."""
    rng = np.random.default_rng(seed)
    out = {}

    def add(name, shape, bias=True):
        out[name + ".weight"] = rng.standard_normal(shape).astype(np.float32)
        if bias:
            out[name + ".bias"] = rng.standard_normal(shape[0]).astype(np.float32)

    add("features.0.0", (widths[0], 3, 4, 4))
    add("features.0.1", (widths[0],))
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        if stage > 0:
            add(f"features.{2 * stage}.0", (widths[stage - 1],))
            add(f"features.{2 * stage}.1", (width, widths[stage - 1], 2, 2))
        for block in range(depth):
            at = f"features.{2 * stage + 1}.{block}."
            add(at + "block.0", (width, 1, 7, 7))
            add(at + "block.2", (width,))
            add(at + "block.3", (4 * width, width))
            add(at + "block.5", (width, 4 * width))
            out[at + "layer_scale"] = rng.standard_normal((width, 1, 1)).astype(np.float32)
    add("classifier.0", (widths[-1],))
    add("classifier.2", (4, widths[-1]))
    return out


TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def save_safetensors(tensors, path):
    header, at = {}, 0
    names = {np.dtype(of).name: name for name, of in TYPES.items()}
    for name, value in tensors.items():
        header[name] = {"dtype": names[str(value.dtype)], "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            f.write(np.ascontiguousarray(value).tobytes())


def save_pth(content, path):
    """Writes what torch.save writes, without PyTorch. Classes and a function of its names stand for the real ones."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storages = {"float32": type("FloatStorage", (), {"__module__": "torch"}), "int64": type("LongStorage", (), {"__module__": "torch"})}
    torch.FloatStorage, torch.LongStorage = storages.values()

    def _rebuild_tensor_v2():
        pass

    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    data = []

    class Storage(list):
        pass

    class Pickler(pickle.Pickler):
        def reducer_override(self, value):
            if not isinstance(value, np.ndarray):
                return NotImplemented
            strides = tuple(stride // value.itemsize for stride in value.strides)
            return _rebuild_tensor_v2, (Storage([value]), 0, value.shape, strides, False, collections.OrderedDict())

        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            data.append(value[0])
            return "storage", storages[str(value[0].dtype)], str(len(data) - 1), "cpu", value[0].size

    text = io.BytesIO()
    with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
        Pickler(text, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", text.getvalue())
        for i, value in enumerate(data):
            z.writestr(f"archive/data/{i}", value.tobytes())


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], TYPES[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}


def no_torch():
    """Returns why PyTorch cannot be used, or ""."""
    done = subprocess.run([PYTHON, "-c", "import torch, torchvision, safetensors.torch"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{PYTHON}: {done.stderr.strip().splitlines()[-1]}"


NO_TORCH = no_torch()


class Touch:
    """Pickled, it makes a file when a pickle is read the usual way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, ("touch " + self.path,)


class TorchWeights(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(self.data + "/train-000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(24):
                harness.add_member(tar, f"{i:06}.png", harness.png(i))
                harness.add_member(tar, f"{i:06}.cls", str(i % 4).encode())
        self.good = DECK.format(dir=self.dir, data=self.data, width=8)
        self.tensors = resnet()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, code, source, *fragments, extra=(), ranks=0, dir="run"):
        self.expect(code, *fragments, ranks=ranks,
                    args=[self.deck(), "--dir", self.path(dir), "--set", f"init.from={source}", *extra])

    def params(self, dir="run"):
        """Returns the values after step 1, whose rate is 0: only running values and counters have changed."""
        with h5py.File(f"{self.path(dir)}/checkpoints/0000000001.h5") as f:
            out = {}
            f["params"].visititems(lambda name, d: out.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
            return out

    def same_trunk(self, got, tensors):
        for name, value in tensors.items():
            if name.startswith("fc."):
                continue
            mine = got["trunk/" + name]
            self.assertEqual(mine.shape, value.shape, name)
            if name.endswith(".num_batches_tracked"):
                self.assertEqual(mine, value + 1, name)
            elif ".running_" not in name:
                self.assertEqual(mine.tobytes(), value.tobytes(), name)

    def test_prefixes_and_formats(self):
        files = {"torchvision.npz": "", "vissl.safetensors": "trunk._feature_blocks.", "moco.npz": "module.encoder_q.",
                 "dino.safetensors": "teacher.backbone."}
        for i, (name, prefix) in enumerate(files.items()):
            with self.subTest(name):
                tensors = {prefix + key: value for key, value in self.tensors.items()}
                tensors.update({"queue": np.zeros((2, 3), np.float32), "step": np.array(7, np.int64)})
                (np.savez if name.endswith(".npz") else lambda path, **t: save_safetensors(t, path))(self.path(name), **tensors)
                self.start(0, self.path(name), "loaded 120 of 122 tensors", ranks=2 * (i % 2), dir=f"run{i}")
                got = self.params(f"run{i}")
                self.same_trunk(got, self.tensors)
                self.assertFalse(got["head/kernel"].any(), "the head keeps its first values")

    def test_files_of_torch_save(self):
        moco = {"epoch": 200, "arch": "resnet18", "state_dict": collections.OrderedDict(
            (f"module.encoder_{which}.{name}", np.asarray(value + (which == "k")))
            for which in "qk" for name, value in self.tensors.items()),
            "optimizer": {"state": {0: {"momentum_buffer": np.zeros(3, np.float32)}}, "param_groups": [{"lr": 0.03}]}}
        dino = {"student": {f"module.backbone.{name}": value + 1 for name, value in self.tensors.items()},
                "teacher": {f"backbone.{name}": value for name, value in self.tensors.items()}, "args": argparse.Namespace(lr=1.0)}
        for name, content, ranks in (("moco.pth.tar", moco, 2), ("dino.pth", dino, 0), ("plain.pt", dict(self.tensors), 0)):
            with self.subTest(name):
                save_pth(content, self.path(name))
                self.start(0, self.path(name), "loaded 120 of 122 tensors", ranks=ranks, dir=name + ".run")
                self.same_trunk(self.params(name + ".run"), self.tensors)
        save_pth({"state_dict": self.tensors, "then": Touch(self.path("touched"))}, self.path("hostile.pth"))
        self.start(5, self.path("hostile.pth"), 'hostile.pth: names "posix.system", which can run code', ranks=2)
        self.assertFalse(os.path.exists(self.path("touched")))

    def test_running_values(self):
        """A step turns running values r into 0.9 r + 0.1 s, where s depends on weights and images only."""
        other = {name: value + np.float32(0.25) if ".running_" in name else value for name, value in self.tensors.items()}
        np.savez(self.path("a.npz"), **self.tensors)
        np.savez(self.path("b.npz"), **other)
        self.start(0, self.path("a.npz"), dir="a")
        self.start(0, self.path("b.npz"), dir="b", ranks=2)
        a, b = self.params("a"), self.params("b")
        for name in self.tensors:
            if ".running_" in name:
                np.testing.assert_allclose(b["trunk/" + name] - a["trunk/" + name], 0.225, atol=1e-5, err_msg=name)

    def test_export_and_back(self):
        np.savez(self.path("all.npz"), **self.tensors)
        self.start(0, self.path("all.npz"), "loaded 122 of 122 tensors", extra=["--set", "init.dont_load=[]"], dir="a", ranks=2)
        got = self.params("a")
        self.same_trunk(got, self.tensors)
        self.assertEqual(got["head/kernel"].tobytes(), np.ascontiguousarray(self.tensors["fc.weight"].T).tobytes())
        self.assertEqual(got["head/bias"].tobytes(), self.tensors["fc.bias"].tobytes())
        for name in ("x.safetensors", "x.npz"):
            done = subprocess.run([TOOL, self.path("a"), self.path(name), "--names", "torchvision"], capture_output=True, text=True,
                                  timeout=harness.GUARD, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("122 tensors", done.stdout)
            out = dict(np.load(self.path(name))) if name.endswith(".npz") else read_safetensors(self.path(name))
            self.assertEqual(sorted(out), sorted(self.tensors))
            for key, value in self.tensors.items():
                self.assertEqual((out[key].shape, out[key].dtype), (value.shape, value.dtype), key)
                if key.endswith(".num_batches_tracked"):
                    self.assertEqual(out[key], value + 1)
                elif ".running_" not in key:
                    self.assertEqual(out[key].tobytes(), value.tobytes(), key)
        self.start(0, self.path("x.safetensors"), "loaded 122 of 122 tensors", extra=["--set", "init.dont_load=[]"], dir="b")
        done = subprocess.run([TOOL, self.path("a"), self.path("folder"), "--names", "torchvision"], capture_output=True, text=True,
                              timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(".safetensors", done.stdout + done.stderr)

    def test_convnext(self):
        self.good = self.good.replace('trunk       = { kind = "resnet", depth = 18, width = 8 }', CONVNEXT)
        self.assertIn(CONVNEXT, self.good)
        tensors = convnext()
        np.savez(self.path("all.npz"), **tensors)
        self.start(0, self.path("all.npz"), f"loaded {len(tensors) - 2} of {len(tensors)} tensors", dir="trunk")
        self.start(0, self.path("all.npz"), f"loaded {len(tensors)} of {len(tensors)} tensors", extra=["--set", "init.dont_load=[]"],
                   dir="a", ranks=2)
        done = subprocess.run([TOOL, self.path("a"), self.path("x.safetensors"), "--names", "torchvision"], capture_output=True,
                              text=True, timeout=harness.GUARD, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        out = read_safetensors(self.path("x.safetensors"))
        self.assertEqual(sorted(out), sorted(tensors))
        for key, value in tensors.items():
            self.assertEqual((out[key].shape, out[key].tobytes()), (value.shape, value.tobytes()), key)
        np.savez(self.path("deep.npz"), **convnext((1, 3)))
        self.start(2, self.path("deep.npz"), "model.trunk: the file holds a ConvNeXt of 1+3 blocks with 8+12 channels",
                   "this model has a ConvNeXt of 1+2 blocks with 8+12 channels")

    def test_what_does_not_fit(self):
        np.savez(self.path("deep.npz"), **resnet((3, 4, 6, 3)))
        self.start(2, self.path("deep.npz"), "model.trunk.depth = 18: the file holds a ResNet-34 of 3+4+6+3 blocks",
                   "this model has a ResNet-18 of 2+2+2+2 blocks", "make model.trunk the same",
                   "only in the file: layer1.2.conv1.weight", ranks=2)
        np.savez(self.path("wide.npz"), **resnet(width=16))
        self.start(2, self.path("wide.npz"), "model.trunk.width = 8: ", "16 channels after conv1",
                   "trunk/conv1.weight: the file has [16, 3, 7, 7], this model [8, 3, 7, 7]")
        two = {f"{side}.{key}": value for side in ("a", "b") for key, value in self.tensors.items()}
        np.savez(self.path("two.npz"), **two)
        self.start(5, self.path("two.npz"), "several ResNets", 'init.map = { trunk = "a" }')
        self.start(0, self.path("two.npz"), "loaded 120 of 122 tensors", extra=["--set", 'init.map={ trunk = "b" }'])

    @unittest.skipIf(NO_TORCH, NO_TORCH)
    def test_with_pytorch(self):
        """torchvision's ResNet-18 is loaded from a file of safetensors.torch, exported, and loaded by torchvision again."""
        self.good = DECK.format(dir=self.dir, data=self.data, width=64)
        made = ("import sys, torch, torchvision, safetensors.torch as s; torch.manual_seed(1); "
                "m = torchvision.models.resnet18(num_classes=4); s.save_file(m.state_dict(), sys.argv[1])")
        subprocess.run([PYTHON, "-c", made, self.path("w.safetensors")], check=True, timeout=harness.GUARD)
        self.start(0, self.path("w.safetensors"), "loaded 122 of 122 tensors", extra=["--set", "init.dont_load=[]"])
        self.same_trunk(self.params(), read_safetensors(self.path("w.safetensors")))
        subprocess.run([TOOL, self.path("run"), self.path("x.safetensors"), "--names", "torchvision"], check=True, timeout=harness.GUARD)
        back = ("import sys, torchvision, safetensors.torch as s; m = torchvision.models.resnet18(num_classes=4); "
                "m.load_state_dict(s.load_file(sys.argv[1]), strict=True)")
        subprocess.run([PYTHON, "-c", back, self.path("x.safetensors")], check=True, timeout=harness.GUARD)


if __name__ == "__main__":
    harness.main()
