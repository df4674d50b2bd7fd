"""docs/metrics.md lists every metric that an algorithm writes, and the algorithms that write it."""

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


def documented_metrics() -> dict[str, str]:
    """Return the metrics on the page, each with the text in its last column."""
    lines = re.findall(r"^\| `([^`]+)` \| .+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == len(dict(lines)), "a metric is listed twice"
    return dict(lines)


def is_written_by(algorithm: str, writers: str) -> bool:
    if writers.startswith("all but "):
        return algorithm not in writers.removeprefix("all but ").split(", ")
    return writers.startswith(("all", "runs")) or algorithm in writers.split(", ")


@pytest.mark.parametrize("name", algorithm_names())
def test_every_metric_is_documented(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = find_algorithm(name).config
    fields = {field.name for field in dataclasses.fields(config)}
    small = {setting: value for setting, value in SMALL.items() if setting in fields}
    result = train(name, env=config.env, iterations=12, engine="inline", **small)
    written = {key for row in result.metrics for key in row} - {"returns", "counts"}
    documented = documented_metrics()
    assert "train/loss" in written, "the run was too short for a gradient step"
    assert written - documented.keys() == set()
    assert {key for key in written if not is_written_by(name, documented[key])} == set()


def test_metrics_of_evaluations_failures_and_checkpoints_are_documented() -> None:
    expected = {
        "eval/mean_reward",
        "eval/std_reward",
        "eval/mean_ep_length",
        "rollout/env_failures",
        "rollout/worker_restarts",
        "time/save_seconds",
    }
    assert expected <= documented_metrics().keys()


def test_metrics_are_listed_by_group() -> None:
    groups = [name.split("/")[0] for name in documented_metrics()]
    assert groups == sorted(groups, key=["time", "rollout", "train", "eval"].index)
