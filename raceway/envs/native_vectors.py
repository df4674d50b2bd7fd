"""Native vector environments: Gymnasium's CartPole, EnvPool's, and any other `VectorEnv`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from raceway.envs.env_vector import UNKNOWN_SLOT, Array, Score, close, environment_error
from raceway.rl.spaces import Tree, fill, row_of

_ALL = slice(None)


class VectorSlots:
    """A `VectorEnv` in any of Gymnasium's three autoreset modes."""

    repeats_from_seed = replayable = False  # most derive later seeds from the first
    scores: list[Score] | None = None

    def __init__(self, env: VectorEnv) -> None:
        self.env: Any = env
        self.num = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._was_reset = False
        self._active: Sequence[int] = ()  # the slots whose last step counted
        self._ended = np.zeros(self.num, bool)  # slots whose episode has ended
        self._resets_next = np.zeros(self.num, bool)  # slots that will be reset by their next step
        self._first_obs: dict[int, Any] = {}  # first observations of new episodes, by slot
        self._info: Any = {}  # of the last step

    def started_from_seed(self, slot: int) -> bool:
        return False

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        seed_of_slot: list[Any] = [None] * self.num
        for slot, seed in zip(slots, seeds, strict=True):
            seed_of_slot[slot] = seed
        try:
            self._reset(list(slots), seed_of_slot, obs)
        except (Exception, SystemExit) as error:
            raise environment_error(UNKNOWN_SLOT, "reset", error) from error
        self._ended[list(slots)] = False

    def _reset(self, slots: list[int], seeds: list[Any], obs: Tree) -> None:
        if self._can_reset_all(slots):
            # Most take one seed, and derive the seeds of the other environments from it.
            first, _ = self.env.reset(seed=seeds if hasattr(self.env, "envs") else int(seeds[slots[0]]))
            fill(obs, _ALL, first)
            self._was_reset = True
            self._resets_next[:] = self._ended[:] = False
            self._first_obs.clear()
        elif self.mode is AutoresetMode.DISABLED:
            first = self._reset_masked(np.isin(np.arange(self.num), slots), seeds)
            for slot in slots:
                fill(obs, slot, row_of(first, slot))
        elif self.mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                fill(obs, slot, self._first_obs.pop(slot))
        else:
            self._resets_next[slots] = True

    def _can_reset_all(self, slots: Sequence[int]) -> bool:
        """Whether all environments can be reset at once, with seeds: no other slot is in an episode that counts."""
        others = [slot for slot in self._active if slot not in slots and not self._ended[slot]]
        return not self._was_reset or not others or not self._ended[list(slots)].all()

    def _reset_masked(self, mask: Array, seeds: list[Any]) -> Any:
        return self.env.reset(seed=seeds, options={"reset_mask": mask})[0]

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        try:
            if self.mode is AutoresetMode.DISABLED and self._ended.any():
                # Inactive slots are stepped too, which is an error after the end of an episode.
                self._reset_masked(self._ended, [None] * self.num)
            next_obs, reward[:], ended[0], ended[1], self._info = self.env.step(actions)
            fill(obs, _ALL, next_obs)
            self._active, self._ended = active, ended[0] | ended[1]
            if self.mode is AutoresetMode.SAME_STEP:
                for slot in np.flatnonzero(self._ended).tolist():
                    self._first_obs[slot] = _copy_tree(row_of(next_obs, slot))
                    fill(obs, slot, self._info["final_obs"][slot])
        except (Exception, SystemExit) as error:
            raise environment_error(UNKNOWN_SLOT, "step", error) from error
        if self.mode is not AutoresetMode.NEXT_STEP:
            return None
        stepped, self._resets_next = ~self._resets_next, np.zeros(self.num, bool)
        return stepped

    def final_info(self, slot: int) -> Any:
        # With SAME_STEP, the rest of the info is that of the reset.
        info = self._info.get("final_info", {}) if self.mode is AutoresetMode.SAME_STEP else self._info
        if isinstance(info, Mapping):
            return info_of_env(info, slot, self.num)
        return info[slot] if isinstance(info, (np.ndarray, list, tuple)) else {}  # older versions had a list of infos

    def close(self) -> None:
        close(self.env)


class CartPoleSlots:
    """Gymnasium's vector CartPole with explicit resets, so that every episode has its own seed.

    An episode is the same as that of `gym.make("CartPole-v1")` with the same seed.
    """

    repeats_from_seed = replayable = True
    scores: list[Score] | None = None

    def __init__(self, env: Any) -> None:
        self.env = env
        self.num: int = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        env.reset(seed=0)
        env.action_space = _AcceptsAll()  # checking the actions takes a tenth of a step

    def started_from_seed(self, slot: int) -> bool:
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
        env.prev_done[:] = False  # else the next step would reset these environments

    def final_info(self, slot: int) -> Any:
        return {}  # it never has any

    def close(self) -> None:
        close(self.env)


class _AcceptsAll:
    def contains(self, _: object) -> bool:
        return True


class EnvPoolSlots:
    """EnvPool's environments. They are seeded once, when they are made, and step in EnvPool's own threads."""

    repeats_from_seed = replayable = False
    scores: list[Score] | None = None

    def __init__(self, env: Any, num: int) -> None:
        self.env, self.num = env, num
        with warnings.catch_warnings():  # the bounds of its spaces have another precision than their dtype
            warnings.filterwarnings("ignore", message=".*precision lowered")
            self.observation_space, self.action_space = env.observation_space, env.action_space
        self._dtype = np.int32 if np.issubdtype(self.action_space.dtype, np.integer) else np.float64
        self._info: dict[str, Any] = {}  # of the last step

    def started_from_seed(self, slot: int) -> bool:
        return False

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        try:
            first, _ = self.env.reset(np.asarray(slots, np.int32))
            for row, slot in enumerate(slots):
                fill(obs, slot, row_of(first, row))
        except (Exception, SystemExit) as error:
            raise environment_error(UNKNOWN_SLOT, "reset", error) from error

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        self._step(actions, active, obs, reward, ended)

    def _step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> dict[str, Any]:
        """Step, and return the info."""
        ids = np.asarray(active, np.int32)
        try:
            next_obs, rewards, terminated, truncated, info = self.env.step(actions[ids].astype(self._dtype), ids)
            order = info["env_id"]
            fill_rows(obs, order, next_obs)
            reward[order], ended[0, order], ended[1, order] = rewards, terminated, truncated
        except (Exception, SystemExit) as error:
            raise environment_error(UNKNOWN_SLOT, "step", error) from error
        self._info = info
        return info

    def final_info(self, slot: int) -> Any:
        order = self._info["env_id"]
        return info_of_env(self._info, int(np.flatnonzero(order == slot)[0]), len(order))

    def close(self) -> None:
        close(self.env)


class EnvPoolAtariSlots(EnvPoolSlots):
    """EnvPool's Atari games, in which an episode may be one life.

    After the loss of a life, the stacked observation still has frames from before it.
    """

    def __init__(self, env: Any, num: int, *, terminal_on_life_loss: bool, fire_on_reset: bool) -> None:
        super().__init__(env, num)
        self.terminal_on_life_loss, self.fire_on_reset = terminal_on_life_loss, fire_on_reset
        self.scores: list[Score] | None = []
        self._lives, self._life_lost = np.zeros(num, np.int64), np.zeros(num, bool)
        self._score, self._steps = np.zeros(num), np.zeros(num, np.int64)

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        continued = [slot for slot in slots if self._life_lost[slot]]
        if continued:
            ended, actions = np.zeros((2, self.num), bool), np.full(self.num, int(self.fire_on_reset))
            self._update_games(self._step(actions, continued, obs, np.zeros(self.num), ended), ended)
            continued = [slot for slot in continued if not ended[:, slot].any()]
        new = [slot for slot in slots if slot not in continued]
        if new:
            super().reset(new, seeds, obs)
        self._lives[new] = self._score[new] = self._steps[new] = 0
        self._life_lost[list(slots)] = False

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        order = self._update_games(self._step(actions, active, obs, reward, ended), ended)
        ended[0, order] |= self._life_lost[order]

    def _update_games(self, info: dict[str, Any], ended: Array) -> Array:
        """Update the scores and lives of games after a step, and return the slots that stepped."""
        order, lives = info["env_id"], info["lives"]
        self._score[order] += info["reward"]  # unclipped
        self._steps[order] += 1
        over = ended[:, order].any(0)
        assert self.scores is not None
        for slot in order[over].tolist():
            self.scores.append(
                Score(slot, float(self._score[slot]), int(self._steps[slot]), EnvPoolSlots.final_info(self, slot))
            )
        self._life_lost[order] = self.terminal_on_life_loss & (lives > 0) & (lives < self._lives[order]) & ~over
        self._lives[order] = lives
        return order


def info_of_env(info: Mapping[str, Any], index: int, num: int) -> dict[str, Any]:
    """Return the info of one of `num` environments, from that of a vector of them.

    An entry `key` may have a mask `_key` of the environments that it applies to.

    >>> info_of_env({"lives": np.array([3, 2]), "won": np.array([1, 0]), "_won": np.array([True, False])}, 1, 2)
    {'lives': np.int64(2)}
    """
    entries: dict[str, Any] = {}
    for key, value in info.items():
        if key.startswith("_") and key[1:] in info:
            continue
        mask = info.get(f"_{key}")
        if mask is not None and not mask[index]:
            continue
        if isinstance(value, Mapping):
            entries[key] = info_of_env(value, index, num)
        else:
            is_array = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)
            entries[key] = value[index] if is_array and len(value) == num else value
    return entries


def fill_rows(tree: Tree, rows: Array, values: Any) -> None:
    """Copy a batch of observations into the arrays at these rows."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            fill_rows(part, rows, values[key])
    else:
        tree[rows] = values


def _copy_tree(tree: Tree) -> Tree:
    return {key: _copy_tree(part) for key, part in tree.items()} if isinstance(tree, dict) else np.array(tree)
