"""Waiting for the results of calls: order, failures, timeouts, cancelling and deadlines."""

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
