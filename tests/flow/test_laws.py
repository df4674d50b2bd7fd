"""The laws of flows, each on all engines where it applies."""

import asyncio
import math
import random
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError, FlowError
from raceway.flow import Envelope, Iter, ParIter, RateLimit, Shard, create, injected, send_msg, union, union_async
from tests.conftest import GENEROUS, eventually
from tests.engine.conftest import engines
from tests.flow.actors import Aggregator, Countdown, Counter, OneBehind, Pairs, Sum, num_guests

REMOTE = ("process", "ray")


def log_of(actor: Actor) -> list[Any]:
    return actor.call("get", "log").result(GENEROUS)  # type: ignore[no-any-return]


# Lazy, and repeatable from the source.


def test_building_runs_nothing(actors: list[Actor]) -> None:
    called: list[Any] = []
    flow = create(actors, "make").for_each(print).gather_async().for_each(called.append)
    left, right = flow.split()
    merged = union_async(left.batch(2), right.for_each(called.append, on="thread"))
    assert str(merged)
    assert called == []
    assert [log_of(actor) for actor in actors] == [[], []]
    assert [num_guests(actor) for actor in actors] == [0, 0]
    assert threading.active_count() == len(threading.enumerate())


def test_every_run_starts_from_the_source(actors: list[Actor]) -> None:
    flow = ParIter.from_range(4, actors).gather_sync().flatten()
    assert list(flow) == list(flow) == [0, 1, 2, 3]


def test_an_iterator_can_be_read_only_once() -> None:
    flow = Iter.from_items(iter("ab"))
    assert list(flow) == ["a", "b"]
    with pytest.raises(FlowError, match=r"read before.*Pass a function that returns a new one"):
        list(flow)


def test_a_flow_closes_what_it_opened(actors: list[Actor]) -> None:
    flow = create(actors, "make").batch(2).gather_async(num_async=2)
    for _ in flow:
        assert [num_guests(actor) for actor in actors] == [1, 1]
        break
    assert [num_guests(actor) for actor in actors] == [0, 0]
    with flow.start() as run:
        next(run)
    assert [num_guests(actor) for actor in actors] == [0, 0]
    assert list(run) == []
    list(flow.take(3))
    with pytest.raises(ZeroDivisionError):
        [1 // 0 for _ in flow]
    assert [num_guests(actor) for actor in actors] == [0, 0]


def test_generators_on_shards_are_closed(engine: Engine) -> None:
    class Closing:
        def __init__(self) -> None:
            self.closed = False

        def items(self) -> Iterator[int]:
            try:
                yield from range(10**9)
            finally:
                self.closed = True

        def is_closed(self) -> bool:
            return self.closed

        def __iter__(self) -> Iterator[int]:
            return self.items()

    actor = engine.spawn(Closing)
    assert list(create([actor]).take(2).gather_async()) == [0, 1]
    assert actor.call("is_closed").result(GENEROUS)


# Synchronous.


def test_gather_sync_rounds_are_in_shard_order(actors: list[Actor]) -> None:
    rounds = list(create(actors, "make").gather_sync().take(3))
    assert rounds == [[(0, n), (1, n)] for n in (1, 2, 3)]


def test_gather_sync_is_a_barrier(actors: list[Actor]) -> None:
    for number, _ in enumerate(create(actors, "make").gather_sync().take(3), 1):
        assert [log_of(actor)[-1] for actor in actors] == [("make", number)] * 2  # no shard has started the next
        for actor in actors:
            send_msg(actor, "set_weights", number)
    expected = [entry for n in (1, 2, 3) for entry in (("make", n), ("weights", n))]
    assert [log_of(actor) for actor in actors] == [expected, expected]


def test_an_exhausted_shard_leaves_the_rounds(engine: Engine) -> None:
    actors = [engine.spawn(Countdown, (start,)) for start in (1, 3, 2)]
    assert list(create(actors).gather_sync()) == [[0, 2, 1], [1, 0], [0]]


def test_more_shards_than_actors(actors: list[Actor]) -> None:
    flow = create(actors, "of_shard", num_shards=5, seed=3).zip_with_source().gather_sync().take(2)
    first, second = list(flow)
    assert [source.shard for source, _ in first] == [0, 1, 2, 3, 4]
    assert [source.name for source, _ in first] == [f"counter-{shard % 2}" for shard in range(5)]
    assert [number for _, (number, _) in second] == [0, 1, 2, 3, 4]


def test_a_synchronous_flow_is_the_same_on_any_engine_with_any_number_of_actors(engine: Engine) -> None:
    class Noise:
        def __call__(self, value: float, *, shard: Shard = injected) -> float:
            self.random = getattr(self, "random", None) or shard.generator(7)
            return value + float(self.random.random())

    def result(engine: Engine, num_actors: int) -> list[Any]:
        actors = [engine.spawn(Counter, (number,)) for number in range(num_actors)]
        flow = (
            ParIter.from_range(40, actors, num_shards=4).for_each(float).for_each(Noise()).shuffle(3, seed=5).batch(2)
        )
        return list(flow.gather_sync().flatten().shuffle(4, seed=1).for_each(tuple))

    with make_engine("inline") as inline:
        expected = result(inline, 1)
    assert len(set(expected)) == 20
    assert [result(engine, count) for count in (1, 2, 5)] == [expected] * 3


# Asynchronous.


def test_gather_async_1_starts_the_next_item_only_when_polled(actors: list[Actor]) -> None:
    received: Tally[int] = Tally()
    with create(actors, "make").gather_async().start() as run:
        for version in range(1, 12):
            number, _ = next(run)
            received[number] += 1
            source = run.envelope.sources[0]
            assert source.actor is actors[number]
            assert source.actor.call("get", "count").result(GENEROUS) == received[number]
            send_msg(source, "set_weights", version, version=version)
    for actor in actors:  # every item but the first was produced after the message about the previous one
        kinds = [kind for kind, _ in log_of(actor)]
        assert kinds[: 2 * received[actors.index(actor)]] == ["make", "weights"] * received[actors.index(actor)]


def test_gather_async_limits_outstanding_items(actors: list[Actor]) -> None:
    delivered: Tally[int] = Tally()
    with create(actors, "make").gather_async(num_async=3).start() as run:
        for _ in range(20):
            number, _ = next(run)
            delivered[number] += 1
            count = actors[number].call("get", "count").result(GENEROUS)
            assert count <= delivered[number] + 3 - 1


@engines(*REMOTE)
def test_a_slow_shard_does_not_delay_the_others(actors: list[Actor]) -> None:
    assert [log_of(actor) for actor in actors] == [[], []]  # the actors have started
    items = list(create(actors, "make_slowly").gather_async().take(10))
    assert sum(number == 1 for number, _ in items) >= 6


def test_an_item_that_is_held_counts_as_consumed(actors: list[Actor]) -> None:
    flow = create(actors, "make").gather_async().batch(6).queue(2)
    assert [len(batch) for batch in flow.take(2)] == [6, 6]
    left, right = create(actors, "make").gather_async().split()
    assert len(list(union(left.batch(5), right.batch(5)).take(4))) == 4


def test_parallel_operators_are_fused(engine: Engine, actors: list[Actor], monkeypatch: pytest.MonkeyPatch) -> None:
    num_sent = 0
    send = engine.send

    def counting_send(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_sent
        num_sent += 1
        return send(*args, **kwargs)

    monkeypatch.setattr(engine, "send", counting_send)
    flow = create(actors, "make")
    for _ in range(5):
        flow = flow.for_each(tuple).filter(len)
    with flow.gather_sync().start() as run:
        next(run)
        num_sent = 0
        for _ in range(10):
            next(run)
        assert num_sent == 20


# Unions.


def test_union_with_whole_weights() -> None:
    flow = union(Iter.from_range(6), Iter.from_range(10, 13), weights=[2, 1.0])
    assert list(flow) == [0, 1, 10, 2, 3, 11, 4, 5, 12]


def test_union_with_fractional_weights_is_exact() -> None:
    flow = union(
        a=Iter.from_items(lambda: iter("a" * 999)), b=Iter.from_items(lambda: iter("b" * 999)), weights={"b": 0.3}
    )
    assert Tally(flow.take(130)) == {"a": 100, "b": 30}
    counts = Tally(
        x for x in union(Iter.from_items("x" * 900), Iter.from_items("y" * 900), weights=[1.5, 2.5]).take(400)
    )
    assert counts == {"x": 150, "y": 250}


def test_a_branch_that_ends_leaves_the_union() -> None:
    assert list(union(Iter.from_range(2), Iter.from_range(10, 15))) == [0, 10, 1, 11, 12, 13, 14]


def test_union_can_read_a_branch_without_emitting_its_items() -> None:
    stored: list[int] = []
    flow = union(store=Iter.from_range(4).for_each(stored.append), train=Iter.from_items("abcd"), emit=["train"])
    assert list(flow) == ["a", "b", "c", "d"]
    assert stored == [0, 1, 2, 3]


@pytest.mark.parametrize("join", [union, union_async])
def test_a_rate_limit_keeps_a_branch_from_running_ahead(join: Any) -> None:
    limit = RateLimit(branch="sample", per="insert", ratio=0.5, slack=1)
    flow = join(insert=Iter.from_items("i" * 40), sample=Iter.from_items("s" * 40), limits=[limit])
    num_inserted = num_sampled = 0
    for letter in flow.take(50):
        num_inserted += letter == "i"
        num_sampled += letter == "s"
        assert num_sampled <= 0.5 * num_inserted + 1
    assert num_sampled >= 15
    assert Tally(flow) == {"i": 40, "s": 40}  # the limit no longer applies when the other branch has ended


def test_a_rate_limit_can_count_sizes() -> None:
    limit = RateLimit(branch="sample", per="insert", ratio=1.0, size=len)
    inserts, samples = Iter.from_items([[0] * 10] * 10), Iter.from_items([[1] * 4] * 10)
    inserted = sampled = 0
    for item in union_async(insert=inserts, sample=samples, limits=[limit]).take(12):
        inserted += len(item) if item[0] == 0 else 0
        sampled += len(item) if item[0] == 1 else 0
        assert sampled < inserted + 4


def test_rate_limits_that_block_all_branches_are_an_error() -> None:
    limits = [RateLimit(branch="a", per="b", ratio=1.0), RateLimit(branch="b", per="a", ratio=1.0)]
    for join in (union, union_async):
        with pytest.raises(FlowError, match=r"cannot continue: the rate limits of union.*block 'a', 'b'"):
            next(join(a=Iter.from_range(3), b=Iter.from_range(3), limits=limits))


@engines(*REMOTE)
def test_union_async_does_not_wait_for_a_pending_branch(actors: list[Actor]) -> None:
    assert [log_of(actor) for actor in actors] == [[], []]  # the actors have started
    slow, fast = create(actors[:1], "make_slowly").gather_async(), create(actors[1:], "make").gather_async()
    numbers = [number for number, _ in union_async(slow, fast).take(12)]
    assert sum(numbers) >= 10


def test_union_async_starves_no_branch(actors: list[Actor]) -> None:
    always = Iter.from_items(lambda: iter(lambda: "always", None))
    flow = union_async(always, create(actors[:1], "make").gather_async(), create(actors[1:], "make").gather_async())
    counts: Tally[Any] = Tally()
    until = time.monotonic() + GENEROUS
    for item in flow:
        counts[item if item == "always" else item[0]] += 1
        if min(counts["always"], counts[0], counts[1]) >= 3 or time.monotonic() > until:
            break
    assert min(counts["always"], counts[0], counts[1]) >= 3


def test_a_shard_gets_its_next_request_before_its_branch_has_a_turn(actors: list[Actor]) -> None:
    left, right = (create([actor], "make").gather_async() for actor in actors)
    with iter(union_async(left, right)) as run:
        sources = [next(run)[0] for _ in range(2)]
        num_requested = [len(log_of(actor)) for actor in actors]  # calls run in the order sent, so this one is last
        assert num_requested[sources[0]] == 2


# Splits.


def test_every_branch_of_a_split_sees_every_item_in_order(actors: list[Actor]) -> None:
    branches = ParIter.from_range(20, actors).gather_sync().flatten().split("a", "b", "c")
    received: dict[int, list[int]] = {0: [], 1: [], 2: []}
    numbered = [branch.for_each(lambda x, n=number: (n, x)) for number, branch in enumerate(branches)]
    for number, value in union_async(*numbered):
        received[number].append(value)
    assert received == {number: list(range(20)) for number in range(3)}


@pytest.mark.parametrize("join", [union, union_async])
@pytest.mark.parametrize(("first", "second"), [(1, 7), (7, 1), (5, 5)])
def test_two_trainers_behind_one_split(actors: list[Actor], join: Any, first: int, second: int) -> None:
    left, right = create(actors, "make").gather_async().split(buffer=16)
    weights = {"weights": {"left": second / math.gcd(first, second), "right": first / math.gcd(first, second)}}
    flow = join(left=left.batch(first), right=right.batch(second), **(weights if join is union else {}))
    sizes = Tally(len(batch) for batch in flow.take(48))
    assert set(sizes) == {first, second}
    assert all(count > 3 for count in sizes.values())


def test_the_branch_that_is_behind_is_served_first() -> None:
    pulled: list[int] = []
    many, few = Iter.from_range(10**9).for_each(lambda x: pulled.append(x) or x).split("many", "few", buffer=1000)
    flow = union_async(many.batch(100), few.filter(lambda x: x % 50 == 0))
    max_lag = 0
    for item in flow.take(300):
        if isinstance(item, int):
            max_lag = max(max_lag, len(pulled) - item)
    assert max_lag <= 3  # `few` never reads an item that is much older than the newest


def test_a_branch_that_is_not_read_is_named_in_the_error() -> None:
    left, _ = Iter.from_range(100).split("left", "right", buffer=5)
    received = []
    message = r"branch 'right' of split\(left, right\).*test_laws.py:\d+.*which is not read in this flow.*5 items"
    with pytest.raises(FlowError, match=message):
        received.extend(left)
    assert received == [0, 1, 2, 3, 4]


def test_branches_read_at_different_rates_are_an_error_not_a_deadlock() -> None:
    left, right = Iter.from_range(10**6).split("left", "right", buffer=32)
    with pytest.raises(FlowError, match=r"branch 'right' of split.*32 items behind.*union_async.*more than 32"):
        list(union(left.batch(10), right))


def test_a_branch_that_has_ended_leaves_the_split() -> None:
    left, right = Iter.from_range(50).split(buffer=4)
    assert len(list(union(left.take(3), right))) == 53


# Other operators, messages and runs.


def test_operators_in_the_driver() -> None:
    numbers = Iter.from_range(10)
    assert list(numbers.for_each(str).batch(4)) == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]
    assert list(numbers.combine(Pairs())) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert list(numbers.take(5).combine(Pairs())) == [(0, 1), (2, 3), (4,)]
    assert list(numbers.combine(OneBehind())) == list(numbers)  # `finish` is called even if nothing is held back
    assert list(numbers.batch(3).flatten().filter(lambda x: x % 2)) == [1, 3, 5, 7, 9]
    assert list(numbers.flat_map(lambda x: [x] * x).take(6)) == [1, 2, 2, 3, 3, 3]
    assert list(numbers.take(0)) == []
    assert list(Iter.from_items([])) == []
    assert sorted(numbers.shuffle(4, seed=1)) == list(numbers)
    assert list(numbers.shuffle(4, seed=1)) != list(numbers.shuffle(4, seed=2))
    assert list(numbers.shuffle(4, seed=1)) == list(numbers.shuffle(4, seed=1))


def test_take_reads_no_more_than_it_passes_on() -> None:
    read: list[int] = []
    assert list(Iter.from_range(99).for_each(lambda x: read.append(x) or x).take(3)) == [0, 1, 2]
    assert read == [0, 1, 2]


def test_operators_on_the_shards(actors: list[Actor]) -> None:
    numbers = ParIter.from_range(12, actors)
    assert list(numbers.batch(4).gather_sync()) == [[[0, 2, 4, 6], [1, 3, 5, 7]], [[8, 10], [9, 11]]]
    assert list(numbers.combine(Pairs()).gather_sync().take(1)) == [[(0, 2), (1, 3)]]
    assert list(numbers.flat_map(range).filter(lambda x: x > 8).gather_sync()) == [[9, 9], [10]]
    assert list(numbers.for_each(Sum()).gather_sync().take(3)) == [[0, 1], [2, 4], [6, 9]]  # a sum per shard
    assert sorted(numbers.shuffle(3, seed=2).gather_async()) == list(range(12))
    assert list(numbers.take(2).gather_sync().flatten()) == [0, 1, 2, 3]
    assert list(numbers.select_shards(1).gather_async().take(2)) == [1, 3]
    joined = numbers.take(1).union(ParIter.from_items(["x", "y"], actors)).gather_sync()
    assert list(joined) == [[0, 1, "x", "y"]]
    assert list(ParIter.from_iterators([[1, 2], lambda: iter("a")], actors).gather_sync()) == [[1, "a"], [2]]
    assert list(numbers.batch_across_shards().take(1)) == [[0, 1]]
    assert list(create(actors, "make").take(2).gather_sync()) == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]


def test_actor_shard_and_envelope_are_injected(actors: list[Actor]) -> None:
    def look(item: Any, *, actor: Counter = injected, shard: Shard = injected, envelope: Envelope = injected) -> Any:
        return actor.number, shard, envelope.sequence, [source.shard for source in envelope.sources]

    flow = create(actors, "make", num_shards=3, seed=9).for_each(look).gather_sync().take(1)
    assert list(flow) == [[(n % 2, Shard(n, 3, 9), 0, [n]) for n in range(3)]]


def test_envelopes_are_merged(actors: list[Actor]) -> None:
    def look(item: Any, *, envelope: Envelope = injected) -> Envelope:
        return envelope

    for actor, version in zip(actors, (5, 8), strict=True):
        send_msg(actor, "set_weights", 0, version=version)
    started = time.time()
    (envelope,) = create(actors, "make").batch(2).gather_sync().flatten().batch(4).for_each(look).take(1)
    assert [source.actor for source in envelope.sources] == actors
    assert (envelope.sequence, envelope.version, envelope.size) == (3, 5, 8)
    assert started - 60 < envelope.started <= envelope.finished < time.time() + 60
    run = iter(create(actors, "make").gather_async().combine(Pairs()))
    next(run)
    assert run.envelope is not None
    assert run.envelope.size == 2


def test_zip_with_source(actors: list[Actor]) -> None:
    for source, (number, _) in create(actors, "make").gather_async().zip_with_source().take(4):
        assert source.actor is actors[number]
    with pytest.raises(FlowError, match="comes from 2 sources"):
        next(create(actors, "make").gather_sync().zip_with_source())


def test_messages_have_replies(actors: list[Actor]) -> None:
    assert send_msg(actors[0], "set_weights", 4).result(GENEROUS) == 4

    async def ask() -> int:
        return await send_msg(actors[1], "set_weights", 6)  # type: ignore[no-any-return]

    assert asyncio.run(asyncio.wait_for(ask(), GENEROUS)) == 6
    with pytest.raises(AttributeError):
        send_msg(actors[0], "no_such_method").result(GENEROUS)
    with pytest.raises(ConfigError, match="goes to an actor"):
        send_msg("counter-0", "set_weights", 1)  # type: ignore[arg-type]


def test_runs_are_independent(actors: list[Actor]) -> None:
    flow = ParIter.from_range(8, actors).for_each(Sum()).gather_sync()
    first, second = iter(flow), iter(flow)
    assert [next(first), next(second), next(first), next(second)] == [[0, 1], [0, 1], [2, 4], [2, 4]]
    other = ParIter.from_range(8, actors).for_each(lambda x: -x).gather_async()
    assert sorted(other) == list(range(-7, 1))
    assert next(first) == [6, 9]
    for run in (first, second):
        run.close()
    joined = union(ParIter.from_range(4, actors).gather_sync(), ParIter.from_range(4, actors).gather_sync())
    assert list(joined) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_a_stream_can_be_read_by_one_operator_only(actors: list[Actor]) -> None:
    numbers = Iter.from_range(5)
    with pytest.raises(ConfigError, match=r"read twice.*split"):
        list(union(numbers, numbers))
    with pytest.raises(ConfigError, match=r"read twice.*split"):
        list(union(numbers.for_each(str), numbers.for_each(str)))


@pytest.mark.parametrize("inner", ["inline", "process"])
def test_an_actor_can_run_a_flow(engine: Engine, inner: str) -> None:
    aggregators = [engine.spawn(Aggregator, (inner, num_workers)) for num_workers in (2, 3)]
    assert list(create(aggregators, "total").gather_sync().take(3)) == [[2, 3], [4, 6], [6, 9]]
    for aggregator in aggregators:
        aggregator.call("shut_down").result(GENEROUS)


def test_step_returns_the_next_item() -> None:
    flow = Iter.from_range(3)
    assert [next(flow), flow.step(), flow.step()] == [0, 1, 2]
    with pytest.raises(StopIteration):
        flow.step()


# Operators on a dedicated thread or actor.


def test_an_operator_on_a_thread_runs_in_parallel_to_the_driver() -> None:
    main_thread, threads = threading.get_ident(), set()
    gate = threading.Event()

    def learn(value: int) -> int:
        threads.add(threading.get_ident())
        assert gate.wait(GENEROUS)
        return value * value

    slow, quick = Iter.from_range(5).for_each(learn, on="thread"), Iter.from_items("ab")
    run = iter(union_async(slow, quick))
    assert [next(run), next(run)] == ["a", "b"]  # while the thread waits
    gate.set()
    assert list(run) == [0, 1, 4, 9, 16]
    assert main_thread not in threads
    assert len(threads) == 1


def test_an_operator_on_a_thread_reads_at_most_its_queue(engine: Engine) -> None:
    gate = threading.Event()
    pulled: list[int] = []
    numbers = Iter.from_range(100).for_each(lambda x: pulled.append(x) or x)
    flow = union_async(
        numbers.for_each(lambda x: gate.wait(GENEROUS) and x, on="thread", queue=3), Iter.from_items("a" * 20)
    )
    run = iter(flow)
    assert [next(run) for _ in range(20)] == ["a"] * 20
    assert pulled == [0, 1, 2]
    gate.set()
    assert list(run) == list(range(100))


def test_an_operator_on_an_actor_keeps_its_state_there(engine: Engine, actors: list[Actor]) -> None:
    learner = engine.spawn(Counter, name="learner")

    class Learn(Sum):
        def __call__(self, value: int, *, actor: Any = injected, envelope: Envelope = injected) -> Any:
            return super().__call__(value), actor.pid(), envelope.size

    operator = Learn()
    flow = ParIter.from_range(8, actors).gather_sync().flatten().batch(2).for_each(sum).for_each(operator, on=learner)
    totals, pids, sizes = zip(*flow, strict=True)
    assert totals == (1, 6, 15, 28)
    assert set(pids) == {learner.call("pid").result(GENEROUS)}
    assert sizes == (2,) * 4
    assert operator.total == 0
    assert num_guests(learner) == 0


def test_shards_work_while_the_learner_is_busy(engine: Engine) -> None:
    if engine.name == "inline":
        return
    actors = [engine.spawn(Counter, (number,)) for number in range(2)]
    gate = threading.Event()
    flow = create(actors, "make").gather_async().queue(8).for_each(lambda x: gate.wait(GENEROUS) and x, on="thread")
    done: list[Any] = []
    run = iter(flow)
    reader = threading.Thread(target=lambda: done.append(next(run)))
    reader.start()
    # While the learner is stuck on its first item, its queue and the queue before it still fill up.
    assert eventually(lambda: sum(actor.call("get", "count").result(GENEROUS) for actor in actors) >= 9)
    gate.set()
    reader.join(GENEROUS)
    assert len(done) == 1
    run.close()


def test_a_flow_without_actors_can_wait_for_a_thread() -> None:
    flow = Iter.from_range(4).for_each(lambda x: time.sleep(0.01) or x, on="thread", queue=1)
    assert list(flow) == [0, 1, 2, 3]


def test_arrays_in_a_flow(actors: list[Actor]) -> None:
    def large(number: int) -> dict[str, np.ndarray]:
        return {"a": np.full((100, 100), number, np.float32), "b": np.arange(3)}

    flow = (
        ParIter.from_range(8, actors).for_each(large).gather_async(num_async=2).for_each(lambda x: float(x["a"].sum()))
    )
    assert sorted(flow) == [10_000.0 * number for number in range(8)]


def test_a_finite_flow_of_many_operators_ends(actors: list[Actor]) -> None:
    random.seed(1)
    left, right = ParIter.from_range(30, actors).gather_async(num_async=2).split()
    flow = union(left.batch(4).queue(3), right.for_each(lambda x: x, on="thread"), weights=[1, 4])
    items = list(flow)
    assert sorted(x for x in items if isinstance(x, int)) == list(range(30))
    assert sorted(x for batch in items if isinstance(batch, list) for x in batch) == list(range(30))


class CountsPickling:
    """A number that records in the driver how often it is sent."""

    sent: ClassVar[list[int]] = []

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        self.sent.append(self.number)
        return CountsPickling, (self.number,)


def number_of(item: CountsPickling) -> int:
    return item.number


@pytest.mark.parametrize("source", ["from_items", "from_iterators"])
@engines("inline", "process")
def test_an_actor_is_sent_only_the_items_of_its_shards(actors: list[Actor], source: str) -> None:
    items = [CountsPickling(number) for number in range(9)]
    stream = getattr(ParIter, source)(items if source == "from_items" else [items[:5], items[5:]], actors)
    CountsPickling.sent.clear()
    assert sorted(stream.for_each(number_of).gather_async()) == list(range(9))
    assert sorted(CountsPickling.sent) == list(range(9))


def test_messages_carry_references(actors: list[Actor]) -> None:
    ref = actors[0].engine.put({"weights": np.arange(3)})
    send_msg(actors[0], "set_weights", ref).result(GENEROUS)
    assert actors[0].call("get", "weights").result(GENEROUS)["weights"].tolist() == [0, 1, 2]
