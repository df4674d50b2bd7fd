"""Numbers for people to read."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """Return how many there are of something.

    >>> counted(1, "shard"), counted(2, "shard")
    ('1 shard', '2 shards')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def short(number: float) -> str:
    """Return a number with about three digits.

    >>> short(0.01234), short(12.345), short(12345.6), short(20)
    ('0.01', '12.3', '12,346', '20')
    """
    digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time.

    >>> duration(2.5), duration(0.0123), duration(0.000012), duration(0)
    ('2.50 s', '12.3 ms', '12 µs', '0 s')
    """
    if 0 < seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{short(seconds)} s" if seconds >= 1 or not seconds else f"{short(1000 * seconds)} ms"


def size(number: float) -> str:
    """Return a number of bytes.

    >>> size(999), size(12_345), size(3_000_000)
    ('999 B', '12.3 kB', '3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{short(number)} {unit}"
        number /= 1000
    return f"{short(number)} TB"
