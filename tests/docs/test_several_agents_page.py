"""The commands and programs of docs/several-agents.md work, in the order of the page."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from raceway.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "several-agents.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHORT = ["--local", "--num-envs", "2", "--num-minibatches", "2", "--num-epochs", "1", "--env-kwargs", "max_cycles=10"]


def test_everything_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, text in BLOCKS:
        if language == "toml":
            Path("twin.toml").write_text(text)
        elif language == "python":
            exec(text.replace("total_timesteps=3000", "total_timesteps=900, engine='inline', num_envs=2"), names)
        else:
            run_commands(text)
    assert Path("spread.gif").stat().st_size > 1000
    assert Path("runs/twin/plot.png").exists()
    assert Path("pair.pt2").exists()


def run_commands(text: str) -> None:
    for line in text.splitlines():
        _, command, *options = shlex.split(line)
        if command == "train":
            options += [*SHORT, *(["--fragment-steps", "30"] if "--fragment-steps" not in options else [])]
            options[options.index("--total-timesteps") + 1] = "900"
        if command == "resume":
            options[options.index("--total-timesteps") + 1] = "1000"
        assert main([command, *options]) == 0, line
