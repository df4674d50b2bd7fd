"""A policy for use outside training: it takes observations and returns actions that the environment accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents.exploration import Explorer, Sample
from raceway.agents.networks import State
from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import empty, tree_map
from raceway.rl.spaces import Tree

Array = np.ndarray


class ActingPolicy:
    """A policy with its spaces. A recurrent policy keeps its state from call to call, until `reset`.

    Args:
        policy: the policy.
        observation_space: the observation space, with the action mask if there is one.
        action_space: the action space.
        clip_actions: whether actions of a Box are clipped to its bounds.
        explorer: how actions are chosen that are not deterministic; by default they are sampled.
    """

    def __init__(
        self,
        policy: Policy,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        clip_actions: bool = False,
        explorer: Explorer | None = None,
    ) -> None:
        self.policy, self.clip_actions, self.explorer = policy, clip_actions, explorer or Sample()
        self.observation_space, self.action_space = observation_space, action_space
        self._state: State | None = None
        self._random: np.random.Generator | None = None

    def act(self, obs: Any, deterministic: bool = True, *, action_mask: Any = None, seed: int | None = None) -> Any:
        """Return an action for one observation, or one for each of a batch.

        Args:
            obs: an observation of `observation_space`, or a batch of them; of a Dict space, each part is a batch.
            deterministic: return the most likely action, or that of the highest Q-value; else sample one.
            action_mask: the mask of allowed actions, if the observation has none as `action_mask`.
            seed: reseed the generator for sampling. Later calls continue from it.

        Returns:
            An action of `action_space`, a plain int for a Discrete space; or an array of actions, for a batch.
        """
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
            actions = explorer.choose(self.policy.distribution, arrays, self._random)
        actions = self._to_action_space(actions)
        if not single:
            return actions
        return int(actions[0]) if isinstance(self.action_space, spaces.Discrete) else actions[0]

    def reset(self, slots: Iterable[int] | None = None) -> None:
        """Reset the recurrent state for new episodes; for a batch, `slots` selects rows."""
        if slots is None or self._state is None:
            self._state = None
            return
        rows, num = list(slots), next((len(part) for part in self._state.values()), None)
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


def batch_observations(space: spaces.Space, obs: Any) -> tuple[Tree, int | None]:
    """Return observations as a batch of arrays, and their number: None for a single observation.

    >>> batch_observations(spaces.Box(-1, 1, (2,)), [0.5, 1])
    (array([[0.5, 1. ]], dtype=float32), None)
    >>> batch_observations(spaces.Discrete(5), np.array([1, 4]))
    (array([1, 4]), 2)
    """
    sizes: dict[str, int | None] = {}
    tree = _read(space, obs, "", sizes)
    different = set(sizes.values())
    if len(different) > 1:
        parts = ", ".join(f"{path}: {'one' if num is None else f'a batch of {num}'}" for path, num in sizes.items())
        raise ConfigError(f"the parts of the observation do not fit together ({parts})")
    num = next(iter(different), None)
    return (tree_map(lambda part: part[None], tree) if num is None else tree), num


def _read(space: spaces.Space, obs: Any, path: str, sizes: dict[str, int | None]) -> Tree:
    """Return the arrays of an observation, and add the batch size of each part to `sizes`."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        inner = {str(key): part for key, part in parts.items()}
        values = {str(key): part for key, part in _items(obs, path, list(inner))}
        if values.keys() != inner.keys():
            raise ConfigError(f"{_describe(path)} has the parts {list(values)}; expected {list(inner)}")
        return {key: _read(part, values[key], f"{path}.{key}" if path else key, sizes) for key, part in inner.items()}
    array = _to_array(space, obs, path)
    shape = space.shape or ()
    if array.shape == shape:
        sizes[path] = None
    elif array.ndim and array.shape[1:] == shape:
        sizes[path] = len(array)
    else:
        batch = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
        raise ConfigError(
            f"{_describe(path)} has shape {array.shape}; expected {shape} for one, or {batch} for a batch"
        )
    _check_values(space, array, path)
    return array


def _items(obs: Any, path: str, expected: list[str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(obs, Mapping):
        return obs.items()
    if isinstance(obs, tuple):
        return enumerate(obs)
    raise ConfigError(
        f"{_describe(path)} is a {type(obs).__name__}; expected a mapping or tuple of the parts {expected}"
    )


def _to_array(space: spaces.Space, obs: Any, path: str) -> Array:
    """Return one part of an observation as an array, in the dtype that networks take."""
    if isinstance(obs, Mapping):
        raise ConfigError(f"{_describe(path)} is a mapping of {list(obs)}; expected an array of {space}")
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ConfigError(f"{_describe(path)} is not an array: {error}") from error
    dtype = empty(space, ()).dtype
    accepted = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}[dtype.kind]
    fits = array.dtype.kind in accepted
    if fits and dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        fits = bool(limits.min <= array.min() and array.max() <= limits.max)
    if not fits:
        raise ConfigError(f"{_describe(path)} is of type {array.dtype}; expected {dtype} of {space}")
    # Always a copy: torch shares the memory, and ignores that an array is read-only.
    return np.array(array, dtype)


def _check_values(space: spaces.Space, array: Array, path: str) -> None:
    """Raise ConfigError for values that are not finite, or outside a discrete space."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{_describe(path)} has numbers that are not finite: {array.ravel()[:8].tolist()}")
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if ((array < space.start) | (array >= space.start + count)).any():
            raise ConfigError(f"{_describe(path)} has values outside of {space}: {array.ravel()[:8].tolist()}")


def _check_mask(mask: Array) -> None:
    if not mask.any(-1).all():
        raise ConfigError("the action_mask allows no action at all")


def _describe(path: str) -> str:
    return f"part {path!r} of the observation" if path else "the observation"
