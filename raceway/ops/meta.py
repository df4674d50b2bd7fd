"""Operators of meta-learning: inner updates for every task, then a meta-update over all tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raceway.agents import Weights
from raceway.agents.modes import acting_mode
from raceway.engine.base import Actor, Future
from raceway.flow import injected, send_msg
from raceway.learner.adaptation import Parameters, PlainLoss, loss_with
from raceway.learner.learner import Learner, mean_metrics, tensors_of
from raceway.learner.objectives import Metrics
from raceway.ops.report import TrainStats
from raceway.ops.weights import UpdateWeights
from raceway.rl import Batch, Episodes, baseline_advantages, concat, num_steps
from raceway.state import Stateful

Task = Sequence[Batch]
"""The batches that one shard collected in a task: one before every inner update, and one after the last."""
Adapt = Callable[[Iterable[Batch], bool], Parameters]
"""Returns the parameters adapted to batches of a task, to first order if the flag is set; see `adapt_parameters`."""


class FitBaseline(Stateful):
    """Add to whole episodes the `log_prob` of their actions and a standardised `advantage`. Runs on shards.

    The advantage is relative to a baseline that is fitted to the batch, which is of one task.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Episodes, *, actor: Any = injected) -> Episodes:
        """Return the batch with both columns."""
        advantages = baseline_advantages(batch["obs"], batch["reward"], batch["length"], self.gamma)
        with torch.inference_mode(), acting_mode(actor.agent):
            log_prob = actor.agent.actor.log_prob(batch).numpy()
        return Episodes({**batch, "advantage": advantages, "log_prob": log_prob})


class InnerAdapt(Stateful):
    """Adapt every shard's weights to its task after each of `num_steps` rounds; one round later, return all by task.

    For `combine`. The weights of all shards go to all workers, so it does not matter where a shard runs.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, weights: UpdateWeights, adapt: Adapt, num_steps: int = 1) -> None:
        self.weights, self.adapt, self.num_steps = weights, adapt, num_steps
        self.held: list[Sequence[Batch]] = []
        self._shard_weights: list[Weights] = []

    def __call__(self, batches: Sequence[Batch]) -> list[list[Task]]:
        """Send adapted weights for every task, or return the batches of all tasks after the last inner update."""
        self.held = [*self.held, batches]
        tasks: list[Task] = list(zip(*self.held, strict=True))
        if len(self.held) > self.num_steps:
            self.held, self._shard_weights = [], []
            return [tasks]
        self._send(tasks)
        return []

    def _send(self, tasks: Sequence[Task]) -> None:
        self._shard_weights = [self._adapted_weights(task) for task in tasks]
        shared = self.weights.workers[0].engine.put(self._shard_weights)
        for worker in self.weights.workers:
            send_msg(worker, "set_shard_weights", shared)

    def _adapted_weights(self, task: Task) -> Weights:
        adapted = self.adapt(map(tensors_of, task), True)
        weights = self.weights.learner.agent.weights()
        return weights | {name: tensor.detach().numpy() for name, tensor in adapted.items()}

    def restore(self, state: Any) -> None:
        """Resume from a state, also between two inner updates."""
        super().restore(state)
        if self.held:
            self._send(list(zip(*self.held, strict=True)))

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send the current weights to a worker that was restarted."""
        self.weights.send_to(worker)
        return send_msg(worker, "set_shard_weights", self._shard_weights)


class MetaUpdate(Stateful):
    """Minimise the loss after adaptation with respect to the weights before it, `num_epochs` times per item."""

    def __init__(
        self, learner: Learner, adapt: Adapt, loss: PlainLoss, *, num_epochs: int = 1, first_order: bool = False
    ) -> None:
        self.learner, self.adapt, self.loss = learner, adapt, loss
        self.num_epochs, self.first_order = num_epochs, first_order

    def __call__(self, tasks: Sequence[Task]) -> TrainStats:
        """Take the gradient steps, and return the metrics."""
        begin = time.perf_counter()
        losses = [partial(self._task_loss, *map(tensors_of, task), num_tasks=len(tasks)) for task in tasks]
        metrics = mean_metrics([self.learner.step(losses) for _ in range(self.num_epochs)])
        return task_stats(tasks, metrics, train=time.perf_counter() - begin)

    def _task_loss(self, *batches: Batch, num_tasks: int) -> Tensor:
        *before, after = batches
        return loss_with(self.learner.agent, self.adapt(before, self.first_order), self.loss, after) / num_tasks


def task_stats(tasks: Sequence[Task], metrics: Metrics, **seconds: float) -> TrainStats:
    """Return the stats of a meta-update. The returns are those after adaptation."""
    first, stats = (
        TrainStats.of(concat([task[index] for task in tasks]), metrics, None, **seconds) for index in (0, -1)
    )
    before, after = float(np.mean(first.returns)), float(np.mean(stats.returns))
    stats.num_steps = sum(num_steps(batch) for task in tasks for batch in task)
    stats.metrics |= {"rollout/before_rew_mean": before, "rollout/adaptation_gain": after - before}
    return stats
