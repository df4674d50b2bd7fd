"""Transitions and sequences: by hand, against a plain loop, and from collected fragments."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raceway.agents import make_policy
from raceway.errors import ConfigError
from raceway.rl import Batch, concat, masked_mean, n_step_transitions, sequences
from raceway.rollouts import Collector
from tests.rollouts.toy_envs import KINDS, Counting, slots_of

NAMES = ("obs", "action", "reward", "discount", "next_obs")


def fragment(reward: list[list[float]], ends: dict[tuple[int, int], str], first: int = 0) -> Batch:
    """Make a fragment, [T, B]. Observations are 100 · slot + step; a final observation is the negative."""
    rewards = np.array(reward, np.float32)
    length, num_slots = rewards.shape
    obs = (first + np.arange(length)[:, None] + 100.0 * np.arange(num_slots)).astype(np.float32)
    terminated, truncated = np.zeros((2, length, num_slots), bool)
    for (step, slot), end in ends.items():
        (terminated if end == "terminated" else truncated)[step, slot] = True
    return {
        "obs": obs,
        "action": obs.astype(np.int64),
        "reward": rewards,
        "terminated": terminated,
        "truncated": truncated,
        "last_obs": obs[-1] + 1,
        "final_obs": -(obs + 1)[truncated],
    }


def rows(batch: Batch) -> list[tuple[float, ...]]:
    return sorted(zip(*(batch[name].tolist() for name in NAMES), strict=True))


def test_one_step_transitions_by_hand() -> None:
    batch = fragment([[1, 10], [2, 20], [3, 30]], {(1, 0): "terminated", (0, 1): "truncated"})
    transitions, held = n_step_transitions(batch, 0.5)
    assert held is None
    assert rows(transitions) == [
        (0, 0, 1, 0.5, 1),
        (1, 1, 2, 0.0, 2),
        (2, 2, 3, 0.5, 3),
        (100, 100, 10, 0.5, -101),  # truncated: its own final observation, with a discount
        (101, 101, 20, 0.5, 102),
        (102, 102, 30, 0.5, 103),
    ]


def test_two_step_transitions_by_hand_over_two_fragments() -> None:
    first, second = fragment([[1], [2], [4]], {}), fragment([[8], [16]], {(0, 0): "terminated"}, first=3)
    transitions, held = n_step_transitions(first, 0.5, 2)
    assert rows(transitions) == [(0, 0, 2, 0.25, 2), (1, 1, 4, 0.25, 3)]
    transitions, held = n_step_transitions(second, 0.5, 2, held)
    assert rows(transitions) == [(2, 2, 8, 0, 4), (3, 3, 8, 0, 4)]  # 4 + 8 / 2, and 8 alone: the episode ends there
    transitions, _ = n_step_transitions(fragment([[32]], {}, first=5), 0.5, 2, held)
    assert rows(transitions) == [(4, 4, 32, 0.25, 6)]


def reference_transitions(stream: Batch, gamma: float, n: int) -> list[tuple[float, ...]]:
    """Compute the transitions of one slot step by step."""
    transitions = []
    length = len(stream["reward"])
    finals_iter = iter(stream["final_obs"].tolist())
    finals = {step: next(finals_iter) for step in np.flatnonzero(stream["truncated"][:, 0])}
    for start in range(length):
        total = 0.0
        for k in range(n):
            step = start + k
            if step == length:
                break
            total += gamma**k * stream["reward"][step, 0]
            over = stream["terminated"][step, 0] or stream["truncated"][step, 0]
            if over or k == n - 1:
                next_obs = finals.get(step, stream["obs"][step, 0] + 1)
                alive = not stream["terminated"][step, 0]
                obs = float(stream["obs"][start, 0])
                transitions.append((obs, int(obs), total, gamma ** (k + 1) * alive, float(next_obs)))
                break
    return transitions


@given(
    st.lists(st.sampled_from(["", "", "", "terminated", "truncated"]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
)
def test_transitions_do_not_depend_on_where_fragments_are_cut(ends: list[str], n: int, cuts: list[int]) -> None:
    rewards = [[float(step + 1)] for step in range(len(ends))]
    whole = fragment(rewards, {(step, 0): end for step, end in enumerate(ends) if end})
    actual, held, begin = [], None, 0
    for size in cuts:
        part_ends = ends[begin : begin + size]
        if not part_ends:
            break
        marks = {(step, 0): end for step, end in enumerate(part_ends) if end}
        part = fragment(rewards[begin : begin + size], marks, first=begin)
        transitions, held = n_step_transitions(part, 0.9, n, held)
        actual += rows(transitions)
        begin += size
    np.testing.assert_allclose(sorted(actual), sorted(reference_transitions(whole, 0.9, n)), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
def test_transitions_of_environments_with_every_autoreset_mode(kind: str, n: int) -> None:
    envs = [Counting(name, plan) for name, plan in enumerate([(3, -2, 4), (-1, 5)])]
    slots = slots_of(kind, envs)
    policy = make_policy(slots.observation_space, slots.action_space, "mlp", (4,), seed=0)
    collector = Collector(slots, policy, seed=0, shard=0)
    parts, held = [], None
    for number, steps in enumerate((4, 1, 7, 9)):
        transitions, held = n_step_transitions(collector.fragment(steps, number), 0.5, n, held)
        parts.append(transitions)
    transitions = concat(parts)
    rewards_of: dict[tuple[int, int, int], Any] = {}
    for index in range(len(transitions["reward"])):
        (name, episode, step), (_, after_episode, after) = transitions["obs"][index], transitions["next_obs"][index]
        assert (name, episode, step) not in rewards_of, "a duplicate"
        rewards_of[name, episode, step] = transitions["reward"][index]
        episode_record = next(record for record in envs[int(name)].episodes if record.obs[0][1] == episode)
        length = len(episode_record.steps)
        num = min(n, length - int(step))
        rewards = [reward for _, reward, _, _ in episode_record.steps[int(step) : int(step) + num]]
        assert transitions["reward"][index] == pytest.approx(sum(0.5**k * reward for k, reward in enumerate(rewards)))
        terminated = episode_record.steps[int(step) + num - 1][2]
        assert transitions["discount"][index] == (0 if terminated else 0.5**num)
        if not terminated:
            assert (after_episode, after) == (episode, step + num)
    for env in envs:  # nothing is missing but the last steps, which are held back
        expected = {
            (env.name, record.obs[0][1], step)
            for record in env.episodes[:-1]
            if record.steps
            for step in range(len(record.steps))
        }
        assert expected <= rewards_of.keys()


def test_sequences_by_hand() -> None:
    """Two-step transitions in sequences of four steps, of which the first two are burn-in."""
    ends = {(1, 0): "truncated", (2, 1): "terminated"}
    batch = fragment([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]], ends)
    windows, held = sequences(batch, 0.5, 2, 4, 2)
    assert windows["obs"].tolist() == [[0, 1, 2, 3], [100, 101, 102, 103]]
    assert windows["span"].tolist() == [[2, 1, 2, 1], [2, 2, 1, 1]]
    assert windows["reward"].tolist() == [[1 + 2 / 2, 2, 3 + 4 / 2, 4], [10 + 20 / 2, 20 + 30 / 2, 30, 40]]
    assert windows["discount"].tolist() == [[0.25, 0.5, 0.25, 0.5], [0.25, 0, 0, 0.5]]
    assert windows["next_obs"].tolist() == [[-2, -2, 4, 4], [102, 103, 103, 104]]
    assert windows["begins"].tolist() == [[False, False, True, False], [False, False, False, True]]
    assert windows["mask"].tolist() == [[False, False, True, True]] * 2
    assert windows["valid"].all()
    windows, held = sequences(fragment([[6, 60]], {}, first=5), 0.5, 2, 4, 2, held)
    assert windows["obs"].tolist() == [[2, 3, 4, 5], [102, 103, 104, 105]]
    assert windows["reward"].tolist()[0] == [3 + 4 / 2, 4 + 5 / 2, 5 + 6 / 2, 6]
    windows, held = sequences(fragment([[7, 70]], {}, first=6), 0.5, 2, 4, 2, held)
    assert windows["obs"].shape == windows["mask"].shape == (0, 4)


@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_sequences_do_not_depend_on_where_fragments_are_cut(length: int, n: int, data: st.DataObject) -> None:
    burn_in = data.draw(st.integers(0, length - 1))
    total = data.draw(st.integers(1, 20))
    whole = sequences(fragment([[float(step)] for step in range(total)], {}), 0.5, n, length, burn_in)[0]
    parts: list[Batch] = []
    held, begin = None, 0
    while begin < total:
        size = data.draw(st.integers(1, total - begin))
        rewards = [[float(step)] for step in range(begin, begin + size)]
        windows, held = sequences(fragment(rewards, {}, first=begin), 0.5, n, length, burn_in, held)
        parts.append(windows)
        begin += size
    result = concat(parts)
    starts = range(0, total - length + 1, length - burn_in)
    assert whole["obs"].tolist() == [[float(start + step) for step in range(length)] for start in starts]
    for name, column in whole.items():
        assert result[name].dtype == column.dtype
        assert result[name].tolist() == column.tolist()


def test_sequences_have_the_recurrent_state_at_their_start() -> None:
    """It is known at the start of every fragment, so sequences have to begin there."""
    states, held = [], None
    for number in range(4):
        batch = fragment([[1, 2], [3, 4]], {}, first=2 * number)
        batch["state"] = {"hidden": np.array([[number], [10 + number]], np.float32)}
        windows, held = sequences(batch, 0.5, 1, 6, 4, held)
        states += windows["state"]["hidden"].ravel().tolist()
    assert states == [0, 10, 1, 11]
    with pytest.raises(ConfigError, match=r"sequences begin every 3 steps .* known every 2 steps"):
        sequences(batch, 0.5, 1, 6, 3)


def test_the_masked_mean_by_hand() -> None:
    values, mask = np.array([[1.0, 3.0], [100.0, 8.0]]), np.array([[True, True], [False, True]])
    assert masked_mean(values, {"mask": mask}) == 4
    assert masked_mean(values, {}) == 28
    assert masked_mean(torch.from_numpy(values), {"mask": torch.from_numpy(mask)}) == 4
    nothing = {"mask": torch.zeros(2, 2, dtype=torch.bool)}
    assert masked_mean(torch.from_numpy(values), nothing) == 0
