"""Counters of a running flow, and the events that report them."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raceway.engine.base import Actor
from raceway.flow._graph import Envelope, Item, LazyEnvelope, resolve_envelope

_log = logging.getLogger(__name__)

CounterValues = tuple[int, float, float, int, int, int, int]
"""The fields of `Counters`, as they are sent from a shard to the driver."""


class Meter:
    """Counts the work of one operator, in the process where it runs."""

    __slots__ = ("busy", "bytes", "items", "lag_count", "lag_max", "lag_sum", "measure", "newest", "waiting")

    def __init__(self, measure: bool = False, newest: Callable[[], int | None] | None = None) -> None:
        self.items = 0
        self.busy = 0.0
        self.waiting = 0.0
        self.bytes = 0
        self.lag_sum = self.lag_count = 0
        self.lag_max = -1
        self.measure = measure
        """Whether to measure the size and staleness of items too."""
        self.newest = newest
        """Returns the newest version that was sent to an actor. Only in the driver."""

    def count(self, item: Item, seconds: float) -> None:
        """Count an item and the time it took."""
        self.items += 1
        self.busy += seconds
        if self.measure:
            self.bytes += size_of(item[0])
            self.count_lag(item[1])

    def count_lag(self, envelope: LazyEnvelope) -> None:
        """Count how many versions an item is behind the newest."""
        version = envelope.version if type(envelope) is Envelope else resolve_envelope(envelope).version
        if version is not None and self.newest is not None:
            lag = max(0, (self.newest() or 0) - version)
            self.lag_sum += lag
            self.lag_count += 1
            self.lag_max = max(self.lag_max, lag)

    def set_values(self, values: CounterValues) -> None:
        """Replace the counters by those of a remote operator."""
        self.items, self.busy, self.waiting, self.bytes, self.lag_sum, self.lag_count, self.lag_max = values

    def values(self) -> CounterValues:
        """Return the counters as a tuple."""
        return self.items, self.busy, self.waiting, self.bytes, self.lag_sum, self.lag_count, self.lag_max


def newest_version(actors: Iterable[Actor]) -> int | None:
    """Return the newest version that was sent to any of the actors."""
    return max((actor.notes["version"] for actor in actors if "version" in actor.notes), default=None)


class Counters(NamedTuple):
    """The work of one operator so far, summed over its shards."""

    items: int = 0
    """Items received; for a source or gather, items produced."""
    busy: float = 0.0
    """Seconds of work, summed over the shards."""
    waiting: float = 0.0
    """Seconds without work: for a shard, without a request; for a gather or queue, while the driver waited for it."""
    bytes: int = 0
    """Size of the items. For a gather, the bytes received; for others an estimate, made only with `measure`."""
    lag_sum: int = 0
    """Versions behind the newest, summed over the items that have a version."""
    lag_count: int = 0
    """Items that have a version."""
    lag_max: int = -1
    """The largest number of versions behind the newest; -1 if no item had a version."""

    @property
    def staleness(self) -> float | None:
        """The mean number of versions that items are behind the newest; None if no item had a version."""
        return None if self.lag_max < 0 else self.lag_sum / self.lag_count

    @classmethod
    def total(cls, parts: Iterable[CounterValues]) -> Counters:
        """Sum the counters of several shards, or of one shard before and after a restart."""
        columns: list[Any] = list(zip(*parts, strict=True))
        return cls._make([*map(sum, columns[:-1]), max(columns[-1])]) if columns else cls()


class Event(NamedTuple):
    """An event that the subscribers of a run receive.

    Kinds: `start` and `stop`; `counters` of every node, several times a second; `items`, just before them, with a tuple
    `(gather, shard, sequence, started, finished)` for every item that arrived from a shard; `restarted`, `dropped` and
    `failed`, each for one shard.
    """

    kind: str
    time: float
    """Seconds since the epoch."""
    data: Mapping[str, Any]


Subscriber = Callable[[Event], None]

EVENT_INTERVAL = 0.25
"""Seconds between two `counters` events."""


class Observable:
    """The part of a run that can be watched: its counters, and events for subscribers."""

    nodes: list[Any]
    node_indices: dict[Any, int]
    stages: dict[Any, Any]

    def __init__(self) -> None:
        self.has_subscribers = False
        self.counts: Counter[str] = Counter()
        """Shards that were `restarted`, `dropped` or `failed`, and items that were `lost`."""
        self.consumer_seconds = 0.0
        """Seconds spent in the program that reads the flow."""
        self._subscribers: list[Subscriber] = []
        self._arrivals: list[tuple[int, int, int, float, float]] = []
        self._next_counters = 0.0

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(event)` for every event from now on (see `Event`). Return a function that unsubscribes."""
        self._subscribers.append(subscriber)
        self.has_subscribers = True
        nodes = [{"label": node.label, "parallel": node.parallel, "where": node.spec.where} for node in self.nodes]
        subscriber(Event("start", time.time(), {"nodes": nodes}))

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)
            self.has_subscribers = bool(self._subscribers)

        return unsubscribe

    def emit(self, kind: str, **data: Any) -> None:
        """Send an event to all subscribers."""
        event = Event(kind, time.time(), data)
        for subscriber in list(self._subscribers):
            try:
                subscriber(event)
            except Exception:  # an error in a subscriber must not end the flow
                _log.exception("a subscriber failed and is unsubscribed")
                self._subscribers.remove(subscriber)
                self.has_subscribers = bool(self._subscribers)

    def report_failure(self, outcome: str, shard: Any, error: BaseException, num_lost: int) -> None:
        """Count, log and emit how the failure of a shard was handled."""
        self.counts.update({outcome: 1, "lost": num_lost})
        _log.warning("shard %s on %s %s: %s", shard.index, shard.actor.name, outcome, str(error).partition("\n")[0])
        self.emit(outcome, shard=shard.index, actor=shard.actor.name, error=str(error), lost=num_lost)

    def emit_counters(self, *, now: bool = False) -> None:
        """Send the counters to the subscribers, if `now` or the interval has passed."""
        if self.has_subscribers:
            clock = time.perf_counter()
            if now or clock >= self._next_counters:
                self._next_counters = clock + EVENT_INTERVAL
                items, self._arrivals = self._arrivals, []
                if items:
                    self.emit("items", items=items)
                self.emit("counters", nodes=self.counters())

    def record_arrival(self, shard: Any, envelope: Envelope) -> None:
        """Record an item that arrived from a shard, for the next `items` event."""
        self._arrivals.append((shard.gather, shard.index, envelope.sequence, envelope.started, envelope.finished))

    def counters(self) -> dict[str, Counters]:
        """Return the counters of every operator; those of shards as of their last report."""
        rows: dict[Any, list[CounterValues]] = {node: [] for node in self.nodes}
        for node, stage in self.stages.items():
            if hasattr(stage, "meter"):
                rows[node].append(stage.meter.values())
            for shard in getattr(stage, "shards", ()):
                for report in shard.reports:
                    for shard_node, values in zip(shard.spec.nodes, report, strict=False):
                        rows[shard_node].append(values)
        return {f"{self.node_indices[node]}:{node.label}": Counters.total(values) for node, values in rows.items()}


def size_of(value: Any, depth: int = 4) -> int:
    """Return the approximate size of a value in bytes.

    >>> size_of({"a": b"1234", "b": [b"12", b"34"]})
    10
    """
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if depth and isinstance(value, Mapping):
        return sum(size_of(key, depth - 1) + size_of(part, depth - 1) for key, part in value.items())
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return sum(size_of(part, depth - 1) for part in value)
    return sys.getsizeof(value)
