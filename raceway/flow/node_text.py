"""The text in the nodes of a plan diagram, and its width."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raceway.flow.explain import NodeView


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the approximate width of a text. Fonts differ: this is enough for the usual ones.

    >>> text_width("iii", 10) < text_width("mmm", 10)
    True
    """
    wide, narrow = sum(text.count(c) for c in "mwMW%@—…"), sum(text.count(c) for c in "iljtfr.,:;()[]|!' ")
    capitals = sum(c.isupper() for c in text)
    ems = 0.56 * len(text) + 0.28 * wide - 0.22 * narrow + 0.1 * capitals
    return ems * size * (1.07 if bold else 1.0)


def shorten(text: str, max_length: int = 34) -> str:
    """Return a text, with its middle left out if it is long.

    >>> shorten("a" * 9 + "b" * 9, 9)
    'aaaa…bbbb'
    """
    half = (max_length - 1) // 2
    return text if len(text) <= max_length else f"{text[:half]}…{text[-half:]}"


def node_lines(view: NodeView) -> list[str]:
    """Return the text of a node: a title, then lines in small type."""
    kind, _, inner = view.label.partition("(")
    first, _, rest = inner.removesuffix(")").partition(", ")
    if kind in ("for_each", "filter", "flat_map", "combine", "transform") and inner:
        queue = [part for part in rest.split(", ") if part.startswith("queue=")]
        lines = [first, " · ".join([kind, view.place, *queue])]
    elif kind in ("create", "from_range", "from_items", "from_iterators") and inner:
        lines = [f"{kind}({first})" if first else kind, view.place]
    elif view.kind == "actors" or kind in ("union", "union_async", "split") or not inner:
        lines = [kind if inner else view.label, view.place]
    elif len(view.label) < 24:
        lines = [view.label, view.place]
    else:
        lines = [kind, f"{inner.removesuffix(')')} · {view.place}"]
    if view.counters is not None:
        items, rate, busy, waiting, size, lag = view.format_counters()
        lines.append(f"{items} {'item' if view.counters.items == 1 else 'items'} · {rate}/s")
        times = [(view.counters.busy, f"busy {busy}"), (view.counters.waiting, f"waiting {waiting}")]
        lines.append(" · ".join(text for seconds, text in times if seconds))
        lines.append(" · ".join([size] * bool(view.counters.bytes) + [f"staleness {lag}"] * (lag != "-")))
        lines = [line for line in lines if line]
    return [shorten(lines[0], 30), *(shorten(line, 44) for line in lines[1:])]
