"""A dataset as a file of JSON lines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.datasets import open_dataset, save_dataset
from raceway.errors import DatasetError
from raceway.rl.space_json import space_to_json

HEAD = {
    "schema": 1,
    "observation_space": space_to_json(spaces.Box(-np.inf, np.inf, (2,))),
    "action_space": space_to_json(spaces.Discrete(3)),
    "about": {"env": "Toy-v0"},
}
FIRST = {"obs": [[0, 0], [0, 1], [0, 2]], "action": [1, 2], "reward": [0.5, 1], "terminated": True}
SECOND = {"obs": [[1, 0], [1, 1]], "action": [0], "reward": [3], "terminated": False}


def write_lines(tmp_path: Path, *docs: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{doc if isinstance(doc, str) else json.dumps(doc)}\n" for doc in docs))
    return path


def test_one_episode_per_line(tmp_path: Path) -> None:
    dataset = open_dataset(write_lines(tmp_path, HEAD, FIRST, SECOND))
    assert (dataset.num_episodes, dataset.num_steps, dataset.about) == (2, 3, {"env": "Toy-v0"})
    assert (dataset.observation_space, dataset.action_space) == (
        spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3),
    )  # fmt: skip
    rows = dataset.rows(np.arange(3), next_obs=True)
    assert rows["obs"].tolist() == [[0, 0], [0, 1], [1, 0]]
    assert rows["next_obs"].tolist() == [[0, 1], [0, 2], [1, 1]]
    assert rows["obs"].dtype == rows["reward"].dtype == np.float32
    assert rows["action"].tolist() == [1, 2, 0]
    assert rows["action"].dtype == np.int64
    assert rows["reward"].tolist() == [0.5, 1, 3]
    assert rows["terminated"].tolist() == [False, True, False]
    assert rows["truncated"].tolist() == [False, False, True]


def test_an_episode_can_be_terminated_and_truncated(tmp_path: Path) -> None:
    rows = open_dataset(write_lines(tmp_path, HEAD, {**FIRST, "truncated": True})).rows(np.arange(2))
    assert (rows["terminated"].tolist(), rows["truncated"].tolist()) == ([False, True], [False, True])


def test_dict_observations_and_box_actions(tmp_path: Path) -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (1, 2), np.uint8), "level": spaces.Discrete(4)})
    head = {**HEAD, "observation_space": space_to_json(space), "action_space": space_to_json(spaces.Box(-1, 1, (1,)))}
    obs = {"image": [[[1, 2]], [[3, 255]]], "level": [0, 3]}
    dataset = open_dataset(
        write_lines(tmp_path, head, {"obs": obs, "action": [[0.5]], "reward": [1], "terminated": True})
    )
    rows = dataset.rows(np.array([0]), next_obs=True)
    assert (rows["obs"]["image"].tolist(), rows["next_obs"]["image"].tolist()) == ([[[1, 2]]], [[[3, 255]]])
    assert (rows["obs"]["level"].tolist(), rows["next_obs"]["level"].tolist()) == ([0], [3])
    assert rows["obs"]["image"].dtype == np.uint8


def test_it_can_be_saved_as_a_folder(tmp_path: Path) -> None:
    dataset = open_dataset(write_lines(tmp_path, HEAD, FIRST, SECOND))
    saved = save_dataset(dataset, tmp_path / "folder")
    assert saved.returns().tolist() == [1.5, 3]
    assert saved.about == {"env": "Toy-v0"}


def test_the_hash_is_that_of_the_contents(tmp_path: Path) -> None:
    first = open_dataset(write_lines(tmp_path, HEAD, FIRST, SECOND)).sha256
    assert open_dataset(write_lines(tmp_path, HEAD, FIRST)).sha256 != first
    assert open_dataset(write_lines(tmp_path, HEAD, FIRST, SECOND)).sha256 == first


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([], "the dataset is empty"),
        ([HEAD], "the dataset is empty: it has no episode"),
        (["{"], "line 1 is not JSON"),
        ([FIRST], "line 1 does not describe a dataset: schema is missing"),
        ([{**HEAD, "schema": 2}, FIRST], r"it has schema 2, and this version of raceway reads up to 1"),
        ([{**HEAD, "about": 3}, FIRST], "line 1 does not describe a dataset: about is 3"),
        ([{**HEAD, "action_space": {"type": "Text"}}, FIRST], "line 1 does not describe a dataset: unknown type"),
        ([HEAD, FIRST, ""], "line 3 is not JSON"),
        ([HEAD, FIRST, 7], "line 3 is not an episode: all of it is 7"),
        ([HEAD, {**FIRST, "terminated": 1}], "line 2 is not an episode: terminated is 1, not a bool"),
        ([HEAD, {**FIRST, "truncated": 1}], "line 2 is not an episode: truncated is 1, not a bool"),
        ([HEAD, {**SECOND, "truncated": False}], "do not all end with a step that is terminated or truncated"),
        ([HEAD, {"obs": [[0, 0]], "action": [], "reward": [], "terminated": True}], "it has no steps"),
        ([HEAD, {**FIRST, "obs": [[0, 0], [0, 1]]}], r"the observations, one more than rewards, .* \(2, 2\)"),
        ([HEAD, {**FIRST, "obs": [[0, 0], [0], [1]]}], "the observations, one more than rewards, do not fit"),
        ([HEAD, {**FIRST, "obs": {"a": [0]}}], "the observations"),
        ([HEAD, {**FIRST, "action": [0, 1, 2]}], r"the actions do not fit: an array of shape \(3,\); expected \(2,\)"),
        ([HEAD, {**FIRST, "action": [0, 3]}], r"action has 3 in row 1, which is not in Discrete\(3\)"),
        ([HEAD, {**FIRST, "action": [0.5, 1]}], "the actions do not fit: an array of float64"),
        ([HEAD, {**FIRST, "action": [1, 10**30]}], "the actions do not fit"),
        ([HEAD, {**FIRST, "reward": ["1", "2"]}], "the rewards do not fit"),
        ([HEAD, {**FIRST, "reward": [1, float("nan")]}], "reward has numbers that are not finite, in row 1"),
        ([HEAD, {**FIRST, "obs": [[0, 0], [0, 1e300], [0, 0]]}], "obs has numbers that are not finite"),
    ],
)  # fmt: skip
def test_bad_lines_are_errors_that_name_the_line(tmp_path: Path, docs: list[Any], message: str) -> None:
    path = write_lines(tmp_path, *docs)
    with pytest.raises(DatasetError, match=message) as raised:
        open_dataset(path)
    assert str(raised.value).startswith(f"{path}: ")
