"""A policy for use outside training: it takes observations and returns actions that the environment accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents.distributions import MASKED_LOGIT
from raceway.agents.exploration import Explorer, Sample
from raceway.agents.networks import State
from raceway.agents.observations import batch_observations
from raceway.agents.own_last_step import OwnLastStep
from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import tree_map

Array = np.ndarray


class ActingPolicy:
    """A policy with its spaces. A recurrent policy keeps its state from call to call, until `reset`.

    Args:
        policy: the policy.
        observation_space: the observation space, with the action mask if there is one.
        action_space: the action space.
        clip_actions: whether actions of a Box are clipped to its bounds.
        explorer: how actions are chosen that are not deterministic; by default they are sampled.
        last_action_and_reward: whether observations have both, beside those of the environment; see `act`.
    """

    def __init__(
        self,
        policy: Policy,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        clip_actions: bool = False,
        explorer: Explorer | None = None,
        last_action_and_reward: bool = False,
    ) -> None:
        self.policy, self.clip_actions, self.explorer = policy, clip_actions, explorer or Sample()
        self.observation_space, self.action_space = observation_space, action_space
        self._state: State | None = None
        self._random: np.random.Generator | None = None
        self._last_step = OwnLastStep(observation_space, action_space) if last_action_and_reward else None

    def act(
        self, obs: Any, deterministic: bool = True, *, action_mask: Any = None, seed: int | None = None,
        reward: Any = None,
    ) -> Any:  # fmt: skip
        """Return an action for one observation, or one for each of a batch.

        Args:
            obs: an observation of `observation_space`, or a batch of them; of a Dict space, each part is a batch. If
                the policy also sees its last action and reward, an observation of the environment suffices.
            deterministic: return the most likely action, or that of the highest Q-value; else sample one.
            action_mask: the mask of allowed actions, if the observation has none as `action_mask`.
            seed: reseed the generator for sampling. Later calls continue from it.
            reward: the reward of the action before, one for each of a batch, for a policy that sees it and gets an
                observation of the environment; 0 if it is not passed. Other policies ignore it.

        Returns:
            An action of `action_space`, a plain int for a Discrete space; or an array of actions, for a batch.
        """
        if self._last_step is not None:
            obs = self._last_step.complete(obs, reward)
        obs, mask = self._merge_mask(obs, action_mask)
        rows, num = batch_observations(self.observation_space, obs)
        single, num = num is None, num or 0
        state = self._current_state(1 if single else num)
        if self.policy.has_mask:
            _check_mask(rows["action_mask"])
        with torch.no_grad():
            params, state = self.policy(tree_map(torch.from_numpy, rows), state)
            if mask is not None:
                params = self.policy.distribution.apply_mask(params, self._mask_rows(mask, tuple(params.shape), single))
        self._state, arrays = state, params.detach().numpy()  # detached: a view of a parameter requires a gradient
        if seed is not None or self._random is None:
            self._random = np.random.default_rng(seed)
        if deterministic:
            actions = self.policy.distribution.mode(arrays)
        else:
            explorer = self.explorer.for_slots(len(arrays))
            outputs = explorer.outputs_of(self.policy, self._random)
            if outputs is not None:  # what is masked in the policy's outputs is so in these
                arrays = np.where(arrays <= MASKED_LOGIT, arrays, outputs(rows))
            actions = explorer.choose(self.policy.distribution, arrays, self._random)
        actions = self._to_action_space(actions)
        if self._last_step is not None:
            self._last_step.record(actions)
        if not single:
            return actions
        return int(actions[0]) if isinstance(self.action_space, spaces.Discrete) else actions[0]

    def reset(self, slots: Iterable[int] | None = None) -> None:
        """Reset the recurrent state and the last action for new episodes; for a batch, `slots` selects rows."""
        rows = None if slots is None else list(slots)
        if self._last_step is not None:
            self._last_step.reset(rows)
        if rows is None or self._state is None:
            self._state = None
            return
        num = next((len(part) for part in self._state.values()), None)
        if num is not None and any(not 0 <= row < num for row in rows):
            raise ConfigError(
                f"reset was called with rows {rows}, but the policy has the states of rows 0 to {num - 1}"
            )
        fresh = self.policy.initial_state(len(rows))
        for name, part in self._state.items():
            self._state[name] = part.index_copy(0, torch.tensor(rows, dtype=torch.long), fresh[name])

    def _current_state(self, num: int) -> State:
        """Return the recurrent state of `num` episodes."""
        if self._state is None:
            return self.policy.initial_state(num)
        for part in self._state.values():
            if len(part) != num:
                raise ConfigError(
                    f"the policy has the recurrent state of {len(part)} episodes, but got {num} observations. Pass as "
                    "many as before, or call reset() first."
                )
        return self._state

    def _merge_mask(self, obs: Any, mask: Any) -> tuple[Any, Any]:
        """Return observations with the mask inside, if the policy expects it there; else the mask separately."""
        if mask is None or not self.policy.has_mask:
            return obs, mask
        if isinstance(obs, Mapping):
            if "action_mask" in obs:
                raise ConfigError("the observation already has an action_mask. Pass only one of the two.")
            return {**obs, "action_mask": mask}, None
        return ({"observation": obs, "action_mask": mask} if self.policy.unwraps_obs else obs), None

    def _mask_rows(self, mask: Any, shape: tuple[int, ...], single: bool) -> torch.Tensor:
        """Return a mask in the shape of the network outputs."""
        array = np.asarray(mask)
        expected = shape[1:] if single else shape
        if array.shape != expected:
            raise ConfigError(f"the action_mask has shape {array.shape}; expected {expected}")
        _check_mask(array)
        return torch.from_numpy(array.reshape(shape) != 0)

    def _to_action_space(self, actions: Array) -> Array:
        """Return actions with the dtype of the space, clipped to its bounds if `clip_actions` is set."""
        space = self.action_space
        if self.clip_actions and isinstance(space, spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        return actions.astype(space.dtype, copy=False)


def _check_mask(mask: Array) -> None:
    if not mask.any(-1).all():
        raise ConfigError("the action_mask allows no action at all")
