"""Agents that recommend slates: Q-values of items, and those of slates by a model of the user's choice."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from torch import Tensor, nn

from raceway.agents.agent import QAgent, Spaces
from raceway.agents.network_choice import RECURRENT, network_for
from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import network_obs_space
from raceway.rl.slates import all_slates, slate_values

SCORES, CHOSEN = "choice_scores", "chosen"
"""The parts of an observation that have the scores of the choice model, and what was chosen of the slate before."""


class SlateNetwork(nn.Module):
    """The value of every slate, [N, S], from a network for the values of items.

    Args:
        items: from the other parts of observations to the values of items and of the null item, [N, n + 1].
        slates: the items of every slate, [S, k].
    """

    def __init__(self, items: nn.Module, slates: Tensor) -> None:
        super().__init__()
        self.items = items
        self.slates: Tensor
        self.register_buffer("slates", slates, persistent=False)

    def item_values(self, obs: Any) -> Tensor:
        """Return Q̄(s, i) of every item, and of the null item, [N, n + 1]."""
        rest = {name: part for name, part in obs.items() if name not in (SCORES, CHOSEN)}
        values: Tensor = self.items(rest)
        return values

    def forward(self, obs: Any) -> Tensor:
        return slate_values(self.item_values(obs), obs[SCORES], self.slates)


class SlateAgent(QAgent):
    """An agent whose actor's outputs are the values of slates, which consist of the values of items."""

    def item_values(self, obs: Any) -> Tensor:
        """Return Q̄(s, i) of every item, and of the null item, [N, n + 1]."""
        values: Tensor = self.actor.network.item_values(self.actor.network_obs(obs))  # type: ignore[operator]
        return values


def slate_network(spaces: Spaces, cfg: Any) -> SlateAgent:
    """Return an agent for an environment of slates, with the settings `network`, `hidden` and `slate_size`."""
    obs_space, _ = network_obs_space(spaces.observation)
    if cfg.network in RECURRENT:  # which is refused later, with advice
        return SlateAgent(Policy(*spaces, network_for(obs_space, spaces.action, cfg.network, cfg.hidden or ())))
    rest, num_items = _check_spaces(obs_space, spaces.action, cfg.slate_size)
    items = network_for(rest, Discrete(num_items + 1), cfg.network, cfg.hidden or ())
    policy = Policy(*spaces, SlateNetwork(items, torch.from_numpy(all_slates(num_items, cfg.slate_size))))
    if not isinstance(cfg.network, str) and cfg.hidden:
        policy.unused_settings = {"hidden": "the networks are your own"}
    return SlateAgent(policy)


def _check_spaces(obs_space: Space, action_space: Space, slate_size: int) -> tuple[Dict, int]:
    """Return the part of the observation space that networks see, and the number of items."""
    parts = obs_space.spaces if isinstance(obs_space, Dict) else {}
    scores, chosen = parts.get(SCORES), parts.get(CHOSEN)
    num_items = scores.shape[0] - 1 if isinstance(scores, Box) and len(scores.shape) == 1 else 0
    if not (num_items and isinstance(chosen, Discrete) and chosen.n == num_items + 1 and len(parts) > 2):
        raise ConfigError(
            f"slates need a Dict of observations with the entries {SCORES!r}, a vector of the choice model's scores of "
            f"n items and of none, {CHOSEN!r}, Discrete(n + 1), and something about the user, not {obs_space}. Use "
            "--env slates, or add them."
        )
    num_slates = math.comb(num_items, slate_size)
    if not isinstance(action_space, Discrete) or action_space.n != num_slates or action_space.start:
        raise ConfigError(
            f"there are {num_slates} slates of {slate_size} of {num_items} items, and the actions are {action_space}. "
            "Set slate_size, or number the slates as raceway.rl.slates.all_slates does."
        )
    return Dict({name: part for name, part in parts.items() if name not in (SCORES, CHOSEN)}), num_items
