"""Members of a learner: actors that compute the gradients of parts of every minibatch.

A minibatch is divided into as many parts as there are members, in a fixed way. The learner sends its weights with the
parts, adds the gradients in the order of the members, and takes the step. A member keeps nothing between two calls, so
the result does not depend on where it runs, and one that dies is restarted and called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from raceway.agents.agent import Agent
from raceway.agents.weights import Weights
from raceway.engine.base import Actor, Future, Message
from raceway.errors import ActorError
from raceway.learner.active_objectives import ActiveObjective
from raceway.learner.global_random import GlobalRandom, may_sample_globally
from raceway.learner.learner import Learner, mean_metrics, tensors_of
from raceway.learner.minibatches import segment_minibatches
from raceway.learner.objectives import Loss, Metrics
from raceway.learner.replica import Array, MakeLearner, Replica, mean_gradient
from raceway.rl import Batch, Layout, columns_with, has_segments, layout_of, tree_map

_STEP_COLUMNS = columns_with(Layout.FRAGMENT, "[T")


class Part(NamedTuple):
    """A part of a minibatch."""

    batch: Batch
    weight: int
    """The number of rows, or of valid steps, over which a loss averages."""


class Member:
    """Computes gradients with the weights that it is sent. The object of an actor.

    Args:
        make_learner: makes the learner of an agent, with the settings of the run.
        agent: the agent; its weights do not matter.
        loss: the loss of the whole agent.
    """

    def __init__(self, make_learner: MakeLearner, agent: Agent, loss: Loss) -> None:
        self._replica = Replica.of(make_learner, loss, agent)

    def gradient(self, weights: Weights, batch: Batch, seed: int) -> tuple[Array, Metrics]:
        """Return the gradient of a batch, as one vector, and the metrics.

        Args:
            weights: the weights.
            batch: the batch.
            seed: of torch's global generator, for networks that sample from it.
        """
        learner = self._replica.learner
        learner.agent.load(weights)
        gradient, metrics = self._replica.gradient(tensors_of(batch, learner.device), GlobalRandom(seed))
        return gradient, mean_metrics([metrics])


class Members:
    """The members of a learner.

    Args:
        actors: their actors, in order.
        loss: the loss that they were made with.
        deadline: seconds that a gradient may take before the member is killed and restarted.
    """

    def __init__(self, actors: Sequence[Actor], loss: Loss, deadline: float | None = None) -> None:
        self.actors, self.loss, self.deadline = list(actors), loss, deadline

    def compute_gradients(self, learner: Learner, objective: ActiveObjective, minibatch: Batch) -> Metrics:
        """Set the gradients of the whole agent to those of a minibatch, and return the metrics."""
        parts = [part for part in split_minibatch(minibatch, len(self.actors)) if part.weight]
        engine, seed = self.actors[0].engine, 0
        if may_sample_globally(learner.agent, [self.loss]):
            seed = int(torch.randint(2**62, (), generator=learner.random))
        weights = engine.put(learner.agent.weights())
        messages = [
            engine.message("gradient", (weights, tree_map(_as_array, part.batch), seed + index))
            for index, part in enumerate(parts)
        ]
        calls = list(zip(self.actors, messages, strict=False))
        futures = [engine.send(actor, message, timeout=self.deadline) for actor, message in calls]
        results = [self._result(*call, future) for call, future in zip(calls, futures, strict=True)]
        gradient = mean_gradient([(gradient, part.weight) for (gradient, _), part in zip(results, parts, strict=True)])
        objective.optimiser.zero_grad()
        if gradient is not None:
            objective.optimiser.set_gradient(torch.from_numpy(gradient).to(learner.device))
        total = sum(part.weight for part in parts)
        return {
            name: sum(metrics[name] * part.weight for (_, metrics), part in zip(results, parts, strict=True)) / total
            for name in results[0][1]
        }

    def _result(self, actor: Actor, message: Message, future: Future[Any]) -> tuple[Array, Metrics]:
        """Return the result of a member, restarting it within its budget if it dies."""
        while True:
            error = future.exception()
            if not isinstance(error, ActorError):
                gradient, metrics = future.result()
                return gradient, metrics
            actor.engine.restart(actor)
            future = actor.engine.send(actor, message, timeout=self.deadline)


def split_minibatch(batch: Batch, num: int) -> list[Part]:
    """Return the parts of a batch of tensors, at most `num` of about the same size: rows, segments or slots in order.

    >>> [part.weight for part in split_minibatch({"action": torch.arange(5)}, 2)]
    [2, 3]
    """
    if layout_of(batch) is Layout.FRAGMENT:
        return [_slots(batch, first, end) for first, end in _edges(batch["ended"].shape[1], num)]
    if has_segments(batch):
        order = torch.arange(len(batch["segment"]))
        return [Part(part, len(part["action"])) for part in segment_minibatches(batch, order, min(num, len(order)))]
    return [
        Part(tree_map(lambda column, first=first, end=end: column[first:end], batch), end - first)
        for first, end in _edges(len(batch["action"]), num)
    ]


def _slots(batch: Batch, first: int, end: int) -> Part:
    """Return some slots of a fragment, [T, B]."""
    part = {
        name: tree_map(lambda each, step=name in _STEP_COLUMNS: each[:, first:end] if step else each[first:end], column)
        for name, column in batch.items()
    }
    return Part(part, int(part["valid"].sum()) if "valid" in part else part["ended"].numel())


def _edges(total: int, num: int) -> list[tuple[int, int]]:
    edges = [total * index // num for index in range(num + 1)]
    return [(first, end) for first, end in pairwise(edges) if first < end]


def _as_array(tensor: torch.Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
