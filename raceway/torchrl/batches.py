"""Conversion between Raceway's batches and TorchRL's TensorDicts. Arrays share memory, unless they are read-only.

| batch | TensorDict |
|---|---|
| `obs`, `action` | `"observation"`, `"action"` |
| `next_obs` | `("next", "observation")` |
| `reward`, `terminated`, `truncated` | `("next", "reward")` and so on, with an additional last axis: [..., 1] |
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
_SCALAR_COLUMNS = ("reward", "terminated", "truncated")
"""Columns that have an additional last axis of length 1 in TorchRL."""
_EPISODE_COLUMNS = ("length", "last_obs", "final_obs", "state")
"""Columns without a row for each step, which a TensorDict cannot hold; `episode_*` are others."""


def to_tensordict(batch: Batch, *, num_actions: int | None = None) -> TensorDict:
    """Convert a batch to the TensorDict that TorchRL's losses expect.

    Args:
        batch: transitions, [N], as sampled from replay; or a rollout fragment, [T, B], which becomes [B, T] with next
            observations added. Columns that describe whole episodes are left out.
        num_actions: the number of discrete actions, to encode them one-hot.
    """
    if "reward" not in batch:
        raise ConfigError(f"a batch of columns {list(batch)} has no 'reward', whose shape gives the number of rows")
    if "last_obs" in batch and "next_obs" not in batch:
        batch = {**batch, "next_obs": next_obs_of(batch)}
    if "terminated" not in batch and "discount" in batch:
        batch = {**batch, "terminated": batch["discount"] == 0}
    shape = np.shape(batch["reward"])
    columns: dict[Key, Any] = {}
    for name, column in batch.items():
        if name not in _EPISODE_COLUMNS and not name.startswith("episode_"):
            columns[_KEYS.get(name, name)] = tree_map(lambda part, name=name: _row_tensor(part, name, shape), column)
    if num_actions is not None:
        columns["action"] = torch.nn.functional.one_hot(columns["action"].long(), num_actions)
    if "terminated" in batch:
        terminated = columns[_KEYS["terminated"]]
        columns["next", "done"] = terminated | columns[_KEYS["truncated"]] if "truncated" in batch else terminated
    data = TensorDict(columns, shape)
    return data.transpose(0, 1) if len(shape) == 2 else data


def from_tensordict(data: TensorDictBase, *, one_hot: bool = False) -> Batch:
    """Convert a TensorDict to a batch.

    Args:
        data: transitions, [N], or a fragment, [B, T], which becomes [T, B].
        one_hot: whether the actions are one-hot and should be converted to indices.
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
        batch[name] = _to_array(value, name)
    if one_hot:
        batch["action"] = batch["action"].argmax(-1)
    return batch


def _row_tensor(part: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    if np.shape(part)[: len(shape)] != shape:
        raise ConfigError(
            f"column {name!r} has shape {np.shape(part)}, which does not begin with {shape}. Leave it out of the batch."
        )
    tensor = part if isinstance(part, Tensor) else as_tensor(np.asarray(part))
    return tensor.unsqueeze(-1) if name in _SCALAR_COLUMNS else tensor


def _to_array(part: Any, name: str) -> Any:
    if isinstance(part, TensorDictBase):
        return {key: _to_array(value, name) for key, value in part.items()}
    array: np.ndarray = part.detach().cpu().numpy()
    return array.squeeze(-1) if name in _SCALAR_COLUMNS else array


def as_tensordict(batch: Batch | TensorDictBase, num_actions: int | None = None) -> TensorDictBase:
    """Convert a batch to a TensorDict, unless it is one already."""
    if isinstance(batch, TensorDictBase):
        return batch
    if not isinstance(batch, Mapping):
        raise ConfigError(f"expected a batch or a TensorDict, not {type(batch).__name__}")
    return to_tensordict(dict(batch), num_actions=num_actions)
