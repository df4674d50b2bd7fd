"""Edge cases: closed runs, unusual operators, several engines and threads, restarts at awkward moments."""

import collections
import itertools
import operator
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.errors import ConfigError, EngineClosed, FlowError, OperatorError, ShardFailed, WaitTimeout
from raceway.flow import Event, Iter, ParIter, RateLimit, create, send_msg, union, union_async
from tests.conftest import GENEROUS
from tests.flow.actors import Counter, num_guests


@pytest.fixture
def actor() -> Iterator[Actor]:
    with make_engine("inline") as engine:
        yield engine.spawn(Counter)


def test_two_runs_over_two_engines_in_opposite_order() -> None:
    with make_engine("process") as first, make_engine("process") as second:
        a, b = [first.spawn(Counter) for _ in range(2)], [second.spawn(Counter) for _ in range(2)]
        counts: list[int] = []

        def drive(x: list[Actor], y: list[Actor]) -> None:
            streams = (create(actors, "make").gather_async(num_async=4) for actors in (x, y))
            counts.append(sum(1 for _ in union_async(*streams).take(4000)))

        threads = [threading.Thread(target=drive, args=pair, daemon=True) for pair in ((a, b), (b, a))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GENEROUS)
    assert counts == [4000, 4000]


def test_different_engines_in_one_flow() -> None:
    with make_engine("inline") as inline, make_engine("process") as process:
        left, right = ParIter.from_range(50, [inline.spawn(Counter)]), ParIter.from_range(50, [process.spawn(Counter)])
        flow = union_async(left.gather_async(), right.gather_async(num_async=3).for_each(lambda x: -x, on="thread"))
        assert sorted(flow) == sorted([*range(50), *range(0, -50, -1)])


def test_state_while_an_actor_is_dead(actor: Actor) -> None:
    other = actor.engine.spawn(Counter)
    flow = ParIter.from_range(8, [actor, other]).on_failure("restart").gather_sync()
    run = iter(flow)
    assert next(run) == [0, 1]
    actor.engine.kill(actor)
    state = run.state()
    assert list(run) == list(flow.restore(state)) == [[2, 3], [4, 5], [6, 7]]


def test_an_actor_that_dies_right_after_a_restore(actor: Actor) -> None:
    flow = ParIter.from_range(6, [actor]).batch(2).on_failure("restart").gather_async()
    run = iter(flow)
    assert next(run) == [0, 1]
    restored = flow.restore(run.state())
    actor.engine.kill(actor)
    assert list(restored) == [[2, 3], [4, 5]]


def test_take_counts_items_across_restarts(actor: Actor) -> None:
    run = iter(create([actor], "make").take(3).on_failure("restart").gather_async())
    before = [next(run), next(run)]
    actor.engine.kill(actor)
    assert len([*before, *run]) == 3


def test_a_closed_run_has_no_state() -> None:
    run = iter(Iter.from_range(5))
    next(run)
    run.close()
    with pytest.raises(FlowError, match="run is closed"):
        run.state()


def test_state_after_a_branch_has_ended(actor: Actor) -> None:
    slow = Iter.from_range(5).for_each(lambda x: time.sleep(0.05) or x, on="thread", queue=4).take(1)
    flow = union(slow, create([actor], "make").gather_async().take(1), Iter.from_range(9))
    run = iter(flow)
    before = [next(run) for _ in range(4)]
    actor.engine.kill(actor)
    state = run.state()
    assert before == [0, (0, 1), 0, 1]
    assert list(run) == [2, 3, 4, 5, 6, 7, 8]
    actor.engine.restart(actor)
    assert list(flow.restore(state)) == [2, 3, 4, 5, 6, 7, 8]


def test_restored_deques_keep_their_maxlen() -> None:
    class Window:
        def __init__(self) -> None:
            self.last: collections.deque[int] = collections.deque(maxlen=3)

        def __call__(self, value: int) -> list[int]:
            self.last.append(value)
            return list(self.last)

    flow = Iter.from_range(10).for_each(Window())
    run = iter(flow)
    assert [next(run) for _ in range(4)][-1] == [1, 2, 3]
    assert next(flow.restore(run.state())) == [2, 3, 4]


def test_all_kinds_of_callables_have_a_state() -> None:
    class Slotted:
        __slots__ = ()

        def __call__(self, value: Any) -> Any:
            return value

    class Learner:
        def __init__(self) -> None:
            self.count = 0

        def update(self, value: Any) -> int:
            self.count += 1
            return self.count

    def plan() -> Iter[int]:
        return (
            Iter.from_items([(n,) for n in range(6)])
            .for_each(operator.itemgetter(0))
            .for_each(Slotted())
            .for_each(Learner().update)
        )

    run = iter(plan())
    assert [next(run), next(run)] == [1, 2]
    assert list(plan().restore(run.state())) == [3, 4, 5, 6]


def test_everything_is_closed_even_if_one_stage_fails_to_close(actor: Actor) -> None:
    def fails_to_close() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise ValueError("in finally")

    run = iter(union(Iter.from_items(fails_to_close), create([actor], "make").gather_async()))
    assert [next(run), next(run)] == [1, (0, 1)]
    with pytest.raises(ValueError, match="in finally"):
        run.close()
    assert num_guests(actor) == 0
    failing = union(Iter.from_items(fails_to_close), create([actor], "make").gather_async().for_each(lambda x: 1 // 0))
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        list(failing)
    assert num_guests(actor) == 0


def test_a_thread_can_send_to_a_busy_inline_actor() -> None:
    with make_engine("inline") as engine:
        actor = engine.spawn(Counter, (1,))

        def learn(value: Any) -> Any:
            assert send_msg(actor, "set_weights", 3).result(GENEROUS) == 3
            return value

        flow = create([actor], "make_slowly").gather_async(num_async=2).for_each(learn, on="thread", queue=4)
        assert len(list(flow.take(300))) == 300


def test_rate_limits_and_small_weights() -> None:
    limit = RateLimit(branch="a", per="b", ratio=1)
    flow = union(a=Iter.from_range(5), b=Iter.from_range(5), weights={"b": 0.1}, limits=[limit])
    assert sorted(flow) == sorted([*range(5)] * 2)
    assert len(list(union(Iter.from_range(2), Iter.from_range(2), weights=[1, 1e-12]))) == 4
    assert len(list(union(Iter.from_range(2), Iter.from_range(2), weights=[1e-300, 1e-300]))) == 4


def test_a_union_ends_with_the_branches_it_emits() -> None:
    assert list(union(a=Iter.from_items(itertools.count), b=Iter.from_range(2), emit=["b"])) == [0, 1]


def test_stop_iteration_in_sources_and_size_functions() -> None:
    def raise_stop_iteration(*_: Any) -> Any:
        return next(iter(()))

    with pytest.raises(OperatorError, match="StopIteration"):
        list(Iter.from_items(lambda: [raise_stop_iteration()]))
    limit = RateLimit(branch="0", per="1", ratio=1, slack=9, size=raise_stop_iteration)
    with pytest.raises(FlowError, match="size function"):
        list(union(Iter.from_range(2), Iter.from_range(2), limits=[limit]))


def test_a_subscriber_that_fails_is_unsubscribed() -> None:
    events: list[Event] = []

    def fails(event: Event) -> None:
        events.append(event)
        if event.kind != "start":
            raise StopIteration

    run = Iter.from_range(5).start()
    run.subscribe(fails)
    assert list(run) == [0, 1, 2, 3, 4]
    assert len(events) == 2


def test_an_error_in_on_restart_names_the_shard(actor: Actor) -> None:
    def hook(_: Actor) -> None:
        raise KeyError("weights")

    run = iter(create([actor], "make").on_failure("restart", on_restart=hook).gather_async())
    next(run)
    actor.engine.kill(actor)
    with pytest.raises(ShardFailed, match=r"on_restart raised for shard 0 of create.*KeyError: 'weights'"):
        next(run)


def test_an_engine_closed_during_a_run() -> None:
    engine = make_engine("process")
    run = iter(
        union(create([engine.spawn(Counter)], "make").gather_async(), Iter.from_range(9).for_each(abs, on="thread"))
    )
    next(run), next(run)
    engine.close()
    with pytest.raises((EngineClosed, ShardFailed)):
        list(run)
    assert list(run) == []


def test_closing_from_another_thread_ends_a_wait() -> None:
    with make_engine("process") as engine:
        run = iter(ParIter.from_items([3600.0], [engine.spawn(Counter)]).for_each(time.sleep).gather_async())
        done: list[Any] = []
        reader = threading.Thread(target=lambda: done.append(list(run)))
        reader.start()
        time.sleep(0.05)  # the reader probably waits by now; if not, it must end too
        run.close()
        reader.join(GENEROUS)
        assert done == [[]]


def test_a_run_can_be_closed_by_its_own_operator() -> None:
    runs: list[Any] = []
    runs.append(iter(Iter.from_range(5).for_each(lambda x: runs[0].close() if x == 2 else x, on="thread", queue=1)))
    assert list(runs[0])[:2] == [0, 1]


class Blocks:
    """An operator whose first call waits for an event."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, value: int) -> list[int]:
        self.calls.append(value)
        if len(EVENTS) and not EVENTS[0].is_set():
            EVENTS[1].set()
            assert EVENTS[0].wait(GENEROUS)
            self.calls.append(-1)
        return list(self.calls)


EVENTS: list[threading.Event] = []
"""An event to end the call, and one that is set when the call has started."""


@pytest.fixture
def blocked() -> Iterator[tuple[threading.Event, threading.Event]]:
    EVENTS[:] = threading.Event(), threading.Event()
    yield EVENTS[0], EVENTS[1]
    EVENTS[0].set()
    EVENTS.clear()


Events = tuple[threading.Event, threading.Event]


@pytest.mark.parametrize("leave", ["close", "exception", "garbage collection"])
def test_leaving_a_flow_does_not_wait_for_a_call_on_a_thread(blocked: Events, leave: str) -> None:
    go_on, started = blocked
    operator = Blocks()
    flow = union_async(Iter.from_range(9).for_each(operator, on="thread"), Iter.from_items("ab"))
    run = iter(flow)
    assert next(run) == "a"
    assert started.wait(GENEROUS)
    if leave == "exception":
        with pytest.raises(ZeroDivisionError), run:
            1 // 0  # noqa: B018
    elif leave == "close":
        run.close()
    else:
        del run
    assert operator.calls == [0]  # it still runs
    again = iter(flow)
    assert next(again) == "a"
    assert operator.calls == [0]  # the next run calls the operator after that, and with a state of its own
    go_on.set()
    assert [item for item in again if item != "b"] == [[*range(number + 1)] for number in range(9)]


def test_the_next_run_waits_for_a_function_that_a_closed_run_left_running(blocked: Events) -> None:
    go_on, started = blocked
    calls: list[Any] = []

    def work(value: int) -> int:
        calls.append(value)
        if not go_on.is_set():
            started.set()
            assert go_on.wait(GENEROUS)
        calls.append("end")
        return value

    flow = Iter.from_range(2).for_each(work, on="thread", queue=1)
    with flow.start() as run:
        with pytest.raises(WaitTimeout):
            run.next(timeout=0)
        assert started.wait(GENEROUS)
    again = iter(flow)
    with pytest.raises(WaitTimeout):
        again.next(timeout=0.01)
    assert calls == [0]
    go_on.set()
    assert list(again) == [0, 1]
    assert calls == [0, "end", 0, "end", 1, "end"]


def test_a_run_can_wait_for_calls_on_threads_when_it_is_closed(blocked: Events) -> None:
    go_on, started = blocked
    operator = Blocks()
    blocks = Iter.from_range(9).for_each(operator, on="thread", queue=1)
    with union_async(blocks, Iter.from_items("ab")).start(wait=True) as run:
        assert next(run) == "a"
        assert started.wait(GENEROUS)
        threading.Timer(0.05, go_on.set).start()
    assert operator.calls == [0, -1]


def run_program(*lines: str) -> tuple[str, str, int]:
    """Run a program in which `work`, on a thread, is in a call when the program exits."""
    program = """
import threading
from raceway.flow import Iter, _hosted_objects, union_async
started = threading.Event()
def work(value):
    started.set()
    wait()
    print("done")
run = iter(union_async(Iter.from_range(9).for_each(work, on="thread"), Iter.from_items("ab")))
print(next(run))
started.wait()
"""
    command = [sys.executable, "-c", "\n".join([*lines[:-1], program, lines[-1]])]
    done = subprocess.run(command, capture_output=True, timeout=GENEROUS, text=True)
    return done.stdout, done.stderr, done.returncode


def test_the_interpreter_exits_while_a_call_runs_on_a_thread() -> None:
    exits = "run.close(); _hosted_objects.EXIT_SECONDS = 0.1"
    assert run_program("wait = lambda: threading.Event().wait()", exits) == ("a\n", "", 0)


@pytest.mark.parametrize("leave", ["run.close()", "pass"])
def test_the_interpreter_lets_a_call_on_a_thread_end_before_it_exits(leave: str) -> None:
    imports = "import atexit, time; exiting = threading.Event()"
    leave = f"{leave}; atexit.register(exiting.set); _hosted_objects.EXIT_SECONDS = {GENEROUS}"
    wait = "wait = lambda: exiting.wait() and time.sleep(0.05)"  # the interpreter exits meanwhile
    assert run_program("import threading", imports, wait, leave) == ("a\ndone\n", "", 0)


def test_actors_with_the_same_name_cannot_be_restored() -> None:
    with make_engine("inline") as first, make_engine("inline") as second:
        actors = [first.spawn(Counter, name="same"), second.spawn(Counter, name="same")]
        flow = create(actors, "make").gather_sync()
        run = iter(flow)
        assert next(run) == [(0, 1), (0, 1)]
        with pytest.raises(ConfigError, match="two actors of the flow have the same name"):
            flow.restore(run.state())


def test_a_take_that_has_ended_does_not_fill_a_split() -> None:
    left, right = Iter.from_range(50).split("left", "right", buffer=4)
    limit = RateLimit(branch="left", per="right", ratio=0.01, slack=1)
    assert len(list(union(left=left.take(1), right=right, limits=[limit]))) == 51


def test_versions_are_part_of_the_state() -> None:
    with make_engine("inline") as engine:
        actor = engine.spawn(Counter)
        flow = create([actor], "make").gather_sync()
        send_msg(actor, "set_weights", 1, version=3)
        run = iter(flow)
        next(run)
        fresh = engine.spawn(Counter, name=actor.name + "x")
        restored = create([fresh], "make").gather_sync().restore(run.state())
        next(restored)
        assert restored.envelope is not None
        assert restored.envelope.version == 3
