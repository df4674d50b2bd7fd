"""Sums, means, maxima and softmax along dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raceway.compiler.conversion import Convert, Converter, conversion, register_all
from raceway.compiler.elementwise_operators import binary
from raceway.compiler.recording import NotCompilable, Operation


def _dims(op: Operation, position: int = 1) -> list[int] | None:
    """Return the dimensions of a reduction, as non-negative numbers; None for all."""
    dims = op.kwargs.get("dim", op.args[position] if len(op.args) > position else None)
    if dims is None or isinstance(dims, (bool, torch.dtype)):
        return None
    num = op.args[0].ndim
    dims = [dims] if isinstance(dims, int) else list(dims)
    return [dim % num for dim in dims] if num else None


def _reduction(kind: str) -> Convert:
    def convert(c: Converter, op: Operation) -> str:
        x, dims = op.args[0], _dims(op)
        keep = int(op.kwargs.get("keepdim", op.args[2] if len(op.args) > 2 else False))
        name = c.value(x, op.outputs[0].dtype)
        if x.ndim == 0:
            return name
        axes = c.graph.integers(*(dims or range(x.ndim)))
        return c.graph.add(kind, name, axes, keepdims=keep)

    return convert


register_all({"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}, _reduction)


@conversion("max", "min")
def _max(c: Converter, op: Operation) -> Any:
    kind = op.name.capitalize()
    if len(op.outputs) == 1:
        if len(op.args) == 2:
            return binary(kind)(c, op)
        return c.graph.add(f"Reduce{kind}", c.value(op.args[0]), keepdims=0)
    (dim,) = _dims(op) or [0]
    keep = int(op.kwargs.get("keepdim", op.args[2] if len(op.args) > 2 else False))
    name = c.value(op.args[0])
    values = c.graph.add(f"Reduce{kind}", name, c.graph.integers(dim), keepdims=keep)
    return [values, c.graph.add(f"Arg{kind}", name, axis=dim, keepdims=keep)]


@conversion("argmax", "argmin")
def _argmax(c: Converter, op: Operation) -> str:
    dims = _dims(op)
    if dims is None:
        raise NotCompilable("it takes the argmax over all dimensions")
    keep = int(op.kwargs.get("keepdim", op.args[2] if len(op.args) > 2 else False))
    return c.graph.add("ArgMax" if op.name == "argmax" else "ArgMin", c.value(op.args[0]), axis=dims[0], keepdims=keep)


@conversion("_log_softmax", "_softmax")
def _softmax(c: Converter, op: Operation) -> str:
    x, dim, _ = op.args
    return c.graph.add("LogSoftmax" if "log" in op.name else "Softmax", c.value(x), axis=dim % x.ndim)


@conversion("_log_softmax_backward_data")
def _log_softmax_backward(c: Converter, op: Operation) -> str:
    gradient, output, dim, _ = op.args
    total = c.graph.add("ReduceSum", c.value(gradient), c.graph.integers(dim % output.ndim), keepdims=1)
    return c.graph.add("Sub", c.value(gradient), c.graph.add("Mul", c.graph.add("Exp", c.value(output)), total))


@conversion("_softmax_backward_data")
def _softmax_backward(c: Converter, op: Operation) -> str:
    gradient, output, dim, _ = op.args
    weighted = c.graph.add("Mul", c.value(gradient), c.value(output))
    total = c.graph.add("ReduceSum", weighted, c.graph.integers(dim % output.ndim), keepdims=1)
    return c.graph.add("Sub", weighted, c.graph.add("Mul", c.value(output), total))


@conversion("logsumexp")
def _logsumexp(c: Converter, op: Operation) -> str:
    keep = int(op.kwargs.get("keepdim", op.args[2] if len(op.args) > 2 else False))
    return c.graph.add("ReduceLogSumExp", c.value(op.args[0]), c.graph.integers(*_dims(op) or ()), keepdims=keep)


@conversion("cumsum")
def _cumsum(c: Converter, op: Operation) -> str:
    x, dim = op.args[:2]
    axis = c.graph.constant(np.array(dim % x.ndim, np.int64))
    return c.graph.add("CumSum", c.value(x, op.outputs[0].dtype), axis)


@conversion("native_layer_norm")
def _layer_norm(c: Converter, op: Operation) -> list[str]:
    x, shape, weight, bias, epsilon = op.args
    scale = torch.ones(shape) if weight is None else weight
    shift = torch.zeros(shape) if bias is None else bias
    inputs = (c.value(entry) for entry in (x, scale, shift))
    return c.graph.add_several(3, "LayerNormalization", *inputs, axis=x.ndim - len(shape), epsilon=epsilon)


@conversion("native_layer_norm_backward")
def _layer_norm_backward(c: Converter, op: Operation) -> list[str | None]:
    """With x̂ = (x - mean) / deviation and h = gradient · weight: (h - mean h - x̂ mean(h x̂)) / deviation."""
    gradient, x, shape, mean, scale, weight, _, wanted = op.args
    inner = c.graph.integers(*range(x.ndim - len(shape), x.ndim))
    outer = c.graph.integers(*range(x.ndim - len(shape)))
    incoming, deviation = c.value(gradient), c.value(scale)
    normal = c.graph.add("Mul", c.graph.add("Sub", c.value(x), c.value(mean)), deviation)
    weighted = incoming if weight is None else c.graph.add("Mul", incoming, c.value(weight))
    along = c.graph.add("ReduceMean", c.graph.add("Mul", weighted, normal), inner, keepdims=1)
    centred = c.graph.add("Sub", weighted, c.graph.add("ReduceMean", weighted, inner, keepdims=1))
    flow = c.graph.add("Mul", c.graph.add("Sub", centred, c.graph.add("Mul", normal, along)), deviation)
    sums: list[str | None] = [
        (c.graph.add("ReduceSum", entry, outer, keepdims=0) if x.ndim > len(shape) else entry) if is_wanted else None
        for entry, is_wanted in zip((c.graph.add("Mul", incoming, normal), incoming), wanted[1:], strict=True)
    ]
    return [flow, *sums]
