"""Errors name the operator, the shard, the item and the line, followed by the user's own traceback."""

import inspect
import io
import pdb
import threading
import traceback
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError, FlowError, OperatorError
from raceway.flow import Iter, ParIter, RateLimit, create, injected, union, union_async


def helper(value: int) -> float:
    return 1 / (value - 3)


def divide(value: int) -> float:
    return helper(value)


def line_of(text: str) -> int:
    lines = inspect.getsourcelines(inspect.getmodule(line_of))[0]
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_an_error_on_a_shard(actors: list[Actor]) -> None:
    flow = ParIter.from_range(8, actors).for_each(divide).gather_sync()  # here
    with pytest.raises(OperatorError) as info:
        list(flow)
    error = info.value
    where = f"{__file__}:{line_of('.gather_sync()  # here')}"
    assert (error.operator, error.where, error.shard, error.item) == ("for_each(divide)", where, 1, "3")
    assert isinstance(error.original, ZeroDivisionError)
    assert error.__cause__ is error.original
    head, _, trace = str(error).partition("\n\n")
    assert head == f"for_each(divide) failed on shard 1, item 1: 3\n  added at {where}"
    assert trace.startswith("Traceback (most recent call last):\n")
    assert [line.split("in ")[1] for line in trace.splitlines() if line.startswith("  File ")] == ["divide", "helper"]
    assert trace.endswith("ZeroDivisionError: division by zero\n")
    text = "".join(traceback.format_exception(error))
    assert text.count("in helper") == 1
    assert "/engine/" not in text[text.index("ZeroDivisionError: division by zero\n\nThe above") :].partition(head)[2]


@pytest.mark.parametrize("on", ["driver", "thread"])
def test_an_error_in_the_driver(on: str) -> None:
    with pytest.raises(OperatorError) as info:
        list(Iter.from_range(8).for_each(divide, on=on))
    assert str(info.value).startswith("for_each(divide")
    assert "failed in the driver, item 3: 3\n  added at " in str(info.value)
    assert str(info.value).count("in helper") == 1
    assert info.value.frames is not None
    assert info.value.frames.tb_frame.f_code.co_name == "divide"


def test_an_error_on_a_dedicated_actor(engine: Engine) -> None:
    learner = engine.spawn(dict, name="learner")
    with pytest.raises(OperatorError, match=r"for_each\(divide, on=learner, queue=2\) failed") as info:
        list(Iter.from_range(8).for_each(divide, on=learner))
    assert "in helper" in str(info.value)


@pytest.mark.parametrize("kind", ["filter", "flat_map", "combine"])
def test_every_operator_names_itself(actors: list[Actor], kind: str) -> None:
    for stream in (Iter.from_range(8), ParIter.from_range(8, actors)):
        flow = getattr(stream, kind)(lambda x: [1 // (x - 2)])
        with pytest.raises(OperatorError) as info:
            list(flow.gather_async() if isinstance(flow, ParIter) else flow)
        assert info.value.operator == f"{kind}(<lambda>)"
        assert info.value.item == "2"


def test_a_source_that_raises(actors: list[Actor]) -> None:
    def broken() -> Any:
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OperatorError, match=r"from_items\(broken\) failed in the driver\n.*(\n.*)+disk gone"):
        list(Iter.from_items(broken))
    with pytest.raises(OperatorError, match=r"from_iterators\(2, shards=2\) failed on shard 0\n.*(\n.*)+disk gone"):
        list(ParIter.from_iterators([broken, [1]], actors).gather_sync())
    with pytest.raises(OperatorError, match=r"create\(no_such_method, shards=2\)(.*\n)+.*no_such_method"):
        list(create(actors, "no_such_method").gather_sync())
    with pytest.raises(OperatorError, match="not iterable"):
        list(create(actors).gather_sync())


def test_stop_iteration_is_an_error_not_an_end(actors: list[Actor]) -> None:
    flows: list[Iter[Any]] = [
        create(actors, "stop_iteration").gather_async(),
        ParIter.from_range(3, actors).for_each(lambda _: next(iter(()))).gather_sync(),
        Iter.from_range(3).for_each(lambda _: next(iter(()))),
        Iter.from_range(3).filter(lambda _: next(iter(()))),
        Iter.from_range(3).for_each(lambda _: next(iter(())), on="thread"),
    ]
    for flow in flows:
        with pytest.raises(OperatorError, match="StopIteration does not end a stream"):
            list(flow)


def test_an_error_that_cannot_be_pickled_is_reported(actors: list[Actor]) -> None:
    class Unpicklable(Exception):
        def __init__(self, lock: Any) -> None:
            super().__init__("has a lock")
            self.lock = lock

    def fail(value: int) -> None:
        raise Unpicklable(threading.Lock())

    with pytest.raises(OperatorError, match="Unpicklable: has a lock"):
        list(ParIter.from_range(3, actors).for_each(fail).gather_sync())


def test_an_item_whose_repr_fails_or_is_long() -> None:
    class BadRepr:
        def __repr__(self) -> str:
            raise ValueError

    with pytest.raises(OperatorError, match="BadRepr whose repr fails"):
        list(Iter.from_items([BadRepr()]).for_each(lambda x: 1 // 0))
    with pytest.raises(OperatorError) as info:
        list(Iter.from_items([list(range(10**5))]).for_each(lambda x: 1 // 0))
    assert len(info.value.item) <= 200


def test_an_operator_that_cannot_be_sent_is_named(actors: list[Actor]) -> None:
    lock = threading.Lock()
    flow = ParIter.from_range(3, actors).for_each(abs).for_each(lambda x: lock and x).gather_sync()
    with pytest.raises(FlowError, match=r"for_each\(<lambda>\) \(added at .*test_errors.py:\d+\) cannot be sent.*lock"):
        list(flow)


def test_a_run_that_failed_is_closed(actors: list[Actor]) -> None:
    run = iter(ParIter.from_range(8, actors).for_each(divide).gather_sync())
    with pytest.raises(OperatorError):
        list(run)
    assert list(run) == []


def test_a_par_iter_must_be_gathered(actors: list[Actor]) -> None:
    stream = ParIter.from_range(3, actors)
    with pytest.raises(ConfigError, match=r"one stream per shard.*gather_sync\(\) or gather_async\(\): from_range"):
        list(stream)
    with pytest.raises(ConfigError, match=r"takes sequential streams \(gather a ParIter first\)"):
        union(stream)  # type: ignore[arg-type]


def test_branches_and_weights_are_checked() -> None:
    streams = {"store": Iter.from_range(3), "replay": Iter.from_range(3)}
    with pytest.raises(ConfigError, match=r"unknown branch of union 'stor'. Did you mean 'store'"):
        union(**streams, weights={"stor": 2})
    with pytest.raises(ConfigError, match="unknown branch of union_async 'reply'"):
        union_async(**streams, limits=[RateLimit(branch="reply", per="store", ratio=1)])
    with pytest.raises(ConfigError, match="unknown branch of union 'x'"):
        union(**streams, emit=["x"])
    for weight in ("2", 0, -1, float("nan"), float("inf"), True, None):
        with pytest.raises(ConfigError, match=r"weight of branch 'store' must be a number above 0,( or .*,)? not"):
            union(**streams, weights={"store": weight})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="has 2 branches but 3 weights"):
        union(*streams.values(), weights=[1, 2, 3])
    with pytest.raises(ConfigError, match="takes sequential streams"):
        union()
    with pytest.raises(ConfigError, match="distinct names"):
        Iter.from_range(3).split("a", "a")


def test_counts_are_checked(actors: list[Actor]) -> None:
    numbers, stream = Iter.from_range(3), ParIter.from_range(3, actors)
    for bad in (0, -1, 1.5, "2", True):
        for make in (numbers.batch, numbers.queue, stream.gather_async, stream.shuffle):
            with pytest.raises(ConfigError, match=rf"must be a whole number from 1, not {bad!r}"):
                make(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no shard 2: the shards are numbered from 0 to 1"):
        stream.select_shards(2)
    with pytest.raises(ConfigError, match="shard 1 is selected twice"):
        stream.select_shards(0, 1, 1)
    with pytest.raises(ConfigError, match="list of actors"):
        create([])
    with pytest.raises(ConfigError, match="list of actors"):
        create(["a"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"cannot be sent to an actor\. Pass a function"):
        ParIter.from_iterators([iter(())], actors)
    with pytest.raises(ConfigError, match=r"unknown place for an operator 'tread'. Did you mean 'thread'"):
        numbers.for_each(abs, on="tread")
    with pytest.raises(ConfigError, match="callable, not 3"):
        numbers.for_each(3)  # type: ignore[arg-type]


def test_operators_can_only_request_what_is_offered(actors: list[Actor]) -> None:
    def wants_actor(value: int, *, actor: Any = injected) -> int:
        return value

    def wants_worker(value: int, *, worker: Any = injected) -> int:
        return value

    assert ParIter.from_range(3, actors).for_each(wants_actor)
    with pytest.raises(
        ConfigError, match=r"wants_actor asks for 'actor', but in the driver only these are available: envelope"
    ):
        Iter.from_range(3).for_each(wants_actor)
    with pytest.raises(ConfigError, match=r"wants_worker asks for 'worker', but on a shard .* actor, envelope, shard"):
        ParIter.from_range(3, actors).for_each(wants_worker)


STACKS: list[list[str]] = []


def record_stack(value: int) -> int:
    STACKS.append([frame.function for frame in inspect.stack()])
    return value


def test_an_operator_is_few_frames_below_its_caller() -> None:
    this_test = "test_an_operator_is_few_frames_below_its_caller"
    next(iter(Iter.from_range(3).for_each(record_stack)))
    assert STACKS[-1].index(this_test) <= 6
    with make_engine("inline") as engine:
        next(iter(ParIter.from_range(3, [engine.spawn(dict)]).for_each(record_stack).gather_sync()))
    assert STACKS[-1].index(this_test) <= 15, STACKS[-1]


def test_pdb_stops_in_the_users_function() -> None:
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("w\nc\n"), stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False

    def operator(value: int) -> int:
        debugger.set_trace()
        return value + 1

    assert next(Iter.from_range(3).for_each(operator)) == 1
    debugger.set_quit()
    assert "return value + 1" in out.getvalue()
