"""Old names of public objects, which still work and warn; see "The stable API" in CONTRIBUTING.md."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str, removed_in: str, stacklevel: int = 3) -> None:
    """Warn that a public name has a new one. Call it from a module's `__getattr__`.

    Args:
        old: the old dotted name.
        new: the dotted name to use instead.
        removed_in: the release in which the old name goes away.
        stacklevel: the frame that the warning refers to, counted from this function as 1.
    """
    warnings.warn(
        f"{old} is now {new}; the old name goes away in release {removed_in}. Use {new}.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
