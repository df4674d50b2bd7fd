"""Learning: from batches or gradients to better weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.agents import Weights
from raceway.flow import Envelope, injected
from raceway.learner.learner import Learner, Loss, Schedule, Trains, gradients_of
from raceway.ops.report import TrainStats
from raceway.rl import Batch, num_steps
from raceway.state import record


class TrainOneStep(Trains):
    """Trains on each batch: one step of the optimiser, or one for every minibatch of every epoch."""

    def __init__(self, learner: Learner, loss: Loss, *, num_epochs: int = 1, num_minibatches: int = 1) -> None:
        self.learner, self.loss, self.parts = learner, loss, (num_epochs, num_minibatches)

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Train, and say how it went."""
        begin, lag = time.perf_counter(), self.learner.behind(envelope.version)
        figures = self.learner.train(self.loss, batch, *self.parts)
        stats = TrainStats.of(batch, figures | lag, train=time.perf_counter() - begin)
        stats.news = self.learner.news()
        return stats


@record(formerly=("Gradients",))
@dataclass
class Gradients:
    """What a batch says of the weights, and what is known of the batch."""

    arrays: Weights
    stats: TrainStats


class ComputeGradients:
    """Works out the gradient of a loss where the batch was made, with the weights that are there. On shards."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, batch: Batch, *, actor: Any = injected) -> Gradients:
        """Return the gradient."""
        arrays, figures = gradients_of(actor.policy, self.loss, batch)
        return Gradients(arrays, TrainStats.of(batch, figures))


class AverageGradients:
    """Makes one gradient of a round: the mean over all steps."""

    def __call__(self, many: Sequence[Gradients]) -> Gradients:
        """Return the mean, each counted by its steps."""
        stats = TrainStats.merged([one.stats for one in many])
        shares = [one.stats.num_steps / stats.num_steps for one in many]
        names = many[0].arrays
        mean = {name: sum(share * one.arrays[name] for share, one in zip(shares, many, strict=True)) for name in names}
        return Gradients({name: np.asarray(array, np.float32) for name, array in mean.items()}, stats)


class ApplyGradients:
    """Takes a step of the optimiser against each gradient."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, gradients: Gradients, *, envelope: Envelope = injected) -> TrainStats:
        """Take the step, and say how it went."""
        begin, stats, lag = time.perf_counter(), gradients.stats, self.learner.behind(envelope.version)
        figures = self.learner.apply(gradients.arrays, stats.num_steps)
        return stats.with_figures(figures | lag, train=time.perf_counter() - begin)


class UpdateTarget:
    """Has the target network take over the weights after every so many training steps."""

    def __init__(self, learner: Learner, every: int) -> None:
        self.learner, self.every, self.steps = learner, every, 0

    def __call__(self, stats: TrainStats) -> TrainStats:
        """Count a training step, and give on its figures."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.learner.target.load(self.learner.policy.weights())
        return stats


class Explore:
    """Sets the chance ε with which actions are drawn by chance, from how many steps were played."""

    def __init__(self, learner: Learner, epsilon: Schedule) -> None:
        self.learner, self.epsilon, self.steps = learner, epsilon, 0

    def __call__(self, batch: Batch) -> Batch:
        """Count the steps of a batch, and give it on."""
        self.steps += num_steps(batch)
        self.learner.policy.set_epsilon(self.epsilon(self.steps))
        return batch
