"""Multi-agent training: workers that act for all agents, and what the plans of several policies need of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from raceway.agents import Agent, Explorer, Knobs, Spaces, Weights, copy_weights
from raceway.agents.modes import acting_mode
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.flow import Shard, injected
from raceway.ops.rollouts import RolloutSettings
from raceway.rl import Batch, concat, row_of, tree_map
from raceway.rollouts.episode_reports import EpisodeCallbacks, EpisodeReporter
from raceway.rollouts.multi_collector import MultiCollector
from raceway.rollouts.recovery import FailureLog, Recovery
from raceway.state import Stateful

_log = logging.getLogger(__name__)

EPISODES = "/episodes"
"""The entry of an item with the episodes of environments that ended; the other entries are the batches of policies."""


@dataclass(frozen=True, kw_only=True)
class MultiRolloutSettings:
    """The environment and policies of multi-agent rollouts, and how they are collected."""

    env: MultiAgentSettings
    num_shards: int
    slots_per_shard: int
    """Environments that are stepped together."""
    fragment_steps: int
    policies: Mapping[str, RolloutSettings]
    """How each policy is created, and whether its actions are clipped."""
    seed: int = 0
    info_keys: tuple[str, ...] = ()
    """Entries of the infos of an episode's last step that are reported."""
    episode_callbacks: EpisodeCallbacks | None = None
    """Callbacks that are called at the end of every episode."""
    max_env_failures: int = 10
    """Failures of a shard's environments that are tolerated with no episode ended in between; see `Recovery`."""

    def make_agents(self, seed: int = 0) -> dict[str, Agent]:
        """Create the agents, by the names of the policies."""
        spaces = self.env.spaces()
        policies = enumerate(sorted(self.policies.items()))
        return {name: settings.make_agent(Spaces(*spaces[name]), seed + index) for index, (name, settings) in policies}

    def make_explorers(self) -> dict[str, Explorer]:
        """Create the explorers, by the names of the policies."""
        spaces = self.env.spaces()
        return {name: settings.make_explorer(Spaces(*spaces[name])) for name, settings in self.policies.items()}


@dataclass(frozen=True)
class PolicyOnWorker:
    """What the operators of one policy see of a worker."""

    agent: Agent
    """With the weights that the worker was sent last."""


class MultiRolloutWorker:
    """Collects rollouts in the environments of some shards, with the newest weights of each policy."""

    def __init__(self, settings: MultiRolloutSettings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self.agents, self.explorers = settings.make_agents(), settings.make_explorers()
        self._collectors: dict[int, MultiCollector] = {}
        self._snapshots: dict[int, Any] = {}  # of shards whose collector is not created yet
        self._failure_log = FailureLog()
        callbacks = settings.episode_callbacks
        loaded, token = (callbacks.load(), callbacks.token) if callbacks is not None else ([], "")
        self._reporter = EpisodeReporter(settings.info_keys, loaded, token)
        self._weights: dict[str, Weights] = {}  # of the latest message for each policy

    def set_weights(self, weights: Weights, policy: str, knobs: Knobs | None = None) -> None:
        """Set the weights of a policy, and knobs of its exploration, from the next item on."""
        self._weights[policy] = weights
        self.agents[policy].load(weights)
        self.explorers[policy].set_knobs(knobs or {})

    def received(self, policy: str) -> Any:
        """Return copies of the weights and knobs that it was sent last for a policy, or None before the first."""
        if policy not in self._weights:
            return None
        knobs = {name: value.copy() for name, value in self.explorers[policy].knobs.items()}
        return {"weights": copy_weights(self._weights[policy]), "knobs": knobs}

    def of_policy(self, policy: str) -> PolicyOnWorker:
        """Return what the operators of a policy see."""
        return PolicyOnWorker(self.agents[policy])

    def sample(self, *, shard: Shard = injected, number: int = injected) -> dict[str, Batch]:
        """Collect an item of a shard, by its number: a fragment for every policy, and the `EPISODES` that ended."""
        collector = self._collector(shard.number)
        with ExitStack() as stack:
            for agent in self.agents.values():
                stack.enter_context(acting_mode(agent))
            return {**collector.fragment(number), EPISODES: collector.episodes}

    def _collector(self, shard: int) -> MultiCollector:
        collector = self._collectors.get(shard)
        if collector is None:
            settings = self.settings
            collector = self._collectors[shard] = MultiCollector(
                settings.env, settings.slots_per_shard, {name: agent.actor for name, agent in self.agents.items()},
                settings.fragment_steps, seed=settings.seed, shard=shard, worker=self.name, explorers=self.explorers,
                clip_actions=[name for name, policy in settings.policies.items() if policy.clip_actions],
                recovery=Recovery(settings.max_env_failures, log=self._failure_log),
            )  # fmt: skip
            collector.envs.reporter = self._reporter
            snapshot = self._snapshots.pop(shard, None)
            if snapshot is not None and not collector.resume(snapshot):
                _log.warning("shard %d: environments could not be restored to their saved state; continuing", shard)
        return collector

    def state(self, *, shard: Shard = injected) -> Any:
        """Return the state of a shard's environments, on which its next item depends."""
        collector = self._collectors.get(shard.number)
        return self._snapshots.get(shard.number) if collector is None else collector.snapshot()

    def restore(self, state: Any, *, shard: Shard = injected) -> None:
        """Restore the environments of a shard to their saved state."""
        previous = self._collectors.pop(shard.number, None)
        if previous is not None:
            previous.close()
        self._snapshots[shard.number] = state
        self._collector(shard.number)

    def pid(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    def close(self) -> None:
        """Close the environments."""
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()


def policy_on_worker(worker: MultiRolloutWorker, policy: str) -> PolicyOnWorker:
    """Return what the operators of a policy see of a worker."""
    return worker.of_policy(policy)


class WholeEpisodes(Stateful):
    """Turn fragments into batches of whole episodes, for algorithms that learn from these. For `flat_map`, on shards.

    An episode that spans several fragments may have been acted in with several versions of the weights.

    Args:
        num_episodes: the number of episodes of a batch, at least.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("open", "complete", "lost")

    def __init__(self, num_episodes: int) -> None:
        self.num_episodes = num_episodes
        self.open: dict[int, list[Batch]] = {}
        """Parts of the episodes that have not ended, by slot."""
        self.complete: list[Batch] = []
        self.lost: list[int] = []

    def __call__(self, fragment: Batch) -> list[Batch]:
        """Return a batch if there are enough episodes; otherwise none."""
        self.lost += fragment.get("episode_lost", np.empty(0, np.int64)).tolist()
        if "restarted" in fragment:
            for slot in np.flatnonzero(fragment["restarted"]).tolist():
                self.open.pop(slot, None)
        ended = fragment["terminated"] | fragment["truncated"]
        for slot in range(ended.shape[1]):
            self._add_slot(fragment, slot, np.flatnonzero(fragment["valid"][:, slot]), ended[:, slot])
        if len(self.complete) < self.num_episodes:
            return []
        episodes, self.complete = self.complete, []
        lost, self.lost = self.lost, []
        return [{**concat(episodes), "episode_lost": np.array(lost, np.int64)}]

    def _add_slot(self, fragment: Batch, slot: int, rows: np.ndarray, ended: np.ndarray) -> None:
        """Add the steps of a slot."""
        cuts = np.split(rows, np.flatnonzero(ended[rows]) + 1)
        for part in [part for part in cuts if len(part)]:
            columns = {name: tree_map(np.copy, row_of(fragment[name], (part, slot))) for name in _EPISODE_STEPS}
            self.open.setdefault(slot, []).append(columns)
            if ended[part[-1]]:
                episode = concat(self.open.pop(slot))
                self.complete.append({**episode, "length": np.array([len(episode["reward"])])})


_EPISODE_STEPS = ("obs", "action", "reward")
