"""From fragments of rollouts to the rows that replay holds."""

from __future__ import annotations

from typing import ClassVar

from raceway.checks import check_int
from raceway.errors import ConfigError
from raceway.rl import Batch, n_step_transitions, sequences
from raceway.state import Stateful


class Transitions(Stateful):
    """Makes transitions of fragments, over n steps. On shards: what the last steps lack comes with the next one."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, gamma: float, n: int = 1) -> None:
        self.gamma, self.n = gamma, check_int("n", n)
        self.held: Batch | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return them, with what is known of the episodes that ended."""
        made, self.held = n_step_transitions(batch, self.gamma, self.n, self.held)
        return made | _of_episodes(batch)


class Sequences(Stateful):
    """Makes sequences of so many steps of fragments, each sharing `overlap` steps with the one before. On shards."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, length: int, overlap: int = 0) -> None:
        self.length, self.overlap = check_int("length", length), check_int("overlap", overlap, 0)
        if overlap >= length:
            raise ConfigError(f"sequences of {length} steps cannot share {overlap} with the one before. Share fewer.")
        self.held: Batch | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return them, with what is known of the episodes that ended. There may be none yet."""
        made, self.held = sequences(batch, self.length, self.overlap, self.held)
        return made | _of_episodes(batch)


def _of_episodes(batch: Batch) -> Batch:
    return {name: column for name, column in batch.items() if name.startswith("episode_")}
