"""Draw a plan: as a Mermaid flowchart for Markdown, and as SVG for everything else."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING

from raceway.flow.diagram_layout import LINE, STACK_OFFSET, ArrowPath, Layout, PlacedNode, port_x
from raceway.flow.node_text import text_width

if TYPE_CHECKING:
    from raceway.flow.explain import Edge, NodeView, PlanView

INK, GREY, PINK, RED = "#1f2933", "#66727f", "#d6277f", "#e8590c"
FILLS = {"parallel": "#dbeafe", "driver": "#f4f5f7", "offloaded": "#fef3c7", "actors": "#ffffff"}
BORDERS = {"parallel": "#5b8def", "driver": "#9aa5b1", "offloaded": "#d9a514", "actors": "#9aa5b1"}
LEGEND = {
    "parallel": "parallel, on shards",
    "driver": "sequential, in the driver",
    "offloaded": "on a dedicated thread or actor",
    "actors": "actors outside the plan",
    "message": "message to actors",
}
ARROW_COLOURS = {"synchronous": INK, "asynchronous": PINK, "message": PINK}
MERMAID_ARROWS = {"synchronous": "-->", "asynchronous": "==>", "message": "-.->"}
DASHES = {
    "actors": ' stroke-dasharray="5 3"',
    "message": ' stroke-dasharray="1.5 4" stroke-linecap="round"',
}
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
LEGEND_COLUMN = 205.0
"""Width of a legend entry."""
MARGIN = 26.0


def svg(plan: PlanView) -> str:
    """Return a plan as an SVG diagram."""
    layout = Layout(plan)
    bottom = max(node.bottom for node in layout.placed.values()) + 30
    parts = [_draw_arrow(edge.kind, path) for edge, path in layout.paths.items()]
    parts += [_draw_node(node, node.view, node.view is plan.bottleneck) for node in layout.placed.values() if node.view]
    parts += [_draw_branch_name(layout, edge) for edge in layout.flows if edge.name]
    drawn_width = layout.right + 2 * STACK_OFFSET - layout.left
    width = max(drawn_width, 2 * LEGEND_COLUMN)
    left = layout.left - (width - drawn_width) / 2
    legend, bottom = _draw_legend(plan, left, bottom, width)
    numbers = (left - MARGIN, -MARGIN, width + 2 * MARGIN, bottom + 2 * MARGIN)
    x, y, full_width, full_height = (f"{number:.0f}" for number in numbers)
    size = f'width="{full_width}" height="{full_height}"'
    view_box = f"{x} {y} {full_width} {full_height}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{view_box}" role="img" font-family="{FONT}">',
            f'<rect x="{x}" y="{y}" {size} rx="12" fill="#ffffff"/>',
            *parts,
            *legend,
            "</svg>",
        ]
    )


def _draw_arrow(kind: str, arrow: ArrowPath) -> str:
    transform = f"translate({arrow.x:.1f} {arrow.y:.1f}) rotate({arrow.angle:.0f})"
    style = f'fill="none" stroke="{ARROW_COLOURS[kind]}" stroke-width="1.7"{DASHES.get(kind, "")}'
    tip = f'<path d="M-9,-4 L0,0 L-9,4 Z" fill="{ARROW_COLOURS[kind]}" transform="{transform}"/>'
    return f'<g class="{kind}"><path d="{arrow.path}" {style}/>{tip}</g>'


def _draw_node(node: PlacedNode, view: NodeView, is_bottleneck: bool) -> str:
    """Draw a node. Its full label, and where it was added, are its tooltip."""
    border = (
        f'stroke="{RED}" stroke-width="3"' if is_bottleneck else f'stroke="{BORDERS[view.kind]}" stroke-width="1.2"'
    )
    where = f"\nadded at {view.where}" if view.where else ""
    parts = [f"<title>{escape(f'{view.label}, {view.place}{where}')}</title>"]
    for depth in (2, 1, 0) if view.kind == "parallel" else (0,):
        parts.append(
            f'<rect x="{node.left + STACK_OFFSET * depth:.1f}" y="{node.y - STACK_OFFSET * depth:.1f}"'
            f' width="{node.width:.1f}"'
            f' height="{node.height:.1f}" rx="7" fill="{FILLS[view.kind]}" {border}{DASHES.get(view.kind, "")}/>'
        )
    parts += [
        _draw_text(node.x, node.y + 21 + index * LINE + (2 if index else 0), line, "middle", title=not index)
        for index, line in enumerate(node.lines)
    ]
    if is_bottleneck:
        x, y = node.right - 52, node.y - 9
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="72" height="16" rx="8" fill="{RED}"/>')
        parts.append(_draw_text(node.right - 16, node.y + 2.5, "bottleneck", "middle", colour="#ffffff"))
    return f'<g class="{view.kind}">{"".join(parts)}</g>'


def _draw_text(x: float, y: float, text: str, anchor: str, *, title: bool = False, colour: str = GREY) -> str:
    style = f'font-size="13" font-weight="600" fill="{INK}"' if title else f'font-size="10.5" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'


def _draw_branch_name(layout: Layout, edge: Edge) -> str:
    """Draw the name of a branch on its arrow: at the split, or at the union."""
    route = layout.routes[edge]
    upper, lower = route[:2] if edge.start.label.startswith("split") else route[-2:]
    x = (port_x(upper, lower, upper.below) + port_x(lower, upper, lower.above)) / 2
    y, width = (upper.bottom + lower.y) / 2, text_width(edge.name, 10.5) + 10
    back = f'<rect x="{x - width / 2:.1f}" y="{y - 8:.1f}" width="{width:.1f}" height="16" rx="8" fill="#ffffff"/>'
    return back + _draw_text(x, y + 3.5, edge.name, "middle", colour=ARROW_COLOURS[edge.kind])


def _draw_legend(plan: PlanView, left: float, top: float, width: float) -> tuple[list[str], float]:
    """Return the legend of the kinds that occur in a plan, and its lower edge."""
    node_kinds = {view.kind for view in [*plan.nodes.values(), *plan.outside_actors]}
    arrow_kinds = {edge.kind for edge in plan.edges}
    entries = [(kind, LEGEND[kind]) for kind in FILLS if kind in node_kinds]
    entries += [(kind, LEGEND.get(kind, kind)) for kind in ARROW_COLOURS if kind in arrow_kinds]
    num_columns = int(width // LEGEND_COLUMN)
    parts = [f'<path d="M{left:.1f},{top:.1f} h{width:.1f}" stroke="#e4e7eb"/>']
    for number, (kind, text) in enumerate(entries):
        x, y = left + number % num_columns * LEGEND_COLUMN, top + 20 + number // num_columns * 18
        if kind in ARROW_COLOURS:
            parts.append(_draw_arrow(kind, ArrowPath(f"M{x:.1f},{y:.1f} h17", x + 23, y, 0)))
        else:
            style = f'fill="{FILLS[kind]}" stroke="{BORDERS[kind]}"'
            if kind == "parallel":
                parts.append(f'<rect x="{x + 6:.1f}" y="{y - 7:.1f}" width="17" height="10" rx="3" {style}/>')
            parts.append(f'<rect x="{x + 3:.1f}" y="{y - 4.5:.1f}" width="17" height="10" rx="3" {style}/>')
        parts.append(_draw_text(x + 30, y + 3.5, text, "start"))
    height = 20 + -(-len(entries) // num_columns) * 18.0
    for line in textwrap.wrap(plan.summary, int(width / 6)):
        parts.append(_draw_text(left, top + height + 8, line, "start", colour=INK))
        height += LINE
    return parts, top + height - 16


def mermaid(plan: PlanView) -> str:
    """Return a plan as a Mermaid flowchart."""
    names = {view: f"n{number}" for number, view in enumerate([*plan.nodes.values(), *plan.outside_actors])}
    groups: dict[NodeView, list[NodeView]] = {}  # by the first node of each
    for view in names:
        inputs = [edge.start for edge in plan.edges if edge.end is view and edge.start.kind == view.kind == "parallel"]
        group = next((views for views in groups.values() if inputs and inputs[0] in views), None)
        if view.kind == "driver":
            group = next((views for first, views in groups.items() if first.kind == "driver"), None)
        (groups.setdefault(view, []) if group is None else group).append(view)
    lines = ["flowchart TD"]
    for first, views in groups.items():
        has_title = first.kind in ("parallel", "driver")
        lines += [f'  subgraph {names[first]}g["{_escape(first.place)}"]'] if has_title else []
        for view in views:
            texts = [view.label] if has_title else [view.label, view.place]
            if view.counters is not None:
                items, rate, busy, waiting, size, lag = view.format_counters()
                texts += [f"{items} items, {rate}/s", f"busy {busy}, waiting {waiting}", f"{size}, staleness {lag}"]
            lines.append(f'    {names[view]}["{"<br/>".join(map(_escape, texts))}"]')
        lines += ["  end"] if has_title else []
    for start, end, kind, name in plan.edges:
        label = f'|"{_escape(name)}"|' if name else ""
        lines.append(f"  {names[start]} {MERMAID_ARROWS[kind]}{label} {names[end]}")
    for kind in FILLS:
        of_kind = ",".join(name for view, name in names.items() if view.kind == kind)
        if of_kind:
            lines.append(f"  classDef {kind} fill:{FILLS[kind]},stroke:{BORDERS[kind]},color:{INK}")
            lines.append(f"  class {of_kind} {kind}")
    pink = ",".join(str(number) for number, edge in enumerate(plan.edges) if edge.kind != "synchronous")
    lines += [f"  linkStyle {pink} stroke:{PINK}"] if pink else []
    if plan.bottleneck is not None:
        lines.append(f"  style {names[plan.bottleneck]} stroke:{RED},stroke-width:4px")
    return "\n".join([*lines, f"  %% {plan.summary}"] if plan.summary else lines)


def _escape(text: str) -> str:
    """Return a text that can stand between quotes in Mermaid.

    >>> _escape('<lambda> "#1"')
    '#lt;lambda#gt; #quot;#35;1#quot;'
    """
    entities = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(entities.get(character, character) for character in text)
