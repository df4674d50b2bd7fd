"""Counters and events of a run, and the trace written from them."""

import json
from pathlib import Path
from typing import Any

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.flow import Counters, Event, Iter, ParIter, create, send_msg
from raceway.flow.perfetto import TraceWriter


def counters_by_kind(run: Any) -> dict[str, Counters]:
    return {name.partition(":")[2].partition("(")[0]: counters for name, counters in run.counters().items()}


def test_counters_of_every_node(actors: list[Actor]) -> None:
    flow = ParIter.from_range(20, actors).filter(lambda x: x % 4 < 2).batch(2).gather_async().flatten().for_each(str)
    with flow.start(measure=True) as run:
        items = list(run)
        counters = counters_by_kind(run)
    assert len(items) == 10
    assert {kind: counters[kind].items for kind in counters} == {
        "from_range": 20,
        "filter": 20,
        "batch": 10,
        "gather_async": 6,
        "flatten": 6,
        "for_each": 10,
    }
    assert all(counter.busy >= 0 and counter.waiting >= 0 for counter in counters.values())
    assert counters["gather_async"].bytes > 0
    assert counters["for_each"].bytes > 0
    assert counters["from_range"].staleness is None


def test_staleness_is_counted(actors: list[Actor]) -> None:
    for actor in actors:
        send_msg(actor, "set_weights", 0, version=0)
    with create(actors, "make").gather_sync().flatten().start() as run:
        for version in range(1, 11):
            next(run)
            send_msg(actors[0], "set_weights", version, version=version)
        gather = counters_by_kind(run)["gather_sync"]
    # The second actor never gets a new version, so it falls behind by two every round.
    assert gather.lag_max == 8
    assert gather.staleness is not None
    assert 0 < gather.staleness <= gather.lag_max


def test_subscribers_receive_events(actors: list[Actor]) -> None:
    events: list[Event] = []
    flow = ParIter.from_range(10, actors).for_each(abs).gather_sync()
    run = flow.start()
    unsubscribe = run.subscribe(events.append)
    list(run)
    kinds = [event.kind for event in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "stop"
    assert [node["label"] for node in events[0].data["nodes"]] == [
        "from_range(10, shards=2)",
        "for_each(abs)",
        "gather_sync",
    ]
    arrivals = [item for event in events if event.kind == "items" for item in event.data["items"]]
    assert sorted((shard, sequence) for _, shard, sequence, _, _ in arrivals) == [
        (s, n) for s in range(2) for n in range(5)
    ]
    last = [event for event in events if event.kind == "counters"][-1]
    assert [counters.items for counters in last.data["nodes"].values()] == [10, 10, 10]
    unsubscribe()
    json.dumps(events)


def test_unsubscribe() -> None:
    events: list[Event] = []
    run = Iter.from_range(10).start()
    unsubscribe = run.subscribe(events.append)
    next(run)
    unsubscribe()
    del events[:]
    list(run)
    assert events == []


def test_a_trace_for_perfetto(actors: list[Actor], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    flow = ParIter.from_range(10, actors).for_each(lambda x: 1 // (x - 4)).on_failure("drop").gather_async()
    with TraceWriter(path) as writer, flow.start() as run:
        run.subscribe(writer)
        list(run)
    rows = json.loads(path.read_text())
    slices = [row for row in rows if row["ph"] == "X"]
    assert {row["tid"] for row in slices} == {0, 1}
    assert all(row["dur"] >= 0 and row["ts"] > 0 for row in slices)
    assert [row["name"] for row in rows if row["ph"] == "i"] == ["dropped", "stop"]
    assert any(row["ph"] == "C" and row["name"].endswith("gather_async(num_async=1)") for row in rows)
    names = {row["args"]["name"] for row in rows if row["name"] in ("thread_name", "process_name")}
    assert {"driver", "shard 0", "shard 1", "gather_async(num_async=1)"} <= names


def test_subscribers_receive_events_while_the_driver_waits() -> None:
    import time

    events: list[Event] = []
    with make_engine("process") as engine:
        run = ParIter.from_items([1.2], [engine.spawn(dict)]).for_each(time.sleep).gather_sync().start()
        run.subscribe(events.append)
        list(run)
    assert sum(event.kind == "counters" for event in events) >= 3
