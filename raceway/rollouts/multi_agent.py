"""Playing with several agents: each policy gets fragments as it would from environments of its own.

An agent of an environment has a slot of its policy. The steps in which it is not there are not `valid`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.agents import Policy
from raceway.envs import Purpose, seed_of, seed_of_episode
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.envs.slots import converter
from raceway.errors import EnvironmentFailed
from raceway.rl import Batch, empty, fill, row_of, tree_map

Array = np.ndarray


class _Part:
    """The slots of one policy, and what was played in them."""

    def __init__(self, policy: Policy, spaces: tuple[Any, Any], slots: list[tuple[int, str]], rows: int) -> None:
        self.policy, self.slots = policy, slots
        num = len(slots)
        self.place = {slot: place for place, slot in enumerate(slots)}
        self.convert = converter(spaces[1])
        self.obs: Any = empty(spaces[0], (rows + 1, num))
        self.action: Array = empty(spaces[1], (rows, num))
        self.reward = np.zeros((rows, num), np.float32)
        self.ended = np.zeros((rows, 2, num), bool)
        self.valid = np.zeros((rows, num), bool)
        self.present = np.zeros(num, bool)  # who acts next
        self.sums = np.zeros((2, num))  # rewards and steps of the episodes that are under way
        self.final: list[tuple[int, int, Any]] = []
        self.over: list[Array] = []

    def begin(self, random: np.random.Generator) -> None:
        self.actor = self.policy.actor(random)
        self.final.clear()
        self.over.clear()
        for part in (self.reward, self.ended, self.valid):
            part[:] = 0

    def act(self, now: int) -> Any:
        actions, _ = self.actor(row_of(self.obs, now), {})
        self.action[now], self.valid[now] = actions, self.present
        return self.convert(actions)

    def note(self, now: int, slot: tuple[int, str], reward: Any, terminated: bool, truncated: bool, seen: Any) -> None:
        """Take in what an agent's step brought."""
        place = self.place[slot]
        self.reward[now, place], self.ended[now, :, place] = reward, (terminated, truncated)
        self.sums[:, place] += reward, 1
        if seen is not None:
            fill(row_of(self.obs, now + 1), place, seen)
        if terminated or truncated:
            self.over.append(self.sums[:, place].copy())
            self.sums[:, place] = 0
            if truncated:
                self.final.append((now, place, tree_map(np.copy, row_of(self.obs, (now + 1, place)))))

    def arrive(self, now: int, slot: tuple[int, str], seen: Any) -> None:
        """Have an agent there that acts next."""
        fill(row_of(self.obs, now), self.place[slot], seen)
        self.present[self.place[slot]] = True

    def fragment(self, num_steps: int) -> Batch:
        """Return what was played."""
        final = [seen for _, _, seen in sorted(self.final, key=lambda one: one[:2])]
        none = row_of(self.obs, (slice(0, 0), 0))
        table = np.array(self.over, float).reshape(-1, 2)
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
            "final_obs": tree_map(lambda *parts: np.stack(parts), *final) if final else tree_map(np.copy, none),
            "episode_return": table[:, 0],
            "episode_length": table[:, 1].astype(np.int64),
        }


class MultiCollector:
    """Plays fragments in several environments, each with agents that may come and go.

    Every episode has a seed of its own, and a fragment's random numbers come from its number, as in `Collector`.
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
        agents = settings.agents(self.envs[0])
        self.policy_of = {agent: policy for policy, many in agents.items() for agent in many}
        self.parts: dict[str, _Part] = {}
        for policy, many in agents.items():
            spaces = self.envs[0].observation_space(many[0]), self.envs[0].action_space(many[0])
            slots = [(number, agent) for number in range(num_envs) for agent in many]
            self.parts[policy] = _Part(policies[policy], spaces, slots, num_steps)
        self.episode = np.zeros(num_envs, np.int64)
        self._begun = False

    def fragment(self, number: int = 0) -> dict[str, Batch]:
        """Play on for so many steps, and return a fragment for every policy."""
        for place, part in enumerate(self.parts.values()):
            part.begin(np.random.default_rng(seed_of(self.seed, Purpose.ACTIONS, self.shard, number, place)))
        if not self._begun:
            self._begun = True
            for slot in range(len(self.envs)):
                self._reset(slot, 0)
        for now in range(self.num_steps):
            actions = {policy: part.act(now) for policy, part in self.parts.items()}
            for part in self.parts.values():
                part.present[:] = False
            for slot in range(len(self.envs)):
                self._step(slot, now, actions)
        made = {policy: part.fragment(self.num_steps) for policy, part in self.parts.items()}
        self._check(made)
        return made

    def _part(self, agent: str) -> _Part:
        return self.parts[self.policy_of[agent]]

    def _reset(self, slot: int, row: int) -> None:
        seed = seed_of_episode(self.seed, self.shard, slot, int(self.episode[slot]))
        try:
            seen, _ = self.envs[slot].reset(seed=seed)
            for agent in self.envs[slot].agents:
                self._part(agent).arrive(row, (slot, agent), seen[agent])
        except Exception as error:
            raise self._failure("reset", slot, error) from error

    def _step(self, slot: int, now: int, actions: Mapping[str, Any]) -> None:
        env, given = self.envs[slot], {}
        acted = list(env.agents)
        for agent in acted:
            policy = self.policy_of[agent]
            given[agent] = actions[policy][self.parts[policy].place[slot, agent]]
        try:
            seen, reward, terminated, truncated, _ = env.step(given)
            there = set(env.agents)
            for agent in acted:
                ends, cut = bool(terminated[agent]), bool(truncated[agent])
                gone = agent not in there and not (ends or cut)  # without a word: cut short
                self._part(agent).note(now, (slot, agent), reward[agent], ends, cut or gone, seen.get(agent))
            for agent in there:
                ended = agent in acted and (terminated[agent] or truncated[agent])
                if not ended:
                    self._part(agent).arrive(now + 1, (slot, agent), seen[agent])
        except Exception as error:
            raise self._failure("step", slot, error) from error
        if not there:
            self.episode[slot] += 1
            self._reset(slot, now + 1)

    def _check(self, made: Mapping[str, Batch]) -> None:
        """Refuse what is not finite."""
        for policy, batch in made.items():
            bad = np.argwhere(~np.isfinite(batch["reward"]) & batch["valid"])
            if len(bad):
                slot, agent = self.parts[policy].slots[bad[0][1]]
                value = batch["reward"][tuple(bad[0])]
                raise EnvironmentFailed(f"a step gave {agent} a reward of {value}", slot, f"shard {self.shard}")

    def _failure(self, verb: str, slot: int, error: Exception) -> EnvironmentFailed:
        problem = f"{verb} of the environment raised {type(error).__name__}: {error}"
        return EnvironmentFailed(problem, slot, f"shard {self.shard}, episode {self.episode[slot]}")

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()
