"""Choosing the number of workers, and limiting them to the shards."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.algorithms.setting_sources import USER
from raceway.errors import ConfigError
from raceway.training.step_cost import StepCost
from raceway.training.worker_count import choose_workers, limit_workers

WAITING, COMPUTING = 0.0, 1.0


def cost_of(wall: float, cpu_share: float) -> StepCost:
    return StepCost(wall=wall, cpu=wall * cpu_share)


@pytest.mark.parametrize(
    ("wall", "cpu_share", "cores", "shards", "expected", "reason"),
    [
        (0.0, COMPUTING, 8, 10, 0, "takes 0 s, and starting workers would take longer than they save"),
        (24e-6, COMPUTING, 8, 10, 0, "takes 24 µs, and starting workers would take longer than they save"),
        (1e-3, COMPUTING, 2, 10, 2, "takes 1 ms of computing, so one for each of 2 cores"),
        (1e-3, COMPUTING, 1, 10, 0, "takes 1 ms of computing, and there is one core"),
        (1e-3, COMPUTING, 64, 10, 10, "takes 1 ms of computing, so one for each of 10 shards"),
        (1e-3, COMPUTING, 10, 10, 10, "takes 1 ms of computing, so one for each of 10 cores"),
        # Seven workers would need two rounds, as five do, with some idle in the second.
        (1e-3, COMPUTING, 7, 10, 5, "takes 1 ms of computing, so as many as 7 cores can feed and 10 shards keep busy"),
        (5e-2, COMPUTING, 2, 10, 2, "takes 50 ms of computing, so one for each of 2 cores"),
        (5e-2, COMPUTING, 1, 10, 0, "takes 50 ms of computing, and there is one core"),
        (5e-2, COMPUTING, 4, 1, 0, "takes 50 ms of computing, and there is one shard"),
        (5e-2, WAITING, 2, 10, 10, "takes 50 ms, mostly waiting, so one for each of 10 shards"),
        (5e-2, WAITING, 1, 10, 10, "takes 50 ms, mostly waiting, so one for each of 10 shards"),
        (5e-2, WAITING, 4, 1, 0, "takes 50 ms, mostly waiting, and there is one shard"),
        (1e-3, WAITING, 1, 4, 4, "takes 1 ms, mostly waiting, so one for each of 4 shards"),
        (1e-3, 0.3, 2, 10, 5, "takes 1 ms, mostly waiting, so as many as 2 cores can feed and 10 shards keep busy"),
        (1e-3, 4.0, 4, 10, 0, "takes 1 ms of computing, and it keeps every core busy by itself"),
        (1e-3, 2.0, 4, 10, 2, "takes 1 ms of computing, so as many as 4 cores can feed and 10 shards keep busy"),
    ],
)
def test_the_number_of_workers_and_the_reason(
    wall: float, cpu_share: float, cores: int, shards: int, expected: int, reason: str
) -> None:
    num_workers, text = choose_workers(cost_of(wall, cpu_share), cores, shards)
    assert num_workers == expected
    workers = f"{expected} workers" if expected else "no workers"
    assert text == f"{workers}: an environment step {reason}"


@given(st.floats(0, 1), st.floats(0, 8), st.integers(1, 200), st.integers(1, 100))
def test_there_is_never_one_worker_nor_more_than_shards(wall: float, cpu_share: float, cores: int, shards: int) -> None:
    num_workers, reason = choose_workers(cost_of(wall, cpu_share), cores, shards)
    assert num_workers != 1
    assert 0 <= num_workers <= shards
    assert reason.startswith(f"{num_workers} workers: " if num_workers else "no workers: ")


@given(st.floats(1e-4, 1), st.integers(1, 100), st.integers(1, 100))
def test_there_are_no_more_computing_workers_than_cores(wall: float, cores: int, shards: int) -> None:
    num_workers, _ = choose_workers(cost_of(wall, COMPUTING), cores, shards)
    assert num_workers <= cores
    num_workers = max(num_workers, 1)
    # Fewer rounds are impossible, and fewer workers would need more rounds.
    rounds = -(-shards // num_workers)
    assert rounds == -(-shards // min(cores, shards))
    assert num_workers == 1 or -(-shards // (num_workers - 1)) > rounds


def shards_cfg(num_workers: int, num_shards: int, num_envs: int = 12) -> Any:
    return SimpleNamespace(num_workers=num_workers, num_shards=num_shards, num_envs=num_envs)


def test_workers_that_have_a_shard_are_not_limited() -> None:
    for sources in ({}, {"num_shards": USER, "num_workers": USER}):
        assert limit_workers(shards_cfg(4, 4), sources, resumed=False) == (4, "")


@pytest.mark.parametrize(
    ("source", "num_workers", "resumed", "reason"),
    [
        ("preset", 5, False, "the preset has 3 shards.*With num_shards 6 all of them work, and the results differ"),
        ("default", 4, False, "the default is 3 shards.*With num_shards 4 "),
        ("adapted", 12, False, "there are 3 shards.*With num_shards 12 "),
        ("adapted", 13, False, "there are 3 shards[^.]*$"),  # more than environments
        ("preset", 5, True, "the preset has 3 shards[^.]*$"),  # which cannot change any more
    ],
)
def test_workers_without_a_shard_are_not_started(source: str, num_workers: int, resumed: bool, reason: str) -> None:
    sources = {"num_shards": source, "num_workers": USER}
    number, text = limit_workers(shards_cfg(num_workers, 3), sources, resumed=resumed)
    assert number == 3
    assert re.match(f"3 workers instead of {num_workers}: {reason}", text)


@pytest.mark.parametrize(("resumed", "advice"), [(False, ", or more shards"), (True, "")])
def test_more_workers_than_the_users_own_shards_are_an_error(resumed: bool, advice: str) -> None:
    text = rf"5 workers need at least as many shards, and num_shards is 3. Use at most 3 workers{advice}"
    with pytest.raises(ConfigError, match=text):
        limit_workers(shards_cfg(5, 3), {"num_shards": USER, "num_workers": USER}, resumed=resumed)
