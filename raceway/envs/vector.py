"""Environments that are vectors by themselves: CartPole's, EnvPool's, and whatever follows Gymnasium's VectorEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from raceway.envs.slots import Array
from raceway.rl.spaces import Tree, fill, row_of

_ALL = slice(None)


class VectorSlots:
    """A `VectorEnv` in whichever of the three modes it resets itself, or does not."""

    def __init__(self, env: VectorEnv) -> None:
        self.env: Any = env
        self.num = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._begun = False
        self._awaits = np.zeros(self.num, bool)  # slots that will be reset by their next step
        self._first: dict[int, Any] = {}  # first observations that came with the last step before

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        if not self._begun or len(slots) == self.num:
            # Most of them take one seed, and make the others' of it.
            several = hasattr(self.env, "envs")
            first, _ = self.env.reset(seed=list(seeds) if several else int(seeds[0]))
            fill(obs, _ALL, first)
            self._begun = True
            self._awaits[:] = False
            self._first.clear()
        elif self.mode is AutoresetMode.DISABLED:
            mask = np.isin(np.arange(self.num), slots)
            all_seeds: list[Any] = [None] * self.num
            for slot, seed in zip(slots, seeds, strict=True):
                all_seeds[slot] = seed
            first, _ = self.env.reset(seed=all_seeds, options={"reset_mask": mask})
            for slot in slots:
                fill(obs, slot, row_of(first, slot))
        elif self.mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                fill(obs, slot, self._first.pop(slot))
        else:
            self._awaits[list(slots)] = True

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        seen, reward[:], ended[0], ended[1], info = self.env.step(actions)
        fill(obs, _ALL, seen)
        if self.mode is AutoresetMode.SAME_STEP:
            for slot in np.flatnonzero(ended.any(0)).tolist():
                self._first[slot] = _copied(row_of(seen, slot))
                fill(obs, slot, info["final_obs"][slot])
        if not self._awaits.any():
            return None
        real, self._awaits = ~self._awaits, np.zeros(self.num, bool)
        return real

    def close(self) -> None:
        self.env.close()


class CartPoleSlots:
    """Gymnasium's vector CartPole, with the resets taken out of its hands: every episode has a seed of its own.

    An episode that begins with a seed is the one that `gym.make("CartPole-v1")` plays with that seed.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.num: int = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        env.reset(seed=0)
        env.action_space = _Anything()  # asking every time whether actions are 0 or 1 takes a tenth of a step

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        env = self.env
        for slot, seed in zip(slots, seeds, strict=True):
            random, _ = seeding.np_random(seed)
            env.state[:, slot] = random.uniform(env.low, env.high, size=4)
            env.steps[slot] = 0
            obs[slot] = env.state[:, slot]

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        env = self.env
        obs[:], reward[:], ended[0], ended[1], _ = env.step(actions)
        env.prev_done[:] = False  # or its next step would reset them

    def close(self) -> None:
        self.env.close()


class _Anything:
    def contains(self, _: object) -> bool:
        return True


class EnvPoolSlots:
    """EnvPool's environments. They are seeded once, when they are made, and step in threads of their own."""

    def __init__(self, env: Any, num: int) -> None:
        self.env, self.num = env, num
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._kind = np.int32 if np.issubdtype(self.action_space.dtype, np.integer) else np.float64

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        first, _ = self.env.reset(np.asarray(slots, np.int32))
        for place, slot in enumerate(slots):
            fill(obs, slot, row_of(first, place))

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        chosen = np.asarray(active, np.int32)
        seen, rewards, terminated, truncated, info = self.env.step(actions[chosen].astype(self._kind), chosen)
        order = info["env_id"]
        fill_rows(obs, order, seen)
        reward[order], ended[0, order], ended[1, order] = rewards, terminated, truncated

    def close(self) -> None:
        self.env.close()


def fill_rows(tree: Tree, rows: Array, values: Any) -> None:
    """Copy many observations into the arrays at these rows."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            fill_rows(part, rows, values[key])
    else:
        tree[rows] = values


def _copied(tree: Tree) -> Tree:
    return {key: _copied(part) for key, part in tree.items()} if isinstance(tree, dict) else np.array(tree)
