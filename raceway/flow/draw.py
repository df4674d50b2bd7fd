"""Plans as pictures: Mermaid for Markdown, and SVG for everything else.

The layout is done here, by hand, because the usual tool for it, graphviz, is a program of the system that may not be
there, and plans are small. It is the usual layout too: operators in layers, the sources on top; long arrows take a
place in every layer that they cross; then every layer is shifted to where its arrows are short and straight. Messages
go up the side, or through a gap between columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raceway.flow.explain import Box, Edge, Plan

INK, GREY, PINK, RED = "#1f2933", "#66727f", "#d6277f", "#e8590c"
FILLS = {"parallel": "#dbeafe", "driver": "#f4f5f7", "apart": "#fef3c7", "actors": "#ffffff"}
LINES = {"parallel": "#5b8def", "driver": "#9aa5b1", "apart": "#d9a514", "actors": "#9aa5b1"}
KINDS = {
    "parallel": "parallel, on shards",
    "driver": "sequential, in the driver",
    "apart": "on a thread or actor of its own",
    "actors": "actors outside the plan",
}
COLOURS = {"in step": INK, "asynchronous": PINK, "message": PINK}
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""
GAP_X, GAP_Y, MARGIN, LANE, LINE = 56.0, 44.0, 26.0, 11.0, 15.0
STACK = 4.0
"""By how much the boxes of a parallel operator stand behind one another."""


# SVG: boxes with a size and a place.


@dataclass(eq=False)
class Placed:
    """A box in the picture, or one of the places where a long arrow crosses a layer."""

    box: Box | None = None
    lines: list[str] = field(default_factory=list)
    """The first is the title."""
    width: float = 16.0
    height: float = 0.0
    x: float = 0.0
    """Of its middle."""
    y: float = 0.0
    """Of its upper edge."""
    layer: int = 0
    above: list[Placed] = field(default_factory=list)
    below: list[Placed] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return about how wide a text is. Fonts differ: this is on the safe side for the usual ones.

    >>> text_width("iii", 10) < text_width("mmm", 10)
    True
    """
    wide, narrow = sum(text.count(c) for c in "mwMW%@—…"), sum(text.count(c) for c in "iljtfr.,:;()[]|!' ")
    capitals = sum(c.isupper() for c in text)
    ems = 0.56 * len(text) + 0.28 * wide - 0.22 * narrow + 0.1 * capitals
    return ems * size * (1.07 if bold else 1.0)


def shortened(text: str, most: int = 34) -> str:
    """Return a text with its middle left out if it is long.

    >>> shortened("a" * 9 + "b" * 9, 9)
    'aaaa…bbbb'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def lines_of(box: Box) -> list[str]:
    """Return what stands in a box: a title, then small type."""
    kind, _, inner = box.label.partition("(")
    first, _, rest = inner.removesuffix(")").partition(", ")
    if kind in ("for_each", "filter", "flat_map", "combine") and inner:
        queue = [part for part in rest.split(", ") if part.startswith("queue=")]
        lines = [first, " · ".join([kind, box.place, *queue])]
    elif kind in ("create", "from_range", "from_items", "from_iterators") and inner:
        lines = [f"{kind}({first})" if first else kind, box.place]
    elif box.kind == "actors" or kind in ("union", "union_async", "split") or not inner:
        lines = [kind if inner else box.label, box.place]
    else:
        lines = [kind, f"{inner.removesuffix(')')} · {box.place}"]
    if box.counters is not None:
        items, rate, busy, waiting, size, lag = box.figures()
        lines += [f"{items} items · {rate}/s", f"busy {busy} · waiting {waiting}"]
        lines += [f"{size} · staleness {lag}" if lag != "-" else size] if box.counters.bytes else []
    return [shortened(lines[0], 30), *(shortened(line, 44) for line in lines[1:])]


class Layout:
    """Finds a place for every box and a way for every arrow."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.placed = {box: self._sized(box) for box in [*plan.boxes.values(), *plan.others]}
        self.flows = [edge for edge in plan.edges if edge.kind != "message"]
        self.messages = [edge for edge in plan.edges if edge.kind == "message"]
        self.ways: dict[Edge, list[Placed]] = {}
        self.layers = self._layers()
        self._settle()
        self.paths = {edge: self._down(way) for edge, way in self.ways.items()}
        self.left = min(one.left for one in self.placed.values())
        self.right = max(one.right for one in self.placed.values())
        self._used: Counter[float] = Counter()
        self._docked: Counter[tuple[Placed, bool]] = Counter()
        for edge in self.messages:
            self.paths[edge] = self._aside(self.placed[edge.start], self.placed[edge.end])

    def _sized(self, box: Box) -> Placed:
        lines = lines_of(box)
        width = max(text_width(lines[0], 13, bold=True), *(text_width(line, 10.5) for line in lines[1:]))
        return Placed(box, lines, max(120.0, width + 26), 22 + LINE * len(lines))

    def _layers(self) -> list[list[Placed]]:
        """Put every box as far down as what reads it allows, and a place into every layer that an arrow crosses."""
        depth = dict.fromkeys(self.placed, 0)
        for box in reversed(self.plan.boxes.values()):
            depth[box] = max((1 + depth[edge.end] for edge in self.flows if edge.start is box), default=0)
        for box in self.plan.others:  # beside the operator that sends to them
            depth[box] = max(depth[edge.start] for edge in self.messages if edge.end is box)
        most = max(depth.values())
        layers: list[list[Placed]] = [[] for _ in range(most + 1)]
        for box, one in self.placed.items():
            one.layer = most - depth[box]
        for edge in self.flows:
            start, end = self.placed[edge.start], self.placed[edge.end]
            between = [Placed(layer=layer) for layer in range(start.layer + 1, end.layer)]
            way = self.ways[edge] = [start, *between, end]
            for upper, lower in zip(way, way[1:], strict=False):
                upper.below.append(lower)
                lower.above.append(upper)
        seen: set[Placed] = set()
        self._order(self.placed[list(self.plan.boxes.values())[-1]], layers, seen)
        for box in self.plan.others:
            layers[self.placed[box].layer].append(self.placed[box])
        for _ in range(4):  # what is below the middle of its neighbours crosses the fewest arrows
            for side, row in [*(("above", row) for row in layers[1:]), *(("below", row) for row in layers[-2::-1])]:
                ranks = {one: rank for each in layers for rank, one in enumerate(each)}
                row.sort(key=lambda one: _mean([ranks[o] for o in getattr(one, side)], ranks[one]))  # noqa: B023
        return layers

    def _order(self, one: Placed, layers: list[list[Placed]], seen: set[Placed]) -> None:
        """Put what feeds a box into the layers, in the order in which it reads them."""
        if one not in seen:
            seen.add(one)
            layers[one.layer].append(one)
            for upper in one.above:
                self._order(upper, layers, seen)

    def _settle(self) -> None:
        y = 0.0
        for row in self.layers:
            height = max((one.height for one in row), default=0.0)
            for one in row:
                one.y, one.height = y, one.height or height
            y += height + GAP_Y
            _space(row, [0.0] * len(row))
        for sweep in range(24):
            for row in self.layers if sweep % 2 else self.layers[::-1]:
                _space(row, [_mean([o.x for o in (*one.above, *one.below)], one.x) for one in row])

    def _down(self, way: Sequence[Placed]) -> str:
        """Return the path of an arrow from a box to one below it."""
        start, *between, end = way
        x, y = _port(start, end.x if not between else between[0].x, start.below), start.bottom
        path = f"M{x:.1f},{y:.1f}"
        for one in [*between, end]:
            to = one.x if one.box is None else _port(one, x, one.above)
            middle = (y + one.y) / 2
            path += f" C{x:.1f},{middle:.1f} {to:.1f},{middle:.1f} {to:.1f},{one.y - (3 if one is end else 0):.1f}"
            if one is not end:
                path += f" V{one.bottom:.1f}"
            x, y = to, one.bottom
        return path

    def _aside(self, start: Placed, end: Placed) -> str:
        """Return the path of a message: out of the side of a box, along a way that is free of boxes, and in again."""
        low, high = sorted((start.layer, end.layer))
        boxes = [one for row in self.layers[low : high + 1] for one in row]
        edges = sorted((one.left, one.right) for one in boxes)
        free, reach = [min(edges)[0] - 20], edges[0][1]
        for left, right in edges:
            if left - reach >= 30:
                free.append((left + reach) / 2)
            reach = max(reach, right)
        free.append(reach + 20 + STACK * 2)

        def cost(x: float) -> float:
            blocked = sum(
                min(one.x, x) < other.x < max(one.x, x)
                for one in (start, end)
                for other in self.layers[one.layer]
                if other is not one
            )
            return abs(start.x - x) + abs(end.x - x) + 10000 * blocked + 30 * self._used[x]

        lane = min(free, key=cost)
        x = lane + LANE * self._used[lane] * (1 if lane >= start.x else -1)
        self._used[lane] += 1
        self.left, self.right = min(self.left, x), max(self.right, x)
        out, into = self._dock(start, x), self._dock(end, x)
        turn = 8 if into[1] > out[1] else -8
        if abs(into[1] - out[1]) < 16:
            return f"M{out[0]:.1f},{out[1]:.1f} H{into[0]:.1f}"
        side_out, side_in = (8 if x > out[0] else -8), (8 if into[0] > x else -8)
        return (
            f"M{out[0]:.1f},{out[1]:.1f} H{x - side_out:.1f} Q{x:.1f},{out[1]:.1f} {x:.1f},{out[1] + turn:.1f}"
            f" V{into[1] - turn:.1f} Q{x:.1f},{into[1]:.1f} {x + side_in:.1f},{into[1]:.1f} H{into[0]:.1f}"
        )

    def _dock(self, one: Placed, x: float) -> tuple[float, float]:
        """Return a point on the side of a box, apart from those that others have."""
        right = x > one.x
        number = self._docked[one, right]
        self._docked[one, right] += 1
        offset = (number + 1) // 2 * (9 if number % 2 else -9)
        behind = STACK * 2 if right and one.box is not None and one.box.kind == "parallel" else 0
        return (one.right + behind if right else one.left), one.y + one.height / 2 + offset


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _port(one: Placed, towards: float, rivals: Sequence[Placed]) -> float:
    """Return where on its edge an arrow leaves or enters a box."""
    if len(rivals) < 2:
        return one.x
    return one.x + max(-0.3, min(0.3, (towards - one.x) / 400)) * one.width


def _space(row: Sequence[Placed], wanted: Sequence[float]) -> None:
    """Put a row of boxes as near as they can be to where they want to be, without one touching another.

    With the room that each needs taken off, the places only must not fall from left to right: neighbours that would
    are pooled, at the mean of what they want.
    """
    starts = [0.0]
    for one, after in zip(row, row[1:], strict=False):
        starts.append(starts[-1] + (one.width + after.width) / 2 + GAP_X)
    pools: list[list[float]] = []
    for start, x in zip(starts, wanted, strict=False):
        pools.append([x - start])
        while len(pools) > 1 and _mean(pools[-2], 0) > _mean(pools[-1], 0):
            last = pools.pop()
            pools[-1] += last
    means = [_mean(pool, 0) for pool in pools for _ in pool]
    for one, start, mean in zip(row, starts, means, strict=False):
        one.x = start + mean


# SVG: the picture.


def svg(plan: Plan) -> str:
    """Return a picture of a plan."""
    layout = Layout(plan)
    bottom = max(one.bottom for one in layout.placed.values())
    parts = [_arrow(edge, path) for edge, path in layout.paths.items()]
    parts += [_drawn(one, one.box is plan.bottleneck) for one in layout.placed.values()]
    parts += [_named(layout, edge) for edge in layout.flows if edge.name]
    left, right = layout.left - MARGIN, layout.right + MARGIN + STACK * 2
    legend, wide, tall = _legend(plan, left + MARGIN, bottom + 34, right - left - 2 * MARGIN)
    width, height = max(right - left, wide + 2 * MARGIN), bottom + 34 + tall + 2 * MARGIN
    view = f"{left:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}"
    back = f'<rect x="{left:.0f}" y="{-MARGIN:.0f}" width="{width:.0f}" height="{height:.0f}" rx="12" fill="#ffffff"/>'
    heads = "".join(
        f'<marker id="head-{kind.replace(" ", "-")}" viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth="7"'
        f' markerHeight="7" orient="auto"><path d="M0,0.6 L7.5,4 L0,7.4 Z" fill="{colour}"/></marker>'
        for kind, colour in COLOURS.items()
    )
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="{view}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT}>'
    return "\n".join([opening, f"<defs>{heads}</defs>", back, *parts, legend, "</svg>"])
