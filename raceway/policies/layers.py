"""Plain networks in numpy, forwards and backwards.

The minibatches of reinforcement learning are small: torch takes longer to note, find and begin its operations than to
do them, and the BLAS of numpy is often the faster one. So where a learner takes a step, the layers of a plain network
are worked out here; autograd sees what comes out of them as the beginning of the loss.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
        return self.after(self[0](obs))

    def after(self, x: Tensor) -> Tensor:
        """Return it, from what the encoder gave."""
        rest = list(self)[1:]
        grads, tape = torch.is_grad_enabled(), _now.tape
        here = x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim > 1
        linear = _linear(rest) if here and not (grads and (tape is None or x.requires_grad)) else None
        if linear is None:
            for layer in rest:
                x = layer(x)
            return x
        done = Pass(x.detach().numpy(), *linear)
        given = torch.from_numpy(done.outputs[-1])
        if grads:
            tape.passes.append((given.requires_grad_(), done))  # type: ignore[union-attr]
        completed: Any = getattr(rest[-1], "completed", None)
        return given if completed is None else completed(given)


def _linear(rest: Sequence[nn.Module]) -> tuple[list[nn.Linear], list[type[nn.Module] | None]] | None:
    """Return the linear layers, and what is after each; or None if some layers are not plain."""
    layers: list[nn.Linear] = []
    kinds: list[type[nn.Module] | None] = []
    for layer in rest:
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            layers.append(layer)
            kinds.append(None)
        elif type(layer) in ACTIVATIONS and kinds and kinds[-1] is None:
            kinds[-1] = type(layer)
        else:
            return None
    return (layers, kinds) if kinds else None


class Pass:
    """One way through some layers, which can be gone back."""

    def __init__(self, x: Array, layers: list[nn.Linear], kinds: list[type[nn.Module] | None]) -> None:
        self.layers, self.kinds = layers, kinds
        self.weights = [layer.weight.detach().numpy() for layer in layers]
        self.outputs = [x]
        for layer, weight, kind in zip(layers, self.weights, kinds, strict=True):
            x = x @ weight.T
            x += layer.bias.detach().numpy()
            if kind is not None:
                ACTIVATIONS[kind][0](x)
            self.outputs.append(x)

    def back(self, gradient: Array) -> None:
        """Add to the gradients of the layers what that of the last output says."""
        gradient = gradient.reshape(-1, gradient.shape[-1])
        ones = np.ones(len(gradient), np.float32)
        for place in reversed(range(len(self.layers))):
            layer, weight, kind = self.layers[place], self.weights[place], self.kinds[place]
            if kind is not None:
                gradient = ACTIVATIONS[kind][1](gradient, self.outputs[place + 1].reshape(gradient.shape))
            before = self.outputs[place].reshape(-1, weight.shape[1])
            _add(layer.weight, gradient.T @ before)
            _add(layer.bias, ones @ gradient)
            if place:
                gradient = gradient @ weight


def _add(parameter: Tensor, gradient: Array) -> None:
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = torch.from_numpy(gradient)
    else:
        into = parameter.grad.numpy()
        into += gradient


class Tape:
    """The passes through plain networks since it began, and what came out of them."""

    def __init__(self) -> None:
        self.passes: list[tuple[Tensor, Pass]] = []

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of all parameters that it depends on."""
        loss.backward()
        for given, done in self.passes:
            if given.grad is not None:
                done.back(given.grad.numpy())
        self.passes.clear()


class _Now(threading.local):
    tape: Tape | None = None


_now = _Now()


@contextmanager
def taping(tape: Tape | None) -> Iterator[Tape | None]:
    """Have plain networks go by a tape; or with None by autograd, whose gradients have gradients."""
    before, _now.tape = _now.tape, tape
    try:
        yield tape
    finally:
        _now.tape = before
