"""Schema numbers of files: check the form of a document, and migrate one that an older version wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]
Migrations = Mapping[int, Callable[[Document], Document]]
"""By schema number: a function that turns a document of that schema into one of the next. It must leave a document that
is up to date unchanged, because a process may be killed after it migrated a file and before it wrote the new number."""


def migrate(doc: Document, schema: int, newest: int, migrations: Migrations) -> Document:
    """Migrate a document to the newest schema, one version at a time.

    >>> migrate({"a": 1}, 1, 3, {1: lambda doc: {**doc, "b": 2}, 2: lambda doc: {**doc, "c": 3}})
    {'a': 1, 'b': 2, 'c': 3}
    """
    for number in range(schema, newest):
        doc = migrations.get(number, dict)(doc)
    return doc


def schema_mismatch(value: Any, wanted: Any, place: str = "") -> str | None:
    """Return how a value differs from the expected form, or None.

    >>> schema_mismatch({"env": {"name": 3}}, {"env": {"name": str}})
    'env.name is 3, not a str'
    """
    if not isinstance(wanted, dict):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        fits = type(value) in kinds
        return None if fits else f"{place} is {str(value)[:60]!s}, not a {' or a '.join(k.__name__ for k in kinds)}"
    if not isinstance(value, dict):
        return f"{place or 'all of it'} is {str(value)[:60]}, not an object with {', '.join(wanted)}"
    for name, form in wanted.items():
        where = f"{place}.{name}" if place else name
        problem = schema_mismatch(value[name], form, where) if name in value else f"{where} is missing"
        if problem:
            return problem
    return None
