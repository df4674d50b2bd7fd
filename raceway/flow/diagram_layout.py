"""The layout of a plan diagram: positions of the nodes and paths of the arrows.

It is computed here because the usual tool for it, graphviz, is a system program that may not be installed, and plans
are small. The method is the usual one: nodes in layers, the sources on top; a long arrow gets a waypoint in every layer
that it crosses; then the nodes are shifted until the arrows are short and straight. Messages run along the side, or
through a gap between columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from raceway.flow.node_text import node_lines, text_width

if TYPE_CHECKING:
    from raceway.flow.explain import Edge, NodeView, PlanView

GAP_X, GAP_Y, LINE = 60.0, 44.0, 15.0
TRACK_GAP, CLEARANCE, SIDE_GAP = 11.0, 12.0, 22.0
"""Distances of messages: to each other, to nodes (at least), and of the first to the side of the diagram."""
CORNER_RADIUS = 8.0
"""Of messages."""
STACK_OFFSET = 4.0
"""Between the stacked boxes of a parallel operator."""


class ArrowPath(NamedTuple):
    """The SVG path of an arrow, and the position and angle of its tip."""

    path: str
    x: float
    y: float
    angle: float


@dataclass(eq=False)
class PlacedNode:
    """A node at its position, or a waypoint where a long arrow crosses a layer."""

    view: NodeView | None = None
    """None for a waypoint."""
    lines: list[str] = field(default_factory=list)
    """The first is the title."""
    width: float = 16.0
    height: float = 0.0
    x: float = 0.0
    """Of its centre."""
    y: float = 0.0
    """Of its upper edge."""
    layer: int = 0
    above: list[PlacedNode] = field(default_factory=list)
    below: list[PlacedNode] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


class Layout:
    """Computes a position for every node and a path for every edge."""

    def __init__(self, plan: PlanView) -> None:
        self.plan = plan
        self.placed = {view: self._measure(view) for view in [*plan.nodes.values(), *plan.outside_actors]}
        self.flows = [edge for edge in plan.edges if edge.kind != "message"]
        self.messages = [edge for edge in plan.edges if edge.kind == "message"]
        self.routes: dict[Edge, list[PlacedNode]] = {}
        """Of every flow: its start, the waypoints, and its end."""
        self.layers = self._layers()
        self._position_nodes()
        self.paths = {edge: self._flow_path(route) for edge, route in self.routes.items()}
        self.left = min(node.left for row in self.layers for node in row)
        self.right = max(node.right for row in self.layers for node in row)
        self._tracks: list[tuple[float, float, float]] = []  # vertical parts of messages: x, top, bottom
        self._num_docked: Counter[tuple[PlacedNode, bool]] = Counter()
        self._num_detours: Counter[tuple[int, bool]] = Counter()
        for edge in self.messages:
            self.paths[edge] = self._message_path(self.placed[edge.start], self.placed[edge.end])

    def _measure(self, view: NodeView) -> PlacedNode:
        lines = node_lines(view)
        width = max(text_width(lines[0], 13, bold=True), *(text_width(line, 10.5) for line in lines[1:]))
        return PlacedNode(view, lines, max(120.0, width + 26), 22 + LINE * len(lines))

    def _layers(self) -> list[list[PlacedNode]]:
        """Put every node as far down as its readers allow, and a waypoint into every layer that an arrow crosses."""
        depth = dict.fromkeys(self.placed, 0)
        for view in reversed(self.plan.nodes.values()):
            depth[view] = max((1 + depth[edge.end] for edge in self.flows if edge.start is view), default=0)
        for view in self.plan.outside_actors:  # beside the operator that sends to them
            depth[view] = max(depth[edge.start] for edge in self.messages if edge.end is view)
        max_depth = max(depth.values())
        layers: list[list[PlacedNode]] = [[] for _ in range(max_depth + 1)]
        for view, node in self.placed.items():
            node.layer = max_depth - depth[view]
        for edge in self.flows:
            start, end = self.placed[edge.start], self.placed[edge.end]
            waypoints = [PlacedNode(layer=layer) for layer in range(start.layer + 1, end.layer)]
            route = self.routes[edge] = [start, *waypoints, end]
            for upper, lower in pairwise(route):
                upper.below.append(lower)
                lower.above.append(upper)
        seen: set[PlacedNode] = set()
        self._add_in_reading_order(self.placed[list(self.plan.nodes.values())[-1]], layers, seen)
        for view in self.plan.outside_actors:
            layers[self.placed[view].layer].append(self.placed[view])
        for _ in range(4):  # sorted by the mean position of their neighbours, the fewest arrows cross
            for side, row in [*(("above", row) for row in layers[1:]), *(("below", row) for row in layers[-2::-1])]:
                ranks = {node: rank for each_row in layers for rank, node in enumerate(each_row)}
                row.sort(key=lambda node: _mean([ranks[other] for other in getattr(node, side)], ranks[node]))
        return layers

    def _add_in_reading_order(self, node: PlacedNode, layers: list[list[PlacedNode]], seen: set[PlacedNode]) -> None:
        """Add a node and the nodes above it to the layers, in the order in which it reads them."""
        if node not in seen:
            seen.add(node)
            layers[node.layer].append(node)
            for upper in node.above:
                self._add_in_reading_order(upper, layers, seen)

    def _position_nodes(self) -> None:
        y = 0.0
        for row in self.layers:
            height = max((node.height for node in row), default=0.0)
            for node in row:
                node.y, node.height = y, node.height or height
            y += height + GAP_Y
            _space_row(row, [0.0] * len(row))
        for sweep in range(120):
            stiffness = 8 if sweep < 60 else 1000  # first roughly into place, then straight
            for row in self.layers if sweep % 2 else self.layers[::-1]:
                _space_row(row, [_preferred_x(node, stiffness) for node in row])

    def _flow_path(self, route: Sequence[PlacedNode]) -> ArrowPath:
        """Return the path of an arrow from a node to one below it."""
        end = route[-1]
        x, y = port_x(route[0], route[1], route[0].below), route[0].bottom
        path = f"M{x:.1f},{y:.1f}"
        for previous, node in pairwise(route):
            to_x = port_x(node, previous, node.above)
            top, middle = node.y - (6 + _stack_depth(end) if node is end else 0), (y + node.y) / 2
            path += f" C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{top:.1f}"
            path += f" V{node.bottom:.1f}" if node is not end else ""
            x, y = to_x, node.bottom
        return ArrowPath(path, x, end.y - _stack_depth(end), 90)

    def _message_path(self, start: PlacedNode, end: PlacedNode) -> ArrowPath:
        """Return the path of a message: out of the side of a node, along a free track, and into the other node."""
        x = self._choose_track(start, end)
        start_dock, end_dock = self._dock(start, x), self._dock(end, x)
        down = end.layer > start.layer
        leaving = [start_dock, *self._detour(start, start_dock, x, down)]
        arriving = [end_dock, *self._detour(end, end_dock, x, not down)]
        ends = leaving[-1][1], arriving[-1][1]
        self._tracks.append((x, min(ends), max(ends)))
        self.left, self.right = min(self.left, x), max(self.right, x)
        angle = 180 if x > end.x else 0
        arriving[0] = (end_dock[0] + (6 if angle else -6), end_dock[1])
        points = [*leaving, (x, ends[0]), (x, ends[1]), *arriving[::-1]]
        return ArrowPath(_rounded_path(points), *end_dock, angle)

    def _choose_track(self, start: PlacedNode, end: PlacedNode) -> float:
        """Return the x at which to run up or down between two nodes: at the side, or in a gap without nodes."""
        low, high = sorted((start.layer, end.layer))
        nodes = sorted((node for row in self.layers[low : high + 1] for node in row), key=lambda node: node.left)
        first, reach = nodes[0].left - SIDE_GAP, nodes[0].left
        gaps = [(-math.inf, nodes[0].left, first)]
        for node in nodes:
            gaps += [(reach, node.left, (reach + node.left) / 2)] if node.left - reach > 2 * CLEARANCE else []
            reach = max(reach, node.right + _stack_depth(node))
        gaps.append((reach, math.inf, reach + SIDE_GAP))
        candidates = []
        for left, right, first in gaps:
            tries = [first + TRACK_GAP * step for pair in range(20) for step in (pair, -pair)]
            free = [x for x in tries if left + CLEARANCE < x < right - CLEARANCE and not self._is_taken(x, start, end)]
            x = free[0] if free else first
            num_crossed = len(self._between(start, x)) + len(self._between(end, x))
            inner = 60 if math.isfinite(right - left) else 0  # a path around the outside is easier to follow
            cost = abs(start.x - x) + abs(end.x - x) + inner + 400 * num_crossed + (0 if free else 1000)
            candidates.append((cost, x))
        return min(candidates)[1]

    def _is_taken(self, x: float, start: PlacedNode, end: PlacedNode) -> bool:
        top, bottom = min(start.y, end.y), max(start.bottom, end.bottom)
        return any(
            abs(x - other) < TRACK_GAP - 1 and top < last and first < bottom for other, first, last in self._tracks
        )

    def _between(self, node: PlacedNode, x: float) -> list[PlacedNode]:
        """Return the nodes of the same layer between a node and a track beside it."""
        row = self.layers[node.layer]
        return [other for other in row if other.view is not None and min(node.x, x) < other.x < max(node.x, x)]

    def _detour(self, node: PlacedNode, dock: tuple[float, float], x: float, down: bool) -> list[tuple[float, float]]:
        """Return the points of a path around the nodes in between, through the gap above or below the layer."""
        if not self._between(node, x):
            return []
        offset = 5 * self._num_detours[node.layer, down]
        self._num_detours[node.layer, down] += 1
        beside = dock[0] + math.copysign(CLEARANCE + offset, x - node.x)
        row = self.layers[node.layer]
        gap = max(other.bottom for other in row) + 10 if down else min(other.y for other in row) - 10 - 2 * STACK_OFFSET
        gap += offset if down else -offset
        return [(beside, dock[1]), (beside, gap)]

    def _dock(self, node: PlacedNode, x: float) -> tuple[float, float]:
        """Return a point on the side of a node that no other message uses."""
        right = x > node.x
        number = self._num_docked[node, right]
        self._num_docked[node, right] += 1
        offset = (number + 1) // 2 * (9 if number % 2 else -9)
        return (node.right + _stack_depth(node) if right else node.left), node.y + node.height / 2 + offset


def _stack_depth(node: PlacedNode) -> float:
    """Return how far the stacked boxes of a parallel operator stick out."""
    return 2 * STACK_OFFSET if node.view is not None and node.view.kind == "parallel" else 0.0


def _rounded_path(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path along points, with rounded corners."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for previous, (x, y), following in zip(points, points[1:], points[2:], strict=False):
        ends = []
        for other_x, other_y in (previous, following):
            length = math.hypot(other_x - x, other_y - y)
            part = min(CORNER_RADIUS, length / 2) / length if length else 0.0
            ends.append(f"{x + part * (other_x - x):.1f},{y + part * (other_y - y):.1f}")
        path += f" L{ends[0]} Q{x:.1f},{y:.1f} {ends[1]}"
    return path + f" L{points[-1][0]:.1f},{points[-1][1]:.1f}"


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _preferred_x(node: PlacedNode, stiffness: float) -> float:
    """Return the x at which a node is in line with its neighbours, above all with one that has no other."""
    links = [(other.x, stiffness if len(other.below) == len(node.above) == 1 else 1.0) for other in node.above]
    links += [(other.x, stiffness if len(other.above) == len(node.below) == 1 else 1.0) for other in node.below]
    return sum(x * weight for x, weight in links) / sum(weight for _, weight in links) if links else node.x


def port_x(node: PlacedNode, neighbour: PlacedNode, neighbours: Sequence[PlacedNode]) -> float:
    """Return the x at which the arrow of a neighbour meets a node. Arrows are in the order of the neighbours."""
    rank = sorted(neighbours, key=lambda other: other.x).index(neighbour) - (len(neighbours) - 1) / 2
    return node.x + rank * min(0.7 * node.width / len(neighbours), 40.0) if node.view is not None else node.x


def _space_row(row: Sequence[PlacedNode], preferred: Sequence[float]) -> None:
    """Place the nodes of a row as close to their preferred positions as possible without overlap.

    After subtracting the space that each node needs, the positions must not decrease from left to right. Neighbours
    that would decrease are pooled at the mean of their preferred positions (isotonic regression).
    """
    starts = [0.0]
    for node, following in pairwise(row):
        starts.append(starts[-1] + (node.width + following.width) / 2 + GAP_X)
    pools: list[list[float]] = []
    for start, x in zip(starts, preferred, strict=False):
        pools.append([x - start])
        while len(pools) > 1 and _mean(pools[-2], 0) > _mean(pools[-1], 0):
            last = pools.pop()
            pools[-1] += last
    means = [_mean(pool, 0) for pool in pools for _ in pool]
    for node, start, mean in zip(row, starts, means, strict=False):
        node.x = start + mean
