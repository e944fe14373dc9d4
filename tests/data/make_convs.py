#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes narrow ResNets and a ConvNeXt with torchvision, and records their features:   tests/data/make_convs.py FOLDER

The recorded files were made with PyTorch 1.13 and torchvision 0.14.1.
"""
import os
import sys

import numpy as np
import safetensors.torch
import torch
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

folder = sys.argv[1]
images = np.load(os.path.dirname(os.path.abspath(__file__)) + "/vits/features.npz")["images"]
x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
found = {}


class Narrow(ResNet):
    """torchvision's ResNet with another width than 64, which its constructor fixes."""

    def __init__(self, width, *args, **more):
        self.base = width
        super().__init__(*args, num_classes=3, **more)
        self.fc = torch.nn.Linear(self.inplanes, 3)

    def _make_layer(self, block, planes, *args, **more):
        if planes == 64:
            self.inplanes = self.base
            self.conv1 = torch.nn.Conv2d(3, self.base, 7, stride=2, padding=3, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(self.base)
        return super()._make_layer(block, planes * self.base // 64, *args, **more)


def record(name, seed, model):
    """Changes all numbers, because many begin as 0 or 1. They become numbers of f16, so that files are small."""
    torch.manual_seed(seed)
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            value.add_(0.1 * torch.randn_like(value))
            if key.endswith("running_var"):
                value.abs_()
            value.copy_(value.half().float())
    model.eval()
    found[name + "/logits"] = model(x)
    last = model.fc if isinstance(model, ResNet) else model.classifier[2]
    last.register_forward_hook(lambda _, given, __: found.update({name + "/features": given[0]}))
    model(x)
    tensors = {key: value.half() if value.is_floating_point() else value for key, value in model.state_dict().items()}
    safetensors.torch.save_file(tensors, f"{folder}/{name}.safetensors")


with torch.no_grad():
    record("resnet18", 1, Narrow(4, BasicBlock, [2, 2, 2, 2]))
    record("resnet34", 2, Narrow(2, BasicBlock, [3, 4, 6, 3]))
    record("resnet50", 3, Narrow(2, Bottleneck, [3, 4, 6, 3]))
    record("wide_resnet50", 5, Narrow(2, Bottleneck, [3, 4, 6, 3], width_per_group=128))
    record("resnext50", 6, Narrow(2, Bottleneck, [3, 4, 6, 3], groups=4, width_per_group=32))
    stages = [CNBlockConfig(8, 12, 1), CNBlockConfig(12, 16, 1), CNBlockConfig(16, 20, 2), CNBlockConfig(20, None, 1)]
    record("convnext", 7, ConvNeXt(stages, num_classes=3))
np.savez_compressed(folder + "/features.npz", **{name: np.asarray(value) for name, value in found.items()})
