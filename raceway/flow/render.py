"""Plans as pictures: Mermaid for Markdown, and SVG for everything else."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING

from raceway.flow.layout import LINE, STACK, Layout, Placed, Way, port, text_width

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
    "message": "message to actors",
}
COLOURS = {"in step": INK, "asynchronous": PINK, "message": PINK}
ARROWS = {"in step": "-->", "asynchronous": "==>", "message": "-.->"}
DASHES = {
    "actors": ' stroke-dasharray="5 3"',
    "message": ' stroke-dasharray="1.5 4" stroke-linecap="round"',
}
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
COLUMN = 205.0
"""The width of an entry of the legend."""
MARGIN = 26.0


def svg(plan: Plan) -> str:
    """Return a picture of a plan."""
    layout = Layout(plan)
    bottom = max(one.bottom for one in layout.placed.values()) + 30
    parts = [_arrow(edge.kind, way) for edge, way in layout.paths.items()]
    parts += [_drawn(one, one.box, one.box is plan.bottleneck) for one in layout.placed.values() if one.box]
    parts += [_named(layout, edge) for edge in layout.flows if edge.name]
    drawn = layout.right + 2 * STACK - layout.left
    width = max(drawn, 2 * COLUMN)
    left = layout.left - (width - drawn) / 2
    legend, bottom = _legend(plan, left, bottom, width)
    x, y, wide, high = (f"{number:.0f}" for number in (left - MARGIN, -MARGIN, width + 2 * MARGIN, bottom + 2 * MARGIN))
    size = f'width="{wide}" height="{high}"'
    view = f"{x} {y} {wide} {high}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{view}" role="img" font-family="{FONT}">',
            f'<rect x="{x}" y="{y}" {size} rx="12" fill="#ffffff"/>',
            *parts,
            *legend,
            "</svg>",
        ]
    )


def _arrow(kind: str, way: Way) -> str:
    place = f"translate({way.x:.1f} {way.y:.1f}) rotate({way.angle:.0f})"
    look = f'fill="none" stroke="{COLOURS[kind]}" stroke-width="1.7"{DASHES.get(kind, "")}'
    tip = f'<path d="M-9,-4 L0,0 L-9,4 Z" fill="{COLOURS[kind]}" transform="{place}"/>'
    return f'<g class="{kind.replace(" ", "-")}"><path d="{way.path}" {look}/>{tip}</g>'


def _drawn(one: Placed, box: Box, strong: bool) -> str:
    """Draw a box. What it is called in full, and where it was added, is its tooltip."""
    line = f'stroke="{RED}" stroke-width="3"' if strong else f'stroke="{LINES[box.kind]}" stroke-width="1.2"'
    where = f"\nadded at {box.where}" if box.where else ""
    parts = [f"<title>{escape(f'{box.label}, {box.place}{where}')}</title>"]
    for behind in (2, 1, 0) if box.kind == "parallel" else (0,):
        parts.append(
            f'<rect x="{one.left + STACK * behind:.1f}" y="{one.y - STACK * behind:.1f}" width="{one.width:.1f}"'
            f' height="{one.height:.1f}" rx="7" fill="{FILLS[box.kind]}" {line}{DASHES.get(box.kind, "")}/>'
        )
    parts += [
        _text(one.x, one.y + 21 + place * LINE + (2 if place else 0), line, "middle", title=not place)
        for place, line in enumerate(one.lines)
    ]
    if strong:
        parts.append(f'<rect x="{one.right - 52:.1f}" y="{one.y - 9:.1f}" width="72" height="16" rx="8" fill="{RED}"/>')
        parts.append(_text(one.right - 16, one.y + 2.5, "bottleneck", "middle", colour="#ffffff"))
    return f'<g class="{box.kind}">{"".join(parts)}</g>'


def _text(x: float, y: float, text: str, anchor: str, *, title: bool = False, colour: str = GREY) -> str:
    look = f'font-size="13" font-weight="600" fill="{INK}"' if title else f'font-size="10.5" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{escape(text)}</text>'


def _named(layout: Layout, edge: Edge) -> str:
    """Write the name of a branch on its arrow: at the split, or at the union."""
    way = layout.ways[edge]
    upper, lower = way[:2] if edge.start.label.startswith("split") else way[-2:]
    x = (port(upper, lower, upper.below) + port(lower, upper, lower.above)) / 2
    y, width = (upper.bottom + lower.y) / 2, text_width(edge.name, 10.5) + 10
    back = f'<rect x="{x - width / 2:.1f}" y="{y - 8:.1f}" width="{width:.1f}" height="16" rx="8" fill="#ffffff"/>'
    return back + _text(x, y + 3.5, edge.name, "middle", colour=COLOURS[edge.kind])


def _legend(plan: Plan, left: float, top: float, width: float) -> tuple[list[str], float]:
    """Return the legend of what is in the picture, and where it ends."""
    boxes = {box.kind for box in [*plan.boxes.values(), *plan.others]}
    arrows = {edge.kind for edge in plan.edges}
    entries = [(kind, KINDS[kind]) for kind in FILLS if kind in boxes]
    entries += [(kind, KINDS.get(kind, kind)) for kind in COLOURS if kind in arrows]
    a_row = int(width // COLUMN)
    parts = [f'<path d="M{left:.1f},{top:.1f} h{width:.1f}" stroke="#e4e7eb"/>']
    for number, (kind, words) in enumerate(entries):
        x, y = left + number % a_row * COLUMN, top + 20 + number // a_row * 18
        if kind in COLOURS:
            parts.append(_arrow(kind, Way(f"M{x:.1f},{y:.1f} h17", x + 23, y, 0)))
        else:
            behind = (
                f'<rect x="{x + 6:.1f}" y="{y - 7:.1f}" width="17" height="10" rx="3"' if kind == "parallel" else ""
            )
            look = f'fill="{FILLS[kind]}" stroke="{LINES[kind]}"'
            parts += [f"{behind} {look}/>"] if behind else []
            parts.append(f'<rect x="{x + 3:.1f}" y="{y - 4.5:.1f}" width="17" height="10" rx="3" {look}/>')
        parts.append(_text(x + 30, y + 3.5, words, "start"))
    height = 20 + -(-len(entries) // a_row) * 18.0
    for line in textwrap.wrap(plan.verdict, int(width / 6)):
        parts.append(_text(left, top + height + 8, line, "start", colour=INK))
        height += LINE
    return parts, top + height - 16


# Mermaid.


def mermaid(plan: Plan) -> str:
    """Return a plan as a Mermaid flowchart."""
    names = {box: f"n{number}" for number, box in enumerate([*plan.boxes.values(), *plan.others])}
    groups: dict[Box, list[Box]] = {}  # by the first box of each
    for box in names:
        feeding = [edge.start for edge in plan.edges if edge.end is box and edge.start.kind == box.kind == "parallel"]
        group = next((boxes for boxes in groups.values() if feeding and feeding[0] in boxes), None)
        if box.kind == "driver":
            group = next((boxes for first, boxes in groups.items() if first.kind == "driver"), None)
        (groups.setdefault(box, []) if group is None else group).append(box)
    shown = ["flowchart TD"]
    for first, boxes in groups.items():
        titled = first.kind in ("parallel", "driver")
        shown += [f'  subgraph {names[first]}g["{_escaped(first.place)}"]'] if titled else []
        for box in boxes:
            lines = [box.label] if titled else [box.label, box.place]
            if box.counters is not None:
                items, rate, busy, waiting, size, lag = box.figures()
                lines += [f"{items} items, {rate}/s", f"busy {busy}, waiting {waiting}", f"{size}, staleness {lag}"]
            shown.append(f'    {names[box]}["{"<br/>".join(map(_escaped, lines))}"]')
        shown += ["  end"] if titled else []
    for start, end, kind, name in plan.edges:
        label = f'|"{_escaped(name)}"|' if name else ""
        shown.append(f"  {names[start]} {ARROWS[kind]}{label} {names[end]}")
    for kind in FILLS:
        of_kind = ",".join(name for box, name in names.items() if box.kind == kind)
        if of_kind:
            shown.append(f"  classDef {kind} fill:{FILLS[kind]},stroke:{LINES[kind]},color:{INK}")
            shown.append(f"  class {of_kind} {kind}")
    pink = ",".join(str(number) for number, edge in enumerate(plan.edges) if edge.kind != "in step")
    shown += [f"  linkStyle {pink} stroke:{PINK}"] if pink else []
    if plan.bottleneck is not None:
        shown.append(f"  style {names[plan.bottleneck]} stroke:{RED},stroke-width:4px")
    return "\n".join([*shown, f"  %% {plan.verdict}"] if plan.verdict else shown)


def _escaped(text: str) -> str:
    """Return a text as it can stand between quotes in Mermaid.

    >>> _escaped('<lambda> "#1"')
    '#lt;lambda#gt; #quot;#35;1#quot;'
    """
    marks = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(marks.get(mark, mark) for mark in text)
