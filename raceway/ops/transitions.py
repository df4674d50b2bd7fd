"""Operators that turn rollout fragments into the rows of a replay buffer."""

from __future__ import annotations

from typing import ClassVar

from raceway.checks import check_int
from raceway.errors import ConfigError
from raceway.rl import Batch, n_step_transitions, sequences
from raceway.state import Stateful


class Transitions(Stateful):
    """Turn fragments into n-step transitions. On shards: the last steps are held back until the next fragment."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, gamma: float, n: int = 1) -> None:
        self.gamma, self.n = gamma, check_int("n", n)
        self.held: Batch | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return the transitions, with the columns of episodes that ended."""
        rows, self.held = n_step_transitions(batch, self.gamma, self.n, self.held)
        return rows | _episode_columns(batch)


class Sequences(Stateful):
    """Turn fragments into sequences of `length` steps that overlap by `overlap` steps. Runs on shards."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, length: int, overlap: int = 0) -> None:
        self.length, self.overlap = check_int("length", length), check_int("overlap", overlap, 0)
        if overlap >= length:
            raise ConfigError(f"sequences of {length} steps cannot overlap by {overlap}. Make overlap smaller.")
        self.held: Batch | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return the sequences, if any are complete, with the columns of episodes that ended."""
        rows, self.held = sequences(batch, self.length, self.overlap, self.held)
        return rows | _episode_columns(batch)


def _episode_columns(batch: Batch) -> Batch:
    return {name: column for name, column in batch.items() if name.startswith("episode_")}
