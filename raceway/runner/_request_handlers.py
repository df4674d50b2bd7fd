"""The driver's answers to the requests of workers. A request that waits for futures is answered when they are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor, Future, Handle
from raceway.errors import EngineClosed, ForeignReference, WaitTimeout
from raceway.runner._future import ServiceFuture
from raceway.runner._objects import ObjectRef
from raceway.runner._open_runners import open_backends
from raceway.runner._wait_condition import Selection, Wait, WaitCondition, check_count

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend


def answer_request(worker: Actor, request: tuple[str, str, tuple[Any, ...]]) -> Any:
    """Answer a worker's request: (run id, verb, arguments). Called with the engine's lock."""
    run_id, verb, args = request
    backend = next((backend for backend in tuple(open_backends.values()) if worker in backend.pools), None)
    if backend is None:
        raise EngineClosed("the Runner that this worker belonged to is closed")
    if run_id and run_id != backend.run_id:
        raise ForeignReference(f"a worker of the Runner {backend.name!r} cannot use the Runner of {run_id!r}")
    return HANDLERS[verb](backend, worker, *args)


def _answer_later(
    backend: DriverBackend, worker: Actor, wait: Wait, timeout: float | None, give_answer: Callable[[Future[Any]], None]
) -> Future[Any]:
    """Return the future of an answer, which `give_answer` completes when the wait is over or the timeout has passed."""
    answer = backend.engine.create_future()

    def complete() -> None:
        backend.blocked_workers.remove(worker, wait)
        try:
            give_answer(answer)
        except Exception as error:
            answer.fail(error)

    def complete_and_notify() -> None:
        complete()
        backend.engine.notify_waiters()

    if wait.is_met():
        complete()
        return answer
    wait.on_met = complete_and_notify
    backend.blocked_workers.add(worker, wait)
    if timeout is not None and not answer.done():
        backend.blocked_workers.timeouts.add(wait, timeout, complete_and_notify)
    return answer


def _get(
    backend: DriverBackend, worker: Actor, futures: list[ServiceFuture[Any]], timeout: float | None
) -> Future[Any]:
    backend.check_futures(futures)
    condition = WaitCondition(futures, or_failure=True)

    def give_results(answer: Future[Any]) -> None:
        if not condition.is_met():
            raise WaitTimeout(f"the futures are not done after {timeout:g} s; their calls continue")
        if condition.first_failure() is None:
            for future in futures:
                future.decode()  # which may fail
        # Not raised: a traceback would keep this request, which refers to the futures, as long as they keep the error.
        failure = condition.first_failure()
        if failure is None:
            answer.set_result(condition.results())
        else:
            answer.fail(failure)

    return _answer_later(backend, worker, condition, timeout, give_results)


def _ref(backend: DriverBackend, worker: Actor, future: ServiceFuture[Any], timeout: float | None) -> Future[Any]:
    backend.check_futures([future])
    condition = WaitCondition([future])

    def give_ref(answer: Future[Any]) -> None:
        if not condition.is_met():
            raise WaitTimeout(f"the future is not done after {timeout:g} s; its call continues")
        failure = condition.first_failure()  # not raised, for the same reason
        if failure is not None:
            answer.fail(failure)
        else:
            answer.set_result(future.ref())

    return _answer_later(backend, worker, condition, timeout, give_ref)


def _wait(
    backend: DriverBackend,
    worker: Actor,
    futures: list[ServiceFuture[Any]],
    count: int | None,
    timeout: float | None,
) -> Any:
    def are_done() -> list[bool]:
        return [future.done() for future in futures]

    backend.check_futures(futures)
    if timeout == 0:
        check_count(futures, count)
        return are_done()
    return _answer_later(
        backend, worker, WaitCondition(futures, count), timeout, lambda answer: answer.set_result(are_done())
    )


def _select(backend: DriverBackend, worker: Actor, futures: list[ServiceFuture[Any]], timeout: float | None) -> Any:
    """Answer with a handle of a new selection, and the indices of the futures that are done first."""
    backend.check_futures(futures)
    selection = Selection(futures)
    handle = Handle(backend.table, backend.table.new_id(backend.close_selection))
    backend.selections[handle.id] = selection
    return _answer_later(
        backend, worker, selection, timeout, lambda answer: answer.set_result((handle, selection.take()))
    )


def _select_next(backend: DriverBackend, worker: Actor, handle: Handle, timeout: float | None) -> Any:
    """Answer with the indices of the futures of a selection that are done next."""
    selection = backend.selections[handle.id]
    return _answer_later(backend, worker, selection, timeout, lambda answer: answer.set_result(selection.take()))


def _read_object(backend: DriverBackend, worker: Actor, ref: ObjectRef, epoch: int, num_seen: int) -> Any:
    delta = backend.objects.find(ref).delta(epoch, num_seen)
    _, base, _, patches = delta
    backend.engine.prefetch(worker, ([base] if base is not None else []) + patches)
    return delta


HANDLERS: dict[str, Callable[..., Any]] = {
    "submit": lambda backend, worker, *call: [backend.submit(*call)],
    "get": _get,
    "wait": _wait,
    "select": _select,
    "select_next": _select_next,
    "ref": _ref,
    "cancel": lambda backend, worker, future: future.cancel(),
    "session": lambda backend, worker: (backend.run_id, backend.name),
    "history": lambda backend, worker: backend.history(),
    "rebuild_object_ref": lambda backend, worker, id: backend.objects.rebuild(id),
    "create_object": lambda backend, worker, *args: backend.objects.create(*args),
    "read_object": _read_object,
    "update_object": lambda backend, worker, ref, base: backend.objects.update(ref, base),
    "patch_object": lambda backend, worker, *args: backend.objects.patch(*args),
    "replace_folded": lambda backend, worker, *args: backend.objects.replace_folded(*args),
}
