# SPDX-License-Identifier: Apache-2.0
"""Computes a graph of ONNX in double with NumPy: the operators of encoders of images. For places without ONNX Runtime."""
import math
import os

import numpy as np
import onnx
from onnx import numpy_helper


def windows(x, kernel, strides, pads, fill):
    """Returns the windows [images, channels, rows, columns, *kernel] of x [images, channels, height, width]."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))[:, :, ::strides[0], ::strides[1]]


def convolution(x, weight, bias=None, group=1, strides=(1, 1), pads=(0, 0, 0, 0)):
    parts = []
    for part, kernel in zip(np.split(x, group, axis=1), np.split(weight, group)):
        parts.append(np.einsum("nchwij,ocij->nohw", windows(part, weight.shape[2:], strides, pads, 0), kernel, optimize=True))
    y = np.concatenate(parts, axis=1)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def normalised(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def batch_norm(x, scale, bias, mean, variance, epsilon):
    of = lambda values: values.reshape(-1, *[1] * (x.ndim - 2))
    return (x - of(mean)) / np.sqrt(of(variance) + epsilon) * of(scale) + of(bias)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def reshape(x, shape):
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape)])


OPS = {
    "Add": np.add, "Mul": np.multiply, "MatMul": np.matmul, "Identity": np.asarray, "Tanh": np.tanh, "Erf": np.vectorize(math.erf),
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softmax": softmax, "Conv": convolution,
    "Transpose": lambda x, perm: x.transpose(perm), "Reshape": reshape, "Expand": lambda x, shape: np.broadcast_to(x, shape),
    "Concat": lambda *x, axis: np.concatenate(x, axis), "Shape": lambda x, start=0, end=None: np.array(x.shape[start:end]),
    "Gather": lambda x, index, axis: np.take(x, index, axis), "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Flatten": lambda x, axis: x.reshape(math.prod(x.shape[:axis]), -1), "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "ReduceMean": lambda x, axes, keepdims: x.mean(tuple(axes), keepdims=bool(keepdims)), "BatchNormalization": batch_norm,
    "LayerNormalization": lambda x, scale, bias, axis, epsilon: normalised(x, axis, epsilon) * scale + bias,
    "InstanceNormalization": lambda x, scale, bias, epsilon: normalised(x, tuple(range(2, x.ndim)), epsilon) * scale[:, None] +
                                                             bias[:, None],
    "MaxPool": lambda x, kernel_shape, strides, pads: windows(x, kernel_shape, strides, pads, -np.inf).max((-2, -1)),
}


def check_shape(value, array):
    """Checks an array against the sizes that the graph declares for an input or output; names stand for any size."""
    declared = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
    fits = len(declared) == array.ndim and all(size in (None, real) for size, real in zip(declared, array.shape))
    assert fits, f"{value.name} is {declared} and has {array.shape}"


def run(path, images):
    """Returns {output: values} of a graph, whose tensors may lie in files beside it."""
    model = onnx.load(path, load_external_data=False)
    check_shape(model.graph.input[0], images)
    values = {"images": images.astype(np.float64)}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            with open(os.path.join(os.path.dirname(path), place["location"]), "rb") as file:
                file.seek(int(place["offset"]))
                tensor.raw_data = file.read(int(place["length"]))
            tensor.data_location = onnx.TensorProto.DEFAULT
        array = numpy_helper.to_array(tensor)
        values[tensor.name] = array.astype(np.float64) if array.dtype == np.float32 else array
    for node in model.graph.node:
        given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        values[node.output[0]] = OPS[node.op_type](*(values[name] for name in node.input), **given)
    for output in model.graph.output:
        check_shape(output, values[output.name])
    return {output.name: values[output.name] for output in model.graph.output}
