"""The Runner: functions and objects of a program, run by workers, with futures for their results."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from raceway.checks import check_positive, unknown_name
from raceway.engine import make_engine
from raceway.engine._core import EngineCore
from raceway.errors import ConfigError
from raceway.runner._client import Client
from raceway.runner._future import Future, FutureRef
from raceway.runner._hub import Hub, find_hub
from raceway.runner._objects import Deserializer, ObjectRef, compact


class Service:
    """A handle that is called like the thing it was made of, and gives futures."""

    def __init__(self, hub: Any, id: int, name: str, methods: frozenset[str]) -> None:
        self._hub = hub
        self._id = id
        self._name = name
        self._methods = methods

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or the object itself."""
        if "__call__" not in self._methods:
            raise TypeError(f"service {self._name!r} is not callable. Call one of its methods: {self._listed()}.")
        return self._hub.submit(self._id, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._methods:
            close = difflib.get_close_matches(name, self._methods, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else f" It has: {self._listed()}."
            raise AttributeError(f"service {self._name!r} has no method {name!r}.{guess}")
        hub, id = self._hub, self._id

        def call(*args: Any, **kwargs: Any) -> Any:
            return hub.submit(id, name, args, kwargs)

        call.__name__ = name
        return call

    def _listed(self) -> str:
        return ", ".join(sorted(name for name in self._methods if not name.startswith("_"))) or "none"

    def close(self) -> None:
        """End the service's workers. The Runner does it for all when it closes."""
        self._hub.close_service(self._id)

    def __repr__(self) -> str:
        return f"<Service {self._name!r} of {self._hub.name!r}>"

    def __reduce__(self) -> Any:
        return _revive_service, (self._hub.run, self._hub.name, self._id, self._name, self._methods)


class Runner:
    """A run: it starts the engine, makes services, and closes them all at the end.

    >>> with Runner("squares", engine="inline") as rr:
    ...     square = rr.service(lambda x: x * x)
    ...     rr.get([square(n) for n in range(4)])
    [0, 1, 4, 9]

    Args:
        name: shown in errors and logs.
        engine: "inline", "process", "ray", or an engine made by hand, which is then left open; by default what
            RACEWAY_ENGINE names, else "process".
        workers: workers of each service that says nothing else; by default what the engine has room for.
        options: passed on to the engine.
    """

    def __init__(
        self, name: str, engine: str | EngineCore | None = None, workers: int | None = None, **options: Any
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a Runner needs a name, not {name!r}")
        _check_count("workers", workers)
        self._hub: Any
        if isinstance(engine, EngineCore):
            if options:
                raise ConfigError(f"an engine that is made already takes no options: {sorted(options)}")
            self._hub = Hub(engine, name, workers, owns_engine=False)
        else:
            self._hub = Hub(make_engine(engine, **options), name, workers, owns_engine=True)

    @property
    def name(self) -> str:
        """The name it was given."""
        return str(self._hub.name)

    def service(
        self,
        target: Any,
        autoscale: bool | None = None,
        warmup: int = 0,
        *,
        workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> Service:
        """Make a service of a function, partial, callable object or class (many workers) or of an instance (one).

        Args:
            target: what the workers run. A class is built without arguments in each worker. An instance keeps its state
                in one worker, or with autoscale in several, each with a state of its own.
            autoscale: whether it may have several workers.
            warmup: workers to start now, and wait for. The others start when they are needed.
            workers: how many may run at the same time.
            resources: what each worker needs, such as ``{"cpus": 0.5}``.
            deadline: seconds that one call may run before its worker is killed.
            options: none; a name that is not above is an error.
        """
        for option in options:
            raise unknown_name(
                "option of service()", option, ["autoscale", "warmup", "workers", "resources", "deadline"]
            )
        _check_count("workers", workers)
        if not isinstance(warmup, int) or warmup < 0:
            raise ConfigError(f"warmup must be a whole number that is not negative, not {warmup!r}")
        if deadline is not None and not deadline > 0:
            raise ConfigError(f"deadline must be a number of seconds above 0, not {deadline!r}")
        id, name = self._hub.make_service(
            target, autoscale=autoscale, warmup=warmup, workers=workers, resources=resources, deadline=deadline
        )
        return Service(self._hub, id, name, _methods_of(target))

    def get(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the result of a future, or the results of a list of them, in its order.

        As soon as one has failed, that failure is raised, with its own type; the remote traceback is its cause. An
        object's reference gives the object.
        """
        if isinstance(futures, ObjectRef):
            return self.get_object(futures)
        return self._hub.get(futures if isinstance(futures, (Future, FutureRef)) else list(futures), timeout)

    def wait(self, futures: Any, count: int | None = None, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        """Wait until `count` (default: all) are done or the time is up; return those done and those not."""
        result: tuple[list[Any], list[Any]] = self._hub.wait(_listed(futures), count, timeout)
        return result

    def select(self, futures: Sequence[Any], timeout: float | None = None) -> Iterator[Any]:
        """Yield the futures as they are done. `timeout` bounds the wait for each."""
        yield from self._hub.select(_listed(futures), timeout)

    def put_object(self, value: Any, max_size: float = math.inf) -> ObjectRef:
        """Store a value; as an argument of a call the reference arrives as the value, written once for all readers.

        Args:
            value: what to store.
            max_size: how much of what is appended is kept. Patches are dropped, the oldest first, as long as the sizes
                of the others are so much together.
        """
        if max_size != math.inf:
            check_positive("max_size", max_size)
        return self._hub.put_object(self._hub.put(value), max_size)  # type: ignore[no-any-return]

    def get_object(self, ref: ObjectRef, deserializer: Deserializer | None = None) -> Any:
        """Return the latest state of an object, transferring only what is new to this process since its last read.

        Args:
            ref: its reference.
            deserializer: `deserializer(base, patches)` makes the value of a patched object. Base and patches are the
                same objects at each read, so it must not change them (and can tell by identity what it has seen).
        """
        return self._hub.read(ref, deserializer)

    def update_object(self, ref: ObjectRef, value: Any) -> ObjectRef:
        """Replace an object and drop its patches."""
        return self._hub.update(ref, self._hub.put(value))  # type: ignore[no-any-return]

    def patch_object(self, ref: ObjectRef, patch: Any, size: float = 1) -> ObjectRef:
        """Append a patch to an object; its size counts if the object has a `max_size`."""
        return self._hub.patch(ref, self._hub.put(patch), size)  # type: ignore[no-any-return]

    def compact_object(self, ref: ObjectRef, deserializer: Deserializer) -> ObjectRef:
        """Replace an object by what the deserializer makes of it, so that reads do not grow with its history."""
        return compact(self._hub, ref, deserializer)

    def close(self) -> None:
        """End all services. Calls that are still out fail with EngineClosed."""
        self._hub.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runner {self.name!r}>"

    def __reduce__(self) -> Any:
        return _revive_runner, (self._hub.run, self._hub.name)


def _check_count(what: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"{what} must be a whole number from 1, not {value!r}")


def _listed(futures: Any) -> list[Any]:
    return [futures] if isinstance(futures, (Future, FutureRef)) else list(futures)


def _methods_of(target: Any) -> frozenset[str]:
    """Return the names that can be called: public methods, and `__call__` if what lives in the worker is callable."""
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return frozenset({"__call__"})
    cls = target if inspect.isclass(target) else type(target)
    names = {"__call__"} if any("__call__" in vars(base) for base in cls.__mro__) else set()
    for name in dir(target):
        # Looked up statically, so that no property of an instance is run.
        if not name.startswith("_") and not isinstance(inspect.getattr_static(target, name), property):
            names |= {name} if callable(getattr(target, name)) else set()
    return frozenset(names)


def _hub_of(run: str, name: str) -> Any:
    return find_hub(run) or Client(run, name)


def _revive_runner(run: str, name: str) -> Runner:
    runner = Runner.__new__(Runner)
    runner._hub = _hub_of(run, name)
    return runner


def _revive_service(run: str, name: str, id: int, service: str, methods: frozenset[str]) -> Service:
    return Service(_hub_of(run, name), id, service, methods)
