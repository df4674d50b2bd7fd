"""The session of a Runner: its name, its call history, and references to results and by text."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raceway.engine.base import Engine
from raceway.errors import ConfigError, EngineClosed, ForeignReference, ObjectFreed, WaitTimeout
from raceway.runner import ObjectRef, Runner, _runner
from tests.conftest import GENEROUS, eventually
from tests.runner import services
from tests.runner.conftest import ENGINES, REMOTE, engines, forget_dropped
from tests.runner.services import add, concatenate


@pytest.fixture(params=ENGINES)
def rr(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A Runner with a named session and a history, on each engine."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with Runner("tested", engine=request.param, workers=2, session="nightly", history=3) as runner:
        yield runner


# Sessions.


def test_a_runner_joins_an_open_session(rr: Runner) -> None:
    ref = rr.put_object([1])
    with Runner("tested", session="nightly") as joined:
        assert joined.session == rr.session == "nightly"
        assert joined.get_object(ref) == [1]
    assert rr.get_object(ref) == [1], "closing it leaves the session open"


def test_a_worker_joins_its_own_session(rr: Runner) -> None:
    def in_worker(box: list[ObjectRef]) -> list[int]:
        with Runner("any", session="nightly") as joined:
            return [*joined.get_object(box[0]), joined.get(joined.put_object(2))]

    assert rr.service(in_worker)([rr.put_object([1])]).get(GENEROUS) == [1, 2]


def test_an_open_session_can_be_an_error(rr: Runner) -> None:
    with pytest.raises(ConfigError, match="session 'nightly' is open already"):
        Runner("other", session="nightly", fail_if_exists=True)
    with pytest.raises(ConfigError, match="Runner 'tested' is open already, as 'nightly'"):
        Runner("tested", fail_if_exists=True)
    with pytest.raises(ConfigError, match="cannot be set again"):
        Runner("tested", engine="inline", session="nightly")
    rr.close()
    with Runner("tested", engine="inline", session="nightly", fail_if_exists=True) as again:
        assert again.session == "nightly"


def test_sessions_have_names_of_their_own() -> None:
    with Runner("twin", engine="inline") as a, Runner("twin", engine="inline") as b:
        assert a.session != b.session
        assert a.session.startswith("twin-")
    with pytest.raises(ConfigError, match="session must be a string"):
        Runner("bad", session="")


def test_runners_open_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start, both_start = _runner.make_engine, threading.Barrier(2, timeout=GENEROUS)

    def make_engine(name: str) -> Engine:
        both_start.wait()
        return start(name)

    def open_runner(_: int) -> str:
        with Runner("twin", engine="inline") as rr:
            return rr.session

    monkeypatch.setattr(_runner, "make_engine", make_engine)
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(open_runner, range(2)))) == 2


# The history of calls.


def test_the_history_has_the_latest_calls(rr: Runner) -> None:
    service, bad = rr.service(add), rr.service(services.fail)
    rr.get([service(n) for n in range(4)])
    with pytest.raises(LookupError):
        bad("boom").get(GENEROUS)
    records = rr.history()
    assert [(call.number, call.service, call.method, call.state) for call in records] == [
        (3, "add", "__call__", "done"),
        (4, "add", "__call__", "done"),
        (5, "fail", "__call__", "failed"),
    ]
    assert [call.error for call in records] == [None, None, "LookupError: boom"]
    assert records[2].worker is not None
    assert records[2].worker.startswith("tested/fail-")
    assert all(call.seconds is not None and call.seconds >= 0 for call in records)
    assert records[0].submitted_at <= records[2].submitted_at
    assert rr.get(rr.service(lambda: [call.number for call in rr.history()])()) == [4, 5, 6]


@engines(*REMOTE)
def test_the_history_shows_what_runs(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    service = rr.service(services.wait_for_file, workers=1, warmup=1)
    futures = [service(str(go)) for _ in range(2)]
    assert [(call.state, call.seconds) for call in rr.history()] == [("running", None), ("queued", None)]
    go.touch()
    rr.get(futures, timeout=GENEROUS)
    assert [call.state for call in rr.history()] == ["done", "done"]


def test_a_runner_without_a_history() -> None:
    with Runner("plain", engine="inline") as rr, pytest.raises(ConfigError, match="history=1000"):
        rr.history()
    with pytest.raises(ConfigError, match="history must be a whole number from 0"):
        Runner("bad", engine="inline", history=-1)


# References to results.


def test_a_reference_to_a_result(rr: Runner) -> None:
    service = rr.service(add)
    future = service([1], [2])
    ref = future.ref(GENEROUS)
    assert rr.get_object(ref) == [1, 2] == rr.get(future)
    assert future.ref() is ref
    assert rr.get(service(ref, [3])) == [1, 2, 3]
    rr.patch_object(ref, 4)
    assert rr.get_object(ref, concatenate) == [1, 2, 4]
    assert rr.get(future) == [1, 2], "the future keeps its result"
    assert [rr.get_object(ref) for ref in rr.ref([service(n) for n in range(2)])] == [1, 2]
    with pytest.raises(LookupError, match="boom"):
        rr.ref(rr.service(services.fail)())


def test_a_worker_gets_a_reference_to_a_result(rr: Runner) -> None:
    inner = rr.service(add)
    ref = rr.service(lambda: [inner(1).ref()])().get(GENEROUS)[0]
    assert rr.get_object(ref) == 2


@engines(*REMOTE)
def test_a_reference_to_a_result_waits_for_it(rr: Runner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    future = rr.service(services.wait_for_file)(str(go), "done")
    for wait in (future.ref, lambda timeout: rr.ref([future], timeout)):
        with pytest.raises(WaitTimeout, match=r"after 0\.001 s"):
            wait(0.001)
    with pytest.raises(WaitTimeout, match=r"after 0\.001 s"):
        rr.get(rr.service(lambda box: box[0].ref(0.001))([future]))
    waiting = rr.service(lambda box: [box[0].ref()])([future])
    assert eventually(lambda: rr._backend.blocked_workers.waits)
    go.touch()
    assert rr.get_object(waiting.get(GENEROUS)[0]) == "done"


# References by text.


def test_a_reference_is_rebuilt_from_its_text(rr: Runner) -> None:
    ref = rr.put_object([1])
    text = str(ref)
    assert ObjectRef.from_text(text) == ref
    rr.patch_object(ObjectRef.from_text(text), 2)
    assert rr.get_object(ref, concatenate) == [1, 2]

    def in_worker(text: str) -> list[ObjectRef]:
        rr.update_object(ObjectRef.from_text(text), [3])
        return [ObjectRef.from_text(text)]

    assert rr.service(in_worker)(text).get(GENEROUS) == [ref]
    assert rr.get_object(ref) == [3]


def test_the_text_of_an_object_that_is_gone(rr: Runner) -> None:
    text = str(rr.put_object(1))
    kept = rr.put_object(2)
    forget_dropped(rr)
    with pytest.raises(ObjectFreed, match="has been freed"):
        ObjectRef.from_text(text)
    with pytest.raises(ObjectFreed, match="has been freed"):
        rr.service(lambda: ObjectRef.from_text(text))().get(GENEROUS)
    rr.close()
    with pytest.raises(EngineClosed, match="is closed"):
        ObjectRef.from_text(str(kept))


@pytest.mark.parametrize("text", ["", "weights", "raceway-object:7", "raceway-object:process-1-ab:x", b"bytes", None])
def test_texts_that_name_no_object(text: str) -> None:
    with pytest.raises(ConfigError, match="expected the text of an ObjectRef"):
        ObjectRef.from_text(text)


def test_the_text_of_another_program() -> None:
    with pytest.raises(ForeignReference, match="not a part of"):
        ObjectRef.from_text(f"raceway-object:process-{os.getpid() + 1}-0a1b2c3d:7")
