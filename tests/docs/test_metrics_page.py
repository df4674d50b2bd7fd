"""docs/metrics.md lists every metric that an algorithm writes, and the algorithms that write it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names
from raceway.training.train import train
from tests.catalogue.small_settings import small_settings

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


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
def test_every_metric_is_documented(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset_for: Callable[[str], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(name, iterations=12, **small_settings(name, max_grad_norm=1.0, dataset=dataset_for(name)))
    written = {key for row in result.metrics for key in row} - {"returns", "counts"}
    documented = documented_metrics()
    assert any(re.fullmatch("train/(.+_)?loss", key) for key in written), "the run was too short for a gradient step"
    assert written - documented.keys() == set()
    assert {key for key in written if not is_written_by(name, documented[key])} == set()


def test_metrics_of_evaluations_failures_and_checkpoints_are_documented() -> None:
    expected = {
        "eval/mean_reward",
        "eval/std_reward",
        "eval/mean_ep_length",
        "eval/success_rate",
        "rollout/success_rate",
        "env/KEY_mean",
        "env/KEY_min",
        "env/KEY_max",
        "episode/NAME",
        "rollout/env_failures",
        "rollout/worker_restarts",
        "dataset/worker_restarts",
        "time/save_seconds",
    }
    assert expected <= documented_metrics().keys()


def test_metrics_are_listed_by_group() -> None:
    groups = [name.split("/")[0] for name in documented_metrics()]
    assert groups == sorted(groups, key=["time", "rollout", "dataset", "env", "episode", "train", "eval"].index)
