"""Rollouts: workers that play, and the stream of what they collect."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raceway.agents import Policy, Weights, make_policy
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, Slots, give_tasks, make_slots, seed_of
from raceway.flow import ParIter, Shard, create, injected
from raceway.learner.learner import copies
from raceway.rl import Batch
from raceway.rollouts.collector import Collector
from raceway.rollouts.recovery import Recovery

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """What a worker plays, and with what."""

    env: EnvSettings
    num_shards: int
    slots_per_shard: int
    """Environments that step together."""
    seed: int = 0
    network: Any = "mlp"
    hidden: Sequence[int] = field(default=(128,))
    kind: str = "actor"
    """Of policy; see `make_policy`."""
    normalise: bool = False
    """Whether observations are normalised."""
    activation: str | None = None
    """Between the layers of an actor-critic."""
    shared: bool = False
    """Whether an actor-critic is one network with two heads."""
    clip_actions: bool = False
    """Whether environments get actions within their bounds. What was drawn is what is learnt from."""
    num_episodes: int | None = None
    """Whole episodes for all shards together, an item; or"""
    fragment_steps: int | None = None
    """steps for each environment, an item."""
    items_per_task: int | None = None
    """Of environments of tasks: how many items a shard plays in one before it is given the next."""
    repeats: bool = True
    """Whether an episode depends on its seed alone; of `Slots`."""
    max_env_failures: int = 10
    """Failures of a shard's environments that are borne with no episode ended in between; see `Recovery`."""

    def make_policy(self, observation_space: Any, action_space: Any, seed: int = 0) -> Policy:
        """Make the policy that plays."""
        return make_policy(
            observation_space, action_space, self.network, self.hidden, seed,
            kind=self.kind, normalise=self.normalise, activation=self.activation, shared=self.shared,
            num_slots=self.slots_per_shard,
        )  # fmt: skip

    @property
    def about_policy(self) -> dict[str, Any]:
        """How the policy is made, and what becomes of its actions, as data."""
        names = ("kind", "network", "hidden", "normalise", "activation", "shared", "clip_actions")
        return {name: getattr(self, name) for name in names} | {"num_slots": self.slots_per_shard}

    @property
    def leaves_nothing(self) -> bool:
        """Whether an item leaves nothing behind in the environments that the next one would depend on."""
        return self.fragment_steps is None and self.repeats


class RolloutWorker:
    """Plays in the environments of some shards, with the newest weights it was sent."""

    def __init__(self, settings: RolloutSettings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self._policy: Policy | None = None
        self._collectors: dict[int, Collector] = {}
        self._saved: dict[int, Any] = {}  # of collectors that are not open yet
        self._weights: Weights | None = None
        self._of_shards: Sequence[Weights] = ()

    def set_weights(self, weights: Weights) -> None:
        """Play with these from the next item on."""
        self._weights, self._of_shards = weights, ()
        if self._policy is not None:
            self._policy.load(weights)

    def set_shard_weights(self, weights: Sequence[Weights]) -> None:
        """Play each shard with its own of these, until others come for all."""
        self._of_shards = weights

    def sample(self, *, shard: Shard = injected, number: int = injected) -> Batch:
        """Collect the item of this number of a shard."""
        settings = self.settings
        collector = self._collector(0 if settings.leaves_nothing else shard.number, shard.number)
        if self._of_shards:
            self.policy.load(self._of_shards[shard.number])
        if settings.items_per_task is not None:
            task, of = number // settings.items_per_task, {"shard": shard.number, "num_shards": shard.total}
            give: Any = partial(give_tasks, seed=settings.seed, number=task, **of)  # type: ignore[arg-type]
            give(collector.slots)
            collector.recovery.prepare = give
        if settings.fragment_steps is not None:
            return collector.fragment(settings.fragment_steps, number)
        return collector.episodes(episodes_of_shard(settings, shard.number), number)

    def _collector(self, place: int, shard: int) -> Collector:
        collector = self._collectors.get(place)
        if collector is None:
            collector = self._collectors[place] = self._open(shard)
        collector.shard = shard
        return collector

    def _open(self, shard: int) -> Collector:
        settings = self.settings
        saved = self._saved.pop(shard, None)
        # Environments that seed themselves must not begin with the same episodes again.
        begun = 0 if saved is None or "history" in saved else 1 + int(max(saved["episode"]))
        recovery = Recovery(settings.max_env_failures, partial(self._make_slots, shard), begun)
        slots = recovery.make(lambda _: (f"worker {self.name}, shard {shard}", 0))
        if self._policy is None:
            spaces = slots.observation_space, slots.action_space
            self._policy = settings.make_policy(*spaces)
            if self._weights is not None:
                self._policy.load(self._weights)
        clips = settings.clip_actions
        collector = Collector(
            slots, self._policy, seed=settings.seed, shard=shard, worker=self.name, clip_actions=clips,
            keep_given=settings.kind == "actor-critic", recovery=recovery,
        )  # fmt: skip
        if saved is not None and not collector.resume(saved):
            _log.warning("shard %d: environments could not be brought back to where they were; going on", shard)
        return collector

    def _make_slots(self, shard: int, times_before: int) -> Slots:
        again = [times_before] if times_before else []
        seed = seed_of(self.settings.seed, Purpose.ENVIRONMENT, shard, *again)
        return make_slots(self.settings.env, self.settings.slots_per_shard, seed)

    def state(self, *, shard: Shard = injected) -> Any:
        """Return where the environments of a shard are, if its next item depends on that."""
        collector = self._collectors.get(shard.number)
        if self.settings.leaves_nothing or collector is None:
            return self._saved.get(shard.number)
        return collector.saved()

    def restore(self, state: Any, *, shard: Shard = injected) -> None:
        """Bring the environments of a shard back to where they were."""
        self._saved[shard.number] = state
        if self.settings.items_per_task is None:  # else they are when they are given their task
            self._collector(shard.number, shard.number)

    def weights(self) -> Weights | None:
        """Return what it plays with."""
        return self._weights if self._policy is None else copies(self._policy.weights())

    @property
    def policy(self) -> Policy:
        """What it plays with."""
        assert self._policy is not None, "nothing was played yet"
        return self._policy

    def pid(self) -> int:
        """Return the process it lives in."""
        return os.getpid()

    def close(self) -> None:
        """Close the environments."""
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()


def episodes_of_shard(settings: RolloutSettings, shard: int) -> list[int]:
    """Return how many of an item's episodes each slot of a shard plays. They are dealt out to all shards in turn.

    >>> settings = RolloutSettings(env=EnvSettings("cartpole"), num_shards=2, slots_per_shard=2, num_episodes=5)
    >>> episodes_of_shard(settings, 0), episodes_of_shard(settings, 1)
    ([2, 1], [1, 1])
    """
    total = settings.num_shards * settings.slots_per_shard
    each, rest = divmod(settings.num_episodes or 0, total)
    return [each + (slot * settings.num_shards + shard < rest) for slot in range(settings.slots_per_shard)]


def parallel_rollouts(workers: Sequence[Actor], settings: RolloutSettings) -> ParIter[Batch]:
    """Make the stream of what workers collect, in shards that do not depend on how many workers there are."""
    moves = settings.leaves_nothing
    return create(workers, "sample", num_shards=settings.num_shards, seed=settings.seed, moves=moves)
