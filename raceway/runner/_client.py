"""A worker's side of a run: the same verbs as the hub, asked of the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raceway.engine.base import Ref
from raceway.engine.driver_client import DriverClient, driver_client
from raceway.errors import ConfigError, RacewayError, WaitTimeout
from raceway.runner._future import FutureRef
from raceway.runner._objects import Deserializer, Known, ObjectRef, fold


class Client:
    """What stands for the hub in a worker process.

    Args:
        run: the run that is meant, checked by the driver; empty for the one that this process works for.
        name: its name.
    """

    def __init__(self, run: str = "", name: str = "") -> None:
        self.run = run
        self.name = name

    @property
    def _host(self) -> DriverClient:
        found = driver_client()
        if found is None:
            raise RacewayError(f"this process is no worker of the Runner {self.name!r}, or that is closed")
        return found

    def _ask(self, verb: str, *args: Any, parks: bool = False) -> Any:
        return self._host.request((self.run, verb, args), parks=parks)

    def submit(self, service: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FutureRef:
        """Call a method of a service."""
        return self._ask("submit", service, method, tuple(args), dict(kwargs))[0]  # type: ignore[no-any-return]

    def get(self, futures: FutureRef | Sequence[FutureRef], timeout: float | None) -> Any:
        """Return the result of one, or of each in order."""
        if isinstance(futures, FutureRef):
            return self._ask("get", [futures], timeout, parks=True)[0]
        return self._ask("get", list(futures), timeout, parks=True)

    def wait(
        self, futures: Sequence[FutureRef], count: int | None, timeout: float | None
    ) -> tuple[list[FutureRef], list[FutureRef]]:
        """Block until `count` (default: all) are done."""
        futures = list(futures)
        done = self._ask("wait", futures, count, timeout, parks=timeout != 0)
        return (
            [future for future, is_done in zip(futures, done, strict=True) if is_done],
            [future for future, is_done in zip(futures, done, strict=True) if not is_done],
        )

    def cancel(self, future: FutureRef) -> bool:
        """Take a call back."""
        return bool(self._ask("cancel", future))

    def make_service(self, *_: Any, **__: Any) -> Any:
        """Services are made by the driver, which outlives them."""
        raise ConfigError("a service can be made only by the program that opened the Runner, not inside a worker")

    def put(self, value: Any) -> Ref:
        """Store a value."""
        return self._host.put(value)

    def put_object(self, ref: Ref, max_size: float) -> ObjectRef:
        """Make an object of a stored value."""
        return self._ask("object", ref, max_size)  # type: ignore[no-any-return]

    def read(self, ref: ObjectRef, deserializer: Deserializer | None) -> Any:
        """Return the latest state of an object, fetching only what is new."""
        # Without a deserializer the caller owns the value, so it must not be the one that is remembered.
        known = self.news(ref) if deserializer is not None else self._learn(ref, Known())
        return fold(ref, known, deserializer)

    def news(self, ref: ObjectRef) -> Known:
        """Return all of an object, having read what is new of it."""
        return self._learn(ref, ref._table.cache.setdefault(ref.id, Known()))

    def _learn(self, ref: ObjectRef, known: Known) -> Known:
        if not isinstance(ref, ObjectRef):
            raise ConfigError(f"an object is named by what put_object returned, not by {ref!r}")
        with known.lock:
            known.learn(ref, self._ask("read", ref, known.epoch, known.num_seen))
            return known.copy()

    def compacted(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace base and first patches by what was made of them, unless the base is another by now."""
        return bool(self._ask("compacted", ref, epoch, num_folded, base))

    def update(self, ref: ObjectRef, value: Ref) -> ObjectRef:
        """Replace an object."""
        self._ask("update", ref, value)
        return ref

    def patch(self, ref: ObjectRef, patch: Ref, size: float) -> ObjectRef:
        """Append to an object."""
        self._ask("patch", ref, patch, size)
        return ref

    def select(self, futures: Sequence[FutureRef], timeout: float | None) -> Iterator[FutureRef]:
        """Yield the futures as they are done."""
        pending = list(futures)
        while pending:
            done, pending = self.wait(pending, 1, timeout)
            if not done:
                raise WaitTimeout(f"none of {len(pending)} futures was done after {timeout:g} s")
            yield from done

    def close(self) -> None:
        """Leave the run: it is the driver's to close."""
