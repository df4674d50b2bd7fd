"""Soft actor-critics: agents with a policy, critics of actions and a temperature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raceway.agents.agent import Agent
from raceway.agents.critics import CriticList
from raceway.agents.q_ensembles import QEnsemble
from raceway.agents.temperature import Temperature
from raceway.rl import Batch, soft_value, tree_map


class SoftActorCritic(Agent):
    """A squashed Gaussian policy of continuous actions, several critics Q(s, a) and the temperature."""

    critics: QEnsemble | CriticList
    temperature: Temperature

    def q_values(self, batch: Batch) -> Tensor:
        """Return Q(s, a) of every critic for the actions of a batch, [E, N]."""
        q_values: Tensor = self.critics(batch["obs"], batch["action"])
        return q_values

    def q_values_of(self, obs: Any, actions: Tensor) -> Tensor:
        """Return Q(s, aᵢ) of every critic for K actions in each state, [N, K, ...]: [E, N, K]."""
        num = actions.shape[1]
        rows = tree_map(lambda part: part[:, None].expand(-1, num, *part.shape[1:]).flatten(0, 1), obs)
        q_values: Tensor = self.critics(rows, actions.flatten(0, 1))
        return q_values.unflatten(-1, (-1, num))

    def soft_value(self, critics: nn.Module, obs: Any, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return min Q(s, a) - α log π(a|s), [N], for an action a sampled from the policy; and log π(a|s), [N].

        Args:
            critics: the critics Q: those of this agent, or of its target networks.
            obs: the observations s.
            random: the generator of the actions.
        """
        params = self.actor(obs, {})[0]
        action, log_prob = self.actor.distribution.sample_with_log_prob(params, random)
        return critics(obs, action).amin(0) - self.temperature.alpha * log_prob, log_prob


class DiscreteSoftActorCritic(Agent):
    """A policy of discrete actions, several critics Q(s, ·) and the temperature.

    What is sampled for continuous actions is an expectation over the actions here.
    """

    critics: nn.Module
    temperature: Temperature

    def q_values(self, batch: Batch) -> Tensor:
        """Return Q(s, a) of every critic for the actions of a batch, [E, N]."""
        q_values = self.critics(self.actor.network_obs(batch["obs"]))
        return q_values.gather(-1, self.action_index(batch).expand(len(q_values), -1)[..., None]).squeeze(-1)

    def soft_value(self, critics: nn.Module, obs: Any, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return Σₐ π(a|s) (min Q(s, a) - α log π(a|s)), [N]; and Σₐ π(a|s) log π(a|s), the mean of log π(a|s), [N].

        Masked actions have a probability of 0.

        Args:
            critics: the critics Q: those of this agent, or of its target networks.
            obs: the observations s.
            random: not used.
        """
        log_probs = self.actor(obs, {})[0].log_softmax(-1)
        q_values = critics(self.actor.network_obs(obs)).amin(0)
        value = soft_value(q_values, log_probs, self.temperature.alpha)
        return value, (log_probs.exp() * log_probs).sum(-1)
