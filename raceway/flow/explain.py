"""What a flow is and what it does: its plan as text, Mermaid or SVG, with counters and the bottleneck if it is run.

print(flow)                                  # the plan
flow.explain("svg", path="plan.svg")
print(flow.explain(analyze=True))            # runs it for a while
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from raceway.checks import unknown_name
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow import render
from raceway.flow._graph import Node, walk
from raceway.flow.analyze import run_for
from raceway.flow.counters import Counters
from raceway.formatting import format_bytes, format_count, format_duration, format_number

FORMATS = ("text", "mermaid", "svg")


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
            raise unknown_name("format of a plan", format, FORMATS)
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
            run_for(self, plan, items, seconds)
        shown = plan.text() if format == "text" else render.mermaid(plan) if format == "mermaid" else render.svg(plan)
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
            format_number(counters.items / self.seconds if self.seconds else 0.0),
            f"{format_duration(counters.busy)} ({self.utilisation:.0%})",
            format_duration(counters.waiting),
            format_bytes(counters.bytes),
            "-" if lag is None else f"{format_number(lag)} / {counters.lag_max}",
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
                other = strangers.setdefault(frozenset(rest), Box(names, format_count(len(rest), "actor"), "actors"))
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
        from raceway.flow._par_iter import shards_of  # here, because streams are built upon this module

        shards = shards_of(node)
        num_actors = len({shard.actor for shard in shards})
        return f"{format_count(len(shards), 'shard')} on {format_count(num_actors, 'actor')}", "parallel"
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


def why_stuck(nodes: Sequence[Node], blocked: Iterable[Any]) -> str:
    """Say why a flow cannot go on: a split whose branches are read at different paces, or limits that hold up all."""
    reasons: dict[str, None] = {}
    for stage in blocked:
        if hasattr(stage, "limits"):
            held = [repr(one.name) for one in stage.open if stage.holds(one)]
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
