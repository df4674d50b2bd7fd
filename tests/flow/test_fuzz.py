"""Random flows with random kills keep the laws of flows. `python -m tests.flow.fuzz` tries more of them."""

import pytest

from tests.flow.fuzz import Pool, check_seed

NUM_SEEDS = 48
NUM_TESTS = 4


@pytest.mark.parametrize("first", range(NUM_TESTS))
def test_random_flows_keep_the_laws_while_actors_are_killed(first: int) -> None:
    pool = Pool()
    try:
        num_kills = sum(check_seed(seed, pool).num_kills for seed in range(first, NUM_SEEDS, NUM_TESTS))
    finally:
        pool.close()
    assert num_kills > 0
