"""The examples of docs/callbacks.md run, and the page lists every method and every attribute of a run."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from raceway.ui.callback import Callback
from raceway.ui.training_run import TrainingRun

PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(example, names)
    assert names["result"].summary["stopped_by"] in ("callback StopWhenSolved", "total_timesteps")
    assert 0 <= names["result"].metrics[-1]["episode/is_long"] <= 1


def test_all_methods_are_listed_with_their_arguments() -> None:
    methods = [(name, method) for name, method in vars(Callback).items() if name.startswith("on_")]
    assert len(methods) == 8
    for name, method in methods:
        arguments = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
        assert f"| `{name}({', '.join(arguments)})` |" in PAGE


def test_all_attributes_of_a_run_are_listed() -> None:
    properties = [name for name, member in vars(TrainingRun).items() if isinstance(member, property)]
    for name in (*properties, *inspect.get_annotations(TrainingRun)):
        assert f"`run.{name}`" in PAGE
