"""Counters of a running flow, and the events made of them."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raceway.engine.base import Actor
from raceway.flow._graph import Envelope, Item, Seal, unsealed

_log = logging.getLogger(__name__)

Figures = tuple[int, float, float, int, int, int, int]


class Meter:
    """What one operator has done so far, where it runs."""

    __slots__ = ("busy", "bytes", "items", "lag_count", "lag_max", "lag_sum", "measure", "newest", "waiting")

    def __init__(self, measure: bool = False, newest: Callable[[], int | None] | None = None) -> None:
        self.items = 0
        self.busy = 0.0
        self.waiting = 0.0
        self.bytes = 0
        self.lag_sum = self.lag_count = 0
        self.lag_max = -1
        self.measure = measure
        """Whether to look into the items too."""
        self.newest = newest
        """Returns the newest version that was sent to an actor; in the driver."""

    def count(self, item: Item, seconds: float) -> None:
        """Count an item and the time it took."""
        self.items += 1
        self.busy += seconds
        if self.measure:
            self.bytes += size_of(item[0])
            self.saw(item[1])

    def saw(self, seal: Seal) -> None:
        """Note how far an item's version is behind the newest."""
        version = seal.version if type(seal) is Envelope else unsealed(seal).version
        if version is not None and self.newest is not None:
            lag = max(0, (self.newest() or 0) - version)
            self.lag_sum += lag
            self.lag_count += 1
            self.lag_max = max(self.lag_max, lag)

    def set(self, figures: Figures) -> None:
        """Take over the counters from where it runs."""
        self.items, self.busy, self.waiting, self.bytes, self.lag_sum, self.lag_count, self.lag_max = figures

    def figures(self) -> Figures:
        """Return the counters as they travel."""
        return self.items, self.busy, self.waiting, self.bytes, self.lag_sum, self.lag_count, self.lag_max


def newest_version(actors: Iterable[Actor]) -> int | None:
    """Return the newest version that was sent to any of the actors."""
    return max((actor.notes["version"] for actor in actors if "version" in actor.notes), default=None)


class Counters(NamedTuple):
    """What one operator, on however many shards, has done so far."""

    items: int = 0
    """Items taken in; of a source or gather: given out."""
    busy: float = 0.0
    """Seconds it worked, over all shards."""
    waiting: float = 0.0
    """Seconds it had nothing to do: shards that nobody asked, a gather or queue that was waited for."""
    bytes: int = 0
    """Size of the items. Of a gather what really came; of others an estimate, made only while measuring."""
    lag_sum: int = 0
    """Versions behind the newest, summed over the items that have one."""
    lag_count: int = 0
    """How many those are."""
    lag_max: int = -1
    """The most that one was behind; -1 if no versions were seen."""

    @property
    def staleness(self) -> float | None:
        """The mean number of versions that an item is behind the newest; None without versions."""
        return None if self.lag_max < 0 else self.lag_sum / self.lag_count

    @classmethod
    def total(cls, parts: Iterable[Figures]) -> Counters:
        """Add up the figures of several shards, or of several lives of one."""
        columns: list[Any] = list(zip(*parts, strict=True))
        return cls._make([*map(sum, columns[:-1]), max(columns[-1])]) if columns else cls()


class Event(NamedTuple):
    """Something that the subscribers of a run are told.

    Kinds: `start` and `stop`; `counters`, every so often, of every node; `items`, just before, with one
    `(gather, shard, sequence, begun, done)` for every item that came from a shard; and of shards `restarted`, `dropped`
    and `failed`.
    """

    kind: str
    time: float
    """Seconds since the epoch."""
    data: Mapping[str, Any]


Subscriber = Callable[[Event], None]

TELL_SECONDS = 0.25
"""How often subscribers are told the counters."""


class Observed:
    """What can be seen of a run: its counters, and events for subscribers."""

    nodes: list[Any]
    numbers: dict[Any, int]
    stages: dict[Any, Any]

    def __init__(self) -> None:
        self.observed = False
        """Whether anybody listens."""
        self.counts: Counter[str] = Counter()
        """How many shards were `restarted` and `dropped`, and how many items `lost` by it."""
        self.outside = 0.0
        """Seconds spent by whoever reads the flow."""
        self._subscribers: list[Subscriber] = []
        self._arrived: list[tuple[int, int, int, float, float]] = []
        self._due = 0.0

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Tell `subscriber(event)` what happens from now on (see `Event`); returns a function that ends it."""
        self._subscribers.append(subscriber)
        self.observed = True
        nodes = [{"label": node.label, "parallel": node.parallel, "where": node.step.where} for node in self.nodes]
        subscriber(Event("start", time.time(), {"nodes": nodes}))

        def leave() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)
            self.observed = bool(self._subscribers)

        return leave

    def tell(self, kind: str, **data: Any) -> None:
        """Tell everybody at once."""
        event = Event(kind, time.time(), data)
        for subscriber in list(self._subscribers):
            try:
                subscriber(event)
            except Exception:  # it is not the flow's fault, and must not become its trouble
                _log.exception("a subscriber failed, and is told nothing more")
                self._subscribers.remove(subscriber)
                self.observed = bool(self._subscribers)

    def happened(self, kind: str, lane: Any, error: BaseException, lost: int) -> None:
        """Count, log and tell what was done about a shard that failed."""
        self.counts.update({kind: 1, "lost": lost})
        _log.warning("shard %s on %s %s: %s", lane.index, lane.actor.name, kind, str(error).partition("\n")[0])
        self.tell(kind, shard=lane.index, actor=lane.actor.name, error=str(error), lost=lost)

    def tick(self, *, now: bool = False) -> None:
        """Tell the counters if it is time to, or now."""
        if self.observed:
            clock = time.perf_counter()
            if now or clock >= self._due:
                self._due = clock + TELL_SECONDS
                items, self._arrived = self._arrived, []
                if items:
                    self.tell("items", items=items)
                self.tell("counters", nodes=self.counters())

    def arrived(self, lane: Any, envelope: Envelope) -> None:
        """Note an item that came from a shard, for the subscribers."""
        self._arrived.append((lane.gather, lane.index, envelope.sequence, envelope.begun, envelope.done))

    def counters(self) -> dict[str, Counters]:
        """Return what every operator has done so far; of shards, as far as they have told."""
        rows: dict[Any, list[Figures]] = {node: [] for node in self.nodes}
        for node, stage in self.stages.items():
            if hasattr(stage, "meter"):
                rows[node].append(stage.meter.figures())
            for lane in getattr(stage, "lanes", ()):
                for report in lane.reports:
                    for inner, figures in zip(lane.plan.nodes, report, strict=False):
                        rows[inner].append(figures)
        return {f"{self.numbers[node]}:{node.label}": Counters.total(figures) for node, figures in rows.items()}


def size_of(value: Any, depth: int = 4) -> int:
    """Return about how many bytes a value takes.

    >>> size_of({"a": b"1234", "b": [b"12", b"34"]})
    10
    """
    found = getattr(value, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if depth and isinstance(value, Mapping):
        return sum(size_of(key, depth - 1) + size_of(part, depth - 1) for key, part in value.items())
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return sum(size_of(part, depth - 1) for part in value)
    return sys.getsizeof(value)
