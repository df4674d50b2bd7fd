"""Linear layers and the activations between them, forward and backward in numpy; see `tape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd.row_blocks import run_blocks, split_rows
from raceway.autograd.tape import add_gradient, can_use_numpy, tape_for

Array = np.ndarray

_MAX_NUMPY_WEIGHTS = 1 << 18  # of a layer; larger ones, as after convolutions, are computed in blocks on threads
_BLOCK_ROWS = 64
_BLOCK_UNITS = 128

_ONE = np.float32(1)
_ZERO = np.float32(0)


def _tanh_backward(gradient: Array, output: Array) -> Array:
    result = output * output
    np.subtract(_ONE, result, out=result)
    result *= gradient
    return result


ACTIVATIONS: dict[type[nn.Module], tuple[Any, Any]] = {
    nn.ReLU: (lambda x: np.maximum(x, _ZERO, out=x), lambda gradient, output: gradient * (output > 0)),
    nn.Tanh: (lambda x: np.tanh(x, out=x), _tanh_backward),
}
"""Forward function of each activation, in place, and backward function: (output gradient, output) -> input gradient."""


class Layers(nn.Sequential):
    """A feed-forward network: an encoder, then layers in sequence."""

    def forward(self, obs: Any) -> Tensor:
        """Return the output of the last layer."""
        return run_layers(list(self)[1:], self[0](obs))

    def features(self, obs: Any) -> Tensor:
        """Return the input of the last layer."""
        return run_layers(list(self)[1:-1], self[0](obs))


def run_layers(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return the output of the last of these layers; computed in numpy where that is possible."""
    tape = tape_for(x)
    linear = _linear_layers(layers) if (tape or can_use_numpy(x)) and x.ndim > 1 else None
    if linear is None:
        for layer in layers:
            x = layer(x)
        return x
    run = ForwardPass(x, *linear)
    output = torch.from_numpy(run.outputs[-1]) if tape is None else tape.record(run.outputs[-1], run.backward)
    add_log_std: Any = getattr(layers[-1], "add_log_std", None)
    return output if add_log_std is None else add_log_std(output)


def _linear_layers(layers: Sequence[nn.Module]) -> tuple[list[nn.Linear], list[type[nn.Module] | None]] | None:
    """Return the linear layers and the activation after each; or None if a layer is of another type."""
    linear: list[nn.Linear] = []
    activations: list[type[nn.Module] | None] = []
    for layer in layers:
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            linear.append(layer)
            activations.append(None)
        elif type(layer) in ACTIVATIONS and activations and activations[-1] is None:
            activations[-1] = type(layer)
        else:
            return None
    return (linear, activations) if activations else None


class ForwardPass:
    """A forward pass through linear layers, with the outputs that its backward pass needs."""

    def __init__(self, x: Tensor, layers: list[nn.Linear], activations: list[type[nn.Module] | None]) -> None:
        self.x, self.layers, self.activations = x, layers, activations
        self.weights = [layer.weight.detach().numpy() for layer in layers]
        self.outputs = [output := x.detach().numpy()]
        for layer, weight, activation in zip(layers, self.weights, activations, strict=True):
            output = _apply(output, weight, layer.bias.detach().numpy())
            if activation is not None:
                ACTIVATIONS[activation][0](output)
            self.outputs.append(output)

    def backward(self, gradient: Array) -> None:
        """Add to the gradients of the layers and of the input, from the gradient of the last output."""
        gradient = gradient.reshape(-1, gradient.shape[-1])
        ones = np.ones(len(gradient), np.float32)
        for index in reversed(range(len(self.layers))):
            layer, weight, activation = self.layers[index], self.weights[index], self.activations[index]
            if activation is not None:
                gradient = ACTIVATIONS[activation][1](gradient, self.outputs[index + 1].reshape(gradient.shape))
            layer_input = self.outputs[index].reshape(-1, weight.shape[1])
            add_gradient(layer.weight, _weight_gradient(gradient, layer_input))
            add_gradient(layer.bias, ones @ gradient)
            if index or self.x.requires_grad:
                gradient = _input_gradient(gradient, weight)
        if self.x.requires_grad:
            add_gradient(self.x, gradient.reshape(self.x.shape))


def _apply(x: Array, weight: Array, bias: Array) -> Array:
    """Return x Wᵀ + b, [..., outputs]."""
    if weight.size <= _MAX_NUMPY_WEIGHTS:
        output = x @ weight.T
        output += bias
        return output
    rows, terms = torch.from_numpy(x.reshape(-1, x.shape[-1])), (torch.from_numpy(bias), torch.from_numpy(weight).T)
    result = torch.empty(len(rows), len(weight))
    run_blocks(
        lambda block: torch.addmm(terms[0], rows[block], terms[1], out=result[block]),
        split_rows(len(rows), _BLOCK_ROWS),
    )
    return result.numpy().reshape(*x.shape[:-1], len(weight))


def _weight_gradient(gradient: Array, x: Array) -> Array:
    """Return the gradient of W, [outputs, inputs], from the gradient of the output and the input, [N, ...]."""
    num = gradient.shape[1]
    if num * x.shape[1] <= _MAX_NUMPY_WEIGHTS:
        return gradient.T @ x
    columns, rows, result = torch.from_numpy(gradient).T, torch.from_numpy(x), torch.empty(num, x.shape[1])
    run_blocks(lambda units: torch.mm(columns[units], rows, out=result[units]), split_rows(num, _BLOCK_UNITS))
    return result.numpy()


def _input_gradient(gradient: Array, weight: Array) -> Array:
    """Return the gradient of the input, [N, inputs]."""
    if len(weight) == 1:
        return gradient * weight  # BLAS is slow for one column
    if weight.size <= _MAX_NUMPY_WEIGHTS:
        return gradient @ weight
    rows, result = torch.from_numpy(gradient), torch.empty(len(gradient), weight.shape[1])
    matrix, blocks = torch.from_numpy(weight), split_rows(len(rows), _BLOCK_ROWS)
    run_blocks(lambda block: torch.mm(rows[block], matrix, out=result[block]), blocks)
    return result.numpy()
