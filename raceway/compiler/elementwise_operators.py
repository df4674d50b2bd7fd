"""Operations on each entry of a tensor, and their gradients."""

from __future__ import annotations

import math

import torch

from raceway.compiler.conversion import Convert, Converter, conversion, register_all
from raceway.compiler.recording import NotCompilable, Operation


def _unary(kind: str) -> Convert:
    return lambda c, op: c.graph.add(kind, c.value(op.args[0], None if kind == "IsNaN" else op.outputs[0].dtype))


def binary(kind: str) -> Convert:
    """Return the conversion of an operation on two values."""

    def convert(c: Converter, op: Operation) -> str:
        dtype = op.outputs[0].dtype
        left, right = (c.value(entry, dtype) for entry in op.args[:2])
        alpha = op.kwargs.get("alpha", 1)
        if alpha != 1:
            right = c.graph.add("Mul", right, c.value(alpha, dtype))
        return c.graph.add(kind, left, right)

    return convert


def _comparison(kind: str) -> Convert:
    def convert(c: Converter, op: Operation) -> str:
        dtype = torch.result_type(*op.args[:2])
        left, right = (c.value(entry, dtype) for entry in op.args[:2])
        if kind == "NotEqual":
            return c.graph.add("Not", c.graph.add("Equal", left, right))
        return c.graph.add(kind, left, right)

    return convert


register_all(
    {
        "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "sigmoid": "Sigmoid",
        "relu": "Relu", "reciprocal": "Reciprocal", "sign": "Sign", "sgn": "Sign", "floor": "Floor", "round": "Round",
        "ceil": "Ceil", "erf": "Erf", "cos": "Cos", "sin": "Sin", "logical_not": "Not",
        "bitwise_not": "Not", "isnan": "IsNaN",
    },
    _unary,
)  # fmt: skip
register_all(
    {
        "add": "Add", "sub": "Sub", "mul": "Mul", "minimum": "Min", "maximum": "Max", "logical_and": "And",
        "logical_or": "Or", "bitwise_and": "And", "bitwise_or": "Or",
    },
    binary,
)  # fmt: skip
register_all(
    {
        "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal", "ne": "NotEqual",
    },
    _comparison,
)  # fmt: skip


@conversion("div")
def _div(c: Converter, op: Operation) -> str:
    if op.kwargs.get("rounding_mode") is not None:
        raise NotCompilable("it divides with rounding")
    divisor = op.args[1]
    if isinstance(divisor, (int, float)) and abs(math.frexp(divisor)[0]) == 0.5:  # a power of two: exactly the same
        dtype = op.outputs[0].dtype
        return c.graph.add("Mul", c.value(op.args[0], dtype), c.value(1 / divisor, dtype))  # in a third of the time
    return binary("Div")(c, op)


@conversion("rsub")
def _rsub(c: Converter, op: Operation) -> str:
    dtype = op.outputs[0].dtype
    return c.graph.add("Sub", c.value(op.args[1], dtype), c.value(op.args[0], dtype))


@conversion("log1p")
def _log1p(c: Converter, op: Operation) -> str:
    dtype = op.outputs[0].dtype
    return c.graph.add("Log", c.graph.add("Add", c.value(op.args[0], dtype), c.value(1.0, dtype)))


@conversion("pow")
def _pow(c: Converter, op: Operation) -> str:
    base, exponent = op.args
    dtype = op.outputs[0].dtype
    if isinstance(exponent, (int, float)) and exponent in (1, 2):
        name = c.value(base, dtype)
        return name if exponent == 1 else c.graph.add("Mul", name, name)
    return c.graph.add("Pow", c.value(base, dtype), c.value(exponent, dtype))


@conversion("square")
def _square(c: Converter, op: Operation) -> str:
    name = c.value(op.args[0])
    return c.graph.add("Mul", name, name)


@conversion("rsqrt")
def _rsqrt(c: Converter, op: Operation) -> str:
    return c.graph.add("Reciprocal", c.graph.add("Sqrt", c.value(op.args[0])))


@conversion("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(c: Converter, op: Operation) -> str:
    x, *limits = op.args
    if op.name == "clamp_max":
        limits = [None, *limits]
    lower, upper = [*limits, None, None][:2]
    lower, upper = op.kwargs.get("min", lower), op.kwargs.get("max", upper)
    dtype = op.outputs[0].dtype
    name = c.value(x, dtype)
    for kind, limit in (("Max", lower), ("Min", upper)):
        if limit is not None:
            name = c.graph.add(kind, name, c.value(limit, dtype))
    return name


@conversion("where")
def _where(c: Converter, op: Operation) -> str:
    dtype = op.outputs[0].dtype
    return c.graph.add("Where", c.value(op.args[0]), *(c.value(entry, dtype) for entry in op.args[1:3]))


@conversion("masked_fill")
def _masked_fill(c: Converter, op: Operation) -> str:
    x, mask, value = op.args
    return c.graph.add("Where", c.value(mask), c.value(value, x.dtype), c.value(x))


@conversion("threshold_backward")
def _threshold_backward(c: Converter, op: Operation) -> str:
    gradient, output, threshold = op.args
    above = c.graph.add("Greater", c.value(output), c.value(threshold, output.dtype))
    return c.graph.add("Where", above, c.value(gradient), c.value(0.0, gradient.dtype))


@conversion("tanh_backward")
def _tanh_backward(c: Converter, op: Operation) -> str:
    gradient, output = map(c.value, op.args)
    slope = c.graph.add("Sub", c.value(1.0, torch.float32), c.graph.add("Mul", output, output))
    return c.graph.add("Mul", gradient, slope)


@conversion("sigmoid_backward")
def _sigmoid_backward(c: Converter, op: Operation) -> str:
    gradient, output = map(c.value, op.args)
    slope = c.graph.add("Mul", output, c.graph.add("Sub", c.value(1.0, torch.float32), output))
    return c.graph.add("Mul", gradient, slope)


@conversion("softplus")
def _softplus(c: Converter, op: Operation) -> str:
    x, beta, threshold = [*op.args, 1, 20][:3] if len(op.args) < 3 else op.args
    name, scale = c.value(x), c.value(float(beta), x.dtype)
    scaled = c.graph.add("Mul", name, scale)
    soft = c.graph.add("Div", c.graph.add("Softplus", scaled), scale)
    return c.graph.add("Where", c.graph.add("Greater", scaled, c.value(float(threshold), x.dtype)), name, soft)


@conversion("softplus_backward")
def _softplus_backward(c: Converter, op: Operation) -> str:
    gradient, x, beta, threshold = op.args
    scaled = c.graph.add("Mul", c.value(x), c.value(float(beta), x.dtype))
    slope = c.graph.add("Mul", c.value(gradient), c.graph.add("Sigmoid", scaled))
    large = c.graph.add("Greater", scaled, c.value(float(threshold), x.dtype))
    return c.graph.add("Where", large, c.value(gradient), slope)
