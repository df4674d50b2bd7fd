"""Waiting for the results of calls: order, failures, timeouts, cancelling and deadlines."""

from pathlib import Path
from typing import Any

import pytest

from raceway.errors import Cancelled, ConfigError, DeadlineExceeded, RemoteError, WaitTimeout
from raceway.runner import Runner
from tests.conftest import GENEROUS, eventually
from tests.runner import services
from tests.runner.conftest import REMOTE, engines
from tests.runner.services import add


def test_get_returns_results_in_order(rr: Runner) -> None:
    service = rr.service(services.sleep)
    assert rr.get([service(0.01 * (5 - n), n) for n in range(5)]) == list(range(5))
    assert rr.get([]) == []


def test_the_first_failure_is_raised(rr: Runner) -> None:
    slow, bad = rr.service(services.sleep), rr.service(services.fail)
    with pytest.raises(LookupError, match="boom") as caught:
        rr.get([slow(0.1, 1), bad(), slow(0.1, 2)], timeout=GENEROUS)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert "services.py" in caught.value.__cause__.traceback


def test_a_failure_raised_again_has_a_traceback_of_its_own(rr: Runner) -> None:
    future = rr.service(services.fail)()
    depths = set()
    for _ in range(3):
        with pytest.raises(LookupError) as caught:
            future.get(GENEROUS)
        depths.add(len(caught.traceback))
    assert len(depths) == 1


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


def test_select_yields_every_future(rr: Runner) -> None:
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


def test_wait_for_some_futures(rr: Runner) -> None:
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


def test_a_deadline_does_not_count_waiting_for_nested_calls(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    seconds = [0.0]

    def pass_time(amount: float) -> None:
        seconds[0] += amount
        rr._backend.engine.wake()
        assert rr.get(adding(1), timeout=GENEROUS) == 2  # by now timers that were due have run

    with Runner("clock", engine="process", workers=2, clock=lambda: seconds[0]) as rr:
        adding, inner = rr.service(add, warmup=1), rr.service(services.wait_for_file, warmup=1)

        def outer(first: str, second: str) -> Any:
            inner(first).get()
            return services.wait_for_file(second)

        future = rr.service(outer, deadline=10.0, workers=1, warmup=1)(str(first), str(second))
        assert eventually(lambda: rr._backend.blocked_workers.waits)
        pass_time(100.0)
        assert not future.done()
        first.touch()
        assert eventually(lambda: not rr._backend.blocked_workers.waits)
        pass_time(9.0)
        assert not future.done(), "it has not run for long by itself"
        pass_time(2.0)
        with pytest.raises(DeadlineExceeded, match="more than 10 s"):
            future.get(GENEROUS)


@engines("process")
def test_a_deadline_of_a_nested_call_ends_the_wait_of_its_caller(rr: Runner) -> None:
    inner = rr.service(services.sleep, deadline=0.2)
    outer = rr.service(lambda: rr.get(inner(600)), deadline=GENEROUS)
    with pytest.raises(DeadlineExceeded, match=r"sleep-\d"):
        outer().get(GENEROUS)


@engines(*REMOTE)
def test_waiting_leaves_no_callbacks(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    service = rr.service(services.wait_for_file, workers=2)
    futures = [service(str(go), n) for n in range(4)]
    for _ in range(3):
        assert rr.wait(futures, count=1, timeout=0.001)[0] == []
        with pytest.raises(WaitTimeout):
            next(rr.select(futures, timeout=0.001))
        with pytest.raises(WaitTimeout):
            rr.get(futures, timeout=0.001)
    ready = rr.service(add)(1)
    assert rr.wait([*futures, ready], count=1, timeout=GENEROUS)[0] == [ready]
    assert next(rr.select([*futures, ready])) is ready
    assert not any(future._callbacks for future in futures)
    go.touch()
    assert sorted(future.get() for future in rr.select([*futures, futures[0]])) == [0, 0, 1, 2, 3]
