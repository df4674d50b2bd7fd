"""Collecting with several agents: each policy gets the same kind of fragments as from single-agent environments.

Every agent of every environment has a slot of its policy. Steps in which an agent is absent are not `valid`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.agents import Policy
from raceway.envs.env_vector import action_converter
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import INTERRUPTS, EnvironmentFailed
from raceway.rl import Batch, empty, fill, row_of, tree_map
from raceway.rl.seeding import Purpose, derive_seed, episode_seed

Array = np.ndarray


class _PolicyArrays:
    """The slots of one policy, and the arrays that their steps are written into."""

    def __init__(self, policy: Policy, spaces: tuple[Any, Any], slots: list[tuple[int, str]], rows: int) -> None:
        self.policy, self.slots = policy, slots
        num = len(slots)
        self.index = {slot: index for index, slot in enumerate(slots)}
        self.convert = action_converter(spaces[1])
        self.obs: Any = empty(spaces[0], (rows + 1, num))
        self.action: Array = empty(spaces[1], (rows, num))
        self.reward = np.zeros((rows, num), np.float32)
        self.ended = np.zeros((rows, 2, num), bool)
        self.valid = np.zeros((rows, num), bool)
        self.present = np.zeros(num, bool)  # the agents that act next
        self.totals = np.zeros((2, num))  # return and length so far of open episodes
        self.final: list[tuple[int, int, Any]] = []  # row, index, and last observation of truncated episodes
        self.ended_totals: list[Array] = []

    def begin_fragment(self, random: np.random.Generator) -> None:
        self.actor = self.policy.actor(random)
        self.final.clear()
        self.ended_totals.clear()
        for part in (self.reward, self.ended, self.valid):
            part[:] = 0

    def select_actions(self, row: int) -> Any:
        actions, _ = self.actor(row_of(self.obs, row), {})
        self.action[row], self.valid[row] = actions, self.present
        return self.convert(actions)

    def add_step(
        self, row: int, slot: tuple[int, str], reward: Any, terminated: bool, truncated: bool, obs: Any
    ) -> None:
        """Record the step of an agent."""
        index = self.index[slot]
        self.reward[row, index], self.ended[row, :, index] = reward, (terminated, truncated)
        self.totals[:, index] += reward, 1
        if obs is not None:
            fill(row_of(self.obs, row + 1), index, obs)
        if terminated or truncated:
            self.ended_totals.append(self.totals[:, index].copy())
            self.totals[:, index] = 0
            if truncated:
                self.final.append((row, index, tree_map(np.copy, row_of(self.obs, (row + 1, index)))))

    def set_present(self, row: int, slot: tuple[int, str], obs: Any) -> None:
        """Record the observation that an agent acts on next."""
        fill(row_of(self.obs, row), self.index[slot], obs)
        self.present[self.index[slot]] = True

    def fragment(self, num_steps: int) -> Batch:
        """Return the recorded steps as a fragment."""
        final = [obs for _, _, obs in sorted(self.final, key=lambda entry: entry[:2])]
        no_obs = row_of(self.obs, (slice(0, 0), 0))
        table = np.array(self.ended_totals, float).reshape(-1, 2)
        columns = {
            "obs": row_of(self.obs, slice(0, num_steps)),
            "action": self.action,
            "reward": self.reward,
            "terminated": self.ended[:, 0],
            "truncated": self.ended[:, 1],
            "valid": self.valid,
            "last_obs": row_of(self.obs, num_steps),
        }
        batch: Batch = tree_map(np.copy, columns)
        tree_map(lambda rows: np.copyto(rows[0], rows[num_steps]), self.obs)
        return {
            **batch,
            "final_obs": tree_map(lambda *parts: np.stack(parts), *final) if final else tree_map(np.copy, no_obs),
            "episode_return": table[:, 0],
            "episode_length": table[:, 1].astype(np.int64),
        }


class MultiCollector:
    """Collects fragments in several environments whose agents may come and go.

    Every episode has its own seed, and a fragment's random numbers are derived from its number, as in `Collector`.
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
    ) -> None:
        self.num_steps, self.seed, self.shard = num_steps, seed, shard
        self.envs = [settings.make() for _ in range(num_envs)]
        agents_by_policy = settings.agents_by_policy(self.envs[0])
        self.policy_of = {agent: policy for policy, agents in agents_by_policy.items() for agent in agents}
        self.arrays: dict[str, _PolicyArrays] = {}
        for policy, agents in agents_by_policy.items():
            spaces = self.envs[0].observation_space(agents[0]), self.envs[0].action_space(agents[0])
            slots = [(number, agent) for number in range(num_envs) for agent in agents]
            self.arrays[policy] = _PolicyArrays(policies[policy], spaces, slots, num_steps)
        self.episode = np.zeros(num_envs, np.int64)
        self._started = False

    def fragment(self, number: int = 0) -> dict[str, Batch]:
        """Continue for `num_steps` steps, and return a fragment for every policy."""
        for index, arrays in enumerate(self.arrays.values()):
            seed = derive_seed(self.seed, Purpose.ACTIONS, self.shard, number, index)
            arrays.begin_fragment(np.random.default_rng(seed))
        if not self._started:
            self._started = True
            for slot in range(len(self.envs)):
                self._reset(slot, 0)
        for row in range(self.num_steps):
            actions = {policy: arrays.select_actions(row) for policy, arrays in self.arrays.items()}
            for arrays in self.arrays.values():
                arrays.present[:] = False
            for slot in range(len(self.envs)):
                self._step(slot, row, actions)
        batches = {policy: arrays.fragment(self.num_steps) for policy, arrays in self.arrays.items()}
        self._check_finite(batches)
        return batches

    def _arrays_of(self, agent: str) -> _PolicyArrays:
        return self.arrays[self.policy_of[agent]]

    def _reset(self, slot: int, row: int) -> None:
        seed = episode_seed(self.seed, self.shard, slot, int(self.episode[slot]))
        try:
            obs, _ = self.envs[slot].reset(seed=seed)
            for agent in self.envs[slot].agents:
                self._arrays_of(agent).set_present(row, (slot, agent), obs[agent])
        except Exception as error:
            raise self._failure("reset", slot, error) from error

    def _step(self, slot: int, row: int, actions: Mapping[str, Any]) -> None:
        env, env_actions = self.envs[slot], {}
        acted = list(env.agents)
        for agent in acted:
            policy = self.policy_of[agent]
            env_actions[agent] = actions[policy][self.arrays[policy].index[slot, agent]]
        try:
            obs, reward, terminated, truncated, _ = env.step(env_actions)
            remaining = set(env.agents)
            for agent in acted:
                is_terminated, is_truncated = bool(terminated[agent]), bool(truncated[agent])
                vanished = agent not in remaining and not (is_terminated or is_truncated)  # counts as truncated
                self._arrays_of(agent).add_step(
                    row, (slot, agent), reward[agent], is_terminated, is_truncated or vanished, obs.get(agent)
                )
            for agent in remaining:
                ended = agent in acted and (terminated[agent] or truncated[agent])
                if not ended:
                    self._arrays_of(agent).set_present(row + 1, (slot, agent), obs[agent])
        except Exception as error:
            raise self._failure("step", slot, error) from error
        if not remaining:
            self.episode[slot] += 1
            self._reset(slot, row + 1)

    def _check_finite(self, batches: Mapping[str, Batch]) -> None:
        """Raise if a reward is not finite."""
        for policy, batch in batches.items():
            bad = np.argwhere(~np.isfinite(batch["reward"]) & batch["valid"])
            if len(bad):
                slot, agent = self.arrays[policy].slots[bad[0][1]]
                value = batch["reward"][tuple(bad[0])]
                raise EnvironmentFailed(f"a step gave {agent} a reward of {value}", slot, f"shard {self.shard}")

    def _failure(self, verb: str, slot: int, error: Exception) -> EnvironmentFailed:
        if isinstance(error, INTERRUPTS):
            raise error
        problem = f"environment {verb} raised {type(error).__name__}: {error}"
        return EnvironmentFailed(problem, slot, f"shard {self.shard}, episode {self.episode[slot]}")

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()
