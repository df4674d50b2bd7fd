"""Which display of its progress a training has."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from raceway.ui.callback import Callback, Display
from raceway.ui.output_stream import OutputStream
from raceway.ui.terminal_display import LiveDisplay, TextDisplay


def display_for(stream: TextIO | None) -> Display:
    """Return a live display for a terminal, and a text display for anything else.

    A live display needs the terminal for itself, so trainings in other threads than the main one print lines.
    """
    if stream is None or not _is_terminal(stream) or threading.current_thread() is not threading.main_thread():
        return TextDisplay(stream)
    from rich.console import Console

    output: Any = OutputStream(stream)
    return LiveDisplay(Console(file=output))


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError, OSError):  # not a file, or a closed one
        return False


def with_display(callbacks: Sequence[Callback], *, progress: bool = True) -> list[Callback]:
    """Return the callbacks, and a display on stderr if progress is to be shown and none of them is a display.

    stdout belongs to the user's program. A program without a terminal may have no stderr.
    """
    if not progress or sys.stderr is None or any(isinstance(callback, Display) for callback in callbacks):
        return list(callbacks)
    return [*callbacks, display_for(sys.stderr)]
