"""Noisy networks: linear layers whose weights have learnt noise, which takes the place of ε-greedy exploration.

Fortunato et al. 2018, https://arxiv.org/abs/1706.10295. A loss samples noise for a batch by `with_noise`, rollouts for
every step by `NoisyActor`. Without either, as in evaluation and export, the weights are their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from raceway.agents.distributions import MASKED_LOGIT, Categorical
from raceway.agents.numpy_inference import NumpyLayer, make_numpy_actor, with_bias
from raceway.agents.q_heads import Dueling, Readout
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError
from raceway.rl import tree_map

if TYPE_CHECKING:
    from raceway.agents.policy import Policy

Array = np.ndarray
TakeNoise = Callable[[int], Array]
"""Returns the next rows of the noise of a step, [num, B]."""
NumpyFunction = Callable[[Array, TakeNoise], Array]
"""Takes inputs, [size, B], and noise, and returns outputs, [size, B]."""


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise on its weights.

    y = (μ + σ ⊙ ε_out ε_inᵀ) x + b + σ_b ⊙ ε_out, with ε = f(z), f(z) = sign(z) √|z| and z normal. Means are
    initialised uniformly in ±1/√inputs, deviations as σ₀/√inputs.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs.
        sigma: the initial deviation σ₀.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.noise: tuple[Tensor, Tensor] | None = None
        """ε of the inputs and of the outputs, [1, inputs] and [1, outputs], while there is noise."""

    def __getstate__(self) -> dict[str, Any]:
        """Copy without noise: an evaluation copies an agent that another thread may be training."""
        return {**self.__dict__, "noise": None}

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None:
            return linear(x, self.weight, self.bias)
        noise_in, noise_out = self.noise
        weight = self.weight + self.weight_sigma * (noise_out.T * noise_in)
        return linear(x, weight, self.bias + self.bias_sigma * noise_out.squeeze(0))

    def sample_noise(self, random: torch.Generator) -> None:
        """Sample noise, the same for all rows until the next call."""
        outputs, inputs = self.weight.shape
        normal = torch.randn(1, inputs + outputs, generator=random).to(self.weight.device)
        noise_in, noise_out = (normal.sign() * normal.abs().sqrt()).split([inputs, outputs], -1)
        self.noise = noise_in, noise_out

    def numpy_layers(self) -> list[NumpyLayer]:
        """Return the layer without noise; see `numpy_inference`."""
        return [(with_bias(self), None)]

    def numpy_function(self) -> NumpyFunction:
        """Return the layer with its current weights, as a function that takes its noise.

        Each column has its own noise, so that it is applied to inputs and outputs instead of weights:
        μ x + b + ε_out ⊙ (σ (ε_in ⊙ x) + σ_b).
        """
        parameters = (self.weight, self.bias[:, None], self.weight_sigma, self.bias_sigma[:, None])
        weight, bias, sigma, bias_sigma = (parameter.detach().numpy().copy() for parameter in parameters)
        outputs, inputs = weight.shape

        def run(x: Array, take: TakeNoise) -> Array:
            spread = sigma @ (take(inputs) * x)
            spread += bias_sigma
            spread *= take(outputs)
            spread += weight @ x
            spread += bias
            result: Array = spread
            return result

        return run


@contextmanager
def with_noise(module: nn.Module, random: torch.Generator) -> Iterator[None]:
    """Sample noise for the noisy layers of a module, and remove it in the end."""
    layers = [layer for layer in module.modules() if isinstance(layer, NoisyLinear)]
    for layer in layers:
        layer.sample_noise(random)
    try:
        yield
    finally:
        for layer in layers:
            layer.noise = None


class NoisyActor:
    """Computes the outputs of a policy's network with new noise in every step, for each observation its own.

    Args:
        policy: the policy, whose network is layers without noise and then noisy ones.
        random: the generator of the rollout.
    """

    def __init__(self, policy: Policy, random: np.random.Generator) -> None:
        self.policy, self.random = policy, random
        modules = list(policy.network) if isinstance(policy.network, Layers) else [policy.network]
        num = next((index for index, module in enumerate(modules) if _is_noisy(module)), None)
        if not num:
            raise ConfigError(f"the network {type(policy.network).__name__} has no noisy layers to explore with")
        self._trunk = Layers(*modules[:num])
        self._functions = [_numpy_function(module) for module in modules[num:]]
        layers = [layer for layer in policy.network.modules() if isinstance(layer, NoisyLinear)]
        self._num_noise = sum(sum(layer.weight.shape) for layer in layers)
        plain = not policy.has_mask and num > 1
        actor = make_numpy_actor(self._trunk, Categorical(1), None) if plain else None
        self._features = self._features_in_torch if actor is None else actor.last_outputs_for

    def __call__(self, obs: Any) -> Array:
        """Return the outputs for observations, [B, num_actions]; those of masked actions are very low."""
        x = self._features(obs).T
        # At once for all layers: each of these calls takes as long for a hundred numbers as for one.
        normal = self.random.standard_normal((self._num_noise, x.shape[1]), np.float32)
        noise = np.abs(normal)
        np.copysign(np.sqrt(noise, out=noise), normal, out=noise)
        used = 0

        def take(num: int) -> Array:
            nonlocal used
            used += num
            return noise[used - num : used]

        for function in self._functions:
            x = function(x, take)
        return np.where(obs["action_mask"] == 0, np.float32(MASKED_LOGIT), x.T) if self.policy.has_mask else x.T

    def _features_in_torch(self, obs: Any) -> Array:
        with torch.inference_mode():
            features: Array = self._trunk(self.policy.network_obs(tree_map(torch.from_numpy, obs))).numpy()
        return features


def _is_noisy(module: nn.Module) -> bool:
    return any(isinstance(layer, NoisyLinear) for layer in module.modules())


def _numpy_function(module: nn.Module) -> NumpyFunction:
    """Return a module of a noisy network as a function in numpy."""
    if isinstance(module, NoisyLinear):
        return module.numpy_function()
    if isinstance(module, nn.ReLU):
        return lambda x, take: np.maximum(x, np.float32(0), out=x)
    if isinstance(module, Readout):
        return lambda x, take: module.numpy_readout(x)
    if isinstance(module, nn.Sequential):
        return _in_sequence([_numpy_function(layer) for layer in module])
    if isinstance(module, Dueling):
        value, advantages = _numpy_function(module.value), _numpy_function(module.advantages)
        return lambda x, take: module.numpy_sum(value(x, take), advantages(x, take))
    raise ConfigError(f"a noisy network has a layer {type(module).__name__}, which cannot be computed with noise")


def _in_sequence(functions: list[NumpyFunction]) -> NumpyFunction:
    def run(x: Array, take: TakeNoise) -> Array:
        for function in functions:
            x = function(x, take)
        return x

    return run
