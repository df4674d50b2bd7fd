"""The conversion of recorded operations of torch to ONNX, each by a function that is registered for its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raceway.compiler.graph import Graph, element_type
from raceway.compiler.recording import NotCompilable, Operation, Recording

Convert = Callable[["Converter", Operation], Any]
CONVERSIONS: dict[str, Convert] = {}
"""The functions by the names of the operations; see `operators`."""


class Converter:
    """Adds the operations of a recording to a graph, one after the other.

    torch's own exporter takes seconds, and leaves the transposed operands of matrix products to nodes of their own.
    """

    def __init__(self, graph: Graph, recording: Recording) -> None:
        self.graph, self.recording = graph, recording
        self._values: dict[int, str] = {}
        self._transposed: dict[str, str] = {}  # names of matrices, by those of the transposed ones

    def set(self, tensor: Tensor, name: str) -> None:
        """Name the value of a tensor."""
        self._values[id(tensor)] = name

    def run(self) -> None:
        """Add all operations."""
        for operation in self.recording.operations:
            convert = CONVERSIONS.get(operation.name)
            if convert is None:
                raise NotCompilable(f"there is no conversion of {operation.function}")
            names = convert(self, operation)
            for tensor, name in zip(operation.outputs, names if isinstance(names, list) else [names], strict=False):
                if tensor is not None and name is not None:
                    self.set(tensor, name)

    def value(self, entry: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of a tensor's or a number's value, cast to a dtype if it has another."""
        if not isinstance(entry, Tensor):
            return self.graph.constant(torch.tensor(entry, dtype=dtype).numpy())
        if id(entry) not in self._values:
            if id(entry) in self.recording.depends:
                raise NotCompilable("it uses a tensor that was computed elsewhere")
            array = entry.detach().cpu().contiguous().numpy().copy()
            self._values[id(entry)] = self.graph.constant(array)
        name = self._values[id(entry)]
        return name if dtype in (None, entry.dtype) else self.graph.add("Cast", name, to=element_type(dtype))

    def matrix(self, entry: Tensor) -> tuple[str, int]:
        """Return a matrix as the operand of a product, and whether the product is to transpose it."""
        name = self.value(entry)
        return (self._transposed[name], 1) if name in self._transposed else (name, 0)

    def transpose(self, entry: Tensor, order: Sequence[int]) -> str:
        """Permute the dimensions."""
        name = self.value(entry)
        result = self.graph.add("Transpose", name, perm=list(order))
        num = entry.ndim
        if num >= 2 and list(order) == [*range(num - 2), num - 1, num - 2]:
            self._transposed[result] = name
        return result

    def reshape(self, entry: Tensor, shape: Sequence[int]) -> str:
        """Give a value another shape."""
        name = self.value(entry)
        return (
            name if tuple(entry.shape) == tuple(shape) else self.graph.add("Reshape", name, self.graph.integers(*shape))
        )

    def product(self, left: Tensor, right: Tensor) -> str:
        """Return the product of matrices, or of batches of them."""
        (a, transpose_a), (b, transpose_b) = self.matrix(left), self.matrix(right)
        if left.ndim == 2:
            return self.graph.add("Gemm", a, b, transA=transpose_a, transB=transpose_b)
        return self.graph.add("FusedMatMul", a, b, domain="com.microsoft", transA=transpose_a, transB=transpose_b)


def conversion(*names: str) -> Callable[[Convert], Convert]:
    """Register the conversion of the operations with these names."""

    def register(convert: Convert) -> Convert:
        CONVERSIONS.update(dict.fromkeys(names, convert))
        return convert

    return register


def register_all(kinds: dict[str, str], factory: Callable[[str], Convert]) -> None:
    """Register the conversions of operations that differ only in the kind of ONNX's node."""
    for name, kind in kinds.items():
        CONVERSIONS[name] = factory(kind)
