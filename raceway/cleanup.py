"""Close several resources, even if closing one of them fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

_log = logging.getLogger(__name__)


def close_all(resources: Iterable[Any], during: BaseException | None = None) -> None:
    """Close every resource, then raise the first error. If another exception is being handled, log the errors.

    Args:
        resources: objects with a `close` method.
        during: the exception because of which they are closed, if any.
    """
    errors = []
    for resource in resources:
        try:
            resource.close()
        except Exception as error:
            errors.append(error)
    if errors and during is None:
        raise errors[0]
    for failure in errors:
        _log.error("while closing because of %r: %r", during, failure)
