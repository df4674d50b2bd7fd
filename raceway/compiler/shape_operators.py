"""Operations that rearrange the entries of tensors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from raceway.compiler.conversion import Converter, conversion
from raceway.compiler.recording import NotCompilable, Operation


@conversion("detach", "alias", "clone", "lift_fresh", "lift_fresh_copy", "contiguous")
def _same(c: Converter, op: Operation) -> str:
    return c.value(op.args[0])


@conversion("_to_copy")
def _to_copy(c: Converter, op: Operation) -> str:
    return c.value(op.args[0], op.outputs[0].dtype)


@conversion("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "_reshape_alias")
def _view(c: Converter, op: Operation) -> str:
    return c.reshape(op.args[0], op.outputs[0].shape)


@conversion("expand")
def _expand(c: Converter, op: Operation) -> str:
    x, shape = op.args[0], op.outputs[0].shape
    name = c.value(x)
    return name if x.shape == shape else c.graph.add("Expand", name, c.graph.integers(*shape))


@conversion("t", "transpose", "permute")
def _transpose(c: Converter, op: Operation) -> str:
    x = op.args[0]
    if op.name == "permute":
        order = [dim % x.ndim for dim in op.args[1]]
    else:
        first, second = (0, 1) if op.name == "t" else (dim % x.ndim for dim in op.args[1:3])
        order = list(range(x.ndim))
        if x.ndim > 1:
            order[first], order[second] = order[second], order[first]
    return c.value(x) if order == sorted(order) else c.transpose(x, order)


def _bounds(op: Operation, position: int) -> tuple[int, int, int, int]:
    """Return dimension, begin, end and step of a slice."""
    size_of, (dim, begin, end, step) = op.args, ([*op.args[position:], *[None] * 4])[:4]
    dim, begin, step = dim or 0, begin or 0, step or 1
    shape = op.outputs[0].shape if op.name == "slice_backward" else size_of[0].shape
    size, dim = shape[dim], dim % len(shape)
    end = size if end is None else min(end + size if end < 0 else end, size)
    return dim, begin + size if begin < 0 else begin, end, step


@conversion("slice")
def _slice(c: Converter, op: Operation) -> str:
    dim, begin, end, step = _bounds(op, 1)
    x = op.args[0]
    if (begin, step) == (0, 1) and end >= x.shape[dim]:
        return c.value(x)
    return c.graph.add("Slice", c.value(x), *map(c.graph.integers, (begin, end, dim, step)))


def _pad(c: Converter, gradient: str, before: list[int], after: list[int]) -> str:
    return c.graph.add("Pad", gradient, c.graph.integers(*before, *after))


@conversion("slice_backward")
def _slice_backward(c: Converter, op: Operation) -> str:
    dim, begin, end, step = _bounds(op, 2)
    if step != 1:
        raise NotCompilable("it takes every n-th entry")
    shape = op.outputs[0].shape
    before, after = [0] * len(shape), [0] * len(shape)
    before[dim], after[dim] = begin, shape[dim] - end
    return _pad(c, c.value(op.args[0]), before, after)


@conversion("select")
def _select(c: Converter, op: Operation) -> str:
    x, dim, index = op.args
    dim = dim % x.ndim
    scalar = c.graph.constant(np.array(index % x.shape[dim], np.int64))
    return c.graph.add("Gather", c.value(x), scalar, axis=dim)


@conversion("select_backward")
def _select_backward(c: Converter, op: Operation) -> str:
    gradient, shape, dim, index = op.args
    dim, before, after = dim % len(shape), [0] * len(shape), [0] * len(shape)
    before[dim] = index % shape[dim]
    after[dim] = shape[dim] - before[dim] - 1
    thin = [*shape[:dim], 1, *shape[dim + 1 :]]
    return _pad(c, c.reshape(gradient, thin), before, after)


@conversion("split", "split_with_sizes", "unbind", "chunk", "unsafe_split")
def _split(c: Converter, op: Operation) -> list[str]:
    x = op.args[0]
    if op.name == "unbind":
        dim = (op.args[1] if len(op.args) > 1 else 0) % x.ndim
        numbers = (c.graph.constant(np.array(index, np.int64)) for index in range(x.shape[dim]))
        return [c.graph.add("Gather", c.value(x), number, axis=dim) for number in numbers]
    dim = (op.args[2] if len(op.args) > 2 else 0) % x.ndim
    sizes = [output.shape[dim] for output in op.outputs]
    if len(sizes) == 1:
        return [c.value(x)]
    return c.graph.add_several(len(sizes), "Split", c.value(x), c.graph.integers(*sizes), axis=dim)


@conversion("cat")
def _cat(c: Converter, op: Operation) -> str:
    parts, dtype = op.args[0], op.outputs[0].dtype
    dim = (op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)) % op.outputs[0].ndim
    names = [c.value(part, dtype) for part in parts if part.numel()]
    return names[0] if len(names) == 1 else c.graph.add("Concat", *names, axis=dim)


@conversion("stack")
def _stack(c: Converter, op: Operation) -> str:
    dim = (op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)) % op.outputs[0].ndim
    thin = [*op.outputs[0].shape]
    thin[dim] = 1
    return c.graph.add("Concat", *(c.reshape(part, thin) for part in op.args[0]), axis=dim)


@conversion("gather")
def _gather(c: Converter, op: Operation) -> str:
    x, dim, index = op.args[:3]
    return c.graph.add("GatherElements", c.value(x), c.value(index), axis=dim % x.ndim)


@conversion("index_select")
def _index_select(c: Converter, op: Operation) -> str:
    x, dim, index = op.args
    return c.graph.add("Gather", c.value(x), c.value(index), axis=dim % x.ndim)


@conversion("scatter_add", "scatter")
def _scatter(c: Converter, op: Operation) -> str:
    x, dim, index, source = op.args
    reduction = "add" if op.name == "scatter_add" else "none"
    if not isinstance(source, Tensor):
        source = index.new_full(index.shape, source, dtype=x.dtype)
    names = c.value(x), c.value(index), c.value(source)
    return c.graph.add("ScatterElements", *names, axis=dim % x.ndim, reduction=reduction)


@conversion("sort")
def _sort(c: Converter, op: Operation) -> list[str]:
    x = op.args[0]
    dim = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else -1) % x.ndim
    largest = int(op.kwargs.get("descending", op.args[2] if len(op.args) > 2 else False))
    number = c.graph.integers(x.shape[dim])
    return c.graph.add_several(2, "TopK", c.value(x), number, axis=dim, largest=largest, sorted=1)
