"""A policy in use: observations as environments give them go in, actions as environments take them come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents.distributions import Distribution, EpsilonGreedy
from raceway.agents.networks import State
from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import empty, tree_map

Array = np.ndarray
Tree = Any


class ActingPolicy:
    """A policy and its spaces. One with a memory remembers from call to call, until `reset`.

    Args:
        policy: what chooses.
        observation_space: of what it is shown; with the mask, if there is one.
        action_space: of what it chooses.
        clip_actions: whether actions of a Box are kept within its bounds.
    """

    def __init__(
        self,
        policy: Policy,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        clip_actions: bool = False,
    ) -> None:
        self.policy, self.clip_actions = policy, clip_actions
        self.observation_space, self.action_space = observation_space, action_space
        self._state: State | None = None
        self._random: np.random.Generator | None = None

    def act(self, obs: Any, deterministic: bool = True, *, action_mask: Any = None, seed: int | None = None) -> Any:
        """Choose an action for one observation, or one for each of a batch.

        Args:
            obs: an observation of `observation_space`; or many of them behind one another, of a Dict in each part.
            deterministic: choose the most likely action, or that of the highest value; else draw one.
            action_mask: the actions that are allowed, where the observation does not have them as `action_mask`.
            seed: begin the random numbers for drawing anew with it. Those of later calls follow.

        Returns:
            An action of `action_space`: of a Discrete one a whole number; or an array of them, for a batch.
        """
        obs, beside = self._with_mask(obs, action_mask)
        rows, num = batch_of(self.observation_space, obs)
        single, num = num is None, num or 0
        state = self._remembered(1 if single else num)
        if self.policy.has_mask:
            _check_mask(rows["action_mask"])
        with torch.no_grad():
            params, state = self.policy(tree_map(torch.from_numpy, rows), state)
            if beside is not None:
                params = self.policy.distribution.masked(params, self._beside(beside, tuple(params.shape), single))
        self._state, numbers = state, params.detach().numpy()  # a view of a parameter has a gradient even so
        if seed is not None or self._random is None:
            self._random = np.random.default_rng(seed)
        if deterministic:
            actions = self.policy.distribution.mode(numbers)
        else:
            actions = drawing(self.policy, len(numbers)).draw(numbers, self._random)
        actions = self._bounded(actions)
        if not single:
            return actions
        return int(actions[0]) if isinstance(self.action_space, spaces.Discrete) else actions[0]

    def reset(self, slots: Iterable[int] | None = None) -> None:
        """Begin new episodes: with nothing remembered, or of a batch only in these of its rows."""
        if slots is None or self._state is None:
            self._state = None
            return
        chosen, num = list(slots), next((len(part) for part in self._state.values()), None)
        if num is not None and any(not 0 <= slot < num for slot in chosen):
            raise ConfigError(f"reset was told the rows {chosen}, and the policy remembers {num}: 0 to {num - 1}")
        fresh = self.policy.initial_state(len(chosen))
        for name, part in self._state.items():
            self._state[name] = part.index_copy(0, torch.tensor(chosen, dtype=torch.long), fresh[name])

    def _remembered(self, num: int) -> State:
        """Return what it remembers of so many episodes."""
        if self._state is None:
            return self.policy.initial_state(num)
        for part in self._state.values():
            if len(part) != num:
                raise ConfigError(
                    f"the policy remembers {len(part)} episodes and was given {num} observations. Give as many as "
                    "before, or call reset() first."
                )
        return self._state

    def _with_mask(self, obs: Any, mask: Any) -> tuple[Any, Any]:
        """Return observations with the mask where the policy expects it, and the mask if that is nowhere."""
        if mask is None or not self.policy.has_mask:
            return obs, mask
        if isinstance(obs, Mapping):
            if "action_mask" in obs:
                raise ConfigError("there is an action_mask in the observation already: give one of the two")
            return {**obs, "action_mask": mask}, None
        return ({"observation": obs, "action_mask": mask} if self.policy.unwraps else obs), None

    def _beside(self, mask: Any, shape: tuple[int, ...], single: bool) -> torch.Tensor:
        """Return a mask for what the network gave."""
        given = np.asarray(mask)
        wanted = shape[1:] if single else shape
        if given.shape != wanted:
            raise ConfigError(f"the action_mask has shape {given.shape}; wanted is {wanted}")
        _check_mask(given)
        return torch.from_numpy(given.reshape(shape) != 0)

    def _bounded(self, actions: Array) -> Array:
        """Return actions of the space's own type, within its bounds if that is wanted."""
        space = self.action_space
        if self.clip_actions and isinstance(space, spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        return actions.astype(space.dtype, copy=False)


def drawing(policy: Policy, num: int) -> Distribution:
    """Return what draws for so many rows, where a policy's own is made for as many as it was trained with.

    Each row strays with the ε of the slot of its number, and from the first again where there are more rows.
    """
    own = policy.distribution
    if not isinstance(own, EpsilonGreedy):
        return own
    made = EpsilonGreedy(own.size, own.start, num)
    made.epsilon[:] = np.resize(policy.epsilon.detach().cpu().numpy(), num)  # type: ignore[operator]
    return made


def batch_of(space: spaces.Space, obs: Any) -> tuple[Tree, int | None]:
    """Return observations as networks take them, a batch, and how many they were: None if it was one by itself.

    >>> batch_of(spaces.Box(-1, 1, (2,)), [0.5, 1])
    (array([[0.5, 1. ]], dtype=float32), None)
    >>> batch_of(spaces.Discrete(5), np.array([1, 4]))
    (array([1, 4]), 2)
    """
    found: dict[str, int | None] = {}
    tree = _read(space, obs, "", found)
    numbers = set(found.values())
    if len(numbers) > 1:
        shown = ", ".join(f"{where}: {'one' if num is None else f'a batch of {num}'}" for where, num in found.items())
        raise ConfigError(f"the parts of the observation do not fit together ({shown})")
    num = next(iter(numbers), None)
    return (tree_map(lambda part: part[None], tree) if num is None else tree), num


def _read(space: spaces.Space, obs: Any, where: str, found: dict[str, int | None]) -> Tree:
    """Return the arrays of an observation, having noted how many each part has."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        inner = {str(key): part for key, part in parts.items()}
        given = {str(key): part for key, part in _items(obs, where, list(inner))}
        if given.keys() != inner.keys():
            raise ConfigError(f"{_place(where)} has the parts {list(given)}; wanted are {list(inner)}")
        return {key: _read(part, given[key], f"{where}.{key}" if where else key, found) for key, part in inner.items()}
    array = _numbers(space, obs, where)
    shape = space.shape or ()
    if array.shape == shape:
        found[where] = None
    elif array.ndim and array.shape[1:] == shape:
        found[where] = len(array)
    else:
        many = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
        raise ConfigError(f"{_place(where)} has shape {array.shape}; wanted is {shape} for one, or {many} for a batch")
    _check_values(space, array, where)
    return array


def _items(obs: Any, where: str, wanted: list[str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(obs, Mapping):
        return obs.items()
    if isinstance(obs, tuple):
        return enumerate(obs)
    raise ConfigError(f"{_place(where)} is a {type(obs).__name__}; wanted is a mapping or tuple of the parts {wanted}")


def _numbers(space: spaces.Space, obs: Any, where: str) -> Array:
    """Return one part of an observation, of the type that networks take."""
    if isinstance(obs, Mapping):
        raise ConfigError(f"{_place(where)} is a mapping of {list(obs)}; wanted is an array of {space}")
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ConfigError(f"{_place(where)} is no array: {error}") from error
    wanted = empty(space, ()).dtype
    takes = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}[wanted.kind]
    fits = array.dtype.kind in takes
    if fits and wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        fits = bool(limits.min <= array.min() and array.max() <= limits.max)
    if not fits:
        raise ConfigError(f"{_place(where)} is of type {array.dtype}; wanted is {wanted} of {space}")
    # Always a copy: torch shares the memory, and does not know what is read-only.
    return np.array(array, wanted)


def _check_values(space: spaces.Space, array: Array, where: str) -> None:
    """Refuse what no network can use."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{_place(where)} has numbers that are not finite: {array.ravel()[:8].tolist()}")
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if ((array < space.start) | (array >= space.start + count)).any():
            raise ConfigError(f"{_place(where)} has choices that are not of {space}: {array.ravel()[:8].tolist()}")


def _check_mask(mask: Array) -> None:
    if not mask.any(-1).all():
        raise ConfigError("the action_mask allows no action at all")


def _place(where: str) -> str:
    return f"part {where!r} of the observation" if where else "the observation"
