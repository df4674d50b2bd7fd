"""Datasets of Minari's local cache."""

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from raceway.datasets import open_dataset, save_dataset
from raceway.errors import DatasetError

OBSERVATIONS = spaces.Dict({"position": spaces.Box(0, 1, (2,), np.float64), "level": spaces.Discrete(3)})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def make_buffer(number: int, length: int, *, terminated: bool, truncated: bool) -> EpisodeBuffer:
    random = np.random.default_rng(number)
    return EpisodeBuffer(
        id=number,
        observations={"position": random.random((length + 1, 2)), "level": random.integers(0, 3, length + 1)},
        actions=random.uniform(-1, 1, (length, 1)).astype(np.float32),  # type: ignore[arg-type]
        rewards=random.random(length),  # type: ignore[arg-type]
        terminations=[False] * (length - 1) + [terminated],
        truncations=[False] * (length - 1) + [truncated],
    )


def make_dataset(name: str, buffers: list[EpisodeBuffer], observation_space: Any = OBSERVATIONS) -> None:
    spec = gym.spec("Pendulum-v1")
    minari.create_dataset_from_buffers(
        name, buffers, env=spec, eval_env=spec, observation_space=observation_space,
        action_space=spaces.Box(-2, 2, (1,)), algorithm_name="sac", author="a", author_email="b",
        code_permalink="c", description="d", requirements=[],
    )  # fmt: skip


def test_episodes_are_those_of_minari() -> None:
    buffers: list[Any] = [
        make_buffer(0, 3, terminated=True, truncated=False),
        make_buffer(1, 2, terminated=False, truncated=True),
        make_buffer(2, 4, terminated=False, truncated=False),  # the recording ended before the episode
    ]
    make_dataset("toy/thing-v0", buffers)
    dataset = open_dataset("toy/thing-v0")
    assert (dataset.num_episodes, dataset.num_steps) == (3, 9)
    assert dataset.about == {"minari": "toy/thing-v0", "env": "Pendulum-v1", "algorithm": "sac"}
    assert (dataset.observation_space, dataset.action_space) == (OBSERVATIONS, spaces.Box(-2, 2, (1,)))
    rows = dataset.rows(np.arange(9), next_obs=True)
    for name in ("position", "level"):
        before, after = (
            np.concatenate([buffer.observations[name][part] for buffer in buffers])
            for part in (slice(None, -1), slice(1, None))
        )
        np.testing.assert_array_equal(rows["obs"][name], before.astype(rows["obs"][name].dtype))
        np.testing.assert_array_equal(rows["next_obs"][name], after.astype(rows["obs"][name].dtype))
    assert rows["obs"]["position"].dtype == np.float32
    np.testing.assert_array_equal(rows["action"], np.concatenate([buffer.actions for buffer in buffers]))
    np.testing.assert_allclose(rows["reward"], np.concatenate([buffer.rewards for buffer in buffers]), rtol=1e-6)
    assert np.flatnonzero(rows["terminated"]).tolist() == [2]
    assert np.flatnonzero(rows["truncated"]).tolist() == [4, 8]


def test_it_can_be_saved_as_a_folder(tmp_path: Path) -> None:
    make_dataset("thing-v1", [make_buffer(0, 6, terminated=True, truncated=False)])
    dataset = open_dataset("thing-v1")
    saved = save_dataset(dataset, tmp_path / "folder")
    np.testing.assert_array_equal(saved.returns(), dataset.returns())
    assert open_dataset("thing-v1").sha256 == dataset.sha256


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"toy/nothing-v0: .* no such dataset in Minari's local cache\. Download it"):
        open_dataset("toy/nothing-v0")
    buffer = make_buffer(0, 3, terminated=True, truncated=False)
    buffer.rewards[1] = np.nan
    make_dataset("toy/nan-v0", [buffer])
    with pytest.raises(DatasetError, match=r"toy/nan-v0: episode 0 cannot be read: reward has numbers that are not"):
        open_dataset("toy/nan-v0")
    data = tmp_path / "toy" / "nan-v0" / "data"
    (data / "main_data.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(DatasetError, match="toy/nan-v0: episode 0 cannot be read"):
        open_dataset("toy/nan-v0")
    (data / "metadata.json").write_text("{")
    with pytest.raises(DatasetError, match="toy/nan-v0: Minari cannot read it"):
        open_dataset("toy/nan-v0")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match=r"thing-v0: there is no such file or directory.*raceway\[minari\]"):
        open_dataset("thing-v0")
