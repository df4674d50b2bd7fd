"""The temperature of soft actor-critics: the weight of the entropy."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn


class Temperature(nn.Module):
    """The weight α of the entropy, as its logarithm, and the entropy at which it settles.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, section 5.

    Args:
        initial: the initial α.
        action_space: the action space.
        target_entropy: the entropy at which it settles; by default minus the number of action dimensions.
    """

    def __init__(self, initial: float, action_space: spaces.Space, target_entropy: float | None = None) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))
        dimensions = math.prod(action_space.shape or ())
        self.target_entropy = -float(dimensions) if target_entropy is None else target_entropy

    @property
    def alpha(self) -> Tensor:
        """The weight α."""
        return self.log_alpha.exp()
