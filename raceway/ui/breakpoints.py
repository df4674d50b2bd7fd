"""Making room for a debugger: a display that is refreshed would write over its prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class BreakpointHook:
    """Calls a function before `breakpoint()` starts a debugger.

    Args:
        function: called once, with no arguments. The hook is removed first.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._previous: Any = None

    def install(self) -> None:
        """Install the hook."""
        self._previous, sys.breakpointhook = sys.breakpointhook, self._call

    def remove(self) -> None:
        """Remove the hook, unless another one was installed since."""
        if sys.breakpointhook == self._call:
            sys.breakpointhook = self._previous

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT") == "0":  # breakpoints are switched off
            return None
        self.remove()
        self._function()
        if self._previous is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
            import pdb

            # As `pdb.set_trace` does, which would stop here instead of at the breakpoint.
            return pdb.Pdb().set_trace(sys._getframe(1))
        return self._previous(*args, **kwargs)
