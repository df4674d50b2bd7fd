"""Transitions of one or more steps, those of whole episodes, and sequences, from rollout fragments, [T, B]."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.rl.batch import Batch, tree_map
from raceway.rl.spaces import row_of
from raceway.rl.turns import is_padded, move_padding_to_front

Array = np.ndarray

_STEP_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid")


def n_step_transitions(batch: Batch, gamma: float, n: int = 1, held: Batch | None = None) -> tuple[Batch, Batch | None]:
    """Return n-step transitions, shorter where the episode ends first: Sutton & Barto 2018, eq. 7.1.

    Args:
        batch: a rollout fragment, [T, B], with `last_obs`, `final_obs` and optionally `valid`.
        gamma: the discount γ.
        n: the number of rewards in a transition.
        held: the steps that the call for the previous fragment held back, because later rewards were missing.

    Returns:
        The transitions, [N], in the order of the steps: `obs`, `action`, `reward` Σₖ γᵏ rₜ₊ₖ, `next_obs` n steps later,
        and `discount`, which is γⁿ, or 0 after termination, so that the target is reward + discount · value(next_obs).
        Then the steps held back for the next fragment.
    """
    rows = _step_columns(batch) | {"emitted": np.zeros_like(batch["truncated"]), "next_obs": next_obs_of(batch)}
    rows = _append_to_held(held, rows, _restarted(batch))
    if is_padded(batch):
        rows = move_padding_to_front(rows)
    total = len(rows["reward"])
    ended = rows["terminated"] | rows["truncated"]
    sums, last, complete = _sum_rewards(rows["reward"], ended, rows["valid"], gamma, n)
    step, slot = np.nonzero(complete & ~rows["emitted"])
    end = last[step, slot]
    transitions = {
        "obs": row_of(rows["obs"], (step, slot)),
        "action": rows["action"][step, slot],
        "reward": sums[step, slot],
        "discount": (gamma ** (end - step + 1) * ~rows["terminated"][end, slot]).astype(np.float32),
        "next_obs": row_of(rows["next_obs"], (end, slot)),
    }
    if n == 1:
        return transitions, None
    rows["emitted"] = rows["emitted"] | complete
    return transitions, tree_map(lambda part: part[max(total - n + 1, 0) :].copy(), rows)


def _sum_rewards(rewards: Array, ended: Array, valid: Array, gamma: float, n: int) -> tuple[Array, Array, Array]:
    """Return Σₖ γᵏ rₜ₊ₖ over n steps, or fewer where the episode or the array ends first, [T, B].

    Also return the last step of each sum, and which sums are complete: those that do not end with the array.
    """
    total = len(rewards)
    sums = np.zeros_like(rewards)
    last = np.zeros(rewards.shape, np.int64)
    unfinished, complete = valid.copy(), np.zeros(rewards.shape, bool)
    for k in range(min(n, total)):
        active = unfinished[: total - k]  # a view: the sums that have a step k
        sums[: total - k] += np.where(active, gamma**k * rewards[k:], 0)
        last[: total - k] = np.where(active, np.arange(k, total)[:, None], last[: total - k])
        complete[: total - k] |= active & ended[k:]
        active &= ~ended[k:]
    if total >= n:
        complete[: total - n + 1] |= unfinished[: total - n + 1]
    return sums, last, complete


def _step_columns(batch: Batch) -> Batch:
    """Return the columns of a fragment that have one row for each step."""
    rows = {name: batch[name] for name in _STEP_COLUMNS if name in batch}
    rows.setdefault("valid", np.ones_like(batch["truncated"]))
    return rows


def _restarted(batch: Batch) -> Any:
    """Return in which slots a fragment does not continue the previous one, [B]; None if its first row shows that."""
    if is_padded(batch):
        return batch.get("restarted", np.zeros(batch["reward"].shape[1], bool))
    return batch.get("restarted")


def _append_to_held(held: Batch | None, rows: Batch, discarded: Any = None) -> Batch:
    """Append steps to those that were held back.

    Where an environment failed in between, its open episode was discarded, so the last step held back is marked as
    truncated. A failure shows as a first step that is not valid, or as `discarded`, [B].
    """
    if held is None or not len(held["valid"]):
        return rows
    num_held, slots = len(held["valid"]), np.arange(held["valid"].shape[1])
    last = num_held - 1 - np.argmax(held["valid"][::-1], axis=0)  # the last valid row of each slot
    joined: Batch = tree_map(lambda *parts: np.concatenate(parts), held, rows)
    valid, terminated, truncated = joined["valid"], joined["terminated"], joined["truncated"]
    dropped = ~valid[num_held] if discarded is None else discarded
    truncated[last, slots] |= valid[last, slots] & ~terminated[last, slots] & dropped
    return joined


def next_obs_of(batch: Batch) -> Any:
    """Return the observation after each step of a fragment, [T, B, ...]: the final one where a step is truncated.

    Where a step terminates, it is the final one if the fragment has `terminal_obs`; else another, which is not used.
    """
    truncated = np.nonzero(batch["truncated"] & batch.get("valid", True))

    def shift(obs: Any, last: Any, final: Any) -> Any:
        next_obs = np.concatenate([obs[1:], last[None]])
        next_obs[truncated] = final
        return next_obs

    next_obs = tree_map(shift, batch["obs"], batch["last_obs"], batch["final_obs"])
    if "terminal_obs" in batch:
        terminated = np.nonzero(batch["terminated"] & ~batch["truncated"] & batch.get("valid", True))
        tree_map(lambda part, terminal: part.__setitem__(terminated, terminal), next_obs, batch["terminal_obs"])
    return next_obs


def episode_transitions(batch: Batch, gamma: float, held: Batch | None = None) -> tuple[Batch, Batch | None]:
    """Return the one-step transitions of the episodes that a fragment ends, one episode after the other.

    An episode whose environment failed ends with its last step that was collected.

    Args:
        batch: a rollout fragment, [T, B], with `last_obs`, `final_obs`, `terminal_obs` and optionally `valid`.
        gamma: the discount γ.
        held: the steps that the call for the previous fragment held back, because their episodes had not ended.

    Returns:
        The columns of `n_step_transitions`, [N], and how many steps of its episode come before and after each row:
        `steps_before` and `steps_after`. Then the steps held back for the next fragment.
    """
    rows = _append_to_held(held, _step_columns(batch) | {"next_obs": next_obs_of(batch)}, _restarted(batch))
    valid, ended = rows["valid"], (rows["terminated"] | rows["truncated"]) & rows["valid"]
    finished = valid & np.logical_or.accumulate(ended[::-1])[::-1]  # an end follows in their slot
    slot, step = np.nonzero(finished.T)
    before, after = _steps_around(ended[step, slot])
    transitions = {
        "obs": row_of(rows["obs"], (step, slot)),
        "action": rows["action"][step, slot],
        "reward": rows["reward"][step, slot],
        "discount": (gamma * ~rows["terminated"][step, slot]).astype(np.float32),
        "next_obs": row_of(rows["next_obs"], (step, slot)),
        "steps_before": before,
        "steps_after": after,
    }
    opened = valid & ~finished
    if not opened.any():
        return transitions, None
    begin = int(opened.any(1).argmax())
    return transitions, tree_map(lambda part: part[begin:].copy(), {**rows, "valid": opened})


def _steps_around(is_last: Array) -> tuple[Array, Array]:
    """Return how many rows of its episode come before and after each row.

    >>> _steps_around(np.array([False, False, True, True]))
    (array([0, 1, 2, 0]), array([2, 1, 0, 0]))
    """
    numbers, ends = np.arange(len(is_last)), np.flatnonzero(is_last)
    lengths = np.diff(ends, prepend=-1)
    return numbers - np.repeat(ends - lengths + 1, lengths), np.repeat(ends, lengths) - numbers


def sequences(
    batch: Batch, gamma: float, n: int, length: int, burn_in: int = 0, held: Batch | None = None
) -> tuple[Batch, Batch | None]:
    """Cut a stream of fragments into sequences of n-step transitions, for recurrent networks.

    A sequence is `length` consecutive steps of a slot. It shares its first `burn_in` steps with the sequence before:
    they only lead the recurrent state to the steps that are trained. Transitions never reach beyond their sequence;
    those near its end have fewer rewards than n.

    Args:
        batch: a rollout fragment, [T, B], with `last_obs`, `final_obs` and optionally `valid` and `state`.
        gamma: the discount γ.
        n: the number of rewards in a transition.
        length: the number of steps in a sequence.
        burn_in: the number of steps at its start that are not trained.
        held: the steps that the call for the previous fragment held back, because they filled no sequence yet.

    Returns:
        The sequences, [N, length, ...], none if no steps filled one: the columns of `n_step_transitions`, and

        - `span`, the number of rewards in each transition;
        - `begins`, whether a step is the first of its episode, before which the recurrent state is reset. The first
          step of a sequence needs no such mark;
        - `valid`, whether there is a step at all, and `mask`, whether it is trained;
        - `state`, the recurrent state before the first step, [N, ...], if fragments have one.

        Then the steps held back for the next fragment.
    """
    rows = _step_columns(batch) | {"next_obs": next_obs_of(batch)}
    num_steps, stride = len(batch["reward"]), length - burn_in
    if "state" in batch:
        check_sequence_starts(length, burn_in, num_steps)
        rows["state"] = tree_map(lambda part: _at_first_of(num_steps, part), batch["state"])
    rows = _append_to_held(held, rows, _restarted(batch))
    total = len(rows["reward"])
    starts = range(0, total - length + 1, stride)
    cut = [tree_map(lambda part, start=start: part[start : start + length], rows) for start in starts]
    if not cut:  # without slots, the columns have the right shapes and types
        cut = [tree_map(lambda part: np.empty((length, 0, *part.shape[2:]), part.dtype), rows)]
    windows = [_sequence(window, gamma, n, burn_in, is_padded(batch)) for window in cut]
    result: Batch = tree_map(lambda *parts: np.concatenate(parts), *windows)
    begin = len(starts) * stride
    return result, tree_map(lambda part: part[begin:].copy(), rows) if begin < total else None


def check_sequence_starts(length: int, burn_in: int, fragment_steps: int) -> None:
    """Check that sequences begin where fragments do, where the recurrent state is known."""
    stride = length - burn_in
    if stride % fragment_steps:
        raise ConfigError(
            f"sequences begin every {stride} steps (sequence_steps {length} - burn_in {burn_in}), but the recurrent "
            f"state is known every {fragment_steps} steps (fragment_steps). Make the first a multiple of the second."
        )


def _at_first_of(num_steps: int, state: Array) -> Array:
    """Return the state before a fragment, [B, ...], as a column of steps, [T, B, ...], of which the first has it."""
    column = np.zeros((num_steps, *state.shape), state.dtype)
    column[0] = state
    return column


def _sequence(rows: Batch, gamma: float, n: int, burn_in: int, padded: bool) -> Batch:
    """Return the sequences of all slots, [B, L, ...], from the rows of one window, [L, B, ...]."""
    rows = {**rows, "mask": rows["valid"].copy()}
    rows["mask"][:burn_in] = False
    state = rows.pop("state", None)
    if padded:
        rows = move_padding_to_front(rows)
    valid, ended = rows["valid"], (rows["terminated"] | rows["truncated"]) & rows["valid"]
    begins = np.zeros_like(valid)
    begins[1:] = ended[:-1] if padded else ended[:-1] | ~valid[:-1]  # padding is no end of an episode
    sums, last, _ = _sum_rewards(rows["reward"], ended, valid, gamma, n)
    slots = np.arange(valid.shape[1])
    span = np.where(valid, last - np.arange(len(valid))[:, None] + 1, 1)
    columns = {
        "obs": rows["obs"],
        "action": rows["action"],
        "reward": sums,
        "discount": (gamma**span * ~rows["terminated"][last, slots]).astype(np.float32),
        "next_obs": row_of(rows["next_obs"], (last, slots)),
        "span": span,
        "begins": begins,
        "valid": valid,
        "mask": rows["mask"],
    }
    result: Batch = tree_map(lambda part: part.swapaxes(0, 1), columns)
    return result if state is None else {**result, "state": tree_map(lambda part: part[0], state)}
