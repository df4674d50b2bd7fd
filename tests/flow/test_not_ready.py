"""A source that has no item yet is pending: never an item, never an end, and no obstacle to saving."""

import time
from itertools import islice
from typing import Any

import pytest

from raceway.engine.base import Actor, Engine
from raceway.errors import OperatorError, WaitTimeout
from raceway.flow import Iter, NotReady, Shard, create, injected, union_async
from tests.engine.conftest import engines


class Tap:
    """Counts, once it is open."""

    def __init__(self, is_open: bool) -> None:
        self.is_open = is_open

    def open(self) -> None:
        self.is_open = True

    def sample(self, *, shard: Shard = injected, number: int = injected) -> tuple[int, int]:
        if not self.is_open:
            time.sleep(0.001)
            raise NotReady
        return shard.number, number


def taps(engine: Engine, *are_open: bool) -> list[Actor]:
    return [engine.spawn(Tap, (is_open,), name=f"tap-{index}") for index, is_open in enumerate(are_open)]


def test_items_come_from_the_shards_that_have_some(engine: Engine) -> None:
    actors = taps(engine, True, False)
    with create(actors, "sample").gather_async(num_async=2).start() as run:
        assert [next(run) for _ in range(5)] == [(0, number) for number in range(5)]
        actors[1].call("open").result()
        items = [next(run)]
        while items[-1][0] == 0:
            items.append(next(run))
        assert items[-1] == (1, 0)  # calls without an item are not counted


def test_a_pending_branch_holds_up_no_other(engine: Engine) -> None:
    actors = taps(engine, False)
    samples, others = create(actors, "sample").gather_sync().flatten(), Iter.from_range(30)
    opened = others.for_each(lambda number: actors[0].call("open").result() if number == 20 else number)
    items = list(islice(union_async(samples, opened), 40))
    assert items[:20] == list(range(20))
    assert (0, 0) in items


@engines("process")
def test_a_synchronous_round_waits(engine: Engine) -> None:
    actors = taps(engine, True, False)
    with create(actors, "sample").for_each(list).gather_sync().start() as run:
        with pytest.raises(WaitTimeout):
            run.next(timeout=0.05)
        actors[1].call("open").result()
        assert [next(run), next(run)] == [[[0, 0], [1, 0]], [[0, 1], [1, 1]]]


@engines("process")
@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_a_run_is_saved_while_it_is_pending(engine: Engine, gather: str) -> None:
    actors = taps(engine, False)
    stream: Any = create(actors, "sample")
    flow = getattr(stream, gather)()
    with flow.start() as run:
        with pytest.raises(WaitTimeout):
            run.next(timeout=0.02)
        state = run.state()
        actors[0].call("open").result()
        first = next(run)
    assert next(flow.restore(state)) == first == ([(0, 0)] if gather == "gather_sync" else (0, 0))


def test_a_source_in_the_driver_has_nothing_to_wait_for() -> None:
    def items() -> Any:
        raise NotReady
        yield

    with pytest.raises(OperatorError, match="NotReady"):
        next(Iter.from_items(items))
