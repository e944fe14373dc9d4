#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of torch.save that tests read, with the PyTorch that this Python has:   tests/data/make_pth.py FOLDER NAME [CASE...]

NAME becomes the beginning of the files' names, for example the version of PyTorch. The numbers of a tensor are k, k + 1/4, k + 2/4, ...
in the order of C, where k is 0 for most, so a test knows them. PyTorch reads each file again, and must find these numbers.
It runs with PyTorch 1.0 on Python 2.7 and with all later ones. What a PyTorch lacks is left out: the zip format, bfloat16, complex
numbers, layouts.
"""
import argparse
import collections
import sys

import numpy
import torch

try:
    import pathlib
except ImportError:  # Python 2
    pathlib = None
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def numbers(*shape, **options):
    first, dtype = options.get("first", 0), options.get("dtype", torch.float32)
    return (torch.arange(torch.Size(shape).numel()).float().reshape(shape) / 4 + first).to(dtype)


def small_model():
    model = torch.nn.Sequential(collections.OrderedDict(
        [("conv", torch.nn.Conv2d(3, 4, 2)), ("norm", torch.nn.BatchNorm2d(4))]))
    fill(model.state_dict().values())
    return model


def fill(tensors):
    with torch.no_grad():
        for value in tensors:
            value.copy_(numbers(*value.shape, dtype=value.dtype))


def training():
    """What a training script saves: weights below a key, a teacher, the state of an optimizer, options."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    fill(model.parameters())
    return {"epoch": 3, "arch": "resnet50", "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.25,
            "schedule": schedule.state_dict(), "path": pathlib.Path("runs") if pathlib else None,
            "args": argparse.Namespace(lr=0.1, name="x"), "accuracy": numpy.float64(0.5), "list": [numbers(2), None, True]}


def nested():
    """The same model below the keys that programs use, with their prefixes."""
    model = small_model()
    wrapped = collections.OrderedDict(("module.encoder_q." + name, value) for name, value in model.state_dict().items())
    trunk = dict(("_feature_blocks." + name, value) for name, value in model.state_dict().items())
    return {"model": model.state_dict(), "state_dict": wrapped, "teacher": dict(model.named_parameters()),
            "classy_state_dict": {"base_model": {"model": {"trunk": trunk, "heads": {}}}}, "iteration": (7, 1 << 70, -1.5)}


def places():
    """Tensors that do not lie in a row, and two that share their numbers."""
    whole = numbers(6, 4)
    shared = numbers(5)
    found = {"transposed": numbers(4, 6).t().contiguous().t(), "slice": torch.cat([torch.full((2, 4), 9.0), whole])[2:],
             "columns": torch.stack([whole, whole + 100], 2)[..., 0], "expanded": torch.tensor([0.0]).expand(2, 3),
             "tied_a": shared, "tied_b": shared, "rows": whole[2:5], "cells": numbers(24)[8:16].view(2, 2, 2), "one": shared[3],
             "scalar": torch.tensor(0.0), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(numbers(3))}
    layout = numbers(2, 3, 2, 2)
    found["channels_last"] = layout.contiguous(memory_format=torch.channels_last) if VERSION >= (1, 5) else layout
    return found


def types():
    found = {"f64": numbers(3, dtype=torch.float64), "f16": numbers(3).half(), "i64": torch.arange(3),
             "i32": torch.arange(3, dtype=torch.int32), "u8": torch.arange(3, dtype=torch.uint8)}
    if VERSION >= (1, 6):
        found.update({"bf16": numbers(3, dtype=torch.bfloat16), "bool": torch.tensor([True, False]),
                      "complex": torch.zeros(2, dtype=torch.complex64)})
    if VERSION >= (2, 3):
        found.update({"u16": torch.zeros(2).to(torch.uint16), "f8": torch.zeros(2).to(torch.float8_e4m3fn)})
    return found


def marked():
    """Tensors and parameters with attributes of their own, which later versions keep."""
    plain, parameter = numbers(3), torch.nn.Parameter(numbers(2, 2))
    plain.role = parameter.role = "bias"
    return {"plain": plain, "parameter": parameter, "buffer": torch.nn.Parameter(numbers(2), requires_grad=False)}


def single():
    return numbers(2, 3)


def flat(value, name=""):
    """Lists the tensors of an object."""
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    return [tensor for key, item in items for tensor in flat(item, name + "." + str(key))]


def check(path, want):
    """PyTorch finds the numbers in its own file."""
    options = {"weights_only": False} if VERSION >= (1, 13) else {}
    got = flat(torch.load(path, **options))
    assert sorted(name for name, _ in got) == sorted(name for name, _ in flat(want)), path
    for name, tensor in got:
        if tensor.dtype in (torch.float32, torch.float64, torch.float16) and "optimizer" not in name and "expanded" not in name:
            values = tensor.detach().double().reshape(-1)
            assert values.tolist() == [values[0].item() + i / 4.0 for i in range(len(values))], (path, name)


folder, begins = sys.argv[1:3]
KINDS = [("_old", {"_use_new_zipfile_serialization": False}), ("", {"_use_new_zipfile_serialization": True})]
for case in (training, nested, places, types, marked, single):
    if sys.argv[3:] and case.__name__ not in sys.argv[3:]:
        continue
    for ending, choice in KINDS if VERSION >= (1, 6) else [("_old", {})]:
        protocols = [2] if sys.version_info < (3,) else [2, 3, 4] if sys.version_info < (3, 8) else [2, 4, 5]
        for protocol in protocols if case in (nested, training) else [2]:
            file = "{}/{}_{}{}{}.pth".format(folder, begins, case.__name__, ending, protocol if protocol > 2 else "")
            made = case()
            if ending and case is types:  # PyTorch cannot read these from the old format
                made = dict((key, value) for key, value in made.items() if key not in ("u16", "f8"))
            torch.save(made, file, pickle_protocol=protocol, **choice)
            check(file, made)
