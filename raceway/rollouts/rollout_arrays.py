"""Preallocated arrays that environment steps are written into: a row for every step, a column for every slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raceway.envs import Slots
from raceway.rl import Batch, empty, row_of, tree_map

Array = np.ndarray

_INITIAL_ROWS = 512  # doubled whenever an episode is longer
_ARRAYS = ("obs", "action", "reward", "ended", "valid")


class RolloutArrays:
    """Arrays of environment steps, [T, B], that `Collector` writes into. `obs` has an extra row at the end."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.num_slots = slots, slots.num
        # Return and length so far of the episodes that a fragment left open.
        self._open_episodes = np.zeros((2, slots.num))
        self._reserve(_INITIAL_ROWS)

    def _reserve(self, rows: int) -> None:
        """Grow the arrays to a number of rows, keeping their contents."""
        num, old = self.num_slots, {name: getattr(self, name) for name in _ARRAYS if hasattr(self, name)}
        self.obs: Any = empty(self.slots.observation_space, (rows + 1, num))
        self.action: Array = empty(self.slots.action_space, (rows, num))
        self.reward = np.zeros((rows, num), np.float32)
        self.ended = np.zeros((rows, 2, num), bool)
        self.valid = np.zeros((rows, num), bool)
        for name, arrays in old.items():
            tree_map(lambda new, before: np.copyto(new[: len(before)], before), getattr(self, name), arrays)

    def _copy_obs(self, row: int, slot: int) -> Any:
        """Return a copy of an observation."""
        return tree_map(np.copy, row_of(self.obs, (row, slot)))

    def _copy_columns(self, num_rows: int) -> Batch:
        """Return copies of the first rows as the columns of a fragment."""
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

    def _whole_episodes(self, num_rows: int) -> Batch:
        """Return the valid steps, slot by slot, and the length of each episode."""
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

    def _stack_obs(self, observations: list[Any]) -> Any:
        """Stack observations along a new first axis; an empty list gives an array of length 0."""
        no_obs = row_of(self.obs, (slice(0, 0), 0))
        return tree_map(lambda *parts: np.stack(parts), *observations) if observations else tree_map(np.copy, no_obs)

    def _episode_totals(self, ends: Sequence[tuple[int, int, bool]], num_rows: int) -> Batch:
        """Return the returns and lengths of the episodes that ended in a fragment, and carry over the open ones.

        Args:
            ends: the slot and last row of each episode, and whether it was completed. Episodes dropped after a failure
                are not reported.
            num_rows: the number of rows of the fragment.
        """
        valid = self.valid[:num_rows]
        sums = np.stack([np.cumsum(self.reward[:num_rows] * valid, 0, float), np.cumsum(valid, 0, float)])
        before, totals = -self._open_episodes, []
        for slot, row, completed in ends:
            if completed:
                totals.append(sums[:, row, slot] - before[:, slot])
            before[:, slot] = sums[:, row, slot]
        self._open_episodes = sums[:, -1] - before
        table = np.array(totals).reshape(-1, 2)
        return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}

    def _steps_in_episode(self, row: int, slot: int) -> tuple[int, int]:
        """Return the number of steps of the episode that is open at a row: in these arrays, and in total."""
        breaks = np.flatnonzero(~self.valid[:row, slot] | self.ended[:row, :, slot].any(1))
        if len(breaks):
            return (row - 1 - int(breaks[-1]),) * 2
        return row, row + int(self._open_episodes[1, slot])

    def _invalidate_step(self, slots: list[int], row: int) -> None:
        """Mark a failed step of these slots as not valid."""
        self.valid[row, slots] = False
        self.reward[row, slots] = 0
        self.ended[row][:, slots] = False

    def _find_non_finite(
        self, num_rows: int, active: Array, resets: bool, final_obs: Any = None, final: Sequence[Any] = ()
    ) -> tuple[int, int, str, str] | None:
        """Find the first valid reward or observation that is not finite.

        Args:
            num_rows: rows that were collected.
            active: the slots that continue after them, [B].
            resets: whether the observation after an episode's end is already the first of the next episode.
            final_obs: last observations of episodes, whose rows a reset may have overwritten.
            final: the slot and row of each.

        Returns:
            The row and slot of the step, or the row that a reset filled, and the kind and description of the problem.
        """
        valid = self.valid[:num_rows]
        problems: list[tuple[int, int, str, Array]] = []
        for row, slot, value in _first_non_finite(self.reward[:num_rows], valid):
            problems.append((row, slot, "environment step returned a reward", value))
        observed = np.zeros((num_rows + 1, self.num_slots), bool)  # before or after a valid step, or in an active slot
        observed[:-1] = valid
        observed[1:] |= valid
        observed[-1] |= active
        values: list[tuple[int, int, Array]] = []
        tree_map(lambda rows: values.extend(_first_non_finite(rows[: num_rows + 1], observed)), self.obs)
        for row, slot, value in values:
            is_first = self._is_first_obs(
                row, slot, bool(valid[row, slot] if row < num_rows else active[slot] and resets)
            )
            verb = "reset" if is_first else "step"
            problem = f"environment {verb} returned an observation"
            problems.append((row if is_first else row - 1, slot, problem, value))
        if final:
            values.clear()
            tree_map(lambda rows: values.extend(_first_non_finite(rows[None])), final_obs)
            for _, index, value in values:
                slot, row = final[index][:2]
                problems.append((row - 1, slot, "environment step returned an observation", value))
        if not problems:
            return None
        row, slot, kind, value = min(problems, key=lambda entry: entry[0])
        return row, slot, kind, f"{kind} of {value.ravel()[:8].tolist()}"

    def _is_first_obs(self, row: int, slot: int, continues: bool) -> bool:
        """Whether an observation is the first of its episode; `continues` says whether a step or reset used its row."""
        if row == 0 or not self.valid[row - 1, slot]:
            return True
        return bool(self.ended[row - 1, :, slot].any()) and continues


def take_game_scores(slots: Slots) -> Batch:
    """Return the returns and lengths of finished games, and clear them; only where an episode is not a whole game."""
    scores = getattr(slots, "scores", None)
    if scores is None:
        return {}
    table = np.array([(score.total, score.steps) for score in scores], float).reshape(-1, 2)
    scores.clear()
    return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}


def _first_non_finite(rows: Array, mask: Array | None = None) -> list[tuple[int, int, Array]]:
    """Return the row, slot and value of the first entry within the mask that is not finite, or an empty list."""
    if rows.dtype.kind != "f" or np.isfinite(rows).all():
        return []
    bad = ~np.isfinite(rows).reshape(*rows.shape[:2], -1).all(-1)
    if mask is not None:
        bad &= mask
    return [(row, slot, np.asarray(rows[row, slot])) for row, slot in np.argwhere(bad)[:1].tolist()]
