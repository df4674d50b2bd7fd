"""Where everything in the picture of a plan goes.

By hand, because the usual tool for it, graphviz, is a program of the system that may not be there, and plans are small.
It is the usual layout too: operators in layers, the sources on top; long arrows take a place in every layer that they
cross; then every layer is shifted to where its arrows are short and straight. Messages go up the side, or through a gap
between columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raceway.flow.explain import Box, Edge, Plan

GAP_X, GAP_Y, LINE = 60.0, 44.0, 15.0
LANE, CLEAR, SIDE = 11.0, 12.0, 22.0
"""Of messages: how far from one another, at least from boxes, and at first from the side of all."""
TURN = 8.0
"""The radius of the corners of messages."""
STACK = 4.0
"""By how much the boxes of a parallel operator stand behind one another."""


class Way(NamedTuple):
    """Where an arrow goes, and its tip."""

    path: str
    x: float
    y: float
    angle: float


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
    elif len(box.label) < 24:
        lines = [box.label, box.place]
    else:
        lines = [kind, f"{inner.removesuffix(')')} · {box.place}"]
    if box.counters is not None:
        items, rate, busy, waiting, size, lag = box.figures()
        lines.append(f"{items} {'item' if box.counters.items == 1 else 'items'} · {rate}/s")
        times = [(box.counters.busy, f"busy {busy}"), (box.counters.waiting, f"waiting {waiting}")]
        lines.append(" · ".join(words for amount, words in times if amount))
        lines.append(" · ".join([size] * bool(box.counters.bytes) + [f"staleness {lag}"] * (lag != "-")))
        lines = [line for line in lines if line]
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
        self.left = min(one.left for row in self.layers for one in row)
        self.right = max(one.right for row in self.layers for one in row)
        self._taken: list[tuple[float, float, float]] = []  # lanes of messages: where, from, to
        self._docked: Counter[tuple[Placed, bool]] = Counter()
        self._detours: Counter[tuple[int, bool]] = Counter()
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
            for upper, lower in pairwise(way):
                upper.below.append(lower)
                lower.above.append(upper)
        seen: set[Placed] = set()
        self._order(self.placed[list(self.plan.boxes.values())[-1]], layers, seen)
        for box in self.plan.others:
            layers[self.placed[box].layer].append(self.placed[box])
        for _ in range(4):  # in the order of the middles of their neighbours the fewest arrows cross
            for side, row in [*(("above", row) for row in layers[1:]), *(("below", row) for row in layers[-2::-1])]:
                ranks = {one: rank for each in layers for rank, one in enumerate(each)}
                row.sort(key=lambda one: _mean([ranks[o] for o in getattr(one, side)], ranks[one]))
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
        for sweep in range(120):
            stiff = 8 if sweep < 60 else 1000  # first to about where it belongs, then straight
            for row in self.layers if sweep % 2 else self.layers[::-1]:
                _space(row, [_wanted(one, stiff) for one in row])

    def _down(self, way: Sequence[Placed]) -> Way:
        """Return the path of an arrow from a box to one below it."""
        end = way[-1]
        x, y = port(way[0], way[1], way[0].below), way[0].bottom
        path = f"M{x:.1f},{y:.1f}"
        for before, one in pairwise(way):
            to = port(one, before, one.above)
            top, middle = one.y - (6 + _behind(end) if one is end else 0), (y + one.y) / 2
            path += f" C{x:.1f},{middle:.1f} {to:.1f},{middle:.1f} {to:.1f},{top:.1f}"
            path += f" V{one.bottom:.1f}" if one is not end else ""
            x, y = to, one.bottom
        return Way(path, x, end.y - _behind(end), 90)

    def _aside(self, start: Placed, end: Placed) -> Way:
        """Return the path of a message: out of the side of a box, along a way that is free of boxes, and in again."""
        x = self._lane(start, end)
        out, into = self._dock(start, x), self._dock(end, x)
        down = end.layer > start.layer
        going = [out, *self._detour(start, out, x, down)]
        coming = [into, *self._detour(end, into, x, not down)]
        ends = going[-1][1], coming[-1][1]
        self._taken.append((x, min(ends), max(ends)))
        self.left, self.right = min(self.left, x), max(self.right, x)
        angle = 180 if x > end.x else 0
        coming[0] = (into[0] + (6 if angle else -6), into[1])
        return Way(_rounded([*going, (x, ends[0]), (x, ends[1]), *coming[::-1]]), *into, angle)

    def _lane(self, start: Placed, end: Placed) -> float:
        """Return where to go up or down between two boxes: at the side, or in a gap that no box is in."""
        low, high = sorted((start.layer, end.layer))
        boxes = sorted((one for row in self.layers[low : high + 1] for one in row), key=lambda one: one.left)
        first, reach = boxes[0].left - SIDE, boxes[0].left
        gaps = [(-math.inf, boxes[0].left, first)]
        for one in boxes:
            gaps += [(reach, one.left, (reach + one.left) / 2)] if one.left - reach > 2 * CLEAR else []
            reach = max(reach, one.right + _behind(one))
        gaps.append((reach, math.inf, reach + SIDE))
        found = []
        for left, right, first in gaps:
            tries = [first + LANE * step for pair in range(20) for step in (pair, -pair)]
            room = [x for x in tries if left + CLEAR < x < right - CLEAR and not self._is_taken(x, start, end)]
            x = room[0] if room else first
            crossed = len(self._between(start, x)) + len(self._between(end, x))
            inner = 60 if math.isfinite(right - left) else 0  # a way around the outside is easier to follow
            found.append((abs(start.x - x) + abs(end.x - x) + inner + 400 * crossed + (0 if room else 1000), x))
        return min(found)[1]

    def _is_taken(self, x: float, start: Placed, end: Placed) -> bool:
        top, bottom = min(start.y, end.y), max(start.bottom, end.bottom)
        return any(abs(x - other) < LANE - 1 and top < last and first < bottom for other, first, last in self._taken)

    def _between(self, one: Placed, x: float) -> list[Placed]:
        """Return what stands in the same layer between a box and a place beside it."""
        row = self.layers[one.layer]
        return [other for other in row if other.box is not None and min(one.x, x) < other.x < max(one.x, x)]

    def _detour(self, one: Placed, dock: tuple[float, float], x: float, down: bool) -> list[tuple[float, float]]:
        """Return the way around what stands between: beside the box to the gap above or below its layer."""
        if not self._between(one, x):
            return []
        apart = 5 * self._detours[one.layer, down]
        self._detours[one.layer, down] += 1
        beside = dock[0] + math.copysign(CLEAR + apart, x - one.x)
        row = self.layers[one.layer]
        gap = max(other.bottom for other in row) + 10 if down else min(other.y for other in row) - 10 - 2 * STACK
        gap += apart if down else -apart
        return [(beside, dock[1]), (beside, gap)]

    def _dock(self, one: Placed, x: float) -> tuple[float, float]:
        """Return a point on the side of a box, apart from those that others have."""
        right = x > one.x
        number = self._docked[one, right]
        self._docked[one, right] += 1
        offset = (number + 1) // 2 * (9 if number % 2 else -9)
        return (one.right + _behind(one) if right else one.left), one.y + one.height / 2 + offset


def _behind(one: Placed) -> float:
    """Return how far the boxes of a parallel operator stick out."""
    return 2 * STACK if one.box is not None and one.box.kind == "parallel" else 0.0


def _rounded(points: Sequence[tuple[float, float]]) -> str:
    """Return a path along points, with round corners."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        ends = []
        for other_x, other_y in (before, after):
            length = math.hypot(other_x - x, other_y - y)
            part = min(TURN, length / 2) / length if length else 0.0
            ends.append(f"{x + part * (other_x - x):.1f},{y + part * (other_y - y):.1f}")
        path += f" L{ends[0]} Q{x:.1f},{y:.1f} {ends[1]}"
    return path + f" L{points[-1][0]:.1f},{points[-1][1]:.1f}"


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _wanted(one: Placed, stiff: float) -> float:
    """Return where a box would like to be: in line with its neighbours, above all with one that has no other."""
    links = [(o.x, stiff if len(o.below) == len(one.above) == 1 else 1.0) for o in one.above]
    links += [(o.x, stiff if len(o.above) == len(one.below) == 1 else 1.0) for o in one.below]
    return sum(x * weight for x, weight in links) / sum(weight for _, weight in links) if links else one.x


def port(one: Placed, other: Placed, rivals: Sequence[Placed]) -> float:
    """Return where on its edge an arrow to or from another box meets a box: in the order of where they all go."""
    rank = sorted(rivals, key=lambda rival: rival.x).index(other) - (len(rivals) - 1) / 2
    return one.x + rank * min(0.7 * one.width / len(rivals), 40.0) if one.box is not None else one.x


def _space(row: Sequence[Placed], wanted: Sequence[float]) -> None:
    """Put a row of boxes as near as they can be to where they want to be, without one touching another.

    With the room that each needs taken off, the places only must not fall from left to right: neighbours that would
    are pooled, at the mean of what they want.
    """
    starts = [0.0]
    for one, after in pairwise(row):
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
