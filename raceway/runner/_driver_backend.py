"""The driver's side of a Runner: its services, futures and objects."""

from __future__ import annotations

import functools
import inspect
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raceway.engine.base import Actor, Engine, Future, Ref, Resources, encode
from raceway.errors import ConfigError, EngineClosed, ForeignReference, WaitTimeout
from raceway.runner._blocked_workers import BlockedWorkers
from raceway.runner._future import ServiceFuture
from raceway.runner._history import CallHistory, CallRecord
from raceway.runner._object_store import ObjectStore
from raceway.runner._objects import ObjectRef
from raceway.runner._open_runners import open_backends
from raceway.runner._pool import WorkerPool, first_error
from raceway.runner._request_handlers import answer_request
from raceway.runner._wait_condition import Selection, Wait, WaitCondition


def return_target(target: Any) -> Any:
    """Return the target: the factory of workers whose object is sent to them."""
    return target


class DriverBackend:
    """The state and methods behind a Runner in the driver; `WorkerBackend` is its counterpart in workers.

    Args:
        engine: where the workers live.
        name: name of the Runner.
        workers: workers of each service that does not set their number; by default the engine's capacity.
        owns_engine: whether `close` closes the engine, too.
        session: name of the session; by default the Runner's name and a random number.
        history: number of calls to record.
    """

    def __init__(
        self, engine: Engine, name: str, workers: int | None, owns_engine: bool, session: str | None, history: int
    ) -> None:
        self.engine = engine
        self.name = name
        self.workers = workers
        self.run_id = session or f"{name}-{uuid.uuid4().hex[:8]}"
        self.table = engine.handles
        self.closed = False
        self.futures: dict[int, ServiceFuture[Any]] = {}
        """Futures that other processes refer to."""
        self.objects = ObjectStore(self)
        self.services: dict[int, WorkerPool] = {}
        self.pools: dict[Actor, WorkerPool] = {}
        self.blocked_workers = BlockedWorkers(self)
        self.selections: dict[int, Selection] = {}
        """The selections that workers iterate over, by the id of their handle."""
        self._history = CallHistory(history) if history else None
        self._owns_engine = owns_engine
        self._service_ids = itertools.count(1)
        open_backends[self.run_id] = self
        engine.serve(answer_request)

    # Services.

    def create_service(
        self,
        target: Any,
        *,
        autoscale: bool | None,
        warmup: int,
        workers: int | None,
        resources: Mapping[str, float] | None,
        deadline: float | None,
    ) -> tuple[int, str]:
        """Create a service and return its id and name."""
        self.check_open()
        stateful = not callable(target)
        scales = (not stateful) if autoscale is None else autoscale
        needs = Resources.of(resources)
        self.engine.check_resources(needs)
        if not scales:
            for option, number in (("workers", workers), ("warmup", warmup)):
                if number is not None and number > 1:
                    raise ConfigError(f"{option}={number} needs autoscale=True: without it a service has one worker")
        if workers is not None and warmup > workers:
            raise ConfigError(f"warmup={warmup} exceeds the {workers} workers that the service may have")
        size = workers or max(self.workers or int(self.engine.capacity / (needs.cpus or 1)), warmup, 1) if scales else 1
        name = _service_name(target)
        factory, args = (target, ()) if inspect.isclass(target) else (return_target, (target,))
        encode((factory, args))  # raises here, not at the first call, if the target cannot be sent to workers
        pool = WorkerPool(
            self, name, factory, args, size=size, resources=needs, ordered=stateful and not scales, deadline=deadline
        )
        with self.engine.lock:
            id = next(self._service_ids)
            self.services[id] = pool
            started = [pool.start_worker() for _ in range(warmup)]
        self.engine.wait([worker.ready for worker in started])
        error = first_error(started)
        if error is not None:
            self.close_service(id)
            raise error
        return id, name

    def close_service(self, id: int) -> None:
        """End the workers of a service."""
        with self.engine.lock:
            self.services[id].close(EngineClosed(f"service {self.services[id].name!r} was closed"))

    def submit(self, service: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ServiceFuture[Any]:
        """Call a method of a service."""
        self.check_open()
        pool = self.services[service]
        future: ServiceFuture[Any] = ServiceFuture(self, method, pool.deadline)
        for arg in itertools.chain(args, kwargs.values()) if kwargs else args:
            if isinstance(arg, (ObjectRef, ServiceFuture)):
                result_refs: dict[int, Ref] = {}
                args = [self._as_ref(arg, future, result_refs) for arg in args]
                kwargs = {key: self._as_ref(arg, future, result_refs) for key, arg in kwargs.items()}
                break
        future.pool = pool
        message = self.engine.message(method, args, kwargs)
        with self.engine.lock:
            if self._history is not None:
                self._history.add(pool.name, future)
            pool.submit(message, future)
        self.engine.flush()
        return future

    def _as_ref(self, arg: Any, future: ServiceFuture[Any], result_refs: dict[int, Ref]) -> Any:
        """Return an argument with objects and futures replaced by stored references, which arrive as their values."""
        if isinstance(arg, ObjectRef):
            stored = self.objects.find(arg)
            if stored.patches:
                raise ConfigError(
                    f"{arg!r} has {len(stored.patches)} patches, so it cannot arrive as a value: pass it inside a "
                    "container and read it there with get_object(ref, deserializer=...)"
                )
            return stored.base
        if not isinstance(arg, ServiceFuture):
            return arg
        if arg.backend is not self:
            raise ForeignReference(f"{arg!r} belongs to the Runner {arg.backend.name!r}, not to {self.name!r}")
        ref = result_refs.get(id(arg))
        if ref is None:
            with self.engine.lock:
                ref = result_refs[id(arg)] = self.engine.store(None)
                future.dependencies.append(arg)
            arg.add_done_callback(functools.partial(self._fill, ref, future))
        return ref

    def _fill(self, ref: Ref, future: ServiceFuture[Any], dependency: Future[Any]) -> None:
        """Store the result of a dependency that is done for the call that needs it, or fail the call too."""
        with self.engine.lock:
            failure = dependency.exception()  # not raised: its traceback would keep the reference
            if failure is not None:
                future.fail(failure)
            else:
                try:
                    self.engine.fill(ref, dependency.payload() or encode(dependency.result()))
                except Exception as error:  # there is no memory for it
                    future.fail(error)
            future.dependencies.remove(dependency)
            if future.pool is not None:
                future.pool.dispatch_queued()

    # Waiting.

    def wait(
        self, futures: Sequence[ServiceFuture[Any]], count: int | None, timeout: float | None
    ) -> tuple[list[ServiceFuture[Any]], list[ServiceFuture[Any]]]:
        """Block until `count` (default: all) futures are done; return the done and the pending ones."""
        self.check_futures(futures)
        try:
            self._block(WaitCondition(futures, count), timeout)
        except WaitTimeout:
            pass
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def wait_for(self, futures: Sequence[ServiceFuture[Any]], timeout: float | None) -> None:
        """Block until all futures are done, or raise WaitTimeout."""
        self._block(WaitCondition(futures), timeout)

    def get(self, futures: ServiceFuture[Any] | Sequence[ServiceFuture[Any]], timeout: float | None) -> Any:
        """Return the result of a future, or of each in order; raise the first failure as soon as it is known."""
        if isinstance(futures, ServiceFuture):
            self.check_futures([futures])
            return futures.get(timeout)
        self.check_futures(futures)
        condition = WaitCondition(futures, or_failure=True)
        self._block(condition, timeout)
        return condition.results()

    def select(self, futures: Sequence[ServiceFuture[Any]], timeout: float | None) -> Iterator[ServiceFuture[Any]]:
        """Yield the futures in the order of their completion."""
        self.check_futures(futures)
        selection = Selection(futures)
        try:
            for _ in futures:
                self._block(selection, timeout)
                yield futures[selection.done.popleft()]
        finally:
            selection.close()

    def close_selection(self, id: int) -> None:
        """Remove a selection that its worker has dropped."""
        selection = self.selections.pop(id, None)
        if selection is not None:
            selection.close()

    def _block(self, wait: Wait, timeout: float | None) -> None:
        if wait.is_met():
            wait.end()
            return
        worker = self.engine.running_actor()
        try:
            if worker is not None:
                with self.engine.lock:
                    self.blocked_workers.add(worker, wait)
            self.engine.flush()
            self.engine.block(wait.is_met, timeout)
        finally:
            with self.engine.lock:
                if worker is None:
                    wait.end()
                else:
                    self.blocked_workers.remove(worker, wait)

    # The history, validation and closing.

    def history(self) -> list[CallRecord]:
        """Return the latest calls."""
        if self._history is None:
            raise ConfigError(f"the Runner {self.name!r} records no calls: open it with Runner(..., history=1000)")
        with self.engine.lock:
            return self._history.records()

    def check_open(self) -> None:
        """Raise EngineClosed if the Runner is closed."""
        if self.closed:
            raise EngineClosed(f"the Runner {self.name!r} is closed")

    def check_futures(self, futures: Sequence[ServiceFuture[Any]]) -> None:
        """Raise if one of these is not a future of this Runner."""
        for future in futures:
            if not isinstance(future, ServiceFuture):
                raise ConfigError(f"expected a future, which calling a service returns, not {future!r}")
            if future.backend is not self:
                raise ForeignReference(
                    f"{future!r} belongs to the Runner {future.backend.name!r}, not to {self.name!r}"
                )

    def close(self) -> None:
        """End the services and, if it was started for this Runner, the engine."""
        if self.closed:
            return
        self.closed = True
        with self.engine.lock:
            error = EngineClosed(f"the Runner {self.name!r} was closed")
            for pool in self.services.values():
                if self._owns_engine:
                    pool.reject_calls(error)
                else:
                    pool.close(error)
        if self._owns_engine:
            self.engine.close()
        for registry in (self.objects.stored, self.futures, self.selections, self.blocked_workers.waits, self.pools):
            registry.clear()
        open_backends.pop(self.run_id, None)


def _service_name(target: Any) -> str:
    """Return the name of a service: that of the function, also inside a partial, or of the class."""
    for candidate in (target, getattr(target, "func", None)):
        if isinstance(getattr(candidate, "__name__", None), str):
            return str(candidate.__name__)  # type: ignore[union-attr]
    return type(target).__name__
