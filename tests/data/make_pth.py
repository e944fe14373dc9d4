#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of torch.save that tests read, with the PyTorch that this Python has:   tests/data/make_pth.py FOLDER NAME

NAME becomes the beginning of the files' names, for example the version of PyTorch. The numbers of a tensor are 0, 1/4, 2/4, ... in the
order of C, so a test knows them.
"""
import argparse
import collections
import pathlib
import sys

import numpy
import torch


def numbers(*shape, dtype=torch.float32):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) / 4).to(dtype)


def training():
    """What a training script saves: weights below a key, a teacher, the state of an optimizer, options."""
    model = torch.nn.Sequential(collections.OrderedDict(conv=torch.nn.Conv2d(3, 4, 2), norm=torch.nn.BatchNorm2d(4)))
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(numbers(*value.shape, dtype=value.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(numbers(*value.shape))
    return {"epoch": 3, "arch": "resnet50", "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.25,
            "schedule": schedule.state_dict(), "path": pathlib.Path("runs"),
            "args": argparse.Namespace(lr=0.1, name="x"), "accuracy": numpy.float64(0.5), "list": [numbers(2), None, True]}


def places():
    """Tensors that do not lie in a row, and two that share their numbers."""
    whole = numbers(6, 4)
    shared = numbers(5)
    return {"transposed": numbers(4, 6).t().contiguous().t(), "slice": torch.cat([torch.full((2, 4), 9.0), whole])[2:],
            "columns": torch.stack([whole, whole + 100], 2)[..., 0], "expanded": torch.tensor([0.0]).expand(2, 3),
            "channels_last": numbers(2, 3, 2, 2).contiguous(memory_format=torch.channels_last), "tied_a": shared, "tied_b": shared,
            "scalar": torch.tensor(0.0), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(numbers(3))}


def types():
    return {"f64": numbers(3, dtype=torch.float64), "f16": numbers(3, dtype=torch.float16), "bf16": numbers(3, dtype=torch.bfloat16),
            "i64": torch.arange(3), "i32": torch.arange(3, dtype=torch.int32), "bool": torch.tensor([True, False]),
            "complex": torch.zeros(2, dtype=torch.complex64)}


folder, name = sys.argv[1:]
torch.save(training(), f"{folder}/{name}_training_old4.pth", _use_new_zipfile_serialization=False, pickle_protocol=4)
for case in (training, places, types):
    for ending, new in (("", True), ("_old", False)):
        torch.save(case(), f"{folder}/{name}_{case.__name__}{ending}.pth", _use_new_zipfile_serialization=new)
