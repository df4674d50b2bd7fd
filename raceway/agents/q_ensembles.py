"""Critics of actions: several networks of the same shape, for continuous and for discrete actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.networks import Encoder
from raceway.autograd.ensembles import Ensemble


class QEnsemble(nn.Module):
    """Several critics Q(s, a) of continuous actions with the same shape.

    Args:
        observation_space: the space of the observations that a network sees.
        action_space: the action space.
        hidden: the widths of the hidden layers.
        num: the number of critics.
        num_quantiles: the number K of quantiles of the return that each critic estimates; None for its mean.
        layer_norm: whether the inputs of the activations are normalised.
        dropout: the probability with which a unit is dropped, in passes with a generator.
        normalise: whether observations are normalised, by the statistics that its `encoder` observes.
        flatten_small_images: whether images too small for the convolutions are flattened.
    """

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space, hidden: Sequence[int], num: int = 2,
        *, num_quantiles: int | None = None, layer_norm: bool = False, dropout: float = 0.0,
        normalise: bool = False, flatten_small_images: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = Encoder(observation_space, normalise, flatten_small_images)
        size = self.encoder.size + math.prod(action_space.shape or ())
        self.members = Ensemble(num, [size, *hidden], num_quantiles, layer_norm=layer_norm, dropout=dropout)

    def __len__(self) -> int:
        return self.members.num

    def forward(
        self,
        obs: Any,
        action: Tensor,
        num: int | None = None,
        *,
        members: Tensor | None = None,
        random: torch.Generator | None = None,
    ) -> Tensor:
        """Return Q(s, a) of every critic, [E, N]; or quantiles of it, [E, N, K].

        Args:
            obs: the observations s.
            action: the actions a.
            num: the number of critics that are computed, the first ones; by default all.
            members: instead of `num`, the numbers of the critics that are computed.
            random: the generator of dropout; without it, no unit is dropped.
        """
        parts = [self.encoder(obs), action if action.ndim == 2 else action.flatten(1)]
        return self.members(parts, num, members=members, random=random)


class DiscreteQEnsemble(nn.Module):
    """Several critics Q(s, ·) of discrete actions with the same shape.

    Args:
        observation_space: the space of the observations that a network sees.
        num_actions: the number of actions.
        hidden: the widths of the hidden layers.
        num: the number of critics.
        flatten_small_images: whether images too small for the convolutions are flattened.
    """

    def __init__(
        self, observation_space: spaces.Space, num_actions: int, hidden: Sequence[int], num: int = 2,
        *, flatten_small_images: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = Encoder(observation_space, flatten_small_images=flatten_small_images)
        self.members = Ensemble(num, [self.encoder.size, *hidden], num_actions)

    def forward(self, obs: Any) -> Tensor:
        """Return Q(s, ·) of every critic, [E, N, num_actions]."""
        return self.members([self.encoder(obs)])
