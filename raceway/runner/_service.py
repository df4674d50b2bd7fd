"""A service: functions, classes and objects of a program, run by workers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from raceway.checks import nearest_name
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
            near = nearest_name(name, self._methods)
            hint = f" Did you mean {near!r}?" if near else f" It has: {self._method_list()}."
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


def callable_names(target: Any) -> frozenset[str]:
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


def backend_of(run_id: str, name: str) -> Any:
    """Return the backend of a Runner, in the driver or in a worker."""
    return find_backend(run_id) or WorkerBackend(run_id, name)


def _rebuild_service(run_id: str, runner_name: str, id: int, name: str, methods: frozenset[str]) -> Service:
    return Service(backend_of(run_id, runner_name), id, name, methods)
