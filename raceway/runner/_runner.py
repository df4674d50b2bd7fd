"""The Runner and its services: functions, classes and objects of a program, run by workers."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from raceway.checks import check_positive, unknown_name
from raceway.engine import make_engine
from raceway.engine.base import Engine
from raceway.errors import ConfigError
from raceway.runner._driver_backend import DriverBackend
from raceway.runner._future import RemoteServiceFuture, ServiceFuture
from raceway.runner._objects import Deserializer, ObjectRef, compact
from raceway.runner._open_runners import find_backend
from raceway.runner._worker_backend import WorkerBackend


class Service:
    """A handle that is called like the function or object it was created from, and returns futures."""

    def __init__(self, backend: Any, id: int, name: str, methods: frozenset[str]) -> None:
        self._backend = backend
        self._id = id
        self._name = name
        self._methods = methods

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or the object itself."""
        if "__call__" not in self._methods:
            raise TypeError(f"service {self._name!r} is not callable. Call one of its methods: {self._method_list()}.")
        return self._backend.submit(self._id, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._methods:
            close = difflib.get_close_matches(name, self._methods, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" It has: {self._method_list()}."
            raise AttributeError(f"service {self._name!r} has no method {name!r}.{hint}")
        backend, id = self._backend, self._id

        def call(*args: Any, **kwargs: Any) -> Any:
            return backend.submit(id, name, args, kwargs)

        call.__name__ = name
        return call

    def _method_list(self) -> str:
        return ", ".join(sorted(name for name in self._methods if not name.startswith("_"))) or "none"

    def close(self) -> None:
        """End the service's workers. Closing the Runner ends those of all services."""
        self._backend.close_service(self._id)

    def __repr__(self) -> str:
        return f"<Service {self._name!r} of {self._backend.name!r}>"

    def __reduce__(self) -> Any:
        return _rebuild_service, (self._backend.run_id, self._backend.name, self._id, self._name, self._methods)


class Runner:
    """A distributed run: it starts the engine, creates services and objects, and closes them all at the end.

    >>> with Runner("squares", engine="inline") as rr:
    ...     square = rr.service(lambda x: x * x)
    ...     rr.get([square(n) for n in range(4)])
    [0, 1, 4, 9]

    Args:
        name: shown in errors and logs.
        engine: "inline", "process", "ray", or an existing engine, which `close` leaves open; by default the engine that
            the environment variable RACEWAY_ENGINE names, else "process".
        workers: default number of workers of a service; if None, as many as the engine has capacity for.
        options: options of the engine.
    """

    def __init__(
        self, name: str, engine: str | Engine | None = None, workers: int | None = None, **options: Any
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a Runner needs a name, not {name!r}")
        _check_count("workers", workers)
        self._backend: Any
        if isinstance(engine, Engine):
            if options:
                raise ConfigError(f"options {sorted(options)} cannot be set on an existing engine")
            self._backend = DriverBackend(engine, name, workers, owns_engine=False)
        else:
            self._backend = DriverBackend(make_engine(engine, **options), name, workers, owns_engine=True)

    @property
    def name(self) -> str:
        """The name of the Runner."""
        return str(self._backend.name)

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
        """Create a service from a function, partial, callable object or class (many workers) or from an instance (one).

        Args:
            target: what the workers run. A class is instantiated without arguments in each worker. An instance keeps
                its state in one worker, or with autoscale in several, each with its own state.
            autoscale: whether the service may have several workers.
            warmup: number of workers to start now and wait for. The others start when they are needed.
            workers: the maximum number of workers that run at the same time.
            resources: resources of each worker, such as ``{"cpus": 0.5}``.
            deadline: seconds that a call may run before its worker is killed.
            options: rejected with an error that suggests the option with the closest name.
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
        id, name = self._backend.create_service(
            target, autoscale=autoscale, warmup=warmup, workers=workers, resources=resources, deadline=deadline
        )
        return Service(self._backend, id, name, _callable_names(target))

    def get(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the result of a future, or the results of a list of futures, in its order.

        As soon as a call has failed, its exception is raised, with its original type; the remote traceback is its
        cause. For the reference of an object, return the object.
        """
        if isinstance(futures, ObjectRef):
            return self.get_object(futures)
        is_future = isinstance(futures, (ServiceFuture, RemoteServiceFuture))
        return self._backend.get(futures if is_future else list(futures), timeout)

    def wait(self, futures: Any, count: int | None = None, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        """Wait until `count` (default: all) futures are done or `timeout` passes; return the done and pending ones."""
        result: tuple[list[Any], list[Any]] = self._backend.wait(_as_list(futures), count, timeout)
        return result

    def select(self, futures: Sequence[Any], timeout: float | None = None) -> Iterator[Any]:
        """Yield the futures in the order of their completion. `timeout` bounds the wait for each."""
        yield from self._backend.select(_as_list(futures), timeout)

    def put_object(self, value: Any, max_size: float = math.inf) -> ObjectRef:
        """Store a value once for all readers. As an argument of a call the reference arrives as the value.

        Args:
            value: the value to store.
            max_size: total size of the appended patches to keep. The oldest patches are dropped as long as the others
                have this size.
        """
        if max_size != math.inf:
            check_positive("max_size", max_size)
        objects = self._backend.objects
        return objects.create(objects.put(value), max_size)  # type: ignore[no-any-return]

    def get_object(self, ref: ObjectRef, deserializer: Deserializer | None = None) -> Any:
        """Return the latest state of an object, transferring only the changes since this process last read it.

        Args:
            ref: the reference of the object.
            deserializer: `deserializer(base, patches)` returns the value of a patched object. Base and patches are the
                same Python objects at each read, so it must not change them (and can recognise those it has processed).
        """
        return self._backend.objects.read(ref, deserializer)

    def update_object(self, ref: ObjectRef, value: Any) -> ObjectRef:
        """Replace an object and drop its patches."""
        objects = self._backend.objects
        return objects.update(ref, objects.put(value))  # type: ignore[no-any-return]

    def patch_object(self, ref: ObjectRef, patch: Any, size: float = 1) -> ObjectRef:
        """Append a patch to an object; its size counts if the object has a `max_size`."""
        objects = self._backend.objects
        return objects.patch(ref, objects.put(patch), size)  # type: ignore[no-any-return]

    def compact_object(self, ref: ObjectRef, deserializer: Deserializer) -> ObjectRef:
        """Replace base and patches by the value that the deserializer returns, so that reads stay short."""
        return compact(self._backend.objects, ref, deserializer)

    def close(self) -> None:
        """End all services. Calls that are not done fail with EngineClosed."""
        self._backend.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runner {self.name!r}>"

    def __reduce__(self) -> Any:
        return _rebuild_runner, (self._backend.run_id, self._backend.name)


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"{name} must be a whole number from 1, not {value!r}")


def _as_list(futures: Any) -> list[Any]:
    return [futures] if isinstance(futures, (ServiceFuture, RemoteServiceFuture)) else list(futures)


def _callable_names(target: Any) -> frozenset[str]:
    """Return the names that can be called: public methods, and `__call__` if the worker's object is callable."""
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return frozenset({"__call__"})
    cls = target if inspect.isclass(target) else type(target)
    names = {"__call__"} if any("__call__" in vars(base) for base in cls.__mro__) else set()
    for name in dir(target):
        # Look up statically first, so that no property of an instance is evaluated.
        if not name.startswith("_") and not isinstance(inspect.getattr_static(target, name), property):
            names |= {name} if callable(getattr(target, name)) else set()
    return frozenset(names)


def _find_backend(run_id: str, name: str) -> Any:
    return find_backend(run_id) or WorkerBackend(run_id, name)


def _rebuild_runner(run_id: str, name: str) -> Runner:
    runner = Runner.__new__(Runner)
    runner._backend = _find_backend(run_id, name)
    return runner


def _rebuild_service(run_id: str, runner_name: str, id: int, name: str, methods: frozenset[str]) -> Service:
    return Service(_find_backend(run_id, runner_name), id, name, methods)
