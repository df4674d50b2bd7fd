"""What a plan is made of, an immutable graph of named nodes, and what flows through it: items in envelopes."""

from __future__ import annotations

import enum
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from raceway.engine.base import Actor
from raceway.injection import injected_parameters

_HERE = os.path.join(os.path.dirname(__file__), "")


class Step(NamedTuple):
    """As much of a node as a shard needs to run it."""

    label: str
    where: str  # the line of the user's program that added it
    part: Any  # an Origin, an Op, a change to a list of shards, or a function that makes a stage of a running flow
    settings: dict[str, Any]


class Node:
    """One operator of a plan. A parallel one runs on the actors of the shards, any other in the driver."""

    def __init__(
        self, label: str, part: Any, parents: Sequence[Node], *, actors: Sequence[Actor] = (), **settings: Any
    ) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        self.step = Step(label, f"{frame.f_code.co_filename}:{frame.f_lineno}", part, settings)
        self.label, self.kind = label, label.partition("(")[0]
        self.parents = tuple(parents)
        self.actors = tuple(actors)  # where it runs, if it says so itself
        self.parallel: bool = settings.get("parallel", False)

    def __repr__(self) -> str:
        return f"{self.label} (added at {self.step.where})"


def walk(node: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """Yield every node once, each after its parents."""
    seen = set() if seen is None else seen
    if node not in seen:
        seen.add(node)
        for parent in node.parents:
            yield from walk(parent, seen)
        yield node


def wanted(function: Callable[..., Any], parallel: bool, *more: str) -> tuple[str, ...]:
    """Return what an operator asks to be given."""
    offered = ("actor", "envelope", "shard", *more) if parallel else ("envelope",)
    return injected_parameters(function, offered, "on a shard or an actor" if parallel else "in the driver")


class Word(enum.Enum):
    """What a stage answers that has no item to give. Users never see it."""

    PENDING = "ask again when something has happened"
    END = "there are no more"


class StreamEnd(Exception):
    """Raised by the method behind `create(actors, method)` to say that there are no more items."""


class Shard(NamedTuple):
    """One of the streams that make up a ParIter. An operator that asks for `shard` is given it."""

    number: int
    total: int
    seed: int = 0

    def generator(self, *purpose: int) -> np.random.Generator:
        """Return random numbers of this shard's own, which do not depend on where it runs."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(*purpose, self.number)))


class Source(NamedTuple):
    """Where an item came from."""

    shard: int
    name: str  # the actor's
    actor: Actor | None = None  # its handle, in the driver


class Envelope(NamedTuple):
    """What is known about an item. An operator that asks for `envelope` is given it."""

    sources: tuple[Source, ...]
    sequence: int  # its number in its shard, from 0; of several items the last one's
    version: int | None  # the version that its actor had, as `send_msg` told it; of several items the oldest
    begun: float  # when its making began: seconds since the epoch, by the clock of where it was made
    done: float
    size: int = 1  # how many items of a source it was made from
    parts: tuple[Envelope, ...] = ()  # of a batch or round: the envelopes of its items


Seal = Envelope | tuple[Any, ...]  # an envelope, or those that it will be merged from if anybody looks at it
Item = tuple[Any, Seal]
Gifts = dict[str, Any]  # what operators may ask for: the actor and the shard


def unsealed(seal: Seal) -> Envelope:
    """Return an item's envelope, merged if the item was made from several.

    >>> unsealed((Envelope((), 3, 7, begun=1.0, done=2.0), Envelope((), 4, 6, begun=1.5, done=2.5)))[:-1]
    ((), 4, 6, 1.0, 2.5, 2)
    """
    if isinstance(seal, Envelope):
        return seal
    parts = tuple(map(unsealed, seal))
    sources, sequences, versions, begun, done, sizes, _ = zip(*parts, strict=True)
    known = [version for version in versions if version is not None]
    distinct = tuple(dict.fromkeys(chain.from_iterable(sources)))
    return Envelope(distinct, max(sequences), min(known) if known else None, min(begun), max(done), sum(sizes), parts)


def detached(value: Any, actors: Mapping[str, Actor] | None = None) -> Any:
    """Return the containers and envelopes of a state, with the handles of actors taken out, or put back in."""
    if isinstance(value, Source):
        return Source(value.shard, value.name, actors.get(value.name) if actors else None)
    if isinstance(value, Envelope):
        return value._replace(sources=detached(value.sources, actors), parts=detached(value.parts, actors))
    if type(value) is dict:
        return {key: detached(part, actors) for key, part in value.items()}
    if type(value) is deque:
        return deque((detached(part, actors) for part in value), value.maxlen)
    if type(value) in (list, tuple):
        return type(value)(detached(part, actors) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(detached(part, actors) for part in value)
    return value
