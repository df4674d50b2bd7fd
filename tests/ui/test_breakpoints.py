"""A live display makes room for a debugger."""

import io
import pdb
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import raceway
from raceway.ui.breakpoints import BreakpointHook
from raceway.ui.callback import Callback
from raceway.ui.terminal_display import LiveDisplay


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions in which the debugger has stopped; it continues at once."""
    functions: list[str] = []

    class Debugger(pdb.Pdb):
        def set_trace(self, frame: Any = None) -> None:
            functions.append(frame.f_code.co_name)

    monkeypatch.setattr(pdb, "Pdb", Debugger)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)  # not that of pytest
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    return functions


def test_the_debugger_stops_at_the_breakpoint(stops: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    hook = BreakpointHook(lambda: calls.append(len(stops)))
    hook.install()
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    breakpoint()
    assert (calls, stops) == ([], [])
    monkeypatch.delenv("PYTHONBREAKPOINT")
    breakpoint()
    assert (calls, stops) == ([0], ["test_the_debugger_stops_at_the_breakpoint"])
    assert sys.breakpointhook is sys.__breakpointhook__


def test_a_breakpoint_ends_the_live_display(stops: list[str], tmp_path: Path) -> None:
    screen = io.StringIO()

    class Break(Callback):
        def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
            if row["time/iterations"] == 1:
                breakpoint()
                screen.write("after the breakpoint")

    display = LiveDisplay(Console(file=screen, force_terminal=True))
    settings: dict[str, Any] = {
        "engine": "inline",
        "iterations": 11,
        "episodes_per_iter": 1,
        "run_dir": tmp_path / "run",
    }
    raceway.train("reinforce", env="cartpole", callbacks=[Break(), display], **settings)
    assert stops == ["on_iteration_end"]
    _, _, shown = screen.getvalue().partition("after the breakpoint")
    assert "\x1b[2K" not in shown  # which clears a line
    assert "Iteration   10 | " in shown
    assert "Training Complete!" in shown
