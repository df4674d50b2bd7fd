"""Callbacks: their former methods, what a list of them refuses, and their import by name."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raceway.errors import CallbackError, ConfigError
from raceway.ui.callback import Callback
from raceway.ui.callback_list import CallbackList, import_callback


def test_former_methods_warn_and_are_called() -> None:
    calls: list[tuple[Any, ...]] = []
    with pytest.warns(DeprecationWarning, match="the old name goes away in release 0.4") as warned:

        class Former(Callback):
            def on_start(self, training: Any, path: Path) -> None:
                calls.append(("start", training, path))

            def on_iteration(self, row: dict[str, Any]) -> bool:
                calls.append(("iteration", row))
                return False

            def on_checkpoint(self, steps: int) -> None:  # type: ignore[override]
                calls.append(("checkpoint", steps))

            def on_end(self, result: Any) -> None:
                calls.append(("end", result))

    assert [str(warning.message).partition(";")[0] for warning in warned] == [
        "Former.on_start is now Former.on_train_start(run)",
        "Former.on_iteration is now Former.on_iteration_end(run, metrics)",
        "Former.on_checkpoint(steps) is now Former.on_checkpoint(run, path)",
        "Former.on_end is now Former.on_train_end(run, summary)",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    run: Any = SimpleNamespace(training=SimpleNamespace(result="result"), directory=Path("here"), steps=3)
    callback = Former()
    callback.on_train_start(run)
    assert callback.on_iteration_end(run, {"a": 1}) is None, "what it returned had no meaning"
    callback.on_checkpoint(run, Path("checkpoint"))
    callback.on_train_end(run, {})
    assert calls == [
        ("start", run.training, Path("here")), ("iteration", {"a": 1}), ("checkpoint", 3), ("end", "result"),
    ]  # fmt: skip


def test_a_class_with_former_and_new_methods_does_not_warn() -> None:
    class Both(Callback):
        def on_iteration(self, row: dict[str, Any]) -> None:
            raise AssertionError

        def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
            pass

        def on_checkpoint(self, run: Any, path: Path) -> None:
            pass

    Both().on_iteration_end(None, {})


def test_only_callbacks_are_accepted() -> None:
    with pytest.raises(ConfigError, match=r"callbacks has the class Callback\. Pass an object: Callback\(\)"):
        CallbackList([Callback])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"callbacks has 'display', which is no raceway\.Callback"):
        CallbackList(["display"])  # type: ignore[list-item]


def test_a_callback_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(CallbackError("ValueError: no", "Mine", "on_checkpoint")))
    assert (error.callback, error.method) == ("Mine", "on_checkpoint")
    assert str(error) == "callback Mine.on_checkpoint raised ValueError: no"


MODULE = """
import raceway

class StopEarly(raceway.Callback):
    pass

class NeedsArguments(raceway.Callback):
    def __init__(self, limit):
        self.limit = limit

class Unrelated:
    pass

def make():
    return NeedsArguments(3)

def wrong():
    return 3

number = 3
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    Path("own_callbacks.py").write_text(MODULE)
    Path("broken_callbacks.py").write_text("import no_such_module_anywhere")
    Path("failing_callbacks.py").write_text("1 / 0")


@pytest.mark.usefixtures("modules")
def test_callbacks_are_imported_from_the_working_directory() -> None:
    assert type(import_callback("own_callbacks:StopEarly")).__name__ == "StopEarly"
    made: Any = import_callback("own_callbacks:make")
    assert made.limit == 3


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_callbacks", "callback 'own_callbacks' must be module:Class"),
        (":StopEarly", "callback ':StopEarly' must be module:Class"),
        ("elsewhere:StopEarly", "there is no module 'elsewhere' here .* Run from its directory, or install it"),
        ("own_callbacks:StopErly", "unknown callback in own_callbacks 'StopErly'. Did you mean 'StopEarly'?"),
        ("own_callbacks:Unrelated", "does not derive from raceway.Callback"),
        ("own_callbacks:number", "is 3. Name a class, or a function"),
        ("own_callbacks:wrong", "returned 3, which is not a raceway.Callback"),
        ("own_callbacks:NeedsArguments", "cannot be created without arguments: TypeError: .*'limit'"),
        ("broken_callbacks:A", "cannot be imported: No module named 'no_such_module_anywhere'"),
        ("failing_callbacks:A", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_callback_that_cannot_be_imported_is_an_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace("?", r"\?")):
        import_callback(name)
