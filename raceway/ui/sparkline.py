"""A line of bars, as a plot in one line of text."""

from __future__ import annotations

from collections.abc import Iterable

_BARS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 40


def sparkline(values: Iterable[float], width: int = SPARKLINE_WIDTH) -> str:
    """Return the last `width` values as a line of bars.

    >>> sparkline([0.0, 5.0, 10.0])
    '▁▅█'
    """
    visible = list(values)[-width:]
    if not visible:
        return ""
    low, high = min(visible), max(visible)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in visible)
