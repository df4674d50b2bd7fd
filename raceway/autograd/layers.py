"""Linear layers and the activations between them, forward and backward in numpy; see `tape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd import matrix_products as products
from raceway.autograd.row_blocks import run_parallel, split_rows
from raceway.autograd.tape import add_gradient, can_use_numpy, tape_for

Array = np.ndarray

_MIN_BLOCK_WEIGHTS = 1 << 18
_BLOCK_ROWS = 128

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
"""The activations that can be computed here, and their names in `matrix_products`."""


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
    output = torch.from_numpy(run.output) if tape is None else tape.record(run.output, run.backward)
    add_log_std: Any = getattr(layers[-1], "add_log_std", None)
    return output if add_log_std is None else add_log_std(output)


def _linear_layers(layers: Sequence[nn.Module]) -> tuple[list[nn.Linear], list[str]] | None:
    """Return the linear layers and the activation after each; or None if a layer is of another type."""
    linear: list[nn.Linear] = []
    activations: list[str] = []
    for layer in layers:
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            linear.append(layer)
            activations.append("none")
        elif type(layer) in ACTIVATIONS and activations and activations[-1] == "none":
            activations[-1] = ACTIVATIONS[type(layer)]
        else:
            return None
    return (linear, activations) if activations else None


class ForwardPass:
    """A forward pass through linear layers, with the outputs that its backward pass needs.

    Layers that are very large, as after convolutions, are computed in blocks of rows.
    """

    def __init__(self, x: Tensor, layers: list[nn.Linear], activations: list[str]) -> None:
        self.x, self.layers, self.activations = x, layers, activations
        self.weights = [layer.weight.detach().numpy() for layer in layers]
        rows = x.detach().numpy()
        num_rows = rows.size // max(rows.shape[-1], 1)
        self.large = products.is_large(num_rows, self.weights)
        if not self.large:
            self.blocks, self.passes = [slice(None)], [self._forward(rows)]
            return
        in_blocks = max(weight.size for weight in self.weights) >= _MIN_BLOCK_WEIGHTS
        rows, self.blocks = rows.reshape(num_rows, -1), split_rows(num_rows, _BLOCK_ROWS if in_blocks else num_rows)
        self.passes = run_parallel(self._forward, [rows[block] for block in self.blocks])

    @property
    def output(self) -> Array:
        """The output of the last layer."""
        output = _joined([outputs[-1] for outputs in self.passes])
        return output.reshape(*self.x.shape[:-1], output.shape[-1])

    def _forward(self, x: Array) -> list[Array]:
        """Return the input and the output of every layer."""
        outputs, linear = [x], products.large_linear if self.large else products.small_linear
        for layer, weight, activation in zip(self.layers, self.weights, self.activations, strict=True):
            x = linear(x, weight, layer.bias.detach().numpy(), activation)
            outputs.append(x)
        return outputs

    def backward(self, gradient: Array) -> None:
        """Add to the gradients of the layers and of the input, from the gradient of the last output."""
        gradient = gradient.reshape(-1, gradient.shape[-1])
        blocks = [(gradient[rows], outputs) for rows, outputs in zip(self.blocks, self.passes, strict=True)]
        results = run_parallel(lambda block: self._backward(*block), blocks)
        for gradients, _ in results:  # in a fixed order
            for layer, (weight, bias) in zip(reversed(self.layers), gradients, strict=True):
                if weight is not None:
                    add_gradient(layer.weight, weight)
                add_gradient(layer.bias, bias)
        if self.x.requires_grad:
            add_gradient(self.x, _joined([flow for _, flow in results]).reshape(self.x.shape))

    def _backward(self, gradient: Array, outputs: list[Array]) -> tuple[list[tuple[Array | None, Array]], Array]:
        """Return the gradients of weights and biases, of the last layer first, and of the input if it needs one."""
        gradients: list[tuple[Array | None, Array]] = []
        rows = [output if output.ndim == 2 else output.reshape(-1, output.shape[-1]) for output in outputs]
        for index in reversed(range(len(self.layers))):
            gradient = products.activation_gradient(gradient, rows[index + 1], self.activations[index])
            weight = None
            if self.layers[index].weight.requires_grad:
                weight = products.weight_gradient(gradient, rows[index], self.large)
            gradients.append((weight, products.bias_gradient(gradient)))
            if index or self.x.requires_grad:
                gradient = products.input_gradient(gradient, self.weights[index], self.large)
        return gradients, gradient


def _joined(blocks: list[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
