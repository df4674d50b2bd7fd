"""What the Runner's tests make services of."""

import os
import signal
import time
from typing import Any

import numpy as np

from raceway.engine.driver_client import driver_client
from raceway.runner import get_object, patch_object, update_object


def add(a: Any, b: Any = 1) -> Any:
    return a + b


def sleep(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def pid(_: object = None) -> int:
    return os.getpid()


def fail(kind: str = "boom") -> None:
    raise LookupError(kind)


def kind_of(value: Any) -> str:
    return type(value).__name__


def total(values: Any) -> float:
    return float(np.sum(values))


def die(path: str = "") -> str:
    """Kill the worker, once if a path is given to remember it by."""
    if not path or not os.path.exists(path):
        if path:
            open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def request(verb: str) -> Any:
    """Ask the driver something."""
    found = driver_client()
    assert found is not None
    return found.request(("", verb, ()))


class Unreadable:
    """Can be pickled, and unpickled in a worker only."""

    def __reduce__(self) -> Any:
        return _only_in_a_worker, ()


def _only_in_a_worker() -> Any:
    if driver_client() is None:
        raise RuntimeError("only in a worker")
    return Unreadable()


class Counter:
    """A state, and methods that change it."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    def get(self) -> int:
        return self.count

    def where(self) -> tuple[int, int]:
        return os.getpid(), self.count

    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.increment()

    def ask(self, handles: list[Any], method: str) -> Any:
        return getattr(handles[0], method)().get()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def costly(self) -> None:
        raise AssertionError("no property is run to list the methods")


class Multiplier:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int) -> int:
        return self.factor * x


class CannotStart:
    def __init__(self) -> None:
        raise RuntimeError("no licence found")

    def work(self) -> None: ...


def concatenated(base: list[Any], patches: list[Any]) -> list[Any]:
    return base + patches


class Reader:
    """Reads an object again and again, and notes how much of it was new."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.bases: list[int] = []

    def read(self, holder: dict[str, Any]) -> list[Any]:
        def fold(base: list[Any], patches: list[Any]) -> list[Any]:
            self.seen.append(len(patches))
            self.bases.append(id(base))
            return base + patches

        return get_object(holder["ref"], fold)

    def same_base(self) -> bool:
        return len(set(self.bases)) == 1

    def append(self, holder: dict[str, Any], value: Any) -> None:
        patch_object(holder["ref"], value)

    def replace(self, holder: dict[str, Any], value: Any) -> None:
        update_object(holder["ref"], value)

    def plain(self, holder: dict[str, Any]) -> Any:
        return get_object(holder["ref"])
