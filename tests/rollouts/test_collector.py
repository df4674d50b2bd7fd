"""No step is lost, duplicated or assigned to another episode, however environments are stepped and reset."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from raceway.agents import make_policy
from raceway.rl import Batch, num_steps, row_of
from raceway.rl.seeding import episode_seed
from raceway.rollouts.collector import Collector
from tests.envs.toy_envs import Samples, as_tree, assert_same
from tests.rollouts.toy_envs import KINDS, Counting, Walk, slots_of

PLANS = [[3, -1, 5], [-4, 4], [2, -2, 7, 1]]
"""Lengths of the episodes of three environments, negative for those that are truncated."""

kinds = pytest.mark.parametrize("kind", KINDS)


def collector_of(kind: str, envs: Sequence[Any], network: Any = "mlp", **settings: int) -> Collector:
    policy = make_policy(envs[0].observation_space, envs[0].action_space, network, (8,), seed=0)
    return Collector(slots_of(kind, envs), policy, **{"seed": 3, "shard": 5, **settings})


def counting(plans: Sequence[Sequence[int]] = PLANS, **more: Any) -> list[Counting]:
    return [Counting(name, plan, **more) for name, plan in enumerate(plans)]


def assert_whole(batch: Batch, envs: Sequence[Counting], counts: Sequence[int], since: Sequence[int]) -> None:
    """Compare a batch with the episodes of its environments: the first `counts` of each, after number `since`."""
    episodes = [ep for env, num, first in zip(envs, counts, since, strict=True) for ep in env.since(first)[:num]]
    assert len(episodes) == sum(counts)
    np.testing.assert_array_equal(batch["length"], [len(ep.steps) for ep in episodes])
    np.testing.assert_array_equal(batch["obs"], np.reshape([obs for ep in episodes for obs in ep.obs[:-1]], (-1, 3)))
    np.testing.assert_array_equal(batch["final_obs"], np.reshape([ep.obs[-1] for ep in episodes], (-1, 3)))
    steps = [step for ep in episodes for step in ep.steps]
    for column, name in enumerate(["action", "reward", "terminated", "truncated"]):
        np.testing.assert_array_equal(batch[name], [step[column] for step in steps])
    assert num_steps(batch) == len(steps)
    ends = np.cumsum(batch["length"]) - 1
    np.testing.assert_array_equal(np.flatnonzero(batch["terminated"] | batch["truncated"]), ends)


def num_episodes(envs: Sequence[Counting]) -> list[int]:
    return [len(env.episodes) for env in envs]


# Whole episodes.


@kinds
@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 3, 3], [4, 1, 2], [0, 2, 3], [0, 0, 1]])
def test_whole_episodes(kind: str, counts: list[int]) -> None:
    """Over several calls: slots that have finished, or have no episodes at all, do not disturb the others."""
    envs = counting()
    collector = collector_of(kind, envs)
    for number in range(4):
        since = num_episodes(envs)
        assert_whole(collector.episodes(counts, number), envs, counts, since)


@kinds
def test_every_reward_occurs_once(kind: str) -> None:
    envs = counting()
    collector = collector_of(kind, envs)
    rewards = np.concatenate([collector.episodes([2, 3, 1], number)["reward"] for number in range(5)])
    assert len(set(rewards.tolist())) == len(rewards)


def test_stepped_environments_take_no_unused_step() -> None:
    envs = counting()
    collector = collector_of("stepped", envs)
    total = sum(num_steps(collector.episodes([4, 0, 2], number)) for number in range(3))
    assert total == sum(len(episode.steps) for env in envs for episode in env.episodes)
    assert [len(env.since(0)) for env in envs] == [12, 0, 6]


@pytest.mark.parametrize("kind", ["stepped", "DISABLED"])
def test_every_episode_begins_with_its_own_seed(kind: str) -> None:
    envs = counting()
    collector = collector_of(kind, envs)
    counts = [2, 1, 3]
    for number in range(3):
        since = num_episodes(envs)
        collector.episodes(counts, number)
        for slot, (env, count) in enumerate(zip(envs, counts, strict=True)):
            episodes = range(number * count, (number + 1) * count)
            expected = [episode_seed(3, 5, slot, episode) for episode in episodes]
            assert [episode.seed for episode in env.since(since[slot])[:count]] == expected


@kinds
def test_no_episodes_at_all(kind: str) -> None:
    envs = counting()
    batch = collector_of(kind, envs).episodes([0, 0, 0])
    assert {name: np.shape(column) for name, column in batch.items()} == {
        "obs": (0, 3),
        "action": (0,),
        "reward": (0,),
        "terminated": (0,),
        "truncated": (0,),
        "length": (0,),
        "final_obs": (0, 3),
        "episode_lost": (0,),
    }
    assert num_episodes(envs) == [0, 0, 0]


@kinds
def test_episodes_longer_than_the_initial_arrays(kind: str) -> None:
    plans = [[511, -1300, 2], [1, 512, -513], [-512, 514]]
    envs = counting(plans)
    collector = collector_of(kind, envs)
    for number, counts in enumerate([[2, 3, 1], [3, 1, 2]]):
        since = num_episodes(envs)
        assert_whole(collector.episodes(counts, number), envs, counts, since)


def test_a_batch_is_not_changed_by_the_next() -> None:
    collector = collector_of("stepped", counting())
    batch = collector.episodes([2, 2, 2])
    copies = {name: column.copy() for name, column in batch.items()}
    collector.episodes([3, 1, 2], number=1)
    collector.fragment(9)
    for name, column in copies.items():
        np.testing.assert_array_equal(batch[name], column)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whole_episodes_of_any_length(data: st.DataObject) -> None:
    lengths = st.integers(-9, 9).filter(bool)
    kind = data.draw(st.sampled_from(KINDS))
    plans = data.draw(st.lists(st.lists(lengths, min_size=1, max_size=4), min_size=1, max_size=4))
    envs = counting(plans)
    collector = collector_of(kind, envs)
    for number in range(data.draw(st.integers(1, 3))):
        counts = [data.draw(st.integers(0, 3)) for _ in envs]
        since = num_episodes(envs)
        assert_whole(collector.episodes(counts, number), envs, counts, since)


# Fragments.


def assert_fragments(batches: Sequence[Batch], envs: Sequence[Counting], kind: str) -> None:
    """Compare consecutive fragments with all episodes of their environments."""
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in ("obs", "action", "reward")}
    flags = {name: np.concatenate([batch[name] for batch in batches]) for name in ("terminated", "truncated")}
    ended = flags["terminated"] | flags["truncated"]
    assert all(("valid" in batch) == (kind == "NEXT_STEP") for batch in batches)
    valid = np.concatenate([batch.get("valid", np.ones(batch["reward"].shape, bool)) for batch in batches])
    # A reset takes an extra step, unless all environments have ended and are reset together.
    expected = np.ones_like(valid)
    if kind == "NEXT_STEP":
        expected[1:] = ~ended[:-1] | ended[:-1].all(1, keepdims=True)
    np.testing.assert_array_equal(valid, expected)
    assert not ended[~valid].any()
    for slot, env in enumerate(envs):
        steps = [step for episode in env.episodes for step in episode.steps]
        counts = valid[:, slot]
        obs = [row for episode in env.episodes for row in episode.obs[:-1]]
        np.testing.assert_array_equal(rows["obs"][counts, slot], obs)
        for column, values in enumerate([rows["action"], rows["reward"], *flags.values()]):
            np.testing.assert_array_equal(values[counts, slot], [step[column] for step in steps])
    assert sum(num_steps(batch) for batch in batches) == valid.sum()
    _assert_ends(batches, envs)


def _assert_ends(batches: Sequence[Batch], envs: Sequence[Counting]) -> None:
    """Compare the last observations of truncated episodes, and the totals of those that ended, in the order of rows."""
    ended = [[ep for ep in env.since(0) if ep.steps[-1][2] or ep.steps[-1][3]] for env in envs]
    for batch in batches:
        final, returns, lengths = [], [], []
        for row, slot in np.argwhere(batch["terminated"] | batch["truncated"]).tolist():
            episode = ended[slot].pop(0)
            returns.append(sum(step[1] for step in episode.steps))
            lengths.append(len(episode.steps))
            if batch["truncated"][row, slot]:
                final.append(episode.obs[-1])
        np.testing.assert_array_equal(batch["final_obs"], np.reshape(final, (-1, 3)))
        np.testing.assert_array_equal(batch["episode_return"], returns)
        np.testing.assert_array_equal(batch["episode_length"], lengths)
    assert ended == [[]] * len(envs)


@kinds
@pytest.mark.parametrize("steps", [[1] * 12, [7] * 5, [4, 11, 1, 30], [600, 3, 520]])
def test_fragments(kind: str, steps: list[int]) -> None:
    """They cut episodes, and continue them."""
    envs = counting()
    collector = collector_of(kind, envs)
    batches = []
    for number, num in enumerate(steps):
        batch = collector.fragment(num, number)
        assert batch["obs"].shape == (num, 3, 3)
        assert batch["reward"].shape == batch["terminated"].shape == batch["truncated"].shape == (num, 3)
        np.testing.assert_array_equal(batch["last_obs"], [env.episodes[-1].obs[-1] for env in envs])
        if batches:
            np.testing.assert_array_equal(batch["obs"][0], batches[-1]["last_obs"])
        batches.append(batch)
    assert_fragments(batches, envs, kind)


@kinds
def test_fragments_of_episodes_that_end_together(kind: str) -> None:
    envs = counting([[3, 2], [3, -2], [-3, 2]])
    collector = collector_of(kind, envs)
    assert_fragments([collector.fragment(num) for num in (3, 2, 4, 6)], envs, kind)


@kinds
def test_fragments_of_a_single_environment(kind: str) -> None:
    envs = counting([[3, -1, 5]])
    collector = collector_of(kind, envs)
    assert_fragments([collector.fragment(4, number) for number in range(6)], envs, kind)


@kinds
def test_fragments_within_one_long_episode(kind: str) -> None:
    envs = counting([[-1500], [1001]])
    collector = collector_of(kind, envs)
    batches = [collector.fragment(400, number) for number in range(5)]
    assert_fragments(batches, envs, kind)
    lengths = [batch["episode_length"].tolist() for batch in batches]
    assert lengths == [[], [], [1001], [1500], []]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fragments_of_any_length(data: st.DataObject) -> None:
    lengths = st.integers(-9, 9).filter(bool)
    kind = data.draw(st.sampled_from(KINDS))
    plans = data.draw(st.lists(st.lists(lengths, min_size=1, max_size=4), min_size=1, max_size=4))
    envs = counting(plans)
    collector = collector_of(kind, envs)
    steps = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    assert_fragments([collector.fragment(num, number) for number, num in enumerate(steps)], envs, kind)


@kinds
def test_fragments_begin_new_episodes_after_whole_episodes(kind: str) -> None:
    envs = counting()
    collector = collector_of(kind, envs)
    collector.fragment(5)
    since = num_episodes(envs)
    assert_whole(collector.episodes([1, 2, 1]), envs, [1, 2, 1], since)
    for env in envs:
        env.episodes.clear()
    assert_fragments([collector.fragment(5, number) for number in range(3)], envs, kind)


# Observations and actions.


@kinds
def test_nested_observations(kind: str) -> None:
    space = spaces.Dict(
        {"pair": spaces.Tuple([spaces.Discrete(9, start=2), spaces.Box(-1, 1, (2,))]), "x": spaces.Box(0, 1, ())}
    )
    envs = [Samples(space, length=length) for length in (3, 5)]
    collector = collector_of(kind, envs)
    batch = collector.episodes([1, 1])
    for slot, (begin, length) in enumerate([(0, 3), (3, 5)]):
        for step in range(length):
            assert_same(row_of(batch["obs"], begin + step), as_tree(envs[slot].observations[step]))
        assert_same(row_of(batch["final_obs"], slot), as_tree(envs[slot].observations[length]))
    for env in envs:
        env.observations.clear()
    fragment = collector.fragment(4)
    for step in range(3):
        assert_same(row_of(fragment["obs"], (step, 0)), as_tree(envs[0].observations[step]))
    assert_same(row_of(fragment["final_obs"], 0), as_tree(envs[0].observations[3]))
    assert_same(row_of(fragment["last_obs"], 1), as_tree(envs[1].observations[4]))


@pytest.mark.parametrize("num", [1, 3])
def test_an_environment_may_change_the_action_it_gets(num: int) -> None:
    class Overwriting(Walk):
        action_space = spaces.Box(-1, 1, (2,))

        def __init__(self) -> None:
            self.actions: list[Any] = []

        def step(self, action: Any) -> Any:
            self.actions.append(action.copy())
            action *= 0
            return super().step(action)

    envs = [Overwriting() for _ in range(num)]
    batch = collector_of("stepped", envs).episodes([3] * num)
    np.testing.assert_array_equal(batch["action"], np.concatenate([env.actions for env in envs]))
    assert abs(batch["action"]).min() > 0


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@kinds
def test_discrete_observations_that_begin_above_zero(kind: str, network: str) -> None:
    """Slots that never begin, and gaps between episodes, hold valid observations for the network."""
    envs = [Samples(spaces.Discrete(4, start=7), length=length) for length in (2, 6)]
    collector = collector_of(kind, envs, network)
    batch = collector.episodes([0, 2])
    assert collector.policy.log_prob(batch).shape == (12,)
    assert collector.policy.log_prob(collector.episodes([3, 1], number=1)).shape == (12,)


# Random numbers.


def assert_equal(batch: Batch, other: Batch) -> None:
    assert batch.keys() == other.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name])


def walks(kind: str, num: int = 3, **settings: int) -> Collector:
    return collector_of(kind, [Walk() for _ in range(num)], **settings)


@kinds
def test_the_same_seed_gives_the_same_batches(kind: str) -> None:
    first, second = walks(kind), walks(kind)
    for number in range(3):
        assert_equal(first.episodes([2, 1, 3], number), second.episodes([2, 1, 3], number))
    first, second = walks(kind), walks(kind)
    for number in range(3):
        assert_equal(first.fragment(9, number), second.fragment(9, number))


@kinds
@pytest.mark.parametrize("counts", [[2, 1, 3], [1, 0, 2], [0, 0, 1], [1, 1, 1]])
def test_whole_episodes_do_not_depend_on_earlier_calls(kind: str, counts: list[int]) -> None:
    fresh, used = walks(kind), walks(kind)
    for number in (9, 4):
        used.episodes([1, 2, 1], number)
        used.episodes(counts, number)
    used.fragment(13)
    assert_equal(fresh.episodes(counts, 7), used.episodes(counts, 7))


@kinds
@pytest.mark.parametrize("change", [{"seed": 4}, {"shard": 6}])
def test_another_seed_or_shard_gives_another_batch(kind: str, change: dict[str, int]) -> None:
    batch, other = walks(kind).episodes([2, 2, 2]), walks(kind, **change).episodes([2, 2, 2])
    assert not np.isin(batch["obs"], other["obs"]).any()
    first, second = walks(kind).fragment(20), walks(kind, **change).fragment(20)
    assert not np.isin(first["obs"], second["obs"]).any()
    assert (first["action"] != second["action"]).any()


@kinds
def test_another_number_gives_another_batch(kind: str) -> None:
    collector = walks(kind)
    batches = [collector.episodes([2, 2, 2], number) for number in range(3)]
    assert len(np.unique(np.concatenate([batch["obs"] for batch in batches]), axis=0)) == sum(map(num_steps, batches))


def test_the_number_decides_the_actions() -> None:
    """Also if nothing else differs: these environments are deterministic."""
    first, same, other = (
        collector_of("stepped", counting([[50]])).fragment(50, number)["action"] for number in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_slots_sample_different_actions() -> None:
    actions = collector_of("stepped", counting([[60], [60]]), seed=0).fragment(60)["action"]
    assert (actions[:, 0] != actions[:, 1]).any()


@kinds
def test_no_episode_is_collected_twice(kind: str) -> None:
    collector = walks(kind)
    obs = np.concatenate([collector.fragment(25, number)["obs"].reshape(-1, 2) for number in range(4)])
    # In NEXT_STEP, the last observation of an episode has a row too; it differs from all others.
    assert len(np.unique(obs, axis=0)) == len(obs)


def test_closing_closes_the_environments() -> None:
    closed = []

    class Closing(Walk):
        def close(self) -> None:
            closed.append(self)

    envs = [Closing(), Closing()]
    collector_of("stepped", envs).close()
    assert closed == envs
