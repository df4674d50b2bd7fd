"""The circular buffer: how often, when and for how long batches are given, its state, and what is counted."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raceway.algorithms import find_algorithm
from raceway.checkpoints.encoding import decode, encode
from raceway.errors import ConfigError
from raceway.flow import Iter
from raceway.flow._graph import empty_envelope
from raceway.ops import CircularBatches, TrainStats
from raceway.rl import Batch, is_repeated, num_steps
from raceway.state import restore, state_of
from raceway.training.train import Training


def batch_of(name: str) -> Batch:
    """Return a batch of four steps, in which an episode ended."""
    return {"name": np.array([ord(name)]), "reward": np.ones((2, 2), np.float32), "episode_return": np.array([7.0])}


def names(batches: list[Batch]) -> str:
    return "".join(chr(batch["name"][0]) for batch in batches)


def arrivals(num: int, times: int, batches: str) -> list[str]:
    """Return the batches that are given at each arrival, and then those at the end of the stream."""
    operator = CircularBatches(num, times)
    given = [names(operator(batch_of(name), envelope=empty_envelope())) for name in batches]
    return [*given, names(operator.finish())]


@pytest.mark.parametrize(
    ("num", "times", "expected"),
    [
        (2, 2, ["a", "ba", "cb", "dc", "d"]),
        (1, 1, ["a", "b", "c", "d", ""]),
        (1, 2, ["aa", "bb", "cc", "dd", ""]),
        (2, 1, ["a", "b", "c", "d", ""]),
        (2, 4, ["aa", "bbaa", "ccbb", "ddcc", "dd"]),
        (4, 2, ["a", "b", "ca", "db", "cd"]),
        (3, 2, ["a", "ba", "cb", "dc", "d"]),
    ],
)
def test_the_order_by_hand(num: int, times: int, expected: list[str]) -> None:
    assert arrivals(num, times, "abcd") == expected


@settings(max_examples=60, deadline=None)
@given(num=st.integers(1, 9), times=st.integers(1, 9), count=st.integers(0, 12))
def test_every_batch_is_given_exactly_k_times_and_dropped_after_n_newer_ones(num: int, times: int, count: int) -> None:
    batches = "abcdefghijkl"[:count]
    given = arrivals(num, times, batches)
    assert Counter("".join(given)) == dict.fromkeys(batches, times)
    for newest, group in enumerate(given[:-1]):
        assert group[0] == batches[newest]
        assert all(newest - batches.index(name) < num for name in group)


def test_only_the_first_time_has_steps_and_episodes_to_count() -> None:
    operator = CircularBatches(2, 2)
    operator(batch_of("a"), envelope=empty_envelope()._replace(version=5))
    new, again = operator(batch_of("b"), envelope=empty_envelope()._replace(version=8))
    assert names([new, again]) == "ba"
    assert (num_steps(new), num_steps(again)) == (4, 0)
    assert (is_repeated(new), is_repeated(again)) == (False, True)
    assert "version" not in new
    assert again["version"] == 5
    first, second = TrainStats.of(new), TrainStats.of(again)
    assert (first.num_steps, first.returns.tolist()) == (4, [7.0])
    assert (second.num_steps, second.returns.tolist()) == (0, [])


def test_its_state_round_trips() -> None:
    before, after = CircularBatches(4, 3), CircularBatches(4, 3)
    for name in "abc":
        before(batch_of(name), envelope=empty_envelope()._replace(version=1))
    restore(after, decode(*encode(state_of(before))))
    for name in "de":
        results = [operator(batch_of(name), envelope=empty_envelope()) for operator in (before, after)]
        assert names(results[0]) == names(results[1])
        for one, two in zip(*results, strict=True):
            assert one.keys() == two.keys()
            assert all(np.array_equal(one[key], two[key]) for key in one)
    assert names(before.finish()) == names(after.finish()) != ""


def test_a_saved_flow_goes_on_where_it_was() -> None:
    def flow() -> Iter[Batch]:
        return Iter.from_items([batch_of(name) for name in "abcdef"]).combine(CircularBatches(2, 2))

    whole = names(list(flow()))
    assert whole == "abacbdcedfef"
    for read in range(len(whole)):
        with flow().start() as run:
            start = names([next(run) for _ in range(read)])
            state = run.state()
        assert start + names(list(flow().restore(state))) == whole


def test_it_reads_no_further_than_it_has_to() -> None:
    read: list[str] = []

    def source() -> Iterator[Batch]:
        for name in "abcdef":
            read.append(name)
            yield batch_of(name)

    stream = Iter.from_items(source).combine(CircularBatches(2, 2))
    assert read == []
    with stream.start() as run:
        assert names([next(run)]) == "a"
        assert read == ["a"]
        assert names([next(run), next(run)]) == "ba"
        assert read == ["a", "b"]


@pytest.mark.parametrize(("num", "times"), [(0, 1), (1, 0), (2, True), (1.5, 1)])
def test_impossible_sizes_are_refused(num: Any, times: Any) -> None:
    with pytest.raises(ConfigError):
        CircularBatches(num, times)


def test_a_run_counts_every_step_once() -> None:
    algorithm = find_algorithm("impact")
    size = {"num_envs": 4, "num_shards": 2, "fragment_steps": 4, "batch_steps": 16, "hidden": (8,)}
    circular = {"num_batches": 4, "batch_uses": 2, "target_every": 3}
    cfg = algorithm.settings(env="cartpole", engine="inline", iterations=9, scale_rewards=True, **size, **circular)
    training = Training(algorithm, cfg)
    with training.open_flow(run=True) as flow:
        rows = list(flow.take(9))
    assert [row["time/total_timesteps"] for row in rows] == [16 * number for number in range(1, 10)]
    trained = training.learner.steps // 16
    assert trained in (9, 10)  # a row is complete when the next batch has come
    assert training.learner.version in (2 * trained - 2, 2 * trained - 3)  # the newest were not given again yet
    assert float(training.agent.rewards.count) == training.learner.steps  # type: ignore[operator, union-attr, arg-type]
    # In the end a batch is given again when two newer ones have come: after four gradient steps, and more in flight.
    assert rows[-1]["train/policy_lag"] >= 2
