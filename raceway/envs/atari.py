"""Atari games the way everybody plays them (Mnih et al. 2015, https://doi.org/10.1038/nature14236).

An action is held for 4 frames, and the maximum of the last two is seen: sprites flicker. What is observed are the last
4 such pictures, grey, 84 by 84. A game begins with up to 30 frames of doing nothing, by its seed, and with the fire
button, where there is one. The end of a life ends an episode, and rewards are -1, 0 or 1.

Gymnasium's `AtariPreprocessing` shows the same pictures for the same seed. It leaves fire, stack and clipping to others
and a game that goes on after a life to nobody, takes half as long again for a step, and a reset with a seed takes as
long as 300 steps, because the game is loaded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.envs.resize import Resize
from raceway.errors import ConfigError

SIZE = 84
"""Rows and columns of what is observed."""


@dataclass(frozen=True, kw_only=True)
class AtariSettings:
    """How games are shown and played. Each of these can be given in `env_kwargs`."""

    frame_skip: int = 4
    """Frames for which an action is held."""
    stack: int = 4
    """Pictures in an observation."""
    noop_max: int = 30
    """Frames of doing nothing that a game begins with, at most."""
    fire_on_reset: bool = True
    """Press fire when an episode begins, in games in which that is the second action. Some wait for it."""
    terminal_on_life_loss: bool = True
    """Whether an episode ends with a life. The next one then goes on with the game."""
    clip_rewards: bool = True
    """Whether rewards are their sign only."""
    max_episode_steps: int | None = None
    """Steps after which a game is cut off. The games themselves are, after 108,000 frames."""

    def __post_init__(self) -> None:
        least = {"frame_skip": 1, "stack": 1, "noop_max": 0, "max_episode_steps": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < smallest):
                raise ConfigError(f"{name} is {value!r}. It must be a whole number, {smallest} or more.")

    def for_envpool(self) -> dict[str, Any]:
        """Return the same for EnvPool, but for lives: it would begin a new game for each that it is told to reset."""
        limit = self.max_episode_steps
        return {
            "frame_skip": self.frame_skip,
            "stack_num": self.stack,
            "noop_max": self.noop_max,
            "use_fire_reset": self.fire_on_reset,
            "reward_clip": self.clip_rewards,
            **({} if limit is None else {"max_episode_steps": limit}),
        }


def is_atari(name: str) -> bool:
    """Tell whether an id is that of a game of the Arcade Learning Environment.

    >>> is_atari("ALE/Pong-v5"), is_atari("mine:ALE/Pong-v5"), is_atari("CartPole-v1")
    (True, True, False)
    """
    return name.rpartition(":")[2].startswith("ALE/")


def split(name: str, kwargs: Mapping[str, Any]) -> tuple[AtariSettings | None, dict[str, Any]]:
    """Divide `env_kwargs` into how a game is shown and what the game itself takes.

    Returns:
        None for the first if the game is wanted as it is, with `preprocess=False`.
    """
    rest = dict(kwargs)
    if not rest.pop("preprocess", True):
        return None, rest
    for given, instead in _NOT_WITH_PREPROCESSING.items():
        if given in rest:
            raise ConfigError(f"{name} cannot be made with {given}={rest[given]!r}: {instead}")
    mine = {field.name: rest.pop(field.name) for field in fields(AtariSettings) if field.name in rest}
    return AtariSettings(**mine), {"repeat_action_probability": 0.0, **rest}


_AS_IT_IS = "that is for games as they are. Give preprocess=False too."
_NOT_WITH_PREPROCESSING = {
    "frameskip": "frames would be skipped twice. Give frame_skip.",
    "obs_type": _AS_IT_IS,
    "sound_obs": _AS_IT_IS,
    "continuous": _AS_IT_IS,
}


def make_atari(name: str, kwargs: Mapping[str, Any]) -> gym.Env:
    """Make a game, the way everybody plays it or, with `preprocess=False`, as it is."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # or each process would print its name and version
    settings, rest = split(name, kwargs)
    if settings is None:
        return gym.make(name, disable_env_checker=True, **rest)
    game = gym.make(name, disable_env_checker=True, frameskip=1, **rest).unwrapped
    return Atari(game, settings, sticky=rest["repeat_action_probability"] > 0)


def has_fire(name: str, full_action_space: bool = False) -> bool:
    """Tell whether the second action of a game is the fire button."""
    game: Any = gym.make(name, full_action_space=full_action_space).unwrapped
    return game.get_action_meanings()[1:2] == ["FIRE"]


class Atari(gym.Wrapper):
    """A game the way everybody plays it.

    `info` has the lives that are left and, when a game is over, `episode`: its return `r`, of all lives and of rewards
    as they are, and its steps `l`.
    """

    tells_scores = True

    def __init__(self, game: Any, settings: AtariSettings, *, sticky: bool = False) -> None:
        import ale_py

        super().__init__(game)
        self.settings, self._sticky = settings, sticky
        self.ale: Any = game.ale
        self.actions = [getattr(ale_py.Action, name) for name in game.get_action_meanings()]
        self._fires = settings.fire_on_reset and self.actions[1:2] == [ale_py.Action.FIRE]
        self._shape = (settings.stack, SIZE, SIZE)
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        self.ale.reset_game()
        screen = self.ale.getScreenDims()
        self._screen, self._before = np.empty(screen, np.uint8), np.empty(screen, np.uint8)
        self._resize = Resize(screen, (SIZE, SIZE))
        # The beginning of every game. What was played before can shine through a reset, as in Beam Rider.
        self._beginning, self._first_screen = self.ale.cloneState(include_rng=True), self.ale.getScreenGrayscale()
        self._by_lives = settings.terminal_on_life_loss and self.ale.lives() > 0
        self._lives = 0
        self._life_lost = False  # by the last step, after which the game goes on
        self.began_anew = True  # whether the last reset began a game by its seed, and did not go on with one
        self._score, self._steps = 0.0, 0  # of the game

    @property
    def repeats_from_seed(self) -> bool:
        """Whether an episode depends on its seed alone: one that goes on with a game depends on the lives before."""
        return not self._by_lives

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game with the seed; or, if the last step has lost a life, go on with the game."""
        if self._life_lost:
            self._hold(0)
        begins = not self._life_lost or self.ale.game_over()
        if begins:
            self._begin_game(seed)
        self.began_anew = begins and seed is not None
        if self._fires:
            self._hold(1)
            if self.ale.game_over():
                self._begin_game(None)
        self._lives, self._life_lost = self.ale.lives(), False
        self._stack = np.empty(self._shape, np.uint8)
        self._resize(self._screen, self._stack[-1])
        self._stack[:-1] = self._stack[-1]
        return self._stack, {"lives": self._lives}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold an action for some frames."""
        reward = self._hold(action)
        stack = np.empty_like(self._stack)  # not in place: whoever was given the last one may keep it
        stack[:-1] = self._stack[1:]
        self._resize(self._screen, stack[-1])
        self._stack = stack
        self._steps += 1
        ale, limit = self.ale, self.settings.max_episode_steps
        lives, terminated = ale.lives(), ale.game_over(with_truncation=False)
        truncated = not terminated and (ale.game_truncated() or (limit is not None and self._steps >= limit))
        info: dict[str, Any] = {"lives": lives}
        if terminated or truncated:
            info["episode"] = {"r": self._score, "l": self._steps}
        # Some games show no life for a while before they are over, which they then soon are.
        self._life_lost = self._by_lives and 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        if self.settings.clip_rewards:
            reward = float((reward > 0) - (reward < 0))
        return stack, reward, terminated or self._life_lost, truncated, info

    def _hold(self, action: int) -> float:
        """Do the same for some frames. The screen is then the maximum of the last two. A game that is over stands."""
        act, chosen, skip, reward = self.ale.act, self.actions[action], self.settings.frame_skip, 0
        for _ in range(skip - 1):
            reward += act(chosen)
        if skip > 1:
            self.ale.getScreenGrayscale(self._before)
        reward += act(chosen)
        self.ale.getScreenGrayscale(self._screen)
        if skip > 1:
            np.maximum(self._screen, self._before, out=self._screen)
        self._score += reward
        return float(reward)

    def _begin_game(self, seed: int | None) -> None:
        """Begin a game, with the frames of doing nothing that its seed says."""
        game: Any = self.env
        self._score, self._steps = 0.0, 0
        if self._sticky:
            game.reset(seed=seed)  # loads it again, or its random numbers would not be the seed's
            self.ale.getScreenGrayscale(self._screen)
        else:
            if seed is not None:
                game.seed_game(seed)
            self._rewind()
        if self.settings.noop_max == 0:
            return
        for _ in range(game.np_random.integers(1, self.settings.noop_max + 1)):
            self._score += self.ale.act(self.actions[0])
            if self.ale.game_over():
                self._rewind()
        self.ale.getScreenGrayscale(self._screen)

    def _rewind(self) -> None:
        self.ale.reset_game()
        if not self._sticky:
            self.ale.restoreState(self._beginning)  # not alone: Qbert and others would still be over
            np.copyto(self._screen, self._first_screen)  # which it does not bring back
