"""The callbacks of a training: checked, called in order, and named in errors."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raceway.checks import unknown_name
from raceway.errors import INTERRUPTS, CallbackError, ConfigError
from raceway.rollouts.episode_reports import EpisodeCallbacks
from raceway.ui.callback import Callback
from raceway.ui.training_run import TrainingRun


class CallbackList:
    """Calls the methods of all callbacks, in order. After one has raised, no further method is called.

    Args:
        callbacks: the callbacks.
    """

    run: TrainingRun

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if isinstance(callback, type):
                raise ConfigError(f"callbacks has the class {callback.__name__}. Pass an object: {callback.__name__}()")
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"callbacks has {callback!r}, which is no raceway.Callback. Derive its class from it."
                )
        self._failed = False

    def for_workers(self) -> EpisodeCallbacks | None:
        """Return the callbacks with `on_episode_end`, for the workers."""
        overridden = [
            callback for callback in self._callbacks if type(callback).on_episode_end is not Callback.on_episode_end
        ]
        return EpisodeCallbacks.of(overridden)

    def start(self, training: Any, directory: Path, stack: ExitStack) -> None:
        """Enter the callbacks on a stack, and notify them of the start."""
        self.run = TrainingRun(training, directory)
        for callback in self._callbacks:
            self._guard(callback, "__enter__")
            stack.push(partial(self._exit, callback))
            self._call(callback, "on_train_start")

    def _exit(self, callback: Callback, *error: Any) -> None:
        self._guard(callback, "__exit__", *error)

    def on_iteration_end(self, metrics: dict[str, Any], restarted: Sequence[str] = ()) -> str | None:
        """Notify of the end of an iteration, and return which callback stops the run, if one does.

        Args:
            metrics: the metrics of the iteration.
            restarted: the names of workers that were restarted in it.
        """
        for worker in restarted:
            self._call_all("on_worker_restart", worker)
        if "eval/mean_reward" in metrics:
            self._call_all("on_evaluation_end", metrics)
        answers = self._call_all("on_iteration_end", metrics)
        stopped_by = [type(callback).__name__ for callback, answer in answers if _is_false(answer)]
        return f"callback {stopped_by[0]}" if stopped_by else None

    def on_overdue_evaluation(self, row: dict[str, Any]) -> None:
        """Notify of an evaluation that was due when the run was stopped."""
        if "eval/mean_reward" in row:
            self._call_all("on_evaluation_end", row)

    def on_metrics_row(self, row: dict[str, Any]) -> None:
        """Notify of a row of metrics."""
        self._call_all("on_metrics_row", row)

    def on_checkpoint(self, path: Path) -> None:
        """Notify of a checkpoint."""
        self._call_all("on_checkpoint", path)

    def on_train_end(self, summary: dict[str, Any]) -> None:
        """Notify all callbacks of the end, also if one raises; then raise its error."""
        errors: list[CallbackError] = []
        for callback in self._callbacks:
            try:
                self._call(callback, "on_train_end", summary)
            except CallbackError as error:
                errors.append(error)
                self._failed = False
        if errors:
            raise errors[0]

    def _call_all(self, method: str, *args: Any) -> list[tuple[Callback, Any]]:
        return [(callback, self._call(callback, method, *args)) for callback in self._callbacks]

    def _call(self, callback: Callback, method: str, *args: Any) -> Any:
        return None if self._failed else self._guard(callback, method, self.run, *args)

    def _guard(self, callback: Callback, method: str, *args: Any) -> Any:
        """Call a method, and raise a `CallbackError` for an exception."""
        try:
            return getattr(callback, method)(*args)
        except INTERRUPTS:
            raise
        except Exception as error:
            self._failed = True
            raise CallbackError.wrap(error, type(callback).__name__, method) from error


def _is_false(answer: Any) -> bool:
    return isinstance(answer, (bool, np.bool_)) and not answer


def import_callback(name: str) -> Callback:
    """Import a class named as `module:Class`, also from the working directory, and create a callback.

    Instead of a class, it may name a function that returns a callback.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"callback {name!r} must be module:Class")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the working directory, as `python -m` has it
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise ConfigError(f"callback {name!r} cannot be imported: {error}") from error
        raise ConfigError(
            f"callback {name!r}: there is no module {module_name!r} here ({error}). Run from its directory, or install "
            "it."
        ) from error
    except Exception as error:
        raise ConfigError(f"callback {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    make = getattr(module, attribute, None)
    if make is None:
        classes = [key for key, value in vars(module).items() if _is_callback_class(value) and value is not Callback]
        raise unknown_name(f"callback in {module_name}", attribute, classes, "Use module:Class.")
    return _make_callback(name, make)


def _make_callback(name: str, make: Any) -> Callback:
    if inspect.isclass(make) and not _is_callback_class(make):
        raise ConfigError(f"callback {name!r} is a class that does not derive from raceway.Callback. Derive it.")
    if not callable(make):
        raise ConfigError(f"callback {name!r} is {make!r}. Name a class, or a function that returns a callback.")
    try:
        callback = make()
    except Exception as error:
        raise ConfigError(
            f"callback {name!r} cannot be created without arguments: {type(error).__name__}: {error}. Name a function "
            "that creates it instead."
        ) from error
    if not isinstance(callback, Callback):
        raise ConfigError(f"callback {name!r} returned {callback!r}, which is not a raceway.Callback")
    return callback


def _is_callback_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Callback)
