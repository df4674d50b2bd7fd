"""Failures that the process engine must survive, large amounts of work, and its use of shared memory."""

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from raceway.engine.base import Actor
from raceway.engine.process.engine import ProcessEngine
from raceway.errors import (
    ActorDied,
    ActorStartError,
    DeadlineExceeded,
    EngineClosed,
    ResourceError,
    SharedMemoryError,
    WaitTimeout,
)
from tests.conftest import GENEROUS, eventually
from tests.engine.actors import BadStart, Box, Faulty

MiB = 1 << 20


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with ProcessEngine() as engine:
        yield engine


def bytes_used(engine: ProcessEngine) -> int:
    return int(engine._control.bytes_used.sum())


# Killed workers and other failures.


def test_workers_killed_at_random_times(engine: ProcessEngine) -> None:
    rng = random.Random(0)
    box, bystander = engine.spawn(Faulty), engine.spawn(Box)
    array = np.arange(200_000)
    box.ready.result(GENEROUS)
    for _ in range(20):
        calls = [box.call("echo", array) for _ in range(10)]
        other = bystander.call("echo", array)
        pid = box.pid
        assert pid is not None
        time.sleep(rng.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
        outcomes = [call.exception(GENEROUS) for call in calls]
        num_returned = next((index for index, error in enumerate(outcomes) if error), len(calls))
        assert all(isinstance(error, ActorDied) for error in outcomes[num_returned:])
        assert all(np.array_equal(call.result(), array) for call in calls[:num_returned])
        np.testing.assert_array_equal(other.result(GENEROUS), array)
        assert eventually(lambda: not box.alive)
        box.restarted_at.clear()  # this test is not about the restart budget
        engine.restart(box).result(GENEROUS)
    del calls, other
    before = bytes_used(engine)
    for _ in range(20):
        box.call("echo", array).result(GENEROUS)
    assert bytes_used(engine) <= before + 4 * MiB, "blocks that dead workers had read are reused"


def test_workers_killed_while_they_start(engine: ProcessEngine) -> None:
    rng = random.Random(1)
    for _ in range(10):
        box = engine.spawn(Box)
        call = box.call("echo", np.ones(100_000))
        assert eventually(lambda box=box: box.pid is not None or not box.alive)
        time.sleep(rng.random() * 0.01)
        if box.pid is not None:
            os.kill(box.pid, signal.SIGKILL)
        error = call.exception(GENEROUS)
        assert error is None or isinstance(error, (ActorDied, ActorStartError))


def test_start_errors_quote_the_last_output(engine: ProcessEngine) -> None:
    bad = engine.spawn(BadStart, ("exit",))
    with pytest.raises(ActorStartError, match=r"(?s)exited with status 7 before it was ready.*last words"):
        bad.ready.result(GENEROUS)
    with pytest.raises(ActorStartError, match="SIGKILL"):
        engine.spawn(BadStart, ("kill",)).ready.result(GENEROUS)
    with pytest.raises(ActorStartError, match=r"not ready after 0\.5 s"):
        engine.spawn(BadStart, ("hang",), start_timeout=0.5).ready.result(GENEROUS)


def test_a_worker_stopped_in_the_middle_of_a_message_does_not_block_the_driver(engine: ProcessEngine) -> None:
    for size in (300, 20 * MiB):
        victim, bystander = engine.spawn(Faulty), engine.spawn(Box)
        victim.ready.result(GENEROUS)
        calls = [engine.send(victim, engine.message("stop_soon", (size,)), timeout=1.0) for _ in range(50)]
        assert bystander.call("echo", 1).result(GENEROUS) == 1, "the driver is not blocked"
        assert any(isinstance(call.exception(GENEROUS), DeadlineExceeded) for call in calls)


def test_the_engine_survives_the_death_of_its_launcher(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    call = box.call("sleep", 600)
    engine._processes.launcher.process.kill()
    with pytest.raises(ActorDied, match="launcher"):
        call.result(GENEROUS)
    engine.restart(box).result(GENEROUS)
    assert box.call("echo", 1).result(GENEROUS) == 1


def test_a_forked_child_of_the_driver_keeps_no_worker_alive(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        """
import os, time
from raceway.engine import make_engine
from tests.engine.actors import Box
engine = make_engine("process")
pid = engine.spawn(Box).call("pid").result()
if os.fork() == 0:
    os.close(1)
    time.sleep(20)
    os._exit(0)
print(pid, flush=True)
time.sleep(600)
"""
    )
    root = str(Path(__file__).parents[2])
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
        start_new_session=True,
    )
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert eventually(lambda: not os.path.exists(f"/proc/{worker}"))
    os.killpg(driver.pid, signal.SIGKILL)


def test_closing_the_engine_in_a_forked_child_does_not_affect_the_parent(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    child = os.fork()
    if child == 0:
        engine.close()
        os._exit(0 if engine.closed else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert box.call("echo", 1).result(GENEROUS) == 1


def test_a_large_result_can_be_stored_and_passed_on(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    call = box.call("echo", "z" * MiB)
    engine.wait([call])
    payload = call.payload()
    assert payload is not None
    with engine.lock:
        ref = engine.store(payload)
    engine.kill(box)
    assert engine.spawn(Box).call("echo", ref).result(GENEROUS) == "z" * MiB == ref.get()


class Owner:
    """An actor with its own engine and actor."""

    def __init__(self) -> None:
        self.engine = ProcessEngine()
        self.box = self.engine.spawn(Box)

    def inner_pid(self) -> int:
        return self.box.call("pid").result()


def test_an_actor_can_have_its_own_engine(engine: ProcessEngine) -> None:
    owner = engine.spawn(Owner)
    inner = owner.call("inner_pid").result(GENEROUS)
    assert os.path.exists(f"/proc/{inner}")
    engine.kill(owner)
    assert eventually(lambda: not os.path.exists(f"/proc/{inner}")), "the inner worker dies with its owner"


def test_a_restart_without_enough_shared_memory_fails() -> None:
    with ProcessEngine(shared_memory=8 * MiB) as engine:
        box = engine.spawn(Box, (np.zeros(3 * MiB, np.uint8),))
        box.ready.result(GENEROUS)
        refs = [engine.put(np.zeros(1 * MiB, np.uint8)) for _ in range(4)]
        engine.kill(box)
        while True:
            try:
                refs.append(engine.put(np.zeros(1 * MiB, np.uint8)))
            except SharedMemoryError:
                break
        with pytest.raises(ActorStartError, match="budget"):
            engine.restart(box).result(GENEROUS)
        with pytest.raises(ActorStartError):
            box.call("echo", 1).result(GENEROUS)
        with pytest.raises(SharedMemoryError):
            engine.spawn(Box, (np.zeros(3 * MiB, np.uint8),))
        refs.clear()
        engine.restart(box).result(GENEROUS)
        assert box.call("echo", 1).result(GENEROUS) == 1


def test_spawn_fails_if_the_working_directory_was_deleted(
    engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "deleted"
    directory.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(directory)
        directory.rmdir()
        with pytest.raises(FileNotFoundError):
            engine.spawn(Box)
        os.chdir(tmp_path)
    assert engine.spawn(Box).call("echo", 1).result(GENEROUS) == 1


def test_spawn_fails_at_the_limit_of_open_files(engine: ProcessEngine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, hard))
    boxes: list[Actor] = []
    try:
        with pytest.raises(ResourceError, match="open files"):
            boxes.extend(engine.spawn(Box) for _ in range(20))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    boxes.append(engine.spawn(Box))
    assert [box.call("echo", 1).result(GENEROUS) for box in boxes] == [1] * len(boxes)


# Large amounts.


def test_a_large_result(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    result = box.call("zeros", 500 * MiB).result(GENEROUS)
    assert result.nbytes == 500 * MiB
    assert not result[:: 10 * MiB].any()


def test_large_values_other_than_arrays(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    for value in (list(range(200_000)), b"x" * (20 * MiB), "y" * MiB):
        assert box.call("echo", value).result(GENEROUS) == value


def test_ten_thousand_calls_in_flight(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    calls = [box.call("echo", number) for number in range(10_000)]
    assert [call.result(GENEROUS) for call in calls] == list(range(10_000))


def test_ten_thousand_calls_to_a_stopped_worker_do_not_block(engine: ProcessEngine) -> None:
    faulty = engine.spawn(Faulty)
    faulty.ready.result(GENEROUS)
    faulty.call("stop")
    calls = [faulty.call("echo", "x" * 500) for _ in range(10_000)]
    assert faulty.pid is not None
    worker = psutil.Process(faulty.pid)
    assert eventually(lambda: worker.status() == psutil.STATUS_STOPPED), "SIGCONT must come after it has stopped"
    os.kill(faulty.pid, signal.SIGCONT)
    assert calls[-1].result(GENEROUS) == "x" * 500


def test_many_threads_can_call_at_once(engine: ProcessEngine) -> None:
    boxes = [engine.spawn(Box) for _ in range(3)]
    wrong: list[object] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(50):
            array = rng.random(int(rng.integers(1, 20_000)))
            result = boxes[int(rng.integers(3))].call("echo", array).result(GENEROUS)
            if not np.array_equal(result, array):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Shared memory.


def test_memory_is_reused(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    array = np.ones(131_072)
    for _ in range(10):
        box.call("echo", array).result(GENEROUS)
    before = bytes_used(engine)
    for _ in range(300):
        box.call("echo", array).result(GENEROUS)
    assert bytes_used(engine) <= before + 4 * MiB, "600 MB were sent and received"


def test_memory_is_not_reused_while_views_of_it_exist(engine: ProcessEngine) -> None:
    """Slices of slices, reshapes and views keep the memory they refer to."""
    box = engine.spawn(Box)
    rng = np.random.default_rng(0)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    for round in range(200):
        size = int(rng.integers(5_000, 60_000))
        result = box.call("echo", {"a": np.full(size, round), "b": np.full(size, -round)}).result(GENEROUS)
        view = result[rng.choice(["a", "b"])][10:][5:-5].reshape(-1)[::3].view()
        held.append((view, view.copy()))
        if len(held) > 20:
            del held[int(rng.integers(len(held)))]
        for view, copy in held:
            np.testing.assert_array_equal(view, copy)


def test_an_actor_can_keep_its_arguments(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    for number in range(30):
        box.call("add", np.full(20_000, number))
    for number in range(30):
        box.call("echo", np.full(20_000, -number)).result(GENEROUS)
    assert [array[0] for array in box.call("all").result(GENEROUS)] == list(range(30))


def test_results_outlive_their_worker_and_their_engine() -> None:
    with ProcessEngine() as engine:
        box = engine.spawn(Box)
        array = box.call("echo", np.arange(100_000)).result(GENEROUS)
        stored = engine.put(np.arange(100_000)).get()
        engine.kill(box)
        np.testing.assert_array_equal(array, np.arange(100_000))
        engine.restart(box)
        others = [box.call("echo", np.zeros(100_000)).result(GENEROUS) for _ in range(5)]
        np.testing.assert_array_equal(array, np.arange(100_000))
    for result in (array, stored):
        np.testing.assert_array_equal(result, np.arange(100_000))
    del array, stored, result, others


def test_a_stored_value_is_written_once(engine: ProcessEngine) -> None:
    boxes = [engine.spawn(Box) for _ in range(8)]
    for box in boxes:
        box.call("echo", 1).result(GENEROUS)
    before = bytes_used(engine)
    ref = engine.put({"parts": [np.ones(10 * MiB // 8)]})
    for box in boxes:
        assert box.call("total", ref).result(GENEROUS) == 10 * MiB // 8
    assert bytes_used(engine) - before < 11 * MiB


def test_exceeding_the_memory_budget_raises() -> None:
    with ProcessEngine(shared_memory=16 * MiB) as engine:
        box = engine.spawn(Box)
        refs = [engine.put(np.zeros(4 * MiB, np.uint8)) for _ in range(3)]
        with pytest.raises(SharedMemoryError, match=r"budget of 16,777,216.*shared_memory="):
            engine.put(np.zeros(8 * MiB, np.uint8))
        with pytest.raises(SharedMemoryError, match="budget"):
            box.call("zeros", 8 * MiB).result(GENEROUS)
        with pytest.raises(SharedMemoryError):
            box.call("echo", np.zeros(8 * MiB, np.uint8))
        assert box.call("echo", 1).result(GENEROUS) == 1, "the engine still works"
        refs.clear()
        ref = engine.put(np.zeros(8 * MiB, np.uint8))
        assert ref.get().nbytes == 8 * MiB


def test_freed_memory_can_be_reused_for_other_sizes() -> None:
    with ProcessEngine(shared_memory=32 * MiB) as engine:
        box = engine.spawn(Box)
        for size in (1, 3, 7, 2, 12, 5, 1, 12):
            for _ in range(5):
                assert box.call("echo", np.zeros(size * MiB // 2, np.uint8)).result(GENEROUS).nbytes == size * MiB // 2


@pytest.mark.parametrize("size", ["lots", 0, -1, 1.5])
def test_an_invalid_memory_budget(size: object) -> None:
    with pytest.raises(ValueError, match="shared_memory"):
        ProcessEngine(shared_memory=size)  # type: ignore[arg-type]


# Output, closing and interrupts.


def test_output_of_workers_is_forwarded(
    engine: ProcessEngine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    box = engine.spawn(Box, name="speaker")
    with caplog.at_level(logging.INFO, "raceway.worker"):
        box.call("say", "good day").result(GENEROUS)
        assert eventually(lambda: "[speaker] good day" in caplog.text)
    assert capfd.readouterr().out == ""


def test_a_closed_engine_rejects_calls(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    engine.close()
    with pytest.raises(EngineClosed):
        box.call("echo", np.zeros(100_000))


def test_a_wait_that_timed_out_can_be_repeated(engine: ProcessEngine) -> None:
    box = engine.spawn(Box)
    call = box.call("sleep", 0.3)
    for _ in range(3):
        with pytest.raises(WaitTimeout):
            call.result(0.02)
    assert call.result(GENEROUS) == "slept"


def test_close_after_an_interrupt_while_a_value_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessEngine() as engine:
        actors = [engine.spawn(Box) for _ in range(2)]
        stored = engine.put(np.zeros(100_000))
        for actor in actors:
            actor.call("echo", stored).result()

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            for actor in actors:
                patched.setattr(engine._own(actor).connection, "send", interrupt)  # type: ignore[attr-defined]
            del stored
            with pytest.raises(KeyboardInterrupt):
                engine.put(1)  # frees values that no process refers to
    assert engine.closed, "close() raised"
