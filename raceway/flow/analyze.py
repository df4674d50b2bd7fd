"""Run a flow for a while to measure every operator and name the bottleneck."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from raceway.checks import check_int, check_positive
from raceway.errors import RacewayError
from raceway.flow._graph import Node
from raceway.flow.monitoring import Counters
from raceway.formatting import format_count, format_duration

if TYPE_CHECKING:
    from raceway.flow.explain import PlanView

REPORT_TIMEOUT = 5.0
"""Seconds to wait at the end for the counters of shards that still work on an item."""


class _TimeUp(BaseException):
    """Ends a run that waits for its next item."""


def run_and_measure(flow: Any, plan: PlanView, items: int | None, seconds: float | None) -> None:
    """Run a flow for a number of items or seconds, and add the counters to the plan."""
    max_items = float("inf") if items is None else check_int("items", items)
    if seconds is not None:
        check_positive("seconds", seconds)
    for node in plan.nodes:
        for actor in node.actors:
            actor.ready.exception()  # so that its start is not measured; if it failed, the flow raises the error
    start = time.perf_counter()
    run = flow.start(measure=True)
    recorder = CounterRecorder(run)

    def check_time(_: object) -> None:
        late = seconds is not None and time.perf_counter() - start >= seconds
        if late and not run._closed:  # the events of closing must not hide an error that closed the run
            unsubscribe()
            raise _TimeUp

    unsubscribe = run.subscribe(check_time)
    count = 0
    with run, suppress(StopIteration, _TimeUp):
        while count < max_items and (seconds is None or time.perf_counter() - start < seconds):
            next(run)
            count += 1
        unsubscribe()
    recorder.add_to(plan)


class CounterRecorder:
    """Keeps the latest counters of a run. Those of a shard are lost when it is closed, so they are read just before."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.start = time.perf_counter()
        self.latest: dict[str, Counters] = {}
        self.unresponsive: set[Any] = set()
        """Shards that did not answer in time."""
        for stage in run.stages.values():
            if hasattr(stage, "shards"):
                stage.close = partial(self._read_and_close, stage.close)

    def _read_and_close(self, close: Callable[[], None]) -> None:
        self.read()
        close()

    def read(self) -> None:
        """Request the counters of every reachable shard, and store them."""
        shards = [shard for stage in self.run.stages.values() for shard in getattr(stage, "shards", ())]
        futures = {
            shard: shard.call("report") for shard in shards if shard.reachable and shard not in self.unresponsive
        }
        deadline = time.perf_counter() + REPORT_TIMEOUT
        for shard, future in futures.items():
            try:
                shard.reports[-1] = future.result(max(0.0, deadline - time.perf_counter())) or shard.reports[-1]
            except RacewayError:  # it has died, or works on a long item: its last report stays
                self.unresponsive.add(shard)
        for name, counters in self.run.counters().items():
            self.latest[name] = max(counters, self.latest.get(name, counters))  # they only ever grow

    def add_to(self, plan: PlanView) -> None:
        """Add the counters, the bottleneck and a summary to a plan."""
        self.read()
        seconds = time.perf_counter() - self.start
        workers: dict[Node, set[int]] = defaultdict(set)
        for stage in self.run.stages.values():
            for shard in getattr(stage, "shards", ()):
                worker = shard.engine if shard.engine.name == "inline" else shard.actor  # inline: all on one thread
                for node in shard.spec.nodes:
                    workers[node].add(id(worker))
        for node, view in plan.nodes.items():
            if node in workers or hasattr(self.run.stages.get(node), "meter"):
                view.counters, view.seconds = self.latest[f"{self.run.node_indices[node]}:{node.label}"], seconds
                view.num_workers = max(1, len(workers[node]))
        consumer_part = self.run.consumer_seconds / seconds
        busiest = max(plan.nodes.values(), key=lambda view: view.utilisation)
        plan.bottleneck = busiest if busiest.utilisation >= consumer_part else None
        name, part = "the program that reads the flow", consumer_part
        if plan.bottleneck is not None:
            name, part = f"{busiest.label} ({busiest.place}, added at {busiest.where})", busiest.utilisation
        plan.summary = f"Ran for {format_duration(seconds)}. Bottleneck: {name}, busy {part:.0%} of the time."
        if part < 0.5:
            plan.summary += " The rest is waiting and overhead of the flow."
        if self.unresponsive:
            plan.summary += (
                f" The counters are incomplete: {format_count(len(self.unresponsive), 'shard')} did not answer at the"
                " end."
            )
