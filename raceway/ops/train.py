"""Operators that train: from batches or gradients to new weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from raceway.agents import Weights
from raceway.flow import Envelope, injected
from raceway.learner.learner import HasLearner, Learner, Loss, Schedule, gradients_of
from raceway.ops.report import TrainStats
from raceway.rl import Batch, num_steps
from raceway.state import Stateful, record


class TrainOneStep(HasLearner):
    """Train on each batch: one gradient step, or one for every minibatch of every epoch."""

    def __init__(self, learner: Learner, loss: Loss, *, num_epochs: int = 1, num_minibatches: int = 1) -> None:
        self.learner, self.loss, self.parts = learner, loss, (num_epochs, num_minibatches)

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Train on a batch, and return the stats."""
        begin, lag = time.perf_counter(), self.learner.lag_metrics(envelope.version)
        metrics = self.learner.train(self.loss, batch, *self.parts)
        stats = TrainStats.of(batch, metrics | lag, train=time.perf_counter() - begin)
        stats.published_weights = self.learner.publish()
        return stats


@record(formerly=("Gradients",))
@dataclass
class Gradients:
    """The gradients of a batch, and its stats."""

    arrays: Weights
    stats: TrainStats


class ComputeGradients:
    """Compute the gradients of a loss where the batch was collected, with that worker's weights. Runs on shards."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, batch: Batch, *, actor: Any = injected) -> Gradients:
        """Return the gradients."""
        arrays, metrics = gradients_of(actor.policy, self.loss, batch)
        return Gradients(arrays, TrainStats.of(batch, metrics))


class AverageGradients:
    """Average the gradients of a round, weighted by the number of steps."""

    def __call__(self, round: Sequence[Gradients]) -> Gradients:
        """Return the weighted mean."""
        stats = TrainStats.merge([part.stats for part in round])
        parts = [(part.stats.num_steps / stats.num_steps, part.arrays) for part in round]
        mean = {name: sum(weight * arrays[name] for weight, arrays in parts) for name in round[0].arrays}
        return Gradients({name: np.asarray(array, np.float32) for name, array in mean.items()}, stats)


class ApplyGradients:
    """Take one gradient step with each item's gradients."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, gradients: Gradients, *, envelope: Envelope = injected) -> TrainStats:
        """Take the step, and return the stats."""
        begin, stats, lag = time.perf_counter(), gradients.stats, self.learner.lag_metrics(envelope.version)
        metrics = self.learner.apply(gradients.arrays, stats.num_steps)
        return stats.add_metrics(metrics | lag, train=time.perf_counter() - begin)


class UpdateTarget(Stateful):
    """Copy the weights to the target network every `every` training steps."""

    state_attributes: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, learner: Learner, every: int) -> None:
        self.learner, self.every, self.steps = learner, every, 0

    def __call__(self, stats: TrainStats) -> TrainStats:
        """Count a training step, and return its stats."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.learner.target.load(self.learner.policy.weights())
        return stats


class Explore(Stateful):
    """Set the ε of ε-greedy exploration by a schedule over environment steps."""

    state_attributes: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, learner: Learner, epsilon: Schedule) -> None:
        self.learner, self.epsilon, self.steps = learner, epsilon, 0

    def __call__(self, batch: Batch) -> Batch:
        """Count the steps of a batch, and return it."""
        self.steps += num_steps(batch)
        self.learner.policy.set_epsilon(self.epsilon(self.steps))
        return batch
