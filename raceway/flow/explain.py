"""What a flow is and what it does: its plan as text, Mermaid or SVG, with counters and the bottleneck if it is run.

print(flow)                                  # the plan
flow.explain("svg", path="plan.svg")
print(flow.explain(analyze=True))            # runs it for a while
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from raceway.engine.base import Actor
from raceway.errors import ConfigError, RacewayError, unknown, whole
from raceway.flow import draw
from raceway.flow._plan import Node, walk
from raceway.flow.tracing import Counters

FORMATS = ("text", "mermaid", "svg")
PATIENCE = 5.0
"""Seconds to wait, when the time is up, for the items that shards have begun."""


class Explained:
    """What both kinds of stream can tell of themselves."""

    _node: Node

    def __repr__(self) -> str:
        return Plan(self._node).text()

    def explain(
        self,
        format: str = "text",
        *,
        analyze: bool = False,
        items: int | None = None,
        seconds: float | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Return the plan; with `analyze`, run it for a while and return what every operator did, and the bottleneck.

        Args:
            format: `text`, `mermaid`, or `svg`.
            analyze: run the flow, from its source. What it does, such as training, it really does.
            items: end the run after so many items.
            seconds: end it after so much time. Without either, 100 items or 10 seconds, whichever is first.
            path: a file to write it to as well.
        """
        if format not in FORMATS:
            raise unknown("format of a plan", format, FORMATS)
        if not analyze and (items is not None or seconds is not None):
            raise ConfigError("items and seconds say how long to run the flow, which only analyze=True does")
        plan = Plan(self._node)
        if analyze:
            if self._node.parallel:
                raise ConfigError(
                    f"a ParIter is many streams, and is not run by itself. Gather it first to analyze it: {self._node}"
                )
            if items is None and seconds is None:
                items, seconds = 100, 10.0
            _run(self, plan, items, seconds)
        shown = plan.text() if format == "text" else draw.mermaid(plan) if format == "mermaid" else draw.svg(plan)
        if path is not None:
            Path(path).write_text(shown + "\n", encoding="utf-8")
        return shown


@dataclass(eq=False)
class Box:
    """What is shown of one operator, or of actors that get messages and are no part of the plan."""

    label: str
    place: str
    kind: str
    """`parallel`, `driver`, `apart` (on a thread or an actor of its own), or `actors`."""
    where: str = ""
    counters: Counters | None = None
    """What it did, if it was run and does anything."""
    seconds: float = 0.0
    """How long it was run for."""
    num_lanes: int = 1
    """How many of it can work at the same time."""

    @property
    def utilisation(self) -> float:
        """The part of the time that it was at work."""
        return self.counters.busy / (self.seconds * self.num_lanes) if self.counters and self.seconds else 0.0

    def figures(self) -> tuple[str, ...]:
        """Return the counters for people to read: items, items/s, busy, waiting, bytes, staleness."""
        if self.counters is None:
            return ("",) * 6
        counters, lag = self.counters, self.counters.staleness
        return (
            f"{counters.items:,}",
            _short(counters.items / self.seconds if self.seconds else 0.0),
            f"{_time(counters.busy)} ({self.utilisation:.0%})",
            _time(counters.waiting),
            _size(counters.bytes),
            "-" if lag is None else f"{_short(lag)} / {counters.lag_max}",
        )


class Edge(NamedTuple):
    """An arrow from one box to another."""

    start: Box
    end: Box
    kind: str
    """`in step`, `asynchronous` or `message`."""
    name: str = ""
    """Of the branch."""


@dataclass
class Plan:
    """A plan as it is shown: boxes, sources first, and arrows. A branch of a split is the name of an arrow."""

    root: Node
    boxes: dict[Node, Box] = field(default_factory=dict)
    others: list[Box] = field(default_factory=list)
    """Actors that are sent messages and are no part of the plan."""
    edges: list[Edge] = field(default_factory=list)
    verdict: str = ""
    bottleneck: Box | None = None

    def __post_init__(self) -> None:
        for node in walk(self.root):
            if node.kind == "branch" and node is not self.root:
                continue
            box = self.boxes[node] = Box(node.label, *_place(node), os.path.basename(node.step.where))
            kind = "asynchronous" if _is_asynchronous(node) else "in step"
            names = node.step.settings.get("inputs", [""] * len(node.parents))
            for name, parent in zip(names, node.parents, strict=True):
                if parent.kind == "branch":
                    branch = parent.label[len("branch(") : -1]
                    name = branch if name in ("", branch) or name.isdigit() else f"{branch} → {name}"
                    parent = parent.parents[0]
                self.edges.append(Edge(self.boxes[parent], box, kind, name))
        self._add_messages()

    def _add_messages(self) -> None:
        strangers: dict[frozenset[Actor], Box] = {}
        for node, box in self.boxes.items():
            sent = dict.fromkeys(actors_in(node.step.settings.get("function")))
            known = [other for other in self.boxes if other is not node and not sent.keys().isdisjoint(other.actors)]
            self.edges += [Edge(box, self.boxes[other], "message") for other in known]
            rest = [actor for actor in sent if not any(actor in other.actors for other in known)]
            if rest:
                names = ", ".join(actor.name for actor in rest[:3]) + (", …" if len(rest) > 3 else "")
                other = strangers.setdefault(frozenset(rest), Box(names, _counted(len(rest), "actor"), "actors"))
                self.edges.append(Edge(box, other, "message"))
        self.others = list(strangers.values())

    def text(self) -> str:
        """Return the plan as a tree, from the result down to the sources."""
        head = ("", "", "", "items", "items/s", "busy", "waiting", "bytes", "staleness", "")
        rows = [*([head] if self.verdict else []), *self._rows(self.boxes[self.root], "", "", set())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = []
        for row in rows:
            cells = [
                cell.rjust(width) if 3 <= place < 9 else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
                if width
            ]
            shown.append("  ".join(cells).rstrip())
        if any(edge.kind == "asynchronous" for edge in self.edges):
            shown.append("─ in step  ~ asynchronous")
        return "\n".join([*shown, self.verdict] if self.verdict else shown)

    def _rows(self, box: Box, lead: str, below: str, seen: set[Box]) -> Iterator[tuple[str, ...]]:
        if box in seen:
            yield (f"{lead}{box.label}, as above", *("",) * 9)
            return
        seen.add(box)
        sent = ", ".join(edge.end.label for edge in self.edges if edge.start is box and edge.kind == "message")
        yield lead + box.label, box.place, box.where, *box.figures(), f"messages to {sent}" if sent else ""
        feeding = [edge for edge in self.edges if edge.end is box and edge.kind != "message"]
        for edge in feeding:
            last = edge is feeding[-1]
            corner = ("└" if last else "├") + ("~ " if edge.kind == "asynchronous" else "─ ")
            name = f"{edge.name}: " if edge.name else ""
            yield from self._rows(edge.start, f"{below}{corner}{name}", below + ("   " if last else "│  "), seen)


def _place(node: Node) -> tuple[str, str]:
    """Return where a node runs, in words and as a kind of box."""
    if node.parallel:
        from raceway.flow._par import shards_of  # here, because streams are built upon this module

        shards = shards_of(node)
        num_actors = len({shard.actor for shard in shards})
        return f"{_counted(len(shards), 'shard')} on {_counted(num_actors, 'actor')}", "parallel"
    if "room" in node.step.settings:
        return (f"actor {node.actors[0].name}" if node.actors else "thread"), "apart"
    return "driver", "driver"


def _is_asynchronous(node: Node) -> bool:
    """Whether a node does not keep step with what feeds it."""
    return node.kind in ("gather_async", "queue", "union_async") or "room" in node.step.settings


def actors_in(value: Any, depth: int = 5, seen: set[int] | None = None) -> Iterator[Actor]:
    """Yield the actors whose handles a function or another value holds, without calling anything."""
    seen = set() if seen is None else seen
    if isinstance(value, Actor):
        yield value
    elif depth and id(value) not in seen:
        seen.add(id(value))
        for part in _parts(value):
            yield from actors_in(part, depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    """Return what a value is made of, as far as actors may be in it."""
    if isinstance(value, (str, bytes, int, float, type, ModuleType, Explained)) or hasattr(type(value), "spawn"):
        return ()  # an engine knows every actor: that says nothing about who is sent messages
    if isinstance(value, dict):
        return islice(value.values(), 1000)  # a store of data may be large, and has no actors in it
    if isinstance(value, (list, tuple, set, frozenset)):
        return islice(value, 1000)
    parts = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, partial):
        parts += [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        parts += [value.__defaults__, value.__kwdefaults__]
        parts += [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # it is not filled yet
                parts.append(cell.cell_contents)
    elif hasattr(value, "__self__"):
        parts += [value.__self__, getattr(value, "__func__", None)]
    return parts


class _TimeUp(BaseException):
    """Ends a run that waits for its next item."""


def _run(flow: Any, plan: Plan, items: int | None, seconds: float | None) -> None:
    """Run a flow for a while and note in the plan what it did."""
    most = float("inf") if items is None else whole("items", items)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0):
        raise ConfigError(f"seconds must be a number above 0, not {seconds!r}")
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
            if hasattr(stage, "lanes") or hasattr(stage, "lane"):
                stage.close = partial(self._closing, stage.close)

    def _closing(self, close: Callable[[], None]) -> None:
        self.look()
        close()

    def look(self) -> None:
        """Ask every shard that is there for its counters, and keep what is known."""
        stages = self.run.stages.values()
        lanes = [lane for stage in stages for lane in (*getattr(stage, "lanes", ()), getattr(stage, "lane", None))]
        asked = {lane: lane.ask("report") for lane in lanes if lane and lane.reachable and lane not in self.silent}
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
        plan.verdict = f"Ran for {_time(seconds)}. Bottleneck: {name}, busy {part:.0%} of the time."
        if part < 0.5:
            plan.verdict += " The rest went into waiting and into the flow itself."
        if self.silent:
            plan.verdict += (
                f" Some work is missing here: {_counted(len(self.silent), 'shard')} did not answer in the end."
            )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(number: float) -> str:
    """Return a number with about three digits.

    >>> _short(0.01234), _short(12.345), _short(12345.6), _short(20)
    ('0.01', '12.3', '12,346', '20')
    """
    digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}"


def _time(seconds: float) -> str:
    """Return a time.

    >>> _time(2.5), _time(0.0123), _time(0.000012), _time(0)
    ('2.50 s', '12.3 ms', '12 µs', '0 s')
    """
    if 0 < seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{_short(seconds)} s" if seconds >= 1 or not seconds else f"{_short(1000 * seconds)} ms"


def _size(number: float) -> str:
    """Return a number of bytes.

    >>> _size(999), _size(12_345), _size(3_000_000)
    ('999 B', '12.3 kB', '3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{_short(number)} {unit}"
        number /= 1000
    return f"{_short(number)} TB"


def why_stuck(nodes: Sequence[Node], blocked: Iterable[Any]) -> str:
    """Say why a flow cannot go on: a split whose branches are read at different paces, or limits that hold up all."""
    reasons: dict[str, None] = {}
    for stage in blocked:
        if hasattr(stage, "limits"):
            held = [repr(one.name) for one in stage.inputs if stage.holds(one)]
            if held:
                reasons[f"rate limits of {stage.node} hold up {', '.join(held)}"] = None
            continue
        name = max(stage.queues, key=lambda name: len(stage.queues[name]))
        read = any(node.parents == (stage.node,) and node.label == f"branch({name})" for node in nodes)
        reasons[
            f"branch {name!r} of {stage.node}, {'' if read else 'which nobody reads in this flow, '}is "
            f"{stage.backlog} items behind, and another branch needs more before it can give one. Read them at the "
            f"same pace (union_async, or weights that fit), or split with a buffer of more than {stage.buffer}"
        ] = None
    return f"the flow cannot go on: {'; '.join(reasons)}."


def name_of(function: Any) -> str:
    """Return what a plan calls an operator.

    >>> name_of(str.upper), name_of(lambda x: x)
    ('upper', '<lambda>')
    """
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
