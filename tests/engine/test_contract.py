"""The contract of the engines, point by point."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from raceway.engine import make_engine
from raceway.engine.base import Engine, Restarts
from raceway.errors import (
    ActorDied,
    ActorStartError,
    ConfigError,
    DeadlineExceeded,
    EngineClosed,
    RemoteError,
    ResourceError,
    RestartsExhausted,
    SerializationError,
    WaitTimeout,
)
from tests.conftest import GENEROUS, eventually
from tests.engine.actors import BadStart, Box, Faulty, Reborn
from tests.engine.conftest import ALL, LOCAL, REMOTE, engines

# Order within an actor, parallelism between actors.


def test_calls_run_in_the_order_sent(engine: Engine) -> None:
    box = engine.spawn(Box)
    lengths = [box.call("add", number) for number in range(200)]
    assert [length.result(GENEROUS) for length in lengths] == list(range(1, 201))
    assert box.call("all").result(GENEROUS) == list(range(200))


def test_calls_keep_their_order_whatever_they_carry(engine: Engine) -> None:
    box = engine.spawn(Box)
    sent = [np.full(size, place) for place, size in enumerate([1, 200_000, 3, 50_000, 2, 400_000] * 3)]
    for array in sent:
        box.call("add", array)
    received = box.call("all").result(GENEROUS)
    assert [int(array[0]) for array in received] == list(range(len(sent)))


@engines(*REMOTE)
def test_different_actors_run_at_the_same_time(engine: Engine, tmp_path: Path) -> None:
    # Each waits for a file that the other creates, so running one after the other would never end.
    def meet(mine: str, other: str) -> bool:
        import os
        import time

        open(mine, "w").close()
        until = time.monotonic() + 30
        while not os.path.exists(other) and time.monotonic() < until:
            time.sleep(0.01)
        return os.path.exists(other)

    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    actors = [engine.spawn(lambda: meet) for _ in paths]
    calls = [engine.call(actor, "__call__", *names) for actor, names in zip(actors, (paths, paths[::-1]), strict=True)]
    assert [call.result(GENEROUS) for call in calls] == [True, True]


# Waiting.


def test_wait_covers_calls_and_created_futures(engine: Engine) -> None:
    box = engine.spawn(Box)
    future = engine.create_future()
    call = box.call("echo", 1)
    done, pending = engine.wait([call, future], count=1, timeout=GENEROUS)
    assert done == [call]
    assert pending == [future]
    threading.Timer(0.05, lambda: engine.complete(future, "completed")).start()
    done, pending = engine.wait([call, future], timeout=GENEROUS)
    assert (done, pending) == ([call, future], [])
    assert future.result() == "completed"


def test_several_threads_wait_at_once(engine: Engine) -> None:
    futures = [engine.create_future() for _ in range(8)]
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda future=future: results.append(future.result(GENEROUS))) for future in futures
    ]
    for thread in threads:
        thread.start()
    for number, future in enumerate(futures):
        engine.complete(future, number)
    for thread in threads:
        thread.join(GENEROUS)
    assert sorted(results) == list(range(8))


@engines(*REMOTE)
def test_waiting_uses_no_cpu_time(engine: Engine) -> None:
    box = engine.spawn(Box)
    box.call("echo", 1).result(GENEROUS)
    begin = time.process_time()
    box.call("sleep", 2.0).result(GENEROUS)
    assert time.process_time() - begin < 1.0  # a driver that polls uses about 2 s; Ray's own threads use some


@engines(*REMOTE)
def test_a_timeout_does_not_end_the_call(engine: Engine) -> None:
    box = engine.spawn(Box)
    call = box.call("sleep", 0.5)
    with pytest.raises(WaitTimeout, match=r"is not done after 0\.05 s; the work continues"):
        call.result(0.05)
    with pytest.raises(TimeoutError):
        call.result(0.05)
    assert call.result(GENEROUS) == "slept"


@engines(*REMOTE)
def test_results_arrive_while_the_driver_computes(engine: Engine) -> None:
    box = engine.spawn(Box)
    call = box.call("echo", 1)
    assert eventually(call.done)  # without ever waiting in the engine


@engines(*REMOTE)
def test_a_callback_is_not_delayed_by_a_thread_that_waits_for_another_call(engine: Engine) -> None:
    slow, quick = engine.spawn(Box), engine.spawn(Box)
    engine.wait([slow.ready, quick.ready], timeout=GENEROUS)
    slow_was_done = []
    for _ in range(3):
        first = quick.call("echo", 1)
        second = slow.call("sleep", 1.0)
        first.add_done_callback(lambda _, second=second: slow_was_done.append(second.done()))
        assert second.result(GENEROUS) == "slept"
    assert slow_was_done == [False] * 3


def test_a_failing_callback_affects_nothing_else(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    future = engine.create_future()
    future.add_done_callback(lambda _: 1 / 0)
    notified: list[object] = []
    future.add_done_callback(notified.append)
    engine.complete(future, 1)
    calls = [box.call("echo", number) for number in range(20)]
    for call in calls:
        if not call.done():
            call.add_done_callback(lambda _: 1 / 0)
    assert [call.result(GENEROUS) for call in calls] == list(range(20))
    assert notified == [future]
    assert "callback" in caplog.text


def test_closing_ends_every_wait(engine: Engine) -> None:
    future = engine.create_future()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            future.result()
        except EngineClosed as error:
            caught.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    threading.Timer(0.2, engine.close).start()
    for thread in threads:
        thread.join(GENEROUS)
    assert len(caught) == 2


# Errors.


def test_an_exception_keeps_its_type_and_traceback(engine: Engine) -> None:
    faulty = engine.spawn(Faulty, name="faulty")
    with pytest.raises(ValueError, match="deep inside") as caught:
        faulty.call("raises_deep").result(GENEROUS)
    remote = caught.value.__cause__
    assert isinstance(remote, RemoteError)
    assert (remote.actor, remote.method, remote.kind) == ("faulty", "raises_deep", "ValueError")
    assert "in inner" in remote.traceback
    assert "_core.py" not in remote.traceback, "it shows the engine's own frames"
    assert faulty.call("echo", 1).result(GENEROUS) == 1


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("raises_unpicklable", "Unpicklable"),
        ("raises_unloadable", "Unloadable"),
        ("raises_unshowable", "Unshowable"),
        ("sys_exit", "SystemExit"),
    ],
)
def test_an_exception_that_cannot_be_sent_is_described(engine: Engine, method: str, kind: str) -> None:
    faulty = engine.spawn(Faulty)
    with pytest.raises(RemoteError) as caught:
        faulty.call(method).result(GENEROUS)
    assert caught.value.kind == kind
    assert method in caught.value.traceback
    assert faulty.call("echo", 1).result(GENEROUS) == 1, "the actor is dead"


def test_an_unpicklable_result_names_the_attribute(engine: Engine) -> None:
    faulty = engine.spawn(Faulty)
    with pytest.raises(SerializationError, match=r"\['model'\]\.lock.*lock"):
        faulty.call("returns_unpicklable").result(GENEROUS)


def test_an_unpicklable_argument_names_the_attribute(engine: Engine) -> None:
    box = engine.spawn(Box)
    with pytest.raises(SerializationError, match=r"\['inside'\]\[1\].*lock"):
        box.call("echo", {"inside": [1, threading.Lock()]})
    assert box.call("echo", 1).result(GENEROUS) == 1


def test_a_constructor_that_raises(engine: Engine) -> None:
    bad = engine.spawn(BadStart, ("raise",), name="bad")
    with pytest.raises(ActorStartError, match=r"bad could not start.*the constructor failed") as caught:
        bad.call("anything").result(GENEROUS)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ActorStartError):
        bad.ready.result(GENEROUS)


def test_an_unknown_method(engine: Engine) -> None:
    box = engine.spawn(Box)
    with pytest.raises(AttributeError, match="nothing_such"):
        box.call("nothing_such").result(GENEROUS)


# Death and deadlines.


@engines(*REMOTE)
def test_a_dead_actor_fails_its_calls_and_no_others(engine: Engine) -> None:
    victim, bystander = engine.spawn(Faulty), engine.spawn(Box)
    pid = victim.call("pid").result(GENEROUS)
    other = bystander.call("sleep", 0.3)
    outstanding = [victim.call("sleep", 60), victim.call("echo", 1)]
    os.kill(pid, signal.SIGKILL)
    for call in outstanding:
        with pytest.raises(ActorDied):
            call.result(GENEROUS)
    assert other.result(GENEROUS) == "slept"
    assert not victim.alive
    with pytest.raises(ActorDied):
        victim.call("echo", 1).result(GENEROUS)


@engines(*LOCAL)
@pytest.mark.parametrize(
    ("method", "reason"),
    [("kill", "SIGKILL"), ("segfault", "SIGSEGV"), ("os_exit", "exited with status 3")],
)
def test_the_error_says_how_an_actor_died(engine: Engine, method: str, reason: str) -> None:
    faulty = engine.spawn(Faulty, name="fragile")
    with pytest.raises(ActorDied, match=reason) as caught:
        faulty.call(method).result(GENEROUS)
    assert "fragile" in str(caught.value)


@engines(*LOCAL)
def test_the_error_of_a_crash_shows_the_python_stack(engine: Engine) -> None:
    faulty = engine.spawn(Faulty)
    with pytest.raises(ActorDied, match=r"(?s)Its last output.*in segfault"):
        faulty.call("segfault").result(GENEROUS)


@engines(*REMOTE)
@pytest.mark.parametrize("hang", [("sleep", 600), ("hold_gil", 600), ("stop",)])
def test_a_deadline_kills_an_actor_that_hangs(engine: Engine, hang: tuple) -> None:
    faulty = engine.spawn(Faulty)
    faulty.ready.result(GENEROUS)
    pid = faulty.call("pid").result(GENEROUS)
    call = engine.send(faulty, engine.message(hang[0], hang[1:]), timeout=0.5)
    with pytest.raises(DeadlineExceeded, match=r"ran for more than 0\.5 s"):
        call.result(GENEROUS)
    assert eventually(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@engines(*REMOTE)
def test_a_deadline_counts_from_the_start_of_execution(engine: Engine) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    first = box.call("sleep", 1.2)
    queued = [engine.send(box, engine.message("sleep", (0.1,)), timeout=1.0) for _ in range(3)]
    assert first.result(GENEROUS) == "slept"
    assert [call.result(GENEROUS) for call in queued] == ["slept"] * 3


@engines(*REMOTE)
def test_a_short_deadline_after_a_long_one(engine: Engine) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    assert engine.send(box, engine.message("sleep", (0.0,)), timeout=500).result(GENEROUS) == "slept"
    with pytest.raises(DeadlineExceeded):
        engine.send(box, engine.message("sleep", (600,)), timeout=0.3).result(GENEROUS)


# Restarts.


@engines(*ALL)
def test_a_restart_runs_the_constructor_again(engine: Engine, tmp_path: Path) -> None:
    actor = engine.spawn(Reborn, (str(tmp_path / "count"),))
    assert actor.call("which").result(GENEROUS) == 1
    engine.kill(actor)
    with pytest.raises(ActorDied):
        actor.call("which").result(GENEROUS)
    engine.restart(actor).result(GENEROUS)
    assert actor.incarnation == 1
    assert actor.call("which").result(GENEROUS) == 2


@engines(*REMOTE)
def test_results_of_an_earlier_incarnation_are_discarded(engine: Engine) -> None:
    box = engine.spawn(Box)
    box.ready.result(GENEROUS)
    old = box.call("sleep", 0.2)
    engine.restart(box)
    with pytest.raises(ActorDied):
        old.result(GENEROUS)
    assert box.call("add", 1).result(GENEROUS) == 1


@engines(*ALL)
def test_calls_sent_before_a_restart_wait_for_it(engine: Engine) -> None:
    box = engine.spawn(Box, restarts=Restarts(budget=9, backoff=0.3))
    for _ in range(2):
        engine.restart(box)  # the second one has to wait
    calls = [box.call("add", np.full(100_000, number)) for number in range(3)]
    assert not box.ready.done()
    assert [call.result(GENEROUS) for call in calls] == [1, 2, 3]
    engine.restart(box)
    call = box.call("echo", 1)
    engine.kill(box)
    with pytest.raises(ActorDied):
        call.result(GENEROUS)


def test_a_restart_uses_the_arguments_as_they_were_at_spawn(engine: Engine) -> None:
    arrays = np.zeros(100_000), np.zeros(10)
    box = engine.spawn(Box, arrays)
    box.ready.result(GENEROUS)
    for array in arrays:
        array[:] = 7
    engine.restart(box).result(GENEROUS)
    assert [array[0] for array in box.call("all").result(GENEROUS)] == [0, 0]


@engines(*ALL)
def test_restarts_have_a_budget(engine: Engine, tmp_path: Path) -> None:
    actor = engine.spawn(Reborn, (str(tmp_path / "count"),), restarts=Restarts(budget=2, backoff=0.01))
    for _ in range(2):
        engine.restart(actor).result(GENEROUS)
    with pytest.raises(RestartsExhausted, match="2 times within 60 s"):
        engine.restart(actor)


def test_restarts_back_off() -> None:
    now = [100.0]
    with make_engine("inline", clock=lambda: now[0]) as engine:
        box = engine.spawn(Box, restarts=Restarts(budget=9, backoff=1.0, max_backoff=3.0))
        waits = []
        for _ in range(5):
            ready = engine.restart(box)
            begin = now[0]
            while not ready.done():
                now[0] += 0.25
                engine.wait([engine.create_future()], timeout=0.0)
                engine.wait([ready], timeout=0.001)
            waits.append(now[0] - begin)
        assert waits == [0, 1, 2, 3, 3]


# Nothing is left after a killed driver. (The leak fixture checks the same after every test.)


@pytest.mark.parametrize("engine_name", LOCAL)
@pytest.mark.parametrize("busy", ["idle", "sleep", "hold_gil", "stop", "starting"])
def test_nothing_outlives_a_killed_driver(engine_name: str, busy: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        f"""
import os, sys, time
import numpy as np
from raceway.engine import make_engine
from tests.engine.actors import Faulty
engine = make_engine("process", portable={engine_name == "portable"})
actors = [engine.spawn(Faulty) for _ in range(4)]
if {busy!r} != "starting":
    pids = [actor.call("pid").result() for actor in actors]
    stored = engine.put(np.zeros(1_000_000))
    for actor in actors:
        actor.call("echo", stored).result()
        if {busy!r} != "idle":
            actor.call({busy!r}, *([600] if {busy!r} != "stop" else []))
    print(engine._processes.launcher.process.pid, *pids, flush=True)
else:
    print(engine._processes.launcher.process.pid, flush=True)
time.sleep(600)
"""
    )
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": _root()}
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    group = pids[0]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert eventually(lambda: not any(_runs(pid) for pid in pids)), "workers outlived their driver"
    assert eventually(lambda: not _group_members(group)), "processes of the launcher's group are left"


def _group_members(group: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                members.append(int(name))
    return members


def _root() -> str:
    return str(Path(__file__).parents[2])


@engines(*ALL)
def test_close_fails_outstanding_calls(engine: Engine) -> None:
    box = engine.spawn(Box)
    box.call("echo", 1).result(GENEROUS)
    future = engine.create_future()
    call = box.call("sleep", 600) if engine.name != "inline" else None
    engine.close()
    if call is not None:
        with pytest.raises(EngineClosed):
            call.result(GENEROUS)
    with pytest.raises(EngineClosed):
        engine.spawn(Box)
    with pytest.raises(EngineClosed):
        engine.put(1)
    engine.close()
    assert not future.done()


# Ctrl-C.


@pytest.mark.parametrize("engine_name", ["inline", "process", "ray"])
def test_ctrl_c_interrupts_only_the_driver(engine_name: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        f"""
import signal
import sys
from raceway.engine import make_engine
from tests.engine.actors import Box
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start background jobs with it ignored
try:
    with make_engine({engine_name!r}) as engine:
        actors = [engine.spawn(Box) for _ in range(2)]
        [actor.call("echo", 1).result() for actor in actors]
        calls = [actor.call("sleep", 600) for actor in actors] if engine.name != "inline" else [engine.create_future()]
        print("ready", flush=True)
        if engine.name == "inline":
            actors[0].call("sleep", 600)
        engine.wait(calls)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
    )
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": _root()},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    if engine_name == "inline":
        time.sleep(0.2)
    os.killpg(driver.pid, signal.SIGINT)  # what a terminal does
    out, err = driver.communicate(timeout=60)
    assert out == "interrupted\n"
    assert driver.returncode == 130
    assert "Traceback" not in err


# Compute threads.


@engines(*REMOTE)
def test_a_worker_has_one_compute_thread(engine: Engine) -> None:
    box = engine.spawn(Box)
    assert box.call("threads").result(GENEROUS * 2) == (1, 1)


@engines(*REMOTE)
def test_more_compute_threads_on_request(engine: Engine) -> None:
    box = engine.spawn(Box, threads=2)
    assert box.call("threads").result(GENEROUS * 2) == (2, 2)


# The script's own functions and modules.


@pytest.mark.parametrize("engine_name", ["inline", "process", "portable", "ray"])
def test_a_script_without_a_main_guard(engine_name: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def triple(x):\n    return 3 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from dataclasses import dataclass
from raceway.engine import make_engine

print("the script runs", flush=True)

@dataclass
class Point:
    x: int

def double(x):
    return 2 * x

class Actor:
    def work(self, point):
        from beside import triple
        return Point(double(triple(point.x)))

name = {engine_name!r}
options = {{"portable": True}} if name == "portable" else {{}}
with make_engine("process" if name == "portable" else name, **options) as engine:
    actor = engine.spawn(Actor)
    result = actor.call("work", Point(7)).result()
    assert type(result) is Point, type(result)
    print(result)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": _root()},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the script runs\nPoint(x=42)\n"


# Arguments, results and stored values.


def test_arguments_and_results_are_values(engine: Engine) -> None:
    box = engine.spawn(Box)
    mine = {"list": [1, 2], "array": np.arange(100_000)}
    box.call("add", mine)
    mine["list"].append(3)
    mine["array"][:] = -1
    box.call("add", mine)
    first, second = box.call("all").result(GENEROUS)
    assert first["list"] == [1, 2]
    assert first["array"][5] == 5
    assert second["array"][5] == -1
    first["list"].append("mine alone")
    assert box.call("all").result(GENEROUS)[0]["list"] == [1, 2]


def test_a_result_does_not_see_later_changes_of_the_actors_array(engine: Engine) -> None:
    class Writer:
        def __init__(self) -> None:
            self.buffer = np.zeros(100_000)

        def step(self, value: float) -> np.ndarray:
            self.buffer[:] = value
            return self.buffer

    writer = engine.spawn(Writer)
    results = [writer.call("step", value).result(GENEROUS) for value in (1.0, 2.0, 3.0)]
    assert [array.sum() / array.size for array in results] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_arrays_arrive_read_only(engine: Engine, size: int) -> None:
    box = engine.spawn(Box)
    array = np.arange(size)
    assert box.call("describe", array).result(GENEROUS) == ("ndarray", False, False)
    with pytest.raises(ValueError, match="read-only"):
        box.call("write_into", array).result(GENEROUS)
    back = box.call("echo", array).result(GENEROUS)
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_tensors_arrive_private(engine: Engine, size: int) -> None:
    import torch

    box = engine.spawn(Box)
    tensor = torch.arange(size, dtype=torch.float32)
    back = box.call("scale_tensor", tensor).result(GENEROUS * 2)
    assert torch.equal(back, tensor * 2)
    assert tensor[3] == 3
    back[0] = 5  # writable
    ref = engine.put(tensor)
    assert torch.equal(box.call("scale_tensor", ref).result(GENEROUS), tensor * 2)
    assert torch.equal(box.call("scale_tensor", ref).result(GENEROUS), tensor * 2), "calls share the tensor"
    assert torch.equal(ref.get(), tensor)


def test_a_stored_value_is_read_by_many_actors(engine: Engine) -> None:
    weights = {"parts": [np.ones(300_000), np.ones((10, 10))]}
    ref = engine.put(weights)
    weights["parts"][0][:] = 7
    boxes = [engine.spawn(Box) for _ in range(3)]
    assert [box.call("total", ref).result(GENEROUS) for box in boxes] == [300_100.0] * 3
    assert [box.call("read", {"ref": ref}).result(GENEROUS)["parts"][1].sum() for box in boxes] == [100.0] * 3
    assert ref.get()["parts"][0].sum() == 300_000
    assert boxes[0].call("echo", 1, second=ref).result(GENEROUS)[1]["second"]["parts"][1].sum() == 100.0


def test_a_message_can_be_sent_to_many_actors(engine: Engine) -> None:
    message = engine.message("add", (np.ones(100_000),))
    boxes = [engine.spawn(Box) for _ in range(3)]
    calls = [engine.send(box, message) for box in boxes for _ in range(5)]
    assert [call.result(GENEROUS) for call in calls] == [1, 2, 3, 4, 5] * 3
    del message
    for box in boxes:
        assert all(array.sum() == 100_000 for array in box.call("all").result(GENEROUS))


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_message_can_be_sent_repeatedly(engine: Engine, size: int) -> None:
    box, ref = engine.spawn(Box), engine.put(np.full(size, 3.0))
    add, by_ref = engine.message("add", (np.full(size, 2.0),)), engine.message("add", (ref,))
    order = [add, add, by_ref, by_ref, add, add]
    assert [engine.send(box, message).result(GENEROUS) for message in order] == [1, 2, 3, 4, 5, 6]
    assert [array[0] for array in box.call("all").result(GENEROUS)] == [2.0, 2.0, 3.0, 3.0, 2.0, 2.0]
    engine.send(box, add).result(GENEROUS)
    engine.restart(box).result(GENEROUS)
    assert [engine.send(box, add).result(GENEROUS) for _ in range(2)] == [1, 2]


def test_values_without_references_are_freed(engine: Engine) -> None:
    box = engine.spawn(Box)
    ref = engine.put(np.ones(100_000))
    box.call("keep_ref", {"ref": ref}).result(GENEROUS)
    id = ref.id
    del ref
    engine.put(0)  # frees values without references
    assert id in engine._stored, "the actor still holds it"
    box.call("drop").result(GENEROUS)
    for _ in range(3):  # the release may travel with the next reply
        box.call("echo", 0).result(GENEROUS)
    assert eventually(lambda: (engine.put(0), id not in engine._stored)[1])


@engines(*REMOTE)
def test_references_of_dead_actors_do_not_count(engine: Engine) -> None:
    box = engine.spawn(Box)
    ref = engine.put(np.ones(100_000))
    box.call("keep_ref", {"ref": ref}).result(GENEROUS)
    id = ref.id
    del ref
    engine.kill(box)
    engine.put(0)
    assert id not in engine._stored


# Resources and names.


@engines(*REMOTE)
def test_more_actors_than_cores(engine: Engine) -> None:
    numbers = range(int(engine.capacity) + 3)
    calls = [engine.spawn(Box).call("echo", number) for number in numbers]
    assert [call.result(4 * GENEROUS) for call in calls] == list(numbers)


def test_fractions_of_cores(engine: Engine) -> None:
    box = engine.spawn(Box, resources={"cpus": 0.5})
    assert box.call("echo", 1).result(GENEROUS) == 1


@engines(*REMOTE)
def test_unavailable_resources(engine: Engine) -> None:
    with pytest.raises(ResourceError, match="gpus"):
        engine.spawn(Box, resources={"gpus": 64})
    with pytest.raises(ResourceError, match="unobtainium"):
        engine.spawn(Box, resources={"unobtainium": 1})


@pytest.mark.parametrize("bad", [{"cpus": -1}, {"cpus": "two"}, {"gpus": float("nan")}])
def test_invalid_resources(engine: Engine, bad: dict) -> None:
    with pytest.raises(ConfigError, match="resources"):
        engine.spawn(Box, resources=bad)


def test_unknown_engine_and_option_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'process'"):
        make_engine("proces")
    monkeypatch.setenv("RACEWAY_ENGINE", "rey")
    with pytest.raises(ConfigError, match=r"Did you mean 'ray'.*RACEWAY_ENGINE"):
        make_engine()
    with pytest.raises(ConfigError, match="shared_memry"):
        make_engine("process", shared_memry=1)


def test_an_actor_of_another_engine_is_rejected(engine: Engine) -> None:
    with make_engine("inline") as other, pytest.raises(ConfigError, match="not an actor of this engine"):
        engine.call(other.spawn(Box), "echo", 1)
