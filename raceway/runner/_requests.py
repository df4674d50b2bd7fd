"""What workers ask of the hub. A future that is not done yet is answered when it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raceway.engine._core import CoreActor
from raceway.errors import WaitTimeout
from raceway.runner._future import Future
from raceway.runner._hub import Hub
from raceway.runner._objects import ObjectRef
from raceway.runner._tally import Tally


def _await(
    hub: Hub,
    actor: CoreActor,
    futures: list[Future[Any]],
    count: int | None,
    timeout: float | None,
    finish: Callable[[Tally], Any],
    or_failure: bool,
) -> Any:
    """Give a promise that is kept with `finish(tally)` when so many futures are done or the time is up."""
    hub.check_futures(futures)
    tally = Tally(futures, count, or_failure)
    if tally.ready():
        return finish(tally)
    promise = hub.engine.promise()
    hub.park(actor, futures, tally)

    def settle() -> None:
        if promise.done():
            return
        hub.waiting.pop(actor, None)
        try:
            promise.fulfil(finish(tally))
        except Exception as error:
            promise.fail(error)
        hub.engine.reactor.changed()

    for future in futures:
        future.add_done_callback(lambda _: settle() if tally.ready() else None)
    if timeout is not None:
        hub.engine.reactor.at(hub.engine.clock() + timeout, settle)
    return promise


def _get(hub: Hub, actor: CoreActor, futures: list[Future[Any]], timeout: float | None) -> Any:
    def finish(tally: Tally) -> list[Any]:
        if not tally.ready():
            raise WaitTimeout(f"the futures are not done after {timeout:g} s; still going on")
        return tally.results()

    return _await(hub, actor, futures, None, timeout, finish, or_failure=True)


def _wait(hub: Hub, actor: CoreActor, futures: list[Future[Any]], count: int | None, timeout: float | None) -> Any:
    def finish(_: Tally) -> list[bool]:
        return [future.done() for future in futures]

    if timeout == 0:
        return finish(Tally(futures, count))
    return _await(hub, actor, futures, count, timeout, finish, or_failure=False)


def _read(hub: Hub, actor: CoreActor, ref: ObjectRef, epoch: int, num_seen: int) -> Any:
    news = hub.object(ref).since(epoch, num_seen)
    hub.engine.supply(actor, ([news[1]] if news[1] is not None else []) + news[3])
    return news


VERBS: dict[str, Callable[..., Any]] = {
    "submit": lambda hub, actor, *call: [hub.submit(*call)],
    "get": _get,
    "wait": _wait,
    "cancel": lambda hub, actor, future: future.cancel(),
    "object": lambda hub, actor, *args: hub.put_object(*args),
    "read": _read,
    "update": lambda hub, actor, ref, value: hub.update(ref, value),
    "patch": lambda hub, actor, *args: hub.patch(*args),
    "compacted": lambda hub, actor, *args: hub.compacted(*args),
}
