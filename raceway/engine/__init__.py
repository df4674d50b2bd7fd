"""Engines: where actors live. `make_engine("inline" | "process" | "ray")` creates one; `base` declares its methods."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raceway.checks import unknown_name

if TYPE_CHECKING:
    from raceway.engine.base import Engine

ENGINES = ("inline", "process", "ray")
ENVIRONMENT_VARIABLE = "RACEWAY_ENGINE"


def make_engine(name: str | None = None, **options: Any) -> Engine:
    """Create an engine by name; by default the one that RACEWAY_ENGINE names, else `process`.

    >>> with make_engine("inline") as engine:
    ...     engine.spawn(dict).call("__len__").result()
    0
    """
    chosen = name or os.environ.get(ENVIRONMENT_VARIABLE) or "process"
    if chosen not in ENGINES:
        hint = "" if name else f"It comes from the environment variable {ENVIRONMENT_VARIABLE}."
        raise unknown_name("engine", chosen, ENGINES, hint)
    cls: Callable[..., Engine]
    if chosen == "inline":
        from raceway.engine.inline import InlineEngine as cls
    elif chosen == "process":
        from raceway.engine.process.engine import ProcessEngine as cls
    else:
        from raceway.engine.ray.engine import RayEngine as cls
    known = inspect.signature(cls).parameters
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the {chosen} engine", option, known)
    return cls(**options)
