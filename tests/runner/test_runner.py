"""The Runner's API, on every engine."""

import gc
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.errors import (
    ActorDied,
    ActorStartError,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    DeadlockError,
    EngineClosed,
    ForeignReference,
    RemoteError,
    SerializationError,
    WaitTimeout,
)
from raceway.runner import Future, ObjectRef, Runner, _requests, get_object, patch_object, update_object
from tests.conftest import GENEROUS, eventually
from tests.runner import services
from tests.runner.conftest import ENGINES, REMOTE, engines
from tests.runner.services import CannotStart, Counter, Multiplier, Reader, add, concatenated

# What a service can be made of.


def test_a_function(rr: Runner) -> None:
    service = rr.service(add)
    assert isinstance(service(1, 3), Future)
    assert rr.get([service(n, b=n) for n in range(5)]) == [0, 2, 4, 6, 8]
    assert service(1).get(GENEROUS) == 2


def test_a_partial(rr: Runner) -> None:
    assert rr.get(rr.service(partial(add, b=10))(1)) == 11


def test_a_lambda_and_a_callable_object(rr: Runner) -> None:
    assert rr.get(rr.service(lambda x: x + 1)(1)) == 2
    assert rr.get(rr.service(Multiplier(3))(5)) == 15


def test_a_class_is_built_in_each_worker(rr: Runner) -> None:
    service = rr.service(Counter)
    assert service.increment(5).get(GENEROUS) >= 5


def test_an_instance_keeps_its_state(rr: Runner) -> None:
    service = rr.service(Counter(10))
    assert rr.get([service.increment() for _ in range(5)]) == [11, 12, 13, 14, 15]
    assert rr.get(service.get()) == 15


@engines(*REMOTE)
def test_an_instance_that_scales_has_several_states(rr: Runner) -> None:
    service = rr.service(Counter(), autoscale=True, workers=2)
    rr.get([service.slow(0.05) for _ in range(8)])
    states = {}
    while len(states) < 2:
        for pid, count in rr.get([service.where() for _ in range(8)]):
            states[pid] = count
    assert sum(states.values()) == 8


@engines(*REMOTE)
def test_a_pool_has_so_many_workers(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=3, warmup=3)
    pids = rr.service(lambda: (time.sleep(0.05), os.getpid())[1], workers=3)
    assert len(set(rr.get([pids() for _ in range(12)]))) == 3
    single = rr.service(services.pid, autoscale=False)
    assert len(set(rr.get([single() for _ in range(6)]))) == 1
    assert service._hub.services[service._id].members


def test_warmup_starts_workers_now(rr: Runner) -> None:
    service = rr.service(add, warmup=2)
    assert len(service._hub.services[service._id].members) == 2
    assert all(member.ready.done() for member in service._hub.services[service._id].members)


# References and futures as arguments.


def test_a_reference_arrives_as_its_value(rr: Runner) -> None:
    weights = rr.put_object({"w": np.ones(100_000)})
    assert isinstance(weights, ObjectRef)
    service = rr.service(services.kind_of)
    assert rr.get(service(weights)) == "dict"
    assert rr.get(service(value=weights)) == "dict"
    assert rr.get(service([weights])) == "list"
    assert rr.get(rr.service(lambda box: type(box[0]).__name__)([weights])) == "ObjectRef"


def test_a_future_arrives_as_its_result(rr: Runner) -> None:
    service = rr.service(add)
    chain = service(1, 1)
    for _ in range(5):
        chain = service(chain, 1)
    assert chain.get(GENEROUS) == 7
    assert rr.get(service(service(1, 1), b=service(2, 2))) == 6
    array = rr.service(lambda n: np.ones(n))
    assert rr.get(rr.service(services.total)(array(200_000))) == 200_000


def test_a_future_may_be_needed_more_than_once(rr: Runner) -> None:
    service = rr.service(add)
    slow = rr.service(services.sleep)
    future = slow(0.2, 5)
    assert rr.get([service(future, future), service(future, 1), service(future, b=future)]) == [10, 6, 10]


def test_a_future_that_fails_fails_what_needs_it(rr: Runner) -> None:
    bad = rr.service(services.fail)()
    with pytest.raises(LookupError, match="boom"):
        rr.service(add)(bad, 1).get(GENEROUS)


def test_a_call_to_an_actor_waits_its_turn_for_a_future(rr: Runner) -> None:
    counter = rr.service(Counter())
    slow = rr.service(services.sleep)(0.2, 100)
    first, second = counter.increment(slow), counter.increment(1)
    assert rr.get([first, second]) == [100, 101], "in the order sent"


def test_a_future_in_a_container_stays_one(rr: Runner) -> None:
    service = rr.service(add)
    assert rr.get(rr.service(lambda box: box["f"].get() + 1)({"f": service(1, 1)})) == 3
    made = rr.get(rr.service(lambda handles: [handles[0](5, 5)])([service]))
    assert rr.get(made) == [10], "and comes back as one"


# Getting results.


def test_get_keeps_the_order(rr: Runner) -> None:
    service = rr.service(services.sleep)
    assert rr.get([service(0.01 * (5 - n), n) for n in range(5)]) == list(range(5))
    assert rr.get([]) == []


def test_the_first_failure_is_raised(rr: Runner) -> None:
    slow, bad = rr.service(services.sleep), rr.service(services.fail)
    with pytest.raises(LookupError, match="boom") as caught:
        rr.get([slow(0.1, 1), bad(), slow(0.1, 2)], timeout=GENEROUS)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert "services.py" in caught.value.__cause__.traceback


@engines(*REMOTE)
def test_a_failure_does_not_wait_for_the_others(rr: Runner) -> None:
    slow, bad = rr.service(services.sleep, warmup=1), rr.service(services.fail)
    with pytest.raises(LookupError):
        rr.get([slow(600), bad()], timeout=GENEROUS)


@engines(*REMOTE)
def test_select_yields_in_order_of_completion(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=2, warmup=2)
    slow, fast = service(0.8, "slow"), service(0.01, "fast")
    assert [future.get() for future in rr.select([slow, fast])] == ["fast", "slow"]


def test_select_of_all(rr: Runner) -> None:
    service = rr.service(add)
    assert sorted(future.get() for future in rr.select([service(n) for n in range(10)])) == list(range(1, 11))


@engines(*REMOTE)
def test_timeouts(rr: Runner) -> None:
    service = rr.service(services.sleep, warmup=1)
    future = service(0.6, "done")
    with pytest.raises(WaitTimeout):
        rr.get(future, timeout=0.05)
    with pytest.raises(WaitTimeout):
        rr.get([future], timeout=0.05)
    with pytest.raises(WaitTimeout):
        next(rr.select([future], timeout=0.05))
    assert rr.wait([future], timeout=0.05) == ([], [future])
    assert not future.wait(0.01)
    assert future.get(GENEROUS) == "done"
    assert rr.wait([future]) == ([future], [])


def test_wait_for_some(rr: Runner) -> None:
    service = rr.service(services.sleep)
    futures = [service(0.01, n) for n in range(4)]
    done, pending = rr.wait(futures, count=2, timeout=GENEROUS)
    assert len(done) >= 2
    assert len(done) + len(pending) == 4
    with pytest.raises(ConfigError, match="count"):
        rr.wait(futures, count=9)


@engines(*REMOTE)
def test_cancel(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=1)
    running = service(0.5, "ran")
    eventually(lambda: running.actor is not None)
    queued = [service(0.0, n) for n in range(5)]
    assert queued[3].cancel()
    assert not queued[3].cancel()
    with pytest.raises(Cancelled):
        queued[3].get(GENEROUS)
    assert not running.cancel()
    assert rr.get([running, *queued[:3], queued[4]]) == ["ran", 0, 1, 2, 4]


@engines(*REMOTE)
def test_a_deadline(rr: Runner) -> None:
    service = rr.service(services.sleep, deadline=0.3, workers=1)
    service(0.0).get(GENEROUS)
    stuck, after = service(600), service(0.0, "fine")
    with pytest.raises(DeadlineExceeded):
        stuck.get(GENEROUS)
    assert after.get(GENEROUS) == "fine"


# Objects.


def test_objects_are_read_replaced_and_appended_to(rr: Runner) -> None:
    ref = rr.put_object([1])
    assert rr.get_object(ref) == [1]
    assert rr.get(ref) == [1]
    assert rr.patch_object(ref, 2) == ref
    rr.patch_object(ref, 3)
    assert rr.get_object(ref, concatenated) == [1, 2, 3]
    rr.update_object(ref, [9])
    assert rr.get_object(ref) == [9]
    assert rr.get_object(ref, concatenated) == [9]


def test_a_reference_names_an_object_not_a_snapshot(rr: Runner) -> None:
    ref = rr.put_object(1)
    service = rr.service(add)
    assert rr.get(service(ref)) == 2
    rr.update_object(ref, 10)
    assert rr.get(service(ref)) == 11


def test_a_patched_object_needs_a_deserializer(rr: Runner) -> None:
    ref = rr.put_object([1])
    rr.patch_object(ref, 2)
    with pytest.raises(ConfigError, match=r"1 patches.*deserializer"):
        rr.get_object(ref)
    with pytest.raises(ConfigError, match="inside a container"):
        rr.service(add)(ref)


def test_any_process_of_the_run_reads_and_writes(rr: Runner) -> None:
    ref = rr.put_object(["base"])
    holder = {"ref": ref}
    readers = [rr.service(Reader()) for _ in range(2)]
    assert readers[0].plain(holder).get(GENEROUS) == ["base"]
    readers[0].append(holder, "a").get(GENEROUS)
    readers[1].append(holder, "b").get(GENEROUS)
    assert rr.get([reader.read(holder) for reader in readers]) == [["base", "a", "b"]] * 2
    assert rr.get_object(ref, concatenated) == ["base", "a", "b"]
    readers[1].replace(holder, ["new"]).get(GENEROUS)
    assert rr.get([reader.read(holder) for reader in readers]) == [["new"]] * 2


def test_a_worker_makes_objects(rr: Runner) -> None:
    ref = rr.get(rr.service(lambda: [rr.put_object(np.ones(100_000))])())[0]
    assert isinstance(ref, ObjectRef)
    assert rr.get_object(ref).sum() == 100_000
    update_object(ref, [1])
    patch_object(ref, 2)
    assert get_object(ref, concatenated) == [1, 2]


def test_reading_transfers_only_what_is_new(rr: Runner) -> None:
    ref = rr.put_object([np.zeros(1_000_000)])
    reader = rr.service(Reader())
    for number in range(5):
        rr.patch_object(ref, number)
        assert rr.get(reader.read({"ref": ref}))[1:] == list(range(number + 1))
    assert rr.get(reader.same_base()), "the base was read once"


@engines("process")
def test_a_freed_object_is_forgotten_by_its_readers(rr: Runner) -> None:
    reader = rr.service(Reader())
    engine = rr._hub.engine
    rr.get(reader.same_base())
    before = int(engine._control.used.sum())
    for number in range(20):
        ref = rr.put_object([np.full(1_000_000, number)])
        rr.patch_object(ref, 1)
        rr.get(reader.read({"ref": ref}))
    assert int(engine._control.used.sum()) - before < 100_000_000, "twenty of 8 MB, of which few live at once"


def test_compaction_bounds_a_read(rr: Runner) -> None:
    ref = rr.put_object([])
    for number in range(3000):
        rr.patch_object(ref, number)
        if number % 1000 == 999:
            rr.compact_object(ref, concatenated)
    assert rr.get_object(ref) == list(range(3000)), "no patches are left"
    rr.get(rr.service(lambda box: (box["rr"].compact_object(box["ref"], concatenated), 0)[1])({"ref": ref, "rr": rr}))
    rr.patch_object(ref, "last")
    assert rr.get_object(ref, lambda base, patches: (len(base), patches)) == (3000, ["last"])


def test_a_bounded_object_keeps_its_newest_patches(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=3)
    for number in range(10):
        rr.patch_object(ref, number)
        assert rr.get_object(ref, concatenated) == ["base", *range(max(number - 2, 0), number + 1)]


def test_patches_of_a_bounded_object_have_sizes(rr: Runner) -> None:
    ref = rr.put_object([], max_size=5)
    kept = []
    for name, size in (("a", 2), ("b", 2), ("c", 2), ("d", 1), ("e", 9), ("f", 0), ("g", 4), ("h", 1)):
        rr.patch_object(ref, name, size)
        kept.append("".join(rr.get_object(ref, concatenated)))
    # As few as have five together, the last ones; fewer only while there are not so many.
    assert kept == ["a", "ab", "abc", "bcd", "e", "ef", "efg", "gh"]


def test_a_reader_that_missed_patches_goes_on_with_those_that_are_left(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=3)
    holder, reader = {"ref": ref}, rr.service(Reader())
    rr.patch_object(ref, 0)
    assert rr.get(reader.read(holder)) == ["base", 0]
    for number in range(1, 8):
        rr.patch_object(ref, number)
    assert rr.get(reader.read(holder)) == ["base", 5, 6, 7]
    rr.patch_object(ref, 8)
    assert rr.get(reader.read(holder)) == ["base", 6, 7, 8]
    assert rr.get(reader.same_base()), "the base was read once"
    assert rr.get(rr.service(Reader()).read(holder)) == ["base", 6, 7, 8], "one that reads for the first time"


def test_a_bounded_object_is_replaced_and_compacted(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=2)
    for number in range(5):
        rr.patch_object(ref, number)
    rr.compact_object(ref, concatenated)
    assert rr.get_object(ref) == ["base", 3, 4]
    for number in range(5, 8):
        rr.patch_object(ref, number)
    assert rr.get_object(ref, concatenated) == ["base", 3, 4, 6, 7], "what is part of the base stays"
    rr.update_object(ref, ["new"])
    assert rr.get_object(ref) == ["new"]
    for number in range(3):
        rr.patch_object(ref, number)
    assert rr.get_object(ref, concatenated) == ["new", 1, 2], "the bound holds on"


def test_bounded_objects_in_workers(rr: Runner) -> None:
    ref = rr.get(rr.service(lambda: [rr.put_object([], max_size=4)])())[0]
    append = rr.service(lambda box, value, size: patch_object(box["ref"], value, size) and 0)
    for number in range(6):
        rr.get(append({"ref": ref}, number, 2))
    assert rr.get_object(ref, concatenated) == [4, 5]
    assert rr.get(rr.service(Reader()).read({"ref": ref})) == [4, 5]


def test_dropped_patches_are_freed(rr: Runner) -> None:
    ref = rr.put_object([], max_size=10)
    holder, reader = {"ref": ref}, rr.service(Reader())
    for number in range(200):
        rr.patch_object(ref, np.full(10_000, number))
        if number % 7 == 0:
            rr.get(reader.read(holder))
    assert [int(array[0]) for array in rr.get(reader.read(holder))] == list(range(190, 200))

    def few_are_stored() -> bool:
        rr.get(reader.same_base())
        rr.put_object(0)
        return len(rr._hub.engine._stored) < 20

    assert eventually(few_are_stored), f"{len(rr._hub.engine._stored)} values are stored"


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "large"])
def test_a_patch_has_a_size_that_is_a_number(rr: Runner, size: Any) -> None:
    ref = rr.put_object([], max_size=3)
    with pytest.raises(ConfigError, match=f"must be a number from 0, not {size!r}"):
        rr.patch_object(ref, 1, size=size)
    with pytest.raises(ConfigError, match="must be a number from 0"):
        rr.get(rr.service(lambda refs: patch_object(refs[0], 1, size=size) and None)([ref]))
    assert rr.get_object(ref, lambda base, patches: len(patches)) == 0


@pytest.mark.parametrize("max_size", [0, -1, float("nan"), "large"])
def test_an_object_cannot_be_bounded_to_nothing(max_size: Any) -> None:
    with Runner("bad", engine="inline") as rr, pytest.raises(ConfigError, match="max_size must be a number above 0"):
        rr.put_object([], max_size=max_size)


def test_an_object_that_nobody_refers_to_is_freed(rr: Runner) -> None:
    service = rr.service(Reader())
    ref = rr.put_object(np.ones(100_000))
    service.plain({"ref": ref}).get(GENEROUS)
    hub = rr._hub
    assert len(hub.objects) == 1
    del ref
    gc.collect()

    def is_freed() -> bool:
        rr.get(service.same_base())
        rr.put_object(0)
        gc.collect()
        return len(hub.objects) <= 1

    assert eventually(is_freed)


def test_a_hundred_thousand_objects_leave_nothing(rr: Runner) -> None:
    number = 1000 if rr._hub.engine.name == "ray" else 20_000
    for value in range(number):
        rr.put_object(value)
    rr.put_object(0)
    assert len(rr._hub.objects) <= 2
    assert len(rr._hub.engine._stored) <= 4


# Nesting.


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
            return 0 if n == 0 else 1 + rr.get(again(n - 1))

        again = rr.service(depth)
        assert again(10).get(4 * GENEROUS) == 10
        assert rr.get([again(3) for _ in range(4)], timeout=4 * GENEROUS) == [3] * 4


def test_a_tree_of_calls(rr: Runner) -> None:
    def fib(n: int) -> int:
        return n if n < 2 else sum(rr.get([fibs(n - 1), fibs(n - 2)]))

    fibs = rr.service(fib)
    assert fibs(5).get(4 * GENEROUS) == 5


def test_an_actor_that_waits_for_itself(rr: Runner) -> None:
    counter = rr.service(Counter())
    with pytest.raises(DeadlockError, match="itself"):
        counter.ask([counter], "get").get(GENEROUS)
    assert counter.increment().get(GENEROUS) == 1, "it lives on"


def test_two_actors_that_wait_for_each_other(rr: Runner) -> None:
    class Node:
        def ask(self, chain: list[Any]) -> Any:
            return chain[0].ask(chain[1:]).get() if chain else "end"

    a, b = rr.service(Node()), rr.service(Node())
    assert a.ask([b]).get(GENEROUS) == "end"
    with pytest.raises(DeadlockError):
        a.ask([b, a]).get(GENEROUS)


def test_an_actor_that_waits_for_what_needs_itself(rr: Runner) -> None:
    class Node:
        def hello(self) -> str:
            return "hello"

        def ask(self, handles: list[Any]) -> Any:
            me, same = handles
            return same(me.hello()).get()

    node, same = rr.service(Node()), rr.service(lambda value: value)
    with pytest.raises(DeadlockError):
        node.ask([node, same]).get(GENEROUS)


def test_errors_pass_through_nested_calls(rr: Runner) -> None:
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
    assert eventually(future.done)  # the driver never waits in the Runner


@engines("process")
def test_threads_of_a_worker_may_call_too(rr: Runner) -> None:
    inner = rr.service(add)

    def outer() -> list[int]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda n: rr.get(inner(n)), range(8)))

    assert rr.service(outer)().get(GENEROUS) == list(range(1, 9))


@engines("process")
def test_an_answer_that_does_not_fit_is_refused(rr: Runner) -> None:
    with Runner("small", engine="process", workers=2, shared_memory=8 << 20) as small:
        inner = small.service(lambda: np.zeros(3 << 20, np.uint8))
        outer = small.service(lambda: len(small.get([inner(), inner(), inner()])))
        with pytest.raises(MemoryError, match="budget"):
            outer().get(GENEROUS)
        assert small.get(small.service(add)(1)) == 2


@engines("process")
def test_a_nested_result_that_cannot_travel_is_refused(rr: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    promise = rr._hub.engine.promise()
    rr._hub.engine.keep(promise, threading.Lock())
    monkeypatch.setitem(_requests.VERBS, "lock", lambda hub, actor: promise)
    with pytest.raises(SerializationError, match="lock"):
        rr.service(services.request)("lock").get(GENEROUS)


# Death.


@engines(*REMOTE)
def test_only_the_call_that_ran_is_lost(rr: Runner) -> None:
    service = rr.service(lambda n: services.die() if n == 3 else n, workers=2)
    futures = [service(n) for n in range(10)]
    with pytest.raises(ActorDied):
        futures[3].get(GENEROUS)
    assert rr.get([future for n, future in enumerate(futures) if n != 3], timeout=2 * GENEROUS) == [
        0,
        1,
        2,
        *range(4, 10),
    ]


@engines("process")
def test_many_small_calls_survive_a_death(rr: Runner) -> None:
    service = rr.service(lambda n: services.die() if n == 700 else n, workers=2)
    futures = [service(n) for n in range(2000)]
    rr.wait(futures, timeout=GENEROUS)
    failed = [n for n, future in enumerate(futures) if future.exception() is not None]
    assert failed == [700]
    assert all(future.get() == n for n, future in enumerate(futures) if n != 700)


@engines("process")
def test_calls_survive_the_death_of_the_launcher(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=1, warmup=1)
    running, queued = service(600), service(0.0, "ran")
    assert eventually(lambda: running.actor is not None)
    rr._hub.engine._starter.process.kill()
    with pytest.raises(ActorDied):
        running.get(GENEROUS)
    assert queued.get(GENEROUS) == "ran"


@engines("process")
def test_an_argument_that_the_driver_cannot_read_is_refused(rr: Runner) -> None:
    inner = rr.service(services.kind_of)
    outer = rr.service(lambda: rr.get(inner(services.Unreadable())))
    with pytest.raises(Exception, match="only in a worker"):
        outer().get(GENEROUS)


@engines(*REMOTE)
def test_an_actor_with_state_is_not_replaced_in_silence(rr: Runner) -> None:
    counter = rr.service(Counter())
    counter.increment().get(GENEROUS)
    first, second = counter.die(), counter.increment()
    with pytest.raises(ActorDied):
        first.get(GENEROUS)
    with pytest.raises(ActorDied, match="state"):
        second.get(GENEROUS)
    with pytest.raises(ActorDied, match="state"):
        counter.increment().get(GENEROUS)


# Errors.


def test_a_service_that_cannot_start(rr: Runner) -> None:
    service = rr.service(CannotStart)
    with pytest.raises(ActorStartError, match="no licence found"):
        rr.get([service.work() for _ in range(5)], timeout=GENEROUS)
    with pytest.raises(ActorStartError, match="no licence found"):
        service.work().get(GENEROUS)
    with pytest.raises(ActorStartError, match="no licence found"):
        rr.service(CannotStart, warmup=1)


def test_a_service_that_cannot_travel(rr: Runner) -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError, match="closure variable lock"):
        rr.service(lambda: lock)


def test_a_closed_runner(rr: Runner) -> None:
    service = rr.service(add)
    ref = rr.put_object(1)
    service(1).get(GENEROUS)
    rr.close()
    for use in (lambda: service(1), lambda: rr.put_object(1), lambda: rr.service(add), lambda: rr.get_object(ref)):
        with pytest.raises(EngineClosed, match="closed"):
            use()
    rr.close()


@engines(*REMOTE)
def test_closing_fails_what_is_out(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=1, warmup=1)
    futures = [service(600) for _ in range(3)]
    rr.close()
    for future in futures:
        with pytest.raises(EngineClosed):
            future.get(GENEROUS)


def test_references_of_another_runner(rr: Runner) -> None:
    with Runner("other", engine="inline") as other:
        theirs = other.put_object(1)
        future = other.service(add)(1)
        with pytest.raises(ForeignReference, match="another Runner"):
            rr.get_object(theirs)
        with pytest.raises(ForeignReference):
            rr.service(add)(theirs)
        with pytest.raises(ForeignReference, match="'other'"):
            rr.get(future)
        with pytest.raises(ForeignReference, match="'other'"):
            rr.service(add)(future)


@engines("inline", "process")
def test_two_runners_at_once(rr: Runner) -> None:
    with Runner("second", engine=rr._hub.engine.name, workers=1) as second:
        a, b = rr.service(add), second.service(add)
        assert rr.get([a(n) for n in range(5)]) == second.get([b(n) for n in range(5)])
        weights = second.put_object(np.ones(100_000))
        assert second.get(second.service(services.total)(weights)) == 100_000


@engines("inline", "process")
def test_two_runners_on_one_engine(rr: Runner) -> None:
    with Runner("guest", engine=rr._hub.engine) as guest:
        assert guest.get(guest.service(add)(1)) == 2
        ref = guest.put_object(1)
        with pytest.raises(ForeignReference):
            rr.get_object(ref)
    assert rr.get(rr.service(add)(1)) == 2, "the engine is left open"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrkers": 2}, "Did you mean 'workers'"),
        ({"workers": 0}, "workers"),
        ({"workers": "two"}, "workers"),
        ({"warmup": -1}, "warmup"),
        ({"deadline": 0}, "deadline"),
        ({"resources": {"cpus": -1}}, "resources"),
        ({"autoscale": False, "workers": 3}, "autoscale=True"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with Runner("bad", engine="inline") as rr, pytest.raises(ConfigError, match=message):
        rr.service(add, **options)


def test_bad_runners() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'process'"):
        Runner("bad", engine="proces")
    with pytest.raises(ConfigError, match="name"):
        Runner("")
    with pytest.raises(ConfigError, match="shared_memry"):
        Runner("bad", engine="process", shared_memry=3)


def test_methods_that_are_not_there() -> None:
    with Runner("names", engine="inline") as rr:
        counter = rr.service(Counter())
        with pytest.raises(AttributeError, match="Did you mean 'increment'"):
            counter.incremnt()
        with pytest.raises(AttributeError, match="_private"):
            counter._private()
        with pytest.raises(TypeError, match=r"not callable.*increment"):
            counter()
        with pytest.raises(ConfigError, match="expected a future"):
            rr.get([1])


def test_the_engine_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACEWAY_ENGINE", "inline")
    with Runner("environment") as rr:
        assert rr.get(rr.service(services.pid)()) == os.getpid()


def test_a_reference_cannot_be_pickled_by_hand(rr: Runner, tmp_path: Path) -> None:
    import pickle

    with pytest.raises(SerializationError, match="only inside the run"):
        pickle.dumps(rr.put_object(1))
