"""An agent: everything that an algorithm trains, in named parts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.critics import check_critic
from raceway.agents.networks import Normaliser
from raceway.agents.policy import Policy
from raceway.agents.recurrent import RecurrentNetwork
from raceway.agents.segment_evaluation import evaluate_segments, segment_params
from raceway.agents.sequence_evaluation import ArrangedSequences, evaluate_sequences
from raceway.agents.weights import WeightsModule
from raceway.autograd.layers import Layers, run_layers
from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.rl import Batch, tree_map


class Spaces(NamedTuple):
    """The spaces of an environment."""

    observation: spaces.Space
    """With the action mask, if there is one."""
    action: spaces.Space


class Agent(WeightsModule):
    """Everything that an algorithm trains, in named parts. The part `actor` acts.

    Args:
        actor: the part that acts.
        parts: the other parts, by name.
    """

    worker_parts: ClassVar[Sequence[str] | None] = ("actor",)
    """The parts that rollout workers need; None for all."""

    def __init__(self, actor: Policy, **parts: nn.Module) -> None:
        super().__init__()
        self.actor = actor
        for name, part in parts.items():
            self.add_module(name, part)
        self.__dict__["_target"] = None  # not a submodule: it is no part of the weights

    @property
    def target(self) -> Self:
        """The target networks: a copy of some parts, or of all, that the learner updates (see `Target`)."""
        target: Self | None = self.__dict__["_target"]
        if target is None:
            raise ConfigError("this agent has no target networks. Pass targets=Target(...) to TrainOneStep.")
        return target

    @property
    def has_target(self) -> bool:
        """Whether there are target networks."""
        return self.__dict__["_target"] is not None

    def make_target(self, parts: Sequence[str] | None) -> None:
        """Create the target networks: copies of some parts, or of all. They are not trained."""
        target = copy.copy(self)
        target.__dict__["_target"] = None
        names = list(self._modules) if parts is None else [self.check_part(name) for name in parts]
        copies = copy.deepcopy(
            nn.ModuleDict({name: self.get_submodule(name) for name in names})
        )  # shared layers stay so
        target.__dict__["_modules"] = {name: copies[name] for name in names}
        # Parameters of the agent itself are no part: they stay its own, and are trained.
        target.__dict__ |= {"_parameters": {}, "_buffers": {}}
        target.requires_grad_(False)
        self.__dict__["_target"] = target

    def remove_target(self) -> None:
        """Remove the target networks, if there are any."""
        self.__dict__["_target"] = None

    def check_part(self, name: str) -> str:
        """Return the name of a part, after checking that there is one."""
        if name not in self._modules:
            raise unknown_name("part of the agent", name, list(self._modules))
        return name

    def parameters_of(self, parts: Sequence[str] | None) -> Iterator[nn.Parameter]:
        """Yield the parameters of some parts, or of all."""
        if parts is None:
            yield from self.parameters()
            return
        for name in parts:
            yield from self.get_submodule(self.check_part(name)).parameters()

    def action_index(self, batch: Batch) -> Tensor:
        """Return the discrete actions of a batch as indices of what a network returns for them, [...]."""
        start = getattr(self.actor.distribution, "start", 0)
        return (batch["action"] - start if start else batch["action"]).long()

    def fit(self, batch: Batch) -> dict[str, float]:
        """Update the agent from a batch in closed form, and return metrics; only for agents that can."""
        raise ConfigError(f"a {type(self).__name__} is trained by a loss. Use TrainOneStep instead of FitOneStep.")

    def observe(self, rows: Batch) -> None:
        """Update the normalisers, if there are any, with a batch of tensors."""
        self.actor.observe(valid_rows(rows, "obs"))

    def observe_dataset(self, batches: Iterable[Batch]) -> None:
        """Learn what it has to know of a whole dataset before it is trained on that: by default nothing.

        Args:
            batches: the episodes of the dataset, which are read when they are used.
        """


class QAgent(Agent):
    """An agent whose actor's outputs are the Q-values of discrete actions.

    A batch holds transitions, [N], or for a recurrent actor sequences of transitions, [N, L]; see `raceway.rl`.
    """

    def q_values(self, batch: Batch) -> Tensor:
        """Return Q(s, ·) of the observations of a batch, [..., num_actions]."""
        if self.actor.recurrent:
            return evaluate_sequences(self.actor, batch)[0]
        return self.actor(batch["obs"], {})[0]

    def next_q_values(self, batch: Batch) -> Tensor:
        """Return Q(s', ·) of the observations after the transitions of a batch, [..., num_actions]."""
        if self.actor.recurrent:
            return evaluate_sequences(self.actor, batch)[1]
        return self.actor(batch["next_obs"], {})[0]

    def sequence_q_values(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q(s, ·), Q(s', ·) and Q'(s', ·) of sequences, [N, L, num_actions], by one pass of each network.

        Q' is the target network, and only Q(s, ·) has a gradient.
        """
        sequences = ArrangedSequences(batch)
        q_values, next_q_online = sequences.evaluate(self.actor)
        with torch.no_grad():
            return q_values, next_q_online.detach(), sequences.evaluate(self.target.actor)[1]


class ActorCritic(Agent):
    """A policy and a critic for the value of a state.

    Args:
        actor: the policy.
        critic: from observations to values, [N, 1]; or a linear layer on the features of the policy's network.
    """

    worker_parts: ClassVar[Sequence[str] | None] = None  # workers compute advantages

    def __init__(self, actor: Policy, critic: nn.Module) -> None:
        super().__init__(actor, critic=critic, rewards=Normaliser(1))
        check_critic(actor, critic)
        self.critic: nn.Module
        self.rewards: Normaliser
        """Statistics of discounted returns, by which rewards may be scaled."""

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution, [N, size], and the values V(s), [N], of the observations."""
        obs, network, critic = batch["obs"], self.actor.network, self.critic
        if self.actor.recurrent:
            features = self.actor.features(batch)
            return self.actor.params_of_features(features, obs), self.values_of_features(features, obs)
        network_obs = self.actor.network_obs(obs)
        actor_layers: list[nn.Module]
        critic_layers: list[nn.Module]
        if isinstance(network, Layers) and isinstance(critic, nn.Linear):  # a second head
            shared, actor_layers, critic_layers = network.features(network_obs), list(network)[-1:], [critic]
        elif isinstance(network, Layers) and isinstance(critic, Layers) and critic[0] is network[0]:
            shared, actor_layers, critic_layers = network[0](network_obs), list(network)[1:], list(critic)[1:]
        else:
            return self.actor(obs, {})[0], self.values(obs)
        params = self.actor.apply_mask(run_layers(actor_layers, shared), obs)
        return params, run_layers(critic_layers, shared).squeeze(-1)

    def evaluate_fragment(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters and values of a fragment, [T, B, ...], and V(s) of the observations after it, [B]."""
        if not self.actor.recurrent:
            params, values = self.evaluate(batch)
            with torch.no_grad():
                return params, values, self.values(batch["last_obs"])
        rows, row_params, row_values, next_values = evaluate_segments(self, batch)
        shape, where = batch["ended"].shape, (torch.from_numpy(rows.step), torch.from_numpy(rows.slot))
        params = row_params.new_zeros(*shape, row_params.shape[-1]).index_put(where, row_params)
        last = rows.step[rows.last_rows] == shape[0] - 1
        slots = torch.from_numpy(rows.slot[rows.last_rows][last])
        last_value = row_values.new_zeros(shape[1]).index_put((slots,), next_values[torch.from_numpy(last)].detach())
        return params, row_values.new_zeros(shape).index_put(where, row_values), last_value

    def fragment_params(self, batch: Batch) -> Tensor:
        """Return the parameters of the distribution for every step of a fragment, [T, B, size], without the critic."""
        return segment_params(self.actor, batch) if self.actor.recurrent else self.actor(batch["obs"], {})[0]

    def values_of_features(self, features: Tensor, obs: Any) -> Tensor:
        """Return V(s), [N], of a recurrent network's features; a user's critic sees the observations instead."""
        if isinstance(self.actor.network, RecurrentNetwork):
            return self.critic(features).squeeze(-1)
        return self.values(obs)

    def values(self, obs: Any) -> Tensor:
        """Return V(s), [N]. A recurrent critic has no value of a single observation."""
        network_obs, network = self.actor.network_obs(obs), self.actor.network
        if isinstance(self.critic, nn.Linear) and isinstance(network, Layers):
            return run_layers([self.critic], network.features(network_obs)).squeeze(-1)
        return self.actor.run_rows(self.critic, network_obs).squeeze(-1)

    def observe(self, rows: Batch) -> None:
        """Update the normalisers of observations and, if rewards are scaled, of returns."""
        super().observe(rows)
        if "running_return" in rows:
            self.rewards.observe(valid_rows(rows, "running_return").reshape(-1, 1))


def valid_rows(rows: Batch, name: str) -> Any:
    """Return a column of tensors, without the rows that are not `valid` if a batch has some."""
    return tree_map(lambda part: part[rows["valid"]], rows[name]) if "valid" in rows else rows[name]
