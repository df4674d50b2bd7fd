"""Products of matrices, and losses of two tensors with their gradients."""

from __future__ import annotations

import math

import torch

from raceway.compiler.conversion import Converter, conversion
from raceway.compiler.recording import NotCompilable, Operation

PRODUCTS = {"addmm", "mm", "bmm", "baddbmm"}
"""The names of the products."""


@conversion("addmm")
def _addmm(c: Converter, op: Operation) -> str:
    bias, left, right = op.args
    (a, transpose_a), (b, transpose_b) = c.matrix(left), c.matrix(right)
    alpha, beta = (float(op.kwargs.get(name, 1)) for name in ("alpha", "beta"))
    return c.graph.add("Gemm", a, b, c.value(bias), transA=transpose_a, transB=transpose_b, alpha=alpha, beta=beta)


@conversion("mm", "bmm")
def _mm(c: Converter, op: Operation) -> str:
    return c.product(*op.args)


@conversion("baddbmm")
def _baddbmm(c: Converter, op: Operation) -> str:
    bias, left, right = op.args
    if op.kwargs.get("alpha", 1) != 1 or op.kwargs.get("beta", 1) != 1:
        raise NotCompilable("it scales a product of batches")
    return c.graph.add("Add", c.product(left, right), c.value(bias))


@conversion("mse_loss")
def _mse_loss(c: Converter, op: Operation) -> str:
    error = c.graph.add("Sub", *map(c.value, op.args[:2]))
    return _reduced(c, c.graph.add("Mul", error, error), op, 2)


@conversion("smooth_l1_loss", "huber_loss")
def _huber_loss(c: Converter, op: Operation) -> str:
    huber = op.name == "huber_loss"
    beta = float(op.args[3] if len(op.args) > 3 else op.kwargs.get("delta" if huber else "beta", 1.0))
    size = c.graph.add("Abs", c.graph.add("Sub", *map(c.value, op.args[:2])))
    half, edge = c.value(0.5, torch.float32), c.value(beta, torch.float32)
    inner = c.graph.add("Mul", half, c.graph.add("Mul", size, size))
    outer = c.graph.add("Sub", size, c.value(0.5 * beta, torch.float32))
    if huber:
        outer = c.graph.add("Mul", edge, outer)
    elif beta != 1:
        inner = c.graph.add("Div", inner, edge)
    return _reduced(c, c.graph.add("Where", c.graph.add("Less", size, edge), inner, outer), op, 2)


def _reduced(c: Converter, name: str, op: Operation, position: int) -> str:
    """Apply the reduction of a loss: 0 none, 1 mean, 2 sum."""
    reduction = op.args[position] if len(op.args) > position else op.kwargs.get("reduction", 1)
    return name if reduction == 0 else c.graph.add("ReduceMean" if reduction == 1 else "ReduceSum", name, keepdims=0)


@conversion("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def _loss_backward(c: Converter, op: Operation) -> str:
    gradient, left, right, reduction = op.args[:4]
    error = c.graph.add("Sub", c.value(left), c.value(right))
    if op.name == "mse_loss_backward":
        slope = c.graph.add("Mul", c.value(2.0, torch.float32), error)
    else:
        edge = float(op.args[4])
        limits = c.value(-edge, torch.float32), c.value(edge, torch.float32)
        slope = c.graph.add("Min", c.graph.add("Max", error, limits[0]), limits[1])
        if op.name == "smooth_l1_loss_backward" and edge != 1:
            slope = c.graph.add("Div", slope, limits[1])
    if reduction == 1:
        slope = c.graph.add("Mul", slope, c.value(1 / math.prod(left.shape), torch.float32))
    return c.graph.add("Mul", slope, c.value(gradient))
