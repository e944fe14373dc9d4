# SPDX-License-Identifier: Apache-2.0
"""A graph of ONNX and its tensors, which lie in a second file and are written one at a time. Not a tool itself."""
import os

import numpy as np

from console import Failure
from lacking import Lacking

try:
    import onnx
    from onnx import checker, helper, numpy_helper
except ImportError:
    onnx = None

OPSET, FORMAT = 17, 8  # operators (with LayerNormalization), version of the file
DATA = "model.onnx.data"
ALIGNED = 64           # bytes


class Graph:
    """Collects operators. A value is the name of a tensor; the first dimension of each is the number of images."""

    def __init__(self, weights):
        if onnx is None:
            raise Failure("this Python has no module onnx, which --as onnx needs: apt-get install python3-onnx, or pip install onnx")
        self.weights, self.nodes, self.numbers, self.tensors, self.outputs = weights, [], [], {}, []

    def op(self, kind, *inputs, **attributes):
        """Adds an operator with one output, and returns the output's name."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values, dtype=np.int64):
        """Adds a small tensor that no checkpoint holds."""
        name = f"constant_{len(self.numbers)}"
        self.numbers.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def number(self, value):
        return self.constant(value, np.float32)

    def weight(self, path, turn=lambda values: values):
        """Returns the tensor of a parameter, after a change of its shape or of the order of its dimensions."""
        if self.weights.type_of(path) != "f32":
            raise Lacking(f"{path} is {self.weights.type_of(path)}, and --as onnx writes f32")
        shape = turn(np.broadcast_to(np.int8(0), self.weights.shape(path))).shape
        if self.tensors.setdefault(path, (shape, turn))[0] != shape:
            raise ValueError(f"{path} is used in two shapes")
        return path

    # Layers. A path is that of a layer's parameters.

    def product(self, x, kernel, bias=None, turn=lambda values: values):
        y = self.op("MatMul", x, self.weight(kernel, turn))
        return y if bias is None else self.op("Add", y, self.weight(bias, lambda values: values.reshape(-1)))

    def layer_norm(self, x, scale, bias, epsilon):
        return self.op("LayerNormalization", x, self.weight(scale), self.weight(bias), axis=-1, epsilon=epsilon)

    def gelu(self, x, kind):
        """kind: that of model.trunk.gelu."""
        if kind == "quick":
            return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, self.number(1.702))))
        if kind == "erf":
            inner = self.op("Erf", self.op("Mul", x, self.number(0.5**0.5)))
        else:
            cube = self.op("Mul", self.op("Mul", x, x), x)
            sum_of_both = self.op("Add", x, self.op("Mul", cube, self.number(0.044715)))
            inner = self.op("Tanh", self.op("Mul", sum_of_both, self.number((2 / np.pi) ** 0.5)))
        return self.op("Mul", self.op("Mul", x, self.number(0.5)), self.op("Add", inner, self.number(1)))

    def output(self, name, value, *shape):
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self.outputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["images", *shape]))

    # Writing

    def write(self, folder, size, description):
        """Writes model.onnx and the tensors beside it. It takes f32 [images, 3, size, size]; size None: any height and width."""
        initializers, at = list(self.numbers), 0
        with open(os.path.join(folder, DATA), "xb") as data:
            for path, (shape, turn) in self.tensors.items():
                at += data.write(b"\0" * (-at % ALIGNED))
                tensor = onnx.TensorProto(name=path, data_type=onnx.TensorProto.FLOAT, dims=shape,
                                          data_location=onnx.TensorProto.EXTERNAL)
                written = data.write(np.ascontiguousarray(turn(self.weights.values(path)), np.float32).tobytes())
                for key, value in (("location", DATA), ("offset", at), ("length", written)):
                    tensor.external_data.add(key=key, value=str(value))
                initializers.append(tensor)
                at += written
        images = helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["images", 3, size or "height", size or "width"])
        graph = helper.make_graph(self.nodes, "model", [images], self.outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="trainer", doc_string=description)
        model.ir_version = FORMAT
        path = os.path.join(folder, "model.onnx")
        with open(path, "xb") as file:
            file.write(model.SerializeToString())
        checker.check_model(path)
