"""The graph of a flow, made of immutable named nodes, and the items that move through it in envelopes."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from raceway.engine.base import Actor
from raceway.flow._operator_states import OperatorState, operator_object
from raceway.injection import injected_parameters

_PACKAGE_DIR = os.path.join(os.path.dirname(__file__), "")


class OperatorSpec(NamedTuple):
    """The part of a node that is sent to the shards that run it."""

    label: str
    where: str  # file and line of the user's program that added it
    implementation: Any  # a SourceFunction, an Operator class, a function of shard specs, or a stage factory
    settings: dict[str, Any]


class Node:
    """One operator of a plan. A parallel node runs on the actors of its shards, any other in the driver."""

    def __init__(
        self, label: str, implementation: Any, parents: Sequence[Node], *, actors: Sequence[Actor] = (), **settings: Any
    ) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIR):
            frame = frame.f_back
        self.spec = OperatorSpec(label, f"{frame.f_code.co_filename}:{frame.f_lineno}", implementation, settings)
        self.label, self.kind = label, label.partition("(")[0]
        self.parents = tuple(parents)
        self.actors = tuple(actors)  # of a source, or of an operator with a dedicated actor
        self.parallel: bool = settings.get("parallel", False)
        function: Any = settings.get("function")
        in_driver = function is not None and not (self.parallel or actors)
        self.operator_state: OperatorState | None = None
        """The state of its operator, if it is in the driver's process and has one or is called from a thread."""
        if in_driver and ("max_in_flight" in settings or operator_object(function) is not None):
            self.operator_state = OperatorState(function)

    def __repr__(self) -> str:
        return f"{self.label} (added at {self.spec.where})"


def walk(node: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """Yield every node once, each after its parents."""
    seen = set() if seen is None else seen
    if node not in seen:
        seen.add(node)
        for parent in node.parents:
            yield from walk(parent, seen)
        yield node


def requested_parameters(function: Callable[..., Any], parallel: bool, *extra: str) -> tuple[str, ...]:
    """Return the names of the parameters that an operator's function wants injected, after checking them."""
    offered = ("actor", "envelope", "shard", *extra) if parallel else ("envelope",)
    return injected_parameters(function, offered, "on a shard or an actor" if parallel else "in the driver")


class NoItem(enum.Enum):
    """Returned by a stage that has no item. Users never see it."""

    PENDING = "poll again after the next wake-up"
    END = "the stream has ended"


class StreamEnd(Exception):
    """Raised by the method behind `create(actors, method)` to end its stream."""


class NotReady(Exception):
    """Raised by the method behind `create(actors, method)` that has no item yet: it is called again.

    The method should first wait a little for what it needs, as calls follow one another.
    """


class Shard(NamedTuple):
    """One of the streams that make up a ParIter. Injected into operators that declare `shard=injected`."""

    number: int
    total: int
    seed: int = 0

    def generator(self, *purpose: int) -> np.random.Generator:
        """Return a random generator for this shard. Its numbers do not depend on where the shard runs."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(*purpose, self.number)))


class Source(NamedTuple):
    """The shard and actor that an item came from."""

    shard: int
    name: str  # of the actor
    actor: Actor | None = None  # its handle; only in the driver


class Envelope(NamedTuple):
    """Metadata of an item. Injected into operators that declare `envelope=injected`."""

    sources: tuple[Source, ...]
    sequence: int  # number of the item in its shard, from 0; for merged items, the highest
    version: int | None  # version of the actor's weights, as set by `send_msg`; for merged items, the oldest
    started: float  # start of its computation: seconds since the epoch, by the clock of the actor's machine
    finished: float
    size: int = 1  # number of source items it was made from
    parts: tuple[Envelope, ...] = ()  # envelopes of the items in a batch or round


LazyEnvelope = Envelope | tuple[Any, ...]  # an envelope, or those to merge when it is first read
Item = tuple[Any, LazyEnvelope]
OperatorContext = dict[str, Any]  # on shards: the values that can be injected; in the driver: the run


def empty_envelope() -> Envelope:
    """Return the envelope of a result that was made from no item."""
    now = time.time()
    return Envelope((), 0, None, now, now, 0)


def resolve_envelope(envelope: LazyEnvelope) -> Envelope:
    """Return an item's envelope, merged if the item was made from several.

    >>> first, second = Envelope((), 3, 7, 1.0, 2.0), Envelope((), 4, 6, 1.5, 2.5)
    >>> resolve_envelope((first, second))[:-1]
    ((), 4, 6, 1.0, 2.5, 2)
    """
    if isinstance(envelope, Envelope):
        return envelope
    parts = tuple(map(resolve_envelope, envelope))
    sources, sequences, versions, started, finished, sizes, _ = zip(*parts, strict=True)
    known = [version for version in versions if version is not None]
    distinct = tuple(dict.fromkeys(chain.from_iterable(sources)))
    return Envelope(
        distinct, max(sequences), min(known) if known else None, min(started), max(finished), sum(sizes), parts
    )


def replace_actor_handles(value: Any, actors: Mapping[str, Actor] | None = None) -> Any:
    """Return a state with the actor handles in its envelopes removed or, with `actors` by name, filled in."""
    if isinstance(value, Source):
        return Source(value.shard, value.name, actors.get(value.name) if actors else None)
    if isinstance(value, Envelope):
        sources, parts = replace_actor_handles(value.sources, actors), replace_actor_handles(value.parts, actors)
        return value._replace(sources=sources, parts=parts)
    if type(value) is dict:
        return {key: replace_actor_handles(part, actors) for key, part in value.items()}
    if type(value) is deque:
        return deque((replace_actor_handles(part, actors) for part in value), value.maxlen)
    if type(value) in (list, tuple):
        return type(value)(replace_actor_handles(part, actors) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(replace_actor_handles(part, actors) for part in value)
    return value
