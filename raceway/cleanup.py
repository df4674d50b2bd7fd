"""Closing several resources, whatever goes wrong with one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

_log = logging.getLogger(__name__)


def close_all(things: Iterable[Any], during: BaseException | None = None) -> None:
    """Close every one of them, whatever the others do. Then raise the first error; during another, log them all."""
    errors = []
    for thing in things:
        try:
            thing.close()
        except Exception as error:
            errors.append(error)
    if errors and during is None:
        raise errors[0]
    for failure in errors:
        _log.error("while it was closed because of %r: %r", during, failure)
