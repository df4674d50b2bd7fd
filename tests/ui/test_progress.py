"""The display that a training in Python has by default."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import raceway
from raceway.training.train_seeds import train_seeds
from raceway.ui.callback import Callback, Display
from raceway.ui.progress import with_display
from raceway.ui.terminal_display import LiveDisplay, TextDisplay

SETTINGS: dict[str, Any] = {"env": "cartpole", "engine": "inline", "iterations": 1, "episodes_per_iter": 2}


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_progress_is_shown_on_stderr_unless_it_is_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    result = raceway.train("reinforce", **SETTINGS)
    shown = capsys.readouterr()
    assert "Iteration    0" in shown.err
    assert "Training Complete!" in shown.err
    raceway.resume(result.path, iterations=2)
    assert "Iteration    1" in capsys.readouterr().err
    assert shown.out == ""
    raceway.train("reinforce", progress=False, **SETTINGS)
    raceway.resume(result.path, iterations=3, progress=False)
    train_seeds("reinforce", [0], progress=False, **SETTINGS)
    assert capsys.readouterr() == ("", "")


def test_a_display_among_the_callbacks_is_the_only_one() -> None:
    own, other = TextDisplay(), Callback()
    assert with_display([own, other]) == [own, other]
    assert with_display([other], progress=False) == [other]
    callbacks = with_display([other])
    assert callbacks[0] is other
    assert isinstance(callbacks[1], Display)


def test_only_the_main_thread_has_a_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    displays = with_display([])
    thread = threading.Thread(target=lambda: displays.extend(with_display([])))
    thread.start()
    thread.join()
    assert list(map(type, displays)) == [LiveDisplay, TextDisplay]
