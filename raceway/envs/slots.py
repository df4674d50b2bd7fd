"""Many environments stepped together. Each has a slot: its place in the arrays.

Nothing is reset behind the collector's back: after the last step of an episode, the observation is that episode's own
last one, and a slot begins anew when it is told to, with a seed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from raceway.errors import EnvironmentFailed
from raceway.rl.spaces import Tree, check_choices, fill, has_choices

Array = np.ndarray

_log = logging.getLogger(__name__)

SOME_SLOT = -1
"""Where a vector environment failed that does not tell which of its environments it was."""


class Score(NamedTuple):
    """What came of a whole game."""

    slot: int
    total: float
    """Of all its episodes, and of rewards as they are."""
    steps: int


class Slots(Protocol):
    """Environments that step together."""

    num: int
    observation_space: spaces.Space
    action_space: spaces.Space
    repeats: bool
    """Whether an episode depends on its seed alone, and not on what was played before."""
    recalls: bool
    """Whether the same actions after a reset that began `anew` bring an environment to the same place."""
    scores: list[Score] | None
    """Of the games that are over, if what is learned from is not what is reported: in Atari games an episode can be a
    life, and a reward its sign. Whoever reads them empties the list. None if episodes and rewards are what they are."""

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        """Begin an episode in each of these slots. Its first observation goes into that row of `obs`."""

    def anew(self, slot: int) -> bool:
        """Whether what follows the last reset of a slot depends on its seed, and on nothing before it."""

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        """Step the active slots (others may be stepped too, for nothing). The arrays are filled in at their rows.

        Args:
            actions: one for every slot.
            active: the slots whose step counts.
            obs: for what is seen after the step.
            reward: for the rewards, [B].
            ended: for whether the episode is terminated, and truncated, [2, B].

        Returns:
            None, or which slots have really stepped: environments that reset themselves take a step for that, in which
            they give the first observation and nothing else.
        """

    def close(self) -> None:
        """Close the environments."""


class SteppedSlots:
    """Ordinary environments, stepped one after the other.

    One that says `repeats_from_seed = False` has episodes that depend on what was played before; if it says after every
    reset whether it `began_anew`, it can be brought back all the same. One that says `tells_scores = True` has
    `{"r": return, "l": steps}` as `episode` in the info of a game's last step.
    """

    def __init__(self, make: Callable[[], gym.Env], num: int) -> None:
        self.num, self._make = num, make
        self.envs = _made(make, num)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        bare, limits = zip(*map(unwrapped, self.envs), strict=True)
        self._bare, self._limit = list(bare), limits[0]
        self.repeats = all(_says(env, "repeats_from_seed", True) for env in self.envs)
        self.recalls = self.repeats or all(env.has_wrapper_attr("began_anew") for env in self.envs)
        self.scores: list[Score] | None = [] if _says(self.envs[0], "tells_scores", False) else None
        self._steps = [0] * num
        self._convert = converter(self.action_space)
        self._shape = self.observation_space.shape if isinstance(self.observation_space, spaces.Box) else None
        self._kind: Any = None  # of the last observation that was looked at
        self._has_choices = has_choices(self.observation_space)

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                first, _ = self._bare[slot].reset(seed=seed)
                self._fill(obs, slot, first)
                self._steps[slot] = 0
            except (Exception, SystemExit) as error:
                raise failed(slot, "reset", error) from error

    def anew(self, slot: int) -> bool:
        return self.repeats or _says(self.envs[slot], "began_anew", True)

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        envs, shape, steps, (terminated, truncated) = self._bare, self._shape, self._steps, ended
        given = self._convert(actions)
        for slot in active:
            try:
                seen, gained, over, cut, info = envs[slot].step(given[slot])
                if type(gained) not in _NUMBERS or type(over) not in _FLAGS or type(cut) not in _FLAGS:
                    _check_outcome(gained, over, cut)
                reward[slot], terminated[slot], truncated[slot] = gained, over, cut
                if shape is not None and getattr(seen, "shape", None) == shape and seen.dtype is self._kind:
                    obs[slot] = seen
                else:
                    self._fill(obs, slot, seen)
                steps[slot] += 1
                if steps[slot] >= self._limit:
                    truncated[slot] = True
                if self.scores is not None and "episode" in info:
                    self.scores.append(Score(slot, info["episode"]["r"], info["episode"]["l"]))
            except (Exception, SystemExit) as error:
                raise failed(slot, "step", error) from error

    def _fill(self, obs: Tree, slot: int, seen: Any) -> None:
        """Write down an observation, having looked at what it is; others like it need not be."""
        fill(obs, slot, seen)
        if self._has_choices:
            check_choices(self.observation_space, seen)
        self._kind = getattr(seen, "dtype", None)

    def rebuild(self, slot: int) -> None:
        """Make the environment of a slot again; what was there is closed, if it can be. It is to be reset next."""
        close(self.envs[slot])
        try:
            self.envs[slot] = self._make()
        except (Exception, SystemExit) as error:
            raise failed(slot, "making", error) from error
        self._bare[slot] = unwrapped(self.envs[slot])[0]

    def close(self) -> None:
        for env in self.envs:
            close(env)


def _made(make: Callable[[], gym.Env], num: int) -> list[gym.Env]:
    """Make so many environments. If one cannot be made, those before it are closed."""
    envs: list[gym.Env] = []
    try:
        for _ in range(num):
            envs.append(make())
    except BaseException:
        for env in envs:
            close(env)
        raise
    return envs


_FLAGS = (bool, np.bool_)
_NUMBERS = (float, int, np.float64, np.float32, *_FLAGS)


def _check_outcome(reward: Any, terminated: Any, truncated: Any) -> None:
    """Refuse what numpy would make a number of."""
    for name, value, kinds in (
        ("reward", reward, "biuf"),
        ("terminated", terminated, "biu"),
        ("truncated", truncated, "biu"),
    ):
        if np.asarray(value).dtype.kind not in kinds or np.size(value) != 1:
            raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}")


def close(env: Any) -> None:
    """Close an environment. There is nothing more that it could spoil, so what it raises is only told."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        _log.warning("%s", failed(0, "close", error), exc_info=error)


def _says(env: gym.Env, name: str, otherwise: bool) -> bool:
    return bool(env.get_wrapper_attr(name)) if env.has_wrapper_attr(name) else otherwise


def unwrapped(env: gym.Env) -> tuple[gym.Env, float]:
    """Return an environment without the wrappers that every one has, and the steps its episodes may have.

    What they do is done here: resets are in order, and steps are counted. Two calls less in every step.
    """
    limit = math.inf
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        limit = min(limit, getattr(env, "_max_episode_steps", math.inf))
        env = env.env  # type: ignore[attr-defined]
    return env, limit


def failed(slot: int, verb: str, error: BaseException) -> EnvironmentFailed:
    """Return the error of an environment that raised, or gave what does not fit."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"(its text cannot be had: {type(failure).__name__})"
    return EnvironmentFailed(f"{verb} of the environment raised {type(error).__name__}: {text}", slot)


def converter(space: spaces.Space) -> Callable[[Array], Any]:
    """Return a function that makes what environments take of an array of actions: whole numbers for choices."""
    return (lambda actions: actions.tolist()) if isinstance(space, spaces.Discrete) else (lambda actions: actions)


class MaskFromInfo(gym.Wrapper):
    """Puts the mask that an environment tells beside its observation into the observation."""

    def __init__(self, env: gym.Env, size: int) -> None:
        super().__init__(env)
        mask = spaces.Box(0, 1, (size,), np.int8)
        self.observation_space = spaces.Dict({"observation": env.observation_space, "action_mask": mask})

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**settings)
        return {"observation": obs, "action_mask": info["action_mask"]}, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return {"observation": obs, "action_mask": info["action_mask"]}, reward, terminated, truncated, info
