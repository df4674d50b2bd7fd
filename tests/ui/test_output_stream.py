"""Streams that cannot be written to, or only in part, do not end a training."""

import errno
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raceway
from raceway.ui.progress import display_for, with_display
from raceway.ui.terminal_display import LiveDisplay, TextDisplay


class FullDisk(io.StringIO):
    """Accepts writes into its buffer, and cannot flush it."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class FullTerminal(FullDisk):
    """The same for a terminal."""

    terminal = True


def closed_stream() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make_stream", [FullDisk, FullTerminal, closed_stream, lambda: None])
def test_training_continues_if_stderr_fails(
    make_stream: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "stderr", make_stream())
    result = raceway.train("reinforce", engine="inline", iterations=1, episodes_per_iter=2, run_dir=tmp_path / "run")
    assert result.summary["iterations"] == 1
    assert caplog.text.count("the output stream cannot be written to") == (0 if sys.stderr is None else 1)


def test_a_terminal_that_fails_has_a_live_display() -> None:
    """So that the test above has one. What does not know whether it is a terminal has none."""
    assert isinstance(display_for(FullTerminal()), LiveDisplay)
    anything: Any = object()
    assert isinstance(display_for(anything), TextDisplay)


def test_without_stderr_there_is_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert with_display([]) == []
    monkeypatch.setattr(sys, "stdout", None)
    TextDisplay().write("nobody reads this")


def test_characters_that_the_encoding_lacks_are_replaced() -> None:
    for errors, expected in (("strict", b"1.0 ? 0.5\n"), ("backslashreplace", b"1.0 \\xb1 0.5\n")):
        content = io.BytesIO()
        stream = io.TextIOWrapper(content, "ascii", errors)
        TextDisplay(stream).write("1.0 ± 0.5")
        assert content.getvalue() == expected
