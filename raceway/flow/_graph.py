"""The plan: an immutable graph of named nodes. Building it runs nothing."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from raceway.engine.base import Actor
from raceway.errors import ConfigError

_HERE = os.path.dirname(__file__)


class _Given:
    def __reduce__(self) -> str:
        return "given"  # the same one in every process


given: Any = _Given()
"""The default of a parameter that the flow fills in: `def f(item, *, actor=given, envelope=given, shard=given)`."""


class Step(NamedTuple):
    """As much of a node as a shard needs to run it."""

    label: str
    where: str
    """The line of the user's program that added it."""
    part: Any
    """An Origin, an Op, a change to a list of shards, or a function that makes a stage of a running flow."""
    settings: dict[str, Any]


class Node:
    """One operator of a plan. A parallel one runs on the actors of the shards, any other in the driver."""

    def __init__(
        self, label: str, part: Any, parents: Sequence[Node], *, actors: Sequence[Actor] = (), **settings: Any
    ) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        self.step = Step(label, f"{frame.f_code.co_filename}:{frame.f_lineno}", part, settings)
        self.label = label
        self.kind = label.partition("(")[0]
        self.parents = tuple(parents)
        self.actors = tuple(actors)
        """Where it runs, if it says so itself."""
        self.parallel: bool = settings.get("parallel", False)

    def __repr__(self) -> str:
        return f"{self.label} (added at {self.step.where})"


def walk(node: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """Yield every node once, each after its parents."""
    seen = set() if seen is None else seen
    if node not in seen:
        seen.add(node)
        for parent in node.parents:
            yield from walk(parent, seen)
        yield node


def name_of(function: Any) -> str:
    """Return what a plan calls an operator.

    >>> name_of(str.upper), name_of(lambda x: x)
    ('upper', '<lambda>')
    """
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def asked_for(function: Callable[..., Any], parallel: bool) -> tuple[str, ...]:
    """Return the parameters that an operator wants to be given, having checked that it can be."""
    if not callable(function):
        raise ConfigError(f"an operator is a function or another object that can be called, not {function!r}")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not tell
        return ()
    asked = tuple(name for name, parameter in parameters.items() if parameter.default is given)
    offered = ("actor", "envelope", "shard") if parallel else ("envelope",)
    for name in asked:
        if name not in offered:
            where = "on a shard or an actor" if parallel else "in the driver"
            raise ConfigError(f"{name_of(function)} asks for {name!r}, but {where} there is: {', '.join(offered)}")
    return asked


def whole(what: str, value: Any, least: int = 1) -> int:
    """Check a count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what} must be a whole number from {least}, not {value!r}")
    return value
