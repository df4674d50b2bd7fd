"""Services that call services."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.errors import ActorDied, Cancelled, DeadlockError, RemoteError, SerializationError, WaitTimeout
from raceway.runner import Runner
from raceway.runner._request_handlers import HANDLERS
from tests.conftest import GENEROUS, eventually
from tests.runner import services
from tests.runner.conftest import ENGINES, REMOTE, engines, forget_dropped
from tests.runner.services import Counter, add


def test_a_service_calls_a_service(rr: Runner) -> None:
    inner = rr.service(add)
    outer = rr.service(lambda n: sum(rr.get([inner(n), inner(n)])))
    assert rr.get([outer(n) for n in range(5)]) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_recursion_does_not_deadlock(engine: str, workers: int, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_session")
    with Runner("deep", engine=engine, workers=workers) as rr:

        def depth(n: int) -> int:
            return 0 if n == 0 else 1 + rr.get(depth_service(n - 1))

        depth_service = rr.service(depth)
        assert depth_service(10).get(4 * GENEROUS) == 10
        assert rr.get([depth_service(3) for _ in range(4)], timeout=4 * GENEROUS) == [3] * 4


def test_a_tree_of_calls(rr: Runner) -> None:
    def fibonacci(n: int) -> int:
        return n if n < 2 else sum(rr.get([service(n - 1), service(n - 2)]))

    service = rr.service(fibonacci)
    assert service(5).get(4 * GENEROUS) == 5


def test_an_instance_that_waits_for_itself(rr: Runner) -> None:
    counter = rr.service(Counter())
    with pytest.raises(DeadlockError, match="itself"):
        counter.call([counter], "get").get(GENEROUS)
    assert counter.increment().get(GENEROUS) == 1, "it is still usable"


def test_two_instances_that_wait_for_each_other(rr: Runner) -> None:
    class Node:
        def call(self, chain: list[Any]) -> Any:
            return chain[0].call(chain[1:]).get() if chain else "end"

    a, b = rr.service(Node()), rr.service(Node())
    assert a.call([b]).get(GENEROUS) == "end"
    with pytest.raises(DeadlockError):
        a.call([b, a]).get(GENEROUS)


def test_an_instance_that_waits_for_a_call_that_depends_on_itself(rr: Runner) -> None:
    class Node:
        def hello(self) -> str:
            return "hello"

        def call(self, services: list[Any]) -> Any:
            own_service, identity = services
            return identity(own_service.hello()).get()

    node, identity = rr.service(Node()), rr.service(lambda value: value)
    with pytest.raises(DeadlockError):
        node.call([node, identity]).get(GENEROUS)


def test_an_instance_that_waits_for_any_of_its_own_calls(rr: Runner) -> None:
    class Node:
        def call(self, services: list[Any], how: str) -> Any:
            futures = [services[0].hello(), services[0].hello()]
            return rr.wait(futures, count=1) if how == "wait" else next(rr.select(futures))

        def any_of(self, services: list[Any]) -> Any:
            own, add = services
            return [f.get() for f in rr.wait([own.hello(), add(1, 1)], count=1)[0]]

        def hello(self) -> str:
            return "hello"

    node = rr.service(Node())
    for how in ("wait", "select"):
        with pytest.raises(DeadlockError, match="hello"):
            node.call([node], how).get(GENEROUS)
    assert node.any_of([node, rr.service(add)]).get(GENEROUS) == [2], "one of them can be done"


@engines("process")
def test_a_worker_waits_for_calls_with_many_paths_between_them(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    adding = rr.service(add)
    layer = [rr.service(services.wait_for_file, workers=1)(str(go), n) for n in (0, 1)]
    for _ in range(50):  # 2**50 paths
        layer = [adding(*layer), adding(*layer)]
    waiting = rr.service(lambda box: box[0].get(), workers=1)(layer)
    assert eventually(lambda: rr._backend.blocked_workers.waits)
    go.touch()
    assert waiting.get(GENEROUS) == 2**49


@engines(*REMOTE)
def test_a_worker_that_polls_or_selects_leaves_no_callbacks(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = [rr.service(services.wait_for_file, workers=3)(str(go), n) for n in range(3)]

    def poll(futures: list[Any]) -> list[bool]:
        done = [futures[0].wait(0.001) for _ in range(3)] + [futures[0].done()]
        for wait in (lambda: next(rr.select(futures, 0.001)), lambda: rr.get(futures, 0.001)):
            with pytest.raises(WaitTimeout):
                wait()
        return done

    service = rr.service(poll)
    assert service(slow).get(GENEROUS) == [False] * 4
    backend = rr._backend
    assert eventually(lambda: (forget_dropped(rr), not backend.selections)[-1])
    assert not any(future._callbacks for future in slow)
    assert not backend.blocked_workers.timeouts._callbacks
    selecting = rr.service(lambda futures: [future.get() for future in rr.select(futures)])([*slow, slow[0]])
    assert eventually(lambda: backend.blocked_workers.waits)
    go.touch()
    assert sorted(selecting.get(GENEROUS)) == [0, 0, 1, 2]
    assert rr.get(rr.service(lambda: list(rr.select([])))()) == []


@engines("process")
def test_select_in_a_worker_sends_each_future_once(rr: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, sent = rr.service(add), []

    def count(verb: str) -> Any:
        handler = HANDLERS[verb]

        def answer(backend: Any, worker: Any, futures: Any, *rest: Any) -> Any:
            sent.append(len(futures) if isinstance(futures, list) else 0)
            return handler(backend, worker, futures, *rest)

        return answer

    for verb in ("select", "select_next", "wait"):
        monkeypatch.setitem(HANDLERS, verb, count(verb))
    outer = rr.service(lambda: sum(future.get() for future in rr.select([inner(n) for n in range(30)])))
    assert outer().get(GENEROUS) == 465
    assert sum(sent) == 30


@engines("process")
def test_a_worker_that_dies_while_it_waits_leaves_no_callbacks(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = rr.service(services.wait_for_file, workers=1)(str(go), "done")
    waiting = rr.service(lambda box: rr.wait(box, timeout=600), workers=1)([slow])
    assert eventually(lambda: rr._backend.blocked_workers.waits)
    os.kill(waiting.actor.pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        waiting.get(GENEROUS)
    assert not slow._callbacks
    assert not rr._backend.blocked_workers.waits
    assert not rr._backend.blocked_workers.timeouts._callbacks
    go.touch()
    assert slow.get(GENEROUS) == "done"


@engines("process")
def test_a_failure_that_a_worker_handles_keeps_nothing_alive(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    service, adding = rr.service(services.wait_for_file, workers=1), rr.service(add)

    def handle() -> None:
        running, cancelled = service(str(go)), service(str(go))
        assert cancelled.cancel()
        dependent = adding(cancelled)
        for future in (cancelled, dependent):
            for wait in (future.get, future.ref):
                with pytest.raises(Cancelled):
                    wait()
        go.touch()
        running.get()

    rr.service(handle)().get(GENEROUS)
    assert eventually(lambda: (forget_dropped(rr), not rr._backend.futures)[-1])
    assert not rr._backend.engine._stored


def test_errors_propagate_through_nested_calls(rr: Runner) -> None:
    bad = rr.service(services.fail)
    outer = rr.service(lambda: rr.get(bad("from deep down")))
    with pytest.raises(LookupError, match="from deep down") as caught:
        outer().get(GENEROUS)
    assert isinstance(caught.value.__cause__, RemoteError)


@engines("process")
def test_nested_calls_run_while_the_driver_computes(rr: Runner) -> None:
    inner = rr.service(add)
    outer = rr.service(lambda n: rr.get(inner(n)))
    future = outer(1)
    assert eventually(future.done)  # without ever waiting in the Runner


@engines("process")
def test_threads_of_a_worker_may_call_services(rr: Runner) -> None:
    inner = rr.service(add)

    def outer() -> list[int]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda n: rr.get(inner(n)), range(8)))

    assert rr.service(outer)().get(GENEROUS) == list(range(1, 9))


@engines("process")
def test_an_answer_that_exceeds_the_memory_budget_fails(rr: Runner) -> None:
    with Runner("small", engine="process", workers=2, shared_memory=8 << 20) as small:
        inner = small.service(lambda: np.zeros(3 << 20, np.uint8))
        outer = small.service(lambda: len(small.get([inner(), inner(), inner()])))
        with pytest.raises(MemoryError, match="budget"):
            outer().get(GENEROUS)
        assert small.get(small.service(add)(1)) == 2


@engines("process")
def test_an_answer_that_cannot_be_pickled_fails(rr: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = rr._backend.engine.create_future()
    rr._backend.engine.complete(answer, threading.Lock())
    monkeypatch.setitem(HANDLERS, "lock", lambda backend, worker: answer)
    with pytest.raises(SerializationError, match="lock"):
        rr.service(services.request)("lock").get(GENEROUS)
