"""Several agents: workers that play them, and a plan for each of their policies behind one split."""

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
from raceway.rollouts.multi_agent import MultiCollector
from raceway.state import Stateful, restore, state_of


@dataclass(frozen=True, kw_only=True)
class MultiRolloutSettings:
    """What a worker plays, and with which policies."""

    env: MultiAgentSettings
    num_shards: int
    slots_per_shard: int
    """Environments that step together."""
    fragment_steps: int
    policies: Mapping[str, RolloutSettings]
    """What each policy is made of."""
    seed: int = 0

    def make_policies(self, seed: int = 0) -> dict[str, Policy]:
        """Make the policies that play."""
        spaces = self.env.spaces()
        return {name: one.make_policy(*spaces[name], seed + place) for place, (name, one) in enumerate(self.each())}

    def each(self) -> list[tuple[str, RolloutSettings]]:
        """Return the policies in the order of their names."""
        return sorted(self.policies.items())


class MultiRolloutWorker:
    """Plays in the environments of some shards, with the newest weights of each policy that it was sent."""

    def __init__(self, settings: MultiRolloutSettings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self.policies = settings.make_policies()
        self._collectors: dict[int, MultiCollector] = {}

    def set_weights(self, weights: Weights, policy: str) -> None:
        """Play with these from the next item on."""
        self.policies[policy].load(weights)

    def sample(self, *, shard: Shard = injected, number: int = injected) -> dict[str, Batch]:
        """Collect the item of this number of a shard: a fragment for every policy."""
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


class Select:
    """Takes what is of one policy from every item of a round."""

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def __call__(self, round: Sequence[Mapping[str, Batch]]) -> list[Batch]:
        """Return it."""
        return [item[self.policy] for item in round]


class Gathered:
    """Rounds that were gathered already, for a plan that is written for shards: it can follow a split.

    What the plan does on shards is done here, for each item of a round by an operator of its own, beside `player`.
    """

    def __init__(self, rounds: Iter[list[Any]], player: Any) -> None:
        self._rounds, self._player = rounds, player

    def for_each(self, function: Callable[..., Any]) -> Gathered:
        """As `ParIter.for_each`."""
        return Gathered(self._rounds.for_each(_EachOf(function, self._player)), self._player)

    def gather_sync(self) -> Iter[list[Any]]:
        """Return the rounds."""
        return self._rounds

    def gather_async(self, num_async: int = 1) -> Iter[Any]:
        """Return their items, one after the other."""
        return self._rounds.flatten()


class _EachOf(Stateful):
    """An operator for every place in a round."""

    def __init__(self, function: Callable[..., Any], player: Any) -> None:
        self._first = function
        self._many: list[Any] = []
        wanted = injected_parameters(function, ("actor", "shard"), "behind a split")
        self._gifts = {"actor": player} if "actor" in wanted else {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, round: Sequence[Any]) -> list[Any]:
        while len(self._many) < len(round):
            self._many.append(copy.deepcopy(self._first))
        return [function(item, **self._gifts) for function, item in zip(self._many, round, strict=False)]

    def state(self) -> Any:
        return [state_of(one) for one in self._many]

    def restore(self, state: Any) -> None:
        self._many = [copy.deepcopy(self._first) for _ in state]
        for one, saved in zip(self._many, state, strict=True):
            restore(one, saved)
