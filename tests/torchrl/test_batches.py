"""Conversion of batches to TensorDicts and back."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from raceway.errors import ConfigError
from raceway.rl import Batch
from raceway.torchrl import from_tensordict, to_tensordict
from raceway.torchrl.batches import as_tensordict


def transitions() -> Batch:
    return {
        "obs": {"position": np.arange(6, dtype=np.float32).reshape(3, 2), "goal": np.ones(3)},
        "action": np.array([0, 2, 1]),
        "reward": np.array([1.0, 2.0, 3.0], np.float32),
        "next_obs": {"position": np.zeros((3, 2), np.float32), "goal": np.ones(3)},
        "terminated": np.array([False, True, False]),
        "truncated": np.array([False, False, True]),
        "index": np.array([5, 6, 7]),
        "weight": np.array([0.5, 1.0, 0.25]),
    }


def fragment() -> Batch:
    """Three steps of two environments; the second is truncated after its second step."""
    return {
        "obs": np.array([[0, 10], [1, 11], [2, 20]], np.float32)[..., None],
        "action": np.zeros((3, 2), np.int64),
        "reward": np.array([[1, 4], [2, 5], [3, 6]], np.float32),
        "terminated": np.array([[0, 0], [0, 0], [1, 0]], bool),
        "truncated": np.array([[0, 0], [0, 1], [0, 0]], bool),
        "last_obs": np.array([[3], [21]], np.float32),
        "final_obs": np.array([[12]], np.float32),
        "episode_return": np.array([9.0]),
        "episode_length": np.array([2]),
    }


def test_transitions() -> None:
    batch = transitions()
    data = to_tensordict(batch)
    assert data.batch_size == (3,)
    assert data["observation", "position"].shape == (3, 2)
    assert data["next", "observation", "goal"].tolist() == [1, 1, 1]
    assert data["action"].tolist() == [0, 2, 1]
    assert data["next", "reward"].tolist() == [[1], [2], [3]]
    assert data["next", "terminated"].tolist() == [[False], [True], [False]]
    assert data["next", "truncated"].tolist() == [[False], [False], [True]]
    assert data["next", "done"].tolist() == [[False], [True], [True]]
    assert data["priority_weight"].tolist() == [0.5, 1.0, 0.25]
    assert data["index"].tolist() == [5, 6, 7]


def test_round_trip() -> None:
    batch = transitions()
    converted = from_tensordict(to_tensordict(batch))
    assert converted.keys() == batch.keys()
    for name in batch:
        if name.endswith("obs"):
            assert converted[name].keys() == batch[name].keys()
            assert np.array_equal(converted[name]["position"], batch[name]["position"])
        else:
            assert np.array_equal(converted[name], batch[name])
            assert converted[name].dtype == batch[name].dtype


def test_writable_arrays_share_memory() -> None:
    batch = transitions()
    data = to_tensordict(batch)
    data["next", "reward"][0] = 9
    assert batch["reward"][0] == 9
    assert np.shares_memory(from_tensordict(data)["obs"]["position"], batch["obs"]["position"])
    batch["reward"].flags.writeable = False
    data = to_tensordict(batch)
    data["next", "reward"][0] = 5
    assert batch["reward"][0] == 9


def test_one_hot_actions() -> None:
    batch = transitions()
    data = to_tensordict(batch, num_actions=4)
    assert data["action"].tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]
    assert from_tensordict(data, one_hot=True)["action"].tolist() == [0, 2, 1]


def test_transitions_with_a_discount() -> None:
    batch = {name: transitions()[name] for name in ("obs", "action", "reward", "next_obs")}
    data = to_tensordict({**batch, "discount": np.array([0.9, 0.0, 0.81], np.float32)})
    assert data["next", "terminated"].tolist() == data["next", "done"].tolist() == [[False], [True], [False]]


def test_fragment() -> None:
    batch = fragment()
    data = to_tensordict(batch)
    assert data.batch_size == (2, 3), "TorchRL expects time as the last batch dimension"
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 2], [10, 11, 20]]
    assert data["next", "observation"].squeeze(-1).tolist() == [[1, 2, 3], [11, 12, 21]]
    assert data["next", "reward"].squeeze(-1).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert data["next", "done"].squeeze(-1).tolist() == [[False, False, True], [False, True, False]]
    assert batch["obs"][2, 1] == 20, "the batch is not changed"
    converted = from_tensordict(data)
    assert np.array_equal(converted["obs"], batch["obs"])
    assert np.array_equal(converted["reward"], batch["reward"])


def test_tensordict_without_terminated() -> None:
    data = TensorDict({"observation": torch.zeros(2, 1), "next": {"done": torch.ones(2, 1, dtype=torch.bool)}}, [2])
    assert from_tensordict(data)["terminated"].tolist() == [True, True]


def test_invalid_batches_are_rejected() -> None:
    with pytest.raises(ConfigError, match="no 'reward'"):
        to_tensordict({"obs": np.zeros(3)})
    with pytest.raises(ConfigError, match=r"column 'other' has shape \(2,\), which does not begin with \(3,\)"):
        to_tensordict({**transitions(), "other": np.zeros(2)})
    with pytest.raises(ConfigError, match="expected a batch or a TensorDict, not list"):
        as_tensordict([1])  # type: ignore[arg-type]
