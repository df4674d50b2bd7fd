"""Weights back to the workers: to all, to those whose work was used, or to whoever has had theirs for long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from raceway.engine.base import Actor, Future
from raceway.errors import ActorError, known
from raceway.flow import Envelope, given, send_msg
from raceway.ops.report import TrainStats
from raceway.policies.learner import Learner

T = TypeVar("T")


class UpdateWeights:
    """Sends the learner's weights to workers: written once, read by all.

    Args:
        learner: whose.
        workers: all of them.
        to: `all`, or the `senders` of each item.
        every: how many items, or of `senders` how many from one worker, before it is sent new ones.
        policy: the name of the policy, for workers that play with several.
    """

    def __init__(
        self, learner: Learner, workers: Sequence[Actor], to: str = "all", every: int = 1, policy: str | None = None
    ) -> None:
        self.learner, self.workers, self.every = learner, workers, every
        self._more = {} if policy is None else {"policy": policy}
        self.to = known("receiver of weights", to, ("all", "senders"))
        self._age: Counter[str] = Counter()  # items since a worker, or all, were sent weights
        self._sent: list[Future[Any]] = []

    def send(self, workers: Sequence[Actor]) -> None:
        """Send what there is now."""
        version, weights = self.learner.version, workers[0].engine.put(self.learner.policy.weights())
        for error in [future.exception() for future in self._sent if future.done()]:
            if error is not None and not isinstance(error, ActorError):  # a worker that died is told when it is back
                raise error
        waiting = [future for future in self._sent if not future.done()]
        more: Any = self._more or {"version": version}  # of several policies there is no one version
        self._sent = waiting + [send_msg(worker, "set_weights", weights, **more) for worker in workers]

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send them to one worker, which was restarted."""
        more: Any = self._more or {"version": self.learner.version}
        return send_msg(worker, "set_weights", self.learner.policy.weights(), **more)

    def __call__(self, item: T, *, envelope: Envelope = given) -> T:
        """Send new weights to whom it may concern, and give the item on."""
        begin = time.perf_counter()
        actors = self.workers if self.to == "all" else [source.actor for source in envelope.sources if source.actor]
        names = ["all"] if self.to == "all" else [actor.name for actor in actors]
        self._age.update(names)
        due = [actor for actor in actors if self._age["all" if self.to == "all" else actor.name] >= self.every]
        if due:
            self.send(due)
            for name in ["all"] if self.to == "all" else [actor.name for actor in due]:
                self._age[name] = 0
        if isinstance(item, TrainStats):
            item.seconds["weights"] = time.perf_counter() - begin
        return item


class Fresh:
    """Tells whether an item was made with weights that are at most so many steps old. For `filter`.

    Workers go at their own pace, so without it one that is held up may be behind by any number of steps. Whoever made
    an item that is too old is sent new weights at once.
    """

    def __init__(self, weights: UpdateWeights, max_lag: int) -> None:
        self.weights, self.max_lag, self.num_dropped = weights, max_lag, 0

    def __call__(self, item: object, *, envelope: Envelope = given) -> bool:
        """Return whether it is."""
        fresh = envelope.version is None or self.weights.learner.version - envelope.version <= self.max_lag
        if not fresh:
            self.num_dropped += 1
            self.weights.send([source.actor for source in envelope.sources if source.actor])
        return fresh
