"""Formatting of numbers for people to read."""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural.

    >>> format_count(1, "shard"), format_count(2, "shard")
    ('1 shard', '2 shards')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_number(number: float) -> str:
    """Return a number with two or three significant digits, or as a whole number.

    >>> format_number(0.01234), format_number(12.345), format_number(12345.6), format_number(20)
    ('0.01', '12.3', '12,346', '20')
    """
    digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, milliseconds or microseconds.

    >>> format_duration(2.5), format_duration(0.0123), format_duration(0.000012), format_duration(0)
    ('2.50 s', '12.3 ms', '12 µs', '0 s')
    """
    if 0 < seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{format_number(seconds)} s" if seconds >= 1 or not seconds else f"{format_number(1000 * seconds)} ms"


def format_bytes(num_bytes: float) -> str:
    """Return a number of bytes in the largest unit that fits.

    >>> format_bytes(999), format_bytes(12_345), format_bytes(3_000_000)
    ('999 B', '12.3 kB', '3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{format_number(num_bytes)} {unit}"
        num_bytes /= 1000
    return f"{format_number(num_bytes)} TB"


def format_clock(seconds: float) -> str:
    """Return a duration as h:mm:ss.

    >>> format_clock(75), format_clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
