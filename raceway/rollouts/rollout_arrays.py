"""What was played, in arrays that are there already: a row for every step, a column for every slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raceway.envs import Slots
from raceway.rl import Batch, empty, row_of, tree_map

Array = np.ndarray

_ROWS = 512  # for the first episodes; more are made when one is longer
_ARRAYS = ("obs", "action", "reward", "ended", "valid")


class RolloutArrays:
    """Steps, [T, B]: what `Collector` writes into. There is a row more of what was seen."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.num_slots = slots, slots.num
        self._carried = np.zeros((2, slots.num))  # rewards and steps of the episodes that a fragment left open
        self._reserve(_ROWS)

    def _reserve(self, rows: int) -> None:
        """Make the arrays that long, keeping what they hold."""
        num, old = self.num_slots, {name: getattr(self, name) for name in _ARRAYS if hasattr(self, name)}
        self.obs: Any = empty(self.slots.observation_space, (rows + 1, num))
        self.action: Array = empty(self.slots.action_space, (rows, num))
        self.reward = np.zeros((rows, num), np.float32)
        self.ended = np.zeros((rows, 2, num), bool)
        self.valid = np.zeros((rows, num), bool)
        for name, arrays in old.items():
            tree_map(lambda new, then: np.copyto(new[: len(then)], then), getattr(self, name), arrays)

    def _seen(self, row: int, slot: int) -> Any:
        """Return a copy of what was seen there."""
        return tree_map(np.copy, row_of(self.obs, (row, slot)))

    def _columns(self, num_rows: int) -> Batch:
        """Return copies of the first rows."""
        columns = {
            "obs": row_of(self.obs, slice(0, num_rows)),
            "action": self.action[:num_rows],
            "reward": self.reward[:num_rows],
            "terminated": self.ended[:num_rows, 0],
            "truncated": self.ended[:num_rows, 1],
            "valid": self.valid[:num_rows],
            "last_obs": row_of(self.obs, num_rows),
        }
        return tree_map(np.copy, columns)

    def _whole(self, num_rows: int) -> Batch:
        """Return the steps that count, slot by slot, and the length of each episode."""
        slots, steps = np.nonzero(self.valid[:num_rows].T)
        batch = {
            "obs": row_of(self.obs, (steps, slots)),
            "action": self.action[steps, slots],
            "reward": self.reward[steps, slots],
            "terminated": self.ended[steps, 0, slots],
            "truncated": self.ended[steps, 1, slots],
        }
        ends = np.flatnonzero(batch["terminated"] | batch["truncated"])
        batch["length"] = np.diff(ends, prepend=-1)
        return batch

    def _stacked(self, seen: list[Any]) -> Any:
        """Put observations on top of one another, also if there are none."""
        none = row_of(self.obs, (slice(0, 0), 0))
        return tree_map(lambda *parts: np.stack(parts), *seen) if seen else tree_map(np.copy, none)

    def _finished(self, ends: Sequence[tuple[int, int, bool]], num_rows: int) -> Batch:
        """Return the returns and lengths of the episodes that ended in a fragment, and carry what goes on.

        Args:
            ends: slot and row of each, and whether it was played out; others are not told of.
            num_rows: of the fragment.
        """
        valid = self.valid[:num_rows]
        sums = np.stack([np.cumsum(self.reward[:num_rows] * valid, 0, float), np.cumsum(valid, 0, float)])
        before, found = -self._carried, []
        for slot, now, played_out in ends:
            if played_out:
                found.append(sums[:, now, slot] - before[:, slot])
            before[:, slot] = sums[:, now, slot]
        self._carried = sums[:, -1] - before
        table = np.array(found).reshape(-1, 2)
        return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}

    def _steps_before(self, row: int, slot: int) -> tuple[int, int]:
        """Return how many steps before this row are of the episode that goes on there: in these rows, and in all."""
        breaks = np.flatnonzero(~self.valid[:row, slot] | self.ended[:row, :, slot].any(1))
        if len(breaks):
            return (row - 1 - int(breaks[-1]),) * 2
        return row, row + int(self._carried[1, slot])

    def _cross_out(self, slots: list[int], row: int) -> None:
        """Have a step not count, of which nothing is known."""
        self.valid[row, slots] = False
        self.reward[row, slots] = 0
        self.ended[row][:, slots] = False

    def _first_not_finite(
        self, num_rows: int, going_on: Array, resets: bool, final_obs: Any = None, final: Sequence[Any] = ()
    ) -> tuple[int, int, str] | None:
        """Find the first value that is not finite, of steps that count.

        Args:
            num_rows: that were played.
            going_on: the slots that play on after these, [B].
            resets: whether what they see now is the first of an episode where one has ended.
            final_obs: last observations of episodes, whose rows a reset may have taken.
            final: the slot and row of each.

        Returns:
            The row and slot of the step, or of the row that a reset was for, and what was wrong with it.
        """
        valid = self.valid[:num_rows]
        found: list[tuple[int, int, str, Array]] = []
        for now, slot, value in _not_finite(self.reward[:num_rows], valid):
            found.append((now, slot, "step of the environment gave a reward", value))
        seen = np.zeros((num_rows + 1, self.num_slots), bool)  # before or after a step that counts, or by who goes on
        seen[:-1] = valid
        seen[1:] |= valid
        seen[-1] |= going_on
        places: list[tuple[int, int, Array]] = []
        tree_map(lambda rows: places.extend(_not_finite(rows[: num_rows + 1], seen)), self.obs)
        for now, slot, value in places:
            began = self._began(now, slot, bool(valid[now, slot] if now < num_rows else going_on[slot] and resets))
            verb = "reset" if began else "step"
            found.append((now if began else now - 1, slot, f"{verb} of the environment gave an observation", value))
        if final:
            places.clear()
            tree_map(lambda rows: places.extend(_not_finite(rows[None])), final_obs)
            for _, which, value in places:
                slot, now = final[which][:2]
                found.append((now - 1, slot, "step of the environment gave an observation", value))
        if not found:
            return None
        row, slot, problem, value = min(found, key=lambda one: one[0])
        return row, slot, f"{problem} of {value.ravel()[:8].tolist()}"

    def _began(self, row: int, slot: int, goes_on: bool) -> bool:
        """Whether an observation is the first of its episode."""
        if row == 0 or not self.valid[row - 1, slot]:
            return True
        return bool(self.ended[row - 1, :, slot].any()) and goes_on


def scores_of(slots: Slots) -> Batch:
    """Return what whole games brought, where episodes and rewards are something else."""
    scores = getattr(slots, "scores", None)
    if scores is None:
        return {}
    table = np.array([(score.total, score.steps) for score in scores], float).reshape(-1, 2)
    scores.clear()
    return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}


def _not_finite(rows: Array, counts: Array | None = None) -> list[tuple[int, int, Array]]:
    """Return the row and slot of the first value that is not finite where it counts, and the value; or nothing."""
    if rows.dtype.kind != "f" or np.isfinite(rows).all():
        return []
    bad = ~np.isfinite(rows).reshape(*rows.shape[:2], -1).all(-1)
    if counts is not None:
        bad &= counts
    return [(now, slot, np.asarray(rows[now, slot])) for now, slot in np.argwhere(bad)[:1].tolist()]
