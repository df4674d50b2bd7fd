"""The Runner: it opens an engine, and creates services and objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from raceway.checks import check_int, check_positive, unknown_name
from raceway.engine import make_engine
from raceway.engine.base import Engine
from raceway.errors import ConfigError, WaitTimeout
from raceway.runner._driver_backend import DriverBackend
from raceway.runner._future import RemoteServiceFuture, ServiceFuture
from raceway.runner._history import CallRecord
from raceway.runner._objects import Deserializer, ObjectRef, compact
from raceway.runner._service import Service, backend_of, callable_names
from raceway.runner._sessions import find_session, opening


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
        session: name of the session. If it is open already, in this process or as the session that this process is a
            worker of, the Runner joins it: it shares services and objects, and closing it leaves the session open. By
            default a new session, with a name of its own.
        fail_if_exists: raise ConfigError instead if the session (without one: a Runner of this name) is open.
        history: number of calls to record, for `Runner.history`.
        options: options of the engine.
    """

    def __init__(
        self,
        name: str,
        engine: str | Engine | None = None,
        workers: int | None = None,
        *,
        session: str | None = None,
        fail_if_exists: bool = False,
        history: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a Runner needs a name, not {name!r}")
        _check_count("workers", workers)
        check_int("history", history, minimum=0)
        # Not for a session of its own, which cannot be open already: starting an engine may take seconds.
        with opening if session is not None or fail_if_exists else nullcontext():
            self._backend: Any = find_session(name, session, fail_if_exists)
            self._opened_session = self._backend is None
            if self._backend is None:
                self._backend = _open_session(name, engine, workers, session, history, options)
            elif engine is not None or workers is not None or history or options:
                raise ConfigError(
                    f"the session {session!r} is open already. Its engine, workers and history cannot be set again."
                )

    @property
    def name(self) -> str:
        """The name of the Runner."""
        return str(self._backend.name)

    @property
    def session(self) -> str:
        """The name of the session, different from that of any other open Runner."""
        return str(self._backend.run_id)

    def history(self) -> list[CallRecord]:
        """Return the latest calls, the oldest first, if the Runner was opened with `history=`.

        >>> with Runner("squares", engine="inline", history=2) as rr:
        ...     square = rr.service(lambda x: x * x)
        ...     _ = rr.get([square(n) for n in range(4)])
        ...     [(call.number, call.state) for call in rr.history()]
        [(3, 'done'), (4, 'done')]
        """
        records: list[CallRecord] = self._backend.history()
        return records

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
            warmup: number of workers to start now and wait for. The others start when they are needed. A service that
                sets no `workers` has at least this many.
            workers: the maximum number of workers that run at the same time.
            resources: resources of each worker, such as ``{"cpus": 0.5}``.
            deadline: seconds that a call may run before its worker is killed, without the time in which it waits for
                nested calls.
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
        return Service(self._backend, id, name, callable_names(target))

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

    def ref(self, futures: Any, timeout: float | None = None) -> Any:
        """Wait, and return a reference to the result of a future, or to the result of each of a list of futures."""
        if isinstance(futures, (ServiceFuture, RemoteServiceFuture)):
            return futures.ref(timeout)
        futures = list(futures)
        _, pending = self.wait(futures, timeout=timeout)
        if pending:
            raise WaitTimeout(f"{len(pending)} futures are not done after {timeout:g} s; their calls continue")
        return [future.ref() for future in futures]

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
        """End all services. Calls that are not done fail with EngineClosed. A session that was joined stays open."""
        if self._opened_session:
            self._backend.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runner {self.name!r}>"

    def __reduce__(self) -> Any:
        return _rebuild_runner, (self._backend.run_id, self._backend.name)


def _open_session(
    name: str,
    engine: str | Engine | None,
    workers: int | None,
    session: str | None,
    history: int,
    options: Mapping[str, Any],
) -> DriverBackend:
    if not isinstance(engine, Engine):
        return DriverBackend(make_engine(engine, **options), name, workers, True, session, history)
    if options:
        raise ConfigError(f"options {sorted(options)} cannot be set on an existing engine")
    return DriverBackend(engine, name, workers, False, session, history)


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"{name} must be a whole number from 1, not {value!r}")


def _as_list(futures: Any) -> list[Any]:
    return [futures] if isinstance(futures, (ServiceFuture, RemoteServiceFuture)) else list(futures)


def _rebuild_runner(run_id: str, name: str) -> Runner:
    runner = Runner.__new__(Runner)
    runner._backend = backend_of(run_id, name)
    runner._opened_session = False
    return runner
