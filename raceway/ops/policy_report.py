"""Metrics of several policies: the totals of a run, and beside them those of each policy.

A metric of a policy has the policy's name after the group: `rollout/ep_rew_mean` is the total, the return of all agents
together, and `rollout/pair/ep_rew_mean` that of an agent with the policy `pair`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from raceway.ops.multi_agent import EPISODES
from raceway.ops.report import ReportMetrics, TrainStats
from raceway.rl import Batch
from raceway.rl.episode_info import EPISODE_INFO, concat_episodes
from raceway.state import Stateful

_OF_POLICIES = (
    "time/iterations", "time/total_timesteps", "time/episodes", "rollout/ep_rew_mean", "rollout/ep_len_mean",
)  # fmt: skip
_REWARD_MEAN = "rollout/iteration_rew_mean"


def policy_metric(metric: str, policy: str) -> str:
    """Return the name of a policy's metric.

    >>> policy_metric("train/loss", "pair")
    'train/pair/loss'
    """
    group, _, name = metric.partition("/")
    return f"{group}/{policy}/{name}"


class JointEpisodes(Stateful):
    """Hold the episodes of environments that ended, from rounds of rollouts, until they are reported."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self) -> None:
        self.held: list[Batch] = []

    def __call__(self, round: list[Mapping[str, Batch]]) -> list[Mapping[str, Batch]]:
        """Take the episodes of a round, and return the round."""
        self.held += [item[EPISODES] for item in round]
        return round

    def take(self) -> Batch:
        """Return the episodes since the last call."""
        held, self.held = self.held, []
        columns = {
            name: np.concatenate([np.empty(0), *(part[name] for part in held)])
            for name in ("episode_return", "episode_length", "episode_lost")
        }
        info = concat_episodes(
            [part.get(EPISODE_INFO) for part in held], [len(part["episode_return"]) for part in held]
        )
        return {**columns, EPISODE_INFO: info}


class ReportPolicies(ReportMetrics):
    """Turn the stats of policies into rows of metrics, each with the totals of the run and those of one policy.

    The total of `timesteps` is the number of steps of all agents, and an iteration is one of any policy. An episode is
    one of an environment, and its return that of all agents together.

    Args:
        policies: the names of the policies.
        episodes: holds the episodes that ended.
        options: as for `ReportMetrics`.
    """

    def __init__(self, policies: Sequence[str], episodes: JointEpisodes, **options: Any) -> None:
        self.policies = {name: ReportMetrics() for name in policies}
        self.joint_episodes = episodes
        super().__init__(**options)

    def __call__(self, item: tuple[str, TrainStats]) -> dict[str, Any]:  # type: ignore[override]
        """Return a row of metrics, from a policy's name and stats."""
        name, stats = item
        episodes = self.joint_episodes.take()
        total = TrainStats(
            num_steps=stats.num_steps,
            returns=episodes["episode_return"],
            lengths=episodes["episode_length"],
            metrics={policy_metric(metric, name): value for metric, value in stats.metrics.items()},
            seconds=stats.seconds,
            env_failures=len(episodes["episode_lost"]),
            episode_info=episodes[EPISODE_INFO],
        )
        own = self.policies[name](stats)
        row = super().__call__(total)
        row |= {policy_metric(metric, name): own[metric] for metric in _OF_POLICIES}
        if own[_REWARD_MEAN] is not None:
            metric = policy_metric(_REWARD_MEAN, name)
            row[metric] = own[_REWARD_MEAN]
            row["counts"] = {**row.get("counts", {}), metric: len(stats.returns)}
        return row

    def state(self) -> Any:
        """Return the state to resume from."""
        return {**super().state(), "policies": {name: report.state() for name, report in self.policies.items()}}

    def restore(self, state: Any) -> None:
        """Resume from a state."""
        super().restore(state)
        for name, report in self.policies.items():
            report.restore(state["policies"][name])
