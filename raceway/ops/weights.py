"""Sending the learner's weights to rollout workers: to all of them, or to those that an item came from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from raceway.agents import Weights
from raceway.checks import check_choice
from raceway.engine.base import Actor, Future
from raceway.errors import ActorError
from raceway.flow import Envelope, injected, send_msg
from raceway.learner.exploration import Exploration
from raceway.learner.learner import Learner, VersionedWeights
from raceway.state import Stateful

T = TypeVar("T")

_ALL = "all"


class WeightSender:
    """Sends weights, and the knobs of exploration, to workers. They are serialised once and shared by all receivers.

    Only the parts of the agent that workers need are sent (`Agent.worker_parts`).

    Args:
        learner: the learner whose weights are sent.
        workers: all workers; none if nothing acts during training.
        to: `all`, or the `senders` of each item.
        every: send weights after every n items; with `senders`, after n items from the same worker.
        policy: the name of the policy, for workers that have several.
        exploration: the knobs of exploration, if there are any.
    """

    shared_by_runs = True  # of a flow: it belongs to the weights that the workers have

    def __init__(
        self,
        learner: Learner,
        workers: Sequence[Actor],
        to: str = "all",
        every: int = 1,
        policy: str | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self.learner, self.workers, self.every, self.exploration = learner, workers, every, exploration
        self.to = check_choice("receiver of weights", to, ("all", "senders"))
        self._policy_name: dict[str, Any] = {} if policy is None else {"policy": policy}
        self._age: Counter[str] = Counter()  # items since weights were sent to a worker, or to all
        self._pending: list[Future[Any]] = []

    def send(self, workers: Sequence[Actor]) -> None:
        """Send the current weights."""
        if not workers:
            return
        weights = workers[0].engine.put(self.worker_weights())
        for error in [future.exception() for future in self._pending if future.done()]:
            if error is not None and not isinstance(error, ActorError):  # a dead worker gets weights when it restarts
                raise error
        waiting = [future for future in self._pending if not future.done()]
        self._pending = waiting + [send_msg(worker, "set_weights", weights, **self._arguments) for worker in workers]

    def send_to(self, worker: Actor) -> Future[Any]:
        """Send the current weights to a worker that was restarted."""
        return send_msg(worker, "set_weights", self.worker_weights(), **self._arguments)

    def worker_weights(self) -> Weights:
        """Return the newest weights of the parts that workers need."""
        return self.learner.worker_weights()

    def state(self) -> Any:
        """Return the state to resume from; it includes the weights of the workers, if all have the same."""
        same = self.to == "all" and self.workers and self.workers[0].alive
        received = send_msg(self.workers[0], "received", **self._policy_name).result() if same else None
        return {"age": self._age, "sent": received}

    def restore(self, state: Any) -> None:
        """Resume from a state: workers are sent the weights they had or, if those differed, the current ones."""
        self._age = state["age"]
        if state["sent"] is None:
            self.send(self.workers)
            return
        weights = self.workers[0].engine.put(state["sent"]["weights"])
        arguments = {"knobs": state["sent"]["knobs"], **self._policy_name}
        self._pending = [send_msg(worker, "set_weights", weights, **arguments) for worker in self.workers]

    @property
    def _arguments(self) -> dict[str, Any]:
        """Arguments of `set_weights` besides the weights: knobs, and the policy's name, if there are several."""
        arguments: dict[str, Any] = {**self._policy_name}
        if not arguments:
            arguments["version"] = self.learner.published_version
        if self.exploration is not None and self.exploration.knobs:
            arguments["knobs"] = self.exploration.state()
        return arguments

    def send_due(
        self, envelope: Envelope, seconds: dict[str, float], published: VersionedWeights | None = None
    ) -> None:
        """Count an item, and send weights to the workers that are due; add the time it takes to `seconds`.

        Args:
            envelope: the envelope of the item.
            seconds: the seconds of each phase of the training step.
            published: the newest weights, if the learner is remote.
        """
        begin = time.perf_counter()
        if published is not None:
            self.learner.load_published(published)
        receivers: dict[str, Sequence[Actor]] = {_ALL: self.workers}
        if self.to == "senders":
            receivers = {actor.name: [actor] for actor in source_actors(envelope)}
        self._age.update(receivers.keys())
        due = {name: actors for name, actors in receivers.items() if self._age[name] >= self.every}
        if due:
            self.send([actor for actors in due.values() for actor in actors])
        for name in due:
            self._age[name] = 0
        seconds["weights"] = time.perf_counter() - begin


class UpdateWeights(WeightSender):
    """Send the learner's weights to workers after each item; see `WeightSender`."""

    def __call__(self, item: T, *, envelope: Envelope = injected) -> T:
        """Send weights to the workers that are due, and return the item."""
        self.send_due(envelope, getattr(item, "seconds", {}), getattr(item, "published_weights", None))
        return item


class Fresh(Stateful):
    """Whether an item was collected with weights that are at most `max_lag` gradient steps old. Use with `filter`.

    Workers run at their own pace, so without it a slow one may lag by any number of steps. The worker of an item that
    is too old is sent new weights at once.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("num_dropped",)

    def __init__(self, weights: WeightSender, max_lag: int) -> None:
        self.weights, self.max_lag, self.num_dropped = weights, max_lag, 0

    def __call__(self, item: object, *, envelope: Envelope = injected) -> bool:
        """Return whether an item is fresh enough."""
        fresh = envelope.version is None or self.weights.learner.published_version - envelope.version <= self.max_lag
        if not fresh:
            self.num_dropped += 1
            self.weights.send(source_actors(envelope))
        return fresh


def source_actors(envelope: Envelope) -> list[Actor]:
    """Return the actors that an item came from."""
    return [source.actor for source in envelope.sources if source.actor is not None]
