"""Atari games with the standard preprocessing (Mnih et al. 2015, https://doi.org/10.1038/nature14236).

An action is repeated for 4 frames, and the image is the maximum of the last two, because sprites flicker. An
observation is a stack of the last 4 images, grey, 84 by 84. A game starts with up to 30 no-op frames, a number that
follows from its seed, and a press of the fire button if it has one. The loss of a life ends an episode, and rewards are
clipped to -1, 0 or 1.

Gymnasium's `AtariPreprocessing` returns the same images for the same seed. It has no fire, stacking or clipping, cannot
continue a game after the loss of a life, and takes half as long again for a step; a reset with a seed takes as long as
300 steps, because it loads the game again.
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
"""Height and width of an observation."""


@dataclass(frozen=True, kw_only=True)
class AtariSettings:
    """The preprocessing of Atari games. Every field can be set in `env_kwargs`."""

    frame_skip: int = 4
    """Frames for which an action is repeated."""
    stack: int = 4
    """Images stacked in an observation."""
    noop_max: int = 30
    """Largest number of no-op frames at the start of a game."""
    fire_on_reset: bool = True
    """Press fire at the start of an episode, if it is the game's second action. Some games wait for it."""
    terminal_on_life_loss: bool = True
    """Whether the loss of a life ends an episode. The next episode then continues the game."""
    clip_rewards: bool = True
    """Whether rewards are clipped to their sign."""
    max_episode_steps: int | None = None
    """Steps after which a game is truncated. Without it, games are truncated after 108,000 frames."""

    def __post_init__(self) -> None:
        minimums = {"frame_skip": 1, "stack": 1, "noop_max": 0, "max_episode_steps": 1}
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < minimum):
                raise ConfigError(f"{name} is {value!r}. It must be an integer of at least {minimum}.")

    def for_envpool(self) -> dict[str, Any]:
        """Return EnvPool's arguments, without `episodic_life`: EnvPool would start a new game after each life."""
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
    """Whether an id names a game of the Arcade Learning Environment.

    >>> is_atari("ALE/Pong-v5"), is_atari("mine:ALE/Pong-v5"), is_atari("CartPole-v1")
    (True, True, False)
    """
    return name.rpartition(":")[2].startswith("ALE/")


def split_kwargs(name: str, kwargs: Mapping[str, Any]) -> tuple[AtariSettings | None, dict[str, Any]]:
    """Split `env_kwargs` into the preprocessing settings and the arguments of the game itself.

    Returns:
        The settings, or None with `preprocess=False`, and the other arguments.
    """
    rest = dict(kwargs)
    if not rest.pop("preprocess", True):
        return None, rest
    for argument, reason in _NOT_WITH_PREPROCESSING.items():
        if argument in rest:
            raise ConfigError(f"{name} cannot be created with {argument}={rest[argument]!r}: {reason}")
    own = {field.name: rest.pop(field.name) for field in fields(AtariSettings) if field.name in rest}
    return AtariSettings(**own), {"repeat_action_probability": 0.0, **rest}


_RAW_ONLY = "that is only for games without preprocessing. Add preprocess=False."
_NOT_WITH_PREPROCESSING = {
    "frameskip": "frames would be skipped twice. Use frame_skip.",
    "obs_type": _RAW_ONLY,
    "sound_obs": _RAW_ONLY,
    "continuous": _RAW_ONLY,
}


def make_atari(name: str, kwargs: Mapping[str, Any]) -> gym.Env:
    """Make a game with the standard preprocessing or, with `preprocess=False`, without any."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else each process prints ALE's name and version
    settings, rest = split_kwargs(name, kwargs)
    if settings is None:
        return gym.make(name, disable_env_checker=True, **rest)
    game = gym.make(name, disable_env_checker=True, frameskip=1, **rest).unwrapped
    return Atari(game, settings, sticky=rest["repeat_action_probability"] > 0)


def has_fire(name: str, full_action_space: bool = False) -> bool:
    """Whether the second action of a game is the fire button."""
    game: Any = gym.make(name, full_action_space=full_action_space).unwrapped
    return game.get_action_meanings()[1:2] == ["FIRE"]


class Atari(gym.Wrapper):
    """A game with the standard preprocessing.

    `info` has the remaining `lives` and, when a game is over, `episode`: its return `r` over all lives, with unclipped
    rewards, and its number of steps `l`.
    """

    reports_scores = True

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
        # The start of every game: some state of the previous game can survive a reset, as in Beam Rider.
        self._start_state, self._start_screen = self.ale.cloneState(include_rng=True), self.ale.getScreenGrayscale()
        self._episode_is_life = settings.terminal_on_life_loss and self.ale.lives() > 0
        self._lives = 0
        self._life_lost = False  # by the last step, after which the game continues
        self.started_from_seed = True  # whether the last reset started a new game from its seed
        self._score, self._steps = 0.0, 0  # of the game

    @property
    def repeats_from_seed(self) -> bool:
        """Whether an episode depends on its seed alone: one that continues a game depends on earlier lives."""
        return not self._episode_is_life

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game from the seed; or, if the last step lost a life, continue the game."""
        if self._life_lost:
            self._repeat_action(0)
        new_game = not self._life_lost or self.ale.game_over()
        if new_game:
            self._start_game(seed)
        self.started_from_seed = new_game and seed is not None
        if self._fires:
            self._repeat_action(1)
            if self.ale.game_over():
                self._start_game(None)
        self._lives, self._life_lost = self.ale.lives(), False
        self._stack = np.empty(self._shape, np.uint8)
        self._resize(self._screen, self._stack[-1])
        self._stack[:-1] = self._stack[-1]
        return self._stack, {"lives": self._lives}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames."""
        reward = self._repeat_action(action)
        stack = np.empty_like(self._stack)  # not in place: the caller may keep the last observation
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
        # No life left is not the end of an episode: some games show zero lives shortly before they are over.
        self._life_lost = self._episode_is_life and 0 < lives < self._lives and not (terminated or truncated)
        self._lives = lives
        if self.settings.clip_rewards:
            reward = float((reward > 0) - (reward < 0))
        return stack, reward, terminated or self._life_lost, truncated, info

    def _repeat_action(self, action: int) -> float:
        """Repeat an action, and keep the maximum of the last two screens. A finished game stays as it is."""
        act, ale_action, skip, reward = self.ale.act, self.actions[action], self.settings.frame_skip, 0
        for _ in range(skip - 1):
            reward += act(ale_action)
        if skip > 1:
            self.ale.getScreenGrayscale(self._before)
        reward += act(ale_action)
        self.ale.getScreenGrayscale(self._screen)
        if skip > 1:
            np.maximum(self._screen, self._before, out=self._screen)
        self._score += reward
        return float(reward)

    def _start_game(self, seed: int | None) -> None:
        """Start a game, with a number of no-op frames that depends on its seed."""
        game: Any = self.env
        self._score, self._steps = 0.0, 0
        if self._sticky:
            game.reset(seed=seed)  # loads the game again: only then does ALE use the new seed
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
            self.ale.restoreState(self._start_state)  # after reset_game: else Qbert and others would still be over
            np.copyto(self._screen, self._start_screen)  # restoreState does not restore the screen
