"""Environments that are vectors by themselves: CartPole's, EnvPool's, and whatever follows Gymnasium's VectorEnv."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from raceway.envs.slots import SOME_SLOT, Array, Score, close, failed
from raceway.rl.spaces import Tree, fill, row_of

_ALL = slice(None)


class VectorSlots:
    """A `VectorEnv` in whichever of the three modes it resets itself, or does not."""

    repeats = recalls = False  # most make further seeds of the first
    scores: list[Score] | None = None

    def __init__(self, env: VectorEnv) -> None:
        self.env: Any = env
        self.num = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._begun = False
        self._active: Sequence[int] = ()  # the slots whose last step counted
        self._over = np.zeros(self.num, bool)  # slots that are at the end of an episode
        self._awaits = np.zeros(self.num, bool)  # slots that will be reset by their next step
        self._first: dict[int, Any] = {}  # first observations that came with the last step before

    def anew(self, slot: int) -> bool:
        return False

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        told: list[Any] = [None] * self.num
        for slot, seed in zip(slots, seeds, strict=True):
            told[slot] = seed
        try:
            self._reset(list(slots), told, obs)
        except (Exception, SystemExit) as error:
            raise failed(SOME_SLOT, "reset", error) from error
        self._over[list(slots)] = False

    def _reset(self, slots: list[int], seeds: list[Any], obs: Tree) -> None:
        if self._none_goes_on(slots):
            # Most of them take one seed, and make the others' of it.
            first, _ = self.env.reset(seed=seeds if hasattr(self.env, "envs") else int(seeds[slots[0]]))
            fill(obs, _ALL, first)
            self._begun = True
            self._awaits[:] = self._over[:] = False
            self._first.clear()
        elif self.mode is AutoresetMode.DISABLED:
            first = self._reset_masked(np.isin(np.arange(self.num), slots), seeds)
            for slot in slots:
                fill(obs, slot, row_of(first, slot))
        elif self.mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                fill(obs, slot, self._first.pop(slot))
        else:
            self._awaits[slots] = True

    def _none_goes_on(self, slots: Sequence[int]) -> bool:
        """Whether all environments can be reset at once, with seeds: what the others play does not count."""
        others = [slot for slot in self._active if slot not in slots and not self._over[slot]]
        return not self._begun or not others or not self._over[list(slots)].all()

    def _reset_masked(self, mask: Array, seeds: list[Any]) -> Any:
        return self.env.reset(seed=seeds, options={"reset_mask": mask})[0]

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        try:
            if self.mode is AutoresetMode.DISABLED and self._over.any():
                # Slots that play no more are stepped all the same, which none at its end may be.
                self._reset_masked(self._over, [None] * self.num)
            seen, reward[:], ended[0], ended[1], info = self.env.step(actions)
            fill(obs, _ALL, seen)
            self._active, self._over = active, ended[0] | ended[1]
            if self.mode is AutoresetMode.SAME_STEP:
                for slot in np.flatnonzero(self._over).tolist():
                    self._first[slot] = _copied(row_of(seen, slot))
                    fill(obs, slot, info["final_obs"][slot])
        except (Exception, SystemExit) as error:
            raise failed(SOME_SLOT, "step", error) from error
        if self.mode is not AutoresetMode.NEXT_STEP:
            return None
        real, self._awaits = ~self._awaits, np.zeros(self.num, bool)
        return real

    def close(self) -> None:
        close(self.env)


class CartPoleSlots:
    """Gymnasium's vector CartPole, with the resets taken out of its hands: every episode has a seed of its own.

    An episode that begins with a seed is the one that `gym.make("CartPole-v1")` plays with that seed.
    """

    repeats = recalls = True
    scores: list[Score] | None = None

    def __init__(self, env: Any) -> None:
        self.env = env
        self.num: int = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        env.reset(seed=0)
        env.action_space = _Anything()  # asking every time whether actions are 0 or 1 takes a tenth of a step

    def anew(self, slot: int) -> bool:
        return True

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
        close(self.env)


class _Anything:
    def contains(self, _: object) -> bool:
        return True


class EnvPoolSlots:
    """EnvPool's environments. They are seeded once, when they are made, and step in threads of their own."""

    repeats = recalls = False
    scores: list[Score] | None = None

    def __init__(self, env: Any, num: int) -> None:
        self.env, self.num = env, num
        with warnings.catch_warnings():  # its spaces have bounds of another precision than they say
            warnings.filterwarnings("ignore", message=".*precision lowered")
            self.observation_space, self.action_space = env.observation_space, env.action_space
        self._kind = np.int32 if np.issubdtype(self.action_space.dtype, np.integer) else np.float64

    def anew(self, slot: int) -> bool:
        return False

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        try:
            first, _ = self.env.reset(np.asarray(slots, np.int32))
            for place, slot in enumerate(slots):
                fill(obs, slot, row_of(first, place))
        except (Exception, SystemExit) as error:
            raise failed(SOME_SLOT, "reset", error) from error

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        self._step(actions, active, obs, reward, ended)

    def _step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> dict[str, Any]:
        """Step, and return what else is told."""
        chosen = np.asarray(active, np.int32)
        try:
            seen, rewards, terminated, truncated, info = self.env.step(actions[chosen].astype(self._kind), chosen)
            order = info["env_id"]
            fill_rows(obs, order, seen)
            reward[order], ended[0, order], ended[1, order] = rewards, terminated, truncated
        except (Exception, SystemExit) as error:
            raise failed(SOME_SLOT, "step", error) from error
        return info

    def close(self) -> None:
        close(self.env)


class EnvPoolAtariSlots(EnvPoolSlots):
    """EnvPool's Atari games, in which an episode may be a life.

    What was seen before a life was lost stays in the observation, for as long as that reaches back.
    """

    def __init__(self, env: Any, num: int, *, ends_by_life: bool, fires: bool) -> None:
        super().__init__(env, num)
        self.ends_by_life, self.fires = ends_by_life, fires
        self.scores: list[Score] | None = []
        self._lives, self._lost = np.zeros(num, np.int64), np.zeros(num, bool)
        self._score, self._steps = np.zeros(num), np.zeros(num, np.int64)

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        on = [slot for slot in slots if self._lost[slot]]
        if on:
            ended, actions = np.zeros((2, self.num), bool), np.full(self.num, int(self.fires))
            self._note(self._step(actions, on, obs, np.zeros(self.num), ended), ended)
            on = [slot for slot in on if not ended[:, slot].any()]
        new = [slot for slot in slots if slot not in on]
        if new:
            super().reset(new, seeds, obs)
        self._lives[new] = self._score[new] = self._steps[new] = 0
        self._lost[list(slots)] = False

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        order = self._note(self._step(actions, active, obs, reward, ended), ended)
        ended[0, order] |= self._lost[order]

    def _note(self, info: dict[str, Any], ended: Array) -> Array:
        """Add up what games bring, and see which have lost a life and go on. Return which there are."""
        order, lives = info["env_id"], info["lives"]
        self._score[order] += info["reward"]  # as it is, also if the other is clipped
        self._steps[order] += 1
        over = ended[:, order].any(0)
        assert self.scores is not None
        for slot in order[over].tolist():
            self.scores.append(Score(slot, float(self._score[slot]), int(self._steps[slot])))
        self._lost[order] = self.ends_by_life & (lives > 0) & (lives < self._lives[order]) & ~over
        self._lives[order] = lives
        return order


def fill_rows(tree: Tree, rows: Array, values: Any) -> None:
    """Copy many observations into the arrays at these rows."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            fill_rows(part, rows, values[key])
    else:
        tree[rows] = values


def _copied(tree: Tree) -> Tree:
    return {key: _copied(part) for key, part in tree.items()} if isinstance(tree, dict) else np.array(tree)
