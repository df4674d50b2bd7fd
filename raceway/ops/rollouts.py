"""Rollout workers, and the stream of batches that they collect."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raceway.agents import ActorCritic, Agent, Explorer, Knobs, Sample, Spaces, Weights, build_agent, copy_weights
from raceway.agents.modes import acting_mode
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Slots, assign_tasks, make_slots
from raceway.flow import ParIter, Shard, create, injected
from raceway.learner.replica import Reduced, Replica
from raceway.rl import Batch
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rollouts.collector import Collector
from raceway.rollouts.episode_reports import EpisodeCallbacks, EpisodeReporter
from raceway.rollouts.recovery import FailureLog, Recovery

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """The environment and agent of rollouts, and how they are collected."""

    env: EnvSettings
    num_shards: int
    slots_per_shard: int
    """Environments that are stepped together."""
    agent: Callable[[Spaces], Agent]
    """Makes the agent, untrained."""
    explorer: Callable[[Spaces], Explorer] | None = None
    """Makes the explorer; by default actions are sampled from the policy."""
    clip_actions: bool = False
    """Whether environments get actions clipped to their bounds. Training uses the unclipped ones."""
    keep_terminal_obs: bool = False
    """Whether fragments have the last observations of terminated episodes, which nothing but hindsight needs."""
    num_episodes: int | None = None
    """Whole episodes per item, over all shards. Set either this or `fragment_steps`."""
    fragment_steps: int | None = None
    """Steps per item, in each environment."""
    items_per_task: int | None = None
    """For environments with tasks: items that a shard collects in a task before it gets the next."""
    repeats_from_seed: bool = True
    """Whether an episode depends on its seed alone; see `Slots`."""
    seed: int = 0
    info_keys: tuple[str, ...] = ()
    """Entries of the info of an episode's last step that are reported."""
    episode_callbacks: EpisodeCallbacks | None = None
    """Callbacks that are called at the end of every episode."""
    max_env_failures: int = 10
    """Failures of a shard's environments that are tolerated with no episode ended in between; see `Recovery`."""

    def make_agent(self, spaces: Spaces, seed: int = 0) -> Agent:
        """Create the agent."""
        return build_agent(lambda spaces, _: self.agent(spaces), spaces, None, seed)

    def make_explorer(self, spaces: Spaces) -> Explorer:
        """Create the explorer."""
        return Sample() if self.explorer is None else self.explorer(spaces)

    @property
    def independent_items(self) -> bool:
        """Whether items are independent of each other: none continues from environments as earlier items left them."""
        return self.fragment_steps is None and self.repeats_from_seed


class RolloutWorker:
    """Collects rollouts in the environments of some shards, with the newest weights it was sent."""

    def __init__(self, settings: RolloutSettings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self._agent: Agent | None = None
        self._explorer: Explorer | None = None
        self._collectors: dict[int, Collector] = {}
        self._snapshots: dict[int, Any] = {}  # of shards whose collector is not created yet
        self._failure_log = FailureLog()
        callbacks = settings.episode_callbacks
        loaded, token = (callbacks.load(), callbacks.token) if callbacks is not None else ([], "")
        self._reporter = EpisodeReporter(settings.info_keys, loaded, token)
        self._weights: Weights | None = None  # of the latest message
        self._knobs: Knobs = {}
        self._shard_weights: Sequence[Weights] = ()
        self._replica: Replica | None = None
        self._learner_state: Any = None  # of a replica that is not created yet

    def set_weights(self, weights: Weights, knobs: Knobs | None = None) -> None:
        """Set the weights of all shards, and knobs of exploration, from the next item on."""
        self._weights, self._shard_weights = weights, ()
        self._knobs |= knobs or {}
        if self._agent is not None and self._explorer is not None:
            self._agent.load(weights)
            self._explorer.set_knobs(self._knobs)

    def set_shard_weights(self, weights: Sequence[Weights]) -> None:
        """Set separate weights for each shard, until the next `set_weights`."""
        self._shard_weights = weights

    def replica(self, make_replica: Callable[[Agent], Replica]) -> Replica:
        """Return the replica that takes the gradient steps of this worker, on the agent that acts."""
        if self._replica is None:
            self._replica = make_replica(self.agent)
            if self._learner_state is not None:
                self._replica.learner.restore(self._learner_state)
                self._learner_state = None
        return self._replica

    def set_replica(self, state: Any) -> None:
        """Set the weights and the optimiser state of the replica."""
        if self._replica is None:
            self._learner_state = state
        else:
            self._replica.learner.restore(state)

    def receive(self, reduced: Reduced) -> None:
        """Do with the replica, if there is one yet, what follows from the contributions of all ranks."""
        if self._replica is not None:
            self._replica.receive(reduced)

    def sample(self, *, shard: Shard = injected, number: int = injected) -> Batch:
        """Collect an item of a shard, by its number."""
        settings = self.settings
        collector = self._collector(0 if settings.independent_items else shard.number, shard.number)
        if self._shard_weights:
            self.agent.load(self._shard_weights[shard.number])
        if settings.items_per_task is not None:
            assign = partial(
                assign_tasks, seed=settings.seed, number=number // settings.items_per_task,
                shard=shard.number, num_shards=shard.total,
            )  # fmt: skip
            assign(collector.slots)
            collector.recovery.prepare = assign
        with acting_mode(self.agent):
            if settings.fragment_steps is not None:
                return collector.fragment(settings.fragment_steps, number)
            return collector.episodes(episodes_of_shard(settings, shard.number), number)

    def _collector(self, key: int, shard: int) -> Collector:
        collector = self._collectors.get(key)
        if collector is None:
            collector = self._collectors[key] = self._make_collector(shard)
        collector.shard = shard
        return collector

    def _make_collector(self, shard: int) -> Collector:
        settings = self.settings
        snapshot = self._snapshots.pop(shard, None)
        # Environments that seed themselves must not start with the same episodes again.
        num_made = 0 if snapshot is None or "episode_log" in snapshot else 1 + int(max(snapshot["episode"]))
        make_slots = partial(self._make_slots, shard)
        recovery = Recovery(settings.max_env_failures, make_slots, num_made, self._failure_log)
        slots = recovery.make_slots(lambda _: (f"worker {self.name}, shard {shard}", 0))
        agent, explorer = self._made_for(Spaces(slots.observation_space, slots.action_space))
        collector = Collector(
            slots, agent.actor, seed=settings.seed, shard=shard, worker=self.name, clip_actions=settings.clip_actions,
            keep_network_outputs=isinstance(agent, ActorCritic), recovery=recovery, explorer=explorer,
            keep_terminal_obs=settings.keep_terminal_obs,
        )  # fmt: skip
        collector.reporter = self._reporter
        if snapshot is not None and not collector.resume(snapshot):
            _log.warning("shard %d: environments could not be restored to their saved state; continuing", shard)
        return collector

    def _made_for(self, spaces: Spaces) -> tuple[Agent, Explorer]:
        """Return the agent and the explorer, which are created for the first collector."""
        if self._agent is None or self._explorer is None:
            self._agent, self._explorer = self.settings.make_agent(spaces), self.settings.make_explorer(spaces)
            if self._weights is not None:
                self._agent.load(self._weights)
            self._explorer.set_knobs(self._knobs)
        return self._agent, self._explorer

    def _make_slots(self, shard: int, num_made: int) -> Slots:
        path = [num_made] if num_made else []
        seed = derive_seed(self.settings.seed, Purpose.ENVIRONMENT, shard, *path)
        return make_slots(self.settings.env, self.settings.slots_per_shard, seed)

    def state(self, *, shard: Shard = injected) -> Any:
        """Return the state of a shard's environments, if its next item depends on it."""
        collector = self._collectors.get(shard.number)
        if self.settings.independent_items or collector is None:
            return self._snapshots.get(shard.number)
        return collector.snapshot()

    def restore(self, state: Any, *, shard: Shard = injected) -> None:
        """Restore the environments of a shard to their saved state."""
        self._snapshots[shard.number] = state
        if self.settings.items_per_task is None:  # otherwise they are restored when a task is assigned
            self._collector(shard.number, shard.number)

    def received(self) -> Any:
        """Return copies of the weights and knobs that it was sent last, or None before the first."""
        if self._weights is None:
            return None
        return {"weights": copy_weights(self._weights), "knobs": dict(self._knobs)}

    @property
    def agent(self) -> Agent:
        """The agent; it is created with the first item."""
        assert self._agent is not None, "no item was collected yet"
        return self._agent

    def pid(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    def close(self) -> None:
        """Close the environments."""
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()


def episodes_of_shard(settings: RolloutSettings, shard: int) -> list[int]:
    """Return the number of an item's episodes that each slot of a shard collects. Shards take turns.

    >>> from raceway.agents import make_policy
    >>> env, agent = EnvSettings("cartpole"), lambda spaces: Agent(make_policy(*spaces))
    >>> settings = RolloutSettings(env=env, agent=agent, num_shards=2, slots_per_shard=2, num_episodes=5)
    >>> episodes_of_shard(settings, 0), episodes_of_shard(settings, 1)
    ([2, 1], [1, 1])
    """
    total = settings.num_shards * settings.slots_per_shard
    per_slot, rest = divmod(settings.num_episodes or 0, total)
    return [per_slot + (slot * settings.num_shards + shard < rest) for slot in range(settings.slots_per_shard)]


def parallel_rollouts(workers: Sequence[Actor], settings: RolloutSettings) -> ParIter[Batch]:
    """Return the stream of batches that workers collect. Its shards do not depend on the number of workers."""
    moves = settings.independent_items
    return create(workers, "sample", num_shards=settings.num_shards, seed=settings.seed, moves=moves)
