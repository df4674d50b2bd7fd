"""Sending a learner's weights to the actors that play with them: written once, read by all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from raceway.checks import check_choice
from raceway.engine.base import Actor, Future
from raceway.errors import ActorError
from raceway.flow import Envelope, send_msg
from raceway.learner.learner import Learner, News

_ALL = "all"


class WeightSender:
    """Sends weights to workers.

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
        self.to = check_choice("receiver of weights", to, ("all", "senders"))
        self._more = {} if policy is None else {"policy": policy}
        self._age: Counter[str] = Counter()  # items since a worker, or all of them, were sent weights
        self._sent: list[Future[Any]] = []

    def send(self, workers: Sequence[Actor]) -> None:
        """Send what there is now."""
        weights = workers[0].engine.put(self.learner.published[1])
        for error in [future.exception() for future in self._sent if future.done()]:
            if error is not None and not isinstance(error, ActorError):  # a worker that died is told when it is back
                raise error
        waiting = [future for future in self._sent if not future.done()]
        self._sent = waiting + [send_msg(worker, "set_weights", weights, **self._about) for worker in workers]

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send them to one worker, which was restarted."""
        return send_msg(worker, "set_weights", self.learner.published[1], **self._about)

    def state(self) -> Any:
        """Return what is needed to go on from here: also what the workers play with, if all have the same."""
        same = self.to == "all" and not self._more and self.workers[0].alive
        return {"age": self._age, "sent": send_msg(self.workers[0], "weights").result() if same else None}

    def restore(self, state: Any) -> None:
        """Go on from there: workers, which may be others, are sent what they had, or if that differed the newest."""
        self._age = state["age"]
        if state["sent"] is None:
            self.send(self.workers)
            return
        weights = self.workers[0].engine.put(state["sent"])
        self._sent = [send_msg(worker, "set_weights", weights) for worker in self.workers]

    @property
    def _about(self) -> dict[str, Any]:
        return self._more or {"version": self.learner.published[0]}  # of several policies there is no one version

    def send_due(self, envelope: Envelope, seconds: dict[str, float], news: News | None = None) -> None:
        """Count an item, and send weights to those that have had theirs for long enough. Note how long that takes.

        Of a learner that is elsewhere, the item has brought the news.
        """
        begin = time.perf_counter()
        if news is not None:
            self.learner.follow(news)
        counted = {_ALL: self.workers} if self.to == "all" else {one.name: [one] for one in makers(envelope)}
        self._age.update(counted.keys())
        due = {name: actors for name, actors in counted.items() if self._age[name] >= self.every}
        if due:
            self.send([actor for actors in due.values() for actor in actors])
        for name in due:
            self._age[name] = 0
        seconds["weights"] = time.perf_counter() - begin


def makers(envelope: Envelope) -> list[Actor]:
    """Return the actors that an item came from."""
    return [source.actor for source in envelope.sources if source.actor is not None]
