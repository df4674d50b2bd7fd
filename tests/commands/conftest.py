"""Fixtures of the commands' tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

Output = Callable[..., list[str]]
"""Runs a command that must succeed, and returns the lines that it printed."""


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def run(command: Callable[[list[str]], int], *arguments: str) -> list[str]:
        assert command(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
