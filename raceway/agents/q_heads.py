"""Heads of Q-networks: from the features of an observation to the Q-values of its actions."""

from __future__ import annotations

from torch import Tensor, nn


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, ·): Wang et al. 2016, https://arxiv.org/abs/1511.06581, eq. 9.

    Args:
        features: the number of features.
        num_actions: the number of actions.
    """

    def __init__(self, features: int, num_actions: int) -> None:
        super().__init__()
        self.value = nn.Linear(features, 1)
        self.advantage = nn.Linear(features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Return the Q-values, [..., num_actions], of features, [..., features]."""
        advantages = self.advantage(features)
        return self.value(features) + advantages - advantages.mean(-1, keepdim=True)
