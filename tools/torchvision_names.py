# SPDX-License-Identifier: Apache-2.0
"""A ResNet or ConvNeXt of a checkpoint, with the names and shapes of torchvision, and the call that makes it there. Not a tool itself."""
import numpy as np

from lacking import Lacking

COUNTER = ".num_batches_tracked"  # PyTorch's are i64
BLOCKS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3], 200: [3, 24, 36, 3]}


def options_of(weights):
    model = weights.deck().get("model", {})
    return model.get("trunk") or model.get("encoder") or {}


def linear_head(weights):
    """Returns the paths (kernel, bias or None) of a head of classes that is one linear layer, or None. "clf." kernels are [out, in]."""
    if "head/kernel" in weights.places:
        return "head/kernel", "head/bias" if "head/bias" in weights.places else None
    clf = sorted(path for path in weights.places if path.startswith("head/clf."))
    if any(path.startswith("head/channel_bn.") for path in weights.places):
        return None
    return {("head/clf.0.bias", "head/clf.0.weight"): clf[::-1], ("head/clf.0.weight",): [*clf, None]}.get(tuple(clf))


class Torchvision:
    """The trunk of some weights, and its head if that is one linear layer."""

    program, model, size = "torchvision", "torchvision's ResNet", None
    HEADS = {"layer1.0.conv1.weight": "fc", "features.1.0.block.0.weight": "classifier.2"}  # by a tensor that each such trunk has

    def __init__(self, weights):
        self.weights, self.path, self.step, self.name, self.places = weights, weights.path, weights.step, weights.name, {}
        self.head = next((head for mark, head in self.HEADS.items() if "trunk/" + mark in weights.places), None)
        if self.head is None:
            raise Lacking(f"{weights.path} holds no ResNet (trunk/layer1.0.conv1.weight) and no ConvNeXt")
        heads = {path: f"{self.head}.{part}" for path, part in zip(linear_head(weights) or (), ("weight", "bias")) if path}
        for path in weights.places:
            if path.startswith("trunk/"):
                self.places[path.removeprefix("trunk/")] = path
            elif path in heads:
                self.places[heads[path]] = path
        self.left_out = [path for path in weights.places if path not in self.places.values()]

    def hint(self):
        return ""

    def type_of(self, name):
        return "i64" if name.endswith(COUNTER) else self.weights.type_of(self.places[name])

    def shape(self, name):
        shape = self.weights.shape(self.places[name])
        return shape[::-1] if self.places[name] == "head/kernel" else shape

    def values(self, name):
        values = self.weights.values(self.places[name])
        if name.endswith(COUNTER):
            return values.astype(np.int64)
        return np.ascontiguousarray(values.T) if self.places[name] == "head/kernel" else values

    # The folder

    @property
    def classes(self):
        weight = self.head + ".weight"
        return self.shape(weight)[0] if weight in self.places else 0

    @property
    def description(self):
        options = options_of(self.weights)
        if self.head == "fc":
            return f"A ResNet-{options['depth']}"
        return f"A ConvNeXt with {'+'.join(map(str, options['depths']))} blocks of {options['widths']} channels"

    def call(self):
        """Returns the call that makes the model in torchvision; refuses what torchvision cannot express."""
        options = options_of(self.weights)
        given = [f"num_classes={self.classes}"] if self.classes else []
        if self.head != "fc":
            # A block's widths are those of its stage and of the next one.
            stages = zip(options["widths"], [*options["widths"][1:], None], options["depths"])
            stages = ", ".join(f"CNBlockConfig({width}, {after}, {depth})" for width, after, depth in stages)
            return f"torchvision.models.convnext.ConvNeXt([{stages}]{', ' if given else ''}{', '.join(given)})"
        if options["width"] != 64 or options["layer4_stride"] != 2:
            key, value = ("width", 64) if options["width"] != 64 else ("layer4_stride", 2)
            raise Lacking(f"{self.path}: torchvision's ResNet has model.trunk.{key} = {value} alone, and this one {options[key]}",
                          ", or --names torchvision for a model of your own")
        given += [f"{theirs}={options[key]}" for theirs, key, usual in (("groups", "groups", 1), ("width_per_group", "width_per_group", 64))
                  if options[key] != usual]
        if options["norm"] == "group":
            given.append(f"norm_layer=lambda channels: torch.nn.GroupNorm({options['norm_groups']}, channels)")
        block = "Bottleneck" if options["depth"] >= 50 else "BasicBlock"
        return f"torchvision.models.resnet.ResNet({', '.join([block, str(BLOCKS[options['depth']]), *given])})"
