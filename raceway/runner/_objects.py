"""Objects of the Runner: named values that can be read, replaced and appended to, by any process of the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from raceway.engine._handles import Handle
from raceway.engine.base import Ref
from raceway.errors import ConfigError

Deserializer = Callable[[Any, list[Any]], Any]


class ObjectRef(Handle):
    """The name of an object: a read gives its latest state. It lives as long as anybody, in any process, holds this."""

    __slots__ = ()


@dataclass
class StoredObject:
    """An object as the driver keeps it. Values are stored references; nothing is decoded here."""

    base: Ref
    patches: list[Ref] = field(default_factory=list)
    epoch: int = 0
    """Counts how often the base was replaced, so that readers know whether theirs is the current one."""

    def since(self, epoch: int, num_patches: int) -> tuple[int, Ref | None, list[Ref]]:
        """Return what a reader lacks that knows so much: the epoch, the base if it is new, and the new patches."""
        if epoch == self.epoch:
            return self.epoch, None, self.patches[num_patches:]
        return self.epoch, self.base, list(self.patches)

    def replace(self, base: Ref, num_folded: int) -> None:
        """Replace the base; the first `num_folded` patches are part of it now."""
        self.base = base
        self.patches = self.patches[num_folded:]
        self.epoch += 1


@dataclass
class Known:
    """What this process has read of an object."""

    epoch: int = -1
    base: Any = None
    patches: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it learns: two threads must not both add what is new."""

    def copy(self) -> Known:
        """Return what is known now, as it stays while others learn on."""
        return Known(self.epoch, self.base, list(self.patches))

    def learn(self, ref: ObjectRef, news: tuple[int, Ref | None, list[Ref]]) -> None:
        """Add what is new of the object to what is known."""
        epoch, base, patches = news
        if base is not None:
            self.epoch, self.base, self.patches = epoch, base.get(), []
            ref._table.cached_from[base.id] = ref.id
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
        if side.compacted(ref, known.epoch, len(known.patches), base):
            return ref


class Side(Protocol):
    """Either side of a run: the hub in the driver, the client in a worker."""

    def put(self, value: Any) -> Ref:
        """Store a value."""

    def news(self, ref: ObjectRef) -> Known:
        """Return all of an object, having read what is new of it."""

    def compacted(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace base and first patches by what was made of them, unless the base is another by now."""
