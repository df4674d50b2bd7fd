"""Networks with batch renormalisation. What changes their running statistics are losses, which return the new ones.

A pass with the statistics of the batch changes nothing itself: it returns the buffers with their new values, and a loss
returns these (`LossOutput.buffers`). So a loss stays a function, which can be compiled. All other passes, those of
acting too, use the running statistics, which are buffers: they are sent and saved with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.networks import Encoder
from raceway.agents.policy import Policy
from raceway.autograd.ensembles import EnsembleLinear

NewBuffers = list[tuple[Tensor, Tensor]]
"""Buffers, and their new values."""


class BatchRenorm(nn.Module):
    """Normalise columns to a mean of 0 and a deviation of 1, then scale and shift them.

    Ioffe 2017, https://arxiv.org/abs/1702.03275. After the first passes, what is normalised by the statistics of a
    batch is corrected by r and d to what the running statistics give, within limits, as constants for the gradient.

    Args:
        shape: the shape of the statistics: [1, size], or [E, 1, size] for several networks.
    """

    momentum, epsilon = 0.01, 1e-3
    warm_up = 100_000
    """The number of passes without correction."""
    max_r, max_d = 3.0, 5.0
    """The limits of the correction."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.steps: Tensor
        self.scale, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return an input, [..., N, size], normalised by the running statistics."""
        return (x - self.mean) / self._deviation(self.var) * self.scale + self.shift

    def normalise(self, x: Tensor) -> tuple[Tensor, NewBuffers]:
        """Return an input, [..., N, size], normalised by its own statistics, and the new running ones."""
        mean = x.mean(-2, keepdim=True)
        centred = x - mean
        var = centred.square().mean(-2, keepdim=True)
        deviation, running = self._deviation(var), self._deviation(self.var)
        with torch.no_grad():
            r = (deviation / running).clamp(1 / self.max_r, self.max_r)
            d = ((mean - self.mean) / running).clamp(-self.max_d, self.max_d)
            corrects = self.steps >= self.warm_up
            r, d = torch.where(corrects, r, torch.ones_like(r)), torch.where(corrects, d, torch.zeros_like(d))
            new_mean, new_var = (
                before + self.momentum * (now - before) for before, now in ((self.mean, mean), (self.var, var))
            )
            buffers = [(self.mean, new_mean), (self.var, new_var), (self.steps, self.steps + 1)]
        return (centred / deviation * r + d) * self.scale + self.shift, buffers

    def _deviation(self, var: Tensor) -> Tensor:
        return (var + self.epsilon).sqrt()


class NormalisedLayers(nn.Module):
    """Linear layers, each behind the normalisation of its input, with ReLUs between them.

    Args:
        sizes: the size of the input, and the widths of the layers.
        num: the number E of networks with these sizes; None for one, without a dimension of its own.
    """

    def __init__(self, sizes: Sequence[int], num: int | None = None) -> None:
        super().__init__()
        ensemble = () if num is None else (num,)
        self.norms = nn.ModuleList(BatchRenorm(*ensemble, 1, size) for size in sizes[:-1])
        self.layers = nn.ModuleList(
            nn.Linear(*pair) if num is None else EnsembleLinear(num, *pair) for pair in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for an input, [..., N, size], with the running statistics."""
        for index, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = layer(norm(x.relu() if index else x))
        return x

    def run_on_batch(self, x: Tensor) -> tuple[Tensor, NewBuffers]:
        """Return the outputs with the statistics of the input, and the new running ones."""
        buffers: NewBuffers = []
        for index, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            normal, new = norm.normalise(x.relu() if index else x)  # type: ignore[operator]
            x, buffers = layer(normal), buffers + new
        return x, buffers


class NormalisedActor(nn.Module):
    """A network of a policy, from observations to outputs, [N, num_outputs].

    Args:
        observation_space: the space of the observations that a network sees.
        hidden: the widths of the hidden layers.
        num_outputs: the number of outputs.
    """

    def __init__(self, observation_space: spaces.Space, hidden: Sequence[int], num_outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space)
        self.layers = NormalisedLayers([self.encoder.size, *hidden, num_outputs])

    def forward(self, obs: Any) -> Tensor:
        """Return the outputs with the running statistics, for acting."""
        outputs: Tensor = self.layers(self.encoder(obs))
        return outputs

    def run_on_batch(self, obs: Any) -> tuple[Tensor, NewBuffers]:
        """Return the outputs with the statistics of the observations, and the new running ones."""
        return self.layers.run_on_batch(self.encoder(obs))


def params_of_batch(policy: Policy, obs: Any) -> tuple[Tensor, NewBuffers]:
    """Return the parameters of a policy's distribution with the statistics of the batch, and the new running ones.

    A network of a user has no statistics that are known here.
    """
    if isinstance(policy.network, NormalisedActor):
        return policy.network.run_on_batch(policy.network_obs(obs))
    return policy(obs, {})[0], []


class NormalisedCritics(nn.Module):
    """Several critics Q(s, a) of continuous actions with the same shape.

    Args:
        observation_space: the space of the observations that a network sees.
        action_space: the action space.
        hidden: the widths of the hidden layers.
        num: the number of critics.
        flatten_small_images: whether images too small for the convolutions are flattened.
    """

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space, hidden: Sequence[int], num: int = 2,
        *, flatten_small_images: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num = num
        self.encoder = Encoder(observation_space, flatten_small_images=flatten_small_images)
        size = self.encoder.size + math.prod(action_space.shape or ())
        self.layers = NormalisedLayers([size, *hidden, 1], num)

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        """Return Q(s, a) of every critic with the running statistics, [E, N]."""
        q_values: Tensor = self.layers(self._input(obs, action)).squeeze(-1)
        return q_values

    def run_jointly(
        self, obs: Any, action: Tensor, next_obs: Any, next_action: Tensor
    ) -> tuple[Tensor, Tensor, NewBuffers]:
        """Return Q(s, a) and Q(s', a'), [E, N] each, with the statistics of both together, and the new running ones."""
        x = torch.cat([self._input(obs, action), self._input(next_obs, next_action)], 1)
        outputs, buffers = self.layers.run_on_batch(x)
        q_values, next_q_values = outputs.squeeze(-1).chunk(2, 1)
        return q_values, next_q_values, buffers

    def _input(self, obs: Any, action: Tensor) -> Tensor:
        """Return the input of every critic, [E, N, size]."""
        x = torch.cat([self.encoder(obs), action if action.ndim == 2 else action.flatten(1)], -1)
        return x.expand(self.num, *x.shape)
