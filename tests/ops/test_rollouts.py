"""Workers that play: what a shard collects does not depend on who collects it, or after what."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.agents import Policy, make_policy
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.flow import Shard
from raceway.ops.rollouts import RolloutSettings, RolloutWorker, episodes_of_shard
from raceway.rl import Batch
from tests.rollouts.toy_envs import Counting, Fault, Walk

SHARDS = [Shard(number, 3, 11) for number in range(3)]


def settings_of(env: Any = Walk, **more: Any) -> RolloutSettings:
    given_settings = {"num_shards": 3, "slots_per_shard": 2, "seed": 11, "hidden": (8,), **more}
    return RolloutSettings(env=EnvSettings(env), **given_settings)


def policy_of(settings: RolloutSettings, seed: int = 0) -> Policy:
    slots = make_slots(settings.env, 1)
    policy = make_policy(slots.observation_space, slots.action_space, settings.network, settings.hidden, seed)
    slots.close()
    return policy


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("env", [Walk, "cartpole"])
@pytest.mark.parametrize("num_episodes", [1, 4, 13])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_whole_episodes_of_a_shard_are_the_same_wherever_it_plays(env: Any, num_episodes: int, network: str) -> None:
    settings = settings_of(env, num_episodes=num_episodes, network=network)
    weights = policy_of(settings).weights()
    alone, shared = RolloutWorker(settings, "alone"), RolloutWorker(settings, "shared")
    alone.set_weights(weights)
    shared.set_weights(weights)
    for number, shard in [(0, 1), (3, 0), (0, 2), (1, 0), (2, 1), (3, 2)]:
        shared.sample(shard=SHARDS[shard], number=number)
    for number in (2, 5):
        wanted = alone.sample(shard=SHARDS[1], number=number)
        assert_equal(shared.sample(shard=SHARDS[1], number=number), wanted)
        assert len(wanted["length"]) == sum(episodes_of_shard(settings, 1))


def test_fragments_of_a_shard_do_not_depend_on_other_shards() -> None:
    settings = settings_of(fragment_steps=7)
    alone, shared = RolloutWorker(settings), RolloutWorker(settings)
    for worker in (alone, shared):
        worker.set_weights(policy_of(settings).weights())
    for number in range(4):
        for other in (0, 2):
            shared.sample(shard=SHARDS[other], number=number)
        wanted = alone.sample(shard=SHARDS[1], number=number)
        assert wanted["reward"].shape == (7, 2)
        assert_equal(shared.sample(shard=SHARDS[1], number=number), wanted)


def test_fragments_go_on_where_the_shard_was() -> None:
    settings = settings_of(fragment_steps=4)
    worker = RolloutWorker(settings)
    last = {}
    for number in range(4):
        for shard in SHARDS:
            batch = worker.sample(shard=shard, number=number)
            if number:
                np.testing.assert_array_equal(batch["obs"][0], last[shard.number])
            last[shard.number] = batch["last_obs"]


def test_shards_and_numbers_differ() -> None:
    worker = RolloutWorker(settings_of(num_episodes=12))
    obs = [worker.sample(shard=shard, number=number)["obs"] for shard in SHARDS for number in range(3)]
    rows = np.concatenate(obs)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_environments_that_do_not_repeat_are_kept_to_their_shard() -> None:
    """Or what one shard plays would depend on what another played before in the same environments."""
    worker = RolloutWorker(settings_of(num_episodes=6, repeats_from_seed=False))
    for shard in SHARDS:
        worker.sample(shard=shard, number=0)
    assert sorted(worker._collectors) == [0, 1, 2]
    usual = RolloutWorker(settings_of(num_episodes=6))
    for shard in SHARDS:
        usual.sample(shard=shard, number=0)
    assert sorted(usual._collectors) == [0]


@pytest.mark.parametrize("after", [False, True])
def test_the_newest_weights_play(after: bool) -> None:
    """Whether they come before the first item or later."""
    settings = settings_of(num_episodes=9)
    worker, policy = RolloutWorker(settings), policy_of(settings)
    if after:
        drawn = worker.sample(shard=SHARDS[0], number=0)["action"]
        assert set(drawn.tolist()) == {0, 1, 2}
    for action in (1, 2):
        policy.weights()["network.3.bias"][:] = np.eye(3)[action] * 100
        worker.set_weights({name: array.copy() for name, array in policy.weights().items()})
        assert set(worker.sample(shard=SHARDS[0], number=1)["action"].tolist()) == {action}


def test_a_worker_says_who_it_is() -> None:
    settings = settings_of(lambda: Counting(0, [4], Fault("raises", 0, 2)), num_episodes=12)
    with pytest.raises(EnvironmentFailed) as raised:
        RolloutWorker(settings, "rollout-3").sample(shard=SHARDS[2], number=0)
    place, again = raised.value.place.split("\n")
    assert place == "worker rollout-3, shard 2, environment 0 of 2, step 2 of its episode"
    assert again.strip().startswith("failure 11 in a row")


def test_a_network_that_does_not_fit() -> None:
    settings = settings_of(num_episodes=1, network=lambda *_: None)
    with pytest.raises(ConfigError, match=r"which is not a torch\.nn\.Module"):
        RolloutWorker(settings).sample(shard=SHARDS[0], number=0)


def test_closing_closes_every_shards_environments() -> None:
    closed = []

    class Closing(Walk):
        def close(self) -> None:
            closed.append(self)

    worker = RolloutWorker(settings_of(Closing, fragment_steps=2))
    for shard in SHARDS:
        worker.sample(shard=shard, number=0)
    worker.close()
    assert len(closed) == 6
    worker.close()
    assert len(closed) == 6


@given(st.integers(0, 400), st.integers(1, 12), st.integers(1, 12))
def test_every_episode_is_dealt_out_once(num_episodes: int, num_shards: int, slots: int) -> None:
    settings = settings_of(num_shards=num_shards, slots_per_shard=slots, num_episodes=num_episodes)
    counts = [episodes_of_shard(settings, shard) for shard in range(num_shards)]
    assert all(len(each) == slots for each in counts)
    flat = [count for each in counts for count in each]
    assert sum(flat) == num_episodes
    assert max(flat) - min(flat) <= 1
    sums = [sum(each) for each in counts]
    assert max(sums) - min(sums) <= 1
    assert sums == sorted(sums, reverse=True)
