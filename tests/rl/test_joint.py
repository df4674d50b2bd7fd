"""The joint layout: agents side by side, and absent ones not valid."""

from typing import Any

import numpy as np
import pytest

from raceway.agents import make_policy
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.rl import Batch, joint, tree_map
from raceway.rollouts.multi_collector import MultiCollector
from tests.rollouts.test_multi_collector import collector

NUM_STEPS, NUM_ENVS, NUM_AGENTS = 5, 2, 3


def fragment(agents: list[int]) -> Batch:
    """Return a fragment whose values say which step, environment and agent they belong to."""
    values = 100.0 * np.arange(NUM_STEPS)[:, None, None] + 10 * np.arange(NUM_ENVS)[:, None] + np.array(agents)
    rows = values.reshape(NUM_STEPS, -1)
    return {
        "obs": {"left": np.stack([rows, -rows], -1), "right": rows},
        "action": rows.astype(np.int64),
        "reward": rows,
        "terminated": rows % 2 == 0,
        "truncated": rows % 3 == 0,
        "valid": rows % 5 != 0,
        "last_obs": {"left": np.stack([rows[-1], -rows[-1]], -1), "right": rows[-1]},
        "state": {"memory": np.stack([rows[0]] * 4, -1)},
        "agent": np.tile(agents, NUM_ENVS),
        "episode_return": np.array([1.0, 2.0]),
        "global_state": np.zeros((NUM_STEPS, NUM_ENVS, 7)),
    }


def test_permuting_agents_permutes_columns() -> None:
    order = [2, 0, 1]
    plain, permuted = joint(fragment([0, 1, 2]), NUM_AGENTS), joint(fragment(order), NUM_AGENTS)
    by_step = ("obs", "action", "reward", "terminated", "truncated", "valid")
    for name in by_step:
        tree_map(
            lambda left, right: np.testing.assert_array_equal(left[:, :, order], right), plain[name], permuted[name]
        )
    for name in ("last_obs", "state", "agent"):
        tree_map(lambda left, right: np.testing.assert_array_equal(left[:, order], right), plain[name], permuted[name])
    assert plain["obs"]["left"].shape == (NUM_STEPS, NUM_ENVS, NUM_AGENTS, 2)
    assert plain["reward"][4, 1, 2] == 412
    assert plain["global_state"].shape == (NUM_STEPS, NUM_ENVS, 7)
    assert plain["episode_return"].tolist() == [1, 2]
    assert list(plain) == list(fragment([0, 1, 2]))


def test_rows_of_absent_agents_are_not_valid() -> None:
    batch = joint(collector(num_envs=2).fragment()["b"], 2)  # `late`, and `whole`
    assert batch["valid"].shape == (6, 2, 2)
    assert batch["valid"][:, 0].T.tolist() == [[False, True, True, True, False, True], [True] * 6]
    assert batch["agent"].tolist() == [[0, 1], [0, 1]]
    assert (batch["obs"][~batch["valid"]] == 0).all()
    np.testing.assert_array_equal(batch["obs"][batch["valid"]][:, 1], 1 + np.nonzero(batch["valid"])[2])


def test_the_global_state_is_that_of_the_same_step() -> None:
    kwargs = {"max_cycles": 4}
    settings: Any = MultiAgentSettings("pettingzoo:mpe2.simple_spread_v3", lambda _: "all", kwargs, global_state=True)
    policy = make_policy(*settings.spaces()["all"], hidden=(4,), seed=0)
    batch = joint(MultiCollector(settings, 2, {"all": policy}, 6, seed=0, shard=0).fragment()["all"], 3)
    # The state of a particle environment is what all of its agents observe.
    np.testing.assert_array_equal(batch["global_state"], batch["obs"].reshape(6, 2, -1))
    np.testing.assert_array_equal(batch["last_global_state"], batch["last_obs"].reshape(2, -1))
    final = batch["final_global_state"].reshape(2, 3, 3, 18)  # environment, agent, and all agents' observations
    for agent in range(3):
        np.testing.assert_array_equal(final[:, agent, agent], batch["final_obs"].reshape(2, 3, 18)[:, agent])


def test_wrong_numbers_of_agents_and_turn_based_fragments_raise() -> None:
    with pytest.raises(ValueError, match="6 slots are not a multiple of 4 agents"):
        joint(fragment([0, 1, 2]), 4)
    with pytest.raises(ValueError, match="no joint layout"):
        joint({**fragment([0, 1, 2]), "num_turns": np.zeros(6, np.int64)}, 3)
