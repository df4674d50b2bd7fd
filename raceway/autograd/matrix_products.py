"""The products of linear layers and of their backward passes: large ones by oneDNN, the others by numpy.

Measured on one core for a layer of 256 x 256 and a batch of 256: oneDNN takes 0.14 ms for the product, bias and ReLU
together, numpy (OpenBLAS) 0.28 ms and `torch.addmm` (MKL) 0.30 ms; gradients are similar. Calls of oneDNN take
0.01 ms more than those of numpy, and a new shape 0.5 ms, so that small layers, most of all those trained on batches of
varying size, are better off with numpy. The operator is the one that torch's compiler uses; where torch lacks it, numpy
computes everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray

_MIN_WEIGHTS = 1 << 15  # of the largest layer of a network that oneDNN computes
_MIN_ROWS = 32
_MIN_TORCH_SIZE, _MAX_TORCH_SIZE = 1 << 14, 1 << 17  # of activations whose gradients torch computes faster than numpy
_ZERO = np.float32(0)
_ONE = np.float32(1)


def _find_operator() -> Any:
    """Return torch's linear layer of oneDNN with a fused activation, or None if torch was built without it."""
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
        operator(torch.zeros(2, 2), torch.zeros(2, 2), None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return operator


_operator: Any = _find_operator()


def is_large(num_rows: int, weights: list[Array]) -> bool:
    """Whether oneDNN computes the layers of a network with these weights for a batch of this size.

    Other sizes than multiples of 16 are taken for those of batches whose size varies, such as whole episodes.
    """
    fixed_size = num_rows >= _MIN_ROWS and num_rows % 16 == 0
    return _operator is not None and fixed_size and max(weight.size for weight in weights) >= _MIN_WEIGHTS


def linear(x: Array, weight: Array, bias: Array, activation: str, large: bool) -> Array:
    """Return f(x Wᵀ + b), [N, outputs], for an activation f: relu, tanh or none.

    Args:
        x: the input, [N, inputs], or [..., inputs] if the network is not large.
        weight: the weights W, [outputs, inputs].
        bias: the bias, [outputs].
        activation: the name of the activation.
        large: whether the network `is_large`.
    """
    return (large_linear if large else small_linear)(x, weight, bias, activation)


def large_linear(x: Array, weight: Array, bias: Array, activation: str) -> Array:
    """Return the same for a large network."""
    if len(weight) > 1:
        return _product(x, weight, torch.from_numpy(bias), activation)
    return small_linear(x, weight, bias, activation)


def small_linear(x: Array, weight: Array, bias: Array, activation: str) -> Array:
    """Return the same for another network."""
    output = x @ weight.T
    output += bias
    return activate(output, activation)


def activate(x: Array, activation: str) -> Array:
    """Apply an activation in place, and return the array."""
    if activation == "relu":
        np.maximum(x, _ZERO, out=x)
    elif activation == "tanh":
        np.tanh(x, out=x)
    return x


def activation_gradient(gradient: Array, output: Array, activation: str) -> Array:
    """Return the gradient of the input of an activation, from the gradient of its output and the output."""
    if activation == "relu":
        if gradient.size == output.size and _MIN_TORCH_SIZE <= output.size <= _MAX_TORCH_SIZE:
            return torch.ops.aten.threshold_backward(torch.from_numpy(gradient), torch.from_numpy(output), 0).numpy()
        return gradient * (output > 0)
    if activation == "tanh":
        result = output * output
        np.subtract(_ONE, result, out=result)
        result *= gradient
        return result
    return gradient


def weight_gradient(gradient: Array, x: Array, large: bool) -> Array:
    """Return the gradient of W, [outputs, inputs], from the gradient of the output and the input, [N, ...] each."""
    if not large or gradient.shape[1] == 1:
        return gradient.T @ x
    if x.shape[1] >= gradient.shape[1]:
        return _product(gradient.T, x.T)
    return _product(x.T, gradient.T).T  # the longer side is the one that oneDNN computes in parallel


def input_gradient(gradient: Array, weight: Array, large: bool) -> Array:
    """Return the gradient of the input, [N, inputs]."""
    if len(weight) == 1:
        return gradient * weight  # BLAS is slow for one column
    return _product(gradient, weight.T) if large else gradient @ weight


def bias_gradient(gradient: Array) -> Array:
    """Return the gradient of the bias, [outputs]: BLAS adds up rows in half of the time of `sum`."""
    return np.ones(len(gradient), np.float32) @ gradient


def _product(left: Array, right: Array, bias: torch.Tensor | None = None, activation: str = "none") -> Array:
    """Return left · rightᵀ."""
    return _operator(torch.from_numpy(left), torch.from_numpy(right), bias, activation, [], "").numpy()
