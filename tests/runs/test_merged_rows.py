"""Rows of metrics that fast iterations share: their number is bounded, and their counts, sums and means are exact."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from raceway.runs.merged_rows import MAX_RETURNS, RowMerger, is_sum

LATEST = ("time/iterations", "time/total_timesteps", "time/episodes", "rollout/ep_rew_mean", "rollout/env_failures")


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def iterations(num: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return the metrics of iterations, in which episodes and gradient steps are missing at random."""
    rng, rows, episodes = random.Random(seed), list[dict[str, Any]](), 0
    for number in range(1, num + 1):
        returns = [rng.uniform(-5, 500) for _ in range(rng.choice([0, 0, 1, 7]))]
        episodes += len(returns)
        row = {
            "time/iterations": number, "time/total_timesteps": 100 * number, "time/episodes": episodes,
            "rollout/ep_rew_mean": rng.uniform(0, 500) if episodes else None,
            "rollout/iteration_rew_mean": sum(returns) / len(returns) if returns else None,
            "time/rollouts_seconds": rng.random(), "train/policy_lag": rng.randrange(5), "returns": returns,
        }  # fmt: skip
        row |= {"rollout/env_failures": number // 3} if number >= 3 else {}
        row |= {"train/loss": rng.gauss(0, 1)} if rng.random() < 0.7 else {}
        rows.append(row)
    return rows


def total(rows: list[dict[str, Any]], name: str) -> tuple[float, int]:
    """Return the sum of a metric over all iterations of rows, and the number of iterations that have it."""
    weighted = [
        (row[name], row.get("counts", {}).get(name, row.get("time/row_iterations", 1)))
        for row in rows
        if row.get(name) is not None
    ]
    return math.fsum(value * (1 if is_sum(name) else count) for value, count in weighted), sum(
        count for _, count in weighted
    )


@pytest.mark.parametrize("seed", range(10))
def test_counts_sums_and_means_are_exact(seed: int) -> None:
    rng, clock, metrics = random.Random(seed), Clock(), iterations(300, seed)
    merger, rows = RowMerger(0.25, clock), list[dict[str, Any] | None]()
    for row in metrics:
        clock.now += rng.expovariate(100)
        rows.append(merger.add(row))
        if rng.random() < 0.02:
            rows.append(merger.take())  # a checkpoint is saved
    merged = [row for row in [*rows, merger.take()] if row is not None]
    assert len(merged) < 50
    for name in ("train/loss", "train/policy_lag"):
        assert total(merged, name) == pytest.approx(total(metrics, name))
    assert total(merged, "time/rollouts_seconds")[0] == pytest.approx(total(metrics, "time/rollouts_seconds")[0])
    assert {name: merged[-1][name] for name in LATEST} == {name: metrics[-1][name] for name in LATEST}
    assert sum(row["time/row_iterations"] for row in merged) == 300
    assert sum(row["rollout/row_episodes"] for row in merged) == metrics[-1]["time/episodes"]
    returns = [value for row in metrics for value in row["returns"]]
    assert [value for row in merged for value in row["returns"]] == returns
    means = [(row["rollout/iteration_rew_mean"], row["rollout/row_episodes"]) for row in merged]
    assert sum(mean * count for mean, count in means if mean is not None) == pytest.approx(sum(returns))


def test_an_interval_of_zero_leaves_rows_as_they_are() -> None:
    clock = Clock()
    merger = RowMerger(0.0, clock)
    for row in iterations(20):
        assert merger.add(row) == row | {"time/row_iterations": 1, "rollout/row_episodes": len(row["returns"])}
    assert merger.take() is None


def test_a_slow_iteration_has_its_own_row() -> None:
    clock = Clock()
    merger = RowMerger(0.25, clock)
    for row in iterations(5):
        clock.now += 0.3
        merged = merger.add(row)
        assert merged is not None
        assert merged["time/row_iterations"] == 1


def test_a_row_ends_with_an_evaluation() -> None:
    first, second, third = iterations(3)
    merger = RowMerger(math.inf, Clock())
    merger.add(first | {"eval/mean_reward": 1.0})
    assert merger.add(second) is None
    row = merger.add(third | {"eval/mean_reward": 2.0})
    assert row is not None
    assert (row["time/row_iterations"], row["eval/mean_reward"]) == (2, 2.0)


@pytest.mark.parametrize(
    ("values", "merged"),
    [
        ([np.uint8(200)] * 3, 200.0),
        ([np.float32(100.1)] * 5000, float(np.float32(100.1))),
        ([torch.tensor(1), torch.tensor(2.0, requires_grad=True), np.array(6.0)], 3.0),
        ([True, False], 0.5),
        ([1.0, None, 2.0], 1.5),
        ([None, 2.0], 2.0),
        ([1.0, "x"], "x"),
        (["x", 1.0], 1.0),
        (["1", "2"], "2"),
        ([1.0, [1, 2]], [1, 2]),
    ],
)
def test_numbers_of_any_type_are_averaged_and_anything_else_has_its_latest_value(
    values: list[Any], merged: Any
) -> None:
    merger, first = RowMerger(math.inf, Clock()), iterations(1)[0]
    merger.add(first)
    for value in values:
        merger.add(first | {"train/metric": value})
    row = merger.take()
    assert row is not None
    assert row["train/metric"] == (pytest.approx(merged, rel=1e-12) if isinstance(merged, float) else merged)
    assert row["time/row_iterations"] == len(values)


def test_a_row_keeps_the_latest_returns_and_the_mean_of_all() -> None:
    merger = RowMerger(math.inf, Clock())
    merger.add(iterations(1)[0])  # the first iteration has its own row
    for number in range(3):
        returns = [float(number)] * 600
        merger.add({"time/iterations": number, "rollout/iteration_rew_mean": float(number), "returns": returns})
    row = merger.take()
    assert row is not None
    assert row["returns"] == [1.0] * (MAX_RETURNS - 600) + [2.0] * 600
    assert (row["rollout/row_episodes"], row["rollout/iteration_rew_mean"]) == (1800, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_means_minima_and_maxima_over_episodes_are_exact(seed: int) -> None:
    """Iterations have different numbers of episodes, and some have none. A row of one iteration is unchanged."""
    rng, first = random.Random(seed), iterations(1)[0]
    merger, values, extremes = RowMerger(math.inf, Clock()), dict[str, list[float]](), list[float]()
    merger.add(first)  # the first iteration has its own row
    for _ in range(50):
        metrics, counts = dict[str, Any](), dict[str, int]()
        for name in ("env/x_mean", "episode/x_min"):
            numbers = [rng.gauss(0, 10) for _ in range(rng.choice([0, 1, 5]))]
            values.setdefault(name, []).extend(numbers)
            if numbers:
                metrics[name], counts[name] = math.fsum(numbers) / len(numbers), len(numbers)
                if name == "env/x_mean":
                    metrics |= {"env/x_min": min(numbers), "env/x_max": max(numbers)}
                    extremes += numbers
        assert merger.add(first | metrics | ({"counts": counts} if counts else {})) is None
    row = merger.take()
    assert row is not None
    for name, numbers in values.items():
        assert row[name] == pytest.approx(math.fsum(numbers) / len(numbers), rel=1e-12)
        assert row["counts"][name] == len(numbers)
    assert (row["env/x_min"], row["env/x_max"]) == (min(extremes), max(extremes))


def test_a_row_of_one_iteration_keeps_the_means_over_episodes() -> None:
    row = iterations(1)[0] | {"env/x_mean": 0.1, "env/x_min": 0.1, "env/x_max": 0.1, "counts": {"env/x_mean": 3}}
    assert RowMerger(0.0, Clock()).add(row) == row | {
        "time/row_iterations": 1,
        "rollout/row_episodes": len(row["returns"]),
    }


def test_a_success_rate_is_that_of_the_last_iteration() -> None:
    merger, first = RowMerger(math.inf, Clock()), iterations(1)[0]
    merger.add(first)
    for rate in (0.25, 0.75):
        merger.add(first | {"rollout/success_rate": rate})
    row = merger.take()
    assert row is not None
    assert row["rollout/success_rate"] == 0.75
    assert "counts" not in row


def test_metrics_of_policies_are_merged_like_those_of_the_run() -> None:
    merger, rows = RowMerger(1e9, clock=lambda: 0.0), iterations(3)
    assert merger.add(rows[0]) is not None  # the first row is never held back
    for number, (mean, episodes) in enumerate([(1.0, 1), (4.0, 3)], 2):
        own = {"time/pair/iterations": number, "rollout/pair/ep_rew_mean": mean, "train/pair/loss": mean}
        own |= {"rollout/pair/iteration_rew_mean": mean, "counts": {"rollout/pair/iteration_rew_mean": episodes}}
        assert merger.add({**rows[number - 1], **own}) is None
    merged = merger.take()
    assert merged is not None
    assert merged["time/pair/iterations"] == 3
    assert merged["rollout/pair/ep_rew_mean"] == 4.0  # the latest
    assert merged["train/pair/loss"] == 2.5  # the mean over iterations
    assert merged["rollout/pair/iteration_rew_mean"] == (1.0 + 3 * 4.0) / 4  # the mean over episodes
