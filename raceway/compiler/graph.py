"""A graph of ONNX operators under construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from raceway.compiler.recording import NotCompilable

_OPSET = 18
_IR_VERSION = 10
_ELEMENT_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
    torch.bool: TensorProto.BOOL,
}


def element_type(dtype: torch.dtype) -> int:
    """Return ONNX's number of a dtype."""
    if dtype not in _ELEMENT_TYPES:
        raise NotCompilable(f"it uses {dtype}")
    return int(_ELEMENT_TYPES[dtype])


class Graph:
    """Nodes that compute values, each with a name, from inputs and constants."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._constants: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self._num_values = 0

    def input(self, name: str, like: Tensor) -> str:
        """Add an input with the shape and dtype of a tensor."""
        self._inputs[name] = helper.make_tensor_value_info(name, element_type(like.dtype), list(like.shape))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a constant; equal ones are one."""
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"constant{len(self._constants)}")
        return self._constants[key].name

    def integers(self, *values: int) -> str:
        """Return a constant vector of integers, as shapes and axes are given."""
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        return self.add_several(1, kind, *inputs, domain=domain, **attributes)[0]

    def add_several(self, num: int, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [f"value{self._num_values + index}" for index in range(num)]
        self._num_values += num
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names

    def model(self, outputs: dict[str, str]) -> bytes:
        """Return the graph for ONNX Runtime, with these outputs: the values that they have by name."""
        nodes = self._needed_nodes(set(outputs.values()))
        nodes += [helper.make_node("Identity", [value], [name]) for name, value in outputs.items()]
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        used = {name for node in nodes for name in node.input}
        inputs = [info for name, info in self._inputs.items() if name in used]
        constants = [tensor for tensor in self._constants.values() if tensor.name in used]
        graph = helper.make_graph(nodes, "graph", inputs, infos, constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        return bytes(model.SerializeToString())

    def _needed_nodes(self, needed: set[str]) -> list[onnx.NodeProto]:
        """Return the nodes on which some values depend."""
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        return kept[::-1]
