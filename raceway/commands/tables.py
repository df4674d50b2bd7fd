"""Tables and lines of text that commands print."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), indent: int = 0
) -> list[str]:
    """Return the lines of a table; the columns named in `right` are right-aligned.

    >>> format_table(("name", "n"), [("a", "10"), ("b", "9")], right=["n"])
    ['name   n', 'a     10', 'b      9']
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        ]
        lines.append(" " * indent + "  ".join(cells).rstrip())
    return lines


def format_age(seconds: float) -> str:
    """Return an age in its largest unit.

    >>> format_age(5), format_age(90), format_age(7300), format_age(200_000)
    ('5 s', '1 min', '2 h', '2 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def print_lines(*lines: str) -> None:
    """Print lines, and flush."""
    print(*lines, sep="\n", flush=True)
