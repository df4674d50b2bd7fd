"""Plain networks in numpy, for playing.

Between two steps of an environment torch's dispatch is out of the caches: measured there, a 64-64 network takes 114 µs
for ten observations in torch and 36 µs in numpy. For the same reason noise is drawn for many steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from raceway.agents.distributions import Categorical, Distribution, EpsilonGreedy, Gaussian
from raceway.agents.networks import Encoder, Head
from raceway.autograd.layers import Layers

Array = np.ndarray
Activation = Callable[[Array], Any]
Step = tuple[Array, Array, Array, Activation | None]
"""The weights, what they are multiplied with, where the product goes, and what is done to it."""

_ZERO = np.float32(0)
_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: lambda x: np.maximum(x, _ZERO, out=x),
    nn.Tanh: lambda x: np.tanh(x, out=x),
}
_BLOCK = 2048  # rows of noise drawn at once


class NumpyActor:
    """Chooses actions as a policy does, with the weights that it has now, until it is thrown away.

    Observations are columns here, with a row of ones below them, so that a layer's bias is a column of its weights and
    the product lies in place for the next layer: half the calls, and nothing is allocated.
    """

    def __init__(self, network: Any, distribution: Categorical | Gaussian, random: np.random.Generator | None) -> None:
        first, *rest = network
        self.width: int = first.size
        self.layers = [
            (_with_bias(layer), _ACTIVATIONS.get(type(after)))
            for layer, after in zip(rest, [*rest[1:], None], strict=True)
            if isinstance(layer, nn.Linear)
        ]
        self.num = len(self.layers[-1][0])
        """How many numbers the network gives for one observation, without deviations."""
        self.distribution, self.random = distribution, random
        self.choice = isinstance(distribution, Categorical)
        self.greedy = isinstance(distribution, EpsilonGreedy)
        self.normaliser = first.normaliser
        if self.normaliser is not None:
            self._mean = first.normaliser.mean.numpy()[:, None].copy()
            self._scale = (1 / first.normaliser.deviation.numpy())[:, None]
        self.deviations = None if self.choice else np.exp(rest[-1].log_std.detach().numpy())
        self.given = np.empty(0)
        """What the network gave for the last actions that were drawn, [B, size]. The next call writes over it."""
        self._place = _BLOCK
        self._noise = np.empty(0)
        self._steps: dict[int, tuple[Array, list[Step]]] = {}  # by the number of observations

    def numbers(self, obs: Any) -> Array:
        """Return what the network gives for observations: logits, or means alone, [B, size]."""
        return self._forward(obs).T.copy()

    def __call__(self, obs: Any, state: Any) -> tuple[Array, Any]:
        """Return an action for every observation, [B, ...]."""
        if self.random is None:
            return self.distribution.mode(self.numbers(obs)), state
        self.given = given = self._forward(obs).T
        if self.greedy:
            return self.distribution.draw(given, self.random), state
        x = self._next_noise(len(obs))  # which is not used again, so it is added to in place
        x += given
        if self.choice:
            return x.argmax(-1) + self.distribution.start, state  # type: ignore[union-attr]
        return x.reshape(len(x), *self.distribution.shape), state  # type: ignore[union-attr]

    def _forward(self, obs: Array) -> Array:
        """Return what the network gives, [size, B]. The next call writes over it."""
        num = len(obs)
        x, steps = self._steps.get(num) or self._plan(num)
        x[:] = obs.reshape(num, self.width).T
        if self.normaliser is not None:
            x -= self._mean
            x *= self._scale
            np.clip(x, -self.normaliser.limit, self.normaliser.limit, out=x)
        for weight, before, x, activation in steps:
            np.dot(weight, before, x)
            if activation is not None:
                activation(x)
        return x

    def _plan(self, num: int) -> tuple[Array, list[Step]]:
        sizes = [self.width, *(len(weight) for weight, _ in self.layers)]
        buffers = [np.ones((size + 1, num), np.float32) for size in sizes]
        steps = [
            (weight, before, after[:-1], activation)
            for (weight, activation), before, after in zip(self.layers, buffers, buffers[1:], strict=False)
        ]
        self._steps[num] = buffers[0][:-1], steps
        return self._steps[num]

    def _next_noise(self, num: int) -> Array:
        place, self._place = self._place, self._place + num
        if self._place > len(self._noise):
            self._noise = self._draw(max(_BLOCK, num))
            place, self._place = 0, num
        return self._noise[place : self._place]

    def _draw(self, num: int) -> Array:
        """Draw noise for so many actions. With Gumbel's, the largest logit is a sample of their softmax."""
        assert self.random is not None
        if self.deviations is None:
            return self.random.gumbel(size=(num, self.distribution.size)).astype(np.float32)
        return self.random.standard_normal((num, len(self.deviations)), np.float32) * self.deviations


def numpy_actor(
    network: nn.Module, distribution: Distribution, random: np.random.Generator | None
) -> NumpyActor | None:
    """Return an actor in numpy, or None if the network or its actions are not plain enough.

    >>> numpy_actor(nn.Sequential(nn.Linear(2, 3), nn.Softplus()), Categorical(3), None)
    """
    if type(distribution) not in (Categorical, EpsilonGreedy, Gaussian) or not _is_plain(network):
        return None
    if type(distribution) is Gaussian and type(list(network.children())[-1]) is not Head:
        return None
    return NumpyActor(network, distribution, random)  # type: ignore[arg-type]


def _is_plain(network: nn.Module) -> bool:
    """Whether it is an encoder of vectors, and then linear layers with or without activations between them."""
    if not isinstance(network, nn.Sequential) or type(network) not in (nn.Sequential, Layers) or len(network) < 2:
        return False
    first: Any
    first, *rest = network
    if type(first) is not Encoder or first.kind != "flat":
        return False
    before: Any = None
    for layer in rest:
        if type(layer) in _ACTIVATIONS:
            if type(before) is not nn.Linear:
                return False
        elif type(layer) not in ((nn.Linear, Head) if layer is rest[-1] else (nn.Linear,)) or layer.bias is None:
            return False
        before = layer
    return True


def _with_bias(layer: nn.Linear) -> Array:
    return np.column_stack([layer.weight.detach().numpy(), layer.bias.detach().numpy()])
