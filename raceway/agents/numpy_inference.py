"""Inference of plain networks in numpy, for rollouts.

Between two environment steps torch's dispatch code drops out of the caches: measured there, a 64-64 network takes
114 µs for ten observations in torch and 36 µs in numpy. For the same reason noise is sampled for many steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from raceway.agents.distributions import (
    Bounded,
    Categorical,
    Deterministic,
    Direct,
    Distribution,
    Gaussian,
    SquashedGaussian,
)
from raceway.agents.networks import ActionHead, Encoder
from raceway.autograd.fast_paths import fast_paths_enabled
from raceway.autograd.layer_norm import is_plain_norm
from raceway.autograd.layers import Layers

Array = np.ndarray
Activation = Callable[[Array], Any]
NumpyLayer = tuple[Array, type[nn.Module] | None]
"""The weights of a linear layer, [outputs, inputs + 1], of which the last column is the bias; and the activation.

A module that is computed as such layers returns them by a method `numpy_layers`. The last one may be something else
that `numpy_readout` computes, from the outputs of the layers before it, [size, B].
"""

_ZERO = np.float32(0)
_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: lambda x: np.maximum(x, _ZERO, out=x),
    nn.Tanh: lambda x: np.tanh(x, out=x),
}
_DISTRIBUTIONS = (Categorical, Gaussian, SquashedGaussian, Deterministic, Direct)
_NOISE_ROWS = 2048  # rows of noise sampled at once


class _Norm:
    """Layer normalisation of columns, [width, B], whose mean is 0 already."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.weight, self.bias = (part.detach().numpy()[:, None].copy() for part in (norm.weight, norm.bias))
        self.share, self.epsilon = np.float32(1 / len(self.weight)), np.float32(norm.eps)

    def __call__(self, x: Array) -> None:
        """Normalise in place."""
        deviation = np.einsum("ij,ij->j", x, x)
        deviation *= self.share
        deviation += self.epsilon
        np.sqrt(deviation, out=deviation)
        x /= deviation
        x *= self.weight
        x += self.bias


class _Layer(NamedTuple):
    """A linear layer, and what follows it."""

    weight: Array
    """With the bias as a last column."""
    norm: _Norm | None
    activation: Activation | None


LayerStep = tuple[_Layer, Array, Array]
"""A layer, its input buffer and its output buffer."""


class NumpyActor:
    """Acts like a policy, with the weights that the policy had when the actor was created.

    Observations are columns here, with a row of ones below them, so that a layer's bias is a column of its weights and
    the product is in place for the next layer: half the calls, and nothing is allocated.
    """

    def __init__(
        self,
        network: Any,
        distribution: Categorical | Gaussian | Bounded | Direct,
        random: np.random.Generator | None,
    ) -> None:
        encoder, *rest = network
        self.width: int = encoder.size
        self.layers = _layers(rest)
        self._readout: Activation | None = getattr(rest[-1], "numpy_readout", None)
        self.num_outputs = len(self.layers[-1].weight)
        """The number of network outputs for one observation, without deviations."""
        self.distribution, self.random = distribution, random
        self.discrete = isinstance(distribution, Categorical)
        self.normaliser = encoder.normaliser
        if self.normaliser is not None:
            self._mean = encoder.normaliser.mean.numpy()[:, None].copy()
            self._scale = (1 / encoder.normaliser.deviation.numpy())[:, None]
        self.squashed = isinstance(distribution, (Bounded, Direct))
        fixed = not (self.discrete or self.squashed)  # deviations that are the same for all observations
        self.deviations = np.exp(rest[-1].log_std.detach().numpy()) if fixed else None
        self.last_outputs = np.empty(0)
        """The network outputs for the last sampled actions, [B, size]. The next call overwrites them."""
        self._noise = np.empty(0)
        self._noise_used = _NOISE_ROWS
        self._steps: dict[int, tuple[Array, list[LayerStep]]] = {}  # by the number of observations

    def outputs(self, obs: Any) -> Array:
        """Return the network outputs for observations, [B, size]: logits, or means without deviations."""
        return self._forward(obs).T.copy()

    def last_outputs_for(self, obs: Any) -> Array:
        """Return the network outputs as `outputs` does, in memory that the next call overwrites."""
        self.last_outputs = self._forward(obs).T
        return self.last_outputs

    def __call__(self, obs: Any, state: Any) -> tuple[Array, Any]:
        """Return an action for every observation, [B, ...]."""
        if self.random is None:
            return self.distribution.mode(self.outputs(obs)), state
        self.last_outputs = outputs = self._forward(obs).T
        if self.squashed:
            return self.distribution.sample(outputs, self.random), state
        x = self._next_noise(len(obs))  # used only once, so the sum can be in place
        x += outputs
        if self.discrete:
            return x.argmax(-1) + self.distribution.start, state  # type: ignore[union-attr]
        return x.reshape(len(x), *self.distribution.shape), state  # type: ignore[union-attr]

    def _forward(self, obs: Array) -> Array:
        """Return the network outputs, [size, B]. The next call overwrites them."""
        num = len(obs)
        x, steps = self._steps.get(num) or self._allocate(num)
        x[:] = obs.reshape(num, self.width).T
        if self.normaliser is not None:
            x -= self._mean
            x *= self._scale
            np.clip(x, -self.normaliser.limit, self.normaliser.limit, out=x)
        for (weight, norm, activation), before, x in steps:
            np.dot(weight, before, x)
            if norm is not None:
                norm(x)
            if activation is not None:
                activation(x)
        return x if self._readout is None else self._readout(x)

    def _allocate(self, num: int) -> tuple[Array, list[LayerStep]]:
        """Allocate the buffers for `num` observations, and return the input buffer and the layers' steps."""
        sizes = [self.width, *(len(layer.weight) for layer in self.layers)]
        buffers = [np.ones((size + 1, num), np.float32) for size in sizes]
        steps = [
            (layer, before, after[:-1]) for layer, before, after in zip(self.layers, buffers, buffers[1:], strict=False)
        ]
        self._steps[num] = buffers[0][:-1], steps
        return self._steps[num]

    def _next_noise(self, num: int) -> Array:
        begin, self._noise_used = self._noise_used, self._noise_used + num
        if self._noise_used > len(self._noise):
            self._noise = self._sample_noise(max(_NOISE_ROWS, num))
            begin, self._noise_used = 0, num
        return self._noise[begin : self._noise_used]

    def _sample_noise(self, num: int) -> Array:
        """Sample noise for `num` actions: Gumbel noise for the Gumbel-max trick, or Gaussian noise."""
        assert self.random is not None
        if self.deviations is None:
            return self.random.gumbel(size=(num, self.distribution.size)).astype(np.float32)
        return self.random.standard_normal((num, len(self.deviations)), np.float32) * self.deviations


def make_numpy_actor(
    network: nn.Module, distribution: Distribution, random: np.random.Generator | None
) -> NumpyActor | None:
    """Return an actor in numpy, or None if the network or its distribution is not supported, or is on another device.

    >>> make_numpy_actor(nn.Sequential(nn.Linear(2, 3), nn.Softplus()), Categorical(3), None)
    """
    if not fast_paths_enabled() or any(tensor.device.type != "cpu" for tensor in network.parameters()):
        return None
    if type(distribution) not in _DISTRIBUTIONS or not _is_plain(network):
        return None
    if type(distribution) is Gaussian and type(list(network.children())[-1]) is not ActionHead:
        return None
    return NumpyActor(network, distribution, random)  # type: ignore[arg-type]


def _is_plain(network: nn.Module) -> bool:
    """Whether a network is an encoder of vectors, then linear layers, each with or without a norm and an activation."""
    if not isinstance(network, nn.Sequential) or type(network) not in (nn.Sequential, Layers) or len(network) < 2:
        return False
    encoder: Any
    encoder, *rest = network
    if type(encoder) is not Encoder or encoder.kind != "flat" or encoder.scale != 1.0:
        return False
    if hasattr(rest[-1], "numpy_readout"):
        rest = rest[:-1]
    before: Any = None
    for layer in rest:
        if type(layer) in _ACTIVATIONS:
            if not (_has_layers(before) or type(before) is nn.LayerNorm):
                return False
        elif type(layer) is nn.LayerNorm:
            if type(before) is not nn.Linear or not is_plain_norm(layer, before.out_features):
                return False
        elif not (_has_layers(layer) or (layer is rest[-1] and type(layer) is ActionHead)):
            return False
        before = layer
    return before is not None


def _has_layers(module: Any) -> bool:
    """Whether a module is a linear layer, or several, whose outputs another may follow."""
    linear = type(module) is nn.Linear or (type(module) is ActionHead and module.log_std is None)
    return linear or hasattr(module, "numpy_layers")


def _layers(modules: Sequence[Any]) -> list[_Layer]:
    """Return the linear layers of a plain network, each with what follows it."""
    layers: list[_Layer] = []
    for module in modules:
        if type(module) in _ACTIVATIONS:
            layers[-1] = layers[-1]._replace(activation=_ACTIVATIONS[type(module)])
        elif hasattr(module, "numpy_layers"):
            layers += [_Layer(weight, None, kind and _ACTIVATIONS[kind]) for weight, kind in module.numpy_layers()]
        elif isinstance(module, nn.LayerNorm):
            # The mean of what a linear layer returns is linear too, and can be subtracted from the weights at once.
            weight = layers[-1].weight
            layers[-1] = _Layer(weight - weight.mean(0), _Norm(module), None)
        elif isinstance(module, nn.Linear):
            layers.append(_Layer(with_bias(module), None, None))
    return layers


def with_bias(layer: Any) -> Array:
    """Return the weights of a linear layer, with its bias as the last column, 0 if it has none."""
    weight = layer.weight.detach().numpy()
    bias = np.zeros(len(weight), np.float32) if layer.bias is None else layer.bias.detach().numpy()
    return np.column_stack([weight, bias])
