"""Between Raceway's batches and TorchRL's TensorDicts. Arrays share their memory, unless they can only be read.

| batch | TensorDict |
|---|---|
| `obs`, `action` | `"observation"`, `"action"` |
| `next_obs` | `("next", "observation")` |
| `reward`, `terminated`, `truncated` | `("next", "reward")` and so on, with one axis more: [..., 1] |
| | `("next", "done")`: terminated or truncated |
| `weight` | `"priority_weight"` |

Other columns keep their names. Observations that are mappings stay nested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from raceway.agents import as_tensor
from raceway.errors import ConfigError
from raceway.rl import Batch, next_obs_of, tree_map

Key = str | tuple[str, str]

_KEYS: dict[str, Key] = {
    "obs": "observation",
    "next_obs": ("next", "observation"),
    "reward": ("next", "reward"),
    "terminated": ("next", "terminated"),
    "truncated": ("next", "truncated"),
    "weight": "priority_weight",
}
_SCALARS = ("reward", "terminated", "truncated")  # which TorchRL gives an axis of their own
_EPISODES = ("length", "last_obs", "final_obs", "episode_return", "episode_length", "state")
"""Columns that have no row for each step, and so no place in a TensorDict."""


def to_tensordict(batch: Batch, *, num_actions: int | None = None) -> TensorDict:
    """Return a batch as TorchRL's losses take it.

    Args:
        batch: transitions, [N], as replay gives them; or a fragment, [T, B], as rollouts do, which becomes [B, T] and
            is given its next observations. Columns that are of whole episodes are left out.
        num_actions: how many discrete actions there are, to have them one-hot.
    """
    if "reward" not in batch:
        raise ConfigError(f"a batch of columns {list(batch)} has no 'reward', by which its rows are known")
    if "last_obs" in batch and "next_obs" not in batch:
        batch = {**batch, "next_obs": next_obs_of(batch)}
    if "terminated" not in batch and "discount" in batch:
        batch = {**batch, "terminated": batch["discount"] == 0}
    shape = np.shape(batch["reward"])
    columns: dict[Key, Any] = {}
    for name, column in batch.items():
        if name not in _EPISODES:
            columns[_KEYS.get(name, name)] = tree_map(lambda part, name=name: _row_tensor(part, name, shape), column)
    if num_actions is not None:
        columns["action"] = torch.nn.functional.one_hot(columns["action"].long(), num_actions)
    if "terminated" in batch:
        ended = columns[_KEYS["terminated"]]
        columns["next", "done"] = ended | columns[_KEYS["truncated"]] if "truncated" in batch else ended
    made = TensorDict(columns, shape)
    return made.transpose(0, 1) if len(shape) == 2 else made


def from_tensordict(data: TensorDictBase, *, one_hot: bool = False) -> Batch:
    """Return a TensorDict as a batch.

    Args:
        data: what TorchRL gave: [N], or [B, T], which becomes [T, B].
        one_hot: whether its actions are one-hot, to have them as numbers.
    """
    data = data.transpose(0, 1) if data.ndim == 2 else data
    columns: dict[Key, Any] = {key: value for key, value in data.items() if key != "next"}
    columns.update({("next", key): value for key, value in data.get("next", {}).items()})
    done = columns.pop(("next", "done"), None)
    if done is not None:
        columns.setdefault(_KEYS["terminated"], done)
    names = {key: name for name, key in _KEYS.items()}
    batch: Batch = {}
    for key, value in columns.items():
        name = names.get(key) or (key if isinstance(key, str) else ".".join(key))
        batch[name] = _column(value, name)
    if one_hot:
        batch["action"] = batch["action"].argmax(-1)
    return batch


def _row_tensor(part: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    if np.shape(part)[: len(shape)] != shape:
        raise ConfigError(
            f"column {name!r} has shape {np.shape(part)}, not one row for each of {shape}. Leave it out of the batch."
        )
    tensor = part if isinstance(part, Tensor) else as_tensor(np.asarray(part))
    return tensor.unsqueeze(-1) if name in _SCALARS else tensor


def _column(part: Any, name: str) -> Any:
    if isinstance(part, TensorDictBase):
        return {key: _column(value, name) for key, value in part.items()}
    array: np.ndarray = part.detach().cpu().numpy()
    return array.squeeze(-1) if name in _SCALARS else array


def as_tensordict(batch: Batch | TensorDictBase, num_actions: int | None = None) -> TensorDictBase:
    """Return a batch as a TensorDict, if it is none yet."""
    if isinstance(batch, TensorDictBase):
        return batch
    if not isinstance(batch, Mapping):
        raise ConfigError(f"expected a batch or a TensorDict, not {type(batch).__name__}")
    return to_tensordict(dict(batch), num_actions=num_actions)
