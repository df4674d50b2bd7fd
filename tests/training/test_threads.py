"""Trainings in several threads of one process do not influence each other's results."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raceway
from raceway.ui.callback import Callback
from tests.conftest import GENEROUS


class OnStart(Callback):
    """Calls a function when a training starts."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def on_train_start(self, run: Any) -> None:
        self.function()


def test_weights_do_not_depend_on_trainings_in_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights: dict[str, str] = {}
    first_started, second_started, first_ended = threading.Event(), threading.Event(), threading.Event()

    def train(name: str, *functions: Callable[[], object]) -> None:
        # 2,029 steps in the first iteration: products of such matrices depend on the number of threads of BLAS
        settings: dict[str, Any] = {"env": "cartpole", "engine": "inline", "iterations": 1}
        result = raceway.train("reinforce", callbacks=list(map(OnStart, functions)), run_dir=name, **settings)
        weights[name] = result.summary["weights_sha256"]

    def first() -> None:
        train("first", first_started.set, lambda: second_started.wait(GENEROUS))
        first_ended.set()

    def second() -> None:
        first_started.wait(GENEROUS)
        train("second", second_started.set, lambda: first_ended.wait(GENEROUS))

    train("alone")
    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    assert weights["first"] == weights["second"] == weights["alone"]
