"""Critics beside a user's actor: the built-in one, and those of the user, checked before training like actors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.network_checks import NUM_ROWS, example_rows, try_network
from raceway.agents.networks import ACTIVATIONS, Encoder
from raceway.agents.policy import Policy
from raceway.agents.recurrent import RecurrentNetwork
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError


class CriticList(nn.Module):
    """Critics Q(s, a) of continuous actions, each a module from (obs, action), [N, ...] each, to [N, 1].

    Args:
        observation_space: the space of the observations that a network sees.
        action_space: the action space.
        critics: the critics.
    """

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space, critics: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(critics)
        rows = {"obs": example_rows(observation_space), "action": example_rows(action_space)}
        for number, critic in enumerate(critics, 1):
            part = f"critics ({number} of {len(critics)})"
            shape = try_network(part, critic, partial(_call, critic), rows)
            _check_shape(part, shape, "observations and actions")

    def __len__(self) -> int:
        return len(self.members)

    def forward(self, obs: Any, action: Tensor, num: int | None = None, *, members: Tensor | None = None) -> Tensor:
        """Return Q(s, a) of every critic, of the first `num`, or of those with the numbers `members`, [E, N]."""
        q_values = torch.stack([critic(obs, action).squeeze(-1) for critic in self.members[:num]])
        return q_values if members is None else q_values.index_select(0, members)


class DiscreteCriticList(nn.Module):
    """Critics Q(s, ·) of discrete actions, each a module from observations, [N, ...], to [N, num_actions].

    Args:
        observation_space: the space of the observations that a network sees.
        num_actions: the number of actions.
        critics: the critics.
    """

    def __init__(self, observation_space: spaces.Space, num_actions: int, critics: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(critics)
        rows = example_rows(observation_space)
        for number, critic in enumerate(critics, 1):
            part = f"critics ({number} of {len(critics)})"
            _check_shape(part, try_network(part, critic, critic, rows), num_outputs=num_actions)

    def forward(self, obs: Any) -> Tensor:
        """Return Q(s, ·) of every critic, [E, N, num_actions]."""
        return torch.stack([critic(obs) for critic in self.members])


def _call(critic: nn.Module, rows: Any) -> Any:
    return critic(rows["obs"], rows["action"])


def value_network(observation_space: spaces.Space, hidden: Sequence[int], activation: str | None = None) -> Layers:
    """Return a critic of states beside a user's actor. Images too small for the convolutions are flattened."""
    encoder = Encoder(observation_space, flatten_small_images=True)
    layers: list[nn.Module] = [encoder]
    for inputs, width in pairwise([encoder.size, *hidden]):
        layers += [nn.Linear(inputs, width), ACTIVATIONS[activation or "tanh"]()]
    critic = Layers(*layers, nn.Linear(hidden[-1] if hidden else encoder.size, 1))
    for layer in critic.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, 1.0 if layer is critic[-1] else math.sqrt(2))
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return critic


def check_critic(actor: Policy, critic: nn.Module) -> None:
    """Refuse a critic of states that does not return [N, 1] for N observations. Raceway's own need no check."""
    is_head = isinstance(critic, nn.Linear) and isinstance(actor.network, (Layers, RecurrentNetwork))
    if not is_head and not isinstance(critic, Layers):
        rows = example_rows(actor.network_space)
        _check_shape("critic", try_network("critic", critic, lambda obs: actor.run_rows(critic, obs), rows))


def _check_shape(part: str, shape: Any, inputs: str = "observations", num_outputs: int = 1) -> None:
    needed = (NUM_ROWS, num_outputs)
    if shape != needed:
        raise ConfigError(
            f"the network of the part {part!r} returned {shape} for {NUM_ROWS} {inputs}; values need {needed}"
        )
