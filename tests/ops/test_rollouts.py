"""The items of a shard depend neither on the worker that collects them nor on the items before."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.agents import Agent, Spaces
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.flow import Shard
from raceway.ops.rollouts import RolloutSettings, RolloutWorker, episodes_of_shard
from raceway.rl import Batch
from tests.example_agents import makes_actor
from tests.rollouts.toy_envs import Counting, Fault, Walk

SHARDS = [Shard(number, 3, 11) for number in range(3)]


def settings_of(env: Any = Walk, *, network: Any = "mlp", **changed: Any) -> RolloutSettings:
    settings = {"num_shards": 3, "slots_per_shard": 2, "seed": 11, **changed}
    return RolloutSettings(env=EnvSettings(env), agent=makes_actor(network), **settings)


def agent_of(settings: RolloutSettings, seed: int = 0) -> Agent:
    slots = make_slots(settings.env, 1)
    agent = settings.make_agent(Spaces(slots.observation_space, slots.action_space), seed)
    slots.close()
    return agent


def assert_equal(batch: Batch, other: Batch) -> None:
    assert batch.keys() == other.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name])


@pytest.mark.parametrize("env", [Walk, "cartpole"])
@pytest.mark.parametrize("num_episodes", [1, 4, 13])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_whole_episodes_of_a_shard_are_the_same_on_every_worker(env: Any, num_episodes: int, network: str) -> None:
    settings = settings_of(env, num_episodes=num_episodes, network=network)
    weights = agent_of(settings).weights()
    alone, shared = RolloutWorker(settings, "alone"), RolloutWorker(settings, "shared")
    alone.set_weights(weights)
    shared.set_weights(weights)
    for number, shard in [(0, 1), (3, 0), (0, 2), (1, 0), (2, 1), (3, 2)]:
        shared.sample(shard=SHARDS[shard], number=number)
    for number in (2, 5):
        expected = alone.sample(shard=SHARDS[1], number=number)
        assert_equal(shared.sample(shard=SHARDS[1], number=number), expected)
        assert len(expected["length"]) == sum(episodes_of_shard(settings, 1))


def test_fragments_of_a_shard_do_not_depend_on_other_shards() -> None:
    settings = settings_of(fragment_steps=7)
    alone, shared = RolloutWorker(settings), RolloutWorker(settings)
    for worker in (alone, shared):
        worker.set_weights(agent_of(settings).weights())
    for number in range(4):
        for other in (0, 2):
            shared.sample(shard=SHARDS[other], number=number)
        expected = alone.sample(shard=SHARDS[1], number=number)
        assert expected["reward"].shape == (7, 2)
        assert_equal(shared.sample(shard=SHARDS[1], number=number), expected)


def test_fragments_continue_those_of_their_shard() -> None:
    settings = settings_of(fragment_steps=4)
    worker = RolloutWorker(settings)
    last_obs = {}
    for number in range(4):
        for shard in SHARDS:
            batch = worker.sample(shard=shard, number=number)
            if number:
                np.testing.assert_array_equal(batch["obs"][0], last_obs[shard.number])
            last_obs[shard.number] = batch["last_obs"]


def test_items_of_different_shards_and_numbers_differ() -> None:
    worker = RolloutWorker(settings_of(num_episodes=12))
    obs = [worker.sample(shard=shard, number=number)["obs"] for shard in SHARDS for number in range(3)]
    rows = np.concatenate(obs)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_environments_that_do_not_repeat_from_seed_belong_to_one_shard() -> None:
    """Otherwise the items of a shard would depend on those of others in the same environments."""
    worker = RolloutWorker(settings_of(num_episodes=6, repeats_from_seed=False))
    for shard in SHARDS:
        worker.sample(shard=shard, number=0)
    assert sorted(worker._collectors) == [0, 1, 2]
    shared = RolloutWorker(settings_of(num_episodes=6))
    for shard in SHARDS:
        shared.sample(shard=shard, number=0)
    assert sorted(shared._collectors) == [0]


@pytest.mark.parametrize("after", [False, True])
def test_the_newest_weights_are_used(after: bool) -> None:
    """Whether they are set before the first item or later."""
    settings = settings_of(num_episodes=9)
    worker, agent = RolloutWorker(settings), agent_of(settings)
    if after:
        actions = worker.sample(shard=SHARDS[0], number=0)["action"]
        assert set(actions.tolist()) == {0, 1, 2}
    for action in (1, 2):
        agent.weights()["actor.network.3.bias"][:] = np.eye(3)[action] * 100
        worker.set_weights({name: array.copy() for name, array in agent.weights().items()})
        assert set(worker.sample(shard=SHARDS[0], number=1)["action"].tolist()) == {action}


def test_a_failure_names_its_worker() -> None:
    settings = settings_of(lambda: Counting(0, [4], Fault("raises", 0, 2)), num_episodes=12)
    with pytest.raises(EnvironmentFailed) as raised:
        RolloutWorker(settings, "rollout-3").sample(shard=SHARDS[2], number=0)
    place, budget = raised.value.place.split("\n")
    assert place == "worker rollout-3, shard 2, environment 0 of 2, step 2 of its episode"
    assert budget.strip().startswith("failure 11 in a row")


def test_a_network_that_is_no_module_raises() -> None:
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
def test_episodes_are_divided_evenly_over_shards_and_slots(num_episodes: int, num_shards: int, slots: int) -> None:
    settings = settings_of(num_shards=num_shards, slots_per_shard=slots, num_episodes=num_episodes)
    counts = [episodes_of_shard(settings, shard) for shard in range(num_shards)]
    assert all(len(shard_counts) == slots for shard_counts in counts)
    flat = [count for shard_counts in counts for count in shard_counts]
    assert sum(flat) == num_episodes
    assert max(flat) - min(flat) <= 1
    sums = [sum(shard_counts) for shard_counts in counts]
    assert max(sums) - min(sums) <= 1
    assert sums == sorted(sums, reverse=True)
