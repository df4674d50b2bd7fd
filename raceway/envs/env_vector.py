"""Vectors of environments. Each environment has a slot: its index in the arrays.

Nothing resets by itself: after the last step of an episode, the observation is that episode's own final one, and a slot
starts its next episode only when `reset` is called with a seed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from raceway.errors import INTERRUPTS, EnvironmentFailed
from raceway.rl.spaces import Tree, check_discrete, fill, has_discrete

Array = np.ndarray

_log = logging.getLogger(__name__)

UNKNOWN_SLOT = -1
"""The slot of a failure in a vector environment that does not say which of its environments failed."""


@dataclass(frozen=True)
class Score:
    """The score of a finished game, which may span several episodes."""

    slot: int
    total: float
    """The sum of the unclipped rewards of all its episodes."""
    steps: int
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The info of its last step."""


class Slots(Protocol):
    """A vector of environments that step together."""

    num: int
    observation_space: spaces.Space
    action_space: spaces.Space
    repeats_from_seed: bool
    """Whether an episode depends on its seed alone, and not on earlier episodes."""
    replayable: bool
    """Whether the same actions after a reset that `started_from_seed` lead an environment to the same state."""
    scores: list[Score] | None
    """The scores of finished games, if they differ from the returns that the agent learns from: in Atari games an
    episode can be one life, and rewards are clipped. The reader empties the list. None if they are the same."""

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        """Start an episode in each of these slots, and write its first observation to that row of `obs`."""

    def started_from_seed(self, slot: int) -> bool:
        """Whether everything since the last reset of a slot depends on its seed and the actions alone."""

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        """Step the active slots, and write the results to their rows. Other slots may be stepped too, without effect.

        Args:
            actions: one action for every slot.
            active: the slots whose step counts.
            obs: receives the observations after the step.
            reward: receives the rewards, [B].
            ended: receives terminated and truncated, [2, B].

        Returns:
            None, or a mask of the slots that really stepped, [B]: an environment that resets itself uses up one step
            for that, which returns only the first observation of the next episode.
        """

    def final_info(self, slot: int) -> Any:
        """Return the info of the last step of a slot, whose episode that step ended, until the slot is reset."""

    def close(self) -> None:
        """Close the environments."""


class SteppedSlots:
    """Ordinary environments, stepped one after the other.

    An environment can declare more with attributes. `repeats_from_seed = False`: its episodes depend on earlier ones;
    if it then has `started_from_seed`, set by every reset, it can still be replayed from the last such reset.
    `reports_scores = True`: the info of a game's last step has `episode`, a dict `{"r": return, "l": steps}`.
    """

    def __init__(self, make: Callable[[], gym.Env], num: int) -> None:
        self.num, self._make = num, make
        self.envs = _make_all(make, num)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        bare, limits = zip(*map(strip_wrappers, self.envs), strict=True)
        self._bare, self._limit = list(bare), limits[0]
        self.repeats_from_seed = all(_env_flag(env, "repeats_from_seed", True) for env in self.envs)
        self.replayable = self.repeats_from_seed or all(env.has_wrapper_attr("started_from_seed") for env in self.envs)
        self.scores: list[Score] | None = [] if _env_flag(self.envs[0], "reports_scores", False) else None
        self._steps = [0] * num
        self._infos: list[Any] = [{}] * num  # of the last step of each slot
        self._convert = action_converter(self.action_space)
        self._shape = self.observation_space.shape if isinstance(self.observation_space, spaces.Box) else None
        self._dtype: Any = None  # of the last observation that was checked
        self._has_discrete = has_discrete(self.observation_space)

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                first, _ = self._bare[slot].reset(seed=seed)
                self._fill(obs, slot, first)
                self._steps[slot] = 0
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "reset", error) from error

    def started_from_seed(self, slot: int) -> bool:
        return self.repeats_from_seed or _env_flag(self.envs[slot], "started_from_seed", True)

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        envs, shape, steps, infos, (terminated, truncated) = self._bare, self._shape, self._steps, self._infos, ended
        converted = self._convert(actions)
        for slot in active:
            try:
                next_obs, step_reward, is_terminated, is_truncated, info = envs[slot].step(converted[slot])
                if (
                    type(step_reward) not in _NUMBERS
                    or type(is_terminated) not in _FLAGS
                    or type(is_truncated) not in _FLAGS
                ):
                    _check_outcome(step_reward, is_terminated, is_truncated)
                reward[slot], terminated[slot], truncated[slot] = step_reward, is_terminated, is_truncated
                if shape is not None and getattr(next_obs, "shape", None) == shape and next_obs.dtype is self._dtype:
                    obs[slot] = next_obs
                else:
                    self._fill(obs, slot, next_obs)
                infos[slot] = info
                steps[slot] += 1
                if steps[slot] >= self._limit:
                    truncated[slot] = True
                if self.scores is not None and "episode" in info:
                    self.scores.append(Score(slot, info["episode"]["r"], info["episode"]["l"], dict(info)))
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "step", error) from error

    def final_info(self, slot: int) -> Any:
        return self._infos[slot]

    def _fill(self, obs: Tree, slot: int, value: Any) -> None:
        """Write an observation after checking it; later ones of the same shape and dtype need no check."""
        fill(obs, slot, value)
        if self._has_discrete:
            check_discrete(self.envs[0].observation_space, value)
        self._dtype = getattr(value, "dtype", None)

    def rebuild(self, slot: int) -> None:
        """Replace the environment of a slot by a new one, which has to be reset next. The old one is closed."""
        close(self.envs[slot])
        try:
            self.envs[slot] = self._make()
        except (Exception, SystemExit) as error:
            raise environment_error(slot, "construction", error) from error
        self._bare[slot] = strip_wrappers(self.envs[slot])[0]

    def close(self) -> None:
        for env in self.envs:
            close(env)


def _make_all(make: Callable[[], gym.Env], num: int) -> list[gym.Env]:
    """Make `num` environments. If one fails, close those before it."""
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
    """Refuse values that numpy would silently convert to numbers."""
    for name, value, kinds in (
        ("reward", reward, "biuf"),
        ("terminated", terminated, "biu"),
        ("truncated", truncated, "biu"),
    ):
        if np.asarray(value).dtype.kind not in kinds or np.size(value) != 1:
            raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}")


def close(env: Any) -> None:
    """Close an environment. Nothing depends on it any more, so an error is only logged."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        _log.warning("%s", environment_error(0, "close", error), exc_info=error)


def _env_flag(env: gym.Env, name: str, default: bool) -> bool:
    return bool(env.get_wrapper_attr(name)) if env.has_wrapper_attr(name) else default


def strip_wrappers(env: gym.Env) -> tuple[gym.Env, float]:
    """Return an environment without Gymnasium's standard wrappers, and the time limit of its episodes.

    Slots do the work of these wrappers: they reset in order and count steps. That saves two calls in every step.
    """
    limit = math.inf
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        limit = min(limit, getattr(env, "_max_episode_steps", math.inf))
        env = env.env  # type: ignore[attr-defined]
    return env, limit


def environment_error(slot: int, verb: str, error: BaseException) -> EnvironmentFailed:
    """Return the error for an environment that raised, or returned invalid values; raise it if the user interrupted."""
    if isinstance(error, INTERRUPTS):
        raise error
    try:
        text = str(error)
    except Exception as failure:
        text = f"(no message: {type(failure).__name__})"
    kind = f"environment {verb} raised {type(error).__name__}"
    return EnvironmentFailed(f"{kind}: {text}", slot, kind=kind)


def action_converter(space: spaces.Space) -> Callable[[Array], Any]:
    """Return a function from an array of actions to what environments take: plain integers for discrete actions."""
    return (lambda actions: actions.tolist()) if isinstance(space, spaces.Discrete) else (lambda actions: actions)


class MaskFromInfo(gym.Wrapper):
    """Moves the `action_mask` of an environment's info into its observation."""

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
