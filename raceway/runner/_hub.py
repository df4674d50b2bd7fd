"""The driver's side of a run: services, futures and objects, and the requests that workers make of them."""

from __future__ import annotations

import functools
import inspect
import itertools
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raceway.engine import _codec
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine.base import Actor, Ref, Resources
from raceway.engine.base import Future as EngineFuture
from raceway.errors import ConfigError, DeadlockError, EngineClosed, ForeignReference, ObjectFreed, WaitTimeout
from raceway.runner._future import Future
from raceway.runner._objects import Deserializer, Known, ObjectRef, StoredObject, fold
from raceway.runner._pool import Pool, first_error
from raceway.runner._tally import Tally

_hubs: dict[str, Hub] = {}
"""The runs of this process, by id."""


def find_hub(run: str) -> Hub | None:
    """Return the run of this id, if this process is its driver."""
    return _hubs.get(run)


def find_future(uid: str, id: int) -> Future[Any] | None:
    """Return a future of this process by its number, or None in a worker."""
    for hub in _hubs.values():
        if hub.engine.uid == uid and id in hub.futures:
            return hub.futures[id]
    return None


def find_object_hub(ref: ObjectRef) -> Hub | None:
    """Return the run that an object belongs to, or None in a worker."""
    return next((hub for hub in _hubs.values() if ref._table is hub.table and ref.id in hub.objects), None)


def same(target: Any) -> Any:
    """Return the target: the factory of workers whose object is there already."""
    return target


class Hub:
    """One run: everything behind a Runner in the driver."""

    def __init__(self, engine: EngineCore, name: str, workers: int | None, owns_engine: bool) -> None:
        self.engine = engine
        self.name = name
        self.workers = workers
        self.run = f"{name}-{uuid.uuid4().hex[:8]}"
        self.table = engine._handles
        self.closed = False
        self.futures: dict[int, Future[Any]] = {}
        """Futures that other processes refer to."""
        self.objects: dict[int, StoredObject] = {}
        self.services: dict[int, Pool] = {}
        self.pools: dict[CoreActor, Pool] = {}
        self.waiting: dict[CoreActor, list[Future[Any]]] = {}
        """Workers that wait in a nested call, and the futures of which they need all."""
        self._owns_engine = owns_engine
        self._service_ids = itertools.count(1)
        _hubs[self.run] = self
        engine.serve(_answer)

    # Services.

    def make_service(
        self,
        target: Any,
        *,
        autoscale: bool | None,
        warmup: int,
        workers: int | None,
        resources: Mapping[str, float] | None,
        deadline: float | None,
    ) -> tuple[int, str]:
        """Make a service and return its number and name."""
        self.check_open()
        stateful = not callable(target)
        scales = (not stateful) if autoscale is None else autoscale
        needs = Resources.of(resources)
        self.engine._check_resources(needs)
        if workers is not None and not scales and workers != 1:
            raise ConfigError(f"workers={workers} needs autoscale=True: without it a service has one worker")
        size = workers or self.workers or max(1, int(self.engine.capacity / (needs.cpus or 1))) if scales else 1
        name = _name_of(target)
        factory, args = (target, ()) if inspect.isclass(target) else (same, (target,))
        _codec.encode((factory, args))  # a target that cannot travel is told of here, not when it is first called
        pool = Pool(
            self, name, factory, args, size=size, resources=needs, ordered=stateful and not scales, deadline=deadline
        )
        with self.engine.lock:
            id = next(self._service_ids)
            self.services[id] = pool
            started = [pool.start() for _ in range(min(warmup, size))]
        self.engine.wait([actor.ready for actor in started])
        error = first_error(started)
        if error is not None:
            self.close_service(id)
            raise error
        return id, name

    def close_service(self, id: int) -> None:
        """End a service's workers."""
        with self.engine.lock:
            self.services[id].close(EngineClosed(f"service {self.services[id].name!r} was closed"))

    def submit(self, service: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        """Call a method of a service."""
        self.check_open()
        pool = self.services[service]
        future: Future[Any] = Future(self, method, pool.deadline)
        for arg in itertools.chain(args, kwargs.values()) if kwargs else args:
            if isinstance(arg, (ObjectRef, Future)):
                refs: dict[int, Ref] = {}
                args = [self._as_ref(arg, future, refs) for arg in args]
                kwargs = {key: self._as_ref(arg, future, refs) for key, arg in kwargs.items()}
                break
        future.pool = pool
        message = self.engine.message(method, args, kwargs)
        with self.engine.lock:
            pool.submit(message, future)
        self.engine.flush()
        return future

    def _as_ref(self, arg: Any, future: Future[Any], refs: dict[int, Ref]) -> Any:
        """Turn an object or future among the arguments into a stored reference, which arrives as its value."""
        if isinstance(arg, ObjectRef):
            stored = self.object(arg)
            if stored.patches:
                raise ConfigError(
                    f"{arg!r} has {len(stored.patches)} patches, so it cannot arrive as a value: pass it inside a "
                    "container and read it there with get_object(ref, deserializer=...)"
                )
            return stored.base
        if not isinstance(arg, Future):
            return arg
        if arg.hub is not self:
            raise ForeignReference(f"{arg!r} belongs to the Runner {arg.hub.name!r}, not to {self.name!r}")
        ref = refs.get(id(arg))
        if ref is None:
            with self.engine.lock:
                ref = refs[id(arg)] = self.engine.store(None)
                future.needs.append(arg)
            arg.add_done_callback(functools.partial(self._fill, ref, future))
        return ref

    def _fill(self, ref: Ref, future: Future[Any], done: EngineFuture[Any]) -> None:
        """Store the result of a future that is done for a call that needs it, or fail the call too."""
        with self.engine.lock:
            try:
                self.engine.fill(ref, done.payload() or _codec.encode(done.result()))
            except Exception as error:  # what it raised, or there is no room for it
                future.fail(error)
            future.needs.remove(done)
            if future.pool is not None:
                future.pool.feed()

    # Waiting.

    def wait(
        self, futures: Sequence[Future[Any]], count: int | None, timeout: float | None
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        """Block until `count` (default: all) are done; return the done and the others."""
        self.check_futures(futures)
        try:
            self._block(futures, Tally(futures, count), timeout)
        except WaitTimeout:
            pass
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def wait_for(self, futures: Sequence[Future[Any]], timeout: float | None) -> None:
        """Block until all are done, or raise WaitTimeout."""
        self._block(futures, Tally(futures), timeout)

    def get(self, futures: Future[Any] | Sequence[Future[Any]], timeout: float | None) -> Any:
        """Return the result of one, or of each in order; the first failure is raised as soon as it is known."""
        if isinstance(futures, Future):
            self.check_futures([futures])
            return futures.get(timeout)
        self.check_futures(futures)
        tally = Tally(futures, or_failure=True)
        self._block(futures, tally, timeout)
        return tally.results()

    def select(self, futures: Sequence[Future[Any]], timeout: float | None) -> Iterator[Future[Any]]:
        """Yield the futures as they are done."""
        self.check_futures(futures)
        done: deque[Any] = deque()
        for future in futures:
            future.add_done_callback(done.append)
        for _ in futures:
            with self.engine.lock:  # or one could be done between the two looks
                pending = [] if done else [future for future in futures if not future.done()]
            if pending:
                self._block(pending, Tally(pending, 1), timeout)
            yield done.popleft()

    def _block(self, futures: Sequence[Future[Any]], tally: Tally, timeout: float | None) -> None:
        if tally.ready():
            return
        caller = self.engine.running()
        if caller is not None:
            self.park(caller, futures, tally)
        try:
            self.engine.flush()
            self.engine.block(tally.ready, timeout)
        finally:
            tally.forget()
            if caller is not None:
                self.waiting.pop(caller, None)

    def park(self, actor: CoreActor, futures: Sequence[Future[Any]], tally: Tally) -> None:
        """Note that a worker waits, so that others are started for what it waits for. Called without the lock."""
        with self.engine.lock:
            if tally.needs_all:
                self._check_deadlock(actor, futures)
            self.waiting[actor] = list(futures) if tally.needs_all else []
            for pool in self.services.values():
                pool.feed()

    def _check_deadlock(self, actor: CoreActor, futures: Sequence[Future[Any]]) -> None:
        """Raise if one of the futures can only be done after `actor` has returned from waiting for it."""
        seen: set[CoreActor] = set()
        left: list[Any] = list(futures)
        while left:
            future = left.pop()
            where = None if future.done() else self._runs_on(future)
            if where is actor or (where is not None and not self.engine.can_begin(where)):
                raise DeadlockError(
                    f"{actor.name} would wait for {future.method!r}, which can only run "
                    f"on {actor.name} itself, after this call"
                )
            left.extend(future.needs)
            if where is not None and where not in seen:
                seen.add(where)
                left.extend(self.waiting.get(where, ()))

    def _runs_on(self, future: Future[Any]) -> CoreActor | None:
        """Return the one worker that can run it: where it was sent, or its service's only one; None if any will do."""
        actor = future.actor
        if isinstance(actor, CoreActor):
            running = next(iter(actor.calls.values()), (None,))[0]
            # What has not begun comes back from a worker that waits, if its service has others.
            return actor if future is running or not actor.hands_back else None
        pool = future.pool
        return pool.members[0] if pool is not None and pool.ordered and pool.members else None

    # Objects.

    def put(self, value: Any) -> Ref:
        """Store a value."""
        self.check_open()
        return self.engine.put(value)

    def put_object(self, ref: Ref, max_size: float) -> ObjectRef:
        """Make an object of a stored value."""
        with self.engine.lock:
            self.check_open()
            object = ObjectRef(self.table, self.table.new(self._free_object))
            self.objects[object.id] = StoredObject(ref, max_size)
            return object

    def _free_object(self, id: int) -> None:
        self.objects.pop(id, None)

    def object(self, ref: ObjectRef) -> StoredObject:
        """Return what the reference names, or raise."""
        if not isinstance(ref, ObjectRef):
            raise ConfigError(f"an object is named by what put_object returned, not by {ref!r}")
        stored = self.objects.get(ref.id) if ref._table is self.table else None
        if stored is None:
            self.check_open()
            if ref._table is self.table and not any(ref.id in hub.objects for hub in _hubs.values()):
                raise ObjectFreed(f"{ref!r} has been freed")
            raise ForeignReference(f"{ref!r} belongs to another Runner, not to {self.name!r}")
        return stored

    def read(self, ref: ObjectRef, deserializer: Deserializer | None) -> Any:
        """Return the latest state of an object."""
        with self.engine.lock:
            stored = self.object(ref)
            base = stored.base if deserializer is None and not stored.patches else None
        return base.get() if base is not None else fold(ref, self.news(ref), deserializer)

    def news(self, ref: ObjectRef) -> Known:
        """Return all of an object, having read what is new of it."""
        with self.engine.lock:
            stored = self.object(ref)
            known: Known = self.table.cache.setdefault(ref.id, Known())
            known.learn(ref, stored.since(known.epoch, known.num_seen))
            return known.copy()

    def update(self, ref: ObjectRef, value: Ref) -> ObjectRef:
        """Replace an object."""
        with self.engine.lock:
            self.object(ref).replace(value)
        return ref

    def patch(self, ref: ObjectRef, patch: Ref, size: float) -> ObjectRef:
        """Append to an object."""
        with self.engine.lock:
            self.object(ref).append(patch, size)
        return ref

    def compacted(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace base and first patches by what was made of them, unless the base is another by now."""
        with self.engine.lock:
            stored = self.object(ref)
            if stored.epoch != epoch:
                return False
            stored.replace(base, num_folded)
            return True

    # Checks and the end.

    def check_open(self) -> None:
        """Raise if the run is over."""
        if self.closed:
            raise EngineClosed(f"the Runner {self.name!r} is closed")

    def check_futures(self, futures: Sequence[Future[Any]]) -> None:
        """Raise if one of these is no future of this run."""
        for future in futures:
            if not isinstance(future, Future):
                raise ConfigError(f"expected a future, which calling a service gives, not {future!r}")
            if future.hub is not self:
                raise ForeignReference(f"{future!r} belongs to the Runner {future.hub.name!r}, not to {self.name!r}")

    def close(self) -> None:
        """End the services and, if it was made for this run, the engine."""
        if self.closed:
            return
        self.closed = True
        with self.engine.lock:
            error = EngineClosed(f"the Runner {self.name!r} was closed")
            for pool in self.services.values():
                if self._owns_engine:
                    pool.broken = error
                    pool._fail_queued(error)
                else:
                    pool.close(error)
        if self._owns_engine:
            self.engine.close()
        self.objects.clear()
        self.futures.clear()
        _hubs.pop(self.run, None)


def _name_of(target: Any) -> str:
    """Return what to call a service: the name of the function, also inside a partial, or of the class."""
    for named in (target, getattr(target, "func", None)):
        if isinstance(getattr(named, "__name__", None), str):
            return str(named.__name__)  # type: ignore[union-attr]
    return type(target).__name__


def _answer(actor: Actor, request: tuple[str, str, tuple[Any, ...]]) -> Any:
    """Answer what a worker asks: (run, verb, arguments). Called with the engine's lock."""
    from raceway.runner._requests import VERBS

    run, verb, args = request
    assert isinstance(actor, CoreActor)
    hub = next((hub for hub in _hubs.values() if actor in hub.pools), None)
    if hub is None:
        raise EngineClosed("the run that this worker belonged to is closed")
    if run and run != hub.run:
        raise ForeignReference(f"a worker of the Runner {hub.name!r} cannot use the Runner of {run!r}")
    return VERBS[verb](hub, actor, *args)
