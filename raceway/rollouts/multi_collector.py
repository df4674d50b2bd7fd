"""Collecting with several agents: each policy gets the same kind of fragments as from single-agent environments.

Every agent of every environment has a slot of its policy, ordered by environment and then by agent. All agents of a
parallel environment act at once, and steps in which an agent is absent are not `valid`; see `parallel_rollout`. In a
turn-based one a step lasts until the agent's next turn; see `turn_based_rollout`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from raceway.agents import Explorer, Policy
from raceway.agents.policy import ActingFunction
from raceway.envs.multi_agent import MultiAgentSettings, agent_spaces, is_turn_based
from raceway.errors import INTERRUPTS, EnvironmentFailed
from raceway.rl import Batch, tree_map
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rollouts.multi_envs import MultiEnvs
from raceway.rollouts.parallel_rollout import ParallelRollout, ParallelRows
from raceway.rollouts.recovery import ItemLost, Recovery
from raceway.rollouts.turn_based_rollout import TurnBasedRollout
from raceway.rollouts.turn_rows import TurnRows

Array = np.ndarray

_log = logging.getLogger(__name__)


class MultiCollector:
    """Collects fragments in several environments whose agents may come and go, or take turns.

    Every episode has its own seed, and a fragment's random numbers are derived from its number, as in `Collector`. If
    an environment fails, it is rebuilt, its episode is dropped, and another begins; see `Recovery`.

    Args:
        settings: makes the environments, and maps agents to policies.
        num_envs: the number of environments that are stepped together.
        policies: the policies by name.
        num_steps: the number of rows of a fragment.
        seed: the seed of the run.
        shard: the number of the shard.
        worker: the name of the worker, for errors.
        clip_actions: the policies whose actions environments get clipped to their bounds.
        recovery: the failure budget; by default the first failure is raised.
        explorers: how each policy's actions are chosen; by default they are sampled.
    """

    def __init__(
        self,
        settings: MultiAgentSettings,
        num_envs: int,
        policies: Mapping[str, Policy],
        num_steps: int,
        *,
        seed: int,
        shard: int,
        worker: str = "",
        clip_actions: Collection[str] = (),
        recovery: Recovery | None = None,
        explorers: Mapping[str, Explorer] | None = None,
    ) -> None:
        self.seed, self.shard, self.num_steps = seed, shard, num_steps
        self._explorers = explorers or {}
        self.envs = MultiEnvs(settings, num_envs, seed=seed, shard=shard, worker=worker, recovery=recovery)
        first = self.envs.envs[0]
        turn_based, rows = is_turn_based(first), dict[str, Any]()
        for policy, agents in settings.agents_by_policy(first).items():
            slots = [(number, agent) for number in range(num_envs) for agent in agents]
            rows[policy] = (TurnRows if turn_based else ParallelRows)(
                policies[policy], agent_spaces(first, agents[0]), slots, num_steps, policy in clip_actions
            )
        self.episodes: Batch = {}
        """The episodes of environments that ended in the last fragment, with the returns of all agents together."""
        self.rows = rows
        """The slots of every policy, and their arrays."""
        self._rollout = (TurnBasedRollout if turn_based else ParallelRollout)(self.envs, rows, num_steps)
        self._discarded = False  # whether episodes that earlier fragments left open were dropped

    def fragment(self, number: int = 0) -> dict[str, Batch]:
        """Continue all environments, and return a fragment for every policy.

        Args:
            number: the number of the call, from which its random numbers are derived.

        Returns:
            For every policy the columns that `Collector.fragment` returns, always with `valid`, and:

            - `agent`, the number of every slot's agent among those with the policy, [B];
            - `global_state`, [T, E, ...], `last_global_state`, [E, ...], and `final_global_state`, the states that go
              with `final_obs`, if they are collected;
            - `num_turns`, [B], of turn-based environments: the number of steps of every slot, which are its last rows.
              See `rl.turns`.
        """
        while True:
            failures_before = self.envs.recovery.consecutive_failures
            try:
                return self._collect(number)
            except ItemLost as lost:
                self._discard()
                self.envs.forget_ended()
                self.envs.recovery.consecutive_failures = failures_before  # the episodes that ended since are lost too
                self.envs.recovery.record_failure(lost, lost.place, lost.steps)
                self.envs.rebuild(lost.slot)
                self.envs.episode += 1
            except EnvironmentFailed:
                self._discard()
                raise

    def _collect(self, number: int) -> dict[str, Batch]:
        for index, (policy, rows) in enumerate(self.rows.items()):
            seed = derive_seed(self.seed, Purpose.ACTIONS, self.shard, number, index)
            rows.begin_fragment(self._acting(policy, rows, np.random.default_rng(seed), number * self.num_steps))
        batches = self._rollout.collect()
        self._check_finite(batches)
        lost = self.envs.recovery.take_lost_episodes()
        for policy, batch in batches.items():
            batch |= {"agent": self.rows[policy].agent.copy(), **lost}
            if self._discarded:
                batch["restarted"] = np.ones(self.rows[policy].num, bool)
        self._discarded = False
        self.episodes = self.envs.take_ended() | lost
        return batches

    def _acting(self, policy: str, rows: Any, random: np.random.Generator, first_step: int) -> ActingFunction:
        """Return the function that acts in the slots of a policy during a fragment."""
        explorer = self._explorers.get(policy)
        if explorer is not None:
            explorer = explorer.for_slots(rows.num, self.shard * rows.num)
        return rows.policy.acting(random, explorer, first_step)

    def _discard(self) -> None:
        self._discarded = True
        self._rollout.discard()

    def _check_finite(self, batches: Mapping[str, Batch]) -> None:
        """Raise `ItemLost` if a reward or observation is not finite."""
        for policy, batch in batches.items():
            slots = self.rows[policy].slots
            truncated = [slots[index] for index in np.nonzero(batch["truncated"])[1]]
            self._check_column("a reward", batch["reward"], slots, batch["valid"])
            for name, columns, of_slots in (("obs", 2, slots), ("last_obs", 1, slots), ("final_obs", 1, truncated)):
                parts: list[Array] = []
                tree_map(parts.append, batch[name])
                for part in parts:
                    rows, mask = (part, batch["valid"]) if columns == 2 else (part[None], True)
                    self._check_column("an observation", rows, of_slots, mask)

    def _check_column(self, kind: str, rows: Array, slots: list[tuple[int, str]], mask: Any) -> None:
        """Raise `ItemLost` for the first value of a column, [T, B, ...], within the mask that is not finite."""
        if rows.dtype.kind != "f" or np.isfinite(rows).all():
            return
        bad = np.argwhere(~np.isfinite(rows).reshape(*rows.shape[:2], -1).all(-1) & mask)
        if len(bad):
            row, index = bad[0]
            slot, agent = slots[index]
            value = rows[row, index]
            problem = f"a step gave {agent} {kind} of {value.ravel()[:8].tolist() if value.ndim else value}"
            place, steps = self.envs.locate(slot), self.envs.steps[slot]
            raise ItemLost.at(problem, f"{kind} that is not finite", slot, place, steps)

    def snapshot(self) -> Any:
        """Return the state to `resume` from, as plain data."""
        return {"envs": self.envs.state(), "rollout": self._rollout.state(), "discarded": self._discarded}

    def resume(self, snapshot: Any) -> bool:
        """Resume from a snapshot, with fresh environments; return whether their exact state was restored.

        If they cannot be restored, new episodes begin.
        """
        self._discarded = bool(snapshot["discarded"])
        if self.envs.restore(snapshot["envs"], self._rollout):
            try:
                if self._rollout.restore(snapshot["rollout"]):
                    return True
            except INTERRUPTS:
                raise
            except Exception as error:  # they do not behave as they did
                _log.warning("restoring the environments of shard %d raised %r", self.shard, error)
            self.envs.rebuild_all()
        self._discard()
        return False

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
