"""Training on every shard: each computes gradients of its own minibatches, and all take steps with their mean.

A shard is a rank. `MinibatchGradients` contributes one item to every synchronous round, and `AllReduce` answers the
round: it adds the contributions in the order of the shards, which does not depend on the number of workers, and sends
the result to all workers. There it is applied by a `Replica`, which the shards of a worker share; the learner in the
driver takes the same steps, so that it can be saved, evaluated, and sent to a worker that is restarted.

    rank 0:  moments           gradient           gradient           ...  gradient
    rank 1:  moments           gradient           gradient           ...  gradient
    answer:           moments            gradient           gradient ...

A worker that is restarted has lost the batches of its shards. They begin with the moments of their next batch while the
other ranks still contribute gradients. Such a round has no answer, from which those see that their batch ends here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from raceway.engine.base import Actor, Future
from raceway.errors import ActorError, FlowError
from raceway.flow import Envelope, Shard, injected, send_msg, send_msg_to_all
from raceway.learner.global_random import GlobalRandom
from raceway.learner.learner import mean_metrics, tensors_of
from raceway.learner.minibatches import minibatches
from raceway.learner.objectives import Loss, Metrics
from raceway.learner.replica import MakeLearner, Reduced, Replica, Statistics, mean_gradient, statistics_of
from raceway.ops.report import TrainStats
from raceway.ops.weights import WeightSender
from raceway.rl import Batch, Moments, Rows
from raceway.rl.seeding import Purpose

Array = np.ndarray


@dataclass(kw_only=True)
class NewBatch:
    """What a rank contributes at the beginning of a batch."""

    moments: Moments
    """Of the column that is standardised over all ranks."""
    stats: TrainStats
    observed: Statistics
    """What the normalisers observe of the batch."""
    weights_sha256: str | None = None
    """A hash of its weights, if they are to be checked."""


@dataclass(kw_only=True)
class MinibatchGradient:
    """What a rank contributes to a gradient step."""

    gradient: Array | None
    """One vector; None if there are fewer minibatches than usual."""
    num_rows: int
    """The rows of the minibatch, by which the gradient is weighted."""
    metrics: Metrics | None = None
    """With the last gradient of a batch: the means of the metrics over all of its own."""


Contribution = NewBatch | MinibatchGradient


class MinibatchGradients:
    """Contribute the gradients of the minibatches of a shard's own batches. For `transform`, on shards.

    The column `standardise` is standardised over the rows of all ranks. For as long as a contribution to a new batch is
    not answered, it is repeated; a batch of which a gradient is not answered ends with it.

    Args:
        loss: the loss, for the whole agent: a function.
        make_learner: makes the learner that the shards of a worker share.
        num_epochs: passes over each batch.
        num_minibatches: minibatches of a pass.
        standardise: the column to standardise.
        check_every: batches between two checks of the weights. The first one is always checked.
    """

    def __init__(
        self,
        loss: Loss,
        make_learner: MakeLearner,
        *,
        num_epochs: int = 1,
        num_minibatches: int = 1,
        standardise: str = "advantage",
        check_every: int = 1,
    ) -> None:
        self.make_replica, self.standardise = partial(Replica.of, make_learner, loss), standardise
        self.num_epochs, self.num_minibatches, self.check_every = num_epochs, num_minibatches, check_every
        self.num_batches = 0
        self._random: torch.Generator | None = None
        self._global_random = GlobalRandom(0)

    def __call__(
        self, batches: Iterator[Rows], *, actor: Any = injected, shard: Shard = injected
    ) -> Iterator[Contribution]:
        """Yield the contributions of one batch after the other."""
        if self._random is None:
            self._seed(int(shard.generator(int(Purpose.LEARNER)).integers(2**62)))
        for batch in batches:
            replica: Replica = actor.replica(self.make_replica)
            yield from self._begin(batch, replica)
            columns = {**batch, self.standardise: replica.moments.standardise(batch[self.standardise])}
            for contribution in self._gradients(tensors_of(columns), replica):
                num_answers = replica.num_answers
                yield contribution
                if replica.num_answers == num_answers:
                    break

    def _begin(self, batch: Rows, replica: Replica) -> Iterator[NewBatch]:
        agent, num_answers = replica.learner.agent, replica.num_answers
        contribution = NewBatch(
            moments=Moments.of(batch[self.standardise]),
            stats=TrainStats.of(batch),
            observed=statistics_of(agent, tensors_of(batch)),
            weights_sha256=None if self.num_batches % self.check_every else agent.sha256(),
        )
        self.num_batches += 1
        while replica.num_answers == num_answers:
            yield contribution

    def _gradients(self, rows: Batch, replica: Replica) -> Iterator[MinibatchGradient]:
        total, metrics = self.num_epochs * self.num_minibatches, list[Metrics]()
        for number, minibatch in enumerate(self._minibatches(rows), 1):
            gradient, num_rows = None, 0
            if minibatch is not None:
                gradient, latest = replica.gradient(minibatch, self._global_random)
                num_rows = len(minibatch[self.standardise])
                metrics.append(latest)
            last = mean_metrics(metrics) if number == total else None
            yield MinibatchGradient(gradient=gradient, num_rows=num_rows, metrics=last)

    def _minibatches(self, rows: Batch) -> Iterator[Batch | None]:
        """Yield the minibatches of every epoch, as many on every rank."""
        assert self._random is not None
        for _ in range(self.num_epochs):
            count = 0
            for minibatch in minibatches(rows, self.num_minibatches, self._random):
                yield minibatch
                count += 1
            yield from [None] * (self.num_minibatches - count)

    def _seed(self, seed: int) -> None:
        self._random, self._global_random = torch.Generator().manual_seed(seed), GlobalRandom(seed)

    def state(self) -> Any:
        """Return the state between two batches."""
        return {
            "num_batches": self.num_batches,
            "random": None if self._random is None else self._random.get_state().numpy().copy(),
            "global_random": self._global_random.state,
        }

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.num_batches = state["num_batches"]
        if state["random"] is not None:
            self._seed(0)
            self._random.set_state(torch.from_numpy(np.array(state["random"])))  # type: ignore[union-attr]
            self._global_random.state = state["global_random"]


class AllReduce:
    """Answer the rounds of all ranks: reduce their gradients, and take the same step everywhere. For `combine`.

    Args:
        weights: sends weights to the workers of the ranks, and has the learner.
    """

    shared_by_runs = True  # of a flow: it belongs to the learner, and to the replicas of the workers

    def __init__(self, weights: WeightSender) -> None:
        self.weights, self.learner = weights, weights.learner
        self._replica = Replica(self.learner)
        self._batch: list[NewBatch] = []
        self._metrics: list[Metrics] = []
        self._lag: Metrics = {}
        self._begun = 0.0
        self._sent: list[Future[Any]] = []

    def __call__(self, round: Sequence[Contribution], *, envelope: Envelope = injected) -> list[TrainStats]:
        """Answer a round, and return the stats of the batch if it ends with it; otherwise nothing."""
        new = [part for part in round if isinstance(part, NewBatch)]
        gradients = [part for part in round if isinstance(part, MinibatchGradient)]
        if new and gradients:  # a worker was restarted in the middle of the batch
            return self._finish({})
        if new:
            self._begin(new, envelope)
            return []
        last = all(part.metrics is not None for part in gradients)
        observed = [part.observed for part in self._batch] if last else []
        gradient = mean_gradient([(part.gradient, part.num_rows) for part in gradients])
        reduced = Reduced(gradient=gradient, lr=self.learner.optimiser.lr, observed=observed)
        self._metrics.append(self._answer(reduced))
        return self._finish(mean_metrics([part.metrics for part in gradients if part.metrics])) if last else []

    def _begin(self, batch: list[NewBatch], envelope: Envelope) -> None:
        self._begun, self._metrics = time.perf_counter(), []
        self._lag = self.learner.lag_metrics(envelope.version)
        self._check_weights(batch, envelope)
        self._batch = batch
        self.learner.count_steps(sum(part.stats.num_steps for part in batch))
        self._answer(Reduced(moments=Moments.merge(part.moments for part in batch)))

    def _check_weights(self, batch: list[NewBatch], envelope: Envelope) -> None:
        hashes = [part.weights_sha256 for part in batch]
        expected = self.learner.agent.sha256() if any(hashes) else None
        for part, found in zip(envelope.parts, hashes, strict=True):
            if found not in (None, expected):
                (source,) = part.sources
                raise FlowError(
                    f"rank {source.shard}, on {source.name}, has other weights than the learner after "
                    f"{self.learner.version} gradient steps: {str(found)[:12]} instead of {str(expected)[:12]}. All "
                    "must compute the same: use the same versions and the same kind of processor for all workers, and "
                    "a network whose buffers do not change with the rows that it sees."
                )

    def _answer(self, reduced: Reduced) -> Metrics:
        """Send an answer to all workers, and do here what they do with it."""
        for error in [future.exception() for future in self._sent if future.done()]:
            if error is not None and not isinstance(error, ActorError):  # a dead worker gets the state when it restarts
                raise error
        version = self.learner.version + (reduced.gradient is not None)
        self._sent = send_msg_to_all(self.weights.workers, "receive", reduced, version=version)
        return self._replica.receive(reduced)

    def _finish(self, metrics: Metrics) -> list[TrainStats]:
        """Return the stats of the batch, if one has begun."""
        batch, self._batch = self._batch, []
        if not batch:
            return []
        stats = TrainStats.merge([part.stats for part in batch])
        stats.num_updates = len(self._metrics)
        metrics = {**metrics, **mean_metrics(self._metrics), **self._lag}
        return [stats.add_metrics(metrics, train=time.perf_counter() - self._begun)]

    def send_to(self, worker: Actor) -> list[Future[Any]]:
        """Send the current weights and the optimiser state to a worker that was restarted."""
        return [self.weights.send_to(worker), send_msg(worker, "set_replica", self.learner.state())]

    def state(self) -> Any:
        """Return the state to resume from. The learner is saved separately."""
        return {"version": self.learner.version}

    def restore(self, state: Any) -> None:
        """Send all workers the state of the learner, which was restored before."""
        for worker in self.weights.workers:
            self._sent += self.send_to(worker)
