"""Transitions and sequences: by hand, against a slow reference, and of what real environments gave."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.agents import make_policy
from raceway.rl import Batch, concat, n_step_transitions, sequences
from raceway.rollouts import Collector
from tests.rollouts.toy_envs import KINDS, Counting, slots_of

NAMES = ("obs", "action", "reward", "discount", "next_obs")


def fragment(reward: list[list[float]], ends: dict[tuple[int, int], str], first: int = 0) -> Batch:
    """Make a fragment, [T, B]. Observations are 100 · slot + the number of the step; a final one is its negative."""
    rewards = np.array(reward, np.float32)
    length, num_slots = rewards.shape
    obs = (first + np.arange(length)[:, None] + 100.0 * np.arange(num_slots)).astype(np.float32)
    terminated, truncated = np.zeros((2, length, num_slots), bool)
    for (step, slot), how in ends.items():
        (terminated if how == "terminated" else truncated)[step, slot] = True
    return {
        "obs": obs,
        "action": obs.astype(np.int64),
        "reward": rewards,
        "terminated": terminated,
        "truncated": truncated,
        "last_obs": obs[-1] + 1,
        "final_obs": -(obs + 1)[truncated],
    }


def rows(made: Batch) -> list[tuple[float, ...]]:
    return sorted(zip(*(made[name].tolist() for name in NAMES), strict=True))


def test_one_step_by_hand() -> None:
    batch = fragment([[1, 10], [2, 20], [3, 30]], {(1, 0): "terminated", (0, 1): "truncated"})
    made, held = n_step_transitions(batch, 0.5)
    assert held is None
    assert rows(made) == [
        (0, 0, 1, 0.5, 1),
        (1, 1, 2, 0.0, 2),
        (2, 2, 3, 0.5, 3),
        (100, 100, 10, 0.5, -101),  # cut short: its own last observation, and a value after it
        (101, 101, 20, 0.5, 102),
        (102, 102, 30, 0.5, 103),
    ]


def test_two_steps_by_hand_over_two_fragments() -> None:
    one, two = fragment([[1], [2], [4]], {}), fragment([[8], [16]], {(0, 0): "terminated"}, first=3)
    made, held = n_step_transitions(one, 0.5, 2)
    assert rows(made) == [(0, 0, 2, 0.25, 2), (1, 1, 4, 0.25, 3)]
    made, held = n_step_transitions(two, 0.5, 2, held)
    assert rows(made) == [(2, 2, 8, 0, 4), (3, 3, 8, 0, 4)]  # 4 + 8 / 2, and 8 alone: the episode ends there
    made, _ = n_step_transitions(fragment([[32]], {}, first=5), 0.5, 2, held)
    assert rows(made) == [(4, 4, 32, 0.25, 6)]


def slow(stream: Batch, gamma: float, n: int) -> list[tuple[float, ...]]:
    """Work out the transitions of one slot step by step."""
    found = []
    length = len(stream["reward"])
    cut = iter(stream["final_obs"].tolist())
    finals = {step: next(cut) for step in np.flatnonzero(stream["truncated"][:, 0])}
    for start in range(length):
        total = 0.0
        for k in range(n):
            step = start + k
            if step == length:
                break
            total += gamma**k * stream["reward"][step, 0]
            over = stream["terminated"][step, 0] or stream["truncated"][step, 0]
            if over or k == n - 1:
                after = finals.get(step, stream["obs"][step, 0] + 1)
                alive = not stream["terminated"][step, 0]
                place = float(stream["obs"][start, 0])
                found.append((place, int(place), total, gamma ** (k + 1) * alive, float(after)))
                break
    return found


@given(
    st.lists(st.sampled_from(["", "", "", "terminated", "truncated"]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
)
def test_fragments_may_be_cut_anywhere(ends: list[str], n: int, cuts: list[int]) -> None:
    rewards = [[float(step + 1)] for step in range(len(ends))]
    whole = fragment(rewards, {(step, 0): how for step, how in enumerate(ends) if how})
    found, held, begin = [], None, 0
    for size in cuts:
        some = ends[begin : begin + size]
        if not some:
            break
        marks = {(step, 0): how for step, how in enumerate(some) if how}
        part = fragment(rewards[begin : begin + size], marks, first=begin)
        made, held = n_step_transitions(part, 0.9, n, held)
        found += rows(made)
        begin += size
    np.testing.assert_allclose(sorted(found), sorted(slow(whole, 0.9, n)), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
def test_of_environments_that_reset_in_any_way(kind: str, n: int) -> None:
    envs = [Counting(name, plan) for name, plan in enumerate([(3, -2, 4), (-1, 5)])]
    slots = slots_of(kind, envs)
    policy = make_policy(slots.observation_space, slots.action_space, "mlp", (4,), seed=0)
    collector = Collector(slots, policy, seed=0, shard=0)
    parts, held = [], None
    for number, steps in enumerate((4, 1, 7, 9)):
        made, held = n_step_transitions(collector.fragment(steps, number), 0.5, n, held)
        parts.append(made)
    made = concat(parts)
    seen: dict[tuple[int, int, int], Any] = {}
    for place in range(len(made["reward"])):
        (name, episode, step), (_, after_episode, after) = made["obs"][place], made["next_obs"][place]
        assert (name, episode, step) not in seen, "seen twice"
        seen[name, episode, step] = made["reward"][place]
        played = next(one for one in envs[int(name)].played if one.obs[0][1] == episode)
        length = len(played.steps)
        num = min(n, length - int(step))
        rewards = [reward for _, reward, _, _ in played.steps[int(step) : int(step) + num]]
        assert made["reward"][place] == pytest.approx(sum(0.5**k * reward for k, reward in enumerate(rewards)))
        terminated = played.steps[int(step) + num - 1][2]
        assert made["discount"][place] == (0 if terminated else 0.5**num)
        if not terminated:
            assert (after_episode, after) == (episode, step + num)
    for env in envs:  # nothing was left out but the last steps, which are held back
        expected = {
            (env.name, one.obs[0][1], step) for one in env.played[:-1] if one.steps for step in range(len(one.steps))
        }
        assert expected <= seen.keys()


def test_sequences_by_hand() -> None:
    batch = fragment([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]], {(1, 0): "truncated", (2, 1): "terminated"})
    made, held = sequences(batch, 2)
    assert made["obs"].tolist() == [[0, 1], [100, 101], [2, 3], [102, 103]]
    assert made["reward"].tolist() == [[1, 2], [10, 20], [3, 4], [30, 40]]
    assert made["last_obs"].tolist() == [2, 102, 4, 104]
    assert made["mask"].tolist() == [[True, False], [True, True], [True, True], [True, True]]
    assert made["terminated"].tolist() == [[False, False], [False, False], [False, False], [True, False]]
    made, held = sequences(fragment([[6, 60]], {}, first=5), 2, 0, held)
    assert made["obs"].tolist() == [[4, 5], [104, 105]]
    assert held is None


@given(st.integers(1, 5), st.data())
def test_sequences_of_fragments_cut_anywhere(length: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, length - 1))
    total = data.draw(st.integers(1, 20))
    found: list[list[float]] = []
    held, begin = None, 0
    while begin < total:
        size = data.draw(st.integers(1, total - begin))
        made, held = sequences(fragment([[1.0]] * size, {}, first=begin), length, overlap, held)
        found += made["obs"].tolist() if made else []
        assert not made or made["last_obs"].tolist() == [one[-1] + 1 for one in made["obs"].tolist()]
        begin += size
    starts = range(0, total - length + 1, length - overlap)
    assert found == [[float(start + step) for step in range(length)] for start in starts]


def test_whole_fragments_keep_what_a_recurrent_policy_remembered() -> None:
    batch = fragment([[1, 2], [3, 4]], {}) | {"state": {"hidden": np.array([[0.5], [0.7]])}}
    assert sequences(batch, 2)[0]["state"]["hidden"].tolist() == [[0.5], [0.7]]
    assert "state" not in sequences(batch, 1)[0]
