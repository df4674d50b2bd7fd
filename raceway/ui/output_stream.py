"""The stream that a display writes to: nothing that is wrong with it ends a training."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO

_log = logging.getLogger(__name__)


class OutputStream:
    """Writes to a stream until that fails, and from then on nothing.

    Characters that the encoding of the stream lacks are replaced.

    Args:
        stream: the stream, or None for stdout at the time of each write.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._failed = False

    def write(self, text: str) -> int:
        """Write a text. If the stream fails, that is logged, and training continues without output."""
        stream = self._current
        if stream is not None and not self._failed:
            try:
                stream.write(_encodable(text, stream))
            except (OSError, ValueError) as error:  # a ValueError if it is closed
                self._give_up(stream, error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, as `write` writes to it."""
        stream = self._current
        if stream is not None and not self._failed:
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(stream, error)

    @property
    def _current(self) -> TextIO | None:
        return sys.stdout if self._stream is None else self._stream

    def _give_up(self, stream: TextIO, error: Exception) -> None:
        self._failed = True
        # What the stream has buffered goes to the null device: else Python would fail to flush it when it exits.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as null_device:
            os.dup2(null_device.fileno(), stream.fileno())
        reason = "was closed by its reader" if isinstance(error, BrokenPipeError) else f"cannot be written to: {error}"
        _log.warning("the output stream %s; training continues", reason)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream, such as `encoding` or `isatty`."""
        return getattr(self._current, name)


def _encodable(text: str, stream: TextIO) -> str:
    """Return a text with a question mark for every character that the encoding of a stream lacks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
        return text
    except UnicodeEncodeError:
        return text.encode(encoding, "replace").decode(encoding)
    except LookupError:  # no encoding of Python
        return text
