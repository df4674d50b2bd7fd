"""Linear layers and what is between them, in numpy, forwards and backwards; see `tape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd.tape import add_gradient, in_numpy, tape_for

Array = np.ndarray

_ONE = np.float32(1)
_ZERO = np.float32(0)


def _tanh_back(gradient: Array, after: Array) -> Array:
    found = after * after
    np.subtract(_ONE, found, out=found)
    found *= gradient
    return found


ACTIVATIONS: dict[type[nn.Module], tuple[Any, Any]] = {
    nn.ReLU: (lambda x: np.maximum(x, _ZERO, out=x), lambda gradient, after: gradient * (after > 0)),
    nn.Tanh: (lambda x: np.tanh(x, out=x), _tanh_back),
}
"""What each does, in place; and the gradient before it, of that after it and what came out of it."""


class Layers(nn.Sequential):
    """An encoder, and layers one behind the other."""

    def forward(self, obs: Any) -> Tensor:
        """Return what comes out of the last one."""
        return through(list(self)[1:], self[0](obs))

    def features(self, obs: Any) -> Tensor:
        """Return what goes into the last one."""
        return through(list(self)[1:-1], self[0](obs))


def through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what comes out of the last of some layers."""
    tape = tape_for(x)
    linear = _linear(layers) if (tape or in_numpy(x)) and x.ndim > 1 else None
    if linear is None:
        for layer in layers:
            x = layer(x)
        return x
    done = Pass(x, *linear)
    given = torch.from_numpy(done.outputs[-1]) if tape is None else tape.note(done.outputs[-1], done.back)
    completed: Any = getattr(layers[-1], "completed", None)
    return given if completed is None else completed(given)


def _linear(layers: Sequence[nn.Module]) -> tuple[list[nn.Linear], list[type[nn.Module] | None]] | None:
    """Return the linear layers, and what is after each; or None if some layers are not plain."""
    found: list[nn.Linear] = []
    kinds: list[type[nn.Module] | None] = []
    for layer in layers:
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            found.append(layer)
            kinds.append(None)
        elif type(layer) in ACTIVATIONS and kinds and kinds[-1] is None:
            kinds[-1] = type(layer)
        else:
            return None
    return (found, kinds) if kinds else None


class Pass:
    """One way through some layers, which can be gone back."""

    def __init__(self, x: Tensor, layers: list[nn.Linear], kinds: list[type[nn.Module] | None]) -> None:
        self.x, self.layers, self.kinds = x, layers, kinds
        self.weights = [layer.weight.detach().numpy() for layer in layers]
        self.outputs = [now := x.detach().numpy()]
        for layer, weight, kind in zip(layers, self.weights, kinds, strict=True):
            now = now @ weight.T
            now += layer.bias.detach().numpy()
            if kind is not None:
                ACTIVATIONS[kind][0](now)
            self.outputs.append(now)

    def back(self, gradient: Array) -> None:
        """Add to the gradients of the layers, and of what went in, what that of the last output says."""
        gradient = gradient.reshape(-1, gradient.shape[-1])
        ones = np.ones(len(gradient), np.float32)
        for place in reversed(range(len(self.layers))):
            layer, weight, kind = self.layers[place], self.weights[place], self.kinds[place]
            if kind is not None:
                gradient = ACTIVATIONS[kind][1](gradient, self.outputs[place + 1].reshape(gradient.shape))
            before = self.outputs[place].reshape(-1, weight.shape[1])
            add_gradient(layer.weight, gradient.T @ before)
            add_gradient(layer.bias, ones @ gradient)
            if place or self.x.requires_grad:
                gradient = gradient @ weight if len(weight) > 1 else gradient * weight  # which BLAS is slow at
        if self.x.requires_grad:
            add_gradient(self.x, gradient.reshape(self.x.shape))
