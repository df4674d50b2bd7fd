"""Objects of the Runner: values that any process of the run can read, replace and append to."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from raceway.engine.base import Handle, Ref
from raceway.errors import ConfigError

_PREFIX = "raceway-object:"
_TEXT = re.compile(_PREFIX + r"(?P<uid>[a-z]+-\d+-[0-9a-f]+):(?P<id>\d+)")

Deserializer = Callable[[Any, list[Any]], Any]
ObjectDelta = tuple[int, Ref | None, int, list[Ref]]
"""The changes since the last read: epoch, base (None if known), number of dropped patches, and the new patches."""


class ObjectRef(Handle):
    """A reference to an object, whose latest state each read returns.

    The object lives as long as any process holds a reference. `str(ref)` is a text that names the object, for a log, a
    file or another program of the run; it does not keep the object alive.

    >>> from raceway.runner import Runner
    >>> with Runner("texts", engine="inline") as rr:
    ...     ref = rr.put_object([1, 2])
    ...     rr.get_object(ObjectRef.from_text(str(ref)))
    [1, 2]
    """

    __slots__ = ()

    @classmethod
    def from_text(cls, text: str) -> ObjectRef:
        """Return the reference whose `str` is `text`, in the process that opened the Runner or in one of its workers.

        Raises:
            ConfigError: it is not the text of a reference.
            ObjectFreed: the object was freed.
            EngineClosed: its Runner was closed.
            ForeignReference: it belongs to a run that this process is not a part of.
        """
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"expected the text of an ObjectRef, such as '{_PREFIX}process-4711-0a1b2c3d:7', not {text!r}"
            )
        from raceway.runner._worker_backend import rebuild_object_ref

        return rebuild_object_ref(match["uid"], int(match["id"]))

    def __str__(self) -> str:
        return f"{_PREFIX}{self.table.uid}:{self.id}"


@dataclass
class StoredObject:
    """An object as the driver stores it. Base and patches are references to encoded values."""

    base: Ref
    max_size: float = math.inf
    """Total size of the patches to keep: the oldest are dropped as long as the others have this size."""
    patches: list[Ref] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    num_dropped: int = 0
    """Number of patches of this base that were dropped."""
    epoch: int = 0
    """Number of times that the base was replaced. It shows readers whether their base is current."""
    total_size: float = 0.0
    """Sum of `sizes`."""

    def append(self, patch: Ref, size: float) -> None:
        """Add a patch, and drop the oldest that are not needed to fill `max_size`."""
        if not isinstance(size, (int, float)) or not 0 <= size < math.inf:
            raise ConfigError(f"the size of a patch must be a number from 0, not {size!r}")
        self.patches.append(patch)
        self.sizes.append(size)
        self.total_size += size
        num_excess = 0
        while self.total_size - self.sizes[num_excess] >= self.max_size:
            self.total_size -= self.sizes[num_excess]
            num_excess += 1
        self._drop(num_excess)

    def _drop(self, num: int) -> None:
        del self.patches[:num], self.sizes[:num]
        self.num_dropped += num

    def delta(self, epoch: int, num_seen: int) -> ObjectDelta:
        """Return the changes for a reader that has read `num_seen` patches of the base of `epoch`."""
        if epoch == self.epoch:
            return self.epoch, None, self.num_dropped, self.patches[max(num_seen - self.num_dropped, 0) :]
        return self.epoch, self.base, self.num_dropped, list(self.patches)

    def replace(self, base: Ref, num_folded: int | None = None) -> None:
        """Replace the base, and drop the patches that are part of the new one: the first `num_folded`, or all."""
        self._drop(len(self.patches) if num_folded is None else max(num_folded - self.num_dropped, 0))
        self.base, self.num_dropped, self.total_size = base, 0, sum(self.sizes)
        self.epoch += 1


@dataclass
class CachedObject:
    """The part of an object that this process has read."""

    epoch: int = -1
    base: Any = None
    patches: list[Any] = field(default_factory=list)
    num_dropped: int = 0
    """Number of patches of this base that were dropped."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held during an update: two threads must not both add the new patches."""

    def snapshot(self) -> CachedObject:
        """Return a copy that later updates do not change."""
        return CachedObject(self.epoch, self.base, list(self.patches), self.num_dropped)

    @property
    def num_seen(self) -> int:
        """Number of patches of this base that were read, or dropped before."""
        return self.num_dropped + len(self.patches)

    def apply(self, ref: ObjectRef, delta: ObjectDelta) -> None:
        """Read a new base and new patches, and discard patches that the driver has dropped."""
        epoch, base, num_dropped, patches = delta
        if base is not None:
            self.epoch, self.base, self.patches, self.num_dropped = epoch, base.get(), [], num_dropped
            ref.table.cached_handles[base.id] = ref.id
        del self.patches[: num_dropped - self.num_dropped]
        self.num_dropped = num_dropped
        self.patches.extend(patch.get() for patch in patches)


def not_an_object_ref(value: object) -> ConfigError:
    """Return the error for a value that should be an ObjectRef."""
    return ConfigError(f"expected the reference that put_object returned, not {value!r}")


def object_value(ref: ObjectRef, cached: CachedObject, deserializer: Deserializer | None) -> Any:
    """Return the value of an object. The deserializer gets the cached base and patches, which it must not change."""
    if deserializer is not None:
        return deserializer(cached.base, cached.patches)
    if cached.patches:
        raise ConfigError(
            f"{ref!r} has {len(cached.patches)} patches, so reading it needs get_object(ref, deserializer=...), "
            "a function of (base, patches)"
        )
    return cached.base


def compact(objects: ObjectAccess, ref: ObjectRef, deserializer: Deserializer) -> ObjectRef:
    """Fold an object's patches into its base; repeat if the base was replaced meanwhile."""
    while True:
        cached = objects.fetch(ref)
        base = objects.put(object_value(ref, cached, deserializer))
        if objects.replace_folded(ref, cached.epoch, cached.num_seen, base):
            return ref


class ObjectAccess(Protocol):
    """Access to objects, which differs between the driver (`ObjectStore`) and workers (`WorkerObjects`)."""

    def put(self, value: Any) -> Ref:
        """Store a value."""

    def fetch(self, ref: ObjectRef) -> CachedObject:
        """Update this process's copy of an object, and return a snapshot of it."""

    def replace_folded(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace the base and the patches that were folded into the new one; return False if the epoch has changed."""
