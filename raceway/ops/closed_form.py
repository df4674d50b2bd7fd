"""Training in closed form: an agent that updates itself from a batch, without a loss and without an optimiser."""

from __future__ import annotations

import time

from raceway.flow import Envelope, injected
from raceway.learner.learner import HasLearner, Learner
from raceway.ops.report import TrainStats
from raceway.rl import Batch


class FitOneStep(HasLearner):
    """Update the agent from each batch by its own method `fit(batch) -> metrics`."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Update the agent, and return the stats."""
        begin, lag = time.perf_counter(), self.learner.lag_metrics(envelope.version)
        stats = TrainStats.of(batch, self.learner.fit(batch) | lag, train=time.perf_counter() - begin)
        stats.num_updates, stats.published_weights = 1, self.learner.publish()
        return stats
