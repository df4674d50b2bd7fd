"""The driver's answers to the requests of workers. A request that waits for futures is answered when they are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.errors import EngineClosed, ForeignReference, WaitTimeout
from raceway.runner._future import ServiceFuture
from raceway.runner._objects import ObjectRef
from raceway.runner._open_runners import open_backends
from raceway.runner._wait_condition import WaitCondition

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend


def answer_request(worker: Actor, request: tuple[str, str, tuple[Any, ...]]) -> Any:
    """Answer a worker's request: (run id, verb, arguments). Called with the engine's lock."""
    run_id, verb, args = request
    backend = next((backend for backend in open_backends.values() if worker in backend.pools), None)
    if backend is None:
        raise EngineClosed("the Runner that this worker belonged to is closed")
    if run_id and run_id != backend.run_id:
        raise ForeignReference(f"a worker of the Runner {backend.name!r} cannot use the Runner of {run_id!r}")
    return HANDLERS[verb](backend, worker, *args)


def _answer_later(
    backend: DriverBackend,
    worker: Actor,
    futures: list[ServiceFuture[Any]],
    count: int | None,
    timeout: float | None,
    make_answer: Callable[[WaitCondition], Any],
    or_failure: bool,
) -> Any:
    """Return a future of `make_answer(condition)`, called when `count` futures are done or the timeout has passed."""
    backend.check_futures(futures)
    condition = WaitCondition(futures, count, or_failure)
    if condition.is_met():
        return make_answer(condition)
    answer = backend.engine.create_future()
    backend.add_blocked(worker, futures, condition)

    def complete() -> None:
        if answer.done():
            return
        backend.blocked_workers.pop(worker, None)
        try:
            answer.set_result(make_answer(condition))
        except Exception as error:
            answer.fail(error)
        backend.engine.notify_waiters()

    for future in futures:
        future.add_done_callback(lambda _: complete() if condition.is_met() else None)
    if timeout is not None:
        backend.engine.call_at(backend.engine.clock() + timeout, complete)
    return answer


def _get(backend: DriverBackend, worker: Actor, futures: list[ServiceFuture[Any]], timeout: float | None) -> Any:
    def results(condition: WaitCondition) -> list[Any]:
        if not condition.is_met():
            raise WaitTimeout(f"the futures are not done after {timeout:g} s; their calls continue")
        return condition.results()

    return _answer_later(backend, worker, futures, None, timeout, results, or_failure=True)


def _wait(
    backend: DriverBackend,
    worker: Actor,
    futures: list[ServiceFuture[Any]],
    count: int | None,
    timeout: float | None,
) -> Any:
    def are_done(_: WaitCondition) -> list[bool]:
        return [future.done() for future in futures]

    if timeout == 0:
        return are_done(WaitCondition(futures, count))
    return _answer_later(backend, worker, futures, count, timeout, are_done, or_failure=False)


def _read_object(backend: DriverBackend, worker: Actor, ref: ObjectRef, epoch: int, num_seen: int) -> Any:
    delta = backend.objects.find(ref).delta(epoch, num_seen)
    _, base, _, patches = delta
    backend.engine.prefetch(worker, ([base] if base is not None else []) + patches)
    return delta


HANDLERS: dict[str, Callable[..., Any]] = {
    "submit": lambda backend, worker, *call: [backend.submit(*call)],
    "get": _get,
    "wait": _wait,
    "cancel": lambda backend, worker, future: future.cancel(),
    "create_object": lambda backend, worker, *args: backend.objects.create(*args),
    "read_object": _read_object,
    "update_object": lambda backend, worker, ref, base: backend.objects.update(ref, base),
    "patch_object": lambda backend, worker, *args: backend.objects.patch(*args),
    "replace_folded": lambda backend, worker, *args: backend.objects.replace_folded(*args),
}
