"""Batches of whole episodes: the columns that a dataset has, and what must hold for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.rl import Batch, empty, fill, tree_map
from raceway.rl.spaces import Tree

Array = np.ndarray


def no_episodes(observation_space: spaces.Space, action_space: spaces.Space) -> Batch:
    """Return a batch without rows, which shows the names, shapes and dtypes of all columns of a dataset.

    `obs`, `action`, `reward`, `terminated` and `truncated` have one entry for each step, of one episode after the
    other; `final_obs` and `length` have one for each episode.
    """
    return {
        "obs": empty(observation_space, (0,)),
        "action": empty(action_space, (0,)),
        "reward": np.zeros(0, np.float32),
        "terminated": np.zeros(0, bool),
        "truncated": np.zeros(0, bool),
        "final_obs": empty(observation_space, (0,)),
        "length": np.zeros(0, np.int64),
    }


def make_episode(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    obs: Any,
    action: Any,
    reward: Any,
    terminated: bool,
    truncated: bool,
) -> Batch:
    """Return a batch of one episode, from arrays or lists.

    Args:
        observation_space: the space of the observations.
        action_space: the space of the actions.
        obs: the T + 1 observations, the final one included; of a Dict space, a mapping of them.
        action: the T actions.
        reward: the T rewards.
        terminated: whether the last step terminated the episode.
        truncated: whether it was cut off there.
    """
    length = len(reward)
    ended = np.zeros((2, length), bool)
    ended[:, -1:] = [[terminated], [truncated]]
    all_obs = _to_arrays(observation_space, obs, length + 1, "the observations, one more than rewards,")
    return {
        "obs": tree_map(lambda part: part[:-1], all_obs),
        "action": _to_arrays(action_space, action, length, "the actions"),
        "reward": _to_arrays(spaces.Box(-np.inf, np.inf, ()), reward, length, "the rewards"),
        "terminated": ended[0],
        "truncated": ended[1],
        "final_obs": tree_map(lambda part: part[-1:], all_obs),
        "length": np.array([length]),
    }


def _to_arrays(space: spaces.Space, values: Any, num: int, name: str) -> Tree:
    arrays = empty(space, (num,))
    try:
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite, which `check_episodes` refuses
            fill(arrays, slice(None), values)
    except ValueError as error:
        raise ValueError(f"{name} do not fit: {str(error).replace('an observation', 'an array')}") from error
    return arrays


def check_episodes(batch: Batch, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raise ValueError if a batch is not one of whole episodes, with finite numbers and valid discrete values."""
    _check_form(batch, no_episodes(observation_space, action_space))
    lengths, num = batch["length"], len(batch["reward"])
    if not len(lengths) or (lengths < 1).any() or lengths.sum() != num:
        raise ValueError(f"its {len(lengths)} episodes do not have the {num} steps of its rows")
    for name in ("obs", "action", "terminated", "truncated", "final_obs"):
        _check_length(batch[name], len(lengths) if name == "final_obs" else num, name)
    ends = np.flatnonzero(batch["terminated"] | batch["truncated"])
    if not np.array_equal(ends, np.cumsum(lengths) - 1):
        raise ValueError("its episodes do not all end with a step that is terminated or truncated, and only there")
    for name in ("obs", "action", "reward", "final_obs"):
        _check_finite(batch[name], name)
    for name in ("obs", "final_obs"):
        _check_discrete(observation_space, batch[name], name)
    _check_discrete(action_space, batch["action"], "action")


def _check_form(batch: Any, expected: Any, name: str = "") -> None:
    if isinstance(expected, Mapping):
        if not isinstance(batch, Mapping) or batch.keys() != expected.keys():
            actual = list(batch) if isinstance(batch, Mapping) else f"one of {type(batch).__name__}"
            raise ValueError(f"it has the columns {actual}{name}, not {list(expected)}")
        for key in expected:
            _check_form(batch[key], expected[key], f" of {key!r}")
    elif isinstance(batch, Mapping) or batch.dtype != expected.dtype or batch.shape[1:] != expected.shape[1:]:
        actual = "parts" if isinstance(batch, Mapping) else f"shape {batch.shape[1:]} and dtype {batch.dtype}"
        raise ValueError(f"the rows{name} have {actual}, not shape {expected.shape[1:]} and dtype {expected.dtype}")


def _check_length(tree: Tree, num: int, name: str) -> None:
    if isinstance(tree, Mapping):
        for part in tree.values():
            _check_length(part, num, name)
    elif len(tree) != num:
        raise ValueError(f"{name} has {len(tree)} rows, not {num}")


def _check_finite(tree: Tree, name: str) -> None:
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            _check_finite(part, f"{name}.{key}")
    elif tree.dtype.kind == "f" and not np.isfinite(tree).all():
        row = int(np.argwhere(~np.isfinite(tree))[0][0])
        raise ValueError(f"{name} has numbers that are not finite, in row {row}: {tree[row].ravel()[:8].tolist()}")


def _check_discrete(space: spaces.Space, tree: Tree, name: str) -> None:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        for key, part in parts.items():
            _check_discrete(part, tree[str(key)], f"{name}.{key}")
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        number = tree - space.start
        outside = (number < 0) | (number >= (space.n if isinstance(space, spaces.Discrete) else space.nvec))
        if outside.any():
            row = int(np.argwhere(outside)[0][0])
            raise ValueError(f"{name} has {tree[row].tolist()} in row {row}, which is not in {space}")
