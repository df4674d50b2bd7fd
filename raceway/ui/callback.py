"""The base class of callbacks, which are notified of the progress of a training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raceway.ui.former_methods import adapt_former_methods

if TYPE_CHECKING:
    from raceway.ui.training_run import TrainingRun


class Callback(AbstractContextManager["Callback"]):
    """Base class of callbacks of a training. Every method does nothing unless it is overridden.

    All methods but `on_episode_end` are called in the process that trains, between two iterations. An exception ends
    the run as a `CallbackError`, after the run was saved. `__enter__` is called before `on_train_start`, and `__exit__`
    when the run has ended, with the exception if one ended it. docs/callbacks.md has examples.

    >>> class StopEarly(Callback):
    ...     def on_iteration_end(self, run, metrics):
    ...         return run.mean_return is None or run.mean_return < 400
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        """Adapt methods that have their former name or arguments."""
        super().__init_subclass__(**settings)
        adapt_former_methods(cls)

    def on_train_start(self, run: TrainingRun) -> None:
        """Handle the start of a training: its directory exists, and nothing is trained yet."""

    def on_iteration_end(self, run: TrainingRun, metrics: dict[str, Any]) -> bool | None:
        """Handle the metrics of an iteration; docs/metrics.md explains them.

        Returns:
            False to end the run: it is saved, and its summary says that this callback stopped it.
        """

    def on_evaluation_end(self, run: TrainingRun, metrics: dict[str, Any]) -> None:
        """Handle the metrics of an iteration after which the policy was evaluated, before `on_iteration_end`.

        A resumed run first catches up on an evaluation that was due when it stopped: this is called with the last row
        of the earlier part, which several iterations may share, and `on_iteration_end` is not called.
        """

    def on_metrics_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        """Handle a row as it is written to metrics.jsonl, which fast iterations share: at most four a second.

        For trackers of experiments, with `run.steps` as the step. If a resumed run catches up on an
        evaluation, the last row is written again, with more metrics.
        """

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Handle a checkpoint, a directory that was just written. Older ones are removed; see `--keep`."""

    def on_worker_restart(self, run: TrainingRun, worker: str) -> None:
        """Handle the restart of a worker that died or hung, by its name; called at the end of the iteration."""

    def on_train_end(self, run: TrainingRun, summary: dict[str, Any]) -> None:
        """Handle the end of a training that no error ended; the summary is that of `summary.json`."""

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float] | None:
        """Handle the end of an episode, on the worker that collected it.

        If a class overrides it, a copy of the callback, as it was passed to the training, is pickled and sent to every
        worker. So it cannot change attributes of the callback in the training process, or of other workers.

        Args:
            info: the info of the episode's last step; `info["episode"]` has its return `r` and its length `l`.

        Returns:
            Metrics: numbers by name, or None. Their means over episodes are reported as `episode/<name>`.
        """

    def __exit__(self, *_: object) -> None:
        """Release resources."""


class Display(Callback):
    """Base class of callbacks that show the progress of a training, in place of the display that it has by default."""
