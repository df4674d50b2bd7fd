"""`open_dataset` finds out what it is given."""

from pathlib import Path

import numpy as np
import pytest

from raceway.datasets import DatasetWriter, open_dataset
from raceway.datasets.opening import absolute_source
from raceway.errors import ConfigError, DatasetError
from tests.datasets.toy_data import PARTS, POINT, TURNS, episodes, write


def test_a_folder_its_index_or_a_run_with_a_dataset(tmp_path: Path) -> None:
    write(tmp_path / "run" / "dataset", episodes([3]))
    folder = tmp_path / "run" / "dataset"
    for source in (folder, str(folder), folder / "dataset.json", tmp_path / "run"):
        assert open_dataset(source).name == str(folder)


def test_what_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    run, folder, file = tmp_path / "run", tmp_path / "folder", tmp_path / "data.csv"
    run.mkdir()
    (run / "config.json").write_text("{}")
    folder.mkdir()
    file.write_text("1,2")
    with pytest.raises(DatasetError, match=r"run: this run has no dataset\. Record one: raceway record .*run --"):
        open_dataset(run)
    with pytest.raises(DatasetError, match=r"folder: it is not a dataset: it has no dataset\.json"):
        open_dataset(folder)
    with pytest.raises(DatasetError, match=r"data\.csv: it is not a dataset: neither a folder nor a \.jsonl file"):
        open_dataset(file)
    with pytest.raises(DatasetError, match=r"nothing: there is no such file or directory\. Record a dataset"):
        open_dataset(tmp_path / "nothing")


def test_several_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = write(Path("one"), episodes([3, -2])), write(Path("other"), episodes([1], 5), episodes([2], 6))
    joined = open_dataset("one, other")
    assert (joined.name, joined.num_episodes, joined.num_steps) == ("one,other", 4, 8)
    assert joined.returns().tolist() == [*one.returns(), *other.returns()]
    assert joined.rows(np.arange(8))["reward"].tolist() == list(range(8))
    assert joined.about == one.about
    assert len({joined.sha256, one.sha256, other.sha256, open_dataset("other,one").sha256}) == 4
    assert joined.sha256 == open_dataset(absolute_source("one,other")).sha256
    assert absolute_source("one,D4RL/pen/human-v2") == f"{tmp_path / 'one'},D4RL/pen/human-v2"


def test_a_comma_may_be_part_of_a_name(tmp_path: Path) -> None:
    write(tmp_path / "a,b", episodes([3]))
    assert open_dataset(tmp_path / "a,b").num_episodes == 1


def test_only_datasets_of_one_environment_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "one", episodes([3]))
    write(tmp_path / "other", episodes([3], action_space=PARTS), action_space=PARTS)
    with DatasetWriter(tmp_path / "elsewhere", POINT, TURNS, {"env": "Other-v0"}) as writer:
        writer.add(episodes([3]))
    with pytest.raises(ConfigError, match=r"one and .*other cannot be joined: the action space of the one is"):
        open_dataset(f"{tmp_path / 'one'},{tmp_path / 'other'}")
    with pytest.raises(ConfigError, match="different environments, Other-v0 and Toy-v0, cannot be joined"):
        open_dataset(f"{tmp_path / 'one'},{tmp_path / 'elsewhere'}")
