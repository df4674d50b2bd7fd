"""Transitions of one or more steps, and sequences, from rollout fragments, [T, B]."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import Batch, tree_map
from raceway.rl.spaces import row_of

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
    rows = _append_to_held(held, rows, batch.get("restarted"))
    total, num_slots = rows["reward"].shape
    terminated, ended = rows["terminated"], rows["terminated"] | rows["truncated"]
    sums = np.zeros_like(rows["reward"])
    last = np.zeros((total, num_slots), np.int64)  # the last step of each transition
    unfinished, complete = rows["valid"].copy(), np.zeros((total, num_slots), bool)
    for k in range(min(n, total)):
        active = unfinished[: total - k]  # a view: the transitions that have a step k
        sums[: total - k] += np.where(active, gamma**k * rows["reward"][k:], 0)
        last[: total - k] = np.where(active, np.arange(k, total)[:, None], last[: total - k])
        complete[: total - k] |= active & ended[k:]
        active &= ~ended[k:]
    if total >= n:
        complete[: total - n + 1] |= unfinished[: total - n + 1]
    step, slot = np.nonzero(complete & ~rows["emitted"])
    end = last[step, slot]
    transitions = {
        "obs": row_of(rows["obs"], (step, slot)),
        "action": rows["action"][step, slot],
        "reward": sums[step, slot],
        "discount": (gamma ** (end - step + 1) * ~terminated[end, slot]).astype(np.float32),
        "next_obs": row_of(rows["next_obs"], (end, slot)),
    }
    if n == 1:
        return transitions, None
    rows["emitted"] = rows["emitted"] | complete
    return transitions, tree_map(lambda part: part[max(total - n + 1, 0) :].copy(), rows)


def _step_columns(batch: Batch) -> Batch:
    """Return the columns of a fragment that have one row for each step."""
    rows = {name: batch[name] for name in _STEP_COLUMNS if name in batch}
    rows.setdefault("valid", np.ones_like(batch["truncated"]))
    return rows


def _append_to_held(held: Batch | None, rows: Batch, discarded: Any = None) -> Batch:
    """Append steps to those that were held back.

    Where an environment failed in between, its open episode was discarded, so the last step held back is marked as
    truncated. A failure shows as a first step that is not valid, or as `discarded`, [B].
    """
    if held is None or not len(held["valid"]):
        return rows
    last = len(held["valid"]) - 1
    joined: Batch = tree_map(lambda *parts: np.concatenate(parts), held, rows)
    valid, terminated, truncated = joined["valid"], joined["terminated"], joined["truncated"]
    dropped = ~valid[last + 1] if discarded is None else discarded
    truncated[last] |= valid[last] & ~terminated[last] & dropped
    return joined


def next_obs_of(batch: Batch) -> Any:
    """Return the observation after each step of a fragment, [T, B, ...]: the final one where a step is truncated."""
    truncated = np.nonzero(batch["truncated"] & batch.get("valid", True))

    def shift(obs: Any, last: Any, final: Any) -> Any:
        next_obs = np.concatenate([obs[1:], last[None]])
        next_obs[truncated] = final
        return next_obs

    return tree_map(shift, batch["obs"], batch["last_obs"], batch["final_obs"])


def sequences(batch: Batch, length: int, overlap: int = 0, held: Batch | None = None) -> tuple[Batch, Batch | None]:
    """Cut a stream of fragments into sequences of `length` steps.

    Args:
        batch: a rollout fragment, [T, B].
        length: the number of steps in a sequence.
        overlap: the number of steps that a sequence shares with the previous one.
        held: the steps that the call for the previous fragment held back, because they filled no sequence yet.

    Returns:
        The steps, [N, length, ...]; `last_obs`, the observation after the last step, [N, ...]; `mask`, [N, length],
        true where a step is valid and not truncated, so that the next observation is its own; and, if sequences are
        whole fragments, `state`, the recurrent state at their start. Then the steps held back for the next fragment.
    """
    rows = _step_columns(batch)
    whole = held is None and overlap == 0 and len(batch["reward"]) == length
    rows = _append_to_held(held, rows, batch.get("restarted"))
    total, stride = len(rows["reward"]), length - overlap
    starts = range(0, total - length + 1, stride)
    if not starts:
        return {}, rows
    all_obs = tree_map(lambda obs, last: np.concatenate([obs, last[None]]), rows["obs"], batch["last_obs"])
    windows = {name: tree_map(lambda part: _windows(part, starts, length), column) for name, column in rows.items()}
    windows["mask"] = windows.pop("valid") & ~windows["truncated"]
    windows["last_obs"] = tree_map(lambda part: np.concatenate([part[start + length] for start in starts]), all_obs)
    if whole and "state" in batch:
        windows["state"] = batch["state"]
    begin = starts[-1] + stride
    return windows, tree_map(lambda part: part[begin:].copy(), rows) if begin < total else None


def _windows(part: Any, starts: range, length: int) -> Any:
    """Return windows of an array [T, B, ...] as [N, length, ...], in the order of their starts."""
    return np.concatenate([part[start : start + length].swapaxes(0, 1) for start in starts])
