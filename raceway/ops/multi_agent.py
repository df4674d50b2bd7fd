"""Multi-agent training: workers that act for all agents, and operators that select the batches of each policy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raceway.agents import Policy, Weights
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.flow import Iter, Shard, injected
from raceway.injection import injected_parameters
from raceway.ops.rollouts import RolloutSettings
from raceway.rl import Batch
from raceway.rollouts.multi_collector import MultiCollector
from raceway.state import Stateful, restore, state_of


@dataclass(frozen=True, kw_only=True)
class MultiRolloutSettings:
    """The environment and policies of multi-agent rollouts, and how they are collected."""

    env: MultiAgentSettings
    num_shards: int
    slots_per_shard: int
    """Environments that are stepped together."""
    fragment_steps: int
    policies: Mapping[str, RolloutSettings]
    """How each policy is created."""
    seed: int = 0

    def make_policies(self, seed: int = 0) -> dict[str, Policy]:
        """Create the policies."""
        spaces = self.env.spaces()
        policies = enumerate(sorted(self.policies.items()))
        return {name: settings.make_policy(*spaces[name], seed + index) for index, (name, settings) in policies}


class MultiRolloutWorker:
    """Collects rollouts in the environments of some shards, with the newest weights of each policy."""

    def __init__(self, settings: MultiRolloutSettings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self.policies = settings.make_policies()
        self._collectors: dict[int, MultiCollector] = {}

    def set_weights(self, weights: Weights, policy: str) -> None:
        """Set the weights of a policy, from the next item on."""
        self.policies[policy].load(weights)

    def sample(self, *, shard: Shard = injected, number: int = injected) -> dict[str, Batch]:
        """Collect an item of a shard, by its number: a fragment for every policy."""
        collector = self._collectors.get(shard.number)
        if collector is None:
            settings = self.settings
            collector = self._collectors[shard.number] = MultiCollector(
                settings.env, settings.slots_per_shard, self.policies, settings.fragment_steps,
                seed=settings.seed, shard=shard.number,
            )  # fmt: skip
        return collector.fragment(number)

    def close(self) -> None:
        """Close the environments."""
        for collector in self._collectors.values():
            collector.close()


class Select(Stateful):
    """Select the batches of one policy from every item of a round."""

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def __call__(self, round: Sequence[Mapping[str, Batch]]) -> list[Batch]:
        """Return the batches."""
        return [item[self.policy] for item in round]


class GatheredRounds:
    """Rounds that are already gathered, with the methods of `ParIter`, so that a plan written for shards can use them.

    Operators that would run on shards run in the driver: a separate copy for each item of a round, with `actor` in
    place of the shard's actor.
    """

    def __init__(self, rounds: Iter[list[Any]], actor: Any) -> None:
        self._rounds, self._actor = rounds, actor

    def for_each(self, function: Callable[..., Any]) -> GatheredRounds:
        """Apply a function to every item, as `ParIter.for_each` does."""
        return GatheredRounds(self._rounds.for_each(_ApplyToEach(function, self._actor)), self._actor)

    def gather_sync(self) -> Iter[list[Any]]:
        """Return the rounds."""
        return self._rounds

    def gather_async(self, num_async: int = 1) -> Iter[Any]:
        """Return the items one after the other."""
        return self._rounds.flatten()


class _ApplyToEach(Stateful):
    """Apply a separate copy of an operator to each position in a round."""

    def __init__(self, function: Callable[..., Any], actor: Any) -> None:
        self._prototype = function
        self._copies: list[Any] = []
        names = injected_parameters(function, ("actor", "shard"), "behind a split")
        self._injected = {"actor": actor} if "actor" in names else {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, round: Sequence[Any]) -> list[Any]:
        while len(self._copies) < len(round):
            self._copies.append(copy.deepcopy(self._prototype))
        return [function(item, **self._injected) for function, item in zip(self._copies, round, strict=False)]

    def state(self) -> Any:
        return [state_of(function) for function in self._copies]

    def restore(self, state: Any) -> None:
        self._copies = [copy.deepcopy(self._prototype) for _ in state]
        for function, saved in zip(self._copies, state, strict=True):
            restore(function, saved)
