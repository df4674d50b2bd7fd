"""The temperature of soft actor-critics: the weight of the entropy."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.errors import ConfigError

DISCRETE_SHARE = 0.3
"""The default target entropy of discrete actions, as a share of the largest entropy."""


class Temperature(nn.Module):
    """The weight α of the entropy, as its logarithm, and the entropy at which it settles.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, section 5.

    Args:
        initial: the initial α.
        action_space: the action space.
        target_entropy: the entropy at which it settles; see `default_target_entropy`.
    """

    def __init__(self, initial: float, action_space: spaces.Space, target_entropy: float | None = None) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))
        if target_entropy is None:
            target_entropy = default_target_entropy(action_space)
        elif isinstance(action_space, spaces.Discrete) and target_entropy >= math.log(action_space.n):
            raise ConfigError(
                f"the entropy of {action_space.n} actions is at most log {action_space.n} = "
                f"{math.log(action_space.n):.3g}, and target_entropy is {target_entropy:g}: the temperature would grow "
                f"without bound. Use less, such as {default_target_entropy(action_space):.2g}."
            )
        self.target_entropy = target_entropy

    @property
    def alpha(self) -> Tensor:
        """The weight α."""
        return self.log_alpha.exp()


def default_target_entropy(space: spaces.Space) -> float:
    """Return minus the number of action dimensions or, of n discrete actions, a share of log n.

    The share of Christodoulou 2019, 0.98, is out of reach wherever one of a few actions is better than the others, and
    the temperature would grow without bound.

    >>> default_target_entropy(spaces.Box(-1, 1, (3,))), round(default_target_entropy(spaces.Discrete(2)), 3)
    (-3.0, 0.208)
    """
    if isinstance(space, spaces.Discrete):
        return DISCRETE_SHARE * math.log(int(space.n))
    return -float(math.prod(space.shape or ()))
