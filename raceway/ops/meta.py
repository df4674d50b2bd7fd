"""Learning to adapt: steps for every task by itself, and then one for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raceway.agents import Weights
from raceway.engine.base import Actor, Future
from raceway.flow import injected, send_msg
from raceway.learner.adaptation import Parameters, PlainLoss, loss_with
from raceway.learner.learner import Figures, Learner, mean_figures, tensors_of
from raceway.ops.report import TrainStats
from raceway.ops.weights import UpdateWeights
from raceway.rl import Batch, baseline_advantages, concat, num_steps
from raceway.state import Stateful

Task = Sequence[Batch]
"""What one shard has played: a batch before every step of its own, and one after the last."""
Adapt = Callable[[Iterable[Batch], bool], Parameters]
"""Of batches of one task, and whether second derivatives are left out: the parameters for it; see `adapted`."""


class FitBaseline:
    """Adds to whole episodes the `log_prob` of actions, and how much more than usual followed. On shards.

    What is usual is fitted to the batch, which is of one task. These `advantage`s are standardised.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Batch, *, actor: Any = injected) -> Batch:
        """Return the batch with both."""
        above = baseline_advantages(batch["obs"], batch["reward"], batch["length"], self.gamma)
        with torch.inference_mode():
            return {**batch, "advantage": above, "log_prob": actor.policy.log_prob(batch).numpy()}


class InnerAdapt(Stateful):
    """Has every shard play with weights of its own after each of so many rounds, then gives the rounds, task by task.

    For `combine`. The weights of all shards go to all workers, so it does not matter where a shard runs.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, weights: UpdateWeights, adapt: Adapt, num_steps: int = 1) -> None:
        self.weights, self.adapt, self.num_steps = weights, adapt, num_steps
        self.held: list[Sequence[Batch]] = []
        self._sent: list[Weights] = []

    def __call__(self, batches: Sequence[Batch]) -> list[list[Task]]:
        """Take a step for every task, or give what was played in it."""
        self.held = [*self.held, batches]
        tasks: list[Task] = list(zip(*self.held, strict=True))
        if len(self.held) > self.num_steps:
            self.held, self._sent = [], []
            return [tasks]
        self._send(tasks)
        return []

    def _send(self, tasks: Sequence[Task]) -> None:
        self._sent = [self._adapted(task) for task in tasks]
        shared = self.weights.workers[0].engine.put(self._sent)
        for worker in self.weights.workers:
            send_msg(worker, "set_shard_weights", shared)

    def _adapted(self, task: Task) -> Weights:
        found = self.adapt(map(tensors_of, task), True)
        return self.weights.learner.policy.weights() | {name: one.detach().numpy() for name, one in found.items()}

    def restore(self, state: Any) -> None:
        """Go on from there, also in the middle of a task."""
        super().restore(state)
        if self.held:
            self._send(list(zip(*self.held, strict=True)))

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send what was sent to one worker, which was restarted."""
        self.weights.send_to(worker)
        return send_msg(worker, "set_shard_weights", self._sent)


class MetaUpdate:
    """Takes steps down the loss after adapting, by the weights before it. All see the same episodes."""

    def __init__(
        self, learner: Learner, adapt: Adapt, loss: PlainLoss, *, num_epochs: int = 1, first_order: bool = False
    ) -> None:
        self.learner, self.adapt, self.loss = learner, adapt, loss
        self.num_epochs, self.first_order = num_epochs, first_order

    def __call__(self, tasks: Sequence[Task]) -> TrainStats:
        """Take the steps, and say how it went."""
        begin = time.perf_counter()
        losses = [partial(self._share, *map(tensors_of, task), num=len(tasks)) for task in tasks]
        figures = mean_figures([self.learner.step(losses) for _ in range(self.num_epochs)])
        return stats_of(tasks, figures, train=time.perf_counter() - begin)

    def _share(self, *batches: Batch, num: int) -> Tensor:
        *before, after = batches
        return loss_with(self.learner.policy, self.adapt(before, self.first_order), self.loss, after) / num


def stats_of(tasks: Sequence[Task], figures: Figures, **seconds: float) -> TrainStats:
    """Return what is known of tasks that were played and trained on. The returns are those after adapting."""
    first, stats = (TrainStats.of(concat([task[place] for task in tasks]), figures, **seconds) for place in (0, -1))
    before, after = float(np.mean(first.returns)), float(np.mean(stats.returns))
    stats.num_steps = sum(num_steps(batch) for task in tasks for batch in task)
    stats.metrics |= {"rollout/before_rew_mean": before, "rollout/adaptation_gain": after - before}
    return stats
