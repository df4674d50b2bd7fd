"""Functions and classes from which the Runner's tests create services."""

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
    """Kill the worker; with a path, only the first time, which the file records."""
    if not path or not os.path.exists(path):
        if path:
            open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def request(verb: str) -> Any:
    """Send a request without arguments to the driver."""
    client = driver_client()
    assert client is not None
    return client.request(("", verb, ()))


def wait_for_file(path: str, value: Any = None) -> Any:
    """Return the value when the file exists."""
    while not os.path.exists(path):
        time.sleep(0.002)
    return value


class WorkerOnly:
    """Can be pickled anywhere, but unpickled only in a worker."""

    def __reduce__(self) -> Any:
        return _rebuild_in_worker, ()


def _rebuild_in_worker() -> Any:
    if driver_client() is None:
        raise RuntimeError("only in a worker")
    return WorkerOnly()


class Counter:
    """A stateful object."""

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

    def call(self, services: list[Any], method: str) -> Any:
        """Call a method of a service and wait for the result."""
        return getattr(services[0], method)().get()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def failing(self) -> None:
        raise AssertionError("listing the methods must not evaluate properties")


class Multiplier:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int) -> int:
        return self.factor * x


class CannotStart:
    def __init__(self) -> None:
        raise RuntimeError("no licence found")

    def work(self) -> None: ...


def concatenate(base: list[Any], patches: list[Any]) -> list[Any]:
    return base + patches


class Reader:
    """Reads and writes an object in a worker, and records whether its base was transferred again."""

    def __init__(self) -> None:
        self.base_ids: list[int] = []

    def read(self, holder: dict[str, Any]) -> list[Any]:
        def deserialize(base: list[Any], patches: list[Any]) -> list[Any]:
            self.base_ids.append(id(base))
            return base + patches

        return get_object(holder["ref"], deserialize)

    def same_base(self) -> bool:
        return len(set(self.base_ids)) == 1

    def append(self, holder: dict[str, Any], value: Any) -> None:
        patch_object(holder["ref"], value)

    def replace(self, holder: dict[str, Any], value: Any) -> None:
        update_object(holder["ref"], value)

    def read_plain(self, holder: dict[str, Any]) -> Any:
        return get_object(holder["ref"])
