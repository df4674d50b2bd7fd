"""Rows of a dataset, with next observations and returns, and the check of its spaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.datasets import check_spaces, open_dataset
from raceway.errors import ConfigError
from raceway.rl import concat, tree_map
from tests.datasets.toy_data import PARTS, POINT, TURNS, episodes, write


def assert_same(first: Any, second: Any) -> None:
    def check(one: np.ndarray, other: np.ndarray) -> None:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)

    tree_map(check, first, second)
    tree_map(check, second, first)


@pytest.mark.parametrize("observation_space", [POINT, PARTS], ids=["box", "dict"])
def test_rows_are_those_that_were_written(tmp_path: Path, observation_space: spaces.Space) -> None:
    batches = [episodes([3, -2], 0, observation_space), episodes([1], 5, observation_space)]
    dataset = write(tmp_path / "data", *batches, observation_space=observation_space)
    whole = concat(batches)
    assert (dataset.num_episodes, dataset.num_steps) == (3, 6)
    for index in ([0, 1, 2, 3, 4, 5], [5], [4, 0, 5, 0, 1], [2, 3], []):
        rows = dataset.rows(np.array(index, int))
        assert list(rows) == ["obs", "action", "reward", "terminated", "truncated"]
        assert_same(rows, {name: tree_map(lambda part, index=index: part[index], whole[name]) for name in rows})


@pytest.mark.parametrize("observation_space", [POINT, PARTS], ids=["box", "dict"])
def test_the_next_observation_is_of_the_same_episode(tmp_path: Path, observation_space: spaces.Space) -> None:
    batches = [episodes([3, -2], 0, observation_space), episodes([1], 5, observation_space)]
    dataset = write(tmp_path / "data", *batches, observation_space=observation_space)
    obs, final = (concat(batches)[name] for name in ("obs", "final_obs"))
    expected = tree_map(lambda o, f: np.stack([o[1], o[2], f[0], o[4], f[1], f[2]]), obs, final)
    rows = dataset.rows(np.arange(6), next_obs=True)
    assert_same(rows["next_obs"], expected)
    assert_same(rows["obs"], obs)
    backwards = dataset.rows(np.arange(6)[::-1], next_obs=True)["next_obs"]
    assert_same(backwards, tree_map(lambda part: part[::-1], expected))


def test_returns_from_each_step(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", episodes([3, -2]), episodes([1], 5))
    rows = dataset.rows(np.array([5, 0, 3, 4, 2]), gamma=0.5)
    assert rows["return"].tolist() == [5, 0 + 0.5 * 1 + 0.25 * 2, 3 + 0.5 * 4, 4, 2]
    assert dataset.rows(np.array([0]), gamma=1.0)["return"].tolist() == [3]
    assert dataset.returns().tolist() == [3, 7, 5]
    assert dataset.lengths().tolist() == [3, 2, 1]
    with pytest.raises(ConfigError, match=r"gamma must be a number from 0 to 1, not 1\.5"):
        dataset.rows(np.array([0]), gamma=1.5)


def test_truncated_episodes_are_bootstrapped_with_their_final_observation(tmp_path: Path) -> None:
    """Of 3, 2 and 1 steps; the second is truncated. The final observation is that of the step's own episode."""
    batches = [episodes([3, -2]), episodes([1], 5)]
    rows = write(tmp_path / "data", *batches).rows(np.array([5, 0, 3, 4, 2]), gamma=0.5, final_obs=True)
    assert rows["final_discount"].tolist() == [0, 0, 0.25, 0.5, 0]
    assert rows["final_discount"].dtype == np.float32
    assert_same(rows["final_obs"], concat(batches)["final_obs"][[2, 0, 1, 1, 0]])
    with pytest.raises(ConfigError, match="the discount of the final observation is missing"):
        open_dataset(tmp_path / "data").rows(np.array([0]), final_obs=True)


def test_a_step_that_terminates_and_truncates_is_not_bootstrapped(tmp_path: Path) -> None:
    batch = episodes([2])
    batch["truncated"] = batch["terminated"].copy()
    rows = write(tmp_path / "data", batch).rows(np.arange(2), gamma=0.5, final_obs=True)
    assert rows["final_discount"].tolist() == [0, 0]


def test_rows_can_be_changed_and_the_dataset_cannot(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", episodes([4]))
    rows = dataset.rows(np.array([1, 2]), next_obs=True)
    tree_map(lambda column: column.fill(0), rows)
    assert dataset.rows(np.array([1]))["reward"].tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        next(dataset.batches())["reward"][0] = 7


@pytest.mark.parametrize("index", [[-1], [6], [2, 17]])
def test_rows_outside_are_refused(tmp_path: Path, index: list[int]) -> None:
    dataset = write(tmp_path / "data", episodes([6]))
    with pytest.raises(ConfigError, match=r"rows from .* are not all in <dataset .*data: 1 episodes, 6 steps>"):
        dataset.rows(np.array(index))


def test_only_parts_that_are_used_are_read(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", episodes([3]), episodes([3], 3), episodes([3], 6))
    (tmp_path / "data" / "part-00001.safetensors").unlink()
    assert dataset.rows(np.array([8, 0, 1]))["reward"].tolist() == [8, 0, 1]


def test_other_spaces_are_an_error_that_names_both(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", episodes([6]))
    check_spaces(dataset, POINT, TURNS)
    check_spaces(dataset, spaces.Box(-9, np.inf, (2,)), TURNS)  # bounds may differ
    with pytest.raises(ConfigError) as raised:
        check_spaces(dataset, spaces.Box(-1, 1, (3,)), TURNS)
    assert str(raised.value) == (
        f"the environment has observations of Box(-1.0, 1.0, (3,), float32); those of the dataset {tmp_path}/data are "
        "of Box(-1.0, 1.0, (2,), float32). Use the environment that recorded it, Toy-v0."
    )
    with pytest.raises(ConfigError, match=r"has actions of Discrete\(3\); those of .* are of MultiDiscrete\(\[3 2\]\)"):
        check_spaces(dataset, POINT, spaces.Discrete(3))
