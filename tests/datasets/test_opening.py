"""`open_dataset` finds out what it is given."""

from pathlib import Path

import pytest

from raceway.datasets import open_dataset
from raceway.errors import DatasetError
from tests.datasets.toy_data import episodes, write


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
