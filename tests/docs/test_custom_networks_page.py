"""The examples of docs/custom-networks.md run."""

import re
from pathlib import Path
from typing import Any

import pytest

import raceway

PAGE = (Path(__file__).parents[2] / "docs" / "custom-networks.md").read_text()


def test_the_examples_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RACEWAY_ENGINE", "inline")
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(example, names)
    assert names["result"].summary["timesteps"] == 2048
    for network in ("actor_and_critic", "Recurrent"):
        result = raceway.train("a2c", env="cartpole", network=names[network], iterations=2, progress=False)
        assert result.summary["iterations"] == 2
