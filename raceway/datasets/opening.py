"""`open_dataset`: a dataset of any format."""

from __future__ import annotations

from pathlib import Path

from raceway.datasets.dataset import Dataset
from raceway.datasets.folder import INDEX_FILE, read_folder
from raceway.datasets.joined import join_datasets
from raceway.datasets.jsonl import read_jsonl
from raceway.datasets.minari_format import is_minari_id, read_minari
from raceway.errors import DatasetError

RUN_DATASET = "dataset"
"""The folder of a run's own dataset, in the run directory."""


def open_dataset(source: str | Path) -> Dataset:
    """Open a dataset.

    Args:
        source: a folder that `raceway record` wrote; a run directory that has such a folder as `dataset`; a file of
            JSON lines, `.jsonl` (see `raceway.datasets.jsonl`); or the id of a dataset in Minari's local cache.
            Several of them, separated by commas, are joined.
    """
    sources = split_sources(source)
    if len(sources) > 1:
        return join_datasets([open_dataset(each) for each in sources])
    path = Path(source)
    if path.is_dir():
        for folder in (path, path / RUN_DATASET):
            if (folder / INDEX_FILE).exists():
                return read_folder(folder)
        if (path / "config.json").exists():
            raise DatasetError(path, f"this run has no dataset. Record one: raceway record {path} --episodes 100")
        raise DatasetError(path, f"it is not a dataset: it has no {INDEX_FILE}")
    if path.name == INDEX_FILE and path.exists():
        return read_folder(path.parent)
    if path.suffix == ".jsonl" and path.exists():
        return read_jsonl(path)
    if path.exists():
        raise DatasetError(path, "it is not a dataset: neither a folder nor a .jsonl file")
    if is_minari_id(str(source)):
        return read_minari(str(source))
    raise DatasetError(path, "there is no such file or directory. Record a dataset: raceway record RUN --dataset PATH")


def split_sources(source: str | Path) -> list[str]:
    """Return the sources that are separated by commas. A path that exists is one of them, with any name.

    >>> split_sources("data/expert,data/medium")
    ['data/expert', 'data/medium']
    """
    if "," not in str(source) or Path(source).exists():
        return [str(source)]
    return [each.strip() for each in str(source).split(",") if each.strip()]


def absolute_source(source: str | Path) -> str:
    """Return a source with absolute paths, for processes in other working directories."""
    paths = [(each, Path(each).absolute()) for each in split_sources(source)]
    return ",".join(str(path) if path.exists() else each for each, path in paths)
