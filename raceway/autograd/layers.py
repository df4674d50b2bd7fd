"""Linear layers, the activations between them and layer normalisation, forward and backward in numpy; see `tape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd import matrix_products as products
from raceway.autograd.layer_norm import Normalised, is_plain_norm, normalise, normalised_gradients
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


def _linear_layers(
    layers: Sequence[nn.Module],
) -> tuple[list[nn.Linear], list[str], list[nn.LayerNorm | None]] | None:
    """Return the linear layers, the activation and the normalisation before it of each; or None for other layers."""
    linear: list[nn.Linear] = []
    activations: list[str] = []
    norms: list[nn.LayerNorm | None] = []
    for layer in layers:
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            linear.append(layer)
            activations.append("none")
            norms.append(None)
        elif not linear or activations[-1] != "none":
            return None
        elif type(layer) in ACTIVATIONS:
            activations[-1] = ACTIVATIONS[type(layer)]
        elif norms[-1] is None and is_plain_norm(layer, linear[-1].out_features):
            norms[-1] = layer
        else:
            return None
    return (linear, activations, norms) if linear else None


class _Pass(NamedTuple):
    """What the backward pass of some rows needs."""

    outputs: list[Array]
    """The input, and the output of every layer."""
    normalised: list[Normalised | None]
    """What every layer's normalisation computed, if it has one."""


class _Gradients(NamedTuple):
    """The gradients of one layer for some rows. None stands for what is not trained, or is not there."""

    weight: Array | None
    bias: Array
    norm: tuple[Array, Array] | None
    """Of the weight and the bias of its normalisation."""


class ForwardPass:
    """A forward pass through linear layers, with the outputs that its backward pass needs.

    Layers that are very large, as after convolutions, are computed in blocks of rows.
    """

    def __init__(
        self,
        x: Tensor,
        layers: list[nn.Linear],
        activations: list[str],
        norms: Sequence[nn.LayerNorm | None] | None = None,
    ) -> None:
        self.x, self.layers, self.activations = x, layers, activations
        self.norms = norms or [None] * len(layers)
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
        output = _joined([each.outputs[-1] for each in self.passes])
        return output.reshape(*self.x.shape[:-1], output.shape[-1])

    def _forward(self, x: Array) -> _Pass:
        """Compute the output of every layer."""
        outputs, normalised = [x], list[Normalised | None]()
        linear = products.large_linear if self.large else products.small_linear
        for layer, weight, activation, norm in zip(
            self.layers, self.weights, self.activations, self.norms, strict=True
        ):
            bias = layer.bias.detach().numpy()
            if norm is None:
                x = linear(x, weight, bias, activation)
                normalised.append(None)
            else:
                x, saved = normalise(linear(x, weight, bias, "none"), norm)
                x = products.activate(x, activation)
                normalised.append(saved)
            outputs.append(x)
        return _Pass(outputs, normalised)

    def backward(self, gradient: Array) -> None:
        """Add to the gradients of the layers and of the input, from the gradient of the last output."""
        gradient = gradient.reshape(-1, gradient.shape[-1])
        blocks = [(gradient[rows], each) for rows, each in zip(self.blocks, self.passes, strict=True)]
        results = run_parallel(lambda block: self._backward(*block), blocks)
        for gradients, _ in results:  # in a fixed order
            for layer, norm, own in zip(reversed(self.layers), reversed(self.norms), gradients, strict=True):
                if own.weight is not None:
                    add_gradient(layer.weight, own.weight)
                add_gradient(layer.bias, own.bias)
                if norm is not None and own.norm is not None:
                    add_gradient(norm.weight, own.norm[0])
                    add_gradient(norm.bias, own.norm[1])
        if self.x.requires_grad:
            add_gradient(self.x, _joined([flow for _, flow in results]).reshape(self.x.shape))

    def _backward(self, gradient: Array, rows_of: _Pass) -> tuple[list[_Gradients], Array]:
        """Return the gradients of every layer, of the last one first, and of the input if it needs one."""
        gradients: list[_Gradients] = []
        rows = [output if output.ndim == 2 else output.reshape(-1, output.shape[-1]) for output in rows_of.outputs]
        for index in reversed(range(len(self.layers))):
            gradient = products.activation_gradient(gradient, rows[index + 1], self.activations[index])
            norm, normalised, of_norm = self.norms[index], rows_of.normalised[index], None
            if norm is not None and normalised is not None:
                gradient, *others = normalised_gradients(gradient, normalised, norm)
                of_norm = others[0], others[1]
            weight = None
            if self.layers[index].weight.requires_grad:
                weight = products.weight_gradient(gradient, rows[index], self.large)
            gradients.append(_Gradients(weight, products.bias_gradient(gradient), of_norm))
            if index or self.x.requires_grad:
                gradient = products.input_gradient(gradient, self.weights[index], self.large)
        return gradients, gradient


def _joined(blocks: list[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
