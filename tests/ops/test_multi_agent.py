"""Workers that act for several agents save and restore the environments of every shard."""

from typing import Any

import numpy as np
import pytest

from raceway.checkpoints.encoding import decode, encode
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.flow import Shard
from raceway.ops.multi_agent import MultiRolloutSettings, MultiRolloutWorker, WholeEpisodes
from raceway.ops.rollouts import EnvSettings, RolloutSettings
from raceway.state import restore, state_of
from tests.example_agents import makes_actor
from tests.rollouts.test_multi_resume import assert_equal

SPREAD = ("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 7, "continuous_actions": True})
TIC_TAC_TOE: tuple[str, dict[str, Any]] = ("pettingzoo:pettingzoo.classic.tictactoe_v3", {})


def settings_for(env: str, kwargs: dict[str, Any]) -> MultiRolloutSettings:
    policy = RolloutSettings(
        env=EnvSettings("none"), num_shards=1, slots_per_shard=1, agent=makes_actor(hidden=(8,)), clip_actions=True
    )
    return MultiRolloutSettings(
        env=MultiAgentSettings(env, lambda _: "all", kwargs),
        num_shards=2,
        slots_per_shard=2,
        fragment_steps=5,
        policies={"all": policy},
        seed=4,
    )


@pytest.mark.parametrize("env", [SPREAD, TIC_TAC_TOE], ids=["parallel", "turn-based"])
def test_shards_continue_on_another_worker(env: tuple[str, dict[str, Any]]) -> None:
    settings = settings_for(*env)
    first, second = MultiRolloutWorker(settings, "rollouts-0"), MultiRolloutWorker(settings, "rollouts-1")
    shards = [Shard(number, 2) for number in range(2)]
    for shard in shards:
        assert first.state(shard=shard) is None
        for number in range(3):
            first.sample(shard=shard, number=number)
    states = [first.state(shard=shard) for shard in shards]
    for shard, state in zip(reversed(shards), reversed(states), strict=True):
        second.restore(state, shard=shard)
    for shard in shards:
        for number in (3, 4):
            assert_equal(first.sample(shard=shard, number=number), second.sample(shard=shard, number=number))
    for worker in (first, second):
        worker.close()


def test_actions_are_clipped_as_the_policy_says() -> None:
    worker = MultiRolloutWorker(settings_for(*SPREAD))
    batch = worker.sample(shard=Shard(0, 2), number=0)["all"]
    assert batch["action"].min() < 0  # outside of the Box, which the environment would refuse
    worker.close()


def fragment(rewards: list[list[int]], ended: list[list[int]], **columns: Any) -> dict[str, Any]:
    """Return a fragment, [T, B], whose observations and actions are the rewards; rewards of 0 are not valid."""
    reward = np.array(rewards, np.float32)
    over = np.array(ended, bool)
    batch = {"obs": reward[..., None], "action": reward.astype(int), "reward": reward, "valid": reward != 0}
    return {**batch, "terminated": over, "truncated": np.zeros_like(over), **columns}


def test_whole_episodes_are_put_together_from_fragments() -> None:
    episodes = WholeEpisodes(2)
    assert episodes(fragment([[1, 5], [2, 6]], [[0, 0], [0, 1]], episode_lost=np.array([9]))) == []
    saved = decode(*encode(state_of(episodes)))  # as a checkpoint holds it
    episodes = WholeEpisodes(2)
    restore(episodes, saved)
    (batch,) = episodes(fragment([[3, 0], [4, 7]], [[1, 0], [0, 0]]))  # the second agent is absent for a step
    assert batch["reward"].tolist() == [5, 6, 1, 2, 3]
    assert batch["obs"].ravel().tolist() == batch["action"].tolist() == [5, 6, 1, 2, 3]
    assert batch["length"].tolist() == [2, 3]
    assert batch["episode_lost"].tolist() == [9]
    # The open episodes of the first agent were dropped, so that 4 belongs to none.
    (batch,) = episodes(fragment([[1, 8], [2, 9]], [[0, 1], [1, 1]], restarted=np.array([True, False])))
    assert [batch["reward"].tolist(), batch["length"].tolist()] == [[1, 2, 7, 8, 9], [2, 2, 1]]
