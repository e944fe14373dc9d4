# SPDX-License-Identifier: Apache-2.0
"""The encoder of images of a checkpoint as a graph of ONNX: a ViT, a ResNet or a ConvNeXt, with its head of classes. Not a tool itself.

The order of the operations is that of src/models/trunks.
"""
import os
import re

import numpy as np

from lacking import Lacking
from onnx_graph import Graph
from torchvision_names import BLOCKS, linear_head, options_of
from vit_names import BLOCK, HEADED, POOL, block_numbers, describe, facts_of_vit, with_table

POSITIONS = "encoder/pos_embedding"


def flat_kernel(values):
    """[width, heads, size] to [width, heads x size]."""
    return values.reshape(values.shape[0], -1)


def flat_output(values):
    """[heads, size, width] to [heads x size, width]."""
    return values.reshape(-1, values.shape[-1])


class VitGraph:
    """tokens: [images, tokens, width]. features: the pooled vector, unless the model reads the tokens alone."""

    def __init__(self, graph):
        self.graph, self.weights = graph, graph.weights
        self.model = self.weights.deck()["model"]
        self.facts = facts_of_vit(self.weights)
        self.size = self.facts["size"]
        self.turns = self.rotation() if self.facts["rotary"] else None

    def description(self):
        return describe(self.facts)

    def linear(self, x, path):
        return self.graph.product(x, path + "kernel", path + "bias")

    def norm(self, x, path):
        return self.graph.layer_norm(x, path + "scale", path + "bias", self.facts["epsilon"])

    def mlp(self, x, path):
        g, hidden = self.graph, self.linear(x, path + "Dense_0/")
        if path + "gate/kernel" in self.weights.places:
            gate = self.linear(x, path + "gate/")
            hidden = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), hidden)
        else:
            hidden = g.gelu(hidden, self.facts["gelu"])
        return self.linear(hidden, path + "Dense_1/")

    def rotation(self):
        """Returns cosines and sines [tokens, size of a head], and the matrix that brings partners (kernels/rotate_heads.hpp)."""
        f = self.facts
        size, side, front = f["width"] // f["heads"], f["size"] // f["patch"], f["token"] + f["registers"]
        place = (2 * np.arange(side) + 1) / side - 1
        period = 100 ** (np.arange(size // 4) / (size // 4))
        of_rows, of_columns = (np.multiply.outer(place, 2 * np.pi / period) for _ in range(2))
        angle = np.concatenate([np.repeat(of_rows, side, 0), np.tile(of_columns, (side, 1))], 1)
        angle = np.concatenate([np.zeros((front, size // 2)), angle])
        half = np.eye(size // 2)
        partner = np.block([[0 * half, half], [-half, 0 * half]])
        return [self.graph.number(np.tile(table, 2)) for table in (np.cos(angle), np.sin(angle))] + [self.graph.number(partner)]

    def rotated(self, x):
        """Turns queries or keys [images, heads, tokens, size]."""
        g = self.graph
        cosines, sines, partner = self.turns
        return g.op("Add", g.op("Mul", x, cosines), g.op("Mul", g.op("MatMul", x, partner), sines))

    def heads(self, x, path):
        """Returns [images, heads, rows, size]."""
        g, count = self.graph, self.facts["heads"]
        y = g.product(x, path + "/kernel", path + "/bias", flat_kernel)
        return g.op("Transpose", g.op("Reshape", y, g.constant([0, 0, count, self.facts["width"] // count])), perm=[0, 2, 1, 3])

    def attention(self, queries, memory, path, rotates=False):
        g, size = self.graph, self.facts["width"] // self.facts["heads"]
        q, k = self.heads(queries, path + "query"), self.heads(memory, path + "key")
        if rotates:
            q, k = self.rotated(q), self.rotated(k)
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = g.op("Softmax", g.op("Mul", scores, g.number(size**-0.5)), axis=-1)
        mean = g.op("MatMul", weights, self.heads(memory, path + "value"))
        joined = g.op("Reshape", g.op("Transpose", mean, perm=[0, 2, 1, 3]), g.constant([0, 0, self.facts["width"]]))
        return g.product(joined, path + "out/kernel", path + "out/bias", flat_output)

    def scaled(self, x, path):
        return self.graph.op("Mul", x, self.graph.weight(path)) if path in self.weights.places else x

    def block(self, x, number):
        g, at = self.graph, BLOCK.format(number)
        n = self.norm(x, at + "LayerNorm_0/")
        branch = self.attention(n, n, HEADED.format(number), self.facts["rotary"])
        x = g.op("Add", x, self.scaled(branch, at + "LayerScale_0/scale"))
        branch = self.mlp(self.norm(x, at + "LayerNorm_1/"), at + "MlpBlock_0/")
        return g.op("Add", x, self.scaled(branch, at + "LayerScale_1/scale"))

    def for_each_image(self, path):
        """Returns a parameter [1, rows, width] as often as there are images."""
        g = self.graph
        count = g.op("Shape", "images", start=0, end=1)
        return g.op("Expand", g.weight(path), g.op("Concat", count, g.constant(self.weights.shape(path)[1:]), axis=0))

    def embedded(self):
        g, f = self.graph, self.facts
        kernel = g.weight("encoder/embedding/kernel", lambda values: values.transpose(3, 2, 0, 1))
        maps = g.op("Conv", "images", kernel, g.weight("encoder/embedding/bias"), strides=[f["patch"], f["patch"]])
        x = g.op("Transpose", g.op("Reshape", maps, g.constant([0, f["width"], -1])), perm=[0, 2, 1])
        if POSITIONS in self.weights.places:
            x = g.op("Add", x, g.weight(POSITIONS))
        front = [self.for_each_image(path) for path in ("encoder/cls", "encoder/registers") if path in self.weights.places]
        if front:
            x = g.op("Concat", *front, x, axis=1)
        return self.norm(x, "encoder/pre_norm/") if "encoder/pre_norm/scale" in self.weights.places else x

    def pooled(self, tokens):
        g, f = self.graph, self.facts
        if f["pooled"]:
            a = self.attention(self.for_each_image(POOL + "probe"), tokens, POOL + "MultiHeadDotProductAttention_0/")
            x = g.op("Add", a, self.mlp(self.norm(a, POOL + "LayerNorm_0/"), POOL + "MlpBlock_0/"))
            return g.op("Squeeze", x, g.constant([1]))
        if f["token"]:
            return g.op("Gather", tokens, g.constant(0), axis=1)
        return g.op("ReduceMean", tokens, axes=[1], keepdims=0)

    def build(self):
        """Adds outputs. Returns (value, width) of the pooled features; none for a captioner, which reads tokens."""
        f, x = self.facts, self.embedded()
        for number in block_numbers(self.weights):
            x = self.block(x, number)
        tokens = self.norm(x, "encoder/Transformer/encoder_norm/")
        count = (f["size"] // f["patch"]) ** 2 + f["token"] + f["registers"]
        self.graph.output("tokens", tokens, count, f["width"])
        return None if self.model["kind"] == "cappa" else (self.pooled(tokens), f["width"])


class ConvGraph:
    """map: [images, channels, height, width] of the last stage. features: its mean, normalised in a ConvNeXt. Images of any size."""

    size = None

    def __init__(self, graph):
        self.graph, self.weights = graph, graph.weights
        self.model, self.options = self.weights.deck()["model"], options_of(self.weights)
        self.channels = 3

    def has(self, path):
        return f"trunk/{path}" in self.weights.places

    def weight(self, path, turn=lambda values: values):
        return self.graph.weight("trunk/" + path, turn)

    def convolution(self, x, path, **attributes):
        bias = [self.weight(path + ".bias")] if self.has(path + ".bias") else []
        self.channels = self.weights.shape(f"trunk/{path}.weight")[0]
        return self.graph.op("Conv", x, self.weight(path + ".weight"), *bias, **attributes)

    def build(self):
        g = self.graph
        x = self.last_map()
        g.output("map", x, self.channels, None, None)
        if self.model["kind"] == "cappa":
            return None
        mean = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
        return self.normalised(mean), self.channels


class ResnetGraph(ConvGraph):
    def description(self):
        return f"A ResNet-{self.options['depth']} with {self.options['width']} channels in the stem"

    def normalised(self, mean):
        return mean

    def norm(self, x, path):
        g = self.graph
        if self.has(path + ".running_mean"):
            parts = [self.weight(f"{path}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
            return g.op("BatchNormalization", x, *parts, epsilon=1e-5)
        groups = self.options["norm_groups"]
        of_group = g.op("InstanceNormalization", g.op("Reshape", x, g.constant([0, groups, -1])), g.number([1.0] * groups),
                        g.number([0.0] * groups), epsilon=1e-5)
        y = g.op("Reshape", of_group, g.op("Shape", x))
        for kind, part in zip(("Mul", "Add"), ("weight", "bias")):
            y = g.op(kind, y, self.weight(f"{path}.{part}", lambda values: values.reshape(-1, 1, 1)))
        return y

    def unit(self, x, convolution, norm, size, stride=1, group=1):
        pad = size // 2
        return self.norm(self.convolution(x, convolution, strides=[stride] * 2, pads=[pad] * 4, group=group), norm)

    def block(self, x, path, stride, bottleneck):
        g = self.graph
        sizes = [1, 3, 1] if bottleneck else [3, 3]
        y = x
        for i, size in enumerate(sizes):
            strided = i == (1 if bottleneck else 0)
            y = self.unit(y, f"{path}.conv{i + 1}", f"{path}.bn{i + 1}", size, stride if strided else 1,
                          self.options["groups"] if bottleneck and size == 3 else 1)
            if i + 1 < len(sizes):
                y = g.op("Relu", y)
        if self.has(path + ".downsample.0.weight"):
            x = self.unit(x, path + ".downsample.0", path + ".downsample.1", 1, stride)
        return g.op("Relu", g.op("Add", y, x))

    def last_map(self):
        g, depth = self.graph, self.options["depth"]
        x = g.op("Relu", self.unit("images", "conv1", "bn1", 7, 2))
        x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        for stage, count in enumerate(BLOCKS[depth]):
            for i in range(count):
                stride = 1 if i > 0 or stage == 0 else self.options["layer4_stride"] if stage == 3 else 2
                x = self.block(x, f"layer{stage + 1}.{i}", stride, depth >= 50)
        return x


class ConvnextGraph(ConvGraph):
    EPSILON = 1e-6

    def description(self):
        return f"A ConvNeXt with {'+'.join(map(str, self.options['depths']))} blocks of {self.options['widths']} channels"

    def norm_of_rows(self, x, path):
        return self.graph.op("LayerNormalization", x, self.weight(path + ".weight"), self.weight(path + ".bias"), axis=-1,
                             epsilon=self.EPSILON)

    def normalised(self, mean):
        return self.norm_of_rows(mean, "classifier.0")

    def turned(self, x, back=False):
        return self.graph.op("Transpose", x, perm=[0, 3, 1, 2] if back else [0, 2, 3, 1])

    def norm(self, x, path):
        return self.turned(self.norm_of_rows(self.turned(x), path), back=True)

    def product(self, x, path):
        return self.graph.product(x, f"trunk/{path}.weight", f"trunk/{path}.bias", lambda v: v.T if v.ndim == 2 else v)

    def block(self, x, path):
        g = self.graph
        y = self.convolution(x, path + ".block.0", pads=[3] * 4, group=self.channels)
        y = self.product(self.norm_of_rows(self.turned(y), path + ".block.2"), path + ".block.3")
        y = self.turned(self.product(g.gelu(y, "erf"), path + ".block.5"), back=True)
        return g.op("Add", x, g.op("Mul", y, self.weight(path + ".layer_scale")))

    def last_map(self):
        x = self.norm(self.convolution("images", "features.0.0", strides=[4, 4]), "features.0.1")
        for stage, count in enumerate(self.options["depths"]):
            if stage > 0:
                at = f"features.{2 * stage}"
                x = self.convolution(self.norm(x, at + ".0"), at + ".1", strides=[2, 2])
            for i in range(count):
                x = self.block(x, f"features.{2 * stage + 1}.{i}")
        return x


# A tensor that each kind of trunk has.
KINDS = {"encoder/embedding/kernel": VitGraph, "trunk/layer1.0.conv1.weight": ResnetGraph,
         "trunk/features.1.0.block.0.weight": ConvnextGraph}
TRUNK = re.compile(r"(encoder|trunk)/")


class Onnx:
    """The trunk of some weights, and its linear head, as a graph. Places are the tensors that the graph holds."""

    program, model = "onnx", "the graph of an encoder"

    def __init__(self, weights):
        weights = with_table(weights)
        kind = next((kind for mark, kind in KINDS.items() if mark in weights.places), None)
        if kind is None:
            raise Lacking(f"{weights.path} holds no ViT, ResNet or ConvNeXt of its own, and --as onnx writes encoders of images")
        self.weights, self.path, self.step, self.name = weights, weights.path, weights.step, weights.name
        self.graph, self.classes = Graph(weights), 0
        trunk = kind(self.graph)
        self.size, self.description = trunk.size, trunk.description()
        features = trunk.build()
        if features:
            self.graph.output("features", *features)
            if head := linear_head(weights):
                turned = ".clf." in head[0]
                logits = self.graph.product(features[0], *head, np.transpose if turned else np.asarray)
                self.classes = weights.shape(head[0])[0 if turned else 1]
                self.graph.output("logits", logits, self.classes)
        self.places = dict.fromkeys(self.graph.tensors)
        self.left_out = [path for path in weights.places if path not in self.places and not path.endswith(".num_batches_tracked")]
        if lost := [path for path in self.left_out if TRUNK.match(path)]:
            raise Lacking(f"{weights.path}: {lost[0]} has no place in the graph that --as onnx writes")

    def shape(self, path):
        return self.weights.shape(path)

    def outputs(self):
        return [output.name for output in self.graph.outputs]

    def write(self, path):
        self.graph.write(os.path.dirname(path), self.size, self.description)
