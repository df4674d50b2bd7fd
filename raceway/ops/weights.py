"""Weights back to the workers: to all, to those whose work was used, or to whoever has had theirs for long."""

from __future__ import annotations

from typing import TypeVar

from raceway.flow import Envelope, injected
from raceway.ops.weight_sender import WeightSender, makers

T = TypeVar("T")


class UpdateWeights(WeightSender):
    """Sends the learner's weights to workers, and gives items on; see `WeightSender`."""

    def __call__(self, item: T, *, envelope: Envelope = injected) -> T:
        """Send new weights to whom it may concern."""
        self.send_due(envelope, getattr(item, "seconds", {}), getattr(item, "news", None))
        return item


class Fresh:
    """Tells whether an item was made with weights that are at most so many steps old. For `filter`.

    Workers go at their own pace, so without it one that is held up may be behind by any number of steps. Whoever made
    an item that is too old is sent new weights at once.
    """

    def __init__(self, weights: WeightSender, max_lag: int) -> None:
        self.weights, self.max_lag, self.num_dropped = weights, max_lag, 0

    def __call__(self, item: object, *, envelope: Envelope = injected) -> bool:
        """Return whether it is."""
        fresh = envelope.version is None or self.weights.learner.published[0] - envelope.version <= self.max_lag
        if not fresh:
            self.num_dropped += 1
            self.weights.send(makers(envelope))
        return fresh
