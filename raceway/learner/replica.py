"""Replicas: learners that take the same gradient steps, each having computed the gradients of its own minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from raceway.agents.agent import Agent
from raceway.agents.networks import Normaliser
from raceway.errors import ConfigError
from raceway.learner.global_random import GlobalRandom
from raceway.learner.learner import Learner
from raceway.learner.objectives import Loss, Metrics
from raceway.rl import Batch, Moments

Array = np.ndarray
MakeLearner = Callable[[Agent], Learner]
"""Makes the learner of an agent, with the settings of the run."""


class Observed(NamedTuple):
    """What a normaliser would observe of some rows."""

    mean: Array
    var: Array
    num: float


Statistics = dict[str, Observed]
"""What the normalisers of an agent would observe of some rows, by their names; those without rows are left out."""


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What all ranks together have computed: the answer to their contributions."""

    moments: Moments | None = None
    """The moments of the advantages, at the beginning of a batch."""
    gradient: Array | None = None
    """The mean of the gradients, as one vector; None if there were no rows."""
    lr: float = 0.0
    """Learning rate of the step with it."""
    observed: Sequence[Statistics] = ()
    """What the normalisers observe after the last step of a batch, in the order of the ranks."""


class Replica:
    """A learner that computes gradients, and takes its steps with the reduced gradients of all ranks.

    Args:
        learner: the learner.
        loss: the loss that trains the whole agent: a function, as what it keeps would not be saved. None if the
            replica computes no gradients.
    """

    def __init__(self, learner: Learner, loss: Loss | None = None) -> None:
        self.learner, self.loss = learner, loss
        self.num_answers = 0
        """The number of answers so far. A rank whose contribution was not answered contributes to another round."""
        self.moments = Moments(0, 0.0, 0.0)
        """Those of the batch."""

    @classmethod
    def of(cls, make_learner: MakeLearner, loss: Loss, agent: Agent) -> Replica:
        """Return the replica that trains an agent."""
        return cls(make_learner(agent), loss)

    def gradient(self, minibatch: Batch, random: GlobalRandom) -> tuple[Array, Metrics]:
        """Return the gradient of the loss of a minibatch, as one vector, and metrics. No weights are changed.

        Args:
            minibatch: the minibatch.
            random: torch's global generator, for networks that sample from it.
        """
        learner, loss = self.learner, self.loss
        assert loss is not None
        with learner.own_threads(in_blocks=learner.compiled), random.used_by(learner.agent, [loss]):
            output = learner.compute_gradients(learner.whole_agent(), loss, minibatch)
        if output.buffers:
            raise ConfigError("buffers that a loss returns are set by TrainOneStep, and not where gradients are summed")
        return learner.optimiser.gradient().cpu().numpy(), output.metrics

    def step(self, gradient: Array, lr: float) -> Metrics:
        """Take a gradient step, and return metrics."""
        objective = self.learner.whole_agent()
        objective.optimiser.lr = lr
        objective.optimiser.zero_grad()
        objective.optimiser.set_gradient(torch.from_numpy(np.array(gradient)))
        self.learner.version += 1
        return objective.clip_and_step()

    def receive(self, reduced: Reduced) -> Metrics:
        """Do what follows from the contributions of all ranks, and return the metrics of a gradient step."""
        self.num_answers += 1
        if reduced.moments is not None:
            self.moments = reduced.moments
        metrics = {} if reduced.gradient is None else self.step(reduced.gradient, reduced.lr)
        merge_statistics(self.learner.agent, reduced.observed)
        return metrics


def mean_gradient(parts: Sequence[tuple[Array | None, int]]) -> Array | None:
    """Return Σₖ nₖ gₖ / Σₖ nₖ, added in the order k, of gradients and their numbers of rows; None without any.

    >>> mean_gradient([(np.array([1.0, 3.0]), 2), (None, 0), (np.array([4.0, 0.0]), 1)]).tolist()
    [2.0, 2.0]
    """
    total, num_rows = None, sum(num for _, num in parts)
    for gradient, num in parts:
        if gradient is not None:
            weighted = gradient * np.float32(num)
            total = weighted if total is None else np.add(total, weighted, out=total)
    return None if total is None else np.divide(total, np.float32(num_rows), out=total)


def statistics_of(agent: Agent, rows: Batch) -> Statistics:
    """Return what the normalisers of an agent would observe of a batch of tensors. They are not changed."""
    with _blank_normalisers(agent) as normalisers:
        agent.observe(rows)
        return {
            name: Observed(each.mean.numpy(), each.var.numpy(), float(each.count))
            for name, each in normalisers.items()
            if float(each.count)
        }


def merge_statistics(agent: Agent, parts: Sequence[Statistics]) -> None:
    """Update the normalisers of an agent with what they observed in several places, in this order."""
    normalisers = _normalisers(agent) if any(parts) else {}
    for part in parts:
        for name, observed in part.items():
            mean, var = (torch.from_numpy(np.array(array)).double() for array in observed[:2])
            normalisers[name].merge(observed.num, mean, var)


def _normalisers(agent: nn.Module) -> dict[str, Normaliser]:
    return {name: module for name, module in agent.named_modules() if isinstance(module, Normaliser)}


@contextmanager
def _blank_normalisers(agent: nn.Module) -> Iterator[dict[str, Normaliser]]:
    """Give the normalisers of an agent new statistics for a while."""
    normalisers: dict[str, Normaliser] = _normalisers(agent)
    before: list[tuple[Normaliser, dict[str, Any]]] = [(each, dict(each._buffers)) for each in normalisers.values()]
    for each, buffers in before:
        each.mean, each.var = torch.zeros_like(buffers["mean"]), torch.ones_like(buffers["var"])
        each.count = torch.zeros_like(buffers["count"])
    try:
        yield normalisers
    finally:
        for each, buffers in before:
            each.mean, each.var, each.count = buffers["mean"], buffers["var"], buffers["count"]
