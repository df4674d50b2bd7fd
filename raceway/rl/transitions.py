"""From fragments of experience, [T, B], to what replay holds: transitions over one step or several, and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import Batch, tree_map
from raceway.rl.spaces import row_of

_STEPS = ("obs", "action", "reward", "terminated", "truncated", "valid")


def n_step_transitions(batch: Batch, gamma: float, n: int = 1, held: Batch | None = None) -> tuple[Batch, Batch | None]:
    """Make transitions over n steps, or fewer where the episode ends before: Sutton & Barto 2018, eq. 7.1.

    Args:
        batch: a fragment, [T, B], with `last_obs`, `final_obs` and maybe `valid`, as rollouts give it.
        gamma: the discount γ.
        n: how many rewards a transition has.
        held: what the call for the fragment before held back: steps that lacked some of the n that follow them.

    Returns:
        `obs`, `action`, `reward` Σₖ γᵏ rₜ₊ₖ, `next_obs` n steps on, and `discount`: γⁿ, or 0 if the episode is over by
        then, so that a target is reward + discount · value(next_obs); [N], in the order of the steps. And what is held
        back for the next fragment.
    """
    rows = _steps(batch) | {"given": np.zeros_like(batch["truncated"]), "next_obs": next_obs_of(batch)}
    rows = _behind(held, rows, batch.get("anew"))
    total, num_slots = rows["reward"].shape
    terminated, ended = rows["terminated"], rows["terminated"] | rows["truncated"]
    sums = np.zeros_like(rows["reward"])
    last = np.zeros((total, num_slots), np.int64)  # the last step of each transition
    goes_on, complete = rows["valid"].copy(), np.zeros((total, num_slots), bool)
    for k in range(min(n, total)):
        some = goes_on[: total - k]  # a view: the starts that have a step k
        sums[: total - k] += np.where(some, gamma**k * rows["reward"][k:], 0)
        last[: total - k] = np.where(some, np.arange(k, total)[:, None], last[: total - k])
        complete[: total - k] |= some & ended[k:]
        some &= ~ended[k:]
    if total >= n:
        complete[: total - n + 1] |= goes_on[: total - n + 1]
    step, slot = np.nonzero(complete & ~rows["given"])
    end = last[step, slot]
    made = {
        "obs": row_of(rows["obs"], (step, slot)),
        "action": rows["action"][step, slot],
        "reward": sums[step, slot],
        "discount": (gamma ** (end - step + 1) * ~terminated[end, slot]).astype(np.float32),
        "next_obs": row_of(rows["next_obs"], (end, slot)),
    }
    if n == 1:
        return made, None
    rows["given"] = rows["given"] | complete
    return made, tree_map(lambda part: part[max(total - n + 1, 0) :].copy(), rows)


def _steps(batch: Batch) -> Batch:
    """Return what is known of each step of a fragment."""
    rows = {name: batch[name] for name in _STEPS if name in batch}
    rows.setdefault("valid", np.ones_like(batch["truncated"]))
    return rows


def _behind(held: Batch | None, rows: Batch, anew: Any = None) -> Batch:
    """Put steps behind those that were held back.

    An environment may have failed in the first of them, which then does not count, or since: its episode was dropped,
    so the last that was held back was cut short. `anew`, [B], says where all that was open was dropped.
    """
    if held is None or not len(held["valid"]):
        return rows
    last = len(held["valid"]) - 1
    joined: Batch = tree_map(lambda *parts: np.concatenate(parts), held, rows)
    valid, terminated, truncated = joined["valid"], joined["terminated"], joined["truncated"]
    dropped = ~valid[last + 1] if anew is None else anew
    truncated[last] |= valid[last] & ~terminated[last] & dropped
    return joined


def next_obs_of(batch: Batch) -> Any:
    """Return what was seen after each step of a fragment: of its own episode, also where that was cut short."""
    cut = np.nonzero(batch["truncated"] & batch.get("valid", True))

    def following(seen: Any, after: Any, final: Any) -> Any:
        found = np.concatenate([seen[1:], after[None]])
        found[cut] = final
        return found

    return tree_map(following, batch["obs"], batch["last_obs"], batch["final_obs"])


def sequences(batch: Batch, length: int, overlap: int = 0, held: Batch | None = None) -> tuple[Batch, Batch | None]:
    """Cut a stream of fragments into sequences of so many steps.

    Args:
        batch: a fragment, [T, B], as rollouts give it.
        length: steps of a sequence.
        overlap: steps that a sequence shares with the one before.
        held: what the call for the fragment before held back: steps for which there was no whole sequence yet.

    Returns:
        The steps, [N, length, ...]; `last_obs`, what was seen after the last one, [N, ...]; `mask`, [N, length]: the
        steps that count and are followed by their own next observation, which one that was cut short is not; and
        `state`, what a recurrent policy remembered at the beginning, if sequences are whole fragments. And what is
        held back.
    """
    rows = _steps(batch)
    whole = held is None and overlap == 0 and len(batch["reward"]) == length
    rows = _behind(held, rows, batch.get("anew"))
    total, stride = len(rows["reward"]), length - overlap
    starts = range(0, total - length + 1, stride)
    if not starts:
        return {}, rows
    after = tree_map(lambda seen, last: np.concatenate([seen, last[None]]), rows["obs"], batch["last_obs"])
    made = {name: tree_map(lambda part: _windows(part, starts, length), column) for name, column in rows.items()}
    made["mask"] = made.pop("valid") & ~made["truncated"]
    made["last_obs"] = tree_map(lambda part: np.concatenate([part[start + length] for start in starts]), after)
    if whole and "state" in batch:
        made["state"] = batch["state"]
    begin = starts[-1] + stride
    return made, tree_map(lambda part: part[begin:].copy(), rows) if begin < total else None


def _windows(part: Any, starts: range, length: int) -> Any:
    """Return windows of [T, B, ...] as [N, length, ...], one start after the other."""
    return np.concatenate([part[start : start + length].swapaxes(0, 1) for start in starts])
