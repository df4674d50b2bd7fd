"""Operators that turn rollout fragments into the rows of a replay buffer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raceway.agents import Agent
from raceway.checks import check_int
from raceway.errors import ConfigError
from raceway.ops.replay import HindsightSettings
from raceway.rl import Batch, Fragment, Rows, episode_transitions, n_step_transitions, num_steps, sequences
from raceway.rl.batch import COLLECTED
from raceway.rl.transitions import check_sequence_starts
from raceway.state import Stateful


class Transitions(Stateful):
    """Turn fragments into n-step transitions. On shards: the last steps are held back until the next fragment."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)
    row_steps: ClassVar[int] = 1
    """Steps that are trained in a row of replay: a transition."""

    def __init__(self, gamma: float, n: int = 1) -> None:
        self.gamma, self.n = gamma, check_int("n", n)
        self.held: Batch | None = None

    def __call__(self, batch: Fragment) -> Rows:
        """Return the transitions, with the columns of episodes that ended."""
        rows, self.held = n_step_transitions(batch, self.gamma, self.n, self.held)
        return Rows(rows | _episode_columns(batch))


class EpisodeTransitions(Stateful):
    """Turn fragments into the transitions of whole episodes, for hindsight. On shards: open episodes are held back.

    Every row has the numbers of steps of its episode before and after it. An episode whose environment failed ends with
    its last step that was collected.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)
    row_steps: ClassVar[int] = 1
    """Steps that are trained in a row of replay: a transition."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.held: Batch | None = None

    def __call__(self, batch: Fragment) -> Rows:
        """Return the transitions of the episodes that ended, with the steps that were collected."""
        rows, self.held = episode_transitions(batch, self.gamma, self.held)
        return Rows({**rows, COLLECTED: np.array([num_steps(batch)]), **_episode_columns(batch)})


class Sequences(Stateful):
    """Turn fragments into sequences of n-step transitions, for recurrent networks. Runs on shards.

    Args:
        gamma: the discount γ.
        n: the number of rewards in a transition.
        length: the number of steps in a sequence.
        burn_in: the number of steps at its start that only lead the recurrent state to those that are trained. They
            overlap with the sequence before, so that every step is trained in one sequence.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, gamma: float, n: int, length: int, burn_in: int = 0) -> None:
        self.gamma, self.n = gamma, check_int("n", n)
        self.length, self.burn_in = check_int("length", length), check_int("burn_in", burn_in, 0)
        if burn_in >= length:
            raise ConfigError(f"in sequences of {length} steps, {burn_in} cannot be burn-in. Make burn_in smaller.")
        self.held: Batch | None = None

    @property
    def row_steps(self) -> int:
        """Steps that are trained in a row of replay: a sequence."""
        return self.length - self.burn_in

    def __call__(self, batch: Fragment) -> Batch:
        """Return the sequences that are complete, with the steps that were collected and the episodes that ended."""
        rows, self.held = sequences(batch, self.gamma, self.n, self.length, self.burn_in, self.held)
        return {**rows, COLLECTED: np.array([num_steps(batch)]), **_episode_columns(batch)}


def transitions(
    gamma: float, n: int = 1, *, hindsight: HindsightSettings | None = None
) -> Transitions | EpisodeTransitions:
    """Return the operator that makes transitions: those of whole episodes if goals are replaced in hindsight."""
    if hindsight is None:
        return Transitions(gamma, n)
    if n != 1:
        raise ConfigError(f"hindsight replay needs transitions of one step, not of {n}. Set n_step to 1.")
    return EpisodeTransitions(gamma)


def replay_rows(
    agent: Agent, gamma: float, n: int, hindsight: HindsightSettings | None = None, /, *, sequence_steps: int,
    burn_in: int, fragment_steps: int = 1,
) -> Transitions | EpisodeTransitions | Sequences:  # fmt: skip
    """Return the operator that makes the rows of replay: transitions, or sequences for a recurrent network."""
    if not agent.actor.recurrent:
        return transitions(gamma, n, hindsight=hindsight)
    if hindsight is not None:
        raise ConfigError(
            "hindsight replay stores transitions, which cannot train a recurrent network. Use --network mlp or another "
            "feed-forward one, or set replay to uniform."
        )
    rows = Sequences(gamma, n, sequence_steps, burn_in)
    check_sequence_starts(sequence_steps, burn_in, fragment_steps)  # before training, rather than at its first fragment
    return rows


def _episode_columns(batch: Batch) -> Batch:
    return {name: column for name, column in batch.items() if name.startswith("episode_")}
