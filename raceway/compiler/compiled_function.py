"""A recorded function, computed by ONNX Runtime on the memory of its tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from raceway.compiler import operators  # noqa: F401 - registers them
from raceway.compiler.conversion import Converter
from raceway.compiler.graph import Graph
from raceway.compiler.product_operators import PRODUCTS
from raceway.compiler.recording import NotCompilable, Recording

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else importing it starts a thread that reports to its makers
import onnxruntime

_ERRORS_ONLY = 3


class CompiledFunction:
    """A recorded function as a graph. It can be computed on several threads at a time, each with its own `Call`.

    Args:
        recording: what the function did.
        inputs: the tensors on which it depends, by name.
        outputs: the tensors that are wanted of it, by name.

    Raises:
        NotCompilable: the graph would need something that ONNX does not have.
    """

    def __init__(self, recording: Recording, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        graph = Graph()
        converter = Converter(graph, recording)
        draws = {f"random{index}": draw for index, draw in enumerate(recording.draws)}
        for name, tensor in [*inputs.items(), *((name, draw.result) for name, draw in draws.items())]:
            converter.set(tensor, graph.input(name, tensor))
        converter.run()
        model = graph.model({name: converter.value(tensor) for name, tensor in outputs.items()})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # the calling one
        options.log_severity_level = _ERRORS_ONLY
        try:
            self.session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class for each kind
            raise NotCompilable(f"ONNX Runtime refuses its graph: {error}") from error
        self.inputs = {entry.name for entry in self.session.get_inputs()}
        """The names of the inputs that matter."""
        self.draws = {name: draw for name, draw in draws.items() if name in self.inputs}
        """The random numbers that are inputs."""
        self.is_large = any(operation.name in PRODUCTS for operation in recording.operations)
        """Whether it computes for long enough to be worth a thread."""


class Call:
    """The inputs and outputs of calls of a compiled function, each of which stays at its place in memory."""

    def __init__(self, function: CompiledFunction) -> None:
        self.function = function
        self._binding: Any = function.session.io_binding()
        self.arrays: dict[str, np.ndarray] = {}
        """The memory of inputs and outputs, by name."""

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Read an input from the memory of a contiguous array."""
        self.arrays[name] = array
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Write an output to the memory of a contiguous array."""
        self.arrays[name] = array
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def copy_input(self, name: str, array: np.ndarray) -> None:
        """Copy an input for the next call: for small ones, binding takes longer."""
        if name not in self.arrays:
            self.bind_input(name, np.empty_like(array, order="C"))
        np.copyto(self.arrays[name], array)

    def run(self) -> None:
        """Compute the outputs."""
        self.function.session.run_with_iobinding(self._binding)
