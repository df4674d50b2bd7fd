"""The page of metrics has every name that an algorithm writes, and says of which algorithms it is."""

import dataclasses
import re
from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.training.train import train

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SMALL = {
    "num_envs": 4, "num_shards": 1, "fragment_steps": 8, "episodes_per_iter": 4, "num_minibatches": 2, "num_epochs": 1,
    "hidden": (8,), "learning_starts": 64, "batch_size": 16, "max_grad_norm": 1.0,
}  # fmt: skip


def names_on_the_page() -> dict[str, str]:
    """Return the names, and whose they are."""
    lines = re.findall(r"^\| `([^`]+)` \| .+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == len(dict(lines)), "a name is there twice"
    return dict(lines)


def is_of(algorithm: str, whose: str) -> bool:
    if whose.startswith("all but "):
        return algorithm not in whose.removeprefix("all but ").split(", ")
    return whose.startswith(("all", "runs")) or algorithm in whose.split(", ")


@pytest.mark.parametrize("name", algorithm_names())
def test_every_name_that_is_written_is_on_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_algorithm(name)
    known = {one.name for one in dataclasses.fields(found.config)}
    small = {setting: value for setting, value in SMALL.items() if setting in known}
    result = train(name, env=found.config.env, iterations=12, engine="inline", **small)
    written = {key for row in result.metrics for key in row} - {"returns"}
    page = names_on_the_page()
    assert "train/loss" in written, "it was too short to train"
    assert written - page.keys() == set()
    assert {key for key in written if not is_of(name, page[key])} == set()


def test_names_of_evaluations_failures_and_saving_are_on_the_page() -> None:
    wanted = {"eval/mean_reward", "eval/std_reward", "eval/mean_ep_length", "rollout/env_failures", "time/save_seconds"}
    assert wanted <= names_on_the_page().keys()


def test_names_are_in_their_groups() -> None:
    groups = [name.split("/")[0] for name in names_on_the_page()]
    assert groups == sorted(groups, key=["time", "rollout", "train", "eval"].index)
