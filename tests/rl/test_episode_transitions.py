"""Transitions of whole episodes: by hand, and against a plain loop over streams that are cut into fragments."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import Batch, episode_transitions, tree_map

GAMMA = 0.5
NAMES = ("obs", "reward", "discount", "next_obs", "steps_before", "steps_after")


def stream(kinds: list[list[str]]) -> Batch:
    """Return a fragment of steps that "go", "term" or "trunc", or are no step: "fail".

    Observations are 100 · slot + step + 1; the last one of an episode is the negative of what would come next.
    """
    table = np.array(kinds)
    steps, slots = np.indices(table.shape)
    obs = np.asarray(steps + 1 + 100 * slots, np.float32)
    terminated, truncated = table == "term", table == "trunc"
    return {
        "obs": obs,
        "action": obs.astype(int),
        "reward": obs.copy(),
        "terminated": terminated,
        "truncated": truncated,
        "valid": table != "fail",
        "last_obs": obs[-1] + 1,
        "final_obs": -(obs + 1)[truncated],
        "terminal_obs": -(obs + 1)[terminated],
    }


def cut(batch: Batch, begin: int, end: int) -> Batch:
    """Return the fragment of some steps of a stream."""
    names = ("obs", "action", "reward", "terminated", "truncated", "valid")
    part: Batch = {name: batch[name][begin:end].copy() for name in names}
    part["last_obs"] = batch["obs"][end - 1] + 1
    for name, ended in (("final_obs", "truncated"), ("terminal_obs", "terminated")):
        part[name] = -(part["obs"] + 1)[part[ended]]
    if part["valid"].all():
        del part["valid"]
    return part


def listed(rows: Batch) -> list[tuple[float, ...]]:
    return list(zip(*(rows[name].tolist() for name in NAMES), strict=True))


def test_an_episode_of_three_steps_over_two_fragments_by_hand() -> None:
    batch = stream([["go", "go"], ["go", "term"], ["term", "go"], ["go", "go"]])
    first, held = episode_transitions(cut(batch, 0, 2), GAMMA)
    assert listed(first) == [(101, 101, 0.5, 102, 0, 1), (102, 102, 0.0, -103, 1, 0)]  # the end that was really seen
    second, held = episode_transitions(cut(batch, 2, 4), GAMMA, held)
    assert listed(second) == [(1, 1, 0.5, 2, 0, 2), (2, 2, 0.5, 3, 1, 1), (3, 3, 0.0, -4, 2, 0)]
    assert held is not None
    assert held["valid"].tolist() == [[False, True], [True, True]]  # the open episodes, without what was returned


def test_there_are_rows_of_the_right_kind_before_the_first_end() -> None:
    rows, _ = episode_transitions(stream([["go"]]), GAMMA)
    assert {name: (column.shape, column.dtype) for name, column in rows.items()} == {
        "obs": ((0,), np.float32), "action": ((0,), int), "reward": ((0,), np.float32), "discount": ((0,), np.float32),
        "next_obs": ((0,), np.float32), "steps_before": ((0,), int), "steps_after": ((0,), int),
    }  # fmt: skip


def test_an_episode_whose_environment_failed_ends_with_its_last_step() -> None:
    batch = stream([["go"], ["go"], ["fail"], ["go"], ["term"]])
    _, held = episode_transitions(cut(batch, 0, 2), GAMMA)
    rows, held = episode_transitions(cut(batch, 2, 5), GAMMA, held)
    assert held is None
    assert listed(rows) == [
        (1, 1, 0.5, 2, 0, 1), (2, 2, 0.5, 3, 1, 0),  # not terminated
        (4, 4, 0.5, 5, 0, 1), (5, 5, 0.0, -6, 1, 0),
    ]  # fmt: skip


def test_a_fragment_that_continues_nothing_ends_what_was_open() -> None:
    batch = stream([["go"], ["go"], ["term"]])
    _, held = episode_transitions(cut(batch, 0, 2), GAMMA)
    rows, _ = episode_transitions({**cut(batch, 2, 3), "restarted": np.array([True])}, GAMMA, held)
    assert listed(rows) == [(1, 1, 0.5, 2, 0, 1), (2, 2, 0.5, 3, 1, 0), (3, 3, 0.0, -4, 0, 0)]


def expected_rows(batch: Batch) -> list[tuple[float, ...]]:
    """Return the rows of all episodes that ended, by a plain loop."""
    found: list[tuple[float, ...]] = []
    for slot in range(batch["reward"].shape[1]):
        episode: list[int] = []
        for step in range(len(batch["reward"])):
            terminated, truncated = batch["terminated"][step, slot], batch["truncated"][step, slot]
            if batch["valid"][step, slot]:
                episode.append(step)
            if terminated or truncated or not batch["valid"][step, slot]:
                for before, number in enumerate(episode):
                    obs, after = float(batch["obs"][number, slot]), len(episode) - 1 - before
                    ended = bool(batch["valid"][step, slot]) and after == 0
                    discount = 0.0 if ended and terminated else GAMMA
                    found.append((obs, obs, discount, -(obs + 1) if ended else obs + 1, before, after))
                episode = []
    return sorted(found)


@given(st.data())
def test_fragments_of_any_length_have_the_rows_of_a_plain_loop(data: Any) -> None:
    num_slots = data.draw(st.integers(1, 3))
    kinds = st.sampled_from(["go", "go", "go", "term", "trunc", "fail"])
    batch = stream(data.draw(st.lists(st.lists(kinds, min_size=num_slots, max_size=num_slots), min_size=1)))
    # As collectors do it: an episode that fails within a fragment is truncated one step earlier. Over the border of
    # two fragments it cannot be.
    total, begin, held, rows = len(batch["reward"]), 0, None, list[tuple[float, ...]]()
    while begin < total:
        end = min(begin + data.draw(st.integers(1, 5)), total)
        failed = np.zeros_like(batch["valid"][begin:end])
        failed[:-1] = ~batch["valid"][begin + 1 : end] & batch["valid"][begin : end - 1]
        failed &= ~(batch["terminated"] | batch["truncated"])[begin:end]
        part = cut(batch, begin, end)
        part["truncated"] |= failed
        part["final_obs"] = np.where(failed, part["obs"] + 1, -(part["obs"] + 1))[part["truncated"]]
        transitions, held = episode_transitions(part, GAMMA, held)
        positions = np.flatnonzero(transitions["steps_before"] == 0)
        for position in positions:  # episodes are contiguous
            length = transitions["steps_after"][position] + 1
            assert np.array_equal(transitions["steps_before"][position : position + length], np.arange(length))
            assert np.array_equal(transitions["steps_after"][position : position + length], np.arange(length)[::-1])
        rows += listed(transitions)
        begin = end
    assert sorted(rows) == expected_rows(batch)


def test_the_arrays_of_the_fragment_are_not_changed() -> None:
    batch = stream([["go", "term"], ["go", "go"]])
    before = tree_map(np.copy, batch)
    episode_transitions(batch, GAMMA)
    for name, column in batch.items():
        np.testing.assert_array_equal(column, before[name])
