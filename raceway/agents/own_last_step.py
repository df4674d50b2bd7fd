"""The last action of a policy outside training, for policies that see it beside an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.agents.observations import batch_observations
from raceway.errors import ConfigError
from raceway.rl.last_step import LAST_ACTION, LAST_REWARD, OBSERVATION, ActionVectors

Array = np.ndarray


class OwnLastStep:
    """The last actions of a policy in one episode, or in a batch of them, as a part of its observations.

    Args:
        observation_space: the space with `last_action` and `last_reward`.
        action_space: the action space.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        assert isinstance(observation_space, spaces.Dict)
        self._spaces = {key: part for key, part in observation_space.items() if key not in (LAST_ACTION, LAST_REWARD)}
        self._nests = [key for key in self._spaces if key != "action_mask"] == [OBSERVATION]
        self._vectors = ActionVectors(action_space)
        self._actions: Array | None = None  # vectors, [N, size]
        self._began: Array | None = None  # whether an action was taken since the last reset, [N]

    def complete(self, obs: Any, reward: Any) -> Any:
        """Return observations with the last action and reward; those that have both are returned as they are.

        Args:
            obs: an observation of the environment, or a batch of them.
            reward: the reward of the last action; None for 0. In the first step of an episode it is not used.
        """
        if isinstance(obs, Mapping) and (LAST_ACTION in obs or LAST_REWARD in obs):
            if reward is not None:
                raise ConfigError(f"the observation already has a {LAST_REWARD}. Pass only one of the two.")
            return obs
        if self._nests and not self._is_nested(obs):
            obs = {OBSERVATION: obs}
        known = {key: part for key, part in self._spaces.items() if isinstance(obs, Mapping) and key in obs}
        _, size = batch_observations(spaces.Dict(known), {key: obs[key] for key in known}) if known else (None, None)
        num = 1 if size is None else size
        actions, began = self._last_of(num)
        rewards = np.zeros(num, np.float32)
        if reward is not None:
            rewards[began] = self._rewards(reward, num)[began]
        last = {LAST_ACTION: actions, LAST_REWARD: rewards[:, None]}
        return {**obs, **({key: part[0] for key, part in last.items()} if size is None else last)}

    def _is_nested(self, obs: Any) -> bool:
        """Whether an observation is already the entry `observation` of a mapping."""
        if not isinstance(obs, Mapping) or OBSERVATION not in obs:
            return False
        return not isinstance(self._spaces[OBSERVATION], spaces.Dict) or isinstance(obs[OBSERVATION], Mapping)

    def _last_of(self, num: int) -> tuple[Array, Array]:
        """Return the last actions in `num` episodes, and in which there was one."""
        if self._actions is None or self._began is None:
            return np.zeros((num, self._vectors.size), np.float32), np.zeros(num, bool)
        if len(self._actions) != num:
            raise ConfigError(
                f"the policy has the last actions of {len(self._actions)} episodes, but got {num} observations. Pass "
                "as many as before, or call reset() first."
            )
        return self._actions, self._began

    def _rewards(self, reward: Any, num: int) -> Array:
        rewards = np.asarray(reward, np.float32)
        if rewards.size != num or not np.isfinite(rewards).all():
            raise ConfigError(f"reward is {reward!r}; expected {num} finite number(s), one for each observation")
        return rewards.reshape(num)

    def record(self, actions: Array) -> None:
        """Record the actions that were taken, [N, ...]."""
        self._actions, self._began = self._vectors(actions), np.ones(len(actions), bool)

    def reset(self, rows: Sequence[int] | None) -> None:
        """Forget the last action, of all episodes or of some."""
        if rows is None:
            self._actions = self._began = None
        elif self._actions is not None and self._began is not None:
            if any(not 0 <= row < len(self._actions) for row in rows):
                raise ConfigError(
                    f"reset was called with rows {list(rows)}, but the policy has the last actions of rows 0 to "
                    f"{len(self._actions) - 1}"
                )
            self._actions, self._began = self._actions.copy(), self._began.copy()
            self._actions[rows], self._began[rows] = 0, False
