"""Objects of the Runner: named values that can be read, replaced and appended to, by any process of the run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from raceway.engine._handles import Handle
from raceway.engine.base import Ref
from raceway.errors import ConfigError

Deserializer = Callable[[Any, list[Any]], Any]
News = tuple[int, Ref | None, int, list[Ref]]
"""What a reader lacks: the epoch, the base if it is new, how many of its patches were dropped, and the new ones."""


class ObjectRef(Handle):
    """The name of an object: a read gives its latest state. It lives as long as anybody, in any process, holds this."""

    __slots__ = ()


@dataclass
class StoredObject:
    """An object as the driver keeps it. Values are stored references; nothing is decoded here."""

    base: Ref
    max_size: float = math.inf
    """What the patches may have together, and the oldest are dropped before they have more."""
    patches: list[Ref] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    first: int = 0
    """How many patches of this base were dropped."""
    epoch: int = 0
    """Counts how often the base was replaced, so that readers know whether theirs is the current one."""
    total: float = 0.0
    """The sizes together."""

    def append(self, patch: Ref, size: float) -> None:
        """Add a patch. The oldest are dropped that the newest `max_size` do not need."""
        if not isinstance(size, (int, float)) or not 0 <= size < math.inf:
            raise ConfigError(f"the size of a patch must be a number from 0, not {size!r}")
        self.patches.append(patch)
        self.sizes.append(size)
        self.total += size
        num_dropped = 0
        while self.total - self.sizes[num_dropped] >= self.max_size:
            self.total -= self.sizes[num_dropped]
            num_dropped += 1
        self._drop(num_dropped)

    def _drop(self, num: int) -> None:
        del self.patches[:num], self.sizes[:num]
        self.first += num

    def since(self, epoch: int, num_seen: int) -> News:
        """Return what a reader lacks that has seen so many patches of the base of an epoch."""
        if epoch == self.epoch:
            return self.epoch, None, self.first, self.patches[max(num_seen - self.first, 0) :]
        return self.epoch, self.base, self.first, list(self.patches)

    def replace(self, base: Ref, num_folded: int | None = None) -> None:
        """Replace the base; so many patches that the old one had, by default all, are part of it now."""
        self._drop(len(self.patches) if num_folded is None else max(num_folded - self.first, 0))
        self.base, self.first, self.total = base, 0, sum(self.sizes)
        self.epoch += 1


@dataclass
class Known:
    """What this process has read of an object."""

    epoch: int = -1
    base: Any = None
    patches: list[Any] = field(default_factory=list)
    first: int = 0
    """How many patches of this base were dropped."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it learns: two threads must not both add what is new."""

    def copy(self) -> Known:
        """Return what is known now, as it stays while others learn on."""
        return Known(self.epoch, self.base, list(self.patches), self.first)

    @property
    def num_seen(self) -> int:
        """How many patches of this base were read, or dropped before."""
        return self.first + len(self.patches)

    def learn(self, ref: ObjectRef, news: News) -> None:
        """Add what is new of the object to what is known, and forget what was dropped."""
        epoch, base, first, patches = news
        if base is not None:
            self.epoch, self.base, self.patches, self.first = epoch, base.get(), [], first
            ref._table.cached_from[base.id] = ref.id
        del self.patches[: first - self.first]
        self.first = first
        self.patches.extend(patch.get() for patch in patches)


def fold(ref: ObjectRef, known: Known, deserializer: Deserializer | None) -> Any:
    """Make the value of what was read. The same base and patches are passed each time: they must not be changed."""
    if deserializer is not None:
        return deserializer(known.base, known.patches)
    if known.patches:
        raise ConfigError(
            f"{ref!r} has {len(known.patches)} patches, so reading it needs get_object(ref, deserializer=...), "
            "a function of (base, patches)"
        )
    return known.base


def compact(side: Side, ref: ObjectRef, deserializer: Deserializer) -> ObjectRef:
    """Fold an object's patches into its base; again, if somebody replaced it meanwhile."""
    while True:
        known = side.news(ref)
        base = side.put(fold(ref, known, deserializer))
        if side.compacted(ref, known.epoch, known.num_seen, base):
            return ref


class Side(Protocol):
    """Either side of a run: the hub in the driver, the client in a worker."""

    def put(self, value: Any) -> Ref:
        """Store a value."""

    def news(self, ref: ObjectRef) -> Known:
        """Return all of an object, having read what is new of it."""

    def compacted(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace base and first patches by what was made of them, unless the base is another by now."""
