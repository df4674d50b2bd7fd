"""Circular buffer of train batches: each is given several times before it is dropped."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from raceway.checks import check_int
from raceway.flow import Envelope, injected
from raceway.rl import Batch, without_episode_columns
from raceway.rl.batch import COLLECTED, VERSION
from raceway.state import Stateful


class CircularBatches(Stateful):
    """Give every batch `times` times while it is one of the `num` newest, then drop it. Use with `combine`.

    Luo et al. 2019 (IMPACT), https://arxiv.org/abs/1912.00167. A batch is given when it arrives; the other times are
    spread evenly over the arrivals of newer ones, so that the learner has batches of several ages: it is given for the
    k-th of K times when ⌊(k - 1) N / K⌋ newer ones have arrived. When it is given again, it has no environment steps
    to count and no episodes to report.

    Args:
        num: the number of batches N.
        times: how many times each is given, K.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, num: int, times: int) -> None:
        check_int("num", num)
        ages = [index * num // times for index in range(check_int("times", times))]
        self._times_at, self._num_held = Counter(ages), ages[-1] + 1
        self.held = list[Batch | None]()
        """The newest batches, the newest first. At the end of the stream, None takes the place of those to come."""

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> list[Batch]:
        """Return the batches that are due: first the new one, then those that are given again."""
        again = {**without_episode_columns(batch), COLLECTED: np.zeros(1, np.int64)}
        if envelope.version is not None:
            again[VERSION] = np.array(envelope.version)
        return [batch, *self._shift(again)[1:]]

    def finish(self) -> list[Batch]:
        """Return what is left of the times of the last batches."""
        due = list[Batch]()
        while any(batch is not None for batch in self.held):
            due += self._shift(None)
        self.held = []
        return due

    def _shift(self, newest: Batch | None) -> list[Batch]:
        """Make every batch older by one, drop the oldest, and return those that are due."""
        self.held = [newest, *self.held][: self._num_held]
        aged = [(age, batch) for age, batch in enumerate(self.held) if batch is not None]
        return [batch for age, batch in aged for _ in range(self._times_at[age])]
