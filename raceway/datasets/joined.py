"""Several datasets as one, such as episodes of policies of different quality."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from raceway.datasets.dataset import Dataset
from raceway.errors import ConfigError
from raceway.rl.space_json import without_bounds


def join_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """Return the episodes of several datasets, one dataset after the other. Nothing is copied.

    They must have the same spaces, and those that name an environment the same one. What else is known of their
    recordings is kept where all agree.
    """
    if len(datasets) == 1:
        return datasets[0]
    first, *others = datasets
    for other in others:
        _check_same_spaces(first, other)
    abouts = [dataset.about for dataset in datasets]
    envs = {about["env"] for about in abouts if isinstance(about.get("env"), str)}
    if len(envs) > 1:
        raise ConfigError(f"datasets of different environments, {' and '.join(sorted(envs))}, cannot be joined.")
    about = {name: value for name, value in first.about.items() if all(other.get(name) == value for other in abouts)}
    parts = [part for dataset in datasets for part in dataset.parts]
    sha256 = hashlib.sha256(" ".join(dataset.sha256 for dataset in datasets).encode()).hexdigest()
    name = ",".join(dataset.name for dataset in datasets)
    return Dataset(name, first.observation_space, first.action_space, parts, about, sha256)


def _check_same_spaces(first: Dataset, other: Dataset) -> None:
    """Refuse to join datasets whose spaces differ by more than bounds."""
    for name in ("observation_space", "action_space"):
        one, another = getattr(first, name), getattr(other, name)
        if without_bounds(one) != without_bounds(another):
            what = name.replace("_", " ")
            raise ConfigError(
                f"the datasets {first.name} and {other.name} cannot be joined: the {what} of the one is {one}, and of "
                f"the other {another}."
            )
