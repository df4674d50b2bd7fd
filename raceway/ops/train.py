"""Learning: from batches to better weights, and the weights back to the workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raceway.engine.base import Actor, Future
from raceway.errors import ActorError
from raceway.flow import send_msg
from raceway.ops.report import TrainStats
from raceway.policies import Policy
from raceway.rl import Batch, concat, discounted_returns, episode_sums, num_steps, parts_of, standardise_episodes
from raceway.rl.adam import Adam

Loss = Callable[[Policy, Batch], Tensor]

_PART_NUMBERS = 1 << 19  # numbers that a network works out at once: 2 MB


class AddReturns:
    """Adds a column `return`: what followed each step, discounted, and standardised within its episode."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with it."""
        returns = discounted_returns(batch["reward"], batch["length"], self.gamma)
        return {**batch, "return": standardise_episodes(returns, batch["length"])}


class ConcatBatches:
    """Makes one batch of a round."""

    def __call__(self, batches: Sequence[Batch]) -> Batch:
        """Put them behind one another, in the order of the shards."""
        return concat(batches)


class Learner:
    """The policy that is trained, its optimiser, and how many threads it may use.

    The number of threads is a setting and not the machine's: it changes the last bits of gradients.
    """

    def __init__(self, policy: Policy, lr: float, threads: int = 1) -> None:
        self.policy, self.threads = policy, threads
        self.optimiser = Adam(policy.parameters(), lr)

    def step(self, losses: Iterable[Callable[[], Tensor]]) -> float:
        """Take one step down the sum of some losses, which are worked out one after the other, and return it."""
        before = torch.get_num_threads()
        if before != self.threads:
            torch.set_num_threads(self.threads)
        try:
            self.optimiser.zero_grad()
            total = 0.0
            for loss in losses:
                value = loss()
                value.backward()
                total += float(value.detach())
            self.optimiser.step()
        finally:
            if before != self.threads:
                torch.set_num_threads(before)  # environments beside it are played with one
        return total


class TrainOneStep:
    """One step of the optimiser on each batch.

    The loss of whole episodes must be a mean over them: it is worked out in parts that fit into the caches, which takes
    two thirds of the time and much less memory.
    """

    def __init__(self, learner: Learner, loss: Loss, part_steps: int | None = None) -> None:
        self.learner, self.loss = learner, loss
        self.part_steps = part_steps or max(_PART_NUMBERS // numbers_a_step(learner.policy), 1)

    def __call__(self, batch: Batch) -> TrainStats:
        """Train, and say how it went."""
        begin = time.perf_counter()
        parts = parts_of(batch, self.part_steps) if "length" in batch else [batch]
        loss = self.learner.step(partial(self._share, part, batch) for part in parts)
        if "length" in batch:
            returns, lengths = episode_sums(batch["reward"], batch["length"]), batch["length"]
        else:
            returns, lengths = batch["episode_return"], batch["episode_length"]
        stats = TrainStats(num_steps=num_steps(batch), returns=returns, lengths=lengths)
        stats.metrics["train/loss"] = loss
        stats.seconds["train"] = time.perf_counter() - begin
        return stats

    def _share(self, part: Batch, batch: Batch) -> Tensor:
        loss = self.loss(self.learner.policy, part)
        return loss if part is batch else loss * (len(part["length"]) / len(batch["length"]))


def numbers_a_step(network: nn.Module) -> int:
    """Return about how many numbers a network works out for one step: its outputs, layer by layer.

    >>> numbers_a_step(nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)))
    130
    """
    return sum(len(weight) for weight in network.parameters() if weight.ndim > 1) or 1


class UpdateWeights:
    """Sends the learner's weights to the workers: written once, read by all."""

    def __init__(self, learner: Learner, workers: Sequence[Actor]) -> None:
        self.learner, self.workers = learner, workers
        self.version = 0
        self._sent: list[Future[Any]] = []

    def send(self, workers: Sequence[Actor]) -> None:
        """Send what there is now."""
        weights = workers[0].engine.put(self.learner.policy.weights())
        for error in [future.exception() for future in self._sent]:  # done long ago
            if error is not None and not isinstance(
                error, ActorError
            ):  # a worker that died will be told when it is back
                raise error
        self._sent = [send_msg(worker, "set_weights", weights, version=self.version) for worker in workers]

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send them to one worker, which was restarted."""
        return send_msg(worker, "set_weights", self.learner.policy.weights(), version=self.version)

    def __call__(self, stats: TrainStats) -> TrainStats:
        """Send new weights to all, and give on the figures."""
        begin = time.perf_counter()
        self.version += 1
        self.send(self.workers)
        stats.seconds["weights"] = time.perf_counter() - begin
        return stats
