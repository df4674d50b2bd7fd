"""Show a flow: its plan as text, Mermaid or SVG, with counters and the bottleneck if it is run.

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
from raceway.flow.analyze import run_and_measure
from raceway.flow.monitoring import Counters
from raceway.formatting import format_bytes, format_count, format_duration, format_number

FORMATS = ("text", "mermaid", "svg")
_MAX_SEARCHED = 1000  # items of a collection that are searched for actors: a larger one holds data


class Explainable:
    """Base of both kinds of stream: shows the plan that ends in a node."""

    _node: Node

    def __repr__(self) -> str:
        return PlanView(self._node).text()

    def explain(
        self,
        format: str = "text",
        *,
        analyze: bool = False,
        items: int | None = None,
        seconds: float | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Return the plan. With `analyze`, run it for a while and add the counters and the bottleneck.

        Args:
            format: `text`, `mermaid`, or `svg`.
            analyze: run the flow, from its source. Later runs start their operators anew, but effects on what these
                share, such as training a learner, are real.
            items: stop after this many items.
            seconds: stop after this time. The default is 100 items or 10 seconds, whichever is first.
            path: a file to write the plan to as well.
        """
        if format not in FORMATS:
            raise unknown_name("format of a plan", format, FORMATS)
        if not analyze and (items is not None or seconds is not None):
            raise ConfigError("items and seconds limit a run of the flow. Use them with analyze=True.")
        plan = PlanView(self._node)
        if analyze:
            if self._node.parallel:
                raise ConfigError(f"a ParIter cannot be run by itself. Gather it first to analyze it: {self._node}")
            if items is None and seconds is None:
                items, seconds = 100, 10.0
            run_and_measure(self, plan, items, seconds)
        rendered = (
            plan.text() if format == "text" else render.mermaid(plan) if format == "mermaid" else render.svg(plan)
        )
        if path is not None:
            Path(path).write_text(rendered + "\n", encoding="utf-8")
        return rendered


@dataclass(eq=False)
class NodeView:
    """An operator as it is shown, or actors outside the plan that receive messages."""

    label: str
    place: str
    kind: str
    """`parallel`, `driver`, `offloaded` (on a dedicated thread or actor), or `actors`."""
    where: str = ""
    counters: Counters | None = None
    """Its counters, if the flow was run and the operator has any."""
    seconds: float = 0.0
    """Duration of the run."""
    num_workers: int = 1
    """How many instances of it can work at the same time."""

    @property
    def utilisation(self) -> float:
        """Fraction of the time that it was busy."""
        return self.counters.busy / (self.seconds * self.num_workers) if self.counters and self.seconds else 0.0

    def format_counters(self) -> tuple[str, ...]:
        """Return the counters as text: items, items/s, busy, waiting, bytes, staleness."""
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
    """An arrow from one node to another."""

    start: NodeView
    end: NodeView
    kind: str
    """`synchronous`, `asynchronous` or `message`."""
    name: str = ""
    """Name of the branch."""


@dataclass
class PlanView:
    """A plan as it is shown: nodes, sources first, and edges. A branch of a split is the name of an edge."""

    root: Node
    nodes: dict[Node, NodeView] = field(default_factory=dict)
    outside_actors: list[NodeView] = field(default_factory=list)
    """Actors that receive messages and are not part of the plan."""
    edges: list[Edge] = field(default_factory=list)
    summary: str = ""
    """Of a run: its duration and the bottleneck."""
    bottleneck: NodeView | None = None

    def __post_init__(self) -> None:
        for node in walk(self.root):
            if node.kind == "branch" and node is not self.root:
                continue
            view = self.nodes[node] = NodeView(node.label, *_place_and_kind(node), os.path.basename(node.spec.where))
            kind = "asynchronous" if _is_asynchronous(node) else "synchronous"
            names = node.spec.settings.get("inputs", [""] * len(node.parents))
            for name, parent in zip(names, node.parents, strict=True):
                if parent.kind == "branch":
                    branch = parent.label[len("branch(") : -1]
                    name = branch if name in ("", branch) or name.isdigit() else f"{branch} → {name}"
                    parent = parent.parents[0]
                self.edges.append(Edge(self.nodes[parent], view, kind, name))
        self._add_messages()

    def _add_messages(self) -> None:
        outside: dict[frozenset[Actor], NodeView] = {}
        for node, view in self.nodes.items():
            receivers = dict.fromkeys(actors_in(node.spec.settings.get("function")))
            in_plan = [
                other for other in self.nodes if other is not node and not receivers.keys().isdisjoint(other.actors)
            ]
            self.edges += [Edge(view, self.nodes[other], "message") for other in in_plan]
            rest = [actor for actor in receivers if not any(actor in other.actors for other in in_plan)]
            if rest:
                names = ", ".join(actor.name for actor in rest[:3]) + (", …" if len(rest) > 3 else "")
                actors_view = NodeView(names, format_count(len(rest), "actor"), "actors")
                self.edges.append(Edge(view, outside.setdefault(frozenset(rest), actors_view), "message"))
        self.outside_actors = list(outside.values())

    def text(self) -> str:
        """Return the plan as a tree, from the result down to the sources."""
        head = ("", "", "", "items", "items/s", "busy", "waiting", "bytes", "staleness", "")
        rows = [*([head] if self.summary else []), *self._rows(self.nodes[self.root], "", "", set())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [
                cell.rjust(width) if 3 <= column < 9 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
                if width
            ]
            lines.append("  ".join(cells).rstrip())
        if any(edge.kind == "asynchronous" for edge in self.edges):
            lines.append("─ synchronous  ~ asynchronous")
        return "\n".join([*lines, self.summary] if self.summary else lines)

    def _rows(self, view: NodeView, lead: str, child_lead: str, seen: set[NodeView]) -> Iterator[tuple[str, ...]]:
        if view in seen:
            yield (f"{lead}{view.label}, as above", *("",) * 9)
            return
        seen.add(view)
        receivers = ", ".join(edge.end.label for edge in self.edges if edge.start is view and edge.kind == "message")
        messages = f"messages to {receivers}" if receivers else ""
        yield lead + view.label, view.place, view.where, *view.format_counters(), messages
        inputs = [edge for edge in self.edges if edge.end is view and edge.kind != "message"]
        for edge in inputs:
            last = edge is inputs[-1]
            corner = ("└" if last else "├") + ("~ " if edge.kind == "asynchronous" else "─ ")
            name = f"{edge.name}: " if edge.name else ""
            below = child_lead + ("   " if last else "│  ")
            yield from self._rows(edge.start, f"{child_lead}{corner}{name}", below, seen)


def _place_and_kind(node: Node) -> tuple[str, str]:
    """Return where a node runs, as text and as the `kind` of its view."""
    if node.parallel:
        from raceway.flow._par_iter import shard_specs  # here, because streams import this module

        shards = shard_specs(node)
        num_actors = len({shard.actor for shard in shards})
        return f"{format_count(len(shards), 'shard')} on {format_count(num_actors, 'actor')}", "parallel"
    if "max_in_flight" in node.spec.settings:
        return (f"actor {node.actors[0].name}" if node.actors else "thread"), "offloaded"
    return "driver", "driver"


def _is_asynchronous(node: Node) -> bool:
    """Whether a node reads its inputs independently of when it is read itself."""
    return node.kind in ("gather_async", "queue", "union_async") or "max_in_flight" in node.spec.settings


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
    """Return the parts of a value that may hold actors."""
    if isinstance(value, (str, bytes, int, float, type, ModuleType, Explainable)) or hasattr(type(value), "spawn"):
        return ()  # an engine holds every actor, not only the receivers of messages
    if isinstance(value, dict):
        return islice(value.values(), _MAX_SEARCHED)
    if isinstance(value, (list, tuple, set, frozenset)):
        return islice(value, _MAX_SEARCHED)
    parts = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, partial):
        parts += [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        parts += [value.__defaults__, value.__kwdefaults__]
        parts += [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                parts.append(cell.cell_contents)
    elif hasattr(value, "__self__"):
        parts += [value.__self__, getattr(value, "__func__", None)]
    return parts


def describe_deadlock(nodes: Sequence[Node], blocked: Iterable[Any]) -> str:
    """Return why a flow cannot continue: branches of a split are read at different rates, or rate limits block all."""
    reasons: dict[str, None] = {}
    for stage in blocked:
        if hasattr(stage, "limiter"):
            limited = [repr(branch.name) for branch in stage.open if stage.is_limited(branch)]
            if limited:
                reasons[f"the rate limits of {stage.node} block {', '.join(limited)}"] = None
            continue
        name = max(stage.queues, key=lambda name: len(stage.queues[name]))
        is_read = any(node.parents == (stage.node,) and node.label == f"branch({name})" for node in nodes)
        reasons[
            f"branch {name!r} of {stage.node}, {'' if is_read else 'which is not read in this flow, '}is "
            f"{stage.backlog} items behind, and another branch needs more items before it can produce one. Read the "
            f"branches at the same rate (union_async, or weights to match), or split with a buffer of more than "
            f"{stage.buffer}"
        ] = None
    return f"the flow cannot continue: {'; '.join(reasons)}."


def callable_name(function: Any) -> str:
    """Return the name of a function, or of the class of another object, for labels.

    >>> callable_name(str.upper), callable_name(lambda x: x)
    ('upper', '<lambda>')
    """
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
