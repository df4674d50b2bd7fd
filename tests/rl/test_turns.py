"""With padding in front, every slot trains on the same steps, returns and next observations as without."""

from itertools import chain
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import Batch, concat, generalised_advantages, n_step_transitions, sequences
from raceway.rl.turns import pad_in_front, padding_of
from raceway.rollouts.fragment_values import RunningReturns
from tests.rl.test_transitions import fragment, rows

NUM_SLOTS, NUM_ROWS = 3, 4


def streams(data: Any, num_fragments: int) -> tuple[list[Batch], list[Batch]]:
    """Return the same steps as one long fragment for each slot, and as padded fragments of all slots."""
    counts = np.array([[data.draw(st.integers(0, NUM_ROWS)) for _ in range(NUM_SLOTS)] for _ in range(num_fragments)])
    whole, edges = [], np.vstack([np.zeros(NUM_SLOTS, int), np.cumsum(counts, 0)])
    for slot in range(NUM_SLOTS):
        length = int(counts[:, slot].sum()) + 1  # one more, so that there is one
        ends = {}
        for step in range(length - 1):
            end = data.draw(st.sampled_from([None, None, "terminated", "truncated"]))
            if end is not None:
                ends[step, 0] = end
        stream = fragment([[float(data.draw(st.integers(-3, 3)))] for _ in range(length)], ends, 1000 * slot)
        whole.append(stream)
    padded = []
    for number in range(num_fragments):
        count = counts[number]
        columns: Batch = {}
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            part = np.zeros((NUM_ROWS, NUM_SLOTS), whole[0][name].dtype)
            for slot in range(NUM_SLOTS):
                steps = whole[slot][name][edges[number, slot] : edges[number + 1, slot], 0]
                part[: len(steps), slot] = steps
            columns[name] = part
        columns = pad_in_front(columns, count, NUM_ROWS)
        valid = np.arange(NUM_ROWS)[:, None] >= NUM_ROWS - count
        columns |= {"valid": valid, "num_turns": count}
        for name in ("reward", "terminated", "truncated"):
            columns[name] = columns[name] * valid
        columns["last_obs"] = np.array([whole[s]["obs"][edges[number + 1, s], 0] for s in range(NUM_SLOTS)])
        columns["final_obs"] = -(columns["obs"] + 1)[columns["truncated"]]
        padded.append(columns)
    for stream in whole:  # the extra step is only observed
        stream["last_obs"] = stream["obs"][-1]
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            stream[name] = stream[name][:-1]
    return whole, padded


@given(st.data(), st.integers(1, 4))
def test_transitions_are_those_of_each_slot_alone(data: Any, n: int) -> None:
    whole, padded = streams(data, 3)
    expected = [rows(n_step_transitions(stream, 0.5, n)[0]) for stream in whole if len(stream["reward"])]
    held, parts = None, []
    for batch in padded:
        transitions, held = n_step_transitions(batch, 0.5, n, held)
        parts.append(transitions)
    assert rows(concat(parts)) == sorted(chain(*expected))


@given(st.data(), st.integers(1, 3))
def test_sequences_have_the_steps_of_whole_fragments(data: Any, n: int) -> None:
    """A sequence of two fragments, of which the first is burn-in, has each slot's steps in them at its end."""
    whole, padded = streams(data, 3)
    edges = np.cumsum([np.zeros(NUM_SLOTS, int), *(batch["num_turns"] for batch in padded)], axis=0)
    held, windows = None, list[Batch]()
    for batch in padded:
        window, held = sequences(batch, 0.5, n, 2 * NUM_ROWS, NUM_ROWS, held)
        windows += [window] if len(window["mask"]) else []
    assert len(windows) == 2
    for number, window in enumerate(windows):
        for slot, stream in enumerate(whole):
            first, trained, end = edges[number : number + 3, slot]
            assert window["valid"][slot].tolist() == [False] * (2 * NUM_ROWS - end + first) + [True] * (end - first)
            assert window["mask"][slot].sum() == end - trained
            if end > first:
                expected = sequences(steps_of(stream, first, end), 0.5, n, int(end - first))[0]
                for name in ("obs", "action", "reward", "discount", "next_obs", "span", "begins"):
                    assert window[name][slot][first - end :].tolist() == expected[name][0].tolist()


def steps_of(stream: Batch, first: int, end: int) -> Batch:
    """Return some steps of a fragment as a fragment."""
    names = ("obs", "action", "reward", "terminated", "truncated")
    batch = {name: stream[name][first:end] for name in names}
    batch["last_obs"] = [*stream["obs"], stream["last_obs"]][end]
    return batch | {"final_obs": -(batch["obs"] + 1)[batch["truncated"]]}


@given(st.data())
def test_advantages_do_not_pass_through_padding(data: Any) -> None:
    _, padded = streams(data, 1)
    batch = padded[0]
    values, last = batch["obs"] / 7, batch["last_obs"] / 7
    ended = batch["terminated"] | batch["truncated"]
    advantages = generalised_advantages(batch["reward"], values, last, ended, 0.9, 0.8)
    for slot, count in enumerate(batch["num_turns"]):
        if count:
            own = slice(NUM_ROWS - count, None), slice(slot, slot + 1)
            alone = generalised_advantages(batch["reward"][own], values[own], last[own[1]], ended[own], 0.9, 0.8)
            np.testing.assert_allclose(advantages[own], alone, rtol=1e-6)


def test_running_returns_continue_over_padding() -> None:
    returns, rewards = RunningReturns(), np.array([[1.0, 1.0], [2.0, 2.0]], np.float32)
    never = np.zeros((2, 2), bool)
    returns.accumulate(rewards, never, 0.5)
    batch = {"reward": np.array([[0.0, 4.0], [4.0, 8.0]], np.float32), "num_turns": np.array([1, 2])}
    padding = padding_of(batch)
    assert padding is not None
    result = returns.accumulate(batch["reward"], never | padding, 0.5, padding)
    assert result[1].tolist() == [5.25, 10.625]  # 4 + 2.5 / 2, and 8 + (4 + 2.5 / 2) / 2


def test_a_dropped_episode_is_truncated_where_its_steps_were_held_back() -> None:
    first, second = fragment([[1, 1], [2, 2]], {}), fragment([[4, 4], [8, 8]], {}, first=2)
    for batch in (first, second):
        batch |= {"valid": np.ones((2, 2), bool), "num_turns": np.array([2, 2])}
    _, held = n_step_transitions(first, 0.5, 2)
    transitions, _ = n_step_transitions({**second, "restarted": np.array([False, True])}, 0.5, 2, held)
    assert (1, 1, 4, 0.25, 3) in rows(transitions)
    assert (101, 101, 2, 0.5, 102) in rows(transitions)
