"""Running a flow for a while, to see what every operator does and which is the bottleneck."""

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
from raceway.flow.counters import Counters
from raceway.formatting import format_count, format_duration

if TYPE_CHECKING:
    from raceway.flow.explain import Plan

PATIENCE = 5.0
"""Seconds to wait, when the time is up, for the items that shards have begun."""


class _TimeUp(BaseException):
    """Ends a run that waits for its next item."""


def run_for(flow: Any, plan: Plan, items: int | None, seconds: float | None) -> None:
    """Run a flow for a while and note in the plan what it did."""
    most = float("inf") if items is None else check_int("items", items)
    if seconds is not None:
        check_positive("seconds", seconds)
    for node in plan.boxes:
        for actor in node.actors:
            actor.ready.exception()  # starting it is not the flow's work; what is wrong with it the flow will say
    begin = time.perf_counter()
    run = flow.start(measure=True)
    recorder = Recorder(run)

    def look_at_clock(_: object) -> None:
        late = seconds is not None and time.perf_counter() - begin >= seconds
        if late and not run._closed:  # else it is told for the last time, and perhaps because something failed
            leave()
            raise _TimeUp

    leave = run.subscribe(look_at_clock)
    count = 0
    with run, suppress(StopIteration, _TimeUp):
        while count < most and (seconds is None or time.perf_counter() - begin < seconds):
            next(run)
            count += 1
        leave()
    recorder.note(plan)


class Recorder:
    """Keeps the counters of a run. Parts that end take theirs along, so it looks just before."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.begin = time.perf_counter()
        self.latest: dict[str, Counters] = {}
        self.silent: set[Any] = set()
        """Shards that did not answer in the end."""
        for stage in run.stages.values():
            if hasattr(stage, "lanes"):
                stage.close = partial(self._closing, stage.close)

    def _closing(self, close: Callable[[], None]) -> None:
        self.look()
        close()

    def look(self) -> None:
        """Ask every shard that is there for its counters, and keep what is known."""
        lanes = [lane for stage in self.run.stages.values() for lane in getattr(stage, "lanes", ())]
        asked = {lane: lane.ask("report") for lane in lanes if lane.reachable and lane not in self.silent}
        until = time.perf_counter() + PATIENCE
        for lane, future in asked.items():
            try:
                lane.reports[-1] = future.result(max(0.0, until - time.perf_counter())) or lane.reports[-1]
            except RacewayError:  # it has died, or works on an item for very long: what it told last stays
                self.silent.add(lane)
        for name, counters in self.run.counters().items():
            self.latest[name] = max(counters, self.latest.get(name, counters))  # they only ever grow

    def note(self, plan: Plan) -> None:
        """Write into the plan what every operator did, and which was the bottleneck."""
        self.look()
        seconds = time.perf_counter() - self.begin
        lanes: dict[Node, set[int]] = defaultdict(set)
        for stage in self.run.stages.values():
            for lane in getattr(stage, "lanes", ()):
                shared = lane.engine if lane.engine.name == "inline" else lane.actor  # inline, all are on one thread
                for node in lane.plan.nodes:
                    lanes[node].add(id(shared))
        for node, box in plan.boxes.items():
            if node in lanes or hasattr(self.run.stages.get(node), "meter"):
                box.counters, box.seconds = self.latest[f"{self.run.numbers[node]}:{node.label}"], seconds
                box.num_lanes = max(1, len(lanes[node]))
        outside = self.run.outside / seconds
        busiest = max(plan.boxes.values(), key=lambda box: box.utilisation)
        plan.bottleneck = busiest if busiest.utilisation >= outside else None
        name, part = "the program that reads the flow", outside
        if plan.bottleneck is not None:
            name, part = f"{busiest.label} ({busiest.place}, added at {busiest.where})", busiest.utilisation
        plan.verdict = f"Ran for {format_duration(seconds)}. Bottleneck: {name}, busy {part:.0%} of the time."
        if part < 0.5:
            plan.verdict += " The rest went into waiting and into the flow itself."
        if self.silent:
            plan.verdict += (
                f" Some work is missing here: {format_count(len(self.silent), 'shard')} did not answer in the end."
            )
